"""The pictures of the report on MLNet: our curves, and what the paper's text says beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from inaproto_controller.pictures.looks import COLOURS
from inaproto_hil.evaluation.drawing import Line, draw_curves, svg_of

_COLOURS: Final = {
    "BASELINE": COLOURS[6],
    "RACK": COLOURS[0],
    "RACK, shared": COLOURS[2],
    "BINARY": COLOURS[1],
    "BINARY, shared": COLOURS[3],
    "priority": COLOURS[0],
    "both": COLOURS[3],
}


def drawing(figure: Mapping[str, Any]) -> str | None:
    """An SVG file; None for a figure that is better read as a table."""
    curves = figure["curves"]
    if curves is None:
        return None
    lines = [
        Line(name, _COLOURS[name], one["x"], one["y"], one["least"], one["most"])
        for name, one in curves["lines"].items()
    ]
    points = [(_COLOURS[name], pairs) for name, pairs in curves["paper"].items()]
    return svg_of(lambda axes: draw_curves(axes, lines, points, curves))
