"""Who has the turn at a pool: the coordinator of a sharing group's two-phase commit (MINA section IV-B).

The planner says whose turn it should be (``TurnWanted``, level-triggered); this core brings it about, one
round at a time. A round *grants* a turn, *ends* one, or does both:

- ``equal-index``, as the paper has it: all seats of the group are asked and locked (steps 1 to 3); it is
  committed if the seats of each job are at the same operation (step 4), else aborted and tried again after a
  back-off (step 5). Ours in addition: no seat of the job whose turn ends is in an INA operation, so the turn
  has drained with the commit. The paper's text leaves open what becomes of such an operation.
- ``by-index``, ours: only the seats of the job in question are asked, none is locked, none can be at a wrong
  operation. What is decided holds from the greatest index reported plus a margin, a turn not before the
  first operation that is wished for. A turn is granted when there is room, and one that ends keeps its room
  until all its seats have drained. A seat may start the first operation of a turn before it hears of it, so
  by the fallback: its peers, which start it on INA, are rescued, as all differences between seats are. No
  index that is named without locks can be one that nobody has started when the commit arrives.

Where the paper is silent (protocol.md 6): a decision is persisted before the first ``Commit`` leaves; who
asks about a round that is not in the log hears that it was aborted; commits are repeated until all seats are
done, and no round begins before. A restarted coordinator takes a new term, durable before anything else, and
repeats the last decision. One that lost its place may persist nothing any more: the store sees to that.

A turn is ended without a round (``EndTurn``) when its job lost or got a seat, when a seat has given it up,
when no switch takes its packets any more, or, ours as well, when seats of equal indices outside INA have been
waited for in vain (``objections_max``): to stop using INA needs nobody's consent.

After a restart the planner and the shell say again: the seats, the wish, who is held, which seats are gone.
:data:`HANDLERS` is the table of (phase, event) of the rounds; what concerns turns, seats and wishes is the
same in all phases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, assert_never

from inaproto.core.sharing_types import (
    FromSeat,
    JobDrained,
    JobHeld,
    JobReleased,
    Mark,
    Noted,
    Persist,
    Persisted,
    PoolFree,
    RingRemoved,
    SeatGone,
    SeatsChanged,
    SharingAction,
    SharingConfig,
    SharingEvent,
    SharingRecord,
    SharingView,
    Tell,
    TurnStands,
    TurnWanted,
    Woke,
)
from inaproto.core.sharing_words import (
    AT_ONCE,
    NO_VERSION,
    Abort,
    Ask,
    Commit,
    Decision,
    Done,
    Drained,
    EndTurn,
    Prepare,
    Refusal,
    Rule,
    Seat,
    SeatMessage,
    Turn,
    Version,
    Vote,
)
from inaproto.core.standing_turns import Standing, StandingTurns
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import Epoch, Instant, JobId, OpIndex

NOT_ITS_SEAT: Final = "speaks for another seat"
VOTED_TWICE: Final = "voted twice, and not the same"
"""Rules of the blame of a seat."""


class Phase(Enum):
    NEW = "new"
    """To be woken."""
    STARTING = "starting"
    """Its term is not durable yet."""
    IDLE = "idle"
    PREPARING = "preparing"
    DECIDING = "deciding"
    """The commit is not durable yet."""
    COMMITTING = "committing"
    BACKING_OFF = "backing off"


@dataclass(frozen=True, slots=True)
class _Change:
    """What a round is about."""

    granted: JobId | None
    operations: int | None
    ended: Epoch | None
    seats: tuple[Seat, ...]
    first: OpIndex = field(default=AT_ONCE, compare=False)


@dataclass(slots=True)
class _Round:
    version: Version
    change: _Change
    votes: dict[Seat, Vote] = field(default_factory=dict)


class SharingCoordinator:
    """Pure core; see the module. ``step`` never raises for anything that a seat can do."""

    def __init__(self, config: SharingConfig, record: SharingRecord | None = None) -> None:
        """``record``: the last one that was persisted for the group, if any."""
        self._config = config
        self._record = SharingRecord(0, Epoch(0)) if record is None else record
        self._term = self._record.term + 1
        self._number = 0
        self._epoch = self._record.epoch
        self._turns = StandingTurns(self._record.turns)
        self._phase = Phase.NEW
        self._seats: tuple[Seat, ...] | None = None
        self._wish: TurnWanted | None = None
        self._held: dict[JobId, bool] = {}
        """Whether it was said that they have drained."""
        self._round: _Round | None = None
        self._pending: SharingRecord | None = None
        """Being made durable."""
        self._missing: dict[Seat, None] = {}
        """Not done yet."""
        self._gone: dict[Seat, None] = {}
        """Since the last round began: what is being made durable may name them."""
        self._token = 0
        self._aborted = 0
        """Rounds, one after the other."""
        self._objected: dict[Epoch, int] = {}
        """By turn, how many rounds that would have ended it."""
        self._deadline: Instant | None = Instant(0)
        self._poll: Instant | None = None
        self._counters: dict[str, int] = {mark.value: 0 for mark in Mark}

    @property
    def deadline(self) -> Instant | None:
        armed = [one for one in (self._deadline, self._poll) if one is not None]
        return min(armed, default=None)

    def step(self, event: SharingEvent, now: Instant) -> list[SharingAction]:
        """Raises ``LocalMisuse``, unchanged, for wishes and seats that are out of bounds."""
        actions: list[SharingAction] = []
        match event:
            case TurnWanted():
                if (event.operations is not None and event.operations < 1) or (event.first or 0) < 0:
                    raise LocalMisuse(f"a turn of {event.operations} operations from {event.first}")
                self._wish = event
            case SeatsChanged(seats):
                if len(seats) > self._config.seats_max or len(dict.fromkeys(seats)) < len(seats):
                    raise LocalMisuse(f"{len(seats)} seats are too many, or one is there twice")
                self._seats = seats
            case SeatGone(seat):
                actions = self._seat_gone(seat, now)
            case RingRemoved(job, epoch):
                actions = [PoolFree(one) for one in self._turns.fence(job, epoch)]
            case JobHeld(job):
                self._held[job] = False
            case JobReleased(job):
                self._held.pop(job, None)
            case FromSeat(seat, message):
                actions = self._heard(seat, message, now)
            case Persisted():
                actions = HANDLERS[self._phase, Persisted](self, event, now)
            case Woke():
                actions = [*HANDLERS[self._phase, Woke](self, event, now), *self._poll_drains(now)]
            case _:
                assert_never(event)
        return [*actions, *self._settle(now)]

    def view(self) -> SharingView:
        missing = tuple(self._missing)
        if self._phase is Phase.PREPARING and self._round is not None:
            missing = tuple(one for one in self._round.change.seats if one not in self._round.votes)
        return SharingView(
            phase=self._phase.value,
            term=self._term,
            version=NO_VERSION if self._round is None else self._round.version,
            turns=self._turns.view(),
            wanted=None if self._wish is None else self._wish.job,
            missing=missing,
            counters=dict(self._counters),
        )

    def _note(self, mark: Mark, version: Version = NO_VERSION) -> Noted:
        self._counters[mark.value] += 1
        return Noted(mark, version)

    # --- start

    def _start(self, event: Woke, now: Instant) -> list[SharingAction]:
        self._phase = Phase.STARTING
        return self._persist(replace(self._record, term=self._term))

    def _persist(self, record: SharingRecord) -> list[SharingAction]:
        self._pending, self._deadline = record, None
        self._token += 1
        return [Persist(record, self._token)]

    def _is_durable(self, event: Persisted) -> bool:
        if self._pending is None or event.token != self._token:
            return False
        self._record, self._pending = self._pending, None
        return True

    def _started(self, event: Persisted, now: Instant) -> list[SharingAction]:
        if not self._is_durable(event):
            return []
        record = self._record
        actions: list[SharingAction] = [_stands(one) for one in self._turns]
        # Of what was decided before the last round all had heard: they are only asked whether it still holds.
        for one in self._turns:
            asked = [seat for seat in one.undrained if seat not in record.told]
            actions += self._tell_end(one, asked)
        if record.decision is None:
            self._phase = Phase.IDLE
            return actions
        actions.append(self._note(Mark.RECOVERED, record.version))
        return [*actions, *self._tell_commit(record.told, now)]

    # --- rounds

    def _settle(self, now: Instant) -> list[SharingAction]:
        """After each event: what it makes possible, or pointless."""
        actions: list[SharingAction] = [PoolFree(epoch) for epoch in self._turns.remove_drained()]
        actions += self._end_turns_that_cannot_go_on()
        change = self._change()
        if self._phase is Phase.PREPARING and self._round is not None and self._round.change != change:
            actions += self._abort(Mark.ABORTED_CHANGED, now)
            self._phase, self._deadline, self._aborted = Phase.IDLE, None, 0
        if self._phase is Phase.BACKING_OFF and change is None:
            self._phase, self._deadline, self._aborted = Phase.IDLE, None, 0
        if self._phase is Phase.IDLE and change is not None:
            actions += self._begin(change, now)
        if not any(not one.is_open for one in self._turns):
            self._poll = None
        elif self._poll is None:
            self._poll = Instant(now + self._config.resend_ns)
        return [*actions, *self._say_who_drained()]

    def _change(self) -> _Change | None:
        """What should be agreed on next."""
        seats, wish = self._seats, self._wish
        if seats is None:
            return None
        job = None if wish is None else wish.job
        if job in self._held or not any(seat.job == job for seat in seats):
            job = None
        if job is not None and self._turns.of_job(job) is not None:
            job = None
        ended = self._turn_to_end(job)
        has_room = self._turns.occupied < self._config.capacity
        at_once = self._config.rule is Rule.EQUAL_INDEX and ended is not None
        granted = job if has_room or at_once else None
        if self._config.rule is Rule.BY_INDEX and granted is not None:
            ended = None
        if granted is None and ended is None:
            return None
        if self._config.rule is Rule.BY_INDEX:
            whose = granted if ended is None else ended.turn.job
            seats = tuple(seat for seat in seats if seat.job == whose)
        epoch = None if ended is None else ended.turn.epoch
        if granted is None or wish is None:
            return _Change(None, None, epoch, seats)
        return _Change(granted, wish.operations, epoch, seats, wish.first or AT_ONCE)

    def _turn_to_end(self, wanted: JobId | None) -> Standing | None:
        """``wanted``: the job that shall have a turn, and has none."""
        is_open = [one for one in self._turns if one.is_open]
        for one in is_open:
            if one.turn.job in self._held:
                return one
        if self._wish is None or not is_open:
            return None
        if self._wish.job is None:
            return is_open[0]
        is_full = self._turns.occupied >= self._config.capacity
        is_ending = len(is_open) < self._turns.occupied
        return is_open[0] if wanted is not None and is_full and not is_ending else None

    def _begin(self, change: _Change, now: Instant) -> list[SharingAction]:
        self._number += 1
        self._gone.clear()
        version = Version(self._term, self._number)
        self._round = _Round(version, change)
        self._phase = Phase.PREPARING
        self._deadline = Instant(now + self._config.vote_ns)
        actions: list[SharingAction] = [self._note(Mark.ROUND_BEGUN, version)]
        for seat in change.seats:
            standing = self._turns.of_job(seat.job)
            prepare = Prepare(
                seat=seat,
                term=self._term,
                version=version,
                rule=self._config.rule,
                granted=change.granted,
                ended=change.ended,
                over_below=Epoch(self._epoch + 1) if standing is None else standing.turn.epoch,
                margin=self._margin(change),
                lease_ns=self._config.lease_ns,
                peers=change.seats,
                first=change.first,
            )
            actions.append(Tell(seat, prepare))
        return actions

    def _voted(self, vote: Vote, now: Instant) -> list[SharingAction]:
        round_ = self._round
        assert round_ is not None, "a round is being prepared"
        if vote.version != round_.version or vote.seat not in round_.change.seats:
            return self._answer(vote.seat, vote.version)
        if round_.votes.setdefault(vote.seat, vote) != vote:
            return [Blame(str(vote.seat), VOTED_TWICE, f"{round_.votes[vote.seat]}, then {vote}")]
        objection = self._objection(round_)
        if objection is not None:
            self._count_objection(round_)
            return self._abort(objection, now)
        if len(round_.votes) < len(round_.change.seats):
            return []
        return self._decide(round_)

    def _objection(self, round_: _Round) -> Mark | None:
        """Step 4. By index there is none."""
        if self._config.rule is Rule.BY_INDEX:
            return None
        indices: dict[JobId, OpIndex] = {}
        for seat, vote in round_.votes.items():
            if indices.setdefault(seat.job, vote.index) != vote.index:
                return Mark.ABORTED_UNEQUAL
        ended = self._turns.with_epoch(round_.change.ended)
        if ended is None:
            return None
        is_in_ina = any(vote.in_ina for seat, vote in round_.votes.items() if seat.job == ended.turn.job)
        return Mark.ABORTED_IN_INA if is_in_ina else None

    def _count_objection(self, round_: _Round) -> None:
        """After some the turn ends by itself: to stop using INA needs nobody's consent."""
        ended = self._turns.with_epoch(round_.change.ended)
        if ended is None or self._config.objections_max is None:
            return
        epoch = ended.turn.epoch
        count = self._objected.get(epoch, 0) + 1
        self._objected = {epoch: count}
        if count == self._config.objections_max:
            here = [vote.index for seat, vote in round_.votes.items() if seat.job == ended.turn.job]
            ended.shorten(OpIndex(max(here, default=AT_ONCE) + self._config.end_margin))

    def _decide(self, round_: _Round) -> list[SharingAction]:
        change = round_.change
        granted, until, ended = None, AT_ONCE, self._turns.with_epoch(change.ended)
        if ended is not None:
            until = self._index_for(round_, ended.turn.job)
        epoch = self._epoch
        if change.granted is not None:
            epoch = self._turns.next_epoch(epoch, self._config.capacity, ended)
            first = max(self._index_for(round_, change.granted), change.first)
            last = None if change.operations is None else OpIndex(first + change.operations)
            granted = Turn(change.granted, epoch, first, last)
        decision = Decision(granted, change.ended, until)
        after = StandingTurns(self._turns.records())
        self._apply(after, decision, change.seats)
        self._phase = Phase.DECIDING
        return self._persist(
            SharingRecord(self._term, epoch, after.records(), round_.version, decision, change.seats)
        )

    def _index_for(self, round_: _Round, job: JobId) -> OpIndex:
        """The first operation of ``job`` that the decision concerns."""
        greatest = max(vote.index for seat, vote in round_.votes.items() if seat.job == job)
        return OpIndex(greatest + self._margin(round_.change))

    def _margin(self, change: _Change) -> int:
        if self._config.rule is Rule.EQUAL_INDEX:
            return 0
        return self._config.end_margin if change.granted is None else self._config.margin

    def _apply(self, turns: StandingTurns, decision: Decision, told: tuple[Seat, ...]) -> None:
        ended = turns.with_epoch(decision.ended)
        if ended is not None and self._config.rule is Rule.EQUAL_INDEX:
            turns.end(ended.turn.epoch)
        elif ended is not None:
            ended.shorten(decision.until)
            ended.told = ended.turn.until
        granted = decision.granted
        if granted is not None:
            turns.begin(granted, tuple(seat for seat in told if seat.job == granted.job))

    def _decided(self, event: Persisted, now: Instant) -> list[SharingAction]:
        """It is durable, and may be seen."""
        if not self._is_durable(event):
            return []
        record, decision = self._record, self._record.decision
        assert decision is not None, "a round has one"
        self._epoch, self._aborted = record.epoch, 0
        occupied = [one.turn.epoch for one in self._turns if not one.is_fenced]
        self._apply(self._turns, decision, record.told)
        actions: list[SharingAction] = [self._note(Mark.COMMITTED, record.version)]
        actions += [PoolFree(one) for one in occupied if self._turns.with_epoch(one) is None]
        changed = (decision.ended, None if decision.granted is None else decision.granted.epoch)
        actions += [_stands(one) for one in self._turns if one.turn.epoch in changed]
        return [*actions, *self._tell_commit(record.told, now)]

    def _tell_commit(self, seats: tuple[Seat, ...], now: Instant) -> list[SharingAction]:
        here = [seat for seat in seats if seat not in self._gone]
        self._phase, self._missing = Phase.COMMITTING, dict.fromkeys(here)
        self._deadline = Instant(now + self._config.resend_ns)
        for seat in self._gone:
            self._turns.gone(seat)
            self._no_longer_missing(seat)
        return [self._commit_for(seat) for seat in here]

    def _commit_for(self, seat: Seat) -> Tell:
        record = self._record
        assert record.decision is not None, "a decision is durable"
        return Tell(seat, Commit(seat, self._term, record.version, record.decision))

    def _repeat(self, event: Woke, now: Instant) -> list[SharingAction]:
        if self._deadline is None or now < self._deadline:
            return []
        self._deadline = Instant(now + self._config.resend_ns)
        again = self._note(Mark.SENT_AGAIN, self._record.version)
        return [again, *(self._commit_for(seat) for seat in self._missing)]

    def _done(self, message: Done, now: Instant) -> list[SharingAction]:
        if message.version == self._record.version:
            self._no_longer_missing(message.seat)
        return []

    def _no_longer_missing(self, seat: Seat) -> None:
        self._missing.pop(seat, None)
        if not self._missing:
            self._phase, self._deadline = Phase.IDLE, None

    def _refused(self, message: Refusal, now: Instant) -> list[SharingAction]:
        round_ = self._round
        if round_ is None or message.version != round_.version:
            return []
        return self._abort(Mark.ABORTED_REFUSED, now)

    def _votes_late(self, event: Woke, now: Instant) -> list[SharingAction]:
        if self._deadline is None or now < self._deadline:
            return []
        return self._abort(Mark.ABORTED_LATE, now)

    def _abort(self, why: Mark, now: Instant) -> list[SharingAction]:
        """Step 5. It needs no log: what is not in there was aborted."""
        round_, config = self._round, self._config
        assert round_ is not None, "a round is being prepared"
        jitter_ns = config.retry_jitter_ns[self._number % len(config.retry_jitter_ns)]
        doublings = min(self._aborted, config.retry_doublings_max)
        self._aborted += 1
        self._phase = Phase.BACKING_OFF
        self._deadline = Instant(now + (config.retry_ns << doublings) + jitter_ns)
        told = [Tell(seat, Abort(seat, self._term, round_.version)) for seat in round_.change.seats]
        return [self._note(why, round_.version), *told]

    def _retry(self, event: Woke, now: Instant) -> list[SharingAction]:
        if self._deadline is not None and now >= self._deadline:
            self._phase, self._deadline = Phase.IDLE, None
        return []

    # --- what seats say

    def _heard(self, seat: Seat, message: SeatMessage, now: Instant) -> list[SharingAction]:
        if message.seat != seat:
            return [Blame(str(seat), NOT_ITS_SEAT, str(message.seat))]
        if isinstance(message, Drained):
            self._turns.drained(seat, message.epoch)
            return []
        return HANDLERS[self._phase, type(message)](self, message, now)

    def _asked(self, message: Ask | Vote, now: Instant) -> list[SharingAction]:
        return self._answer(message.seat, message.version)

    def _asked_in_round(self, message: Ask | Vote, now: Instant) -> list[SharingAction]:
        """Nothing is known yet of the round that is being decided."""
        if self._round is not None and message.version == self._round.version:
            return []
        return self._answer(message.seat, message.version)

    def _answer(self, seat: Seat, version: Version) -> list[SharingAction]:
        if self._record.decision is not None and version == self._record.version:
            return [self._commit_for(seat)] if seat in self._record.told else []
        marks: list[SharingAction] = []
        if version.term < self._term:
            marks = [self._note(Mark.PRESUMED_ABORT, version)]
        return [*marks, Tell(seat, Abort(seat, self._term, version))]

    def _seat_gone(self, seat: Seat, now: Instant) -> list[SharingAction]:
        self._gone[seat] = None
        self._turns.gone(seat)
        if self._seats is not None:
            self._seats = tuple(one for one in self._seats if one != seat)
        if self._phase is Phase.COMMITTING:
            self._no_longer_missing(seat)
        return []

    def _ignore(self, event: object, now: Instant) -> list[SharingAction]:
        return [self._note(Mark.STALE)] if isinstance(event, Vote | Refusal | Done | Ask) else []

    # --- turns

    def _end_turns_that_cannot_go_on(self) -> list[SharingAction]:
        if self._phase in (Phase.NEW, Phase.STARTING):
            return []
        actions: list[SharingAction] = []
        for one in self._turns:
            here = [] if self._seats is None else [seat for seat in self._seats if seat.job == one.turn.job]
            if self._seats is not None and sorted(here) != sorted(one.seats):
                one.shorten(AT_ONCE)
            if one.told != one.turn.until:
                one.told = one.turn.until
                actions += [self._note(Mark.TURN_FORCED), _stands(one)]
                actions += self._tell_end(one, list(one.undrained))
        return actions

    def _tell_end(self, one: Standing, seats: list[Seat]) -> list[SharingAction]:
        return [Tell(seat, EndTurn(seat, self._term, one.turn.epoch, one.turn.until)) for seat in seats]

    def _poll_drains(self, now: Instant) -> list[SharingAction]:
        """Of turns that end: what a seat said, or what it was told, may have been lost."""
        if self._poll is None or now < self._poll:
            return []
        self._poll = None
        if self._phase in (Phase.NEW, Phase.STARTING):
            return []
        actions: list[SharingAction] = []
        for one in self._turns:
            if not one.is_open:
                # Who has not heard of the commit would give the turn up.
                actions += self._tell_end(one, [seat for seat in one.undrained if seat not in self._missing])
        return actions

    def _say_who_drained(self) -> list[SharingAction]:
        granted = None
        if self._round is not None and self._phase in (Phase.PREPARING, Phase.DECIDING):
            granted = self._round.change.granted
        drained = [
            job
            for job, is_said in self._held.items()
            if not is_said and job != granted and self._turns.of_job(job) is None
        ]
        self._held |= dict.fromkeys(drained, True)
        return [JobDrained(job) for job in drained]


def _stands(one: Standing) -> TurnStands:
    return TurnStands(one.turn.job, one.turn.epoch, one.turn.first, one.turn.until)


Handler = Callable[..., list[SharingAction]]
"""Method of :class:`SharingCoordinator`, called with the event, or what a seat says, and the time."""

_C = SharingCoordinator
HANDLERS: Final[Mapping[tuple[Phase, type], Handler]] = {
    (Phase.NEW, Woke): _C._start,
    (Phase.NEW, Persisted): _C._ignore,
    (Phase.NEW, Vote): _C._ignore,
    (Phase.NEW, Refusal): _C._ignore,
    (Phase.NEW, Done): _C._ignore,
    (Phase.NEW, Ask): _C._ignore,
    (Phase.STARTING, Woke): _C._ignore,
    (Phase.STARTING, Persisted): _C._started,
    (Phase.STARTING, Vote): _C._ignore,
    (Phase.STARTING, Refusal): _C._ignore,
    (Phase.STARTING, Done): _C._ignore,
    (Phase.STARTING, Ask): _C._ignore,
    (Phase.IDLE, Woke): _C._ignore,
    (Phase.IDLE, Persisted): _C._ignore,
    (Phase.IDLE, Vote): _C._asked,
    (Phase.IDLE, Refusal): _C._ignore,
    (Phase.IDLE, Done): _C._ignore,
    (Phase.IDLE, Ask): _C._asked,
    (Phase.PREPARING, Woke): _C._votes_late,
    (Phase.PREPARING, Persisted): _C._ignore,
    (Phase.PREPARING, Vote): _C._voted,
    (Phase.PREPARING, Refusal): _C._refused,
    (Phase.PREPARING, Done): _C._ignore,
    (Phase.PREPARING, Ask): _C._asked_in_round,
    (Phase.DECIDING, Woke): _C._ignore,
    (Phase.DECIDING, Persisted): _C._decided,
    (Phase.DECIDING, Vote): _C._asked_in_round,
    (Phase.DECIDING, Refusal): _C._ignore,
    (Phase.DECIDING, Done): _C._ignore,
    (Phase.DECIDING, Ask): _C._asked_in_round,
    (Phase.COMMITTING, Woke): _C._repeat,
    (Phase.COMMITTING, Persisted): _C._ignore,
    (Phase.COMMITTING, Vote): _C._asked,
    (Phase.COMMITTING, Refusal): _C._ignore,
    (Phase.COMMITTING, Done): _C._done,
    (Phase.COMMITTING, Ask): _C._asked,
    (Phase.BACKING_OFF, Woke): _C._retry,
    (Phase.BACKING_OFF, Persisted): _C._ignore,
    (Phase.BACKING_OFF, Vote): _C._asked,
    (Phase.BACKING_OFF, Refusal): _C._ignore,
    (Phase.BACKING_OFF, Done): _C._ignore,
    (Phase.BACKING_OFF, Ask): _C._asked,
}
