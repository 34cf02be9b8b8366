"""Configurations, events, actions, durable record and views of sharing by two-phase commit.

Of :mod:`inaproto.core.sharing.coordinator` and :mod:`inaproto.core.sharing.participant`; what these tell each
other is in :mod:`inaproto.wire.messages.sharing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from inaproto.errors import Blame, LocalMisuse
from inaproto.units import MS, Epoch, Instant, JobId, OpIndex, S
from inaproto.wire.messages.sharing import (
    NO_VERSION,
    CoordinatorMessage,
    Decision,
    PeerMessage,
    Rule,
    Seat,
    SeatMessage,
    Turn,
    Version,
)

FIRST_OPERATION: Final = OpIndex(0)


class Path(Enum):
    """On which an operation runs; both give the same bytes."""

    INA = "ina"
    FALLBACK = "fallback"


# --- the coordinator: configuration, record, events, actions, view


@dataclass(frozen=True, slots=True)
class PatienceConfig:
    """See :mod:`inaproto.core.sharing.patience`."""

    mute_ns: int = 30 * S
    """For which a seat may owe what it can say at once."""
    failed_max: int = 8
    """Rounds in a row that one job's seats may let fail; by index they take 7 s by then."""
    bar_ns: int = 2 * S
    """For which a job has no turn the first time."""
    bar_doublings_max: int = 6

    def __post_init__(self) -> None:
        if min(self.mute_ns, self.failed_max, self.bar_ns) < 1 or self.bar_doublings_max < 0:
            raise LocalMisuse(f"a sharing group's patience: a number that is too small: {self}")


@dataclass(frozen=True, slots=True)
class SharingConfig:
    group: str
    rule: Rule = Rule.BY_INDEX
    capacity: int = 1
    """Turns that may stand at once."""
    margin: int = 0
    """Operations between the greatest index reported and the first of a turn that is granted, where decisions
    are by index. One that a seat starts before it hears of the turn runs by the fallback there, so by that on
    all."""
    end_margin: int = 2
    """The same for a turn that is ended: seats that are near each other then all do without INA from the same
    operation on, and none is rescued."""
    vote_ns: int = 50 * MS
    """How long votes are waited for."""
    vote_doublings_max: int = 4
    """How often ``vote_ns`` and ``lease_ns`` double at most, where decisions are by index: once after each
    round whose votes came late, until rounds take a quarter of that again. Where hosts are slower than
    ``vote_ns`` no round would ever be decided; and nobody is locked while they are waited for."""
    lease_ns: int = 200 * MS
    """How long a seat's lease runs from its vote; locks are held no longer."""
    resend_ns: int = 50 * MS
    """Time between two sendings of what has not been answered."""
    retry_ns: int = 20 * MS
    """Time between a round that was aborted and the next try."""
    retry_jitter_ns: tuple[int, ...] = (0,)
    """What is added to ``retry_ns``, one after the other; drawn from the seed by the caller."""
    retry_doublings_max: int = 6
    """How often ``retry_ns`` doubles at most, once after each round that is aborted in a row."""
    objections_max: int | None = 3
    """Equal indices: rounds that would have ended a turn and were aborted because of where seats were; then
    it ends without a round. None: never. As the paper has it, a job that calls one all-reduce after the other
    can keep INA for ever."""
    seats_max: int = 1 << 16
    patience: PatienceConfig | None = None
    """None: a seat is waited for until its owner says that it is gone."""
    hosts_at_once: int = 64
    """So many seats are heard within ``vote_ns``, ``lease_ns`` and ``resend_ns``; for as many times more
    these are so much longer. What is sent again, or asked, before all could be heard makes all the later."""

    def longer(self, time_ns: int, seats: int) -> int:
        """One of ``vote_ns``, ``lease_ns``, ``resend_ns``, for so many seats."""
        return time_ns * max(1, -(-seats // self.hosts_at_once))

    def __post_init__(self) -> None:
        limit = 1 if self.objections_max is None else self.objections_max
        numbers = (self.margin, self.end_margin, self.retry_doublings_max, self.vote_doublings_max)
        if min(self.capacity, self.seats_max, self.hosts_at_once, limit) < 1 or min(numbers) < 0:
            raise LocalMisuse(f"sharing group {self.group}: a number that is too small: {self}")
        times = (self.vote_ns, self.lease_ns, self.resend_ns, self.retry_ns, *self.retry_jitter_ns)
        if min(times) < 0 or not self.retry_jitter_ns:
            raise LocalMisuse(f"sharing group {self.group}: a negative time, or no jitter: {self}")


@dataclass(frozen=True, slots=True)
class TurnRecord:
    turn: Turn
    seats: tuple[Seat, ...]
    """Seats that were told of the turn, and must drain."""


@dataclass(frozen=True, slots=True)
class SharingRecord:
    """All that a coordinator must find again; each one takes the place of the one before."""

    term: int
    epoch: Epoch
    """Epoch of the newest turn."""
    turns: tuple[TurnRecord, ...] = ()
    """Turns that have not drained, as far as it had been heard."""
    version: Version = NO_VERSION
    """Version of the last round that was committed."""
    decision: Decision | None = None
    told: tuple[Seat, ...] = ()
    """Whom the decision concerns."""


@dataclass(frozen=True, slots=True)
class TurnWanted:
    """The planner's wish, of which the last one counts: this job shall have a turn, and another if it ends.

    If no unit is free the oldest open turn of another job is ended for it. None: open turns shall end.
    """

    job: JobId | None
    operations: int | None = None
    """How many; None: until something else is wanted."""
    first: OpIndex | None = None
    """The earliest of them. A round under way keeps to that which it began with."""
    until: OpIndex | None = None
    """None of them is this one or a later one: what comes too late for its first ones is so much shorter, and
    of no operation if it comes too late for all. Such a wish is for one turn."""


@dataclass(frozen=True, slots=True)
class SeatsChanged:
    """All seats of the group. A seat that is missing is asked nothing more, but must still drain."""

    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True)
class SeatGone:
    """The seat uses the pool no more, nor can it: its process is dead, or its connections were taken away."""

    seat: Seat
    reason: str


@dataclass(frozen=True, slots=True)
class RingRemoved:
    """No switch takes anything of this job under this epoch or a lower one: its seats count as drained."""

    job: JobId
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class TurnRevoked:
    """The turn ends at once, without a round: its job does not use it, and others wait."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class JobHeld:
    """The job shall have no turn until it is released: one that stands is ended. Answered: ``JobDrained``."""

    job: JobId


@dataclass(frozen=True, slots=True)
class JobReleased:
    job: JobId


@dataclass(frozen=True, slots=True)
class FromSeat:
    seat: Seat
    """Whom the connection authenticates."""
    message: SeatMessage


@dataclass(frozen=True, slots=True)
class Persisted:
    token: int


@dataclass(frozen=True, slots=True)
class Woke:
    """The deadline may have passed."""


SharingEvent = (
    TurnWanted
    | SeatsChanged
    | SeatGone
    | RingRemoved
    | TurnRevoked
    | JobHeld
    | JobReleased
    | FromSeat
    | Persisted
    | Woke
)


@dataclass(frozen=True, slots=True)
class Tell:
    seat: Seat
    message: CoordinatorMessage


@dataclass(frozen=True, slots=True)
class Persist:
    """Make durable, then say ``Persisted``. Of two, the later one counts; they may not change places."""

    record: SharingRecord
    token: int


@dataclass(frozen=True, slots=True)
class TurnStands:
    """It has been decided, durably; said again when ``until`` changes."""

    job: JobId
    epoch: Epoch
    first: OpIndex
    until: OpIndex | None


@dataclass(frozen=True, slots=True)
class PoolFree:
    """The turn has ended, and all its seats have drained: a unit is free."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class SeatGivenUp:
    """The seat owes an answer for too long, and is not waited for any more."""

    seat: Seat
    epoch: Epoch
    """Epoch of the newest turn of its job: the seat may still use the pool in that one, or an older one."""


@dataclass(frozen=True, slots=True)
class JobBarred:
    """Its seats do not answer: it has no turn until then."""

    job: JobId
    until: Instant


@dataclass(frozen=True, slots=True)
class JobDrained:
    """A job that is held has no turn, and gets none."""

    job: JobId


class Mark(Enum):
    """What was remarkable; for logs, counters and the marks of the simulation."""

    ROUND_BEGUN = "round begun"
    COMMITTED = "round committed"
    ABORTED_UNEQUAL = "round aborted: the seats of a job are at different operations"
    ABORTED_IN_INA = "round aborted: a seat is in an INA operation"
    ABORTED_LATE = "round aborted: votes are missing"
    ABORTED_REFUSED = "round aborted: a seat has promised never to vote on it"
    ABORTED_CHANGED = "round aborted: seats or wishes changed"
    SENT_AGAIN = "messages sent again"
    TURN_FORCED = "turn ended without a round"
    RECOVERED = "decision of an earlier term sent again"
    PRESUMED_ABORT = "a seat asked about a round that is not in the log"
    IN_DOUBT = "in doubt"
    RESOLVED_BY_COORDINATOR = "doubt resolved by the coordinator"
    RESOLVED_BY_PEER = "doubt resolved by a peer"
    FELL_BACK_IN_DOUBT = "operation run by the fallback because of a doubt"
    FOLLOWED_PEER = "operation run by the fallback because a peer runs it so"
    DIFFERS = "operation under way in a turn that a peer runs by the fallback"
    HELD = "operation waits for a lock"
    PROMISED = "promised a peer never to vote"
    GIVEN_UP = "seat given up: it owed an answer"
    BARRED = "job left out: its seats do not answer"
    TAKEN_BACK = "job taken in again"
    STALE = "message of an earlier term, round or life"


@dataclass(frozen=True, slots=True)
class Noted:
    mark: Mark
    version: Version = NO_VERSION


SharingAction = Tell | Persist | TurnStands | PoolFree | SeatGivenUp | JobBarred | JobDrained | Noted | Blame


@dataclass(frozen=True, slots=True)
class TurnView:
    turn: Turn
    undrained: tuple[Seat, ...]


@dataclass(frozen=True, slots=True)
class SharingView:
    phase: str
    term: int
    version: Version
    """Version of the last round begun."""
    turns: tuple[TurnView, ...]
    wanted: JobId | None
    missing: tuple[Seat, ...]
    """Seats whose votes, or whose word that it is done, are waited for."""
    barred: tuple[JobId, ...] = ()
    """Jobs that get no turn now, whoever wishes for one."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """Counts by the value of each :class:`Mark`."""


# --- the participant: configuration, events, actions, view


@dataclass(frozen=True, slots=True)
class ParticipantConfig:
    seat: Seat
    first_operation: OpIndex = FIRST_OPERATION
    """Operation that it starts next."""
    ask_ns: int = 100 * MS
    """Between two questions of a seat that is in doubt."""
    answer_ns: int = 50 * MS
    """How long operations wait for answers of peers once the coordinator is lost."""
    operations_max: int = 4096
    """Started and not ended: as many as messages may be without an acknowledgement, which are two windows."""
    lease_max_ns: int = 10 * S
    """Whatever a coordinator asks for."""

    def __post_init__(self) -> None:
        if (
            self.operations_max < 1
            or min(self.ask_ns, self.answer_ns, self.lease_max_ns, self.first_operation) < 0
        ):
            raise LocalMisuse(f"seat {self.seat}: a number that is too small: {self}")


@dataclass(frozen=True, slots=True)
class FromCoordinator:
    message: CoordinatorMessage


@dataclass(frozen=True, slots=True)
class FromPeer:
    seat: Seat
    """Whom the connection authenticates."""
    message: PeerMessage


@dataclass(frozen=True, slots=True)
class OperationStarting:
    """The operation is next, and nothing but its path is missing. Answered: ``StartOperation``, or
    ``HoldOperation`` and later ``StartOperation``."""

    index: OpIndex


@dataclass(frozen=True, slots=True)
class OperationEnded:
    """Whatever path it ended on, it has drained: all results taken, all own sends acknowledged.

    One that is held may end as well: by the fallback, for its seat lost the ring that there was a choice of.
    """

    index: OpIndex


@dataclass(frozen=True, slots=True)
class Closing:
    """The job leaves the host: it starts no further operation."""


@dataclass(frozen=True, slots=True)
class CoordinatorLost:
    """The connection to it has ended: what it has not said by now comes late, if ever."""


ParticipantEvent = (
    FromCoordinator | FromPeer | OperationStarting | OperationEnded | Closing | CoordinatorLost | Woke
)


@dataclass(frozen=True, slots=True)
class StartOperation:
    index: OpIndex
    path: Path
    epoch: Epoch | None
    """Epoch of the turn, for the INA header; None: the fallback."""


@dataclass(frozen=True, slots=True)
class HoldOperation:
    index: OpIndex
    until: Instant
    """At the latest, if the seat is woken."""


@dataclass(frozen=True, slots=True)
class TellCoordinator:
    message: SeatMessage


@dataclass(frozen=True, slots=True)
class TellPeer:
    seat: Seat
    message: PeerMessage


@dataclass(frozen=True, slots=True)
class Differs:
    """An operation that was started here in a turn runs by the fallback at another seat: all have to."""

    index: OpIndex
    peer: Seat


ParticipantAction = StartOperation | HoldOperation | TellCoordinator | TellPeer | Differs | Noted | Blame


@dataclass(frozen=True, slots=True)
class ParticipantView:
    phase: str
    term: int
    """Term of the newest coordinator that was heard."""
    version: Version
    """Version that was voted on last."""
    next_operation: OpIndex
    turn: Turn | None
    """The turn that stands here."""
    is_locked: bool
    """No operation starts."""
    is_held: bool
    """One waits for that."""
    in_ina: tuple[tuple[OpIndex, Epoch], ...]
    """Operations on the pool that have not drained."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """Counts by the value of each :class:`Mark`."""
