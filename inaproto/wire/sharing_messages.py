"""Control messages of jobs that share switch memory by turns (:mod:`inaproto.core.sharing.messages`).

controller -> host daemon: SharingPrepare, SharingCommit, SharingAbort, SharingEnd.
host daemon -> controller: SharingSeats, SharingPattern, SharingProgress, SharingVote, SharingRefusal,
SharingDone, SharingDrained, SharingAsk.
host daemon -> host daemon, through the control plane of their switches: SharingAskPeer, SharingTellPeer.

All of them may be lost or come twice. A host speaks for seats of its own only: who takes a message from it
compares the name of the seat with that of the session.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from inaproto.wire.messages.fields import Integer, Many, OneOf, Record
from inaproto.wire.messages.types import U32, U64, Flag, Message, Name, Positive16

SEATS_MAX: Final = 1024
"""Most seats of a sharing group, and of a host."""
PATTERN_OPERATIONS_MAX: Final = 16_384
"""Most operations of a training step."""
RuleName = Literal["equal-index", "by-index"]
_Rule = Annotated[RuleName, OneOf(("equal-index", "by-index"))]
_Times = Annotated[tuple[int, ...], Many(Integer(0, (1 << 64) - 1), PATTERN_OPERATIONS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatRecord:
    job: Name
    host: Name
    life: U64


_Seat = Annotated[SeatRecord, Record(SeatRecord)]
_Seats = Annotated[tuple[SeatRecord, ...], Many(Record(SeatRecord), SEATS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    term: U64
    number: U64


_Version = Annotated[VersionRecord, Record(VersionRecord)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnGrant:
    job: Name
    epoch: U32
    first: U64
    until: U64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    granted: Annotated[TurnGrant, Record(TurnGrant)] | None = None
    ended: U32 | None = None
    until: U64


# --- the controller says


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingPrepare(Message):
    TYPE: ClassVar[str] = "sharing_prepare"
    seat: _Seat
    term: U64
    version: _Version
    rule: _Rule
    granted: Name | None = None
    ended: U32 | None = None
    over_below: U64
    margin: U32
    lease_ns: U64
    peers: _Seats
    first: U64 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingCommit(Message):
    TYPE: ClassVar[str] = "sharing_commit"
    seat: _Seat
    term: U64
    version: _Version
    decision: Annotated[DecisionRecord, Record(DecisionRecord)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingAbort(Message):
    TYPE: ClassVar[str] = "sharing_abort"
    seat: _Seat
    term: U64
    version: _Version


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingEnd(Message):
    TYPE: ClassVar[str] = "sharing_end"
    seat: _Seat
    term: U64
    epoch: U32
    until: U64 | None = None


# --- a seat says


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingVote(Message):
    TYPE: ClassVar[str] = "sharing_vote"
    seat: _Seat
    version: _Version
    index: U32
    """Index of an all-reduce, as in the INA header. What is decided from it has to fit the wider fields
    above."""
    in_ina: Flag


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingRefusal(Message):
    TYPE: ClassVar[str] = "sharing_refusal"
    seat: _Seat
    version: _Version


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingDone(Message):
    TYPE: ClassVar[str] = "sharing_done"
    seat: _Seat
    version: _Version


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingDrained(Message):
    TYPE: ClassVar[str] = "sharing_drained"
    seat: _Seat
    epoch: U32


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingAsk(Message):
    TYPE: ClassVar[str] = "sharing_ask"
    seat: _Seat
    version: _Version


# --- a host says of its seats


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatHold:
    pool: Name
    job: Name
    life: U64
    ring_id: U32
    """Id of its ring through the switches: the same in all seats that it has."""
    hosts: Positive16
    """Number of hosts of that ring, and so of its seats."""
    stand: U32 = 0
    """Epoch of the wish by which it stands where it does: the same in all seats that it has there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingSeats(Message):
    """All seats of the host: of any other one that it had, nothing is under way any more, nor will be."""

    TYPE: ClassVar[str] = "sharing_seats"
    seats: Annotated[tuple[SeatHold, ...], Many(Record(SeatHold), SEATS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingPattern(Message):
    """The training step of a job, as this host sees it; without operations: it is not known."""

    TYPE: ClassVar[str] = "sharing_pattern"
    seat: _Seat
    nbytes: _Times
    ready_ns: _Times
    """When each operation can start, from the start of the step."""
    duration_ns: U64
    """Until the framework begins to wait."""
    bandwidth: U64
    """Bytes a second of all-reduces without the switches; 0: none was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingProgress(Message):
    """Where a seat is. Times are ages, at the sending: clocks differ."""

    TYPE: ClassVar[str] = "sharing_progress"
    seat: _Seat
    operation: U32
    """Operation that runs, or is next."""
    is_running: Flag
    uses_ina: Flag
    age_ns: U64
    """Since it began; or since the one before it ended."""
    step_first: U32 = 0
    """First operation of its step."""
    step_age_ns: U64 | None = None
    """Since the step began; None: no step is known."""


# --- between seats


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingAskPeer(Message):
    TYPE: ClassVar[str] = "sharing_ask_peer"
    seat: _Seat
    sender: _Seat
    version: _Version
    fell_back: U32 | None = None
    """Operation that the sender has started by the fallback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingTellPeer(Message):
    TYPE: ClassVar[str] = "sharing_tell_peer"
    seat: _Seat
    sender: _Seat
    version: _Version
    decision: Annotated[DecisionRecord, Record(DecisionRecord)] | None = None


FromController = SharingPrepare | SharingCommit | SharingAbort | SharingEnd
FromSeat = SharingVote | SharingRefusal | SharingDone | SharingDrained | SharingAsk
FromHost = FromSeat | SharingPattern | SharingProgress
"""Messages of a host with the seat that it speaks for."""
PeerWord = SharingAskPeer | SharingTellPeer

SHARING_MESSAGES: Final[tuple[type[Message], ...]] = (
    SharingPrepare,
    SharingCommit,
    SharingAbort,
    SharingEnd,
    SharingVote,
    SharingRefusal,
    SharingDone,
    SharingDrained,
    SharingAsk,
    SharingSeats,
    SharingPattern,
    SharingProgress,
    SharingAskPeer,
    SharingTellPeer,
)
