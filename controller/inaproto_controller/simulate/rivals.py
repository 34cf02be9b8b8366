"""Whose trees exclude each other: of each running job the others, however many jobs there are.

A tree meets few others, so what is kept and looked at grows with the pairs that there are, not with all that
there could be.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto_controller.cluster.compiled import jit, jit_in_place

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_WIDTH_AT_FIRST: Final = 16


class Rivals:
    """Rivals by slot. Who was placed earlier is named earlier."""

    def __init__(self, slots: int) -> None:
        self.count: Ints = np.zeros(slots, np.int64)
        self.of: Ints = np.zeros((slots, _WIDTH_AT_FIRST), np.int64)
        """(slots, width): of each slot, the first ``count`` entries."""
        self._number = np.zeros(slots, np.int64)

    def grow(self) -> None:
        """Twice as many slots."""
        room = len(self.count)
        self.count = np.pad(self.count, (0, room))
        self.of = np.pad(self.of, ((0, room), (0, 0)))
        self._number = np.pad(self._number, (0, room))

    def enter(self, slot: int, number: int) -> None:
        """``number``: of the job's placement."""
        self._number[slot] = number

    def forget(self, slot: int) -> None:
        _forget(self.count, self.of, slot)

    def meet(self, slot: int, others: Ints) -> None:
        """``others``: slots, in any order; the slot has no rivals yet."""
        self._widen(max(others.size, int(self.count[others].max(initial=0)) + 1))
        _meet(self.count, self.of, self._number, slot, others[np.argsort(self._number[others])])

    def set_all(self, order: Ints, excludes: Bools) -> None:
        """``order``: (jobs,) slots in order of placement; ``excludes``: (jobs, jobs)."""
        self.count[order] = counts = excludes.sum(axis=1)
        self._widen(int(counts.max(initial=0)))
        ones, others = np.nonzero(excludes)
        self.of[order[ones], np.arange(ones.size) - np.repeat(np.cumsum(counts) - counts, counts)] = order[
            others
        ]

    def listed(self, order: Ints) -> Ints:
        """Rivals of each of these slots, one after the other."""
        return _listed(self.count, self.of, order)

    def _widen(self, width: int) -> None:
        more = width - self.of.shape[1]
        if more > 0:
            self.of = np.pad(self.of, ((0, 0), (0, max(more, self.of.shape[1]))))


@jit_in_place
def _forget(count: Ints, of: Ints, slot: int) -> None:
    for index in range(count[slot]):
        other = of[slot, index]
        last = count[other] - 1
        count[other] = last
        at = 0
        while of[other, at] != slot:
            at += 1
            assert at <= last, "one excludes another that does not exclude it"
        while at < last:
            of[other, at] = of[other, at + 1]
            at += 1
    count[slot] = 0


@jit_in_place
def _meet(count: Ints, of: Ints, number: Ints, slot: int, others: Ints) -> None:
    for index in range(len(others)):
        other = others[index]
        of[slot, index] = other
        at = count[other]
        count[other] = at + 1
        while at > 0 and number[of[other, at - 1]] > number[slot]:
            of[other, at] = of[other, at - 1]
            at -= 1
        of[other, at] = slot
    count[slot] = len(others)


@jit
def _listed(count: Ints, of: Ints, order: Ints) -> Ints:
    found = np.empty(count[order].sum(), np.int64)
    place = 0
    for slot in order:
        for index in range(count[slot]):
            found[place] = of[slot, index]
            place += 1
    return found
