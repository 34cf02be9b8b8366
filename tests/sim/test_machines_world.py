"""Worlds whose hosts have several ranks of a job (NetReduce 3.4): one ring of hosts, one result for all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from inaproto.errors import ConfigError
from inaproto.sim.campaign.kinds import WorldKind, draw_kind, kind_of
from inaproto.sim.campaign.log import read_log
from inaproto.sim.campaign.marks import declared_of, meaning_of, seeds_min_of
from inaproto.sim.campaign.replay import replay
from inaproto.sim.frames.draw.machines import draw_machines
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, JobConfig, Swarm, WorldConfig
from inaproto.sim.frames.draw.topology import LinkConfig, leaf_spine
from inaproto.sim.frames.oracle import oracle_of
from inaproto.sim.frames.world import World
from inaproto.units import MS, US, S
from inaproto.wire.ina_header import Dtype, Op
from inaproto_hil.soak import soak
from tests.seeds import seeds
from tests.sim.third_nak import PRODUCT, PROGRAM
from tests.sim.worlds import run

SMALL = Swarm(ranks_max=4, jobs_max=2, packets_max=300)
ANEW = "a job finished after it had started anew"
POSTED = "a host posted the sum of several ranks"


def crowded(**changes: object) -> WorldConfig:
    """One switch, seven ranks of a job on three hosts, numbered in no order; clear weather."""
    job = JobConfig("job0", (0, 1, 0, 2, 2, 0, 1), (400, 3, 700, 90), think_ns=MS, window_messages=4, depth=2)
    config = WorldConfig("machines", (job,), (LinkConfig(),) * 3)
    return replace(config, **changes)  # type: ignore[arg-type]


def with_job(config: WorldConfig, **changes: object) -> WorldConfig:
    [job] = config.jobs
    return replace(config, jobs=(replace(job, **changes),))  # type: ignore[arg-type]


def during(
    kind: FaultKind, operation: int, target: int = 0, duration_ns: int = MS, process: int = 0
) -> Fault:
    return Fault(10_000, kind, target, duration_ns, job=0, operation=operation, process=process)


def test_a_process_that_came_back_before_its_job_failed_joins_the_next() -> None:
    """Its host gathered no more, and it heard of no failure: the job waited for it for ever."""
    result = run(draw_machines(212))
    assert result.violation is None


@pytest.mark.parametrize("seed", [805, 1613, 1715, 3638])
def test_worlds_that_broke_a_rule_once(seed: int) -> None:
    """805: a NIC reset while its host was paused; 1613: a host daemon that came anew, when the next job had
    begun, ended that for all; 1715: a survivor that did not hear of the start; 3638: a host that
    was away when all had joined."""
    assert run(draw_machines(seed)).violation is None


@pytest.mark.parametrize("seed", seeds(25))
def test_every_rule_holds(seed: int) -> None:
    result = run(draw_machines(seed, SMALL))
    assert result.violation is None, f"{result.violation}; rerun: INAPROTO_SEEDS={seed}:{seed + 1}"
    assert result.operations_done


@pytest.mark.parametrize("recover_ns", [0, 2 * S])
@pytest.mark.parametrize("dtype", [Dtype.F32, Dtype.F16, Dtype.BF16, Dtype.I32])
@pytest.mark.parametrize("op", [Op.SUM, Op.MIN])
def test_hosts_add_and_the_switch_sums_hosts(dtype: Dtype, op: Op, recover_ns: int) -> None:
    result = run(with_job(crowded(recover_ns=recover_ns), dtype=dtype, op=op))
    assert result.violation is None
    assert result.operations_done == 7 * 4
    assert result.marks[POSTED]
    assert ANEW not in result.marks


def test_one_copy_leaves_a_host() -> None:
    """Seven ranks on three hosts send as many packets as three ranks do."""
    sent = [
        run(with_job(crowded(), hosts=hosts, think_ns=0)).marks["nic: messages_received"]
        for hosts in ((0, 1, 0, 2, 2, 0, 1), (0, 1, 2))
    ]
    assert sent[0] == sent[1]


def test_the_judge_knows_where_ranks_are() -> None:
    """Half-precision sums are rounded on each host: other bytes than those of seven hosts."""
    config = with_job(crowded(), dtype=Dtype.BF16)
    apart = with_job(replace(config, links=(LinkConfig(),) * 7), hosts=tuple(range(7)))
    assert oracle_of(config, config.jobs[0]).result(1, 2, 700) != oracle_of(apart, apart.jobs[0]).result(
        1, 2, 700
    )


@pytest.mark.parametrize("ranks", [2, 5])
@pytest.mark.parametrize("recover_ns", [0, S])
def test_ranks_of_one_host_need_no_switch(ranks: int, recover_ns: int) -> None:
    config = with_job(crowded(recover_ns=recover_ns), hosts=(1,) * ranks, elements=(4000, 3, 0, 90))
    result = run(config)
    assert result.violation is None
    assert result.operations_done == ranks * 4
    assert result.marks["an all-reduce on one host"] == 4
    assert "switch: results_out" not in result.marks


def test_a_host_waits_for_the_last_of_its_ranks() -> None:
    late = with_job(crowded(), slow_rank=5, slow_ns=60 * MS, stall_ns=5 * MS)
    result = run(late)
    assert result.violation is None
    assert result.marks["a rank of a host came late"]
    assert result.marks["an all-reduce stalled for ranks of one host"]
    assert ANEW not in result.marks


@pytest.mark.parametrize("hosts", [(0, 1, 0, 2, 2, 0, 1), (1, 1, 1)])
def test_ranks_of_one_host_that_disagree_are_told(hosts: tuple[int, ...]) -> None:
    result = run(with_job(crowded(), hosts=hosts, mismatch=(2, 1)))
    assert result.violation is None
    assert result.marks["ranks of one host disagreed"]
    assert result.marks["a rank was told: tensor_mismatch"] == len(set(hosts))
    assert result.marks[ANEW] == 1


@pytest.mark.parametrize("operation", range(4))
@pytest.mark.parametrize("recover_ns", [0, 2 * S])
def test_a_process_that_dies_ends_its_job_and_is_named(operation: int, recover_ns: int) -> None:
    death = during(FaultKind.PROCESS_DEATH, operation, 0, 20 * MS, process=1)
    world = World(crowded(faults=(death,), recover_ns=recover_ns))
    result = world.run()
    assert result.violation is None
    assert result.marks["a rank died beside others"] == 1
    assert result.marks[ANEW] == 1
    told = {rank.index: rank.told for host in world.hosts for rank in host.ranks}
    assert len(told) == 7
    for said in told.values():
        assert "rank 2 (host0, pid " in said
        assert "its process died" in said


@pytest.mark.parametrize("at_ns", [1500 * US, 2000 * US, 2500 * US])
def test_a_process_that_dies_while_it_joins_is_waited_for(at_ns: int) -> None:
    death = Fault(at_ns, FaultKind.PROCESS_DEATH, 0, 30 * MS, process=1)
    result = run(crowded(faults=(death,), control_delay_ns=MS))
    assert result.violation is None
    assert result.operations_done == 7 * 4


def test_a_process_that_dies_while_its_host_is_away_is_named_when_that_is_back() -> None:
    reset = during(FaultKind.NIC_RESET, 1)
    death = replace(during(FaultKind.PROCESS_DEATH, 1, 0, 50 * MS, process=2), at_ns=100_000)
    world = World(crowded(faults=(reset, death), recover_ns=4 * S))
    result = world.run()
    assert result.violation is None
    assert result.marks[ANEW] == 1
    assert "a rank did not come back and was named" not in result.marks
    assert all("rank 5 (host0, pid " in rank.told for host in world.hosts for rank in host.ranks)


@pytest.mark.parametrize("kind", [FaultKind.SWITCH_REBOOT, FaultKind.SESSION_LOSS, FaultKind.NIC_RESET])
@pytest.mark.parametrize("operation", range(4))
def test_a_host_comes_back_with_all_its_ranks(kind: FaultKind, operation: int) -> None:
    result = run(crowded(faults=(during(kind, operation),), recover_ns=2 * S))
    assert result.violation is None
    assert result.operations_done == 7 * 4
    assert result.marks["a host came back with several ranks"]
    assert ANEW not in result.marks


@pytest.mark.parametrize("dtype", [Dtype.F16, Dtype.BF16])
@pytest.mark.parametrize("refusing", [0, 1, 2])
def test_a_chain_of_hosts_with_several_ranks_follows_the_tree(dtype: Dtype, refusing: int) -> None:
    tree = leaf_spine(2, 4)
    job = JobConfig("job0", (0, 1, 0, 2, 1, 3, 3, 0), (900, 5), dtype=dtype)
    config = WorldConfig("racks", (job,), (LinkConfig(),) * 4, topology=tree, recover_ns=S, refusing=refusing)
    result = run(config)
    assert result.violation is None
    assert result.operations_done == 8 * 2
    assert result.marks["a chain was given the sum of several ranks"]


@pytest.mark.parametrize("recover_ns", [0, 2 * S])
@pytest.mark.parametrize("dtype", [Dtype.F32, Dtype.BF16])
@pytest.mark.parametrize("hosts", [(0, 1, 2), (0, 1, 0, 2, 2, 0, 1)])
def test_hosts_sum_in_a_ring_that_was_asked_for(
    hosts: tuple[int, ...], dtype: Dtype, recover_ns: int
) -> None:
    result = run(with_job(crowded(recover_ns=recover_ns), hosts=hosts, dtype=dtype, path="ring"))
    assert result.violation is None
    assert result.operations_done == len(hosts) * 4
    assert result.marks["a result of a ring of hosts"]
    assert "switch: results_out" not in result.marks
    assert ANEW not in result.marks


def test_the_judge_knows_where_a_message_of_a_ring_begins() -> None:
    config = crowded()
    oracle = oracle_of(config, config.jobs[0])
    assert len({oracle.rotated(1, 2, 700, start) for start in range(3)}) == 3
    assert oracle.rotated(1, 2, 700, 0) == oracle.result(1, 2, 700)


@pytest.mark.parametrize("kind", [FaultKind.SESSION_LOSS, FaultKind.NIC_RESET])
@pytest.mark.parametrize("operation", range(4))
def test_a_ring_of_hosts_ends_like_any_ring(kind: FaultKind, operation: int) -> None:
    config = crowded(faults=(during(kind, operation),), recover_ns=2 * S)
    result = run(with_job(config, path="ring", elements=(4000, 3, 7000, 90)))
    assert result.violation is None
    assert result.operations_done == 7 * 4
    assert result.marks["a rank was halted"] >= 3
    assert ANEW not in result.marks


@pytest.mark.parametrize("exact_plan", [True, False])
def test_hosts_that_cannot_follow_the_tree_in_a_chain_sum_up_a_tree_of_their_own(exact_plan: bool) -> None:
    job = JobConfig("job0", (0, 2, 1, 3, 0), (400, 3, 700), exact_plan=exact_plan)
    config = WorldConfig("racks", (job,), (LinkConfig(),) * 4, topology=leaf_spine(2, 4), recover_ns=S)
    result = run(replace(config, refusing=0))
    assert result.violation is None
    assert result.operations_done == 5 * 3
    assert result.marks["a ring became an overlay: the switch refused it"]


def test_a_process_that_joins_anew_beside_a_ring_that_was_being_prepared() -> None:
    """The switch had told its host to make the links for the ring with the process before it."""
    assert run(draw_machines(44)).violation is None


def test_a_process_that_joins_anew_is_not_halted_with_the_one_before_it() -> None:
    assert run(draw_machines(647)).violation is None


def test_what_is_drawn() -> None:
    drawn = [draw_machines(seed) for seed in range(60)]
    assert all(kind_of(config) is WorldKind.MACHINES for config in drawn)
    assert 5 < sum(config.topology is not None for config in drawn) < 40
    assert 15 < sum(config.recover_ns > 0 for config in drawn) < 50
    jobs = [job for config in drawn for job in config.jobs]
    assert any(len(job.positions) == 1 for job in jobs)
    assert any(job.hosts != tuple(sorted(job.hosts, key=job.positions.index)) for job in jobs)
    assert {job.path for job in jobs} == {"auto", "ring", "chain", "overlay"}
    assert {job.exact_plan for job in jobs} == {True, False}
    deaths = [fault for config in drawn for fault in config.faults if fault.kind is FaultKind.PROCESS_DEATH]
    assert {fault.job >= 0 for fault in deaths} == {True, False}


def test_processes_die_alone_in_these_worlds_only() -> None:
    assert FaultKind.PROCESS_DEATH not in Swarm().kinds


def test_a_log_of_such_a_world_replays(tmp_path: Path) -> None:
    config = crowded(faults=(during(FaultKind.PROCESS_DEATH, 2, process=1),), recover_ns=S)
    assert WorldConfig.from_record(config.as_record()) == config
    log = PRODUCT.record(config, PROGRAM)
    log.write(tmp_path / "log")
    assert replay(read_log(tmp_path / "log"), PRODUCT, PROGRAM).same


def test_a_job_has_two_ranks_or_more() -> None:
    with pytest.raises(ConfigError, match="two ranks"):
        with_job(crowded(), hosts=(1,))


def test_the_command_line_knows_these_worlds() -> None:
    digest = CliRunner().invoke(soak, ["--world", "machines", "--seed", "4", "--digest"])
    assert digest.output == PRODUCT.run(draw_kind(4, WorldKind.MACHINES)).digest + "\n"
    assert seeds_min_of(WorldKind.MACHINES) == 1000
    for needed in (POSTED, "a rank died beside others", "an all-reduce on one host"):
        assert needed in declared_of(WorldKind.MACHINES)
        assert needed not in declared_of(WorldKind.RACKS)
        assert meaning_of(needed)
