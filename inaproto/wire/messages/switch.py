"""Control messages between switches and the control plane at the root of their fabric (NetReduce 3.3).

switch -> its shards: of these RingInstall, RingRemove, SwitchAdmit and Status, and LinkPaused.
switch -> root: SwitchHello, SwitchOpened, TrunkReport, RingInstalled, InstallRefused, RingFaulted, Ping,
Pong, Status.
root -> switch: SwitchWelcome, RingInstall, RingRemove, SwitchAdmit, Error, Ping, Pong, StatusReply.

A switch says hello, is told of every ring that it has or may have had, and is admitted: only then do its
ports open. Checks are of form alone; whether a ring's parts fit each other is for who makes a
:class:`~inaproto.core.switch.ring_spec.RingSpec` of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from inaproto.errors import LocalMisuse
from inaproto.units import PortId
from inaproto.wire.messages.fields import ALWAYS, Integer, Many, Record, Refused, Text
from inaproto.wire.messages.types import (
    U16,
    U24,
    U32,
    U64,
    Explanation,
    Flag,
    Ip,
    Mac,
    Message,
    Mtu,
    Name,
    Positive16,
    Ranks,
    Secret,
    SwitchIp,
)

RING_RANKS_MAX: Final = 1 << 10
FRAMES_TOLD_MAX: Final = 0xFFFF_FFFF
PsnBits = Annotated[int, Integer(1, 24)]
_Port = Annotated[PortId, Integer(0, 0xFFFF_FFFF)]
MessageIdBits = Annotated[int, Integer(1, 32)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRecord:
    """The connection on which a rank sends to its successor."""

    src_ip: Ip
    dst_ip: Ip
    dst_qp: U24
    src_mac: Mac | None = None
    dst_mac: Mac | None = None
    """Ethernet addresses of the two NICs; None: not known."""
    src_qp: U24 = 0
    """The rank's own queue pair, where its NIC may be told what has come to the switch; 0: it may not."""


@dataclass(frozen=True, slots=True)
class VirtualConnection:
    """One end of a switch-to-switch connection. It has no retransmission of its own."""

    peer: Name
    port: _Port
    """Port of this switch, towards the peer."""
    here_mac: Mac
    here_ip: SwitchIp
    there_mac: Mac
    there_ip: SwitchIp
    qp: U24
    """Destination queue pair of its packets, both ways."""
    rank: Annotated[U16, ALWAYS] = 0
    """Stands for the lower of the two switches, in headers and faults: the first rank below it. Both ends
    must have the same."""


_Connection = Annotated[VirtualConnection, Record(VirtualConnection)]


@dataclass(frozen=True, slots=True)
class InputRecord:
    """What a switch adds up: a rank, or what comes from a switch below; just one of them."""

    rank: U16 | None = None
    link: _Connection | None = None


@dataclass(frozen=True, slots=True)
class NoteRecord:
    """Where notes of a rank go on."""

    rank: U16
    link: _Connection


class InputKind(Record):
    """Kind of an input, which travels as an ``InputRecord``."""

    def take(self, value: Any) -> int | VirtualConnection:
        said: InputRecord = super().take(value)
        if said.rank is not None and said.link is None:
            return said.rank
        if said.link is not None and said.rank is None:
            return said.link
        raise Refused("is wrong: an input of a ring is a rank or a connection, just one of them")

    def give(self, value: int | VirtualConnection) -> Any:
        return super().give(InputRecord(rank=value) if isinstance(value, int) else InputRecord(link=value))


class NoteKind(Record):
    """Kind of a rank with where its notes go on, which travel as a ``NoteRecord``."""

    def take(self, value: Any) -> tuple[int, VirtualConnection]:
        said: NoteRecord = super().take(value)
        return said.rank, said.link

    def give(self, value: tuple[int, VirtualConnection]) -> Any:
        return super().give(NoteRecord(*value))


@dataclass(frozen=True, slots=True)
class Role:
    """What one switch does for one ring that spans several."""

    inputs: Annotated[
        tuple[int | VirtualConnection, ...], Many(InputKind(InputRecord), RING_RANKS_MAX), ALWAYS
    ] = ()
    """In the order of addition; empty for a switch that steers."""
    parent: _Connection | None = None
    """Where its sums go, and its results come from; None at the root."""
    delivers: Annotated[Ranks, ALWAYS] = ()
    """Ranks whose connection ends below this switch with no other aggregating switch in between."""
    notes: Annotated[
        tuple[tuple[int, VirtualConnection], ...], Many(NoteKind(NoteRecord), RING_RANKS_MAX), ALWAYS
    ] = ()
    """For ranks whose notes pass through here, and end elsewhere: where they go on."""
    steered: Annotated[Ranks, ALWAYS] = ()
    """Ranks whose packets it sends to ``steer_to``, unchanged."""
    steer_to: _Port | None = None
    passes: Annotated[tuple[VirtualConnection, ...], Many(Record(VirtualConnection), RING_RANKS_MAX)] = ()
    """Switches below one that steers whose sums go by it to where it steers. ``there`` is the one below,
    ``port`` leads to it: what comes back for it goes there."""
    below: Annotated[tuple[PortId, ...], Many(Integer(0, 0xFFFF_FFFF), RING_RANKS_MAX)] | None = None
    """Ports to the switches next below it in the tree of a ring beside the fabric's own tree. Packets of
    ranks may come from there, and where they come from says nothing of where ordinary traffic finds their
    hosts. None: all trunks of the ring are the fabric's own."""

    @property
    def children(self) -> tuple[VirtualConnection, ...]:
        """The switches among the inputs; each gets the results."""
        return tuple(child for child in self.inputs if isinstance(child, VirtualConnection))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks among the inputs."""
        return tuple(rank for rank in self.inputs if isinstance(rank, int))

    @property
    def learns(self) -> tuple[int, ...]:
        """Delivered ranks whose packets are not seen here: their headers come in notes."""
        return tuple(rank for rank in self.delivers if rank not in self.ranks)


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """Slots that several rings share by turns (:mod:`inaproto.core.switch.slot_pools`); ``capacity`` rings at
    once.

    Raises ``LocalMisuse`` for a pool without name or place.
    """

    name: Name
    capacity: Positive16 = 1

    def __post_init__(self) -> None:
        if not self.name or self.capacity < 1:
            raise LocalMisuse(f"a pool named {self.name!r} that takes {self.capacity} rings at once")


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchHello(Message, type="switch_hello"):
    switch: Name
    """As the fabric file names it."""
    boot_id: Name
    fabric: Secret = ""
    """Digest of the fabric as this switch knows it; both sides must know the same one."""
    selective: Flag = False
    """It sends results of a selective ring as they are done, of one that spans several switches, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchWelcome(Message, type="switch_welcome"):
    boot_id: Name
    """Boot of the control plane: trunks join switches that the same one has admitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchAdmit(Message, type="switch_admit"):
    """The switch has heard of all rings that it may have had, and opens its ports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchOpened(Message, type="switch_opened"):
    """Answer to ``SwitchAdmit``: hosts may attach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkReport(Message, type="trunk_report"):
    """Says of the trunk to a switch above whether rings may need it."""

    error: Explanation = ""
    """Why it is down; empty: it is up."""
    above: Annotated[str, Text(128)] = ""
    """Empty: to the one of the fabric's own tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingInstall(Message, type="ring_install"):
    """The switch gets a ring; ``flows`` are those of its ranks, in order."""

    ring_id: U32
    epoch: U32
    ring_key: U64 = field(repr=False)
    window_messages: Positive16
    message_packets: Positive16
    mtu: Mtu
    flows: Annotated[tuple[FlowRecord, ...], Many(Record(FlowRecord), RING_RANKS_MAX)]
    psn_bits: PsnBits = 24
    msg_id_bits: MessageIdBits = 32
    role: Annotated[Role, Record(Role)] | None = None
    """None: it does all."""
    pool: Annotated[PoolSpec, Record(PoolSpec)] | None = None
    """None: slots of its own."""
    first_message: U64 = 0
    """Message with which its ranks go on."""
    job: Secret = ""
    """Job whose ring it is; empty: nobody said."""
    selective: Flag = False
    """All its NICs keep what comes behind a gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingRemove(Message, type="ring_remove"):
    ring_id: U32


@dataclass(frozen=True, slots=True, kw_only=True)
class RingInstalled(Message, type="ring_installed"):
    ring_id: U32


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRefused(Message, type="install_refused"):
    """The accelerator did not take the ring."""

    ring_id: U32
    reason: Explanation
    until_switch: Flag = False
    """It never will, as it is: trying again is of no use before a switch or a link comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingFaulted(Message, type="ring_faulted"):
    """The accelerator stopped the ring."""

    ring_id: U32
    rank: U16
    rule: Name
    evidence: Explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPaused(Message, type="link_paused"):
    """The far end of an interface asks for silence, of some priorities or all."""

    link: U16
    """Index of the interface, in the order of the switch's ports."""
    priorities: Annotated[tuple[int, ...], Many(Integer(0, 7), 8)]
    silences_ns: Annotated[tuple[int, ...], Many(Integer(0, 0xFFFF_FFFF), 8)]
    """One for each of them; 0: it may go on."""
    frames: Annotated[int, Integer(1, FRAMES_TOLD_MAX)] = 1
    """How many frames ask for it."""
