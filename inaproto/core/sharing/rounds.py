"""Rounds of a sharing group's two-phase commit, one after the other: a coordinator's term, log and phases.

Part of :mod:`inaproto.core.sharing.coordinator`, which says what rounds are about, and when one begins. Here
is how: durable first, then told; repeated until all are done; who asks about a round that is not in the log
hears that it was aborted. :data:`HANDLERS` is the whole table of (phase, event).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Final

from inaproto.core.sharing.events import (
    Mark,
    Noted,
    Persist,
    Persisted,
    PoolFree,
    SharingAction,
    SharingConfig,
    SharingRecord,
    Tell,
    Woke,
)
from inaproto.core.sharing.peers import peers_of
from inaproto.core.sharing.round import Change, Round, apply
from inaproto.core.sharing.standing_turns import StandingTurns, end_for, stands
from inaproto.errors import Blame
from inaproto.units import Epoch, Instant, JobId, OpIndex
from inaproto.wire.messages.sharing import (
    NO_VERSION,
    Abort,
    Ask,
    Commit,
    Done,
    Prepare,
    Refusal,
    Rule,
    Seat,
    Version,
    Vote,
)

VOTED_TWICE: Final = "voted twice, and not the same"
"""Rule of the blame of a seat."""


class Phase(Enum):
    NEW = "new"
    """It waits to be woken for the first time."""
    STARTING = "starting"
    """Its term is not durable yet."""
    IDLE = "idle"
    PREPARING = "preparing"
    DECIDING = "deciding"
    """The commit is not durable yet."""
    COMMITTING = "committing"
    BACKING_OFF = "backing off"


class Rounds:
    """What it holds is its coordinator's to see; only the turns, and who is gone, are its to change."""

    def __init__(self, config: SharingConfig, record: SharingRecord | None) -> None:
        self._config = config
        self._record = SharingRecord(0, Epoch(0)) if record is None else record
        self.term = self._record.term + 1
        self.number = 0
        self._epoch = self._record.epoch
        self.turns = StandingTurns(self._record.turns)
        self.phase = Phase.NEW
        self.round: Round | None = None
        """The last one."""
        self._pending: SharingRecord | None = None
        """Being made durable."""
        self.missing: dict[Seat, None] = {}
        """Not done yet."""
        self.gone: dict[Seat, None] = {}
        """While something is made durable that may name them; forgotten when the next round begins."""
        self._token = 0
        self.aborted = 0
        """Rounds, one after the other."""
        self._objected: dict[Epoch, int] = {}
        """How many rounds that would have ended each turn were objected to."""
        self._late = 0
        """Doublings of how long votes are waited for."""
        self._begun = Instant(0)
        """The last round."""
        self._with_peers: tuple[tuple[Seat, ...], list[tuple[Seat, ...]]] | None = None
        """Seats, and the peers of each."""
        self.deadline: Instant | None = Instant(0)
        self.counters: dict[str, int] = {mark.value: 0 for mark in Mark}

    def step(
        self, event: Woke | Persisted | Vote | Refusal | Done | Ask, now: Instant
    ) -> list[SharingAction]:
        return HANDLERS[self.phase, type(event)](self, event, now)

    @property
    def has_started(self) -> bool:
        return self.phase not in (Phase.NEW, Phase.STARTING)

    @property
    def decided(self) -> Version:
        """Version of the last round that was committed."""
        return self._record.version

    @property
    def preparing(self) -> Round | None:
        """The round whose votes are waited for."""
        return self.round if self.phase is Phase.PREPARING else None

    @property
    def undecided(self) -> Round | None:
        """The round that is prepared and not known to be durable or aborted."""
        return self.round if self.phase in (Phase.PREPARING, Phase.DECIDING) else None

    def waited_for(self) -> tuple[Seat, ...]:
        """Seats whose votes, or whose word that it is done, are waited for."""
        round_ = self.preparing
        if round_ is None:
            return tuple(self.missing)
        return tuple(seat for seat in round_.change.seats if seat not in round_.votes)

    def note(self, mark: Mark, version: Version = NO_VERSION) -> Noted:
        self.counters[mark.value] += 1
        return Noted(mark, version)

    # --- start

    def _start(self, event: Woke, now: Instant) -> list[SharingAction]:
        self.phase = Phase.STARTING
        return self._persist(replace(self._record, term=self.term))

    def _persist(self, record: SharingRecord) -> list[SharingAction]:
        self._pending, self.deadline = record, None
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
        actions: list[SharingAction] = [stands(one) for one in self.turns]
        # Of what was decided before the last round all had heard: they are only asked whether it still holds.
        for one in self.turns:
            asked = [seat for seat in one.undrained if seat not in record.told]
            actions += end_for(one, asked, self.term)
        if record.decision is None:
            self.phase = Phase.IDLE
            return actions
        actions.append(self.note(Mark.RECOVERED, record.version))
        return [*actions, *self._tell_commit(record.told, now)]

    # --- from Prepare to Commit

    def begin(self, change: Change, now: Instant) -> list[SharingAction]:
        self.number += 1
        self.gone.clear()
        version = Version(self.term, self.number)
        self.round = Round(version, change)
        self.phase = Phase.PREPARING
        self._begun = now
        self.deadline = Instant(now + self._votes_within(len(change.seats)))
        actions: list[SharingAction] = [self.note(Mark.ROUND_BEGUN, version)]
        seats, config = change.seats, self._config
        margin = change.margin(config)
        lease_ns = config.longer(config.lease_ns, len(seats)) << self._late
        over_below: dict[JobId, Epoch] = {}
        for seat, peers in zip(seats, self._peers_of(seats), strict=True):
            if seat.job not in over_below:
                standing = self.turns.of_job(seat.job)
                over_below[seat.job] = Epoch(self._epoch + 1) if standing is None else standing.turn.epoch
            prepare = Prepare(
                seat=seat,
                term=self.term,
                version=version,
                rule=config.rule,
                granted=change.granted,
                ended=change.ended,
                over_below=over_below[seat.job],
                margin=margin,
                lease_ns=lease_ns,
                peers=peers,
                first=change.first,
                seats=0 if len(peers) == len(seats) else len(seats),
            )
            actions.append(Tell(seat, prepare))
        return actions

    def _peers_of(self, seats: tuple[Seat, ...]) -> list[tuple[Seat, ...]]:
        """One round after the other is of the same seats."""
        if self._with_peers is None or self._with_peers[0] != seats:
            self._with_peers = seats, peers_of(seats)
        return self._with_peers[1]

    def _voted(self, vote: Vote, now: Instant) -> list[SharingAction]:
        round_ = self.round
        assert round_ is not None, "a round is being prepared"
        if vote.version != round_.version or vote.seat not in round_.asked:
            return self._answer(vote.seat, vote.version)
        if round_.votes.setdefault(vote.seat, vote) != vote:
            return [Blame(str(vote.seat), VOTED_TWICE, f"{round_.votes[vote.seat]}, then {vote}")]
        objection = round_.objection(self._config, self.turns)
        if objection is not None:
            self._count_objection(round_)
            return self.abort(objection, now)
        if len(round_.votes) < len(round_.change.seats):
            return []
        if now - self._begun < self._votes_within(len(round_.change.seats)) // 4:
            self._late = max(0, self._late - 1)
        return self._decide(round_)

    def _votes_within(self, seats: int) -> int:
        """Nanoseconds."""
        return self._config.longer(self._config.vote_ns, seats) << self._late

    def _count_objection(self, round_: Round) -> None:
        """After some the turn ends by itself: to stop using INA needs nobody's consent."""
        ended = self.turns.with_epoch(round_.change.ended)
        if ended is None or self._config.objections_max is None:
            return
        epoch = ended.turn.epoch
        count = self._objected.get(epoch, 0) + 1
        self._objected = {epoch: count}
        if count == self._config.objections_max:
            ended.shorten(OpIndex(round_.greatest(ended.turn.job) + self._config.end_margin))

    def _decide(self, round_: Round) -> list[SharingAction]:
        decision = round_.decision(self._config, self.turns, self._epoch)
        epoch = self._epoch if decision.granted is None else decision.granted.epoch
        after, told = StandingTurns(self.turns.records()), round_.change.seats
        apply(decision, after, told, self._config)
        self.phase = Phase.DECIDING
        record = SharingRecord(self.term, epoch, after.records(), round_.version, decision, told)
        return self._persist(record)

    def _decided(self, event: Persisted, now: Instant) -> list[SharingAction]:
        """It is durable, and may be seen."""
        if not self._is_durable(event):
            return []
        record, decision = self._record, self._record.decision
        assert decision is not None, "a round has one"
        self._epoch, self.aborted = record.epoch, 0
        occupied = [one.turn.epoch for one in self.turns if not one.is_fenced]
        apply(decision, self.turns, record.told, self._config)
        actions: list[SharingAction] = [self.note(Mark.COMMITTED, record.version)]
        actions += [PoolFree(one) for one in occupied if self.turns.with_epoch(one) is None]
        changed = (decision.ended, None if decision.granted is None else decision.granted.epoch)
        actions += [stands(one) for one in self.turns if one.turn.epoch in changed]
        return [*actions, *self._tell_commit(record.told, now)]

    def _tell_commit(self, seats: tuple[Seat, ...], now: Instant) -> list[SharingAction]:
        here = [seat for seat in seats if seat not in self.gone]
        self.phase, self.missing = Phase.COMMITTING, dict.fromkeys(here)
        self.deadline = Instant(now + self._config.longer(self._config.resend_ns, len(here)))
        for seat in self.gone:
            self.turns.gone(seat)
            self._no_longer_missing(seat)
        return [self._commit_for(seat) for seat in here]

    def _commit_for(self, seat: Seat) -> Tell:
        record = self._record
        assert record.decision is not None, "a decision is durable"
        return Tell(seat, Commit(seat, self.term, record.version, record.decision))

    def _repeat(self, event: Woke, now: Instant) -> list[SharingAction]:
        if self.deadline is None or now < self.deadline:
            return []
        self.deadline = Instant(now + self._config.longer(self._config.resend_ns, len(self.missing)))
        again = self.note(Mark.SENT_AGAIN, self._record.version)
        return [again, *(self._commit_for(seat) for seat in self.missing)]

    def _done(self, message: Done, now: Instant) -> list[SharingAction]:
        if message.version == self._record.version:
            self._no_longer_missing(message.seat)
        return []

    def _no_longer_missing(self, seat: Seat) -> None:
        self.missing.pop(seat, None)
        if not self.missing:
            self.phase, self.deadline = Phase.IDLE, None

    # --- aborts

    def _refused(self, message: Refusal, now: Instant) -> list[SharingAction]:
        round_ = self.round
        if round_ is None or message.version != round_.version:
            return []
        return self.abort(Mark.ABORTED_REFUSED, now)

    def _votes_late(self, event: Woke, now: Instant) -> list[SharingAction]:
        if self.deadline is None or now < self.deadline:
            return []
        if self._config.rule is Rule.BY_INDEX:
            self._late = min(self._late + 1, self._config.vote_doublings_max)
        return self.abort(Mark.ABORTED_LATE, now)

    def abort(self, why: Mark, now: Instant) -> list[SharingAction]:
        """Step 5. It needs no log: what is not in there was aborted."""
        round_, config = self.round, self._config
        assert round_ is not None, "a round is being prepared"
        jitter_ns = config.retry_jitter_ns[self.number % len(config.retry_jitter_ns)]
        doublings = min(self.aborted, config.retry_doublings_max)
        self.aborted += 1
        self.phase = Phase.BACKING_OFF
        self.deadline = Instant(now + (config.retry_ns << doublings) + jitter_ns)
        told = [Tell(seat, Abort(seat, self.term, round_.version)) for seat in round_.change.seats]
        return [self.note(why, round_.version), *told]

    def forget(self) -> None:
        """The round was aborted, and its change is not wanted any more: the next one need not wait."""
        self.phase, self.deadline, self.aborted = Phase.IDLE, None, 0

    def _retry(self, event: Woke, now: Instant) -> list[SharingAction]:
        if self.deadline is not None and now >= self.deadline:
            self.phase, self.deadline = Phase.IDLE, None
        return []

    # --- what seats ask

    def _asked(self, message: Ask | Vote, now: Instant) -> list[SharingAction]:
        return self._answer(message.seat, message.version)

    def _asked_in_round(self, message: Ask | Vote, now: Instant) -> list[SharingAction]:
        """Nothing is known yet of the round that is being decided."""
        if self.round is not None and message.version == self.round.version:
            return []
        return self._answer(message.seat, message.version)

    def _answer(self, seat: Seat, version: Version) -> list[SharingAction]:
        if self._record.decision is not None and version == self._record.version:
            return [self._commit_for(seat)] if seat in self._record.told else []
        marks: list[SharingAction] = []
        if version.term < self.term:
            marks = [self.note(Mark.PRESUMED_ABORT, version)]
        return [*marks, Tell(seat, Abort(seat, self.term, version))]

    def seat_gone(self, seat: Seat) -> None:
        if self.phase in (Phase.NEW, Phase.STARTING, Phase.DECIDING):
            self.gone[seat] = None
        self.turns.gone(seat)
        if self.phase is Phase.COMMITTING:
            self._no_longer_missing(seat)

    def _ignore(self, event: object, now: Instant) -> list[SharingAction]:
        return [self.note(Mark.STALE)] if isinstance(event, Vote | Refusal | Done | Ask) else []


Handler = Callable[..., list[SharingAction]]
"""Method of :class:`Rounds`, called with the event, or what a seat says, and the time."""

_C = Rounds
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
