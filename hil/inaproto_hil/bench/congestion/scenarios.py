"""The worlds of ``inaproto bench congestion``: who sends what to whom on which links.

All hosts are at one switch, or at the leaves of a tree of two levels, and all links have one rate. A plain
flow writes messages to another host as long as the world lasts (:mod:`inaproto.sim.frames.host.plain_flow`);
a ring does one all-reduce after the other through the switch. A *bottleneck* is a link to which several flows
lead, one of which may be of the ring: there shares are measured. What a ring is compared with has the same
flows, but for one plain flow from a rank to the next in the place of the ring's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from inaproto.core.rdma.dcqcn import DcqcnConfig, Marking
from inaproto.sim.frames.draw.swarm import FlowConfig, JobConfig, WorldConfig
from inaproto.sim.frames.draw.topology import LinkConfig, SwitchConfig, Topology
from inaproto.units import MS, S

JOB: Final = "ring"
_FRAME_BYTES_OF_QUEUE: Final = 400
"""What a simulated link takes a frame of its queue for."""
_RING_READY_NS: Final = 1 * MS
"""Jobs and flows have begun well after this, and are measured from ``begin_ns`` on."""


class Kind(StrEnum):
    INCAST = "incast"
    """All other hosts write to one."""
    RING = "ring"
    """An all-reduce of all hosts, through the switch, and nothing else."""
    RACKS = "racks"
    """The same over two levels, with trunks as fast as one host's link."""
    PLAIN = "plain"
    """At each bottleneck some plain flows, and one more in the place of a ring's."""
    SHARED = "shared"
    """The same with a ring, one flow of which is at each bottleneck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What all scenarios have in common. Times are those of the simulated hosts."""

    hosts: int = 64
    rate_bps: int = 40 * 10**9
    delay_ns: int = 1000
    """Of each link, one way."""
    buffer_bytes: int = 12_000_000
    """Of the queue of each link; a frame that finds so many bytes is lost."""
    mtu: int = 4096
    message_bytes: int = 42 * 4096
    """About the 170 packets of 1 KB of NetReduce's evaluation (section 5.1)."""
    window_messages: int = 2
    warm_up_ns: int = 5 * MS
    duration_ns: int = 10 * MS
    seed: int = 1
    dcqcn: DcqcnConfig = field(default_factory=DcqcnConfig)
    marking: Marking = field(default_factory=Marking)

    def of(self, kind: Kind) -> Setup:
        """A ring that has all links for itself is the same from the first round trip on, and costs most."""
        if kind not in (Kind.RING, Kind.RACKS):
            return self
        return replace(self, warm_up_ns=0, duration_ns=min(self.duration_ns, MS))

    @property
    def begin_ns(self) -> int:
        """When measuring begins."""
        return 3 * _RING_READY_NS + self.warm_up_ns

    @property
    def end_ns(self) -> int:
        return self.begin_ns + self.duration_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    kind: Kind
    dcqcn: bool
    bottlenecks: int = 1
    others: int = 3
    """Plain flows at each bottleneck, beside the one that is compared."""
    ring_hosts: int = 0
    """0: all hosts."""

    @property
    def name(self) -> str:
        where = f", {self.bottlenecks} of {self.ring_hosts}" if self.kind in (Kind.PLAIN, Kind.SHARED) else ""
        return f"{self.kind}{where}"


def world_of(scenario: Scenario, setup: Setup) -> WorldConfig:
    link = LinkConfig(
        rate_bps=setup.rate_bps,
        delay_ns=setup.delay_ns,
        queue_frames_max=setup.buffer_bytes // _FRAME_BYTES_OF_QUEUE,
        marking=setup.marking,
    )
    has_ring = scenario.kind in (Kind.RING, Kind.RACKS, Kind.SHARED)
    topology = _racks(setup.hosts, link) if scenario.kind is Kind.RACKS else None
    return WorldConfig(
        seed=str(setup.seed),
        jobs=(_job(scenario, setup),) if has_ring else (),
        links=(link,) * setup.hosts,
        flows=tuple(_flows(scenario, setup)),
        weather_until_ns=setup.end_ns,
        heal_ns=60 * S,
        events_max=10**9,
        congestion=setup.dcqcn if scenario.dcqcn else None,
        topology=topology,
        to_root=topology is not None,
    )


def ring_of(scenario: Scenario, setup: Setup) -> tuple[int, ...]:
    """Hosts of the ring, or of what is in its place: a rank writes to the next one."""
    return tuple(range(scenario.ring_hosts or setup.hosts))


def bottlenecks_of(scenario: Scenario, setup: Setup) -> tuple[int, ...]:
    """Hosts whose links are measured."""
    if scenario.kind is Kind.INCAST:
        return (0,)
    if scenario.kind in (Kind.RING, Kind.RACKS):
        return ring_of(scenario, setup)
    ring = ring_of(scenario, setup)
    return ring[:: len(ring) // scenario.bottlenecks][: scenario.bottlenecks]


def _racks(hosts: int, link: LinkConfig) -> Topology:
    leaves = 4
    switches = (SwitchConfig("root"), *(SwitchConfig(f"leaf{n}", 0, link) for n in range(leaves)))
    return Topology(switches, tuple(1 + host * leaves // hosts for host in range(hosts)))


def _job(scenario: Scenario, setup: Setup) -> JobConfig:
    ring = ring_of(scenario, setup)
    # It must last until the end of the measuring: where it shares links, as much as its share comes to, and
    # half of that more.
    share = 1.0 if scenario.kind is not Kind.SHARED else 1.5 / (1 + scenario.others)
    lasts_s = (setup.end_ns - _RING_READY_NS) / S
    nbytes = 4 * setup.window_messages * setup.message_bytes
    count = max(3, -int(-share * lasts_s * setup.rate_bps / 8 // nbytes))
    return JobConfig(
        JOB,
        ring,
        (nbytes // 4,) * count,
        mtu=setup.mtu,
        window_messages=setup.window_messages,
        message_packets=setup.message_bytes // setup.mtu,
        depth=2,
        transport_timeout=14,
        stall_ns=S,
        timeout_ns=30 * S,
    )


def _flows(scenario: Scenario, setup: Setup) -> list[FlowConfig]:
    plain = FlowConfig(
        0,
        1,
        begin_ns=2 * _RING_READY_NS,
        until_ns=setup.end_ns,
        message_bytes=setup.message_bytes,
        window_messages=setup.window_messages,
        mtu=setup.mtu,
    )
    if scenario.kind is Kind.INCAST:
        # One message of 64 KiB more than one that is on its way: what all senders let out at first fits.
        return [
            replace(plain, sender=host, receiver=0, message_bytes=64 << 10) for host in range(1, setup.hosts)
        ]
    if scenario.kind not in (Kind.PLAIN, Kind.SHARED):
        return []
    ring, flows = ring_of(scenario, setup), []
    senders = iter(range(len(ring), setup.hosts))
    for host in bottlenecks_of(scenario, setup):
        flows += [replace(plain, sender=next(senders), receiver=host) for _ in range(scenario.others)]
        if scenario.kind is Kind.PLAIN:
            flows.append(replace(plain, sender=ring[host - 1], receiver=host))
    return flows
