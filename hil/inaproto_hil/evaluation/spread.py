"""Means over seeds, and how sure they are."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

from inaproto_controller.simulate.confidence import half_width


class Spread(NamedTuple):
    mean: float
    half_width: float | None
    """Half the width of the 95 % confidence interval of the mean; None for a single value."""
    runs: int


def spread(values: Sequence[float]) -> Spread:
    """``values``: at least one."""
    return Spread(mean(values), half_width(values), len(values))
