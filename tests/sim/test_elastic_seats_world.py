"""Elastic jobs in seats that a controller has given: who counts for one, and when such a job is over."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from inaproto.errors import ConfigError
from inaproto.sim.campaign.log import read_log
from inaproto.sim.campaign.replay import replay
from inaproto.sim.frames.draw.machines import draw_machines
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, Swarm, WorldConfig
from inaproto.sim.frames.shrink import Candidate, structural
from inaproto.sim.frames.world import World, WorldResult
from tests.seeds import all_seeds
from tests.sim.test_elastic_world import ANEW, death, during, elastic
from tests.sim.third_nak import PRODUCT, PROGRAM

SMALL: Final = Swarm(ranks_max=4, jobs_max=2, packets_max=200)
MARKS: Final = (
    "an elastic job went on without a seat, or a rank of one",
    "an elastic job had ended for its controller, and what it lost was named",
    "a host that a controller took for lost came back with its ranks",
)


def seated(*faults: Fault, hosts: tuple[int, ...] = (0, 1, 0, 2, 2, 0, 1)) -> WorldConfig:
    config = elastic(*faults, hosts=hosts)
    return replace(config, jobs=(replace(config.jobs[0], seated=True),))


def run(config: WorldConfig) -> tuple[World, WorldResult]:
    world = World(config)
    result = world.run()
    assert result.violation is None
    return world, result


def all_seated(seed: int) -> WorldConfig:
    """That of ``seed``, where all hosts of elastic jobs have seats."""
    config = draw_machines(seed, SMALL)
    return replace(config, jobs=tuple(replace(job, seated=job.elastic) for job in config.jobs))


def test_every_rule_holds_and_what_is_to_happen_does() -> None:
    marks: Counter[str] = Counter()
    for seed in all_seeds(60):
        config = all_seated(seed)
        if not any(job.seated for job in config.jobs):
            continue
        result = World(config).run()
        assert result.violation is None, f"{result.violation}; rerun: INAPROTO_SEEDS={seed}:{seed + 1}"
        marks.update(result.marks)
    assert not [mark for mark in MARKS if not marks[mark]], marks


def test_a_job_that_loses_a_rank_is_over_with_the_others_and_says_whom_it_lost() -> None:
    world, _ = run(seated(death(2, 1)))
    over = world.seats.jobs["job0"].over
    assert over is not None
    assert not over.has_failed
    assert over.why == "host host1: rank 3: dead; the others went on to the end"


def test_a_job_that_loses_a_host_is_over_with_the_others() -> None:
    world, result = run(seated(during(FaultKind.HOST_CRASH, 1, 2)))
    assert ANEW not in result.marks
    over = world.seats.jobs["job0"].over
    assert over is not None
    assert not over.has_failed
    assert over.why.startswith("host host2 ")


def test_one_that_loses_all_is_over_and_another_one_when_it_is_started_anew() -> None:
    reboot = during(FaultKind.SWITCH_REBOOT, 1, after_ns=800_000)
    world, result = run(seated(death(1, 0), reboot))
    assert result.marks[ANEW] == 1
    job = world.seats.jobs["job0"]
    assert job.attempt == 2
    assert job.over is not None
    assert job.over.why == ""


def test_what_is_drawn() -> None:
    jobs = [job for seed in range(200) for job in draw_machines(seed).jobs if job.elastic]
    assert 0.3 < sum(job.seated for job in jobs) / len(jobs) < 0.7


def test_seats_are_of_elastic_jobs() -> None:
    config = seated()
    with pytest.raises(ConfigError, match="not elastic"):
        replace(config, jobs=(replace(config.jobs[0], elastic=False),))


def test_smaller_worlds_are_tried_without_them() -> None:
    config = seated(death(1, 0))
    tried = [candidate.config for candidate in structural(Candidate(config, None))]
    assert replace(config, jobs=(replace(config.jobs[0], seated=False),)) in tried
    assert replace(config, jobs=(replace(config.jobs[0], seated=False, elastic=False),)) in tried


def test_a_log_of_such_a_world_replays(tmp_path: Path) -> None:
    config = seated(death(1, 0), death(2, 1))
    assert WorldConfig.from_record(config.as_record()) == config
    PRODUCT.record(config, PROGRAM).write(tmp_path / "log")
    assert replay(read_log(tmp_path / "log"), PRODUCT, PROGRAM).same
