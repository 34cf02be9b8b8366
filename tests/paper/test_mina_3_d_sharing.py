"""MINA, sections III-D and V-C: jobs that take turns at one switch, against the published simulator."""

from __future__ import annotations

import random
from functools import cache

import pytest

from inaproto_controller.cluster.model import EVALUATED, SHARING, measured
from inaproto_controller.cluster.step_times import Speeds, StepTimes
from inaproto_controller.planning.turns.policy import NextOperation, Policy, may_use
from inaproto_controller.simulate.results import Operation
from inaproto_controller.simulate.shared_switch import share
from tests.data.mina.reference import reference


@cache
def times_of(model: str, hosts: int = 2) -> StepTimes:
    return StepTimes(measured(model), SHARING, hosts=hosts)


@pytest.mark.parametrize("policy", [Policy.SCORE, Policy.GREEDY])
def test_pairs_do_what_they_do_in_the_published_simulator(policy: Policy) -> None:
    """100 of the longer job's plain steps, 49 pairs; events are counted exactly."""
    for pair, expected in reference("ref03_sharing_pairs")[
        {Policy.SCORE: "smart", Policy.GREEDY: "greedy"}[policy]
    ].items():
        jobs = [times_of(model) for model in pair.split("|")]
        found = share(jobs, policy, until=100 * max(job.step_plain for job in jobs))
        assert found.events == expected["EventCount"], pair
        assert found.end == pytest.approx(expected["SimulatedTime"], rel=1e-9)
        assert found.score == pytest.approx(expected["JCTScore"], abs=1e-9)
        assert found.seconds == pytest.approx(expected["TotalJCT"], rel=1e-9)
        assert found.utilisation == pytest.approx(expected["SharpRatio"], abs=1e-9)


def test_every_operation_of_a_pair_is_that_of_the_published_simulator() -> None:
    found: list[Operation] = []
    share(
        [times_of("opt-125m-4"), times_of("vit-large-4")],
        Policy.SCORE,
        until=0.3812,
        on_operation=found.append,
    )
    published = reference("ref04_sharing_timeline")["ops"]
    ours = [one for one in found if one.end < 0.3812]
    key = [(one.job, one.step, one.index) for one in ours]
    assert sorted(key) == sorted((one["job"], one["step"], one["op"]) for one in published)
    by_key = {(one.job, one.step, one.index): one for one in ours}
    for one in published:
        mine = by_key[one["job"], one["step"], one["op"]]
        assert mine.uses_ina is one["ina"]
        assert mine.begin == pytest.approx(one["start"], abs=1e-9)
        assert mine.end == pytest.approx(one["end"], abs=1e-9)


def test_operations_that_take_no_time_hold_nobody_back() -> None:
    """Nor do they divide by it: a clock that began long ago is coarser than a small operation takes."""
    now = 1.7e9
    fast = StepTimes(measured("opt-125m-4"), Speeds(1e18, 1.5, 0.0), hosts=2)
    slow = times_of("opt-125m-4")
    ready = now - fast.ready[0]
    mine, other = (NextOperation(times, 0, ready, now) for times in (fast, slow))
    assert may_use(mine, [other], now)
    assert may_use(other, [mine], now)


def test_without_ina_jobs_take_their_plain_steps() -> None:
    found = share([times_of("vit-large-4")] * 2, Policy.NONE, until=5.0)
    assert found.score == pytest.approx(0, abs=1e-12)
    assert found.utilisation == 0


def test_a_score_of_nothing_to_gain_is_not_there() -> None:
    same = StepTimes(measured("vit-base-4"), Speeds(12.5e9, 1.0, 5e-5), hosts=2)
    assert share([same], Policy.GREEDY, until=1.0).score is None


def directly(mine: NextOperation, others: list[NextOperation], now: float) -> bool:
    """The rule by its words: steps run to their ends, operation by operation."""

    def step_end(one: NextOperation, first: float) -> float:
        end = one.begin + first
        for index in range(one.number + 1, one.times.count):
            end = max(end, one.step_start + one.times.ready[index]) + one.times.plain[index]
        return max(end, one.step_start + one.times.duration)

    def ratio(one: NextOperation) -> float:
        times, index = one.times, one.number
        gain = step_end(one, times.plain[index]) - step_end(one, times.ina[index])
        return one.weight * gain / (one.begin + times.ina[index] - now)

    until = now + mine.times.ina[mine.number]
    return not any(other.begin < until and ratio(other) > ratio(mine) + 1e-12 for other in others)


def test_decisions_are_a_direct_recomputation_on_10000_random_states() -> None:
    draw, answers = random.Random("policy"), {True: 0, False: 0}

    def drawn(now: float) -> NextOperation:
        times = times_of(draw.choice(EVALUATED))
        index = draw.randrange(times.count)
        start = now - draw.uniform(0, 1.5) * times.ready[index]
        begin = max(now + draw.choice([0.0, 1e-4, 1e-3, 1e-2]) * draw.random(), start + times.ready[index])
        return NextOperation(times, index, start, begin, draw.choice([1.0, 2.0, 16.0]))

    for _ in range(10_000):
        now = draw.uniform(0, 100)
        mine = drawn(now)
        now = mine.begin
        others = [drawn(now) for _ in range(draw.randint(0, 5))]
        found, expected = may_use(mine, others, now), directly(mine, others, now)
        if found is not expected:
            # A tie up to rounding may fall either way; no other difference is allowed.
            ratios = [one.gain() / (one.begin + one.times.ina[one.number] - now) for one in (mine, *others)]
            assert any(abs(one - ratios[0]) < 1e-9 for one in ratios[1:])
        answers[found] += 1
    assert min(answers.values()) > 500
