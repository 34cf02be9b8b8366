"""Names in pictures: as much of them as there is room for, at least so much that they can be told apart."""

from __future__ import annotations

from typing import Final

CHARACTER: Final = 7.3
"""Width of one in a label, in pixels: in fonts of one width 0.6 of their size, 12, and little more."""
_LABEL_MIN: Final = 3


def shortened(text: str, width: float) -> str:
    """Its beginning; empty where not even that can be read."""
    room = int(width / CHARACTER)
    if len(text) <= room:
        return text
    return "" if room < _LABEL_MIN else f"{text[: room - 1]}…"
