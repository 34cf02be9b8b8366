"""The pictures of the report on PARING: our curves, and what the paper prints beside them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from inaproto_controller.pictures.looks import COLOURS
from inaproto_controller.pictures.plot_look import LOOK
from inaproto_hil.evaluation.paring import published, runs

_COLOURS: Final = {
    runs.FAST: COLOURS[0],
    runs.PRINTED_INNER: COLOURS[5],
    published.PARING: COLOURS[0],
    published.SOAR: COLOURS[1],
    published.ATP: COLOURS[3],
    published.DEEPSYS: COLOURS[6],
    published.MARINA: COLOURS[2],
    published.PANAMA: COLOURS[4],
}
_NAMES: Final = {runs.FAST: "PARING, fast", runs.PRINTED_INNER: "PARING, printed"}


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
    for system, curve in curves["ours"].items():
        colour = _COLOURS[system]
        axes.plot(
            curves["at"], curve["mean"], color=colour, marker="o", ms=3, label=_NAMES.get(system, system)
        )
        axes.fill_between(curves["at"], curve["least"], curve["most"], color=colour, alpha=0.12, linewidth=0)
    for system, points in curves["paper"].items():
        if points:
            across, up = zip(*points, strict=True)
            axes.plot(across, up, "o", color=_COLOURS[system], mfc="none", ms=9, mew=1.6)
    axes.plot([], [], "o", color="#20242b", mfc="none", ms=9, mew=1.6, label="paper")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(curves["x"])
    axes.set_ylabel(curves["y"])
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
