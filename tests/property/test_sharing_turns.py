"""What is proposed is a turn that can be had, whatever was heard of the jobs; the same facts say the same."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from inaproto.core.sharing.model_trace import ModelTrace
from inaproto.units import JobId, OpIndex
from inaproto_controller.cluster.step_times import Speeds, StepTimes
from inaproto_controller.planning.turns.turns import JobFacts, StandingTurn, TurnConfig, TurnRule, next_turn
from tests.seeds import seeds


def random_times(draw: random.Random) -> StepTimes:
    count = draw.randint(1, 12)
    ready = sorted(draw.choice((0.0, draw.uniform(0, 0.1))) for _ in range(count))
    nbytes = tuple(draw.choice((1, 10**5, 10**7, 10**8)) for _ in range(count))
    trace = ModelTrace("random", draw.uniform(0, 0.15), tuple(ready), nbytes)
    speeds = Speeds(draw.choice((1e9, 1e10, 1e18)), draw.choice((1.0, 1.5, 2.0)), draw.choice((0.0, 5e-5)))
    return StepTimes(trace, speeds, hosts=draw.choice((1, 2)))


def random_facts(draw: random.Random, number: int, now: float) -> JobFacts:
    times = random_times(draw)
    first, index = draw.randrange(1000), draw.randrange(times.count)
    began = now - draw.uniform(0, 0.05)
    is_running = draw.random() < 0.5
    return JobFacts(
        JobId(str(number)),
        times,
        operation=OpIndex(first + index),
        step_first=OpIndex(first),
        step_start=began - times.ready[index],
        at=began,
        is_running=is_running,
        uses_ina=is_running and draw.random() < 0.3,
        weight=draw.choice((1.0, 8.0)),
    )


@pytest.mark.parametrize("rule", TurnRule)
@pytest.mark.parametrize("seed", seeds(150))
def test_a_proposal_can_be_had_and_is_the_same_for_the_same_facts(seed: int, rule: TurnRule) -> None:
    draw = random.Random(f"{seed}/sharing turns")
    now = draw.choice((1.0, 1.7e9))
    jobs = [random_facts(draw, number, now) for number in range(draw.randint(0, 4))]
    config = TurnConfig(draw.choice((0.0, 1e-3)), draw.choice((0.0, 1e-3)), draw.choice((1, 1, 2)), rule)
    turns = []
    for one in jobs[: config.capacity]:
        first = OpIndex(one.operation + draw.randint(-5, 5))
        until = draw.choice((None, OpIndex(first + draw.randint(1, 9))))
        turns.append(StandingTurn(one.job, first, until, now - draw.uniform(0, 0.01)))
    turns = turns[: draw.randint(0, len(turns))]
    found = next_turn(jobs, turns, now, config)
    assert next_turn(jobs, turns, now, config) == found
    if found is None:
        return
    facts = next(one for one in jobs if one.job == found.job)
    assert facts.times.step_ina < facts.times.step_plain, "it gains"
    assert found.first >= facts.operation
    assert found.until is None or found.until > found.first
    assert found.ask_at >= now
    assert found.begin >= now + config.round_trip - 1e-6
    open_holders = {one.job for one in turns if one.until is None}
    assert found.job not in open_holders or config.capacity > 1
    late = next_turn(jobs, turns, now, replace(config, lead=config.lead + 1.0))
    assert late is not None
    assert late[:4] == found[:4], "when it is asked for says nothing of what"
