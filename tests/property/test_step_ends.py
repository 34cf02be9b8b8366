"""When steps end with INA from some time on: as the walk over all operations says, and without that walk."""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import copy
from typing import Any

import pytest

from inaproto.core.sharing.model_trace import ModelTrace
from inaproto.units import JobId, OpIndex
from inaproto_controller.cluster.step_times import Speeds, StepTimes
from inaproto_controller.planning.turns.job_run import JobRun, Phase
from inaproto_controller.planning.turns.step_ends import EndsFrom, EndsOfStep, best_end, plain_end
from inaproto_controller.planning.turns.turns import JobFacts, StandingTurn, TurnConfig, next_turn
from tests.seeds import seeds


def walked(run: JobRun, ina_from: float) -> float:
    """If operations that begin then or later use INA, and those before do not."""
    times, end = run.times, run.at - run.step_start
    for number in range(run.index, times.count):
        begin = max(end, times.ready[number])
        uses_ina = begin >= ina_from - run.step_start
        end = begin + (times.ina if uses_ina else times.plain)[number]
    return run.step_start + max(end, times.duration)


def exact(draw: random.Random, limit: float) -> float:
    """So that sums are the same in any order."""
    return draw.randrange(int(limit * 1024) + 1) / 1024


def random_times(draw: random.Random) -> StepTimes:
    count = draw.choice((1, 2, 5, 30))
    ready = sorted(draw.choice((0.0, exact(draw, 0.25), exact(draw, 4.0))) for _ in range(count))
    duration = max(0.0, ready[-1] + exact(draw, 1.0) - 0.5)
    nbytes = tuple(draw.choice((1 << 20, 1 << 23, 1 << 26)) for _ in range(count))
    speeds = Speeds(2.0**30, draw.choice((1.0, 2.0, 4.0)), draw.choice((0.0, 2.0**-10)))
    return StepTimes(ModelTrace("random", duration, tuple(ready), nbytes), speeds, hosts=2)


@pytest.mark.parametrize("seed", seeds(200))
def test_ends_of_a_step_are_those_of_the_walk(seed: int) -> None:
    draw = random.Random(f"{seed}/step ends")
    run = JobRun(random_times(draw), start=exact(draw, 8.0))
    run.at += draw.choice((0.0, exact(draw, 1.0)))
    since = run.step_start + exact(draw, 4.0)
    ends = EndsFrom(run, since)
    while run.phase is Phase.BEGINS:
        of_place = EndsOfStep(run)
        for at in (run.at, since, run.step_start + exact(draw, 8.0), run.step_start - 1.0):
            assert of_place.end(at) == walked(run, at)
        assert of_place.best == best_end(run) == walked(run, -1.0)
        assert plain_end(run) == walked(run, run.at + 1e6)
        if draw.random() < 0.7:
            assert ends.end(copy(run)) == walked(run, since)
        run.begin(uses_ina=draw.random() < 0.7)
        run.at += draw.choice((0.0, 0.0, exact(draw, 0.25)))
        run.end()


class Counted(tuple[float, ...]):
    """Counts what is read of it."""

    reads = 0

    def __getitem__(self, place: Any) -> Any:
        Counted.reads += len(range(len(self))[place]) if isinstance(place, slice) else 1
        return super().__getitem__(place)


def reads(operations: int) -> int:
    """By the plans for two jobs of so many operations in a step, which both need INA for half of them."""
    ready = [0.0001 * number for number in range(operations)]
    trace = ModelTrace("long", ready[-1], tuple(ready), (1_000_000,) * operations)
    times = StepTimes(trace, Speeds(1e10, 2.0, 5e-5), hosts=2)
    for name in ("ready", "plain", "ina", "tail_plain", "tail_ina", "floor_plain", "floor_ina"):
        setattr(times, name, Counted(getattr(times, name)))
    jobs = [JobFacts(JobId(name), times, OpIndex(0), OpIndex(0), 1.0, 1.0, False) for name in "ab"]
    half = StandingTurn(JobId("a"), OpIndex(0), OpIndex(operations // 2), 1.0)
    Counted.reads = 0
    standing: Sequence[Sequence[StandingTurn]] = ([], [half])
    assert all(next_turn(jobs, turns, 1.0, TurnConfig()) is not None for turns in standing)
    assert 0 <= times.suffix < operations
    return Counted.reads


def test_a_plan_takes_time_in_proportion_to_the_operations() -> None:
    """A job says what its steps are. With each operation looked at once more for each other, some thousand of
    them keep the controller from hearing of its hosts until it has lost them all."""
    few, many = reads(512), reads(4_096)
    assert many < 100 * 4_096
    assert many < 10 * few
