"""Configuration, events, actions and views of :mod:`inaproto.core.rendezvous.fabric.control`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from inaproto.core.rendezvous.events import RoomMade, Send
from inaproto.core.rendezvous.fabric_tree import FabricSwitch
from inaproto.core.switch.accelerator import InstallRing, RemoveRing, RingFault, RingRefused
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.errors import LocalMisuse
from inaproto.units import S
from inaproto.wire.control_messages import Start
from inaproto.wire.messages.ina import InaStands
from inaproto.wire.messages.trees import FabricTree, Link


@dataclass(frozen=True, slots=True)
class TreeControlConfig:
    switches: tuple[FabricSwitch, ...]
    hosts: Mapping[bytes, str]
    """The switch at which each host is, by its IP address; of others ``HostSeen`` tells."""
    hosts_max: int = 1 << 16
    """Hosts that are remembered; the one seen longest ago makes room."""
    retired_ns: int = 60 * S
    """How long a switch that restarts is told of a ring that it had."""
    retired_max: int = 1024
    """Rings that are remembered for that; the oldest makes room."""
    wait_ns: int = 5 * S
    """How long a ring waits for a switch or a trunk without which its ranks cannot reach each other."""

    def __post_init__(self) -> None:
        seen: dict[str, bool] = {}
        """Whether each is in the fabric's own tree."""
        for switch in self.switches:
            is_first = not seen
            above = [link.above for link in switch.links]
            if switch.name in seen or any(name not in seen for name in above) or (is_first and above):
                raise LocalMisuse(f"fabric: {switch.name} is there twice, or before the one above it")
            if len(set(above)) < len(above):
                raise LocalMisuse(f"fabric: {switch.name} has two links to one switch")
            if switch.above is None and switch.further:
                raise LocalMisuse(
                    f"fabric: {switch.name} has further links up, and none of the fabric's tree"
                )
            if switch.above is not None and not seen[switch.above]:
                raise LocalMisuse(f"fabric: {switch.name} is below {switch.above}, which is a further root")
            if switch.above is None and not switch.aggregates and not is_first:
                raise LocalMisuse(f"fabric: {switch.name}, a further root, must aggregate")
            seen[switch.name] = is_first or switch.above is not None
        if not self.switches or not self.switches[0].aggregates:
            raise LocalMisuse("fabric: the root, which is the first switch, must aggregate")
        strange = [name for name in self.hosts.values() if not seen.get(name, False)]
        if strange:
            raise LocalMisuse(f"fabric: a host is at {strange[0]}, which is no switch of its tree")


# --- events


@dataclass(frozen=True, slots=True)
class SwitchArrived:
    """A switch has a control session (again); it has no ring."""

    switch: str
    is_trunk_up: bool = True
    """Whether its trunks to every switch above are up, until ``TrunkSaid``; switches that will say it come
    with False."""
    is_selective: bool = True
    """Whether it sends results of a selective ring of several switches as they are done."""


@dataclass(frozen=True, slots=True)
class TrunkSaid:
    """What a switch that is connected says of its trunk to a switch above."""

    switch: str
    error: str
    """Why it is down; empty: it is up."""
    above: str = ""
    """Empty: to the one of the fabric's own tree."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The deadline may have."""


@dataclass(frozen=True, slots=True)
class SwitchLost:
    """The session of a switch broke: whatever it knew is gone."""

    switch: str
    reason: str


@dataclass(frozen=True, slots=True)
class HostSeen:
    """A host is (now) at a switch."""

    host: bytes
    """IP address, 4 bytes."""
    switch: str
    chooses_port: bool = False
    """Whether it sends from a UDP source port that it is told."""


@dataclass(frozen=True, slots=True)
class RingWanted:
    """The rendezvous has all ranks of a job; ``spec`` has no role yet."""

    spec: RingSpec
    tree: FabricTree | None = None
    """Along which it goes; None: the fabric's own tree."""


@dataclass(frozen=True, slots=True)
class RingGone:
    """The rendezvous has given the ring up."""

    ring_id: int


@dataclass(frozen=True, slots=True)
class StartAsked:
    """The rendezvous tells a host that a ring may start, or go on."""

    start: Send

    @property
    def ring_id(self) -> int:
        message = self.start.message
        if isinstance(message, InaStands):
            return message.ring_id
        return message.ina_ring_id or message.ring_id if isinstance(message, Start) else 0


@dataclass(frozen=True, slots=True)
class Installed:
    """A switch has the ring."""

    switch: str
    ring_id: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The accelerator of a switch did not take the ring."""

    switch: str
    refusal: RingRefused

    @property
    def ring_id(self) -> int:
        return self.refusal.ring_id


@dataclass(frozen=True, slots=True)
class Faulted:
    """The accelerator of a switch stopped the ring."""

    switch: str
    fault: RingFault

    @property
    def ring_id(self) -> int:
        return self.fault.ring_id


SwitchEvent = SwitchArrived | SwitchLost | TrunkSaid | Installed | Refused | Faulted
"""What switches say."""
RingEvent = Installed | Refused | Faulted | StartAsked | RingGone
TreeEvent = SwitchEvent | TimePassed | HostSeen | RingWanted | StartAsked | RingGone


# --- actions


@dataclass(frozen=True, slots=True)
class Order:
    """For the accelerator of a switch; orders for one switch arrive in order."""

    switch: str
    order: InstallRing | RemoveRing


@dataclass(frozen=True, slots=True)
class Admit:
    """The switch may open its ports."""

    switch: str


@dataclass(frozen=True, slots=True)
class Tell:
    """An event for the rendezvous."""

    event: RingFault | RingRefused | RoomMade


@dataclass(frozen=True, slots=True)
class Release:
    """Send what the rendezvous wanted to send."""

    start: Send


TreeAction = Order | Admit | Tell | Release


# --- views


@dataclass(frozen=True, slots=True)
class TreeView:
    """A picture of one ring."""

    ring_id: int
    phase: str
    switches: tuple[str, ...]
    missing: tuple[str, ...]
    """Those that have not said yet that they have the ring."""
    waits_for: str = ""
    """Why it is not being installed."""


@dataclass(frozen=True, slots=True)
class TreeControlView:
    present: tuple[str, ...]
    """Switches."""
    rings: tuple[TreeView, ...]
    counters: Mapping[str, int] = field(default_factory=dict)
    """Monotonic: ``trees_made``, ``trees_refused``, ``trees_waited`` (for a switch or a trunk),
    ``switches_lost``, ``trunks_down`` (said to be)."""
    trunks_down: Mapping[Link, str] = field(default_factory=dict)
    """Why, by its two switches, the lower first."""
