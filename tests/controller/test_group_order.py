"""The order of groups as a hash table has it: linked, against lists that are searched."""

from __future__ import annotations

import random

import numpy as np
import pytest

from inaproto_controller.simulate.group_order import GroupOrder, listed

SIZES = (2, 5, 11, 23, 47, 97, 197, 397, 797, 1597)


def searched(roots: list[int]) -> list[int]:
    """Before the first of its bucket, or at the head."""
    sizes = iter(SIZES)
    size = next(sizes)
    found: list[int] = []
    for root in roots:
        if len(found) == size:
            size = next(sizes)
            found = rebuilt(found, size)
        same = [at for at, other in enumerate(found) if other % size == root % size]
        found.insert(same[0] if same else 0, root)
    return found


def rebuilt(roots: list[int], size: int) -> list[int]:
    found: list[int] = []
    last = -1
    for root in roots:
        bucket = root % size
        same = [at for at, other in enumerate(found) if other % size == bucket]
        if same and bucket != last:
            found.insert(same[0], root)
        else:
            found.append(root)
            last = bucket
    return found


@pytest.mark.parametrize("jobs", [1, 2, 3, 6, 12, 50, 300, 1500])
def test_a_hash_table_s_list_is_that_of_searched_lists(jobs: int) -> None:
    for seed in range(20):
        draw = random.Random(f"{seed} {jobs}")
        roots = [draw.randrange(jobs) for _ in range(jobs)]
        found = listed(np.array(roots, np.int64), GroupOrder.HASH)
        assert found == searched(list(dict.fromkeys(roots)))


def test_descending_is_the_last_placed_first() -> None:
    assert listed(np.array([2, 2, 2, 5, 4, 5], np.int64), GroupOrder.DESCENDING) == [4, 5, 2]
