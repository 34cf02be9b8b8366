"""Who had INA when: a picture of two jobs on one pool, of a few steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.figure import Figure

from inaproto_controller.pictures.plot_look import LOOK
from inaproto_hil.evaluation.shared_pool.world import GroupRun

_INA: Final = ("#1f5fbf", "#c62828", "#2e7d32", "#6a1b9a")
_PLAIN: Final = "#c4c9d0"
_STEPS: Final = 4
"""Steps of the longest job."""


def draw_timeline(run: GroupRun, names: Sequence[str], title: str, path: Path) -> None:
    """As SVG or PNG, by the suffix: the same run gives the same bytes. From the middle of the run."""
    last = min(starts[-1] for starts in run.steps)
    span = _STEPS * max(times.step_plain for times in run.times)
    begin = max(0.0, last / 2 - span / 2)
    with mpl.rc_context(LOOK):
        drawn = Figure(figsize=(9.0, 1.2 + 0.75 * len(names)), layout="constrained")
        axes = drawn.subplots()
        for job, name in enumerate(names):
            for uses_ina, colour in ((False, _PLAIN), (True, _INA[job % len(_INA)])):
                bars = [
                    ((one.begin - begin) * 1e3, (one.end - one.begin) * 1e3)
                    for one in run.operations
                    if one.job == job and one.uses_ina is uses_ina and begin <= one.begin < begin + span
                ]
                label = f"{name}, with INA" if uses_ina else "without" if job == 0 else None
                axes.broken_barh(bars, (job - 0.3, 0.6), color=colour, label=label, lw=0.2, ec="white")
            starts = [(at - begin) * 1e3 for at in run.steps[job] if begin <= at < begin + span]
            axes.plot(starts, [job] * len(starts), "|", color="#20242b", ms=24, mew=0.8)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(0, span * 1e3)
        axes.set_xlabel(f"ms, from {begin:.2f} s; a line is the beginning of a step")
        axes.set_title(title)
        axes.legend(frameon=False, ncols=len(names) + 1, loc="lower right", bbox_to_anchor=(1.0, 1.0))
        drawn.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
