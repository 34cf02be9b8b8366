"""Rounds of a sharing group, word by word: what a coordinator says to what it hears (MINA IV-B)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.sharing.coordinator import NOT_ITS_SEAT, SharingCoordinator
from inaproto.core.sharing.events import (
    FromSeat,
    JobBarred,
    JobDrained,
    JobHeld,
    Mark,
    Noted,
    ParticipantConfig,
    PatienceConfig,
    Persist,
    Persisted,
    PoolFree,
    SeatGivenUp,
    SeatsChanged,
    SharingAction,
    SharingConfig,
    SharingEvent,
    SharingRecord,
    Tell,
    TurnRecord,
    TurnStands,
    TurnWanted,
    Woke,
)
from inaproto.core.sharing.round import Change, Round
from inaproto.core.sharing.rounds import VOTED_TWICE
from inaproto.core.sharing.standing_turns import StandingTurns
from inaproto.core.sharing.wishes import Wishes
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import MS, Epoch, Instant, JobId, OpIndex, S
from inaproto.wire.messages.sharing import (
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
    Turn,
    Version,
    Vote,
)

A, B = JobId("A"), JobId("B")

H0, H1, OF_B = Seat(A, "h0"), Seat(A, "h1"), Seat(B, "h0")
VOTE_NS, RESEND_NS, LEASE_NS = 50 * MS, 50 * MS, 200 * MS
Said = tuple[int, SharingEvent, list[SharingAction]]
"""At what time it hears what, and does what."""


def version(number: int) -> Version:
    return Version(1, number)


def voted(seat: Seat, number: int, index: int, *, in_ina: bool = False) -> FromSeat:
    return FromSeat(seat, Vote(seat, version(number), OpIndex(index), in_ina))


def prepares(number: int, *seats: Seat, rule: Rule = Rule.BY_INDEX, **fields: Any) -> list[SharingAction]:
    of_a = {
        "granted": None,
        "ended": None,
        "over_below": Epoch(1),
        "margin": 0,
        "lease_ns": LEASE_NS,
        **fields,
    }
    of_job = {A: of_a, B: {**of_a, "over_below": Epoch(2)}}
    said = [
        Prepare(seat=seat, term=1, version=version(number), rule=rule, peers=seats, **of_job[seat.job])
        for seat in seats
    ]
    return [Noted(Mark.ROUND_BEGUN, version(number)), *(Tell(one.seat, one) for one in said)]


def commits(number: int, decision: Decision, *seats: Seat) -> list[SharingAction]:
    return [Tell(seat, Commit(seat, 1, version(number), decision)) for seat in seats]


def aborts(number: int, *seats: Seat) -> list[SharingAction]:
    return [Tell(seat, Abort(seat, 1, version(number))) for seat in seats]


def ends(epoch: int, until: int, *seats: Seat) -> list[SharingAction]:
    return [Tell(seat, EndTurn(seat, 1, Epoch(epoch), OpIndex(until))) for seat in seats]


FIRST = Turn(A, Epoch(1), OpIndex(5), OpIndex(9))
GIVEN = Decision(FIRST)
FIRST_RECORD = SharingRecord(1, Epoch(1), (TurnRecord(FIRST, (H0, H1)),), version(1), GIVEN, (H0, H1))
BEGINS: list[Said] = [
    (0, Woke(), [Persist(SharingRecord(1, Epoch(0)), 1)]),
    (0, Persisted(0), []),
    (0, Persisted(1), []),
    (0, SeatsChanged((H0, H1)), []),
]
PREPARED: list[Said] = [
    *BEGINS,
    (0, TurnWanted(A, 4, OpIndex(5)), prepares(1, H0, H1, granted=A, first=OpIndex(5))),
]
DECIDED: list[Said] = [
    *PREPARED,
    (1, voted(H0, 1, 2), []),
    (1, voted(H1, 1, 3), [Persist(FIRST_RECORD, 2)]),
]
COMMITTED: list[Said] = [
    *DECIDED,
    (
        2,
        Persisted(2),
        [
            Noted(Mark.COMMITTED, version(1)),
            TurnStands(A, Epoch(1), OpIndex(5), OpIndex(9)),
            *commits(1, GIVEN, H0, H1),
        ],
    ),
]
SCRIPTS: dict[str, list[Said]] = {
    "a_commit_is_repeated_to_who_is_not_done_until_all_are": [
        *COMMITTED,
        (3, FromSeat(H0, Done(H0, version(1))), []),
        (RESEND_NS + 1, Woke(), []),
        (
            RESEND_NS + 2,
            Woke(),
            [Noted(Mark.SENT_AGAIN, version(1)), *commits(1, GIVEN, H1), *ends(1, 9, H0)],
        ),
        (RESEND_NS + 2, FromSeat(H1, Done(H1, version(0))), []),
        (RESEND_NS + 2, FromSeat(H1, Done(H1, version(1))), []),
        (2 * RESEND_NS + 2, Woke(), ends(1, 9, H0, H1)),
        (2 * RESEND_NS + 2, FromSeat(H1, Drained(H1, Epoch(1))), []),
        (
            2 * RESEND_NS + 2,
            FromSeat(H0, Drained(H0, Epoch(1))),
            [PoolFree(Epoch(1)), *prepares(2, H0, H1, granted=A, over_below=Epoch(2), first=OpIndex(5))],
        ),
    ],
    "who_asks_hears_what_was_decided_or_that_nothing_was": [
        *PREPARED,
        (1, FromSeat(H0, Ask(H0, version(1))), []),
        (
            1,
            FromSeat(H0, Ask(H0, Version(0, 7))),
            [Noted(Mark.PRESUMED_ABORT, Version(0, 7)), Tell(H0, Abort(H0, 1, Version(0, 7)))],
        ),
        (1, FromSeat(H0, Ask(H0, version(7))), aborts(7, H0)),
        *DECIDED[len(PREPARED) :],
        (1, FromSeat(H0, Ask(H0, version(1))), []),
        (1, FromSeat(H0, Ask(H0, version(7))), aborts(7, H0)),
        *COMMITTED[len(DECIDED) :],
        (2, FromSeat(H0, Ask(H0, version(1))), commits(1, GIVEN, H0)),
        (2, FromSeat(OF_B, Ask(OF_B, version(1))), []),
        (2, FromSeat(H0, Ask(H0, version(7))), aborts(7, H0)),
    ],
    "a_refusal_aborts_the_round_and_the_next_one_waits": [
        *PREPARED,
        (1, FromSeat(H0, Refusal(H0, version(7))), []),
        (
            1,
            FromSeat(H0, Refusal(H0, version(1))),
            [Noted(Mark.ABORTED_REFUSED, version(1)), *aborts(1, H0, H1)],
        ),
        (1, FromSeat(H0, Refusal(H0, version(1))), [Noted(Mark.STALE)]),
        (20 * MS, Woke(), []),
        (20 * MS + 1, Woke(), prepares(2, H0, H1, granted=A, first=OpIndex(5))),
    ],
    "votes_that_do_not_come_abort_the_round": [
        *PREPARED,
        (VOTE_NS - 1, Woke(), []),
        (VOTE_NS, Woke(), [Noted(Mark.ABORTED_LATE, version(1)), *aborts(1, H0, H1)]),
    ],
    "a_seat_votes_once_and_for_itself": [
        *PREPARED,
        (1, voted(H0, 1, 2), []),
        (1, voted(H0, 1, 2), []),
        (
            1,
            voted(H0, 1, 3),
            [Blame(str(H0), VOTED_TWICE, f"{voted(H0, 1, 2).message}, then {voted(H0, 1, 3).message}")],
        ),
        (1, FromSeat(H0, voted(H1, 1, 3).message), [Blame(str(H0), NOT_ITS_SEAT, str(H1))]),
        (1, voted(OF_B, 1, 3), aborts(1, OF_B)),
        (1, voted(H1, 1, 3), [Persist(FIRST_RECORD, 2)]),
    ],
    "what_was_made_durable_before_is_not_what_is_decided_now": [
        *DECIDED,
        (2, Persisted(1), []),
        (2, FromSeat(H0, Done(H0, version(1))), [Noted(Mark.STALE)]),
        *COMMITTED[len(DECIDED) :],
        (2, Persisted(2), []),
    ],
    "a_job_that_is_being_given_a_turn_has_not_drained": [
        *DECIDED,
        (2, JobHeld(A), []),
        *COMMITTED[len(DECIDED) :],
        (3, FromSeat(H0, Done(H0, version(1))), []),
        (3, FromSeat(H1, Done(H1, version(1))), []),
        (3, FromSeat(H1, Drained(H1, Epoch(1))), []),
        (3, FromSeat(H0, Drained(H0, Epoch(1))), [PoolFree(Epoch(1)), JobDrained(A)]),
    ],
    "a_wish_that_is_changed_ends_its_round": [
        *PREPARED,
        (
            1,
            TurnWanted(A, 5, OpIndex(5)),
            [
                Noted(Mark.ABORTED_CHANGED, version(1)),
                *aborts(1, H0, H1),
                *prepares(2, H0, H1, granted=A, first=OpIndex(5)),
            ],
        ),
        (1, TurnWanted(None), [Noted(Mark.ABORTED_CHANGED, version(2)), *aborts(2, H0, H1)]),
    ],
}


def found_again(*turns: Turn) -> SharingRecord:
    seats = {A: (H0, H1), B: (OF_B,)}
    return SharingRecord(0, Epoch(len(turns)), tuple(TurnRecord(one, seats[one.job]) for one in turns))


OPEN, TURN_OF_B = Turn(A, Epoch(1), OpIndex(0), None), Turn(B, Epoch(2), OpIndex(0), None)
SWAPPED = Decision(TURN_OF_B, Epoch(1), OpIndex(4))
EVERYBODY = (H0, H1, OF_B)
SMALL = SharingConfig("g", Rule.BY_INDEX, 1, 0, 0, 0, 0, 0, 0, 0, (0,), 0, 1, 1)
EQUAL = SharingConfig(
    "g",
    rule=Rule.EQUAL_INDEX,
    objections_max=1,
    patience=PatienceConfig(mute_ns=10 * S, failed_max=4, bar_ns=2 * S, bar_doublings_max=2),
)
ASKED: list[Said] = [
    (0, Woke(), [Persist(replace(found_again(OPEN), term=1), 1)]),
    (
        0,
        Persisted(1),
        [
            TurnStands(A, Epoch(1), OpIndex(0), None),
            *(Tell(one, EndTurn(one, 1, Epoch(1))) for one in (H0, H1)),
        ],
    ),
    (0, SeatsChanged(EVERYBODY), []),
    (0, TurnWanted(B), prepares(1, *EVERYBODY, rule=Rule.EQUAL_INDEX, granted=B, ended=Epoch(1))),
]
BY_EQUAL_INDICES: dict[str, list[Said]] = {
    "a_turn_that_ends_is_over_with_the_commit": [
        *ASKED,
        (1, voted(H0, 1, 4), []),
        (1, voted(H1, 1, 4), []),
        (
            1,
            voted(OF_B, 1, 0),
            [
                Persist(
                    SharingRecord(
                        1, Epoch(2), (TurnRecord(TURN_OF_B, (OF_B,)),), version(1), SWAPPED, EVERYBODY
                    ),
                    2,
                )
            ],
        ),
        (
            2,
            Persisted(2),
            [
                Noted(Mark.COMMITTED, version(1)),
                PoolFree(Epoch(1)),
                TurnStands(B, Epoch(2), OpIndex(0), None),
                *commits(1, SWAPPED, *EVERYBODY),
            ],
        ),
        (3, FromSeat(H0, Done(H0, version(1))), []),
        (3, FromSeat(OF_B, Done(OF_B, version(1))), []),
        (RESEND_NS + 2, Woke(), [Noted(Mark.SENT_AGAIN, version(1)), *commits(1, SWAPPED, H1)]),
        (
            10 * S + 2,
            Woke(),
            [
                Noted(Mark.SENT_AGAIN, version(1)),
                *commits(1, SWAPPED, H1),
                Noted(Mark.GIVEN_UP),
                SeatGivenUp(H1, Epoch(0)),
                *ends(0, 0, H1),
                Noted(Mark.BARRED),
                JobBarred(A, Instant(12 * S + 2)),
            ],
        ),
    ],
    "a_turn_that_many_objected_to_end_ends_a_margin_later": [
        *ASKED,
        (
            1,
            voted(H0, 1, 4, in_ina=True),
            [
                Noted(Mark.ABORTED_IN_INA, version(1)),
                *aborts(1, *EVERYBODY),
                Noted(Mark.TURN_FORCED),
                TurnStands(A, Epoch(1), OpIndex(0), OpIndex(6)),
                *ends(1, 6, H0, H1),
            ],
        ),
    ],
}


def test_all_turns_that_end_are_asked_about_again() -> None:
    ending = [replace(OPEN, until=OpIndex(6)), replace(TURN_OF_B, until=OpIndex(8))]
    coordinator = SharingCoordinator(SharingConfig("g", capacity=2), found_again(*ending))
    for event in (Woke(), Persisted(1), SeatsChanged(EVERYBODY)):
        coordinator.step(event, Instant(0))
    assert coordinator.step(Woke(), Instant(RESEND_NS)) == ends(1, 6, H0, H1) + ends(2, 8, OF_B)


@pytest.mark.parametrize("script", BY_EQUAL_INDICES.values(), ids=list(BY_EQUAL_INDICES))
def test_what_a_coordinator_says_by_equal_indices(script: list[Said]) -> None:
    """MINA IV-B, steps 3 to 5."""
    play(SharingCoordinator(EQUAL, found_again(OPEN)), script)


def play(coordinator: SharingCoordinator, script: list[Said]) -> None:
    for number, (now, event, actions) in enumerate(script):
        assert coordinator.step(event, Instant(now)) == actions, number


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=list(SCRIPTS))
def test_what_a_coordinator_says(script: list[Said]) -> None:
    play(SharingCoordinator(SharingConfig("g")), script)


# --- turns and wishes


@pytest.mark.parametrize(
    ("operations", "until", "ends_at"), [(None, None, None), (4, None, 9), (None, 7, 7), (4, 7, 7), (1, 7, 6)]
)
def test_where_a_turn_ends(operations: int | None, until: int | None, ends_at: int | None) -> None:
    change = Change(A, operations, None, (H0,), OpIndex(5), None if until is None else OpIndex(until))
    decided = Round(version(1), change).decision(SharingConfig("g"), StandingTurns(()), Epoch(0))
    assert decided == Decision(Turn(A, Epoch(1), OpIndex(5), None if ends_at is None else OpIndex(ends_at)))


def test_a_turn_may_take_the_place_of_the_one_that_ends_for_it() -> None:
    turns = StandingTurns(
        found_again(replace(OPEN, epoch=Epoch(2)), replace(TURN_OF_B, epoch=Epoch(3))).turns
    )
    change = Change(JobId("C"), None, Epoch(2), (H0,), OpIndex(0))
    round_ = Round(version(1), change)
    decided = round_.decision(SharingConfig("g", capacity=3, rule=Rule.EQUAL_INDEX), turns, Epoch(4))
    assert decided.granted == Turn(JobId("C"), Epoch(5), OpIndex(0), None)
    assert round_.greatest(B) == 0, "nobody has voted"


def test_a_turn_that_is_fenced_takes_no_place_and_no_other_one_is() -> None:
    turns = StandingTurns(found_again(OPEN, TURN_OF_B).turns)
    assert [turns.fence(A, Epoch(1)), turns.fence(A, Epoch(1)), turns.fence(B, Epoch(1))] == [
        [Epoch(1)],
        [],
        [],
    ]
    assert [(one.turn.job, one.turn.until) for one in turns.view()] == [(A, 0), (B, None)]
    assert turns.occupied == 1
    assert turns.next_epoch(Epoch(3), 3, None) == 4, "the place of the turn that is fenced"
    for _ in range(2):
        turns.drained(H0, Epoch(2))
    assert [one.undrained for one in turns.view()] == [(H1,), (OF_B,)]


def test_what_cannot_be_wished_is_said() -> None:
    wishes = Wishes()
    wishes.want(TurnWanted(A, None, None, OpIndex(1)))
    with pytest.raises(LocalMisuse, match="a turn of 2 operations from 3 until 3"):
        wishes.want(TurnWanted(A, 2, OpIndex(3), OpIndex(3)))
    with pytest.raises(LocalMisuse, match="2 seats are too many"):
        wishes.change_seats((H0, H1), 1)
    assert wishes == Wishes(wish=TurnWanted(A, None, None, OpIndex(1)))


@pytest.mark.parametrize(
    ("least", "field", "words"),
    [
        *(
            (PatienceConfig(1, 1, 1, 0), name, "a number that is too small")
            for name in ("mute_ns", "failed_max", "bar_ns", "bar_doublings_max")
        ),
        *(
            (SMALL, name, "sharing group g: a number that is too small")
            for name in (
                "capacity",
                "margin",
                "end_margin",
                "vote_doublings_max",
                "retry_doublings_max",
                "objections_max",
                "seats_max",
            )
        ),
        *(
            (SMALL, name, "sharing group g: a negative time")
            for name in ("vote_ns", "lease_ns", "resend_ns", "retry_ns", "retry_jitter_ns")
        ),
        *(
            (ParticipantConfig(H0, OpIndex(0), 0, 0, 1, 0), name, "seat .*: a number that is too small")
            for name in ("first_operation", "ask_ns", "answer_ns", "operations_max", "lease_max_ns")
        ),
    ],
)
def test_what_is_configured_has_a_least_value(least: Any, field: str, words: str) -> None:
    value = getattr(least, field)
    less = (0, -1) if isinstance(value, tuple) else value - 1
    assert replace(least) == least
    with pytest.raises(LocalMisuse, match=words):
        replace(least, **{field: less})


def test_no_limit_and_no_jitter_are_two_things() -> None:
    assert replace(SMALL, objections_max=None).objections_max is None
    with pytest.raises(LocalMisuse, match="no jitter"):
        replace(SMALL, retry_jitter_ns=())
