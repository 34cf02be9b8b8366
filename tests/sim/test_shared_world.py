"""Worlds whose jobs have two rings at once: each all-reduce by one of them, and the same bytes for all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from inaproto.sim.campaign.kinds import WorldKind, draw_kind, kind_of
from inaproto.sim.campaign.log import read_log
from inaproto.sim.campaign.marks import declared_of, meaning_of, seeds_min_of
from inaproto.sim.campaign.replay import replay
from inaproto.sim.frames.draw.shared import draw_shared
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, JobConfig, Swarm, WorldConfig
from inaproto.sim.frames.draw.topology import LinkConfig, leaf_spine
from inaproto.units import MS, S
from inaproto.wire.ina_header import Dtype, Op
from inaproto_hil.soak import soak
from tests.seeds import seeds
from tests.sim.third_nak import PRODUCT, PROGRAM
from tests.sim.worlds import run

SMALL = Swarm(ranks_max=5, jobs_max=2, packets_max=300)
ANEW = "a job finished after it had started anew"
BY_SWITCHES = "an all-reduce was bound to the ring in the switches"
BY_HOSTS = "an all-reduce was bound to the base ring"
DRAINED = "an all-reduce of the ring in the switches was drained"
DISAGREED = "hosts had bound an all-reduce to different rings"


def shared(of_job: dict[str, Any] | None = None, **changes: Any) -> WorldConfig:
    """One switch, a job of three ranks whose every other all-reduce is the switch's, clear weather."""
    job = JobConfig(
        "job0",
        (0, 1, 2),
        (400, 3, 700, 90, 500, 20),
        think_ns=MS,
        window_messages=4,
        path="shared",
        ina=(1, 3, 5),
    )
    job = replace(job, **(of_job or {}))
    links = (LinkConfig(),) * (max(job.hosts) + 1)
    config = WorldConfig("shared", (job,), links, recover_ns=2 * S)
    return replace(config, **changes)


def during(kind: FaultKind, operation: int, target: int = 0, duration_ns: int = MS) -> Fault:
    return Fault(10_000, kind, target, duration_ns, job=0, operation=operation)


@pytest.mark.parametrize("seed", seeds(25))
def test_every_rule_holds(seed: int) -> None:
    result = run(draw_shared(seed, SMALL))
    assert result.violation is None, f"{result.violation}; rerun: INAPROTO_SEEDS={seed}:{seed + 1}"
    assert result.operations_done


def test_each_all_reduce_goes_by_the_ring_that_it_is_bound_to() -> None:
    result = run(shared())
    assert result.violation is None
    assert result.operations_done == 3 * 6
    assert (result.marks[BY_SWITCHES], result.marks[BY_HOSTS]) == (3 * 3, 3 * 3)
    assert result.marks[DRAINED] >= 3 * 2, "the last may be acknowledged when the job is over"
    assert "a rank was halted" not in result.marks


@pytest.mark.parametrize("dtype", [Dtype.F16, Dtype.BF16, Dtype.I64])
@pytest.mark.parametrize("op", Op)
def test_both_rings_give_the_same_bytes(dtype: Dtype, op: Op) -> None:
    for ina in ((), (1, 2, 3, 4, 5)):
        result = run(shared({"dtype": dtype, "op": op, "ina": ina}))
        assert result.violation is None
        assert result.operations_done == 3 * 6


@pytest.mark.parametrize("operation", range(1, 6))
@pytest.mark.parametrize("kind", [FaultKind.SWITCH_REBOOT, FaultKind.SESSION_LOSS, FaultKind.NIC_RESET])
def test_a_job_outlives_the_end_of_both_rings_whichever_it_was_on(kind: FaultKind, operation: int) -> None:
    result = run(shared(faults=(during(kind, operation),)))
    assert result.violation is None
    assert result.operations_done == 3 * 6
    assert result.marks["a job went on in another ring"] == 3
    assert result.marks["a job had two rings"] == 6
    assert ANEW not in result.marks


@pytest.mark.parametrize("refusing", [0, 1, 2])
def test_what_the_switches_refuse_is_no_failure_and_the_base_ring_stands(refusing: int) -> None:
    tree = leaf_spine(2, 4)
    hosts = tuple(sorted(range(4), key=lambda host: tree.attached[host]))
    config = shared({"hosts": hosts}, topology=tree, refusing=refusing)
    result = run(config)
    assert result.violation is None
    assert result.operations_done == 4 * 6
    assert BY_SWITCHES not in result.marks
    assert result.marks["a ring became a chain: the switch refused it"] >= 1


def test_one_switch_that_refuses_the_second_ring_does_not_end_the_first() -> None:
    result = run(shared(refusing=0))
    assert result.violation is None
    assert result.marks["a job began without the ring in the switches"] == 3
    assert "a rank was halted" not in result.marks


@pytest.mark.parametrize("operation", [1, 2])
def test_a_host_that_binds_an_all_reduce_differently_is_rescued(operation: int) -> None:
    result = run(shared({"strays": ((1, operation),), "stall_ns": 20 * MS}))
    assert result.violation is None
    assert result.operations_done == 3 * 6
    assert result.marks[DISAGREED] == 1
    assert ANEW not in result.marks


def test_bindings_that_are_known_late_are_waited_for() -> None:
    result = run(shared({"binding_ns": 3 * MS}))
    assert result.violation is None
    assert result.marks["an all-reduce waited for its binding"] >= 3
    assert result.marks[BY_SWITCHES] == 3 * 3


def test_hosts_of_several_ranks_have_two_rings_too() -> None:
    result = run(shared({"hosts": (0, 0, 1, 2, 2)}))
    assert result.violation is None
    assert result.operations_done == 5 * 6
    assert result.marks[BY_SWITCHES] == 3 * 3


def test_what_is_drawn() -> None:
    drawn = [draw_shared(seed) for seed in range(60)]
    assert all(kind_of(config) is WorldKind.SHARED for config in drawn)
    assert all(config.recover_ns for config in drawn)
    assert 8 < sum(config.topology is not None for config in drawn) < 40
    jobs = [job for config in drawn for job in config.jobs]
    assert {job.path for job in jobs} >= {"auto", "shared"}
    assert any(job.strays for job in jobs)
    assert any(len(job.positions) < len(job.hosts) for job in jobs)
    bound = [len(job.ina) / len(job.elements) for job in jobs if job.path == "shared"]
    assert min(bound) < 0.2
    assert max(bound) > 0.8


def test_a_log_of_such_a_world_replays(tmp_path: Path) -> None:
    config = shared(faults=(during(FaultKind.SWITCH_REBOOT, 3),))
    assert WorldConfig.from_record(config.as_record()) == config
    log = PRODUCT.record(config, PROGRAM)
    log.write(tmp_path / "log")
    assert replay(read_log(tmp_path / "log"), PRODUCT, PROGRAM).same


def test_the_command_line_knows_these_worlds() -> None:
    digest = CliRunner().invoke(soak, ["--world", "shared", "--seed", "4", "--digest"])
    assert digest.output == PRODUCT.run(draw_kind(4, WorldKind.SHARED)).digest + "\n"
    assert seeds_min_of(WorldKind.SHARED) == 1000
    for needed in (BY_SWITCHES, DRAINED, DISAGREED):
        assert needed in declared_of(WorldKind.SHARED)
        assert needed not in declared_of(WorldKind.RECOVERY)
        assert meaning_of(needed)
