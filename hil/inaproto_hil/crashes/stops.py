"""How long training stands still: the times in which an all-reduce is due and none ends.

An all-reduce of a job is *due* when all its ranks have called it, and ends when the last host daemon has its
result. A *stop* ends with an all-reduce, and began with the one before it, or later when nothing was due. A
*gap* is the whole time from one end to the next, computing and all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

QUANTILES: Final = (0.5, 0.95, 0.99, 0.999)


class Operations:
    """Operations of one job: when each was due, and when it ended, seconds."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._open: dict[int, tuple[int, float, float]] = {}
        self.ended: list[tuple[float, float]] = []
        """Due, ended."""

    def note(self, index: int, submitted: float, ended: float) -> None:
        """Note what one rank says."""
        count, due, end = self._open.pop(index, (0, submitted, ended))
        found = count + 1, max(due, submitted), max(end, ended)
        if found[0] < self._ranks:
            self._open[index] = found
        else:
            self.ended.append(found[1:])

    def stops(self) -> list[tuple[float, float]]:
        """When each began, and how long it was."""
        ended = sorted(self.ended, key=lambda one: one[1])
        earliest = float("inf")
        due_then: list[float] = []
        """For each, when the first was due of those that had not ended before it."""
        for due, _ in reversed(ended):
            earliest = min(earliest, due)
            due_then.append(earliest)
        found, before = [], float("-inf")
        for (_, end), due in zip(ended, reversed(due_then), strict=True):
            began = max(before, due)
            found.append((began, max(0.0, end - began)))
            before = end
        return found

    def gaps(self) -> list[tuple[float, float]]:
        ends = sorted(end for _, end in self.ended)
        return [(one, other - one) for one, other in pairwise(ends)]


def row(samples: Iterable[float]) -> dict[str, Any]:
    """Figures of a list of times; None where there is none."""
    found: Sequence[float] = sorted(samples)
    quantiles = {f"p{100 * one:g}": float(np.quantile(found, one)) if found else None for one in QUANTILES}
    return {"count": len(found), **quantiles, "max": found[-1] if found else None}
