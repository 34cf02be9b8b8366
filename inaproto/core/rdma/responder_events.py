"""Configuration, events, actions and counters of the RC responder (:mod:`inaproto.core.rdma.responder`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto.core.rdma.reliable_connection import ACK, RNR_TIMER_NS, Outcome
from inaproto.errors import Blame, ConfigError
from inaproto.units import PSN_MASK
from inaproto.wire.behind_gap import BEHIND_PACKETS_MAX, BehindGap


@dataclass(frozen=True, slots=True)
class ResponderConfig:
    initial_psn: int
    """First PSN that the peer sends."""
    mtu: int = 1024
    receives_max: int = 1024
    rnr_timer: int = 12
    """Code of the wait that an RNR NAK asks for; 12 is 0.64 ms."""
    psn_mask: int = PSN_MASK
    behind_max: int = 0
    """Packets behind a gap that are kept, on a selective connection; 0: none, as RC has it."""

    def __post_init__(self) -> None:
        limits = (
            ("initial_psn", 0, self.psn_mask),
            ("mtu", 1, 4096),
            ("behind_max", 0, min(BEHIND_PACKETS_MAX, self.psn_mask >> 1)),
            ("receives_max", 1, 1 << 20),
            ("rnr_timer", 0, len(RNR_TIMER_NS) - 1),
        )
        for name, least, most in limits:
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must be {least} to {most}, not {getattr(self, name)}")


class PostReceive(NamedTuple):
    wr_id: int


@dataclass(frozen=True, slots=True, eq=False)
class RunArrived:
    """Packets of one opcode, payload length and extension headers, in arrival order, ICRC verified."""

    opcode: int
    psn: NDArray[np.int64]
    """int64, shape (n,)."""
    ack_request: NDArray[np.bool_]
    payload_bytes: int
    """Payload bytes of each packet, without pad."""
    reth: tuple[int, int, int] | None
    """(virtual address, rkey, DMA length)"""
    imm: int | None
    permitted: bool
    """The peer may write where this run starts (its RETH, or ``place_at``) up to the message's end."""


class PacketArrived(NamedTuple):
    """A packet that arrived alone: a run of one, without arrays (see :class:`RunArrived`)."""

    opcode: int
    psn: int
    ack_request: bool
    payload_bytes: int
    reth: tuple[int, int, int] | None
    imm: int | None
    permitted: bool


class MessageInProgress(NamedTuple):
    """Where the next packet of a started message goes."""

    va: int
    rkey: int
    remaining: int
    nbytes: int
    """Bytes of the whole message."""


class StretchPlaced(NamedTuple):
    """The next packets, of one message, intact and in order; their payloads lie where they go.

    Only what the responder ``awaits`` may be placed before it is told.
    """

    packets: int
    nbytes: int
    begun: MessageInProgress | None
    """The message that the first one begins, as a whole; None: they are of the one in progress."""
    ended: bool
    """The last one ends it."""
    imm: int | None
    asked: int
    """Packets up to which an ACK was asked for; 0: none was."""


class StretchBehind(NamedTuple):
    """Packets behind a gap, from ``psn`` on, neither the first nor the last of their message, intact and in
    order; their payloads lie where they go.

    Only what the responder has ``room_behind`` for may be placed before it is told.
    """

    psn: int
    packets: int


@dataclass(frozen=True, slots=True)
class ResponderClosing:
    """The queue pair goes away: posted receives are flushed."""


ResponderEvent = PostReceive | RunArrived | PacketArrived | StretchPlaced | StretchBehind | ResponderClosing


class Awaited(NamedTuple):
    """What may be placed before the responder is told of it."""

    psn: int
    message: MessageInProgress | None
    """The one of which the next packet is; None: it begins one."""
    has_receive: bool
    """It may end with an immediate."""


class Place(NamedTuple):
    """Copy the payloads of ``rows`` rows of the run, from ``first_row`` on, to ``va`` and following."""

    va: int
    rkey: int
    first_row: int
    rows: int


class Deliver(NamedTuple):
    """A message with immediate is whole; it consumed the receive ``wr_id``."""

    wr_id: int
    imm: int
    nbytes: int


class Reply(NamedTuple):
    """Send an acknowledge packet."""

    psn: int
    syndrome: int
    msn: int
    behind: BehindGap | None = None
    """With a NAK of a selective connection: what is there behind the missing packet."""


@dataclass(frozen=True, slots=True)
class ReceiveFlushed:
    wr_id: int


@dataclass(frozen=True, slots=True)
class ResponderFailed:
    """The queue pair must go to its error state; the flushed receives and the fatal NAK precede this."""

    outcome: Outcome


ResponderAction = Place | Deliver | Reply | ReceiveFlushed | ResponderFailed | Blame


class ResponderState(Enum):
    READY = "ready"
    ERROR = "error"
    CLOSED = "closed"


@dataclass(slots=True)
class ResponderCounters:
    packets: int = 0
    """Placed, each PSN once."""
    messages: int = 0
    duplicates: int = 0
    out_of_sequence: int = 0
    """Behind a gap, and not kept."""
    behind_gap: int = 0
    """Behind a gap, and placed."""
    naks: int = 0
    rnr_naks: int = 0
    ignored: int = 0
    """Arrived after the queue pair had failed."""


@dataclass(frozen=True, slots=True)
class ResponderView:
    state: ResponderState
    expected_psn: int
    msn: int
    receives: int
    silent: bool
    in_progress: MessageInProgress | None


def append_reply(replies: list[Reply], reply: Reply) -> None:
    """Add the newest reply of a queue pair to those not sent yet; it makes an ACK just before it needless,
    and what that said of packets behind a gap."""
    if replies and (replies[-1].syndrome == ACK or replies[-1].behind is not None):
        replies.pop()
    replies.append(reply)
