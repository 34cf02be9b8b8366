"""Worlds of a switch with shards: what a death costs, and whom."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inaproto.errors import ConfigError
from inaproto.sim.frames.draw.shards import draw_shards
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, JobConfig, Swarm, WorldConfig
from inaproto.sim.frames.draw.topology import LinkConfig, leaf_spine
from inaproto.sim.frames.shards import shards_of
from inaproto.sim.frames.world import World
from inaproto.units import MS, S
from inaproto.wire.udp import SHARDS_MAX
from tests.seeds import seeds
from tests.sim.worlds import run

SMALL = Swarm(ranks_max=5, jobs_max=3, packets_max=300)


def sharded(**changes: object) -> WorldConfig:
    """Two jobs of three ranks each, on the same hosts, clear weather."""
    one = JobConfig("one", (0, 1, 2), (400, 3, 700, 90), think_ns=MS, window_messages=4, depth=2)
    config = WorldConfig(
        "shards", (one, replace(one, name="two")), (LinkConfig(),) * 3, recover_ns=2 * S, shards=2
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def death(shard: int, operation: int, duration_ns: int = MS) -> Fault:
    return Fault(10_000, FaultKind.SHARD_DEATH, shard, duration_ns, job=0, operation=operation)


@pytest.mark.parametrize("seed", seeds(25))
def test_every_rule_holds(seed: int) -> None:
    result = run(draw_shards(seed, SMALL))
    assert result.violation is None, f"{result.violation}; rerun: INAPROTO_SEEDS={seed}:{seed + 1}"


def test_a_packet_whose_source_port_is_damaged_is_other_traffic_and_harms_nobody() -> None:
    """World 108 once broke the order of a flow: its receiver discards the packet by its ICRC."""
    assert run(draw_shards(108)).violation is None


@pytest.mark.parametrize("operation", range(4))
@pytest.mark.parametrize("shard", [0, 1])
def test_a_death_costs_the_ranks_of_one_job_a_ring_and_the_others_nothing(shard: int, operation: int) -> None:
    result = run(sharded(faults=(death(shard, operation),)))
    assert result.violation is None
    assert result.operations_done == 2 * 3 * 4
    assert result.marks["a job went on in another ring"] == 3
    assert result.marks["fault during an all-reduce: shard death"] == 1


def test_jobs_without_a_shard_go_on_in_the_switchs_own_process() -> None:
    deaths = (death(0, 1, S), death(1, 1, S))
    world = World(sharded(faults=deaths))
    result = world.run()
    assert result.violation is None
    assert result.marks["a job went on in another ring"] == 6
    assert not any("became a chain" in mark for mark in result.marks)


def test_hosts_that_cannot_choose_their_port_are_summed_as_before() -> None:
    result = run(sharded(unsteered=(1,), faults=(death(0, 1), death(1, 2))))
    assert result.violation is None
    assert result.operations_done == 2 * 3 * 4
    assert "a job went on in another ring" not in result.marks


def test_what_cannot_be_is_refused() -> None:
    for shards in (-1, SHARDS_MAX + 1):
        with pytest.raises(ConfigError, match="shards"):
            sharded(shards=shards)
    with pytest.raises(ConfigError, match="at one switch"):
        sharded(topology=leaf_spine(1, 3))


def test_frames_too_short_for_a_port_are_no_shards() -> None:
    assert shards_of(np.zeros((3, 41), np.uint8), 2).tolist() == [0, 0, 0]
