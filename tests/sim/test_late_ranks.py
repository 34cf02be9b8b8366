"""A rank that is minutes late, for its training process writes a checkpoint: nothing breaks, nothing storms.

NetReduce section 3.2 has the switch hold packets until the last rank has sent, so the NICs of all others wait
for ACKs that long. The packets that they send again meanwhile are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pytest

from inaproto.core.rdma.reliable_connection import TIMEOUT_UNIT_NS
from inaproto.sim.frames.draw.swarm import JobConfig, WorldConfig
from inaproto.sim.frames.draw.topology import LinkConfig
from inaproto.sim.frames.world import World
from inaproto.units import S
from tests.sim.test_racks_world import racks

FIVE_MINUTES: Final = 300 * S
LATE_S: Final = 3 * 300
"""Each of the three all-reduces waits for the rank."""
TIMEOUT: Final = 14
HOSTS: Final = 4


def late(*, rank: int = 2, **changes: object) -> WorldConfig:
    job = JobConfig(
        "job0",
        tuple(range(HOSTS)),
        (4000, 3, 20_000),
        message_packets=8,
        slow_rank=rank,
        slow_ns=FIVE_MINUTES,
        transport_timeout=TIMEOUT,
        stall_ns=S,
        timeout_ns=2 * FIVE_MINUTES,
    )
    config = WorldConfig("late", (job,), (LinkConfig(),) * HOSTS, heal_ns=5 * FIVE_MINUTES)
    return replace(config, **changes)  # type: ignore[arg-type]


def run(config: WorldConfig) -> tuple[Mapping[str, int], int]:
    """What the world's marks count, and how many rings its job had."""
    world = World(config)
    result = world.run()
    assert result.violation is None, result.violation
    assert result.operations_done == len(config.jobs[0].elements) * HOSTS
    return dict(result.marks), len(world._rings["job0"])


def asked_at_most(*, messages: int) -> int:
    """Packets of all who wait, if each timeout asks once at each of so many messages, and twice at the first.

    The timers double to a second, and are up to a quarter shorter from then on.
    """
    doubling = sum((TIMEOUT_UNIT_NS << TIMEOUT + n) <= S for n in range(8))
    timeouts = LATE_S * 4 // 3 + 3 * doubling
    return (HOSTS - 1) * timeouts * (messages + 1)


@pytest.mark.parametrize("rank", range(HOSTS))
def test_no_ring_breaks_and_few_packets_come_again(rank: int) -> None:
    marks, rings = run(late(rank=rank))
    assert rings == 1
    assert marks["nic: timeouts"] > LATE_S // 2
    assert marks["nic: retransmits"] <= asked_at_most(messages=2)
    assert marks.get("nic: naks_received", 0) == 0


def test_of_a_tree_of_switches_too() -> None:
    job = replace(late().jobs[0], hosts=(0, 2, 1, 3))
    marks, rings = run(replace(racks(), jobs=(job,), heal_ns=5 * FIVE_MINUTES))
    assert rings == 1
    assert marks["nic: retransmits"] <= asked_at_most(messages=2)


@pytest.mark.parametrize("path", ["ring", "chain"])
def test_of_hosts_alone_nobody_waits_for_an_ack(path: str) -> None:
    job = replace(late().jobs[0], path=path)  # type: ignore[arg-type]
    marks, _ = run(late(jobs=(job,)))
    assert "nic: retransmits" not in marks
