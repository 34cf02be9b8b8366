"""Means over seeds, and how far to trust them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

CONFIDENCE: Final = 0.95
HAS_INTERVALS: Final = find_spec("scipy") is not None


@dataclass(frozen=True, slots=True)
class Mean:
    """Over those runs in which a measure is defined."""

    mean: float | None
    """None: in none."""
    half_width: float | None
    """Of the 95 % confidence interval, by Student's t; None for less than two runs, or without SciPy."""
    runs: int
    undefined: int
    """Runs in which the measure is undefined."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "mean": self.mean,
            "ci95": self.half_width,
            "runs": self.runs,
            "undefined_runs": self.undefined,
        }


def mean_of(values: Sequence[float | None]) -> Mean:
    defined = [value for value in values if value is not None]
    count = len(defined)
    undefined = len(values) - count
    if not defined:
        return Mean(None, None, 0, undefined)
    mean = math.fsum(defined) / count
    if count < 2 or not HAS_INTERVALS:
        return Mean(mean, None, count, undefined)
    from scipy.special import stdtrit

    variance = math.fsum((value - mean) ** 2 for value in defined) / (count - 1)
    quantile = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))
    return Mean(mean, quantile * math.sqrt(variance / count), count, undefined)
