"""The picture of ``inaproto bench priorities``: when each model ended, in each kind of run."""

from __future__ import annotations

import io
import statistics
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from inaproto_controller.pictures.looks import COLOURS, INK
from inaproto_controller.pictures.plot_look import LOOK


def drawing(report: Mapping[str, Any]) -> str:
    """An SVG file. Bars are medians over repetitions, lines reach from the least to the most."""
    kinds: dict[tuple[str, int], list[list[float]]] = {}
    for row in report["rows"]:
        kinds.setdefault((row["run"], row["models"]), []).append(row["ends_s"])
    order = sorted(kinds, key=lambda kind: (kind[1], kind[0] == "no priorities"))
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(9.0, 0.5 + 0.28 * sum(count for _, count in order)), layout="constrained")
        axes = figure.subplots()
        at, ticks, labels = 0.0, [], []
        for kind, count in order:
            ticks.append(at + (count - 1) / 2)
            labels.append(kind if count == 1 else f"{count} models, {kind}")
            for nth, ends in enumerate(zip(*kinds[kind, count], strict=True)):
                middle = statistics.median(ends)
                colour = COLOURS[6] if kind == "no priorities" else COLOURS[nth % len(COLOURS)]
                axes.barh(at, middle, height=0.8, color=colour)
                axes.plot([min(ends), max(ends)], [at, at], color=INK, linewidth=1)
                at += 1
            at += 0.7
        alone = statistics.median(ends[0] for ends in kinds["alone", 1])
        axes.axvline(alone, color=INK, linewidth=0.8, linestyle=":")
        axes.set_yticks(ticks, labels)
        axes.invert_yaxis()
        axes.set_xlabel("seconds until a model's last round had ended; dotted: the highest one alone")
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
