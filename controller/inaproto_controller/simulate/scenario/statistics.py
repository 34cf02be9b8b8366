"""Means over seeds, and how far to trust them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inaproto_controller.simulate.confidence import half_width


@dataclass(frozen=True, slots=True)
class Mean:
    """Over those runs in which a measure is defined."""

    mean: float | None
    """None: in none."""
    half_width: float | None
    """Half the width of the 95 % confidence interval, by Student's t; None for less than two runs."""
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
    return Mean(math.fsum(defined) / count, half_width(defined), count, undefined)
