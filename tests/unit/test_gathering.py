"""When an all-reduce of a host's ranks is complete, and how long those who called it wait for the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.host.gathering import Gathering
from inaproto.core.host.operations import Memory, Operation, Overdue, Stalled
from inaproto.errors import LocalMisuse
from inaproto.units import Instant, OpIndex
from inaproto.wire.ina_header import Dtype, Op

STALL, TIMEOUT = 100, 350


def call(index: int, nbytes: int = 8) -> Operation:
    return Operation(OpIndex(index), Dtype.F32, Op.SUM, nbytes, 1)


def gathering(*ranks: int, timeout_ns: int = TIMEOUT) -> Gathering:
    return Gathering(ranks, stall_ns=STALL, timeout_ns=timeout_ns)


def due(them: Gathering) -> Instant | None:
    return them.deadline


def test_an_operation_is_taken_once_when_all_ranks_have_called_it() -> None:
    them = gathering(2, 0)
    them.call(2, call(0))
    assert them.take() is None
    assert them.waiting == {2: call(0)}
    them.call(2, call(1))
    them.call(0, call(0))
    assert them.take() == call(0)
    assert them.take() is None
    assert them.waiting == {2: call(1)}
    them.call(0, call(1))
    assert them.take() == call(1)
    assert them.waiting == {}


def test_an_operation_has_the_memory_of_all_ranks() -> None:
    them = gathering(2, 0)
    mine, its = Memory(0, 1, 0, 8), Memory(2, 1, 0, 8)
    them.call(2, replace(call(0), memory=(its,)))
    them.call(0, replace(call(0), memory=(mine,)))
    assert not them.differs
    taken = them.take()
    assert taken is not None
    assert taken.memory == (mine, its)


def test_a_rank_alone_waits_for_nobody() -> None:
    them = gathering(3)
    for index in range(3):
        them.call(3, call(index))
        assert them.take() == call(index)


@pytest.mark.parametrize("index", [0, 2])
def test_calls_are_numbered_without_gaps(index: int) -> None:
    them = gathering(0, 1)
    them.call(0, call(0))
    with pytest.raises(LocalMisuse, match=f"rank 0 calls operation {index} where 1 is next"):
        them.call(0, call(index))
    them.call(0, call(1))


@pytest.mark.parametrize("changes", [{"nbytes": 4}, {"dtype": Dtype.I32}, {"op": Op.MAX}, {"signature": 2}])
def test_ranks_that_differ_are_never_complete(changes: dict[str, object]) -> None:
    them = gathering(0, 1, 2)
    them.call(0, call(0))
    other = replace(call(0), **changes)  # type: ignore[arg-type]
    them.call(2, other)
    assert them.differs, "though one has not called it"
    them.call(1, call(0))
    assert them.take() is None
    assert them.waiting == {0: call(0), 1: call(0), 2: other}


def test_the_clock_runs_from_when_the_ring_has_nothing_else_to_do() -> None:
    them = gathering(0, 1)
    them.begin(Instant(0))
    assert due(them) is None, "nobody waits"
    them.call(1, call(0))
    assert due(them) is None
    assert them.woke(Instant(10_000)) == []
    them.begin(Instant(1000))
    them.begin(Instant(1050))  # it runs
    assert (due(them), them.since) == (1000 + STALL, 1000)
    them.call(0, call(0))
    them.take()
    assert (due(them), them.since) == (None, None)


def test_a_wait_is_reported_again_and_again_and_is_overdue_once() -> None:
    them = gathering(0, 1)
    them.call(1, call(0))
    them.begin(Instant(1000))
    assert them.woke(Instant(1099)) == []
    assert them.woke(Instant(1100)) == [Stalled(call(0), 100, 1, 0)]
    assert them.woke(Instant(1199)) == []
    assert them.woke(Instant(1200)) == [Stalled(call(0), 200, 1, 0)]
    assert them.woke(Instant(1300)) == [Stalled(call(0), 300, 1, 0)]
    assert them.deadline == 1350
    assert them.woke(Instant(1350)) == [Overdue(call(0), 350, 1, 0)]
    assert them.deadline == 1400
    assert them.woke(Instant(1400)) == [Stalled(call(0), 400, 1, 0)]


def test_the_next_wait_has_a_clock_of_its_own() -> None:
    them = gathering(0, 1)
    them.call(1, call(0))
    them.begin(Instant(0))
    them.woke(Instant(350))
    them.call(0, call(0))
    them.take()
    them.call(0, call(1))
    them.begin(Instant(5000))
    assert them.deadline == 5100
    assert them.woke(Instant(5350)) == [Stalled(call(1), 350, 1, 0), Overdue(call(1), 350, 1, 0)]


def test_without_a_limit_nothing_is_overdue() -> None:
    them = gathering(0, 1, timeout_ns=0)
    them.call(1, call(0))
    them.begin(Instant(0))
    assert them.woke(Instant(10**15)) == [Stalled(call(0), 10**15, 1, 0)]
