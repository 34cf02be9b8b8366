"""The pictures of the report on PARING: our curves, and what the paper prints beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from inaproto_controller.pictures.looks import COLOURS
from inaproto_hil.evaluation.drawing import Line, draw_curves, svg_of
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


def drawing(figure: Mapping[str, Any]) -> str | None:
    """An SVG file; None for a figure that is better read as a table."""
    curves = figure["curves"]
    if curves is None:
        return None
    lines = [
        Line(_NAMES.get(system, system), _COLOURS[system], curves["at"], **curve)
        for system, curve in curves["ours"].items()
    ]
    points = [(_COLOURS[system], pairs) for system, pairs in curves["paper"].items()]
    return svg_of(lambda axes: draw_curves(axes, lines, points, curves, marker="o"))
