"""Control messages between switches and the control plane at the root of their fabric (NetReduce 3.3).

switch -> root: SwitchHello, SwitchOpened, TrunkReport, RingInstalled, InstallRefused, RingFaulted, Ping,
Pong, Status.
root -> switch: SwitchWelcome, RingInstall, RingRemove, SwitchAdmit, Error, Ping, Pong, StatusReply.

A switch says hello, is told of every ring that it has or may have had, and is admitted: only then do its
ports open. Checks are of form alone; whether a ring's parts fit each other is for who makes a
:class:`~inaproto.core.switch.ring_spec.RingSpec` of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from inaproto.wire.messages.fields import Integer, Many, Record, Text
from inaproto.wire.messages.types import (
    U16,
    U24,
    U32,
    U64,
    Explanation,
    Ip,
    Mac,
    Message,
    Mtu,
    Name,
    Positive16,
    Ranks,
    Secret,
)

RING_RANKS_MAX: Final = 1 << 10
PsnBits = Annotated[int, Integer(1, 24)]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRecord:
    """One end of a virtual connection between two switches."""

    peer: Name
    port: U32
    """Port of the switch that is told, towards the peer."""
    here_mac: Mac
    here_ip: Ip
    there_mac: Mac
    there_ip: Ip
    qp: U24
    rank: U16
    """Stands for the lower of the two switches."""


LinkField = Annotated[LinkRecord, Record(LinkRecord)]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRecord:
    """What a switch adds up: a rank, or what comes from a switch below; just one of them."""

    rank: U16 | None = None
    link: LinkField | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteRecord:
    """Where notes of a rank go on."""

    rank: U16
    link: LinkField


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRecord:
    """What one switch does for a ring that spans several."""

    inputs: Annotated[tuple[InputRecord, ...], Many(Record(InputRecord), RING_RANKS_MAX)]
    """In the order of addition."""
    parent: LinkField | None = None
    delivers: Ranks
    notes: Annotated[tuple[NoteRecord, ...], Many(Record(NoteRecord), RING_RANKS_MAX)]
    steered: Ranks
    steer_to: U32 | None = None
    passes: Annotated[tuple[LinkField, ...], Many(Record(LinkRecord), RING_RANKS_MAX)] = ()
    """Switches below whose sums it sends on."""
    below: Annotated[tuple[int, ...], Many(Integer(0, 0xFFFF_FFFF), RING_RANKS_MAX)] | None = None
    """Ports to the switches next below, of a ring beside the fabric's own tree; None: of any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRecord:
    """Slots that several rings share by turns."""

    name: Name
    capacity: Positive16 = 1
    """Rings at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchHello(Message, type="switch_hello"):
    switch: Name
    """As the fabric file names it."""
    boot_id: Name
    fabric: Secret = ""
    """Digest of the fabric as this switch knows it; both sides must know the same one."""


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
    role: Annotated[RoleRecord, Record(RoleRecord)] | None = None
    """None: it does all."""
    pool: Annotated[PoolRecord, Record(PoolRecord)] | None = None
    """None: slots of its own."""
    first_message: U64 = 0
    """Message with which its ranks go on."""
    job: Secret = ""
    """Job whose ring it is; empty: nobody said."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RingFaulted(Message, type="ring_faulted"):
    """The accelerator stopped the ring."""

    ring_id: U32
    rank: U16
    rule: Name
    evidence: Explanation
