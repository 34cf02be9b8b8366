"""A seat of a sharing group, word by word: what it says and does to each (MINA section IV-B, the host)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.sharing.events import (
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
    Path,
    StartOperation,
    TellCoordinator,
    TellPeer,
    Woke,
)
from inaproto.core.sharing.participant import NOT_ITS_SEAT, SharingParticipant
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import MS, Epoch, Instant, JobId, OpIndex
from inaproto.wire.messages.sharing import (
    Abort,
    Ask,
    AskPeer,
    Commit,
    Decision,
    Done,
    Drained,
    EndTurn,
    Prepare,
    Refusal,
    Rule,
    Seat,
    TellPeerDecision,
    Turn,
    Version,
    Vote,
)

JOB = JobId("A")
ME, PEER, OTHER = Seat(JOB, "h0"), Seat(JOB, "h1"), Seat(JobId("B"), "h0")
STRANGER = Seat(JobId("B"), "h2")
TERM = 3
LEASE_NS = 200 * MS


def version(number: int) -> Version:
    return Version(TERM, number)


def operation(index: int) -> OpIndex:
    return OpIndex(index)


def prepare(number: int, rule: Rule = Rule.BY_INDEX) -> FromCoordinator:
    return FromCoordinator(
        Prepare(
            seat=ME,
            term=TERM,
            version=version(number),
            rule=rule,
            granted=JOB,
            over_below=Epoch(number),
            margin=0,
            lease_ns=LEASE_NS,
            peers=(ME, PEER, OTHER),
        )
    )


def turn(epoch: int, first: int = 0, until: int | None = None) -> Turn:
    return Turn(JOB, Epoch(epoch), operation(first), None if until is None else operation(until))


def commit(number: int, granted: Turn | None) -> FromCoordinator:
    return FromCoordinator(Commit(ME, TERM, version(number), Decision(granted)))


def abort(number: int) -> FromCoordinator:
    return FromCoordinator(Abort(ME, TERM, version(number)))


def ask(number: int, fell_back: int | None = None) -> FromPeer:
    return FromPeer(
        PEER, AskPeer(ME, PEER, version(number), None if fell_back is None else operation(fell_back))
    )


def voted(number: int, index: int = 0, *, in_ina: bool = False) -> TellCoordinator:
    return TellCoordinator(Vote(ME, version(number), operation(index), in_ina))


def starts(index: int) -> OperationStarting:
    return OperationStarting(operation(index))


def by_fallback(index: int) -> StartOperation:
    return StartOperation(operation(index), Path.FALLBACK, None)


def by_ina(index: int, epoch: int) -> StartOperation:
    return StartOperation(operation(index), Path.INA, Epoch(epoch))


def done(number: int) -> TellCoordinator:
    return TellCoordinator(Done(ME, version(number)))


def drained(epoch: int) -> TellCoordinator:
    return TellCoordinator(Drained(ME, Epoch(epoch)))


def told_peer(number: int, to: Seat = PEER) -> TellPeer:
    return TellPeer(to, TellPeerDecision(to, ME, version(number), None))


LATE = LEASE_NS
Said = tuple[int, ParticipantEvent, list[ParticipantAction]]
"""At what time it hears what, and does what."""
SCRIPTS: dict[str, list[Said]] = {
    "a_turn_is_given_and_ended": [
        (0, prepare(1), [voted(1)]),
        (0, commit(1, turn(1)), [done(1)]),
        (0, starts(0), [by_ina(0, 1)]),
        (0, prepare(2), [voted(2, 1, in_ina=True)]),
        (0, OperationEnded(operation(0)), []),
        (0, abort(2), []),
        (0, FromCoordinator(EndTurn(ME, TERM, Epoch(1), operation(0))), [drained(1)]),
        (0, starts(1), [by_fallback(1)]),
    ],
    "a_turn_ends_where_it_was_said": [
        (0, prepare(1), [voted(1)]),
        (0, commit(1, turn(1, 1, 2)), [done(1)]),
        (0, starts(0), [by_fallback(0)]),
        (0, starts(1), [by_ina(1, 1)]),
        (0, starts(2), [by_fallback(2)]),
        (0, OperationEnded(operation(1)), [drained(1)]),
    ],
    "an_old_round_is_not_voted_on": [
        (0, prepare(2), [voted(2)]),
        (0, prepare(1), [Noted(Mark.STALE, version(1))]),
        (0, prepare(2), [Noted(Mark.STALE, version(2))]),
        (0, commit(2, None), [done(2)]),
        (0, prepare(2), [Noted(Mark.STALE, version(2))]),
        (0, commit(1, turn(1)), [Noted(Mark.STALE, version(1))]),
        (0, starts(0), [by_fallback(0)]),
    ],
    "an_abort_before_its_round_counts": [
        (0, abort(1), []),
        (0, prepare(1), [TellCoordinator(Refusal(ME, version(1)))]),
    ],
    "a_peer_is_promised_once_not_to_vote": [
        (0, ask(2), [Noted(Mark.PROMISED, version(2)), told_peer(2)]),
        (0, ask(2), [told_peer(2)]),
        (0, ask(1), [told_peer(1)]),
        (0, prepare(2), [TellCoordinator(Refusal(ME, version(2)))]),
    ],
    "who_asks_too_early_hears_of_the_outcome": [
        (0, prepare(1), [voted(1)]),
        (0, ask(1), []),
        (0, abort(1), [told_peer(1)]),
    ],
    "who_is_not_in_the_round_is_owed_nothing": [
        (0, prepare(1), [voted(1)]),
        (0, FromPeer(STRANGER, AskPeer(ME, STRANGER, version(1))), []),
        (0, abort(1), []),
    ],
    "a_lock_holds_an_operation_until_the_round_is_decided": [
        (0, prepare(1, Rule.EQUAL_INDEX), [voted(1)]),
        (
            5,
            starts(0),
            [HoldOperation(operation(0), Instant(LEASE_NS)), Noted(Mark.HELD, version(1))],
        ),
        (9, commit(1, turn(1)), [done(1), by_ina(0, 1)]),
    ],
    "a_round_without_locks_lets_go_what_the_round_before_it_held": [
        (0, prepare(1, Rule.EQUAL_INDEX), [voted(1)]),
        (
            0,
            starts(0),
            [HoldOperation(operation(0), Instant(LEASE_NS)), Noted(Mark.HELD, version(1))],
        ),
        (0, prepare(2), [voted(2), Noted(Mark.FELL_BACK_IN_DOUBT, version(2)), by_fallback(0)]),
    ],
    "doubt_begins_with_the_end_of_the_lease": [
        (0, prepare(1), [voted(1)]),
        (LATE - 1, Woke(), []),
        (LATE, Woke(), [Noted(Mark.IN_DOUBT, version(1)), TellCoordinator(Ask(ME, version(1)))]),
        (
            LATE,
            starts(0),
            [
                Noted(Mark.FELL_BACK_IN_DOUBT, version(1)),
                TellPeer(PEER, AskPeer(PEER, ME, version(1), operation(0))),
                by_fallback(0),
            ],
        ),
        (LATE + 100 * MS - 1, Woke(), []),
        (
            LATE + 100 * MS,
            Woke(),
            [
                TellCoordinator(Ask(ME, version(1))),
                TellPeer(PEER, AskPeer(PEER, ME, version(1))),
                TellPeer(OTHER, AskPeer(OTHER, ME, version(1))),
            ],
        ),
        (LATE + 100 * MS, abort(1), [Noted(Mark.RESOLVED_BY_COORDINATOR, version(1))]),
    ],
    "a_commit_ends_doubt": [
        (0, prepare(1), [voted(1)]),
        (LATE, Woke(), [Noted(Mark.IN_DOUBT, version(1)), TellCoordinator(Ask(ME, version(1)))]),
        (LATE, commit(1, turn(1)), [Noted(Mark.RESOLVED_BY_COORDINATOR, version(1)), done(1)]),
        (LATE, starts(0), [by_ina(0, 1)]),
    ],
    "who_loses_the_coordinator_asks_its_peers_and_is_soon_in_doubt": [
        (0, prepare(1), [voted(1)]),
        (
            1,
            CoordinatorLost(),
            [
                TellPeer(PEER, AskPeer(PEER, ME, version(1))),
                TellPeer(OTHER, AskPeer(OTHER, ME, version(1))),
            ],
        ),
        (50 * MS, Woke(), []),
        (
            50 * MS + 1,
            Woke(),
            [
                Noted(Mark.IN_DOUBT, version(1)),
                TellCoordinator(Ask(ME, version(1))),
                TellPeer(PEER, AskPeer(PEER, ME, version(1))),
                TellPeer(OTHER, AskPeer(OTHER, ME, version(1))),
            ],
        ),
        (
            50 * MS + 1,
            FromPeer(PEER, TellPeerDecision(ME, PEER, version(1), Decision(turn(1)))),
            [Noted(Mark.RESOLVED_BY_PEER, version(1)), done(1)],
        ),
        (50 * MS + 1, starts(0), [by_ina(0, 1)]),
    ],
    "what_a_peer_says_of_another_round_counts_nothing": [
        (0, prepare(2), [voted(2)]),
        (0, FromPeer(PEER, TellPeerDecision(ME, PEER, version(1), None)), [Noted(Mark.STALE, version(1))]),
        (
            0,
            FromPeer(PEER, TellPeerDecision(ME, PEER, version(2), None)),
            [Noted(Mark.RESOLVED_BY_PEER, version(2))],
        ),
        (0, FromPeer(PEER, TellPeerDecision(ME, PEER, version(2), None)), [Noted(Mark.STALE)]),
    ],
    "an_operation_that_runs_by_ina_here_and_by_the_fallback_at_a_peer_is_reported": [
        (0, prepare(1), [voted(1)]),
        (0, commit(1, turn(1)), [done(1)]),
        (0, starts(0), [by_ina(0, 1)]),
        (
            0,
            ask(1, fell_back=0),
            [
                Noted(Mark.DIFFERS),
                Differs(operation(0), PEER),
                TellPeer(PEER, TellPeerDecision(PEER, ME, version(1), Decision(turn(1)))),
            ],
        ),
        (0, ask(1, fell_back=1), [TellPeer(PEER, TellPeerDecision(PEER, ME, version(1), Decision(turn(1))))]),
        (0, starts(1), [Noted(Mark.FOLLOWED_PEER), by_fallback(1)]),
        (0, starts(2), [by_ina(2, 1)]),
    ],
    "a_turn_that_was_given_up_is_not_used_and_its_end_is_told_again": [
        (0, prepare(2), [voted(2)]),
        (0, commit(2, turn(1)), [done(2), drained(1)]),
        (0, starts(0), [by_fallback(0)]),
        (0, FromCoordinator(EndTurn(ME, TERM, Epoch(1))), [drained(1)]),
        (0, FromCoordinator(EndTurn(ME, TERM, Epoch(9))), []),
        (0, FromCoordinator(EndTurn(ME, TERM, Epoch(9), operation(4))), [drained(9)]),
    ],
    "an_older_coordinator_and_a_word_for_another_seat_are_not_heard": [
        (0, prepare(1), [voted(1)]),
        (0, FromCoordinator(Abort(ME, TERM - 1, version(1))), [Noted(Mark.STALE)]),
        (0, FromCoordinator(Abort(PEER, TERM, version(1))), [Noted(Mark.STALE)]),
        (0, FromPeer(PEER, AskPeer(OTHER, PEER, version(1))), [Noted(Mark.STALE)]),
        (0, FromPeer(PEER, AskPeer(ME, OTHER, version(1))), [Blame(str(PEER), NOT_ITS_SEAT, str(OTHER))]),
        (0, starts(0), [Noted(Mark.FELL_BACK_IN_DOUBT, version(1)), by_fallback(0)]),
    ],
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=list(SCRIPTS))
def test_what_a_seat_says_and_does(script: list[Said]) -> None:
    seat = SharingParticipant(ParticipantConfig(ME))
    for number, (now, event, actions) in enumerate(script):
        assert seat.step(event, Instant(now)) == actions, number


def test_a_seat_shows_where_it_is() -> None:
    seat = SharingParticipant(ParticipantConfig(ME))
    for event in (prepare(1), commit(1, turn(1)), starts(0), prepare(2, Rule.EQUAL_INDEX), starts(1)):
        seat.step(event, Instant(0))
    view = seat.view()
    assert (view.phase, view.term, view.version, view.next_operation) == ("locked", TERM, version(2), 1)
    assert (view.turn, view.is_locked, view.is_held, view.in_ina) == (None, True, True, ((0, Epoch(1)),))
    seat.step(abort(2), Instant(0))
    seat.step(prepare(3), Instant(0))
    seat.step(commit(3, turn(3)), Instant(0))
    view = seat.view()
    assert (view.phase, view.next_operation, view.turn, view.is_held) == ("free", 2, turn(3), False)


@pytest.mark.parametrize(
    ("before", "event", "message"),
    [
        ((), starts(1), "operation 1 cannot start: the seat is at 0"),
        ((prepare(1, Rule.EQUAL_INDEX), starts(0)), starts(0), "operation 0 cannot start: the seat is held"),
        ((), OperationEnded(operation(0)), "operation 0 ended, but is not under way"),
        ((starts(0), starts(1)), starts(2), "operation 2 would be one of too many under way"),
    ],
)
def test_operations_out_of_order_change_nothing(
    before: tuple[ParticipantEvent, ...], event: ParticipantEvent, message: str
) -> None:
    seat = SharingParticipant(replace(ParticipantConfig(ME), operations_max=2))
    for one in before:
        seat.step(one, Instant(0))
    seen = seat.view()
    with pytest.raises(LocalMisuse, match=message):
        seat.step(event, Instant(0))
    assert seat.view() == seen


@pytest.mark.parametrize("until", [None, 2])
def test_what_is_started_and_ended_by_name_is_as_by_event(until: int | None) -> None:
    by_event, by_name = (SharingParticipant(ParticipantConfig(ME)) for _ in range(2))
    for seat in (by_event, by_name):
        seat.step(prepare(1), Instant(0))
        seat.step(commit(1, turn(1, until=until)), Instant(0))
    for index in map(operation, range(3)):
        told: list[ParticipantAction] = []
        epoch = by_name.start(index, told)
        path = Path.FALLBACK if epoch is None else Path.INA
        start, *rest = by_event.step(starts(index), Instant(1))
        assert start == StartOperation(index, path, epoch)
        assert told == rest
        assert by_name.view() == by_event.view()
        with pytest.raises(LocalMisuse, match="cannot start"):
            by_name.start(index, told)
    for index in map(operation, (2, 0, 1)):
        assert by_name.ended(index) == by_event.step(OperationEnded(index), Instant(2))
        assert by_name.view() == by_event.view()


def test_an_operation_that_a_lock_held_is_over_by_the_fallback() -> None:
    seat = SharingParticipant(ParticipantConfig(ME))
    seat.step(prepare(1, Rule.EQUAL_INDEX), Instant(0))
    with pytest.raises(LocalMisuse, match="operation 0 cannot start: the seat is locked"):
        seat.start(operation(0), [])
    assert seat.step(starts(0), Instant(0))[0] == HoldOperation(operation(0), Instant(LEASE_NS))
    assert seat.ended(operation(0)) == []
    assert seat.view().next_operation == 1


def test_a_lease_is_no_longer_than_the_seat_allows() -> None:
    seat = SharingParticipant(ParticipantConfig(ME, lease_max_ns=LEASE_NS - 1))
    seat.step(prepare(1), Instant(10))
    assert seat.deadline == seat.awaits(operation(0)) == 10 + LEASE_NS - 1
