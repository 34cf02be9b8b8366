"""How far a mean over seeds is to be trusted: its 95 % confidence interval, by Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Final

CONFIDENCE: Final = 0.95


def half_width(values: Sequence[float]) -> float | None:
    """Half the width of the confidence interval of their mean, in their unit; None for fewer than two."""
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return student_t(count - 1) * math.sqrt(variance / count)


@cache
def student_t(degrees: int) -> float:
    """Within ± this is a variable of Student's distribution with probability ``CONFIDENCE``.

    ``degrees`` of freedom, at least 1. Abramowitz and Stegun, 26.7.3 and 26.7.4, which are exact, inverted by
    bisection: SciPy is optional.
    """
    low, high = 0.0, math.pi / 2
    while True:
        angle = (low + high) / 2
        if angle in (low, high):
            return math.sqrt(degrees) * math.tan(angle)
        if _within(angle, degrees) < CONFIDENCE:
            low = angle
        else:
            high = angle


def _within(angle: float, degrees: int) -> float:
    """The probability of ± t; ``angle`` is atan(t / sqrt(degrees))."""
    is_odd = degrees % 2
    cosine = math.cos(angle)
    term = cosine if is_odd else 1.0
    terms = []
    for step in range(1 + is_odd, degrees, 2):
        terms.append(term)
        term *= cosine * cosine * step / (step + 1)
    total = math.sin(angle) * math.fsum(terms)
    return 2 / math.pi * (angle + total) if is_odd else total
