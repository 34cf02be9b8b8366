"""Events, actions and views of :mod:`inaproto.core.rendezvous.rendezvous`.

What the accelerator says of a ring is an event here, and what it is told of a ring an action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NewType

from inaproto.core.rendezvous.fabric_tree import FabricSwitch
from inaproto.core.rendezvous.path_costs import IN_DEGREE_DEFAULT, LinkFigures
from inaproto.core.switch.accelerator import InstallRing, RemoveRing, RingFault, RingRefused
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import PSN_BITS, S
from inaproto.wire.control_messages import (
    Broken,
    Calls,
    Error,
    Gone,
    Halted,
    Hello,
    Left,
    Member,
    Message,
    OpStarted,
    RankRefused,
    Ready,
    Regroup,
)
from inaproto.wire.messages.ina import InaParked
from inaproto.wire.messages.switch import PoolSpec
from inaproto.wire.messages.trees import FabricTree, TreeState, TreeWished

SessionId = NewType("SessionId", int)
"""One connection of a host daemon; never used twice."""


@dataclass(frozen=True, slots=True)
class RendezvousConfig:
    """Raises ``LocalMisuse`` if rings that it allows do not fit in the PSN space."""

    jobs_max: int = 64
    """Jobs at once, and so rings."""
    ranks_max: int = 64
    """Ranks of a job."""
    ranks_per_host_max: int = 64
    mtu_max: int = 4096
    ring_packets_max: int = 1 << 20
    """2 x window x packets a message: the slots of a ring in the accelerator; half the PSNs at most."""
    epoch: int = 1
    first_ring_id: int = 1
    boot_id: str = ""
    """As hosts hear it in ``Welcome``."""
    recover_ns: int = 0
    """How long a job whose ring has ended waits for its ranks to go on; 0: it fails at once."""
    park_ns: int = 10 * S
    """How long hosts may take to park a ring; then its generation ends. 0, or no ``recover_ns``: for ever."""
    regroupings_max: int = 64
    """Elastic jobs whose survivors regroup, at once."""
    links: LinkFigures | None = None
    """Figures by which the hosts' path is chosen; None: a chain where one can follow the plan, else an
    overlay."""
    switch_rate_bps: int = 0
    """How fast switches add up what each host sends, with measured links; 0: as fast as the links are."""
    tensor_bytes: int = 1 << 20
    """For which it is chosen."""
    in_degree: int = IN_DEGREE_DEFAULT
    """Bound of overlays whose costs are not known."""
    switches: tuple[FabricSwitch, ...] = ()
    """The fabric, whose trees say in which order every path of a job adds, so that all give the same bytes;
    empty: one switch, which adds all in order."""
    along: FabricTree | None = None
    """The tree along which rings go of which nothing is wished; None: the fabric's own."""
    root: str = ""
    """Root of the fabric's own tree: rings on trees with that root have ``pool``, others one for each
    root."""
    pool: PoolSpec | None = None
    """Pool whose slots the rings of jobs on the path ``shared`` have by turns; None: each has slots of its
    own."""
    shards: int = 0
    """Accelerators in processes of their own, which a switch that is alone has beside that of its control
    plane."""

    def __post_init__(self) -> None:
        if self.ring_packets_max > 1 << (PSN_BITS - 1):
            raise LocalMisuse(
                f"ring_packets_max is {self.ring_packets_max}; half the PSN space holds {1 << (PSN_BITS - 1)}"
            )


# --- events


@dataclass(frozen=True, slots=True)
class HostArrived:
    session: SessionId
    hello: Hello


@dataclass(frozen=True, slots=True)
class SessionEnded:
    session: SessionId
    reason: str


@dataclass(frozen=True, slots=True)
class MemberAsked:
    """A host asks for a seat for one of its processes."""

    session: SessionId
    message: Member
    ring_key: int
    """Random 64 bits; the key of the ring if this member completes it."""


@dataclass(frozen=True, slots=True)
class MemberReady:
    session: SessionId
    message: Ready


@dataclass(frozen=True, slots=True)
class MemberLeft:
    session: SessionId
    message: Left


@dataclass(frozen=True, slots=True)
class MemberGone:
    session: SessionId
    message: Gone


@dataclass(frozen=True, slots=True)
class MemberRefused:
    """A host, or what guards the control plane, has not taken a process as a rank: no seat is asked for."""

    session: SessionId
    message: RankRefused


@dataclass(frozen=True, slots=True)
class OperationStalled:
    session: SessionId
    message: OpStarted


@dataclass(frozen=True, slots=True)
class MemberCalls:
    session: SessionId
    message: Calls


@dataclass(frozen=True, slots=True)
class MemberBroken:
    session: SessionId
    message: Broken


@dataclass(frozen=True, slots=True)
class MemberHalted:
    session: SessionId
    message: Halted
    ring_key: int
    """Random 64 bits; the key of the next ring if this member completes it."""


@dataclass(frozen=True, slots=True)
class MemberParked:
    """Nothing is on its way at that host on the ring that it was asked to park."""

    session: SessionId
    message: InaParked


@dataclass(frozen=True, slots=True)
class RingStands:
    """All switches have that ring, and its hosts were told."""

    ring_id: int


@dataclass(frozen=True, slots=True)
class MemberRegroups:
    """A survivor of an elastic job goes on."""

    session: SessionId
    message: Regroup


@dataclass(frozen=True, slots=True)
class TreesWished:
    """All wishes there are, instead of those before. What is wished of jobs that are not here waits for them.

    A job of which nothing is wished, or nothing more, keeps the ring that it has; its next ones take the
    fabric's own tree.
    """

    wishes: tuple[TreeWished, ...]


@dataclass(frozen=True, slots=True)
class RoomMade:
    """The switches may take rings now that they have refused."""


@dataclass(frozen=True, slots=True)
class AcceleratorTakes:
    """The largest MTU of a ring that the accelerator of a switch that is alone takes, known from now on."""

    mtu: int
    """0: any, or it is not known."""


@dataclass(frozen=True, slots=True)
class Woke:
    """The deadline may have passed."""


@dataclass(frozen=True, slots=True)
class ShuttingDown:
    """The switch ends; whoever has a ring is told."""

    reason: str


MemberEvent = (
    MemberReady
    | MemberLeft
    | MemberGone
    | MemberCalls
    | MemberBroken
    | MemberHalted
    | MemberParked
    | OperationStalled
)


@dataclass(frozen=True, slots=True)
class LinkMeasured:
    """Between two hosts."""

    hosts: tuple[str, str]
    latency_ns: int
    rate_bps: int


HostEvent = (
    HostArrived
    | AcceleratorTakes
    | LinkMeasured
    | SessionEnded
    | MemberAsked
    | MemberEvent
    | MemberRefused
    | MemberRegroups
    | TreesWished
    | Woke
    | ShuttingDown
)
"""What hosts, a controller, the clock and the switch itself say."""
RingSaid = RingFault | RingRefused | RingStands | RoomMade
"""What becomes of rings in the switches."""
RendezvousEvent = HostEvent | RingSaid


# --- actions


@dataclass(frozen=True, slots=True)
class WelcomeHost:
    """Answer its hello."""

    session: SessionId
    hello_id: int


@dataclass(frozen=True, slots=True)
class RefuseHost:
    """Send ``error`` and end the session."""

    session: SessionId
    error: Error


@dataclass(frozen=True, slots=True)
class Send:
    session: SessionId
    message: Message


@dataclass(frozen=True, slots=True)
class Noted:
    """Something an operator wants to read in the log."""

    text: str
    is_problem: bool = False


@dataclass(frozen=True, slots=True)
class WantRing:
    """``InstallRing`` on that tree of the fabric."""

    spec: RingSpec
    tree: FabricTree


RendezvousAction = WelcomeHost | RefuseHost | Send | InstallRing | WantRing | RemoveRing | Noted | Blame
"""What is performed in order: ``InstallRing`` comes before the members of the ring hear of it."""


# --- views


@dataclass(frozen=True, slots=True)
class RankView:
    rank: int
    host: str
    pid: int
    state: str
    """``here``, ``ready``, ``left``, or ``away``: its host has lost its connection."""
    stalled_in: int | None
    """Operation that the rank last reported to be stuck in."""


@dataclass(frozen=True, slots=True)
class JobView:
    name: str
    phase: str
    size: int
    ring_id: int
    """0 while joining."""
    ranks: tuple[RankView, ...]
    missing: tuple[int, ...]
    plan: str = ""
    """How it is summed: nested lists of ranks, a list for each host of several; empty while joining."""
    path: str = "switch"
    """``switch``; ``shared``: the hosts or the switches, each operation by one of them; or ``chain``,
    ``overlay`` or ``ring``: the hosts sum themselves, for the reason ``fallback``."""
    fallback: str = ""
    recoveries: int = 0
    """Rings of this job that ended, with another after them."""
    last_recovery: str = ""
    """Why the last of them ended."""
    exact_plan: bool = True
    """It is summed as ``plan`` says: not on the path ``ring``."""
    ina_ring_id: int = 0
    """On the path ``shared``: the ring through the switches that stands beside the other; else 0."""
    costs: str = ""
    """What its path is predicted to take, against others that it may take; empty: nobody knows."""
    links: str = ""
    """What that is computed from: figures of links, ``configured`` or ``measured``."""


@dataclass(frozen=True, slots=True)
class RegroupingView:
    """A job that has lost a rank, while its survivors find each other."""

    name: str
    next_name: str
    """Name of the job that they join next; empty until it is decided who does."""
    phase: str
    came: tuple[int, ...]
    awaited: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RendezvousView:
    hosts: tuple[str, ...]
    jobs: tuple[JobView, ...]
    counters: Mapping[str, int]
    regroupings: tuple[RegroupingView, ...] = ()
    trees: tuple[TreeState, ...] = ()
