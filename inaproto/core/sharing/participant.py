"""A seat of a sharing group: decides for each operation, by itself, whether it uses the pool (MINA IV-B).

The two sides of the paper's host, which share a lock, are one core here: the *execution* side asks with
``OperationStarting`` on which path the next operation runs, the *synchronisation* side hears the
coordinator. An operation runs on INA if it lies in a turn that stands at this seat: a function of what was
agreed and of the operation's index. There is no clock in it, and no round trip. The paper's hosts evaluate
their policy with the time of day, on which they may differ.

A seat that has voted is LOCKED under the rule ``equal-index``: no operation starts. Under ``by-index`` it is
only VOTED: operations below its own vote plus the margin, or below the first that is wished for, which no
decision can concern, start as before.
After the lease it is IN_DOUBT: it asks the coordinator, then its peers too; operations that the decision
may concern run on the fallback, never on INA. The paper has no such way out (docs/protocol.md 15.5, ours).
Who loses the connection to the coordinator asks its peers at once, and is in doubt soon after.

Invariants: an epoch below ``_floor`` is never used again. A version that was voted on, or promised to a peer
never to be, is not voted on (again). ``Drained`` of an epoch is said only once no operation of it, or of an
older one, is under way and none will start. Nothing that is lost, repeated or late can make two seats run one
operation under two epochs: a vote for a new turn gives up all older ones.

If seats differ, one in doubt and one not, an operation is INA here and the fallback there: it cannot end on
INA, which needs all, so its INA seats take the fallback as well. Both paths give the same bytes. A seat that
falls back in doubt says so (:mod:`inaproto.core.sharing.peers`): most others then do so from the start.
:data:`HANDLERS` is the whole table of (phase, event). The host's part of this process starts and ends
operations by name (``start``, ``ended``), which the two events of that do as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Final

from inaproto.core.sharing.events import (
    Closing,
    CoordinatorLost,
    Differs,
    FromCoordinator,
    FromPeer,
    HoldOperation,
    Mark,
    Noted,
    OperationEnded,
    OperationStarting,
    ParticipantAction,
    ParticipantConfig,
    ParticipantEvent,
    ParticipantView,
    Path,
    StartOperation,
    TellCoordinator,
    Woke,
)
from inaproto.core.sharing.peers import PeerWords
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import Epoch, Instant, OpIndex
from inaproto.wire.messages.sharing import (
    NO_VERSION,
    Abort,
    Ask,
    AskPeer,
    Commit,
    CoordinatorMessage,
    Decision,
    Done,
    Drained,
    EndTurn,
    PeerMessage,
    Prepare,
    Refusal,
    Rule,
    Seat,
    TellPeerDecision,
    Turn,
    Version,
    Vote,
)

NOT_ITS_SEAT: Final = "speaks for another seat"
"""Rule of the blame of a peer."""


class Phase(Enum):
    FREE = "free"
    """No round is undecided."""
    VOTED = "voted"
    LOCKED = "locked"
    IN_DOUBT = "in doubt"

    __hash__ = object.__hash__
    """The table of handlers is asked at every step, and the hash of ``Enum`` is a call of Python."""


class SharingParticipant:
    """Pure core; see the module. ``step`` never raises for anything a coordinator or a peer can do."""

    def __init__(self, config: ParticipantConfig) -> None:
        self._config = config
        self._phase = Phase.FREE
        self._term = 0
        self._round: Prepare | None = None
        """Voted on last."""
        self._vote = config.first_operation
        self._asked = 0
        self._peers = PeerWords(config.seat)
        self._promised = NO_VERSION
        """Nothing up to this one is voted on any more."""
        self._decided = NO_VERSION
        self._decision: Decision | None = None
        self._turn: Turn | None = None
        self._floor = Epoch(0)
        self._owed: Epoch | None = None
        """Drained once the operations of this epoch, and of older ones, have ended."""
        self._next = config.first_operation
        self._running: dict[OpIndex, Epoch | None] = {}
        self._is_held = False
        self._is_closed = False
        self._deadline: Instant | None = None
        self._counters: dict[str, int] = {mark.value: 0 for mark in Mark}

    @property
    def deadline(self) -> Instant | None:
        return self._deadline

    def step(self, event: ParticipantEvent, now: Instant) -> list[ParticipantAction]:
        """Raises ``LocalMisuse`` for operations out of order, unchanged."""
        said: ParticipantEvent | CoordinatorMessage | PeerMessage = event
        if isinstance(event, FromCoordinator):
            said = event.message
            if said.seat != self._config.seat or said.term < self._term:
                return [self._note(Mark.STALE)]
            self._term = said.term
        elif isinstance(event, FromPeer):
            said = event.message
            if said.sender != event.seat:
                return [Blame(str(event.seat), NOT_ITS_SEAT, str(said.sender))]
            if said.seat != self._config.seat:
                return [self._note(Mark.STALE)]
        return HANDLERS[self._phase, type(said)](self, said, now)

    def view(self) -> ParticipantView:
        return ParticipantView(
            phase=self._phase.value,
            term=self._term,
            version=self._voted,
            next_operation=self._next,
            turn=self._turn,
            is_locked=self.is_locked,
            is_held=self._is_held,
            in_ina=tuple((index, epoch) for index, epoch in self._running.items() if epoch is not None),
            counters=dict(self._counters),
        )

    @property
    def is_locked(self) -> bool:
        """No operation starts."""
        return self._phase is Phase.LOCKED

    def awaits(self, index: OpIndex) -> Instant | None:
        """Until when a decision is expected that may concern the operation; None: none is.

        Who starts it sooner runs it by the fallback, and other seats perhaps by INA, which costs more than
        to wait. A seat that waits may not do so for longer.
        """
        return self._deadline if self._phase is Phase.VOTED and self._is_doubtful(index) else None

    @property
    def _voted(self) -> Version:
        return NO_VERSION if self._round is None else self._round.version

    @property
    def _seat(self) -> Seat:
        return self._config.seat

    def _note(self, mark: Mark, version: Version = NO_VERSION) -> Noted:
        self._counters[mark.value] += 1
        return Noted(mark, version)

    # --- rounds

    def _prepare(self, said: Prepare, now: Instant) -> list[ParticipantAction]:
        """What is undecided here was aborted: no round begins before all are done with a decision."""
        if said.version <= max(self._voted, self._decided):
            return [self._note(Mark.STALE, said.version)]
        if said.version <= self._promised or self._is_closed:
            return [TellCoordinator(Refusal(self._seat, said.version))]
        owed = self._peers.pay(self._voted, None)
        self._round, self._vote, self._asked = said, self._next, 0
        self._give_up(Epoch(said.over_below - 1))
        in_ina = any(epoch is not None for epoch in self._running.values())
        actions: list[ParticipantAction] = [
            *owed,
            TellCoordinator(Vote(self._seat, said.version, self._next, in_ina)),
            *self._pay(),
        ]
        self._phase = Phase.LOCKED if said.rule is Rule.EQUAL_INDEX else Phase.VOTED
        self._deadline = Instant(now + min(said.lease_ns, self._config.lease_max_ns))
        return actions if self._phase is Phase.LOCKED else [*actions, *self._start_held()]

    def _commit(self, said: Commit, now: Instant) -> list[ParticipantAction]:
        if said.version < self._decided:
            return [self._note(Mark.STALE, said.version)]
        marks: list[ParticipantAction] = []
        if self._phase is Phase.IN_DOUBT and said.version >= self._voted:
            marks = [self._note(Mark.RESOLVED_BY_COORDINATOR, said.version)]
        return [*marks, *self._apply(said.version, said.decision)]

    def _abort(self, said: Abort, now: Instant) -> list[ParticipantAction]:
        """One that comes before its ``Prepare`` counts as well."""
        self._promised = max(self._promised, said.version)
        if said.version != self._voted or self._phase is Phase.FREE:
            return []
        marks: list[ParticipantAction] = []
        if self._phase is Phase.IN_DOUBT:
            marks = [self._note(Mark.RESOLVED_BY_COORDINATOR, said.version)]
        return [*marks, *self._unlock()]

    def _apply(self, version: Version, decision: Decision) -> list[ParticipantAction]:
        """What has been decided counts, whatever a peer has said of it."""
        actions: list[ParticipantAction] = [TellCoordinator(Done(self._seat, version))]
        if version > self._decided:
            self._decided, self._decision = version, decision
            self._promised = max(self._promised, version)
            turn = self._turn
            if turn is not None and turn.epoch == decision.ended:
                self._shorten(turn, decision.until)
        granted = decision.granted
        if granted is not None and granted.job == self._seat.job:
            if granted.epoch < self._floor or self._is_closed:
                self._give_up(granted.epoch)
                self._owe(granted.epoch)
            elif self._turn is None or self._turn.epoch < granted.epoch:
                self._give_up(Epoch(granted.epoch - 1))
                self._turn = granted
        if self._phase is not Phase.FREE and version >= self._voted:
            actions += self._unlock()
        self._pass_end()
        return [*actions, *self._pay()]

    def _unlock(self) -> list[ParticipantAction]:
        """The round is decided."""
        self._phase, self._deadline = Phase.FREE, None
        decision = self._decision if self._voted == self._decided else None
        return [*self._peers.pay(self._voted, decision), *self._start_held()]

    def _too_late(self, said: object, now: Instant) -> list[ParticipantAction]:
        return [self._note(Mark.STALE)]

    # --- doubt

    def _nothing_due(self, said: Woke | CoordinatorLost, now: Instant) -> list[ParticipantAction]:
        return []

    def _lost(self, said: CoordinatorLost, now: Instant) -> list[ParticipantAction]:
        """What it has told one of them it need not tell the others; what it has told none may take long."""
        if self._phase is not Phase.IN_DOUBT and self._deadline is not None:
            self._deadline = min(self._deadline, Instant(now + self._config.answer_ns))
        self._asked += 1
        return [*self._peers.ask(self._round)]

    def _lease_over(self, said: Woke, now: Instant) -> list[ParticipantAction]:
        if self._deadline is None or now < self._deadline:
            return []
        self._phase = Phase.IN_DOUBT
        return [self._note(Mark.IN_DOUBT, self._voted), *self._ask(now), *self._start_held()]

    def _ask_again(self, said: Woke, now: Instant) -> list[ParticipantAction]:
        if self._deadline is None or now < self._deadline:
            return []
        return self._ask(now)

    def _ask(self, now: Instant) -> list[ParticipantAction]:
        """The coordinator first, then all."""
        self._deadline = Instant(now + self._config.ask_ns)
        peers = self._peers.ask(self._round) if self._asked else []
        self._asked += 1
        return [TellCoordinator(Ask(self._seat, self._voted)), *peers]

    def _asked_by_peer(self, said: AskPeer, now: Instant) -> list[ParticipantAction]:
        actions = self._told_of_fallback(said)
        if said.version > max(self._voted, self._decided, self._promised):
            self._promised = said.version
            actions.append(self._note(Mark.PROMISED, said.version))
        elif said.version == self._voted and self._phase is not Phase.FREE:
            self._peers.owe(said.sender, self._round)
            return actions
        # A later round has begun, or the seat will never vote: so if the decision is not this one, none was.
        decision = self._decision if said.version == self._decided else None
        return [*actions, self._peers.answer(said.sender, said.version, decision)]

    def _told_of_fallback(self, said: AskPeer) -> list[ParticipantAction]:
        index = said.fell_back
        if index is None or said.sender.job != self._seat.job:
            return []
        if index >= self._next:
            self._peers.told_of(index)
            return []
        if self._running.get(index) is None:
            return []
        return [self._note(Mark.DIFFERS), Differs(index, said.sender)]

    def _told_by_peer(self, said: TellPeerDecision, now: Instant) -> list[ParticipantAction]:
        round_ = self._round
        if round_ is None or said.version != round_.version or said.sender not in round_.peers:
            return [self._note(Mark.STALE, said.version)]
        resolved = self._note(Mark.RESOLVED_BY_PEER, said.version)
        if said.decision is None:
            return [resolved, *self._unlock()]
        return [resolved, *self._apply(said.version, said.decision)]

    # --- turns

    def _end_turn(self, said: EndTurn, now: Instant) -> list[ParticipantAction]:
        turn = self._turn
        if turn is not None and turn.epoch == said.epoch:
            if said.until is not None:
                self._shorten(turn, said.until)
        elif said.epoch < self._floor or said.until is not None:
            self._give_up(said.epoch)
            self._owe(said.epoch)
        self._pass_end()
        return self._pay()

    def _shorten(self, turn: Turn, until: OpIndex) -> None:
        if turn.until is None or until < turn.until:
            self._turn = replace(turn, until=until)

    def _give_up(self, epoch: Epoch) -> None:
        """The turn of this epoch, and of older ones, whether or not the seat had heard of it."""
        self._floor = max(self._floor, Epoch(epoch + 1))
        if self._turn is not None and self._turn.epoch < self._floor:
            self._turn = None

    def _owe(self, epoch: Epoch) -> None:
        self._owed = epoch if self._owed is None else max(self._owed, epoch)

    def _pass_end(self) -> None:
        """Gives the turn up if the next operation is behind its end."""
        turn = self._turn
        if turn is not None and turn.until is not None and turn.until <= self._next:
            self._give_up(turn.epoch)
            self._owe(turn.epoch)

    def _pay(self) -> list[ParticipantAction]:
        owed = self._owed
        if owed is None or any(epoch is not None and epoch <= owed for epoch in self._running.values()):
            return []
        self._owed = None
        return [TellCoordinator(Drained(self._seat, owed))]

    def _close(self, said: Closing, now: Instant) -> list[ParticipantAction]:
        self._is_closed, self._is_held = True, False
        if self._turn is not None:
            self._owe(self._turn.epoch)
            self._give_up(self._turn.epoch)
        return self._pay()

    # --- operations

    def _starting(self, said: OperationStarting, now: Instant) -> list[ParticipantAction]:
        self._check_start(said.index)
        return self._start()

    def _hold(self, said: OperationStarting, now: Instant) -> list[ParticipantAction]:
        self._check_start(said.index)
        self._is_held = True
        assert self._deadline is not None, "a lock has a lease"
        return [HoldOperation(said.index, self._deadline), self._note(Mark.HELD, self._voted)]

    def _check_start(self, index: OpIndex) -> None:
        if self._is_closed or self._is_held or index != self._next:
            state = "closed" if self._is_closed else "held" if self._is_held else f"at {self._next}"
            raise LocalMisuse(f"{self._seat}: operation {index} cannot start: the seat is {state}")
        if len(self._running) >= self._config.operations_max:
            raise LocalMisuse(f"{self._seat}: operation {index} would be one of too many under way")

    def _start_held(self) -> list[ParticipantAction]:
        is_held, self._is_held = self._is_held, False
        return self._start() if is_held else []

    def start(self, index: OpIndex, told: list[ParticipantAction]) -> Epoch | None:
        """The operation starts, at a seat that no lock holds: its epoch, as ``StartOperation`` has it.

        What there is to be said is added to ``told``. Raises ``LocalMisuse`` as ``step`` does.
        """
        if self.is_locked:
            raise LocalMisuse(f"{self._seat}: operation {index} cannot start: the seat is locked")
        self._check_start(index)
        epoch = self._decide(told)
        if self._owed is not None:
            told += self._pay()
        return epoch

    def _start(self) -> list[ParticipantAction]:
        index = self._next
        told: list[ParticipantAction] = []
        epoch = self._decide(told)
        told.append(StartOperation(index, Path.FALLBACK if epoch is None else Path.INA, epoch))
        return told + self._pay()

    def _decide(self, told: list[ParticipantAction]) -> Epoch | None:
        """The epoch of the next operation, which is under way now."""
        index = self._next
        epoch = self._epoch_for(index)
        if self._is_doubtful(index) and self._concerns_us(epoch):
            epoch = None
            told.append(self._note(Mark.FELL_BACK_IN_DOUBT, self._voted))
            if self._phase is Phase.IN_DOUBT:  # else it need not have started now
                told += self._peers.ask(self._round, index)
        if self._peers.runs(index) and epoch is not None:
            epoch = None
            told.append(self._note(Mark.FOLLOWED_PEER))
            if self._round is not None and self._round.seats > len(self._round.peers):
                told += self._peers.ask(self._round, index)  # others are peers of this seat alone
        self._next = OpIndex(index + 1)
        self._running[index] = epoch
        self._pass_end()
        return epoch

    def _epoch_for(self, index: OpIndex) -> Epoch | None:
        turn = self._turn
        return turn.epoch if turn is not None and turn.covers(index) else None

    def _is_doubtful(self, index: OpIndex) -> bool:
        """Whether a decision that was not heard may concern the operation."""
        said = self._round
        if said is None or self._phase is Phase.FREE:
            return False
        return said.rule is Rule.EQUAL_INDEX or index >= max(self._vote + said.margin, said.first)

    def _concerns_us(self, epoch: Epoch | None) -> bool:
        """Whether the turn that covers the operation may have ended, or one may have begun that does."""
        said = self._round
        return epoch is not None or (said is not None and said.granted == self._seat.job)

    def _ended(self, said: OperationEnded, now: Instant) -> list[ParticipantAction]:
        return self.ended(said.index)

    def ended(self, index: OpIndex) -> list[ParticipantAction]:
        """As ``step`` with ``OperationEnded``."""
        if self._is_held and index == self._next:  # its ring went, and the job on without it
            self._is_held, self._next = False, OpIndex(index + 1)
            self._pass_end()
            return self._pay()
        if index not in self._running:
            raise LocalMisuse(f"{self._seat}: operation {index} ended, but is not under way")
        del self._running[index]
        return self._pay()


Handler = Callable[..., list[ParticipantAction]]
"""Method of :class:`SharingParticipant`, called with what was said and the time."""

HANDLERS: Final[Mapping[tuple[Phase, type], Handler]] = {
    (Phase.FREE, Prepare): SharingParticipant._prepare,
    (Phase.FREE, Commit): SharingParticipant._commit,
    (Phase.FREE, Abort): SharingParticipant._abort,
    (Phase.FREE, EndTurn): SharingParticipant._end_turn,
    (Phase.FREE, AskPeer): SharingParticipant._asked_by_peer,
    (Phase.FREE, TellPeerDecision): SharingParticipant._too_late,
    (Phase.FREE, OperationStarting): SharingParticipant._starting,
    (Phase.FREE, OperationEnded): SharingParticipant._ended,
    (Phase.FREE, Closing): SharingParticipant._close,
    (Phase.FREE, CoordinatorLost): SharingParticipant._nothing_due,
    (Phase.FREE, Woke): SharingParticipant._nothing_due,
    (Phase.VOTED, Prepare): SharingParticipant._prepare,
    (Phase.VOTED, Commit): SharingParticipant._commit,
    (Phase.VOTED, Abort): SharingParticipant._abort,
    (Phase.VOTED, EndTurn): SharingParticipant._end_turn,
    (Phase.VOTED, AskPeer): SharingParticipant._asked_by_peer,
    (Phase.VOTED, TellPeerDecision): SharingParticipant._told_by_peer,
    (Phase.VOTED, OperationStarting): SharingParticipant._starting,
    (Phase.VOTED, OperationEnded): SharingParticipant._ended,
    (Phase.VOTED, Closing): SharingParticipant._close,
    (Phase.VOTED, CoordinatorLost): SharingParticipant._lost,
    (Phase.VOTED, Woke): SharingParticipant._lease_over,
    (Phase.LOCKED, Prepare): SharingParticipant._prepare,
    (Phase.LOCKED, Commit): SharingParticipant._commit,
    (Phase.LOCKED, Abort): SharingParticipant._abort,
    (Phase.LOCKED, EndTurn): SharingParticipant._end_turn,
    (Phase.LOCKED, AskPeer): SharingParticipant._asked_by_peer,
    (Phase.LOCKED, TellPeerDecision): SharingParticipant._told_by_peer,
    (Phase.LOCKED, OperationStarting): SharingParticipant._hold,
    (Phase.LOCKED, OperationEnded): SharingParticipant._ended,
    (Phase.LOCKED, Closing): SharingParticipant._close,
    (Phase.LOCKED, CoordinatorLost): SharingParticipant._lost,
    (Phase.LOCKED, Woke): SharingParticipant._lease_over,
    (Phase.IN_DOUBT, Prepare): SharingParticipant._prepare,
    (Phase.IN_DOUBT, Commit): SharingParticipant._commit,
    (Phase.IN_DOUBT, Abort): SharingParticipant._abort,
    (Phase.IN_DOUBT, EndTurn): SharingParticipant._end_turn,
    (Phase.IN_DOUBT, AskPeer): SharingParticipant._asked_by_peer,
    (Phase.IN_DOUBT, TellPeerDecision): SharingParticipant._told_by_peer,
    (Phase.IN_DOUBT, OperationStarting): SharingParticipant._starting,
    (Phase.IN_DOUBT, OperationEnded): SharingParticipant._ended,
    (Phase.IN_DOUBT, Closing): SharingParticipant._close,
    (Phase.IN_DOUBT, CoordinatorLost): SharingParticipant._lost,
    (Phase.IN_DOUBT, Woke): SharingParticipant._ask_again,
}
