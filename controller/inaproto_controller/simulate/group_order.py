"""Sharing groups, and which of them is first at equal times (MINA, section III-D).

Jobs whose trees exclude each other share by turns, and so do those that they share with: groups are the
connected components of that relation, whatever a builder had in mind. Many jobs start together and run equal
models, so the order among equal times decides results.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto_controller.compiled import jit

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
    firsts = list(dict.fromkeys(roots.tolist()))
    return firsts[::-1] if order is GroupOrder.DESCENDING else _hashed(firsts)


def _hashed(roots: list[int]) -> list[int]:
    """Entries of one bucket stand together; a new one is before them, or at the head of the list."""
    buckets = iter(_BUCKETS)
    count = next(buckets)
    found: list[int] = []
    for root in roots:
        if len(found) == count:
            count = next(buckets)
            found = _rebuilt(found, count)
        bucket = root % count
        place = next((at for at, other in enumerate(found) if other % count == bucket), 0)
        found.insert(place, root)
    return found


def _rebuilt(roots: list[int], count: int) -> list[int]:
    found: list[int] = []
    seen: set[int] = set()
    last = -1
    for root in roots:
        bucket = root % count
        if bucket in seen and bucket != last:
            found.insert(next(at for at, other in enumerate(found) if other % count == bucket), root)
        else:
            found.append(root)
            seen.add(bucket)
            last = bucket
    return found
