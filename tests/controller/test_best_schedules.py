"""The search for the least total time, judged by trying every list of decisions."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import chain, repeat

import pytest

from inaproto.core.sharing.model_trace import ModelTrace
from inaproto.errors import ConfigError, LocalMisuse
from inaproto_controller.cluster.model import EVALUATED, SHARING, measured
from inaproto_controller.cluster.step_times import Speeds, StepTimes
from inaproto_controller.planning.turns.policy import Policy
from inaproto_controller.simulate.shared_switch import share
from inaproto_hil.evaluation.yardsticks.schedules import (
    FiniteJob,
    Schedule,
    best_schedule,
    by_list,
    by_policy,
    coarse,
    finite_job,
    run_schedule,
)

SPEEDS = Speeds(1e9, 2.0, 1e-3)


def drawn(draw: random.Random) -> list[FiniteJob]:
    """Some of equal times, so that events coincide."""
    jobs = []
    for _ in range(draw.choice([1, 2, 2, 2, 3])):
        count = draw.randint(1, 3)
        ready = sorted(draw.choice([0.0, 0.01, 0.02, draw.random() / 20]) for _ in range(count))
        sizes = tuple(draw.choice([10**7, 2 * 10**7, draw.randrange(1, 4 * 10**7)]) for _ in range(count))
        trace = ModelTrace("drawn", ready[-1] + draw.random() / 50, tuple(ready), sizes)
        jobs.append(finite_job(trace, SPEEDS, hosts=draw.choice([1, 4, 4, 4]), steps=draw.randint(1, 2)))
    return jobs


def every_schedule(jobs: Sequence[FiniteJob]) -> Iterator[Schedule]:
    """One for each list of decisions that differs: the last that used INA goes without next."""
    prefix: list[bool] | None = []
    while prefix is not None:
        schedule = run_schedule(jobs, by_list(chain(prefix, repeat(True))))
        yield schedule
        made = list(schedule.decisions)
        while made and not made[-1]:
            made.pop()
        prefix = [*made[:-1], False] if made else None


def test_no_list_of_decisions_is_better_in_150_groups() -> None:
    draw, tried, better = random.Random("best schedules"), 0, 0
    for _ in range(150):
        jobs = drawn(draw)
        totals = [schedule.seconds for schedule in every_schedule(jobs)]
        best = best_schedule(jobs)
        assert best is not None
        assert best.seconds == min(totals)
        tried += len(totals)
        policies = [run_schedule(jobs, by_policy(policy)).seconds for policy in Policy]
        assert best.seconds <= min(policies)
        better += best.seconds < min(policies)
    assert tried > 5000
    assert better > 5


def test_decisions_found_give_the_total_found() -> None:
    draw = random.Random("decisions")
    for _ in range(60):
        jobs = drawn(draw)
        best = best_schedule(jobs)
        assert best is not None
        again = run_schedule(jobs, by_list(best.decisions))
        assert (again.seconds, again.uses_ina) == (best.seconds, best.uses_ina)


def test_policies_do_what_they_do_without_end() -> None:
    """Long before the first job ends, a group of jobs with an end is one of jobs without."""
    for policy in Policy:
        traces = measured("opt-125m-4"), measured("vit-base-4")
        jobs = [finite_job(trace, SHARING, hosts=3, steps=10) for trace in traces]
        flags: list[tuple[float, bool]] = []
        share(
            [job.times for job in jobs],
            policy,
            until=0.3,
            on_operation=lambda one, flags=flags: flags.append((one.begin, one.uses_ina)),  # type: ignore[misc]
        )
        # Operations that have not ended are not told of; those that began early on have.
        begun = [uses for begin, uses in sorted(flags, key=lambda one: one[0]) if begin < 0.2]
        assert len(begun) > 50
        assert list(run_schedule(jobs, by_policy(policy)).uses_ina[: len(begun)]) == begun


def test_one_job_alone_uses_ina_wherever_it_helps() -> None:
    for model in EVALUATED:
        job = finite_job(coarse(measured(model), 6), SHARING, hosts=3, steps=3)
        best = best_schedule([job])
        assert best is not None
        assert best.seconds == job.times.step_ina * 3


def test_rounding_to_the_grid_moves_times_by_a_picosecond() -> None:
    trace = measured("bert-base-4")
    rounded, times = finite_job(trace, SHARING, hosts=3, steps=1).times, StepTimes(trace, SHARING, hosts=3)
    assert rounded.plain == pytest.approx(times.plain, abs=1e-12)
    assert rounded.ina == pytest.approx(times.ina, abs=1e-12)
    assert rounded.ready == pytest.approx(times.ready, abs=1e-12)
    assert rounded.duration == pytest.approx(times.duration, abs=1e-12)
    assert rounded.step_ina == pytest.approx(times.step_ina, abs=1e-10)


def test_coarse_traces_have_the_bytes_of_the_fine_ones() -> None:
    for model in EVALUATED:
        trace = measured(model)
        for operations in (1, 4, len(trace.ready)):
            one = coarse(trace, operations)
            assert len(one.ready) == operations
            assert sum(one.nbytes) == sum(trace.nbytes)
            assert one.ready[-1] == trace.ready[-1]
        assert coarse(trace, len(trace.ready)).nbytes == trace.nbytes
        for operations in (0, len(trace.ready) + 1):
            with pytest.raises(ConfigError, match=model):
                coarse(trace, operations)


def test_what_is_too_large_or_inexact() -> None:
    job = finite_job(coarse(measured("vit-large-4"), 6), SHARING, hosts=3, steps=4)
    assert best_schedule([job, job], states_max=100) is None
    with pytest.raises(LocalMisuse, match="at least a step"):
        best_schedule([job._replace(steps=0)])
    with pytest.raises(LocalMisuse, match="at least a step"):
        best_schedule([job._replace(steps=100)])
    with pytest.raises(LocalMisuse, match="multiple"):
        best_schedule([FiniteJob(StepTimes(measured("vit-base-4"), SHARING, hosts=3), 1)])
