"""The turns of one job on one host: by which of its two rings an all-reduce goes (MINA IV-B, the host).

A host asks with ``MayBind`` before it starts an operation. The answer is known at once, from what was agreed
before (:mod:`inaproto.core.sharing.participant`), unless a decision is on its way that may concern this very
operation: that is waited for, until the lease is over at the latest. Who would not wait would run the
operation by the fallback, and other hosts perhaps by INA, which costs more.

The ring through the switches comes and goes, and each one that stands is a new seat, with a life of its own:
what is said to an older one, or to another term of the coordinator, concerns nobody. Two ways lead out:

- ``RingEnded``: the queue pairs are gone, and with them all that was on its way. What had started is over,
  the turn is given up, and the seat left, in this order.
- ``ParkWanted``: the ring is to leave its switches and come back elsewhere (MINA IV-A). The seat goes on
  until it has no turn, no vote whose outcome it does not know, and no operation that has not drained; then it
  is left, and not before. The other seats of the job agree: they had the same turns, and no round ends
  without this one.

Invariants: the participant hears of every operation of its seat once, in order; ``MayBind`` has exactly one
answer, ``Bind`` or ``WaitUntil``; a seat that was left is never spoken for again; once it is asked to park a
seat parks, unless its ring ends first. Without a seat everything goes by the fallback.

Departure from the paper: there a host evaluates its mode with the time of day, and a tree does not move.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, assert_never

from inaproto.core.sharing.events import (
    Closing,
    CoordinatorLost,
    Differs,
    FromCoordinator,
    FromPeer,
    HoldOperation,
    Noted,
    OperationStarting,
    ParticipantAction,
    ParticipantConfig,
    ParticipantEvent,
    ParticipantView,
    Path,
    StartOperation,
    TellCoordinator,
    TellPeer,
    Woke,
)
from inaproto.core.sharing.participant import Phase, SharingParticipant
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import MS, Epoch, Instant, JobId, OpIndex
from inaproto.wire.messages.sharing import Seat

_FREE: Final = Phase.FREE.value


@dataclass(frozen=True, slots=True)
class SeatConfig:
    job: JobId
    host: str
    ask_ns: int = 100 * MS
    answer_ns: int = 50 * MS
    operations_max: int = 4096
    """As :class:`~inaproto.core.sharing.events.ParticipantConfig` has the three."""


# --- events: the words that reach a participant, and these


@dataclass(frozen=True, slots=True)
class RingStands:
    """The switches have the ring, and the operation ``next_operation`` is bound next.

    ``life`` is drawn by the caller: no two seats of a job on a host may have the same one.
    """

    life: int
    next_operation: OpIndex


@dataclass(frozen=True, slots=True)
class RingEnded:
    """The ring through the switches is gone, and its queue pairs are. May be said twice."""


@dataclass(frozen=True, slots=True)
class ParkWanted:
    """The ring is to leave its switches: say ``Parked`` as soon as it can, once."""


@dataclass(frozen=True, slots=True)
class MayBind:
    """The operation is next, or was told to wait; nothing but its path is missing."""

    index: OpIndex


@dataclass(frozen=True, slots=True)
class OperationBound:
    """The operation has been started, by this path, whether or not anybody asked."""

    index: OpIndex
    path: Path


@dataclass(frozen=True, slots=True)
class OperationDone:
    """All results of the operation are here."""

    index: OpIndex


@dataclass(frozen=True, slots=True)
class OperationDrained:
    """An operation by INA is over: its results are taken, and all that was sent is acknowledged."""

    index: OpIndex


SeatEvent = (
    RingStands
    | RingEnded
    | ParkWanted
    | MayBind
    | OperationBound
    | OperationDone
    | OperationDrained
    | FromCoordinator
    | FromPeer
    | CoordinatorLost
    | Woke
)


# --- actions: the words of a participant, and these


@dataclass(frozen=True, slots=True)
class SeatTaken:
    """The job has this seat from now on; whoever plans is to hear of it."""

    seat: Seat


@dataclass(frozen=True, slots=True)
class SeatLeft:
    """The seat is no more; whoever plans is to hear of that after all that it has said."""

    seat: Seat


@dataclass(frozen=True, slots=True)
class Bind:
    """The answer to ``MayBind``."""

    index: OpIndex
    epoch: Epoch | None
    """Epoch of the turn, for the INA header; None: the fallback."""


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """The answer to ``MayBind`` is not known: ask again after ``AskAgain``, at ``until`` at the latest."""

    index: OpIndex
    until: Instant


@dataclass(frozen=True, slots=True)
class AskAgain:
    """What was told to wait may have an answer now."""


@dataclass(frozen=True, slots=True)
class Parked:
    """Nothing of the ring is under way, and no turn there can be agreed on before it stands again."""


SeatAction = (
    SeatTaken
    | SeatLeft
    | Bind
    | WaitUntil
    | AskAgain
    | Parked
    | TellCoordinator
    | TellPeer
    | Differs
    | Noted
    | Blame
)


class Place(NamedTuple):
    """Where the job is on this host: what its coordinator plans by, and misses if it does not change."""

    operation: int
    """Operation that runs, or that is next."""
    is_running: bool
    uses_ina: bool
    since: Instant


@dataclass(frozen=True, slots=True)
class SeatView:
    seat: Seat | None
    """None: no ring stands."""
    place: Place
    granted: int
    """Operations that were bound to INA, over all seats that the job has had here."""
    participant: ParticipantView | None


class SharingSeat:
    """Pure core; see the module. ``step`` never raises for anything a coordinator or a peer can do."""

    def __init__(self, config: SeatConfig) -> None:
        self._config = config
        self._seat: Seat | None = None
        self._participant: SharingParticipant | None = None
        self._next = OpIndex(0)
        """The operation that the participant hears of next."""
        self._running: dict[OpIndex, Path] = {}
        """Operations that the participant has heard of, and that have not ended."""
        self._answers: dict[OpIndex, Epoch | None] = {}
        """What the participant has said of operations that have not been bound yet."""
        self._held: OpIndex | None = None
        """The operation that a lock keeps from starting."""
        self._waits = False
        """An operation was told to wait, and has not been told to ask again."""
        self._is_parking = False
        self._place: tuple[int, bool, bool, Instant] = (0, False, False, Instant(0))
        """As ``Place`` has them: read seldom, written twice an operation."""
        self._granted = 0

    @property
    def deadline(self) -> Instant | None:
        return None if self._participant is None else self._participant.deadline

    @property
    def place(self) -> Place:
        return Place(*self._place)

    def view(self) -> SeatView:
        participant = None if self._participant is None else self._participant.view()
        return SeatView(self._seat, self.place, self._granted, participant)

    def step(self, event: SeatEvent, now: Instant) -> list[SeatAction]:
        """Raises ``LocalMisuse``, unchanged, if more operations would be under way than may be."""
        match event:
            case MayBind(index):
                return self.may_bind(index, now)
            case OperationBound(index, path):
                return self.bound(index, path, now)
            case OperationDone(index):
                return self.done(index, now)
            case OperationDrained(index):
                return self.drained(index, now)
            case RingStands(life, next_operation):
                return self._stand(life, next_operation, now)
            case RingEnded():
                return self._end_ring(now)
            case ParkWanted():
                actions = []
                self._is_parking = True
            case FromCoordinator() | FromPeer() | CoordinatorLost() | Woke():
                actions = self._hears(event, now)
            case _:
                assert_never(event)
        return self._and_then(actions, now)

    def _and_then(self, actions: list[SeatAction], now: Instant) -> list[SeatAction]:
        if self._waits:
            self._waits = False
            actions.append(AskAgain())
        if self._is_parking:
            actions += self._park_if_free(now)
        return actions

    # --- the ring's life

    def _stand(self, life: int, next_operation: OpIndex, now: Instant) -> list[SeatAction]:
        config, ended = self._config, self._end_ring(now)
        seat = self._seat = Seat(config.job, config.host, life)
        self._participant = SharingParticipant(
            ParticipantConfig(
                seat,
                next_operation,
                ask_ns=config.ask_ns,
                answer_ns=config.answer_ns,
                operations_max=config.operations_max,
            )
        )
        self._next = next_operation
        return [*ended, SeatTaken(seat)]

    def _end_ring(self, now: Instant) -> list[SeatAction]:
        """The words that end the turn come first: nobody listens to a seat that was left."""
        self._is_parking = self._waits = False
        seat = self._seat
        if seat is None:
            return []
        actions: list[SeatAction] = []
        for index in list(self._running):
            actions += self._ended(index)
        actions += self._hears(Closing(), now)
        self._seat = self._participant = None
        self._answers.clear()
        return [*actions, SeatLeft(seat)]

    def _park_if_free(self, now: Instant) -> list[SeatAction]:
        if self._answers:
            return []
        if self._participant is not None:
            view = self._participant.view()
            if view.phase != _FREE or view.turn is not None or view.in_ina:
                return []
        return [*self._end_ring(now), Parked()]

    # --- operations: what each brings, as ``step`` has it too; a host calls these, for it has many

    def may_bind(self, index: OpIndex, now: Instant) -> list[SeatAction]:
        """Whoever asks is not told to ask again, and parks when it has an answer. Raises ``LocalMisuse`` as
        ``step`` does."""
        participant = self._participant
        if participant is None:
            return [Bind(index, None)]
        if index == self._next:
            self._check_room(1)
        actions: list[SeatAction] = []
        if participant.deadline is not None:
            if participant.deadline <= now:
                actions = self._hears(Woke(), now)
            until = participant.awaits(index)
            if until is not None and until > now:
                self._waits = True
                return [*actions, WaitUntil(index, until)]
        if index == self._next:
            actions += self._start(now)
        if index in self._answers:
            self._waits = False
            actions.append(Bind(index, self._answers.pop(index)))
            return actions
        self._waits = True
        return [*actions, WaitUntil(index, participant.deadline or now)]

    def bound(self, index: OpIndex, path: Path, now: Instant) -> list[SeatAction]:
        """Raises ``LocalMisuse`` as ``step`` does."""
        actions: list[SeatAction] = []
        if self._participant is not None and self._next <= index:  # nobody asked: its ring had no choice
            self._check_room(index + 1 - self._next)
            while self._next <= index:
                actions += self._start(now)
        self._place = (index, True, path is Path.INA, now)
        self._answers.pop(index, None)
        if index == self._held:  # its ring has no choice any more
            actions += self._ended(index)
        elif index in self._running:
            self._running[index] = path
        return self._and_then(actions, now)

    def done(self, index: OpIndex, now: Instant) -> list[SeatAction]:
        self._place = (index + 1, False, False, now)
        # What it sent by the fallback there is no switch's concern.
        actions = self._ended(index) if self._running.get(index) is Path.FALLBACK else []
        return self._and_then(actions, now)

    def drained(self, index: OpIndex, now: Instant) -> list[SeatAction]:
        return self._and_then(self._ended(index) if index in self._running else [], now)

    def _start(self, now: Instant) -> list[SeatAction]:
        index, participant = self._next, self._participant
        self._next = OpIndex(index + 1)
        self._running[index] = Path.FALLBACK
        if participant is None or participant.is_locked:
            return self._hears(OperationStarting(index), now)
        told: list[ParticipantAction] = []
        self._answer(index, participant.start(index, told))
        return self._pass_on(told) if told else []

    def _answer(self, index: OpIndex, epoch: Epoch | None) -> None:
        self._held = None
        self._granted += epoch is not None
        self._answers[index] = epoch

    def _check_room(self, more: int) -> None:
        if len(self._running) + more > self._config.operations_max:
            raise LocalMisuse(f"{self._seat}: operation {self._next} would be one of too many under way")

    def _ended(self, index: OpIndex) -> list[SeatAction]:
        del self._running[index]
        if index == self._held:
            self._held = None
        told = [] if self._participant is None else self._participant.ended(index)
        return self._pass_on(told) if told else []

    # --- the participant

    def _hears(self, event: ParticipantEvent, now: Instant) -> list[SeatAction]:
        return [] if self._participant is None else self._pass_on(self._participant.step(event, now))

    def _pass_on(self, told: Iterable[ParticipantAction]) -> list[SeatAction]:
        found: list[SeatAction] = []
        for action in told:
            match action:
                case StartOperation(index, _, epoch):
                    self._answer(index, epoch)
                case HoldOperation(index):
                    self._waits, self._held = True, index
                case TellPeer(to):
                    if to.job == self._config.job:  # nobody carries a word from one job to another
                        found.append(action)
                case Differs(index):
                    if self._running.get(index) is Path.INA:
                        found.append(action)
                case TellCoordinator() | Noted() | Blame():
                    found.append(action)
                case _:
                    assert_never(action)
        return found
