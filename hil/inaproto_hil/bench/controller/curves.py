"""How a controller's cost grows with hosts and jobs: exponents with their intervals, and the picture."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from inaproto_controller.pictures.looks import COLOURS
from inaproto_controller.pictures.plot_look import LOOK
from inaproto_controller.simulate.confidence import student_t

Row = Mapping[str, Any]

COSTS: Final[Mapping[str, Callable[[Row], float | None]]] = {
    "all agents arrive": lambda row: row["arrival"]["controller_cpu_s"],
    "jobs come, run and end": lambda row: row["jobs"]["controller_cpu_s"],
    "turns of a job everywhere": lambda row: row["turns"]["controller_cpu_s"],
    "moves of its tree": lambda row: row["moves"]["controller_cpu_s"],
    "memory": lambda row: row["rss_bytes"],
}
"""CPU seconds of the controller, or bytes."""
TIMES: Final[Mapping[str, Callable[[Row], float]]] = {
    "durable, p99": lambda row: row["jobs"]["durable_ms"]["p99"],
    "placed, p99": lambda row: row["jobs"]["placed_ms"]["p99"],
    "round of a turn": lambda row: row["turns"]["round_ms"]["p50"],
    "move of a tree": lambda row: row["moves"]["move_ms"]["p50"],
    "all back": lambda row: 1e3 * row["restarts"]["all_back_s"]["p50"],
    "longest step of the loop": lambda row: 1e3 * row["loop"]["longest_cpu_s"],
}
"""Milliseconds."""


def exponents(rows: Sequence[Row], over: str) -> dict[str, Any]:
    """Of each cost the exponent by which it grows with ``over``, "hosts" or "jobs": the slope of a straight
    line through the rows in logarithms, and half the width of its 95 % confidence interval; None where two
    rows leave that open."""
    found = {}
    for name, cost in COSTS.items():
        pairs = [(_size(row, over), cost(row)) for row in rows]
        points = [(math.log(size), math.log(value)) for size, value in pairs if value]
        if len({x for x, _ in points}) > 1:
            slope, half_width = _slope(points)
            found[name] = {"exponent": round(slope, 3), "half_width": half_width and round(half_width, 3)}
    return found


def _size(row: Row, over: str) -> int:
    size: int = row["hosts"] if over == "hosts" else row["jobs"]["count"]
    return size


def _slope(points: Sequence[tuple[float, float]]) -> tuple[float, float | None]:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    middle, height = fmean(xs), fmean(ys)
    spread = math.fsum((x - middle) ** 2 for x in xs)
    slope = math.fsum((x - middle) * (y - height) for x, y in points) / spread
    free = len(points) - 2
    if free < 1:
        return slope, None
    squares = math.fsum((y - height - slope * (x - middle)) ** 2 for x, y in points)
    return slope, student_t(free) * math.sqrt(squares / free / spread)


def drawing(rows: Sequence[Row], over: str) -> str:
    """An SVG file: what is waited for, over hosts or jobs."""
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(7.0, 4.2), layout="constrained")
        axes = figure.subplots()
        sizes = [_size(row, over) for row in rows]
        for (name, of), colour in zip(TIMES.items(), COLOURS, strict=False):
            axes.plot(sizes, [of(row) for row in rows], "o-", color=colour, markersize=3.5, label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.set_xlabel(over)
        axes.set_ylabel("milliseconds")
        axes.legend(frameon=False, fontsize=8.0, loc="center left", bbox_to_anchor=(1.0, 0.5))
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
