"""The pictures of the reports on papers, as SVG files."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from inaproto_controller.pictures.plot_look import LOOK


def svg_of(draw: Callable[[Axes], None]) -> str:
    with mpl.rc_context(LOOK):
        drawn = Figure(figsize=(9.0, 3.4), layout="constrained")
        draw(drawn.subplots())
        text = io.StringIO()
        drawn.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


class Line(NamedTuple):
    """A mean over draws, and the least and the most of any."""

    name: str
    colour: str
    across: Sequence[float]
    mean: Sequence[float]
    least: Sequence[float]
    most: Sequence[float]


def draw_curves(
    axes: Axes,
    lines: Iterable[Line],
    points: Iterable[tuple[str, Sequence[Sequence[float]]]],
    words: Mapping[str, str],
    *,
    marker: str | None = None,
) -> None:
    """Lines with bands from the least to the most; circles are the paper's ``points``, by colour."""
    for line in lines:
        axes.plot(line.across, line.mean, color=line.colour, marker=marker, ms=3, label=line.name)
        axes.fill_between(line.across, line.least, line.most, color=line.colour, alpha=0.12, linewidth=0)
    printed = [(colour, pairs) for colour, pairs in points if pairs]
    for colour, pairs in printed:
        axes.plot(*zip(*pairs, strict=True), "o", color=colour, mfc="none", ms=9, mew=1.6)
    if printed:
        axes.plot([], [], "o", color="#20242b", mfc="none", ms=9, mew=1.6, label="paper")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(words["x"])
    axes.set_ylabel(words["y"])
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
