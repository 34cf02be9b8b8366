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

Where the paper is silent (docs/protocol.md 15.3 to 15.9): a decision is persisted before the first ``Commit``
leaves; who asks about a round that is not in the log hears that it was aborted; commits are repeated until
all seats are done, and no round begins before. A restarted coordinator takes a new term, durable before
anything else, and repeats the last decision. One that lost its place may persist nothing any more: the store
sees to that.

A turn is ended without a round (``EndTurn``) when its job lost or got a seat, when a seat has given it up,
when no switch takes its packets any more, when its job pauses (``TurnRevoked``: it would come to no end), or,
ours as well, when seats of equal indices outside INA have been waited for in vain (``objections_max``): to
stop using INA needs nobody's consent.

Who is waited for and does not answer is given up in the end, and its job left out for a while
(:mod:`inaproto.core.sharing.patience`).

After a restart the planner and the shell say again: the seats, the wish, who is held, which seats are gone.
Rounds and their phases are in :mod:`inaproto.core.sharing.rounds`; what concerns turns, seats and wishes is
the same in all phases.
"""

from __future__ import annotations

from typing import Final, assert_never

from inaproto.core.sharing.events import (
    FromSeat,
    JobBarred,
    JobHeld,
    JobReleased,
    Mark,
    Persisted,
    PoolFree,
    RingRemoved,
    SeatGivenUp,
    SeatGone,
    SeatsChanged,
    SharingAction,
    SharingConfig,
    SharingEvent,
    SharingRecord,
    SharingView,
    Tell,
    TurnRevoked,
    TurnStands,
    TurnView,
    TurnWanted,
    Woke,
)
from inaproto.core.sharing.patience import Owed, Patience
from inaproto.core.sharing.rounds import Phase, Rounds
from inaproto.core.sharing.standing_turns import end_for, stands
from inaproto.core.sharing.wishes import Wishes
from inaproto.errors import Blame
from inaproto.units import Epoch, Instant, JobId
from inaproto.wire.messages.sharing import (
    AT_ONCE,
    NO_VERSION,
    Drained,
    EndTurn,
    Refusal,
    Seat,
    SeatMessage,
    Version,
    Vote,
)

NOT_ITS_SEAT: Final = "speaks for another seat"
"""Rule of the blame of a seat."""


class SharingCoordinator:
    """Pure core; see the module. ``step`` never raises for anything that a seat can do."""

    def __init__(self, config: SharingConfig, record: SharingRecord | None = None) -> None:
        """``record``: the last one that was persisted for the group, if any."""
        self._config = config
        self._wishes = Wishes()
        self._rounds = Rounds(config, record)
        self._poll: Instant | None = None
        """When seats that have not drained are asked again."""
        self._patience = Patience(config.patience)

    @property
    def deadline(self) -> Instant | None:
        deadlines = (self._rounds.deadline, self._poll, self._patience.deadline)
        return min((one for one in deadlines if one is not None), default=None)

    def step(self, event: SharingEvent, now: Instant) -> list[SharingAction]:
        """Raises ``LocalMisuse``, unchanged, for wishes and seats that are out of bounds."""
        actions: list[SharingAction] = []
        rounds, wishes = self._rounds, self._wishes
        match event:
            case TurnWanted():
                wishes.want(event)
            case SeatsChanged(seats):
                wishes.change_seats(seats, self._config.seats_max)
            case SeatGone(seat):
                rounds.seat_gone(seat)
                wishes.seat_gone(seat)
            case RingRemoved(job, epoch):
                actions = [PoolFree(one) for one in rounds.turns.fence(job, epoch)]
            case TurnRevoked(epoch):
                rounds.turns.revoke(epoch)
            case JobHeld(job):
                wishes.held[job] = False
            case JobReleased(job):
                wishes.held.pop(job, None)
            case FromSeat(seat, message):
                phase = rounds.phase
                actions = self._heard(seat, message, now)
                if not actions and rounds.phase is phase and not isinstance(message, Drained):
                    return actions  # one answer of a thousand: nothing is possible now that was not before
            case Persisted():
                actions = rounds.step(event, now)
                for one in actions:
                    if isinstance(one, TurnStands):
                        wishes.stands(one.job)
            case Woke():
                actions = [*self._round_woke(event, now), *self._poll_drains(now), *self._lose_patience(now)]
            case _:
                assert_never(event)
        return [*actions, *self._settle(now)]

    @property
    def undecided(self) -> Version | None:
        """The round that is prepared, or is made durable."""
        return None if self._rounds.undecided is None else self._rounds.undecided.version

    @property
    def is_idle(self) -> bool:
        """No turn stands, and no round is under way."""
        return self._rounds.phase is Phase.IDLE and not self._rounds.turns.count

    @property
    def barred(self) -> tuple[JobId, ...]:
        return self._patience.barred

    def turns(self) -> tuple[TurnView, ...]:
        return self._rounds.turns.view()

    def standing(self) -> set[JobId]:
        """Jobs that have turns."""
        return {one.turn.job for one in self._rounds.turns}

    def view(self) -> SharingView:
        rounds, wish = self._rounds, self._wishes.wish
        return SharingView(
            phase=rounds.phase.value,
            term=rounds.term,
            version=NO_VERSION if rounds.round is None else rounds.round.version,
            turns=rounds.turns.view(),
            wanted=None if wish is None else wish.job,
            missing=rounds.waited_for(),
            barred=self._patience.barred,
            counters=dict(rounds.counters),
        )

    def _heard(self, seat: Seat, message: SeatMessage, now: Instant) -> list[SharingAction]:
        if message.seat != seat:
            return [Blame(str(seat), NOT_ITS_SEAT, str(message.seat))]
        if isinstance(message, Drained):
            self._patience.heard(message)
            self._rounds.turns.drained(seat, message.epoch)
            return []
        preparing = self._rounds.preparing
        self._patience.heard(message)
        actions = self._rounds.step(message, now)
        if preparing is not None and self._rounds.phase is Phase.DECIDING:
            self._patience.voted(one.job for one in preparing.change.seats)
        elif preparing is not None and isinstance(message, Refusal) and self._has_failed:
            actions += self._failed([seat.job], now)
        elif preparing is not None and isinstance(message, Vote) and self._has_failed:
            places = {one: vote.index for one, vote in preparing.votes.items() if one.job == seat.job}
            if len(set(places.values())) > 1:
                actions += self._told_of_bars(self._patience.apart(seat.job, places, now))
        return actions

    # --- patience

    @property
    def _has_failed(self) -> bool:
        return self._rounds.phase is Phase.BACKING_OFF

    def _round_woke(self, event: Woke, now: Instant) -> list[SharingAction]:
        preparing, late = self._rounds.preparing, self._rounds.waited_for()
        actions = self._rounds.step(event, now)
        if preparing is not None and self._has_failed:
            actions += self._failed(list(dict.fromkeys(seat.job for seat in late)), now)
        return actions

    def _failed(self, jobs: list[JobId], now: Instant) -> list[SharingAction]:
        """A round, because of these."""
        return self._told_of_bars(self._patience.failed(jobs, now))

    def _told_of_bars(self, jobs: list[JobId]) -> list[SharingAction]:
        actions: list[SharingAction] = []
        for job in jobs:
            actions += [self._rounds.note(Mark.BARRED), JobBarred(job, self._patience.until(job))]
        if jobs and self._rounds.phase is Phase.BACKING_OFF:
            self._rounds.forget()  # others need not wait for that
        return actions

    def _lose_patience(self, now: Instant) -> list[SharingAction]:
        """Give up who has owed an answer for too long, and end bars."""
        rounds, patience = self._rounds, self._patience
        actions: list[SharingAction] = []
        for seat in dict.fromkeys(seat for owed in patience.mute(now) for seat in self._owing(owed)):
            turns = [one.turn.epoch for one in rounds.turns if one.turn.job == seat.job]
            epoch = patience.given_up[seat] = max(turns, default=Epoch(0))
            rounds.seat_gone(seat)
            actions += [rounds.note(Mark.GIVEN_UP), SeatGivenUp(seat, epoch), self._end_for_ever(seat, epoch)]
            if seat.job not in patience.barred:
                patience.bar(seat.job, now)
                actions += self._told_of_bars([seat.job])
        for job in patience.lift(now):
            late = [(seat, epoch) for seat, epoch in patience.given_up.items() if seat.job == job]
            actions += [rounds.note(Mark.TAKEN_BACK), *(self._end_for_ever(*one) for one in late)]
        return actions

    def _end_for_ever(self, seat: Seat, epoch: Epoch) -> SharingAction:
        """Nobody waits for what it says to that."""
        return Tell(seat, EndTurn(seat, self._rounds.term, epoch, AT_ONCE))

    def _owed(self) -> list[Owed]:
        """What seats can say at once, and have not said."""
        rounds = self._rounds
        if not rounds.has_started:
            return []
        owed: list[Owed] = [rounds.decided] if rounds.phase is Phase.COMMITTING else []
        owed += [one.turn.epoch for one in rounds.turns if one.turn.until == AT_ONCE]
        return owed

    def _owing(self, owed: Owed) -> list[Seat]:
        """Who has not said it."""
        rounds = self._rounds
        if isinstance(owed, Version):
            return list(rounds.missing) if owed == rounds.decided else []
        return [seat for one in rounds.turns if one.turn.epoch == owed for seat in one.undrained]

    def _settle(self, now: Instant) -> list[SharingAction]:
        """After each event: what it makes possible, or pointless."""
        rounds = self._rounds
        actions: list[SharingAction] = [PoolFree(epoch) for epoch in rounds.turns.remove_drained()]
        self._wishes.barred = self._patience.barred
        actions += self._end_turns_that_cannot_go_on()
        change = self._wishes.change(rounds.turns, self._config)
        if rounds.preparing is not None and rounds.preparing.change != change:
            actions += rounds.abort(Mark.ABORTED_CHANGED, now)
            rounds.forget()
        if rounds.phase is Phase.BACKING_OFF and change is None:
            rounds.forget()
        if rounds.phase is Phase.IDLE and change is not None:
            actions += rounds.begin(change, now)
        if not any(not one.is_open for one in rounds.turns):
            self._poll = None
        elif self._poll is None:
            asked = max(len(one.undrained) for one in rounds.turns if not one.is_open)
            self._poll = Instant(now + self._config.longer(self._config.resend_ns, asked))
        self._patience.owes(self._owed(), now)
        self._patience.keep(self._wishes.jobs, now)
        granted = None if rounds.undecided is None else rounds.undecided.change.granted
        return [*actions, *self._wishes.drained(rounds.turns, granted)]

    def _end_turns_that_cannot_go_on(self) -> list[SharingAction]:
        rounds, wishes = self._rounds, self._wishes
        if not rounds.has_started:
            return []
        actions: list[SharingAction] = []
        for one in rounds.turns:
            is_judged = wishes.said is not None and one.turn.until != AT_ONCE
            if is_judged and not one.is_of(wishes.seats_of(one.turn.job)):
                one.shorten(AT_ONCE)
            if one.told != one.turn.until:
                one.told = one.turn.until
                actions += [rounds.note(Mark.TURN_FORCED), stands(one)]
                actions += end_for(one, list(one.undrained), rounds.term)
        return actions

    def _poll_drains(self, now: Instant) -> list[SharingAction]:
        """Asks again about turns that end: what a seat said, or what it was told, may have been lost."""
        rounds = self._rounds
        if self._poll is None or now < self._poll:
            return []
        self._poll = None
        if not rounds.has_started:
            return []
        actions: list[SharingAction] = []
        for one in rounds.turns:
            if not one.is_open:
                # Who has not heard of the commit would give the turn up.
                actions += end_for(
                    one, [seat for seat in one.undrained if seat not in rounds.missing], rounds.term
                )
        return actions
