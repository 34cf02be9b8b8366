"""The settings of PARING's simulations (section V-C), and the points at which our curves are computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Final

from inaproto_hil.evaluation.paring.published import Experiment
from inaproto_hil.evaluation.paring.runs import Setting

_GRIDS: Final[Mapping[str, tuple[Fraction, ...]]] = {
    "workers": tuple(Fraction(count) for count in range(5, 40, 5)),
    "switches": tuple(Fraction(count) for count in range(2, 14, 2)),
    "cap": (Fraction(2, 5), *(Fraction(rate) for rate in range(1, 7))),
}
_SETTING: Final = Setting(20, 8, Fraction(5))
"""What does not vary."""


def grid(experiment: Experiment) -> tuple[Fraction, ...]:
    """Values of what varies; those that the paper prints are among them."""
    return _GRIDS[experiment.axis]


def setting_at(experiment: Experiment, point: Fraction) -> Setting:
    if experiment.axis == "workers":
        return replace(_SETTING, workers=int(point))
    if experiment.axis == "switches":
        return replace(_SETTING, switches=int(point))
    return replace(_SETTING, rate_cap=point)
