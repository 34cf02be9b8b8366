"""Lists of who excludes whom, against the whole matrix of all pairs."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from inaproto_controller.simulate.group_order import components
from inaproto_controller.simulate.rivals import Bools, Ints, Rivals


def _joined(excludes: Bools) -> list[int]:
    parent = list(range(len(excludes)))

    def root(job: int) -> int:
        while parent[job] != job:
            job = parent[job]
        return job

    for one, other in np.argwhere(np.triu(excludes)).tolist():
        parent[root(one)] = root(other)
    return [root(job) for job in range(len(excludes))]


def _rows(rivals: Rivals, order: Ints) -> list[list[int]]:
    return [rivals.of[slot, : rivals.count[slot]].tolist() for slot in order]


@pytest.mark.parametrize("seed", range(20))
def test_rivals_and_groups_are_those_of_the_matrix(seed: int) -> None:
    random = Random(seed)
    jobs = random.randrange(2, 60)
    slots = random.sample(range(64), jobs)
    order = np.array(slots, np.int64)
    rivals = Rivals(32)
    rivals.grow()
    excludes = np.zeros((jobs, jobs), np.bool_)
    for number, slot in enumerate(slots):
        rivals.enter(slot, number)
    share = random.choice((0.02, 0.1, 0.6))
    for _ in range(100):
        if random.random() < 0.05:
            drawn = np.triu(np.array([[random.random() < share for _ in slots] for _ in slots]), 1)
            excludes = drawn | drawn.T
            rivals.set_all(order, excludes)
        job = random.randrange(jobs)
        row = np.array([other != job and random.random() < share for other in range(jobs)])
        excludes[job] = excludes[:, job] = row
        rivals.forget(slots[job])
        rivals.meet(slots[job], np.array(sorted(order[row].tolist()), np.int64))
        assert _rows(rivals, order) == [order[row].tolist() for row in excludes]
        assert components(order, rivals.count, rivals.of).tolist() == _joined(excludes)


def test_lists_that_disagree_are_an_error_and_no_hang() -> None:
    rivals = Rivals(4)
    rivals.count[:2] = 1
    rivals.of[0, 0], rivals.of[1, 0] = 1, 2
    with pytest.raises(AssertionError, match="excludes another"):
        rivals.forget(0)
