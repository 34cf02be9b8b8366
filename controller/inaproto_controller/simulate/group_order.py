"""Sharing groups, and which of them is first at equal times (MINA, section III-D).

Jobs whose trees exclude each other share by turns, and so do those that they share with: groups are the
connected components of that relation, whatever a builder had in mind. Many jobs start together and run equal
models, so the order among equal times decides results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto_controller.cluster.compiled import jit

Ints = NDArray[np.int64]


class GroupOrder(Enum):
    DESCENDING = "descending"
    """Groups by their first member, who was placed last first."""
    HASH = "hash"
    """As a hash table of the published simulator lists them: what reproduces its printed baseline."""


_BUCKETS: Final = (
    *(2, 5, 11, 23, 47, 97, 197),
    *(397, 797, 1597, 3203, 6421, 12853, 25717, 51437, 102877, 205759),  # beyond what was compared
)
_NOBODY: Final = -1


@jit
def components(order: Ints, count: Ints, of: Ints) -> Ints:
    """(jobs,): index of a root of each job's group. ``order``: (jobs,) slots in order of placement; ``count``
    and ``of``: as :class:`~inaproto_controller.simulate.rivals.Rivals` has them.

    Pairs are joined in lexicographic order, the root of the earlier below that of the later.
    """
    jobs = len(order)
    place = np.zeros(len(count), np.int64)
    for one in range(jobs):
        place[order[one]] = one
    parent = np.arange(jobs)
    for one in range(jobs):
        slot = order[one]
        for index in range(count[slot]):
            other = place[of[slot, index]]
            if other > one:
                root = one
                while parent[root] != root:
                    root = parent[root]
                top = other
                while parent[top] != top:
                    top = parent[top]
                parent[root] = top
    roots = np.arange(jobs)
    for one in range(jobs):
        while parent[roots[one]] != roots[one]:
            roots[one] = parent[roots[one]]
    return roots


def listed(roots: Ints, order: GroupOrder) -> list[int]:
    """Roots of groups, first to last."""
    firsts: list[int] = _first_seen(roots).tolist()
    return firsts[::-1] if order is GroupOrder.DESCENDING else _hashed(firsts)


@jit
def _first_seen(roots: Ints) -> Ints:
    """Each of them once, in the order in which they come."""
    is_seen = np.zeros(0 if len(roots) == 0 else roots.max() + 1, np.bool_)
    found = np.empty(len(roots), np.int64)
    count = 0
    for root in roots:
        if not is_seen[root]:
            is_seen[root] = True
            found[count] = root
            count += 1
    return found[:count]


class _Listing:
    """Roots in the order of a hash table's list: those of one bucket stand together."""

    def __init__(self, buckets: int) -> None:
        self.buckets = buckets
        self.size = 0
        self._first: dict[int, int] = {}
        """First root of each bucket."""
        self._before: dict[int, int] = {}
        self._after: dict[int, int] = {}
        self._head = self._tail = _NOBODY
        self._last = _NOBODY
        """Bucket of the root that was appended last."""

    def __iter__(self) -> Iterator[int]:
        root = self._head
        while root != _NOBODY:
            yield root
            root = self._after[root]

    def enter(self, root: int) -> None:
        """Before the others of its bucket, or at the head of the list."""
        self._insert(root, self._first.get(root % self.buckets, self._head))

    def enter_again(self, root: int) -> None:
        """When the table is rebuilt, in the old order: at the end, unless its bucket has ended before."""
        bucket = root % self.buckets
        if bucket in self._first and bucket != self._last:
            self._insert(root, self._first[bucket])
            return
        self._last = bucket
        first = self._first.get(bucket, root)
        self._insert(root, _NOBODY)
        self._first[bucket] = first

    def _insert(self, root: int, after: int) -> None:
        before = self._tail if after == _NOBODY else self._before[after]
        self._before[root], self._after[root] = before, after
        if before == _NOBODY:
            self._head = root
        else:
            self._after[before] = root
        if after == _NOBODY:
            self._tail = root
        else:
            self._before[after] = root
        self._first[root % self.buckets] = root
        self.size += 1


def _hashed(roots: Sequence[int]) -> list[int]:
    buckets = iter(_BUCKETS)
    found = _Listing(next(buckets))
    for root in roots:
        if found.size == found.buckets:
            larger = _Listing(next(buckets))
            for one in found:
                larger.enter_again(one)
            found = larger
        found.enter(root)
    return list(found)
