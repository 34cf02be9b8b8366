"""The pictures of the report on MLNet: our curves, and what the paper's text says beside them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from inaproto_controller.pictures.looks import COLOURS
from inaproto_controller.pictures.plot_look import LOOK

_COLOURS: Final = {
    "BASELINE": COLOURS[6],
    "RACK": COLOURS[0],
    "RACK, shared": COLOURS[2],
    "BINARY": COLOURS[1],
    "BINARY, shared": COLOURS[3],
    "priority": COLOURS[0],
    "both": COLOURS[3],
}


def picture(figure: Mapping[str, Any]) -> str | None:
    """An ``<svg>`` element; None for a figure that is better read as a table."""
    svg = drawing(figure)
    return None if svg is None else svg[svg.index("<svg") :]


def drawing(figure: Mapping[str, Any]) -> str | None:
    """The same as a file."""
    curves = figure["curves"]
    if curves is None:
        return None
    with mpl.rc_context(LOOK):
        drawn = Figure(figsize=(9.0, 3.4), layout="constrained")
        _draw(drawn.subplots(), curves)
        text = io.StringIO()
        drawn.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _draw(axes: Axes, curves: Mapping[str, Any]) -> None:
    """Lines are means over draws, bands reach from the least to the most; circles are the paper's."""
    for name, line in curves["lines"].items():
        colour = _COLOURS[name]
        axes.plot(line["x"], line["y"], color=colour, label=name)
        axes.fill_between(line["x"], line["least"], line["most"], color=colour, alpha=0.12, linewidth=0)
    for name, points in curves["paper"].items():
        across, up = zip(*points, strict=True)
        axes.plot(across, up, "o", color=_COLOURS[name], mfc="none", ms=9, mew=1.6)
    if curves["paper"]:
        axes.plot([], [], "o", color="#20242b", mfc="none", ms=9, mew=1.6, label="paper")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(curves["x"])
    axes.set_ylabel(curves["y"])
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
