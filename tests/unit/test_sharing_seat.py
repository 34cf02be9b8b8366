"""The turns of one job on one host, without a daemon."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.sharing.events import FromCoordinator, Mark, Noted, Path, TellCoordinator
from inaproto.core.sharing.seat import (
    AskAgain,
    Bind,
    MayBind,
    OperationBound,
    OperationDrained,
    Parked,
    ParkWanted,
    Place,
    RingEnded,
    RingStands,
    SeatAction,
    SeatConfig,
    SeatEvent,
    SeatLeft,
    SeatTaken,
    SeatView,
    SharingSeat,
    WaitUntil,
)
from inaproto.core.sharing.seat import OperationDone as Done
from inaproto.errors import LocalMisuse
from inaproto.units import Epoch, Instant, JobId, OpIndex, S
from inaproto.wire.messages.sharing import (
    Ask,
    Commit,
    Decision,
    Drained,
    EndTurn,
    Prepare,
    Rule,
    Seat,
    Turn,
    Version,
    Vote,
)
from inaproto.wire.messages.sharing import Done as DoneWithRound

JOB = JobId("train")
SEAT = Seat(JOB, "h0", 1)


def test_one_operation_too_many_changes_nothing() -> None:
    """What its participant had to say in doubt was said to nobody."""
    seat = SharingSeat(SeatConfig(JOB, "h0", operations_max=1))
    seat.step(RingStands(1, OpIndex(0)), Instant(0))
    seat.step(OperationBound(OpIndex(0), Path.FALLBACK), Instant(0))
    asked = Prepare(
        seat=SEAT,
        term=1,
        version=Version(1, 1),
        rule=Rule.BY_INDEX,
        granted=JOB,
        over_below=Epoch(1),
        margin=2,
        lease_ns=S,
        peers=(SEAT,),
    )
    seat.step(FromCoordinator(asked), Instant(0))
    before = seat.view()
    with pytest.raises(LocalMisuse, match="one of too many"):
        seat.step(MayBind(OpIndex(1)), Instant(2 * S))
    assert seat.view() == before
    said = seat.step(Done(OpIndex(0)), Instant(2 * S)) + seat.step(MayBind(OpIndex(1)), Instant(2 * S))
    assert TellCoordinator(Ask(SEAT, Version(1, 1))) in said


FIRST = Version(1, 1)
ROUND = Prepare(
    seat=SEAT,
    term=1,
    version=FIRST,
    rule=Rule.BY_INDEX,
    granted=JOB,
    over_below=Epoch(1),
    margin=0,
    lease_ns=S,
    peers=(SEAT,),
)
LOCKS = replace(ROUND, rule=Rule.EQUAL_INDEX)
VOTE = TellCoordinator(Vote(SEAT, FIRST, OpIndex(3), False))
COMMIT = FromCoordinator(Commit(SEAT, 1, FIRST, Decision(Turn(JOB, Epoch(1), OpIndex(3), None))))
DONE = TellCoordinator(DoneWithRound(SEAT, FIRST))
END = FromCoordinator(EndTurn(SEAT, 1, Epoch(1), OpIndex(0)))
DRAINED = TellCoordinator(Drained(SEAT, Epoch(1)))
Said = tuple[int, SeatEvent, list[SeatAction], Place]
"""At what time it hears what, what it does, and where its job is then."""
THIRD = OpIndex(3)
STANDS: list[Said] = [(1, RingStands(1, THIRD), [SeatTaken(SEAT)], Place(0, False, False, Instant(0)))]
HAS_TURN: list[Said] = [
    *STANDS,
    (2, FromCoordinator(ROUND), [VOTE], Place(0, False, False, Instant(0))),
    (2, MayBind(THIRD), [WaitUntil(THIRD, Instant(S + 2))], Place(0, False, False, Instant(0))),
    (3, COMMIT, [DONE, AskAgain()], Place(0, False, False, Instant(0))),
    (3, MayBind(THIRD), [Bind(THIRD, Epoch(1))], Place(0, False, False, Instant(0))),
    (4, OperationBound(THIRD, Path.INA), [], Place(3, True, True, Instant(4))),
]
SCRIPTS: dict[str, list[Said]] = {
    "without_a_ring_all_goes_by_the_fallback": [
        (1, MayBind(OpIndex(2)), [Bind(OpIndex(2), None)], Place(0, False, False, Instant(0))),
        (2, OperationBound(OpIndex(2), Path.FALLBACK), [], Place(2, True, False, Instant(2))),
        (3, Done(OpIndex(2)), [], Place(3, False, False, Instant(3))),
        (4, OperationBound(OpIndex(3), Path.INA), [], Place(3, True, True, Instant(4))),
    ],
    "a_seat_parks_when_its_turn_has_drained": [
        *HAS_TURN,
        (5, ParkWanted(), [], Place(3, True, True, Instant(4))),
        (6, Done(THIRD), [], Place(4, False, False, Instant(6))),
        (7, END, [], Place(4, False, False, Instant(6))),
        (8, OperationDrained(THIRD), [DRAINED, SeatLeft(SEAT), Parked()], Place(4, False, False, Instant(6))),
        (9, MayBind(OpIndex(4)), [Bind(OpIndex(4), None)], Place(4, False, False, Instant(6))),
    ],
    "a_seat_whose_ring_ends_gives_its_turn_up_and_is_left": [
        *HAS_TURN,
        (5, RingEnded(), [DRAINED, SeatLeft(SEAT)], Place(3, True, True, Instant(4))),
        (5, RingEnded(), [], Place(3, True, True, Instant(4))),
    ],
    "what_nobody_asked_about_is_bound_and_keeps_no_answer": [
        *STANDS,
        (2, OperationBound(OpIndex(4), Path.FALLBACK), [], Place(4, True, False, Instant(2))),
        (3, Done(OpIndex(4)), [], Place(5, False, False, Instant(3))),
        (3, ParkWanted(), [], Place(5, False, False, Instant(3))),
        (4, MayBind(THIRD), [Bind(THIRD, None)], Place(5, False, False, Instant(3))),
        (4, Done(THIRD), [SeatLeft(SEAT), Parked()], Place(4, False, False, Instant(4))),
    ],
    "what_a_lock_holds_waits_for_the_lease_at_most": [
        *STANDS,
        (2, FromCoordinator(LOCKS), [VOTE], Place(0, False, False, Instant(0))),
        (
            3,
            MayBind(THIRD),
            [Noted(Mark.HELD, FIRST), WaitUntil(THIRD, Instant(S + 2))],
            Place(0, False, False, Instant(0)),
        ),
        (4, COMMIT, [DONE, AskAgain()], Place(0, False, False, Instant(0))),
        (4, MayBind(THIRD), [Bind(THIRD, Epoch(1))], Place(0, False, False, Instant(0))),
        (5, OperationBound(THIRD, Path.INA), [], Place(3, True, True, Instant(5))),
    ],
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=list(SCRIPTS))
def test_what_a_seat_does_and_where_its_job_is(script: list[Said]) -> None:
    seat = SharingSeat(SeatConfig(JOB, "h0"))
    for number, (now, event, actions, place) in enumerate(script):
        assert (seat.step(event, Instant(now)), seat.place) == (actions, place), number


def test_a_seat_shows_what_it_has() -> None:
    seat = SharingSeat(SeatConfig(JOB, "h0"))
    assert seat.view() == SeatView(None, Place(0, False, False, Instant(0)), 0, None)
    deadlines = [seat.deadline]
    for now, event, _, _ in HAS_TURN:
        seat.step(event, Instant(now))
        deadlines.append(seat.deadline)
    assert deadlines == [None, None, S + 2, S + 2, None, None, None]
    view = seat.view()
    assert (view.seat, view.place, view.granted) == (SEAT, Place(3, True, True, Instant(4)), 1)
    assert view.participant is not None
    assert view.participant.in_ina == ((THIRD, Epoch(1)),)
