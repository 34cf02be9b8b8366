"""Numbers as people and files write them: plain decimals and fractions, exactly, within bounds.

An exponent would cost nothing to write and everything to hold: of 1e99999999 a fraction has a hundred million
digits. What Gbit/s and links may be is within ``LEAST`` and ``MOST``, so that all that follows from them has
a float, too.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from math import isfinite
from typing import Final

from inaproto.errors import ConfigError

LEAST: Final = Fraction(1, 10**6)
MOST: Final = Fraction(10**9)
BOUNDS: Final = "of 0.000001 to 1000000000"
UNBOUNDED: Final = "unbounded"
_NAMES_MAX: Final = 40
_PLAIN: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12}|/[0-9]{1,12})?")


def parse_exact(text: str) -> Fraction | None:
    """``5``, ``2.5``, ``10/3``, ``0``; None: it is no such number, or beyond the bounds."""
    if not _PLAIN.fullmatch(text):
        return None
    try:
        found = Fraction(text)
    except ZeroDivisionError:
        return None
    return found if found == 0 or LEAST <= found <= MOST else None


def parse_capacity(text: str) -> Fraction | None:
    """Capacity in an option or a file; None: without bound. Raises ``ConfigError``."""
    if text == UNBOUNDED:
        return None
    found = parse_exact(text)
    if found is None:
        raise ConfigError(
            f"capacity {text[:_NAMES_MAX]!r}: Gbit/s, 0 or more, as 10, 2.5, 10/3 or {UNBOUNDED}; "
            f"if more, {BOUNDS}"
        )
    return found


def plain(value: float) -> str:
    """Text of a document's number: as it was written, or would have been without an exponent."""
    if isinstance(value, int) or not isfinite(value):
        return str(value)
    return format(Decimal(repr(value)), "f")
