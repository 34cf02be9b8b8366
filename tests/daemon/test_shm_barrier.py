"""The barrier of the shared-memory stage, step by step: who is missing, and who is not."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from inaproto.client.stage.barrier import Barrier, Cause, Descriptors, State
from inaproto.client.stage.layout import WORDS
from inaproto.client.stage.waits import Steps
from inaproto.errors import JobError, OperationTimeout, RankLost


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def passed(steps: Steps[None]) -> bool:
    """Whether the rank has passed, as far as it can go now."""
    try:
        next(steps)
    except StopIteration:
        return True
    return False


@contextmanager
def barriers(ranks: int, clock: Clock, *, looks: int = 0) -> Iterator[list[Barrier]]:
    flags = os.EFD_SEMAPHORE | os.EFD_NONBLOCK
    counters = [os.eventfd(0, flags) for _ in range(ranks)]
    pipes = [os.pipe() for _ in range(ranks)]
    words = np.zeros((ranks, WORDS), np.int64)
    made = []
    for rank in range(ranks):
        releases = counters[1:] if rank == 0 else [counters[rank]]
        others = {other: os.dup(pipes[other][0]) for other in range(ranks) if other != rank}
        mine = Descriptors(os.dup(counters[0]), [os.dup(each) for each in releases], pipes[rank][1], others)
        made.append(Barrier(rank, mine, words, clock, looks=looks))
    yield made
    for barrier in made:
        barrier.close()
    for descriptor in (*counters, *(reading for reading, _ in pipes)):
        os.close(descriptor)


def test_nobody_passes_before_all_have_come() -> None:
    with barriers(3, Clock()) as (zero, one, two):
        for _ in range(3):
            first, second, third = one.passing("a", 1), zero.passing("a", 1), two.passing("a", 1)
            assert not passed(first)
            assert one.missing() == [0, 2]
            assert not passed(second)
            assert not passed(first)
            assert one.missing() == zero.missing() == [2]
            assert not passed(third)
            assert two.missing() == [0]  # it has to let the others go
            assert passed(second)
            assert passed(first)
            fast = one.passing("a", 1)  # its next barrier takes nothing of who is slow
            assert not passed(fast)
            assert passed(third)
            rest = zero.passing("a", 1), two.passing("a", 1)
            assert [passed(each) for each in rest] == [False, False]
            assert [passed(each) for each in (rest[0], fast, rest[1])] == [True, True, True]


def test_who_looks_before_it_sleeps_passes_when_the_others_come_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with barriers(2, Clock(), looks=3) as (zero, one):
        looked: list[Steps[None]] = []

        def meanwhile() -> None:
            looked.append(steps := zero.passing("a", 1))
            assert passed(steps)

        for _ in range(3):
            monkeypatch.setattr(os, "sched_yield", meanwhile)
            assert passed(one.passing("a", 1))
        assert len(looked) == 3


def test_who_looked_in_vain_sleeps_at_once_the_next_times(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(os, "sched_yield", lambda: looks.append(1))
    with barriers(2, Clock(), looks=3) as (zero, one):
        counts = []
        for _ in range(60):
            looks.clear()
            waiting = one.passing("a", 1)
            assert not passed(waiting)
            counts.append(len(looks))
            assert passed(zero.passing("a", 1))
            assert passed(waiting)
        at = [number for number, count in enumerate(counts) if count]
        assert at == [0, 2, 5, 10, 19, 36]
        assert {counts[number] for number in at} == {3}


def test_who_arrived_and_ended_is_not_missing_yet() -> None:
    with barriers(3, Clock()) as (zero, one, two):
        waiting = two.passing("first", 1)
        assert not passed(one.passing("first", 1))
        assert not passed(waiting)
        one.close()
        assert not passed(waiting)
        source = next(waiting).source
        assert isinstance(source, select.epoll)
        assert source.poll(0) == []  # nothing wakes it up time and again
        assert passed(zero.passing("first", 1))
        assert passed(waiting)
        with pytest.raises(
            RankLost, match=r"second: rank 1 \(process \d+\) closed its stage while rank 2 waited"
        ):
            passed(two.passing("second", 1))
        with pytest.raises(RankLost, match="second: rank 1 "):
            passed(zero.passing("second", 1))


def test_rank_0_lets_all_go_before_it_leaves() -> None:
    with barriers(2, Clock()) as (zero, one):
        waiting = one.passing("a", 1)
        assert not passed(waiting)
        assert passed(zero.passing("a", 1))
        zero.close()
        assert passed(waiting)
        with pytest.raises(RankLost, match="rank 0 "):
            passed(one.passing("b", 1))


def test_rank_0_that_ended_before_it_let_the_others_go() -> None:
    with barriers(3, Clock()) as (zero, one, two):
        waiting = one.passing("a", 1)
        assert not passed(waiting)
        assert not passed(zero.passing("a", 1))
        zero.close()
        for steps in (waiting, two.passing("a", 1)):
            with pytest.raises(RankLost, match=r"rank 0 \(process \d+\) closed its stage"):
                passed(steps)


def test_the_deadline_names_all_who_are_missing_and_the_others_hear_of_it() -> None:
    clock = Clock()
    with barriers(4, clock) as (zero, one, two, _three):
        waiting, other = one.passing("a", 2.5), zero.passing("a", 100)
        assert not passed(waiting)
        assert not passed(other)
        clock.now = 2.4
        assert not passed(waiting)
        clock.now = 2.5
        with pytest.raises(OperationTimeout) as error:
            passed(waiting)
        assert "a: rank 1 waited 2.5 s for rank 2 (process " in str(error.value)
        assert ", rank 3 (process " in str(error.value)
        one.give_up(Cause(one.missing(), JobError("x")))
        with pytest.raises(RankLost, match=r"rank 1 \(process \d+\) gave up waiting for rank 2 .*, rank 3 "):
            passed(other)
        with pytest.raises(RankLost, match=r"rank 1 \(process \d+\) gave up waiting for rank 2 .*, rank 3 "):
            passed(two.passing("a", 100))


def test_who_ended_is_named_before_who_gave_up_because_of_it() -> None:
    with barriers(3, Clock()) as (zero, one, two):
        two.close()
        with pytest.raises(RankLost, match="rank 2 "):
            passed(one.passing("a", 1))
        one.give_up(Cause(one.missing(), JobError("x")))
        with pytest.raises(RankLost, match=r"rank 2 \(process \d+\) closed its stage"):
            passed(zero.passing("a", 1))


def test_why_the_memory_of_a_rank_cannot_be_used_any_more() -> None:
    with barriers(4, Clock()) as (_, one, two, three):
        assert two.cause(1, "a") is None
        one.give_up(Cause([3], JobError("x"), State.SAW_END))
        found = two.cause(1, "a")
        assert found is not None
        assert (found.blamed, found.state) == ([3], State.SAW_END)
        assert str(found.error).endswith(f" gave up because rank 3 (process {os.getpid()}) ended")
        assert two.cause(0, "a") is None, "it may have changed its user"
        three._descriptors.close_own_end()
        for of in (0, 1, 3):
            found = two.cause(of, "a")
            assert found is not None
            assert (found.blamed, found.state) == ([3], State.SAW_END)
            assert str(found.error).endswith("ended in the middle of it")


def test_who_knows_which_rank_ended_is_quoted_before_who_waited_for_it() -> None:
    with barriers(4, Clock()) as (zero, one, two, _):
        steps = zero.passing("a", 1)
        assert not passed(steps)
        one.give_up(Cause([2], JobError("x")))
        two.give_up(Cause([3], JobError("y"), State.SAW_END))
        with pytest.raises(RankLost, match=r"rank 2 .* gave up because rank 3 .* ended"):
            next(steps)
