"""Events, actions, counters and per-ring state of the accelerator
(:mod:`inaproto.core.switch.accelerator`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from inaproto.core.switch.aggregator import AggregatorArray
from inaproto.core.switch.inlets import RingInlet
from inaproto.core.switch.lookup_table import Flow
from inaproto.core.switch.packet_memory import Lender
from inaproto.core.switch.region import Region
from inaproto.core.switch.ring_spec import NO_TURN, RingSpec
from inaproto.errors import Blame
from inaproto.units import MS, Frames, Instant, PortId, S
from inaproto.wire.ina_header import InaHeader

Egress = list[tuple[tuple[int, ...], bytes]]
"""Ports by which the results of each rank leave, and the VLAN tag that they get."""
TURN_LOST: Final = "turn lost"
"""Rule of a fault: another ring of its pool took its slots while messages were in them. No rank disagrees."""


@dataclass(frozen=True, slots=True)
class AcceleratorConfig:
    rings_max: int = 64
    memory_bytes_max: int = 1 << 30
    """All aggregator arrays together; a pool counts once for each ring that it takes at once."""
    output_bytes_max: int = 64 << 20
    """Packets of one step that are kept in reused memory."""
    addresses_max: int = 4096
    replay_fill_packets_max: int = 32
    """Longest hole in a resend that is filled from kept results."""
    early_packets_max: int = 4096
    """Packets that wait for the first one of their message: of 4 KiB each, 16 MiB."""
    early_flow_packets_max: int = 1024
    """Those of one connection: what a link of 10 Gbit/s brings in 1 ms, in packets of 1 KiB."""
    early_ns: int = 10 * MS
    """How long they wait: longer than paths through a fabric differ, and far shorter than the time after
    which a NIC sends again unasked."""
    early_selective_ns: int = 250 * MS
    """The same on a selective ring, whose NICs send again what was lost alone: longer than their first
    timers, which bring a first packet that was lost."""
    retired_ns: int = 60 * S
    """How long nothing passes on the connections of a removed ring."""
    retired_max: int = 65_536
    """Connections of removed rings that are remembered."""
    ring_ports: frozenset[PortId] = frozenset()
    """Ports of trunks for rings alone: nothing else comes in or goes out there."""
    ports_up: frozenset[PortId] = frozenset()
    """Ports of all trunks to switches above: packets of a rank never come from there, nor do its results
    leave."""


class FramesArrived(NamedTuple):
    """Blocks of frames in arrival order, as a port received them at once."""

    port: PortId
    blocks: Sequence[Frames]


class RoundArrived(NamedTuple):
    """What came at several ports, which were looked at together."""

    arrivals: Sequence[FramesArrived]


@dataclass(frozen=True, slots=True)
class PortUp:
    port: PortId
    lender: Lender | None = field(default=None, repr=False, compare=False)
    """Its memory for results, if it has some."""


@dataclass(frozen=True, slots=True)
class PortDown:
    port: PortId


@dataclass(frozen=True, slots=True)
class InstallRing:
    spec: RingSpec


@dataclass(frozen=True, slots=True)
class RemoveRing:
    ring_id: int


Event = FramesArrived | RoundArrived | PortUp | PortDown | InstallRing | RemoveRing


class EmitFrames(NamedTuple):
    """Send ``frames`` on ``port``.

    They are views of the frames that arrived or of memory that the accelerator uses again: copy them
    before the next step.
    """

    port: PortId
    frames: Frames


@dataclass(frozen=True, slots=True)
class RingFault:
    """The ring cannot go on: ``rank`` disagrees with the others. ``rule`` is a stable short name."""

    ring_id: int
    rank: int
    rule: str
    evidence: str


@dataclass(frozen=True, slots=True)
class RingRefused:
    """The ring was not installed; it gets no acceleration here."""

    ring_id: int
    reason: str
    until_room: bool = False
    """Trying again is of no use before it is said that there is room."""
    until_switch: bool = False
    """Or before another switch is there, or a link: the present ones will never take it."""


class ForLink(NamedTuple):
    """The far end of a link says something of the link, and to nobody else."""

    port: PortId
    frames: Frames


Action = EmitFrames | ForLink | Blame | RingFault | RingRefused


@dataclass(frozen=True, slots=True)
class RingReady:
    """The ring is in: its packets are summed from now on."""

    ring_id: int


@dataclass(frozen=True, slots=True)
class AcceleratorLost:
    """It does not answer any more, and has no rings for all that is known."""

    reason: str


@dataclass(slots=True)
class Counters:
    """Monotonic; in packets unless named otherwise."""

    aggregated_in: int = 0
    results_out: int = 0
    replayed: int = 0
    replay_filled: int = 0
    gaps_signalled: int = 0
    losses_told: int = 0
    """Times that a rank was told what has come of its packets (docs/protocol.md 6.14)."""
    naks_in: int = 0
    """NAKs of receivers that were answered here."""
    bridged: int = 0
    """Packets of no ring, left to the bridge."""
    for_links: int = 0
    """Those among them for the far end of a link: pauses, LACP, LLDP, spanning trees. They leave nowhere."""
    sums_up: int = 0
    """Sums sent to the switch above, for the first time. All down to ``links_down`` is of rings that span
    switches."""
    sums_up_again: int = 0
    results_in: int = 0
    """From the switch above."""
    results_down: int = 0
    """Results sent to the switches below, for the first time, each counted."""
    results_down_again: int = 0
    notes_in: int = 0
    notes_out: int = 0
    steered: int = 0
    """Sent unchanged towards the switch that sums."""
    strange_addresses: int = 0
    """Taken for their key, though their Ethernet address was not that of their rank, nor of a router that
    results go to already."""
    early: int = 0
    """Packets that came before the first one of their message, and waited for it."""
    early_taken: int = 0
    """Those among them for which it came in time. The others are dropped."""
    path_probes: int = 0
    """Questions of hosts whether frames of a length come through, which were answered."""
    links_down: int = 0
    """Packets for a switch whose port is down: not sent."""
    pool_takeovers: int = 0
    """Turns that began."""
    pool_conflicts: int = 0
    """Rings that were stopped because their turn was taken while messages were unfinished."""
    stale_turns: int = 0
    """Packets and notes of turns that are over."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Packets dropped, by rule."""

    def drop(self, rule: str, packets: int) -> None:
        self.dropped[rule] = self.dropped.get(rule, 0) + packets


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool at one switch; ``holders`` and ``epochs`` are of each of its ``capacity`` places."""

    rings: tuple[int, ...]
    capacity: int
    memory_bytes: int
    holders: tuple[int | None, ...]
    """Rings whose slots they are; None: nobody's."""
    epochs: tuple[int, ...]
    """The highest turns seen; -1: none yet."""
    takeovers: int
    conflicts: int
    stale: int


@dataclass(frozen=True, slots=True)
class AcceleratorView:
    rings: dict[int, dict[str, int | bool]]
    counters: Counters
    memory_bytes: int
    connections: int
    pools: dict[str, PoolView] = field(default_factory=dict)
    waiting: int = 0
    """Packets that wait for the first one of their message."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(slots=True)
class RingState:
    """A ring that is installed."""

    spec: RingSpec
    array: AggregatorArray
    flows: list[Flow]
    failed: bool = False
    is_repaired: bool = False
    """The switch looks after losses of some of its flows itself."""
    lossy_until: int = 0
    """Losses are expected in messages before this one."""
    dirty: dict[int, Region] = field(default_factory=dict)
    """Regions that got packets in this step, by serial."""
    opened_by: tuple[int, bytes, InaHeader, int] | None = None
    """A header that opened a message, with the epoch that was the ring's, and its bytes less serial numbers
    and rank: another one that differs in these alone needs no further look. The last is its number."""
    egress: tuple[int, list[tuple[bytes, int, bytes]], Egress] | None = None
    """How its results leave: after how many changes of the bridge, for which receivers, ports
    and tags of its flows."""
    inlet: RingInlet | None = None
    """What kernels know of it."""
    epoch: int = field(init=False)
    """Epoch of its INA headers: its own, or that of its turn."""

    def __post_init__(self) -> None:
        self.epoch = self.spec.epoch if self.spec.pool is None else NO_TURN

    @property
    def is_between_messages(self) -> bool:
        """Whether a turn may end here: nothing has begun that is not finished."""
        return self.array.is_between_messages

    @property
    def delivered(self) -> Sequence[Flow]:
        """Connections whose packets come in here, and whose results leave here."""
        return self.flows


class SwitchAccelerator(Protocol):
    """What sums in a switch: the software core, or hardware that keeps its rules."""

    @property
    def rings(self) -> Mapping[int, RingState]:
        """As far as they can be looked into: for interrupt moderation."""
        ...

    @property
    def addresses(self) -> Mapping[bytes, int]:
        """Port behind which each known Ethernet address is."""
        ...

    def step(self, event: Event, now: Instant) -> list[Action]:
        """Frames in order, and orders about rings and ports; it never waits."""
        ...

    def view(self) -> AcceleratorView: ...


MakeAccelerator = Callable[[AcceleratorConfig], SwitchAccelerator]


SaidLater = RingReady | RingRefused | RingFault | Blame | AcceleratorLost


@runtime_checkable
class TakesAtMost(Protocol):
    """A :class:`SwitchAccelerator` that takes rings of a certain MTU at most."""

    @property
    def mtu_max(self) -> int:
        """Payload bytes of a packet, at most; 0: it is not known now."""
        ...


@runtime_checkable
class AnswersLater(Protocol):
    """A :class:`SwitchAccelerator` elsewhere, with ports of its own: no frames pass the switch's process.

    What it has done of an order it says later. ``step`` refuses a ring at once where it cannot be reached.
    """

    async def run(self, say: Callable[[SaidLater], None]) -> None:
        """Do what is ordered, one after the other, and say it, until cancelled."""
        ...

    def status(self) -> dict[str, Any]:
        """What it is and whether it answers; msgpack and JSON can carry it."""
        ...
