"""Seats, turns, and what is said of sharing by two-phase commit (MINA section IV-B, docs/protocol.md 15).

A *pool* is accelerator memory that the jobs of a sharing group use by turns; a *seat* is a job on a host; a
*turn* is the right of one job to use the pool, for its operations ``[first, until)``, with an *epoch*, a
fencing token that is higher in every later turn of the pool.

An index is that of an all-reduce of a job. A seat reports the index of the operation that it starts next.

controller -> host daemon: Prepare, Commit, Abort, EndTurn.
host daemon -> controller: SharingSeats, SharingPattern, SharingProgress, Vote, Refusal, Done, Drained, Ask.
host daemon -> host daemon, through the control plane of their switches: AskPeer, TellPeerDecision.

All of them may be lost or come twice. A host speaks for seats of its own only: who takes a message from it
compares the name of the seat with that of the session.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final

from inaproto.units import Epoch, JobId, OpIndex
from inaproto.wire.messages.fields import ALWAYS, Choice, Integer, Many, Record, Text
from inaproto.wire.messages.types import U32, U64, Flag, Message, Name, Positive16, Unnumbered

SEATS_MAX: Final = 1024
"""Most seats of a host, and peers of a seat."""
PATTERN_OPERATIONS_MAX: Final = 16_384
"""Most operations of a training step."""
_Job = Annotated[JobId, Text(128, bytes_min=1)]
_Epoch = Annotated[Epoch, Integer(0, 0xFFFF_FFFF)]
_Index = Annotated[OpIndex, Integer(0, (1 << 64) - 1)]
_IndexOfHeader = Annotated[OpIndex, Integer(0, 0xFFFF_FFFF)]
"""Index of an all-reduce, as in the INA header. What is decided from it has to fit the wider ``_Index``."""
_Times = Annotated[tuple[int, ...], Many(Integer(0, (1 << 64) - 1), PATTERN_OPERATIONS_MAX)]


class Rule(Enum):
    """When the seats of a job may change over to another decision."""

    EQUAL_INDEX = "equal-index"
    """The paper's: all seats of the group are locked, and of each job they are at the same operation."""
    BY_INDEX = "by-index"
    """Ours: only the seats whose turn it is are asked, and the decision names the operation from which it
    holds; nobody is locked."""


@dataclass(frozen=True, slots=True, order=True)
class Seat:
    """A job on a host: a participant."""

    job: _Job
    host: Name
    life: Annotated[int, Integer(0, (1 << 64) - 1), ALWAYS] = 0
    """A daemon that restarts, or a job that takes its host in again, makes a new seat: nothing that was said
    to, or by, an earlier life concerns it."""


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """Names a round. A coordinator's term grows with each restart, so no version is used twice."""

    term: U64
    number: U64


NO_VERSION: Final = Version(0, 0)
AT_ONCE: Final = OpIndex(0)
"""As the end of a turn: before whatever comes next."""


@dataclass(frozen=True, slots=True)
class Turn:
    job: _Job
    epoch: _Epoch
    first: _Index
    until: _Index | None = None
    """Excluded; None: until it is ended by a round."""

    def covers(self, index: int) -> bool:
        return self.first <= index and (self.until is None or index < self.until)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a round that was committed changes."""

    granted: Annotated[Turn, Record(Turn)] | None = None
    ended: _Epoch | None = None
    """The turn of this epoch ends before the operation ``until`` of its job."""
    until: Annotated[OpIndex, Integer(0, (1 << 64) - 1), ALWAYS] = AT_ONCE


_Seat = Annotated[Seat, Record(Seat)]
_Version = Annotated[Version, Record(Version)]
_Decision = Annotated[Decision, Record(Decision)]


# --- messages of the coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare(Unnumbered, type="sharing_prepare"):
    """Step 1: vote. A seat that has voted and hears nothing for ``lease_ns`` is in doubt."""

    seat: _Seat
    """The seat to which this is sent."""
    term: U64
    version: _Version
    rule: Annotated[Rule, Choice(Rule)]
    granted: _Job | None = None
    """Job whose turn begins, if any."""
    ended: _Epoch | None = None
    """Epoch of the turn that ends, if any."""
    over_below: Annotated[Epoch, Integer(0, (1 << 64) - 1)]
    """Turns of the seat's job of lower epochs have ended, whether or not the seat has heard of it."""
    margin: U32
    """Where decisions are by index, what is decided concerns no operation before the seat's vote plus
    this."""
    lease_ns: U64
    peers: Annotated[tuple[Seat, ...], Many(Record(Seat), SEATS_MAX)]
    """Seats that are asked, this one included: all, or where these are many those that it may ask itself."""
    first: _Index = AT_ONCE
    """Where decisions are by index, what is decided concerns no operation before this one either."""
    seats: U32 = 0
    """How many are asked, where ``peers`` are not all of them; else 0."""


@dataclass(frozen=True, slots=True)
class Commit(Unnumbered, type="sharing_commit"):
    """Step 5. Sent again until it is done."""

    seat: _Seat
    term: U64
    version: _Version
    decision: _Decision


@dataclass(frozen=True, slots=True)
class Abort(Unnumbered, type="sharing_abort"):
    """Step 5: it has been decided that nothing changes. Also answers an ``Ask``."""

    seat: _Seat
    term: U64
    version: _Version


@dataclass(frozen=True, slots=True)
class EndTurn(Unnumbered, type="sharing_end"):
    """The turn, if it stands at the seat, ends before ``until``: say when it has drained.

    Needs no round: a seat may run any operation by the fallback.
    """

    seat: _Seat
    term: U64
    epoch: _Epoch
    until: _Index | None = None
    """:data:`AT_ONCE` is one. None: it does not end; but a seat that uses it no more says so."""


CoordinatorMessage = Prepare | Commit | Abort | EndTurn


# --- messages of a seat


@dataclass(frozen=True, slots=True)
class Vote(Unnumbered, type="sharing_vote"):
    """Step 3."""

    seat: _Seat
    """Who says it."""
    version: _Version
    index: _IndexOfHeader
    """Operation that it starts next."""
    in_ina: Flag
    """Whether an INA operation of it has not drained."""


@dataclass(frozen=True, slots=True)
class Refusal(Unnumbered, type="sharing_refusal"):
    """The seat has promised a peer never to vote on this version."""

    seat: _Seat
    version: _Version


@dataclass(frozen=True, slots=True)
class Done(Unnumbered, type="sharing_done"):
    """Step 7: the seat has applied the decision."""

    seat: _Seat
    version: _Version


@dataclass(frozen=True, slots=True)
class Drained(Unnumbered, type="sharing_drained"):
    """The seat uses the pool no more under this epoch or a lower one, nor will it ever."""

    seat: _Seat
    epoch: _Epoch


@dataclass(frozen=True, slots=True)
class Ask(Unnumbered, type="sharing_ask"):
    """The seat is in doubt."""

    seat: _Seat
    version: _Version


SeatMessage = Vote | Refusal | Done | Drained | Ask


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
class SharingSeats(Message, type="sharing_seats"):
    """All seats of the host: of any other one that it had, nothing is under way any more, nor will be."""

    seats: Annotated[tuple[SeatHold, ...], Many(Record(SeatHold), SEATS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingPattern(Message, type="sharing_pattern"):
    """The training step of a job, as this host sees it; without operations: it is not known."""

    seat: _Seat
    nbytes: _Times
    ready_ns: _Times
    """When each operation can start, from the start of the step."""
    duration_ns: U64
    """Until the framework begins to wait."""
    bandwidth: U64
    """Bytes a second of all-reduces without the switches; 0: none was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingProgress(Message, type="sharing_progress"):
    """Where a seat is. Times are ages, at the sending: clocks differ."""

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


# --- messages between seats


@dataclass(frozen=True, slots=True)
class AskPeer(Unnumbered, type="sharing_ask_peer"):
    """The sender has voted, and does not hear from the coordinator."""

    seat: _Seat
    """The seat to which this is sent."""
    sender: _Seat
    version: _Version
    fell_back: _IndexOfHeader | None = None
    """The operation that the sender has just started, by the fallback: it can end on no other path."""


@dataclass(frozen=True, slots=True)
class TellPeerDecision(Unnumbered, type="sharing_tell_peer"):
    """What the sender knows of a round: it was committed, or (None) it never will be.

    A seat that has voted and knows no more itself answers when it does.
    """

    seat: _Seat
    """The seat to which this is sent."""
    sender: _Seat
    version: _Version
    decision: _Decision | None = None


PeerMessage = AskPeer | TellPeerDecision


FromHost = SeatMessage | SharingPattern | SharingProgress
"""Messages of a host with the seat that it speaks for."""
