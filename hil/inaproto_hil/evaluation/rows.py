"""A row of a figure: the paper's value, its tolerance, ours, and what has to stand beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from inaproto_hil.evaluation.spread import spread


@dataclass(frozen=True, slots=True)
class Beside:
    """Without which a score says little: what it is a share of, and what it takes. Means over seeds."""

    saved_s: float | None
    """Seconds saved by the mean job."""
    saved_share: float | None
    """Share saved of what the jobs take without INA."""
    jct_s: float | None
    queued_s: float | None
    jct_with_queue_s: float | None
    swaps_per_job: float
    """Changes of its tree after the first; as in the paper they cost nothing, but where ours are."""
    exclusive_score: float | None
    """Score of first-fit trees that nobody shares, with this placement: the fair baseline."""


NOT_REPRODUCIBLE: Final = "not reproducible"
DIFFERS: Final = "differs"
"""What may be said of a row of which nothing is asked: it is not as printed."""


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    ours: float
    paper: float | None = None
    below: float | None = None
    """How far ours may be below the paper's; None if nothing is asked."""
    above: float | None = None
    half_width: float | None = None
    """Half the width of the 95 % confidence interval over seeds."""
    runs: int = 1
    beside: Beside | None = None

    @property
    def is_inside(self) -> bool | None:
        """None if nothing is asked."""
        if self.paper is None or self.below is None or self.above is None:
            return None
        return self.paper - self.below <= self.ours <= self.paper + self.above


@dataclass(frozen=True, slots=True)
class DrawnRow(Row):
    """``ours`` is a mean over draws."""

    least: float | None = None
    most: float | None = None
    """Least and greatest of any draw."""
    two_pods: float | None = None
    """Value where the switches of the first two pods add up (PARING)."""
    why: str | None = None
    """Why it is not as printed, or why nothing is asked of it; None where nothing is known."""
    verdict: str | None = None
    """What is said of it where nothing is asked; None: it follows from ``why`` and the tolerance."""

    @property
    def reaches(self) -> bool:
        """Whether the interval of the mean has something in common with the tolerance; no, if it has none."""
        if self.paper is None or self.below is None or self.above is None:
            return False
        near = self.half_width or 0.0
        return self.ours - near <= self.paper + self.above and self.ours + near >= self.paper - self.below

    def with_ours(self, ours: float) -> DrawnRow:
        """What would be asked of another value."""
        return replace(self, ours=ours)


def drawn_row(
    what: str,
    values: Sequence[float],
    paper: float | None = None,
    off: tuple[float, float] | None = None,
    why: str | None = None,
    **beside: Any,
) -> DrawnRow:
    """``values``: by draw; ``off``: how far their mean may be below the paper's value, and above it;
    ``beside``: other fields of the row."""
    found, (below, above) = spread(values), off or (None, None)
    return DrawnRow(
        what,
        found.mean,
        paper,
        below,
        above,
        found.half_width,
        found.runs,
        least=min(values),
        most=max(values),
        why=why,
        **beside,
    )
