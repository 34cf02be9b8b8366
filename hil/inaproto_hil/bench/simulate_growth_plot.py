"""The picture of ``inaproto bench simulate-growth``: each run's cost, and the power law through them."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from inaproto_controller.pictures.looks import COLOURS, INK
from inaproto_controller.pictures.plot_look import LOOK

_NAMES = {"cpu_s": ("CPU seconds", 1.0), "memory_bytes": ("memory, MiB", 1.0 / (1 << 20))}


def drawing(report: Mapping[str, Any]) -> str:
    """An SVG file; both axes are logarithmic."""
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(8.0, 6.0), layout="constrained")
        panels = figure.subplots(2, 2)
        for axes, fitted in zip(panels.flat, report["exponents"], strict=True):
            axis, measure = fitted["axis"], fitted["measure"]
            label, unit = _NAMES[measure]
            rows = [row for row in report["rows"] if row["axis"] == axis]
            sizes, costs = [row[axis] for row in rows], [row[measure] * unit for row in rows]
            colour = COLOURS[0] if measure == "cpu_s" else COLOURS[2]
            axes.loglog(sizes, costs, "o", color=colour, markersize=4)
            slope, interval = fitted["exponent"], fitted["interval"]
            if slope is not None:
                middle = statistics.fmean(map(math.log, sizes)), statistics.fmean(map(math.log, costs))
                ends = [min(sizes), max(sizes)]
                line = [math.exp(middle[1] + slope * (math.log(end) - middle[0])) for end in ends]
                axes.loglog(ends, line, color=INK, linewidth=0.8)
                between = "" if interval is None else f" ({interval[0]:.2f} to {interval[1]:.2f})"
                axes.set_title(f"exponent {slope:.2f}{between}")
            axes.set_xlabel(axis)
            axes.set_ylabel(label)
            axes.set_xticks(sorted(set(sizes)), [f"{size:,}" for size in sorted(set(sizes))], minor=False)
            axes.minorticks_off()
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
