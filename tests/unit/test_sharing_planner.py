"""What the controller wishes for, from what hosts have told of their jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.sharing.communication_pattern import Pattern
from inaproto.core.sharing.events import TurnView
from inaproto.units import Epoch, JobId, OpIndex
from inaproto.wire.messages.sharing import Turn
from inaproto_controller.service.turns.planner import UNMEASURED_OPERATIONS, Place, SeatNews, TurnPlanner

A, B = JobId("A"), JobId("B")
PATTERN = Pattern((10_000_000,) * 4, (50_000_000, 55_000_000, 60_000_000, 65_000_000), 70_000_000)
BANDWIDTH = 1_000_000_000
"""So an operation takes 10 ms, and 5 ms with INA."""


def news(*, step_start: float, operation: int = 0, pattern: Pattern | None = PATTERN) -> list[SeatNews]:
    """Of a job whose step began then, and that has called nothing yet; on two hosts."""
    place = Place(operation, False, False, step_start, step_start, 0, step_start)
    return [SeatNews(place, pattern, BANDWIDTH) for _ in range(2)]


def test_a_turn_of_a_step_that_is_known_is_wished_for_by_its_first_and_last_operation() -> None:
    planner = TurnPlanner()
    jobs = {A: news(step_start=0.0), B: news(step_start=0.030)}
    early = planner.wish(jobs, [], 0.001)
    assert early.wanted is None
    assert 0.03 < early.again_at < 0.05, "shortly before its first operation begins"
    wished = planner.wish(jobs, [], early.again_at).wanted
    assert wished is not None
    assert (wished.job, wished.operations) == (A, None)
    assert wished.first is not None
    assert wished.until is not None
    assert 0 <= wished.first < wished.until <= 4, "of one step"


def test_a_job_that_is_not_known_takes_turns_of_a_few_operations_until_it_is() -> None:
    planner = TurnPlanner()
    jobs = {A: news(step_start=0.0), B: news(step_start=0.0, pattern=None)}
    first = planner.wish(jobs, [], 0.001).wanted
    assert first is not None
    assert (first.job, first.operations) == (A, UNMEASURED_OPERATIONS)
    planner.stands(A, Epoch(1), 0.002)
    stands = TurnView(Turn(A, Epoch(1), OpIndex(0), OpIndex(8)), ())
    second = planner.wish(jobs, [stands], 0.003).wanted
    assert second is not None
    assert second.job == B


@pytest.mark.parametrize(("jobs", "operations"), [(2, 16_384), (4, 4096), (100, 4)])
def test_jobs_whose_plans_would_take_long_take_turns_as_if_their_steps_were_not_known(
    jobs: int, operations: int
) -> None:
    """What one of them says of its steps keeps the controller from nothing."""
    ready = tuple(range(0, 10_000 * operations, 10_000))
    pattern = Pattern((1_000,) * operations, ready, ready[-1])
    planner = TurnPlanner()
    told = {JobId(f"{number:03}"): news(step_start=0.0, pattern=pattern) for number in range(jobs)}
    for number, job in enumerate(told):
        wanted = planner.wish(told, [], 0.001).wanted
        assert wanted is not None
        assert (wanted.job, wanted.operations) == (job, UNMEASURED_OPERATIONS)
        planner.stands(job, Epoch(number + 1), 0.002)


def test_a_step_is_worked_out_once() -> None:
    """A pattern that is told again is the same one, and one that fits no step is so each time."""
    planner = TurnPlanner()
    jobs = {A: news(step_start=0.0), B: news(step_start=0.030)}
    planner.wish(jobs, [], 0.001)
    times = planner.steps()
    jobs[A][0].pattern = replace(PATTERN)
    jobs[B][0].pattern = replace(PATTERN, nbytes=(1,) * 4)
    planner.wish(jobs, [], 0.002)
    assert list(planner.steps()) == [A]
    assert planner.steps()[A] is times[A]


@pytest.mark.parametrize("pattern", [PATTERN, None])
def test_a_job_that_is_alone_has_a_turn_without_end(pattern: Pattern | None) -> None:
    wish = TurnPlanner().wish({A: news(step_start=0.0, pattern=pattern)}, [], 0.0445)
    assert wish.wanted is not None
    assert (wish.wanted.operations, wish.wanted.until) == (None, None)


def test_turns_are_asked_for_as_long_before_as_rounds_take() -> None:
    jobs = {A: news(step_start=0.0), B: news(step_start=0.030)}
    planner = TurnPlanner()
    soon = planner.wish(jobs, [], 0.001).again_at
    for seconds in (0.020, 0.9, 0.020):
        planner.took(seconds)
    assert planner.round_trip == pytest.approx(0.025)
    assert planner.wish(jobs, [], 0.001).again_at == pytest.approx(soon - 0.020)
    for _ in range(9):
        planner.took(0.0008)
    assert planner.wish(jobs, [], 0.001).again_at == pytest.approx(soon + 0.004)


def test_all_reduces_that_end_sooner_than_predicted_are_no_reason_to_leave_the_pool_free_for_ever() -> None:
    """Each begins 2 ms after the one before, though 10 ms are predicted: it is never late enough to ask."""
    planner = TurnPlanner()
    wished, now = None, 0.05
    for operation in range(200):
        step, number = divmod(operation, 4)
        place = Place(operation, True, False, now, now, 4 * step, now - 0.05 - 0.002 * number)
        busy = [SeatNews(place, PATTERN, BANDWIDTH) for _ in range(2)]
        wish = planner.wish({A: busy, B: busy}, [], now)
        wished = wish.wanted
        if wished is not None:
            break
        assert wish.again_at > now
        now += 0.002
    assert wished is not None
    assert 0.25 <= now - 0.05 <= 0.26
