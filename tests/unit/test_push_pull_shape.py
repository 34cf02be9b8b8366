"""The order of additions of s = 0, of trees of any height; its bits are judged by the property tests."""

from __future__ import annotations

import numpy as np
import pytest

from inaproto.core.models.tree.shape import Shape
from inaproto.core.models.updates import Update
from inaproto.wire.messages.clocks import Clocks, WorkerId
from inaproto.wire.messages.models import NodeId

HEIGHT = 1100
"""Beyond Python's limit of recursion."""


def chain(height: int) -> Shape:
    """Each node has a worker, and the next one below it."""
    return Shape.of(NodeId(0), lambda node: (NodeId(node + 1),) if node + 1 < height else (), WorkerId)


def part(*workers: int) -> Update:
    """Of the first window."""
    before = Clocks.alike(map(WorkerId, workers))
    return Update(1, before, Clocks.alike(before, 1), np.array([sum(1.01**worker for worker in workers)]))


def never(worker: WorkerId) -> bool:
    return False


def test_a_chain_of_many_hosts_is_added_up_from_its_end() -> None:
    shape = chain(HEIGHT)
    assert shape.workers == frozenset(range(HEIGHT))
    parts = [part(worker) for worker in range(HEIGHT)]
    [whole] = shape.added(parts[::-1], never)
    assert whole.clock == 1
    assert whole.after == Clocks.alike(map(WorkerId, range(HEIGHT)), 1)
    expected = parts[-1].delta
    for one in parts[-2::-1]:
        assert expected is not None
        assert one.delta is not None
        expected = one.delta + expected
    assert expected is not None
    assert whole.delta is not None
    assert whole.delta.tobytes() == expected.tobytes()


def test_below_what_is_missing_all_is_added_up_and_above_it_nothing() -> None:
    sent = chain(8).added([part(worker) for worker in (7, 0, 5, 1, 6, 3)], never)
    assert [update.after.workers for update in sent] == [(0,), (1,), (3,), (5, 6, 7)]
    gone = chain(8).added([part(worker) for worker in (7, 0, 5, 1, 6, 3)], lambda worker: worker in (2, 4))
    assert [update.after.workers for update in gone] == [(0, 1, 3, 5, 6, 7)]


def test_a_sum_that_came_whole_is_whole_and_one_of_no_subtree_is_left_as_it_is() -> None:
    assert [u.after.workers for u in chain(4).added([part(2, 3), part(1), part(0)], never)] == [(0, 1, 2, 3)]
    assert [u.after.workers for u in chain(4).added([part(0, 2), part(1), part(3)], never)] == [
        (0, 2),
        (1,),
        (3,),
    ]
    assert [u.after.workers for u in chain(4).added([part(0, 1, 2, 3)], never)] == [(0, 1, 2, 3)]


def test_nothing_is_shown_of_a_subtree_that_is_gone() -> None:
    """Its workers have no part in the window, so all above them is whole."""
    [sent] = chain(3).added([part(0)], lambda worker: worker > 0)
    assert sent.after.workers == (0,)
    wide = Shape(WorkerId(0), (Shape(WorkerId(1)), Shape(WorkerId(2))))
    [sent] = wide.added([part(2), part(0)], lambda worker: worker == 1)
    assert sent.after.workers == (0, 2)


@pytest.mark.parametrize(
    ("parts", "gone", "sent"),
    [
        ([(9,), (0, 2)], (1,), [(0, 2, 9)]),
        ([(9,), (0, 2)], (), [(9,), (0, 2)]),
        ([(9,), (0, 2), (1,)], (), [(9,), (0, 2), (1,)]),
    ],
)
def test_a_sum_of_no_subtree_is_whole_if_all_others_below_are_gone(
    parts: list[tuple[int, ...]], gone: tuple[int, ...], sent: list[tuple[int, ...]]
) -> None:
    shape = Shape(WorkerId(9), (chain(3),))
    found = shape.added([part(*workers) for workers in parts], lambda worker: worker in gone)
    assert [tuple(sorted(update.after.workers)) for update in found] == sent


def test_a_host_without_a_worker_has_none() -> None:
    shape = Shape(None, (Shape(WorkerId(1)), Shape(None)))
    assert shape.workers == {1}
    [sent] = shape.added([part(1)], never)
    assert sent.after.workers == (1,)
