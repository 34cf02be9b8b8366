"""What PARING's paper prints of its evaluation (sections II-A and V-C), decoded.

Its figures are pictures; only some of their values are in the text, in GB rounded to .1 and as percentages of
other systems. Traffic is whole links times 1627 MB, but where the paper has a mean: in links it is this
table, and a link is 1627 / 1024 GB. Rates are capacities over whole numbers. PARING's were decoded from the
reductions that are printed of it, so a value here may be off by what rounding hides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

GB_PER_HOP: Final = Fraction(1627, 1024)

PARING: Final = "PARING"
SOAR: Final = "DeepSys+SOAR"
ATP: Final = "DeepSys+ATP"
DEEPSYS: Final = "DeepSys"
MARINA: Final = "MARINA"
PANAMA: Final = "PANAMA"
SYSTEMS: Final = (PARING, SOAR, ATP, DEEPSYS, MARINA, PANAMA)


class Printed(NamedTuple):
    hops: float
    rate: Fraction | None = None
    """Gbit/s; None where none is said."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """One of the six sets of simulations, of three figures each: traffic, sending rate, time."""

    number: int
    is_coarse: bool
    axis: str
    """What varies: ``workers``, ``switches`` or ``cap``."""
    points: Mapping[Fraction, Mapping[str, Printed]]
    """Points by value, by system."""
    saved: Mapping[Fraction, Mapping[str, float]]
    """How much PARING's communication time is less, in percent, as printed; by value, by system."""

    @property
    def figures(self) -> tuple[int, int, int]:
        first = 3 * self.number - 1
        return first, first + 1, first + 2


def _rate(inputs: int | str) -> Fraction:
    """Rate of a capacity of 10 Gbit/s shared by so many."""
    return 10 / Fraction(inputs)


EXPERIMENTS: Final = (
    Experiment(
        1,
        False,
        "workers",
        {
            Fraction(35): {
                PARING: Printed(76, Fraction(5, 2)),
                SOAR: Printed(94, Fraction("0.475")),
                ATP: Printed(157, Fraction("0.375")),
                DEEPSYS: Printed(190, _rate(35)),
                MARINA: Printed(141, Fraction("0.4825")),
            }
        },
        {Fraction(35): {DEEPSYS: 88.6, SOAR: 81.0, ATP: 85.0, MARINA: 80.7}},
    ),
    Experiment(
        2,
        False,
        "switches",
        {
            Fraction(2): {
                PARING: Printed(55, _rate(7)),
                SOAR: Printed(106, _rate(18)),
                ATP: Printed(89.56, _rate(11)),
                DEEPSYS: Printed(100, _rate(20)),
                MARINA: Printed(97.2, Fraction("0.583")),
            },
            Fraction(12): {
                PARING: Printed(44, _rate(3)),
                SOAR: Printed(41, _rate(7)),
                ATP: Printed(45.06, _rate(9)),
                DEEPSYS: Printed(100, _rate(20)),
                MARINA: Printed(61.5, Fraction("1.2545")),
            },
        },
        {Fraction(12): {SOAR: 57.1, ATP: 66.7, DEEPSYS: 85.0, MARINA: 62.4}},
    ),
    Experiment(
        3,
        False,
        "cap",
        {
            Fraction(2, 5): {
                PARING: Printed(40),
                SOAR: Printed(45),
                ATP: Printed(65),
                DEEPSYS: Printed(100),
                MARINA: Printed(52),
            },
            Fraction(6): {
                PARING: Printed(44, _rate(3)),
                SOAR: Printed(45, _rate(12)),
                ATP: Printed(71.5, _rate(9)),
                DEEPSYS: Printed(100, _rate(20)),
                MARINA: Printed(60.8, _rate(7)),
            },
        },
        {Fraction(6): {SOAR: 75.0, ATP: 66.7, DEEPSYS: 85.0, MARINA: 57.1}},
    ),
    Experiment(
        4,
        True,
        "workers",
        {
            Fraction(15): {
                PARING: Printed(36, Fraction(5)),
                SOAR: Printed(38, _rate(7)),
                ATP: Printed(48, _rate(13)),
                DEEPSYS: Printed(70, _rate(15)),
                MARINA: Printed(30, _rate(7)),
                PANAMA: Printed(37, _rate(11)),
            }
        },
        {Fraction(15): {SOAR: 71.4, ATP: 84.6, DEEPSYS: 86.7, MARINA: 71.4, PANAMA: 81.8}},
    ),
    Experiment(
        5,
        True,
        "switches",
        {
            Fraction(12): {
                PARING: Printed(48, Fraction(5)),
                SOAR: Printed(41, _rate(7)),
                ATP: Printed(65, _rate(16)),
                DEEPSYS: Printed(100, _rate(20)),
                MARINA: Printed(45, _rate(7)),
                PANAMA: Printed(38, _rate(7)),
            }
        },
        {Fraction(12): {SOAR: 71.4, ATP: 87.5, DEEPSYS: 90.0, MARINA: 71.4, PANAMA: 71.4}},
    ),
    Experiment(
        6,
        True,
        "cap",
        {
            Fraction(2, 5): {
                PARING: Printed(40),
                SOAR: Printed(45),
                ATP: Printed(65),
                DEEPSYS: Printed(100),
                MARINA: Printed(52),
                PANAMA: Printed(50.1),
            },
            Fraction(6): {
                PARING: Printed(37, _rate(3)),
                SOAR: Printed(45, _rate(12)),
                ATP: Printed(65, _rate(16)),
                DEEPSYS: Printed(100, _rate(20)),
                MARINA: Printed(52, _rate(15)),
                PANAMA: Printed(50, _rate(15)),
            },
        },
        {Fraction(6): {SOAR: 75.0, ATP: 81.3, DEEPSYS: 85.0, MARINA: 80.0, PANAMA: 80.0}},
    ),
)

SLIPS: Final[Mapping[tuple[str, int, Fraction, str], str]] = {
    ("traffic", 2, Fraction(2), SOAR): "more than DeepSys, of whose links SOAR leaves some out",
    ("rate", 2, Fraction(12), PARING): "figure 15 has 5 Gbit/s here, and allows less",
    ("traffic", 3, Fraction(6), ATP): "the same 38.5 % is printed at both caps",
    ("rate", 5, Fraction(12), SOAR): "5 rates for 6 systems are printed; this fits figure 16",
}
"""What cannot be as printed, by measure, experiment, point and system."""
