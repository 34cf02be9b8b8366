"""Seats, turns, and the messages of sharing by two-phase commit (MINA section IV-B, docs/protocol.md 15).

A *pool* is accelerator memory that the jobs of a sharing group use by turns; a *seat* is a job on a host; a
*turn* is the right of one job to use the pool, for its operations ``[first, until)``, with an *epoch*, a
fencing token that is higher in every later turn of the pool.

An index is that of an all-reduce of a job. A seat reports the index of the operation that it starts next.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from inaproto.units import Epoch, JobId, OpIndex


class Rule(Enum):
    """When the seats of a job may change over to another decision."""

    EQUAL_INDEX = "equal-index"
    """The paper's: all seats of the group are locked, and of each job they are at the same operation."""
    BY_INDEX = "by-index"
    """Ours: only the seats whose turn it is are asked, and the decision names the operation from which it
    holds; nobody is locked."""


class Path(Enum):
    """On which an operation runs; both give the same bytes."""

    INA = "ina"
    FALLBACK = "fallback"


@dataclass(frozen=True, slots=True, order=True)
class Seat:
    """A job on a host: a participant."""

    job: JobId
    host: str
    life: int = 0
    """A daemon that restarts, or a job that takes its host in again, makes a new seat: nothing that was said
    to, or by, an earlier life concerns it."""


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """Names a round. A coordinator's term grows with each restart, so no version is used twice."""

    term: int
    number: int


NO_VERSION: Final = Version(0, 0)
AT_ONCE: Final = OpIndex(0)
"""As the end of a turn: before whatever comes next."""


@dataclass(frozen=True, slots=True)
class Turn:
    job: JobId
    epoch: Epoch
    first: OpIndex
    until: OpIndex | None
    """Excluded; None: until it is ended by a round."""

    def covers(self, index: int) -> bool:
        return self.first <= index and (self.until is None or index < self.until)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a round that was committed changes."""

    granted: Turn | None = None
    ended: Epoch | None = None
    """The turn of this epoch ends before the operation ``until`` of its job."""
    until: OpIndex = AT_ONCE


# --- messages of the coordinator


@dataclass(frozen=True, slots=True)
class Prepare:
    """Step 1: vote. A seat that has voted and hears nothing for ``lease_ns`` is in doubt."""

    seat: Seat
    """The seat to which this is sent."""
    term: int
    version: Version
    rule: Rule
    granted: JobId | None
    """Job whose turn begins, if any."""
    ended: Epoch | None
    """Epoch of the turn that ends, if any."""
    over_below: Epoch
    """Turns of the seat's job of lower epochs have ended, whether or not the seat has heard of it."""
    margin: int
    """Where decisions are by index, what is decided concerns no operation before the seat's vote plus
    this."""
    lease_ns: int
    peers: tuple[Seat, ...]
    """All seats that are asked, this one included."""
    first: OpIndex = AT_ONCE
    """Where decisions are by index, what is decided concerns no operation before this one either."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Step 5. Sent again until it is done."""

    seat: Seat
    term: int
    version: Version
    decision: Decision


@dataclass(frozen=True, slots=True)
class Abort:
    """Step 5: it has been decided that nothing changes. Also answers an ``Ask``."""

    seat: Seat
    term: int
    version: Version


@dataclass(frozen=True, slots=True)
class EndTurn:
    """The turn, if it stands at the seat, ends before ``until``: say when it has drained.

    Needs no round: a seat may run any operation by the fallback.
    """

    seat: Seat
    term: int
    epoch: Epoch
    until: OpIndex | None
    """:data:`AT_ONCE` is one. None: it does not end; but a seat that uses it no more says so."""


CoordinatorMessage = Prepare | Commit | Abort | EndTurn


# --- messages of a seat


@dataclass(frozen=True, slots=True)
class Vote:
    """Step 3."""

    seat: Seat
    """Who says it."""
    version: Version
    index: OpIndex
    """Operation that it starts next."""
    in_ina: bool
    """Whether an INA operation of it has not drained."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The seat has promised a peer never to vote on this version."""

    seat: Seat
    version: Version


@dataclass(frozen=True, slots=True)
class Done:
    """Step 7: the seat has applied the decision."""

    seat: Seat
    version: Version


@dataclass(frozen=True, slots=True)
class Drained:
    """The seat uses the pool no more under this epoch or a lower one, nor will it ever."""

    seat: Seat
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Ask:
    """The seat is in doubt."""

    seat: Seat
    version: Version


SeatMessage = Vote | Refusal | Done | Drained | Ask


# --- messages between seats


@dataclass(frozen=True, slots=True)
class AskPeer:
    """The sender has voted, and does not hear from the coordinator."""

    seat: Seat
    """The seat to which this is sent."""
    sender: Seat
    version: Version
    fell_back: OpIndex | None = None
    """The operation that the sender has just started, by the fallback: it can end on no other path."""


@dataclass(frozen=True, slots=True)
class TellPeerDecision:
    """What the sender knows of a round: it was committed, or (None) it never will be.

    A seat that has voted and knows no more itself answers when it does.
    """

    seat: Seat
    """The seat to which this is sent."""
    sender: Seat
    version: Version
    decision: Decision | None


PeerMessage = AskPeer | TellPeerDecision
