"""Simulated hosts with congestion control, plain flows, and links that mark (docs/protocol.md 4.5)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from inaproto.core.rdma.dcqcn import DcqcnConfig, Marking
from inaproto.errors import ConfigError
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, FlowConfig, JobConfig, WorldConfig
from inaproto.sim.frames.draw.topology import LinkConfig
from inaproto.sim.frames.world import World, WorldResult
from inaproto.units import MS, US, Frames

RATE = 10**10
SENDERS = 4
DCQCN = DcqcnConfig(line_rate_bps=RATE)
LINK = LinkConfig(rate_bps=RATE, delay_ns=US, queue_frames_max=10_000, marking=Marking())
BEGIN, END = 5 * MS, 10 * MS


def incast(*, dcqcn: bool, link: LinkConfig = LINK) -> WorldConfig:
    """Several hosts write to host 0 as fast as they may."""
    flows = tuple(
        FlowConfig(host, 0, until_ns=END, mtu=4096, message_bytes=32 << 12) for host in range(1, SENDERS + 1)
    )
    return WorldConfig(
        seed="3",
        jobs=(),
        links=(link,) * (SENDERS + 1),
        flows=flows,
        weather_until_ns=END,
        congestion=DCQCN if dcqcn else None,
    )


class Run:
    """A run under all checkers, and what came to host 0 while it was looked at."""

    def __init__(self, config: WorldConfig) -> None:
        world = World(config)
        self.world = world
        self.bytes: Counter[int] = Counter()
        self.longest = 0
        """Queue of host 0's link."""
        world.downlinks[0].tap = self._saw
        self.result: WorldResult = world.run()
        assert self.result.violation is None

    def _saw(self, _: str, frame: Frames) -> None:
        if BEGIN <= self.world.agenda.now < END:
            self.bytes[int(frame[0, 29])] += frame.size
            self.longest = max(self.longest, self.world.downlinks[0].queue_bytes)

    @property
    def gbit_s(self) -> list[float]:
        return [count * 8 / (END - BEGIN) for count in self.bytes.values()]


@cache
def run(*, dcqcn: bool) -> Run:
    return Run(incast(dcqcn=dcqcn))


def test_dcqcn_shares_a_link_alike_behind_a_short_queue() -> None:
    controlled, free = run(dcqcn=True), run(dcqcn=False)
    assert sum(free.gbit_s) == pytest.approx(10, rel=0.02)
    assert sum(controlled.gbit_s) > 5
    assert len(controlled.gbit_s) == SENDERS
    assert max(controlled.gbit_s) < 1.2 * min(controlled.gbit_s)
    assert controlled.longest < free.longest / 2
    assert free.longest > SENDERS * (32 << 12), "more than one of the two messages of each window"


def test_senders_are_told_of_marks_and_of_nothing_else() -> None:
    controlled, free = run(dcqcn=True), run(dcqcn=False)
    marks = controlled.result.marks
    marked = sum(link.marked for link in controlled.world.links)
    assert marked == controlled.world.downlinks[0].marked == marks["nic: marks_received"]
    assert 0 < marks["nic: cnps_received"] == marks["nic: cnps_sent"] <= marked
    assert marks["nic: cnps_sent"] <= SENDERS * (1 + controlled.result.virtual_ns // DCQCN.cnp_ns)
    assert sum(link.marked for link in free.world.links) == 0, "packets that cannot bear a mark have none"
    assert "nic: cnps_sent" not in free.result.marks


def test_what_is_drawn_depends_on_the_seed_alone() -> None:
    assert Run(incast(dcqcn=True)).result.digest == run(dcqcn=True).result.digest
    assert Run(replace(incast(dcqcn=True), seed="4")).result.digest != run(dcqcn=True).result.digest


def test_a_configuration_with_flows_is_a_record() -> None:
    config = incast(dcqcn=True)
    assert WorldConfig.from_record(config.as_record()) == config


def test_what_waits_in_a_host_is_not_marked() -> None:
    controlled = run(dcqcn=True)
    assert {link.name for link in controlled.world.links if link.marked} == {"switch>host0"}


def test_losses_of_a_short_queue_are_made_good_at_the_rate() -> None:
    lossy = Run(incast(dcqcn=True, link=replace(LINK, queue_frames_max=300)))
    assert sum(lossy.world.downlinks[0].dropped.values()) > 0
    assert lossy.result.marks["nic: retransmits"] > 0


def test_a_ring_and_plain_flows_on_the_same_links_keep_all_rules() -> None:
    job = JobConfig(
        "job", (0, 1, 2), (100_000,) * 4, mtu=4096, window_messages=2, message_packets=16, depth=2
    )
    config = replace(incast(dcqcn=True), jobs=(job,))
    both = Run(config)
    assert both.result.marks["nic: messages_received"] > 3 * 4 * 7, "of the flows, too"
    assert both.result.marks["nic: cnps_received"] > 0


def test_flows_are_of_two_hosts_of_a_world_without_faults() -> None:
    config = incast(dcqcn=False)
    for flow in (FlowConfig(1, 1), FlowConfig(0, 9), FlowConfig(0, 1, begin_ns=2, until_ns=1)):
        with pytest.raises(ConfigError, match="world"):
            replace(config, flows=(flow,))
    with pytest.raises(ConfigError, match="no faults"):
        replace(config, faults=(Fault(0, FaultKind.NIC_RESET),))
