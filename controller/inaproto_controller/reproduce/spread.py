"""Means over seeds, and how sure they are."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import mean, stdev
from typing import Final, NamedTuple

_T_95: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t, two-sided, by degrees of freedom from 1 on."""


class Spread(NamedTuple):
    mean: float
    half_width: float | None
    """Of the 95 % confidence interval of the mean; None for a single value."""
    runs: int


def spread(values: Sequence[float]) -> Spread:
    """``values``: at least one."""
    count = len(values)
    if count == 1:
        return Spread(values[0], None, 1)
    # Beyond the table its last value: a little too wide, never too narrow.
    factor = _T_95[min(count - 1, len(_T_95)) - 1]
    return Spread(mean(values), factor * stdev(values) / sqrt(count), count)
