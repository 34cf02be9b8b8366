"""Worlds whose jobs go on without ranks that are lost: all survivors together, from what all of them have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inaproto.errors import ConfigError, JoinRefused
from inaproto.sim.campaign.log import read_log
from inaproto.sim.campaign.replay import replay
from inaproto.sim.frames.draw.machines import draw_machines
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, JobConfig, WorldConfig
from inaproto.sim.frames.draw.topology import LinkConfig, leaf_spine
from inaproto.sim.frames.host.elastic_process import State
from inaproto.sim.frames.oracle import oracle_of
from inaproto.sim.frames.shrink import Candidate, structural
from inaproto.sim.frames.world import World, WorldResult
from inaproto.units import MS, S
from tests.sim.third_nak import PRODUCT, PROGRAM

ELEMENTS = (400, 3, 700, 90, 1200)
SEVEN = (0, 1, 0, 2, 2, 0, 1)
SHRUNK, TWICE = "a job was shrunk", "a job was shrunk twice"
ANEW = "a job was started anew, for nobody went on"


def elastic(*faults: Fault, hosts: tuple[int, ...] = SEVEN, recover_ns: int = 2 * S) -> WorldConfig:
    """One switch; all results of an all-reduce are waited for before the next is called. Clear weather."""
    job = JobConfig("job0", hosts, ELEMENTS, elastic=True, think_ns=MS, window_messages=4)
    return WorldConfig("elastic", (job,), (LinkConfig(),) * 3, faults=faults, recover_ns=recover_ns)


def during(kind: FaultKind, operation: int, target: int = 0, *, after_ns: int = 10_000) -> Fault:
    return Fault(after_ns, kind, target, MS, job=0, operation=operation)


def death(operation: int, host: int, process: int = 0, *, after_ns: int = 10_000) -> Fault:
    return replace(during(FaultKind.PROCESS_DEATH, operation, host, after_ns=after_ns), process=process)


def run(config: WorldConfig) -> tuple[World, WorldResult]:
    world = World(config)
    result = world.run()
    assert result.violation is None
    return world, result


def states(world: World) -> list[State]:
    return [process.state for process in world.elastic["job0"].processes]


@pytest.mark.parametrize("operation", range(5))
@pytest.mark.parametrize("hosts", [SEVEN, (0, 1, 2), (0, 0, 0), (0, 0, 1)])
def test_all_others_go_on_from_where_all_of_them_are(hosts: tuple[int, ...], operation: int) -> None:
    world, result = run(elastic(death(operation, 0), hosts=hosts))
    assert result.marks[SHRUNK] == 1
    assert ANEW not in result.marks
    assert states(world) == [State.DEAD] + [State.FINISHED] * (len(hosts) - 1)
    each = len(ELEMENTS) * (len(hosts) - 1)
    assert each <= result.operations_done <= each + len(hosts) * (operation + 1)


def test_the_next_job_has_the_rest_and_its_results_are_of_the_survivors() -> None:
    world, _ = run(elastic(death(2, 0)))
    [job] = {ring.job for host in world.hosts for ring in host.rings if ring.job is not world.config.jobs[0]}
    assert (job.name, job.hosts, job.elements) == ("job0~1", (1, 0, 2, 2, 0, 1), ELEMENTS[2:])
    whole = oracle_of(world.config, world.config.jobs[0])
    assert oracle_of(world.config, job).result(7, 0, 90) != whole.result(7, 0, 90)


@pytest.mark.parametrize("after_ns", [2_700_000, 3_000_000, 3_200_000])
@pytest.mark.parametrize(("hosts", "heard"), [(SEVEN, 2), ((0, 1, 2), 1)])
def test_a_survivor_that_missed_the_start_of_its_next_job_is_in_it(
    hosts: tuple[int, ...], heard: int, after_ns: int
) -> None:
    """It comes again, and has called nothing; the world gave it inputs of another life (machines 1715)."""
    missed = during(FaultKind.SESSION_LOSS, 1, 1, after_ns=after_ns)
    world, result = run(elastic(death(1, 0), missed, hosts=hosts))
    assert result.marks["a job went on in another ring"] == heard  # of the start: so many other hosts
    assert (result.marks[SHRUNK], ANEW in result.marks) == (1, False)
    assert states(world).count(State.FINISHED) == len(hosts) - 1


def test_a_job_may_lose_ranks_again_and_again() -> None:
    deaths = [death(1, 0), death(2, 1), death(3, 2), death(4, 0, 3)]
    world, result = run(elastic(*deaths))
    assert result.marks[SHRUNK] == 4
    assert result.marks[TWICE] == 3
    assert states(world).count(State.FINISHED) == 3


@pytest.mark.parametrize("after_ns", [10_000, 100_000, 400_000, 700_000, 1_000_000, 1_500_000, 2_500_000])
def test_whenever_another_dies_the_rest_go_on(after_ns: int) -> None:
    world, result = run(elastic(death(1, 0), death(1, 1, after_ns=10_000 + after_ns)))
    assert result.marks[SHRUNK] >= 1
    assert ANEW not in result.marks
    assert states(world).count(State.FINISHED) == 5
    assert result.virtual_ns < 10 * S


def test_survivors_of_whom_one_dies_before_they_began_agree_once_more() -> None:
    seen: set[str] = set()
    for after_ns in range(1_000_000, 4_000_000, 100_000):
        seen |= run(elastic(death(1, 0), death(1, 1, after_ns=after_ns)))[1].marks.keys()
    assert "survivors agreed once more, on another job" in seen
    assert "a rank died while its job was regrouping" in seen


def test_one_survivor_goes_on_alone() -> None:
    world, result = run(elastic(death(1, 0), death(1, 1), hosts=(0, 1, 2)))
    assert result.marks["one survivor went on alone"] == 1
    assert states(world) == [State.DEAD, State.DEAD, State.FINISHED]


@pytest.mark.parametrize("after_ns", [200_000, 800_000, 1_200_000])
def test_a_switch_that_restarts_has_forgotten_the_survivors_and_all_are_told(after_ns: int) -> None:
    """The documented limit: an error that says so on each rank, no wait for ever; the job is started anew."""
    reboot = during(FaultKind.SWITCH_REBOOT, 1, after_ns=10_000 + after_ns)
    world, result = run(elastic(death(1, 0), reboot))
    assert result.marks[ANEW] == 1
    assert result.marks["survivors were refused after a restart of the switch"] == 6
    assert result.marks[f"a rank could not go on: {JoinRefused.code}"] == 6
    assert states(world) == [State.FINISHED] * 7


@pytest.mark.parametrize("kind", [FaultKind.SESSION_LOSS, FaultKind.NIC_RESET])
def test_a_host_that_loses_its_connection_comes_back_to_the_others(kind: FaultKind) -> None:
    seen: set[str] = set()
    for after_ns in range(100_000, 3_000_000, 200_000):
        world, result = run(elastic(death(1, 0), during(kind, 1, 2, after_ns=after_ns)))
        assert ANEW not in result.marks
        assert states(world).count(State.FINISHED) == 6
        seen |= result.marks.keys()
    assert "a host came back, and its survivors asked again" in seen


def test_a_host_that_crashes_meanwhile_is_lost_with_all_its_ranks() -> None:
    world, result = run(elastic(death(1, 0), during(FaultKind.HOST_CRASH, 1, 2, after_ns=500_000)))
    assert ANEW not in result.marks
    assert [process.number for process in world.elastic["job0"].processes if process.state is State.DEAD] == [
        *(0, 3, 4),
    ]


def test_ranks_that_have_left_are_not_waited_for() -> None:
    """All but one rank have all results when that one dies: nobody has to go on."""
    slow = replace(elastic(death(4, 0, after_ns=8 * MS)).jobs[0], slow_rank=5, slow_ns=40 * MS, depth=1)
    _, result = run(replace(elastic(death(4, 0, after_ns=8 * MS)), jobs=(slow,)))
    assert result.virtual_ns < 10 * S


def test_survivors_in_a_tree() -> None:
    job = JobConfig("job0", (0, 1, 0, 2, 3), (400, 3, 700), elastic=True, think_ns=MS)
    config = WorldConfig("elastic", (job,), (LinkConfig(),) * 4, topology=leaf_spine(2, 4), recover_ns=S)
    world, result = run(replace(config, faults=(death(1, 2), death(2, 1))))
    assert result.marks[TWICE]
    assert states(world).count(State.FINISHED) == 3


def test_what_is_drawn() -> None:
    drawn = [draw_machines(seed) for seed in range(120)]
    jobs = [job for config in drawn if config.recover_ns for job in config.jobs]
    assert 0.3 < sum(job.elastic for job in jobs) / len(jobs) < 0.7
    assert not any(job.elastic for config in drawn if not config.recover_ns for job in config.jobs)


def test_an_elastic_job_needs_a_switch_that_waits() -> None:
    with pytest.raises(ConfigError, match="elastic"):
        elastic(recover_ns=0)


def test_smaller_worlds_are_tried_without_it() -> None:
    config = elastic(death(1, 0))
    tried = [candidate.config for candidate in structural(Candidate(config, None))]
    assert replace(config, jobs=(replace(config.jobs[0], elastic=False),)) in tried
    assert all(smaller.recover_ns for smaller in tried)


def test_a_log_of_such_a_world_replays(tmp_path: Path) -> None:
    config = elastic(death(1, 0), death(2, 1))
    assert WorldConfig.from_record(config.as_record()) == config
    log = PRODUCT.record(config, PROGRAM)
    log.write(tmp_path / "log")
    assert replay(read_log(tmp_path / "log"), PRODUCT, PROGRAM).same
