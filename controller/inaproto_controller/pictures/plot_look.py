"""How pictures of papers' figures look; the same input gives the same bytes."""

from __future__ import annotations

from typing import Any, Final

LOOK: Final[Any] = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "svg.fonttype": "path",
    "svg.hashsalt": "inaproto",
}
