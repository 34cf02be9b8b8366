"""Seats that are there and do not answer keep no pool from others for ever (docs/protocol.md 15.7)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inaproto.core.sharing.events import (
    FromSeat,
    JobBarred,
    JobDrained,
    JobHeld,
    Mark,
    OperationEnded,
    PatienceConfig,
    PoolFree,
    SeatGivenUp,
    SeatsChanged,
    TurnRevoked,
    TurnWanted,
)
from inaproto.core.sharing.patience import Patience
from inaproto.errors import LocalMisuse
from inaproto.units import Epoch, Instant, JobId, OpIndex, S
from inaproto.wire.messages.sharing import Commit, Done, Drained, EndTurn, Prepare, Refusal, Rule, Seat, Vote
from tests.paper.sharing_group import Group

A, B = JobId("A"), JobId("B")
BOTH = pytest.mark.parametrize("rule", list(Rule), ids=lambda rule: rule.value)
CONFIG = PatienceConfig(mute_ns=10 * S, failed_max=4, bar_ns=2 * S, bar_doublings_max=2)


def group_of(rule: Rule) -> Group:
    return Group(rule, patience=CONFIG)


def wait(group: Group, until: Callable[[], bool], mute: Seat, *kinds: type, at_most: int) -> int:
    """Timers expire and letters come, but those of ``mute``; how long that took."""
    began = group.now
    while not until():
        assert group.now - began <= at_most, group.coordinator.view()
        deadlines = [group.coordinator.deadline, *(core.deadline for core in group.participants.values())]
        due = min(one for one in deadlines if one is not None)
        group.pass_time(max(0, due - group.now))
        group.deliver_but(mute, *kinds)
    return group.now - began


def has_turn(group: Group, job: str) -> None:
    """Everybody answers, and it has one in the end."""
    for _ in range(100):
        group.deliver()
        if turn_of(group) == job:
            return
        deadline = group.coordinator.deadline
        assert deadline is not None
        group.pass_time(max(0, deadline - group.now))
    raise AssertionError(group.coordinator.view())


def turn_of(group: Group) -> str | None:
    return next((one.turn.job for one in group.coordinator.view().turns), None)


@BOTH
def test_a_seat_that_never_says_that_it_is_done_keeps_others_from_the_pool_for_its_lease(rule: Rule) -> None:
    """It is connected, and cannot read what it is told; without a lease no round ever began again."""
    group = group_of(rule)
    mute = group.of("A")[0]
    group.tell(TurnWanted(A))
    group.deliver_but(mute, Done, Drained)
    assert group.coordinator.view().phase == "committing"
    group.tell(TurnWanted(B))
    group.deliver_but(mute, Done, Drained)
    wait(group, lambda: turn_of(group) == "B", mute, Done, Drained, at_most=2 * CONFIG.mute_ns)
    assert SeatGivenUp(mute, Epoch(1)) in group.actions
    assert next(one for one in group.actions if isinstance(one, JobBarred)).job == A


@BOTH
def test_a_seat_that_never_drains_keeps_others_from_the_pool_for_its_lease(rule: Rule) -> None:
    group = group_of(rule)
    group.tell(TurnWanted(A))
    group.deliver()
    group.run("A", group.config.margin)
    mute, other = group.of("A")
    assert group.start(mute) == group.start(other) == Epoch(1)
    group.at(other, OperationEnded(OpIndex(group.participants[other].view().next_operation - 1)))
    group.tell(TurnRevoked(Epoch(1)))
    group.tell(TurnWanted(B))
    group.deliver_but(mute, Drained)
    took = wait(group, lambda: turn_of(group) == "B", mute, Drained, at_most=2 * CONFIG.mute_ns)
    assert took >= CONFIG.mute_ns
    assert PoolFree(Epoch(1)) in group.actions


@BOTH
@pytest.mark.parametrize("refuses", [False, True])
def test_a_job_whose_seat_does_not_vote_leaves_the_pool_to_others(rule: Rule, refuses: bool) -> None:
    """By equal indices even rounds about others need its vote."""
    group = group_of(rule)
    mute = group.of("A")[0]
    group.tell(TurnWanted(A))

    def refuse() -> None:
        for version in {one.version for one in group.delivered if isinstance(one, Prepare)}:
            group.tell(FromSeat(mute, Refusal(mute, version)))

    def is_barred() -> bool:
        if refuses:
            refuse()
        return A in group.coordinator.view().barred

    took = wait(group, is_barred, mute, at_most=5 * S)
    group.tell(TurnWanted(B))
    assert [one for one in group.actions if isinstance(one, JobBarred)] == [
        JobBarred(A, Instant(group.now + CONFIG.bar_ns))
    ]
    assert took > 0
    group.deliver_but(mute)
    assert turn_of(group) == "B"
    assert not any(isinstance(one, SeatGivenUp) for one in group.actions)


def test_a_job_is_left_out_for_longer_each_time_and_taken_in_again() -> None:
    group = group_of(Rule.BY_INDEX)
    mute = group.of("A")[0]
    group.tell(TurnWanted(A))
    bars: list[int] = []
    for number in range(4):
        wait(group, lambda: A in group.coordinator.view().barred, mute, at_most=10 * S)
        bar = [one for one in group.actions if isinstance(one, JobBarred)][number]
        bars.append(bar.until - group.now)
        wait(group, lambda: A not in group.coordinator.view().barred, mute, at_most=10 * S)
    assert bars == [CONFIG.bar_ns << doublings for doublings in (0, 1, 2, 2)]
    assert group.marks().count(Mark.TAKEN_BACK) == 4
    has_turn(group, "A")  # now it says what it has to


@BOTH
def test_a_seat_that_was_given_up_gives_its_old_turn_up_when_it_votes_again(rule: Rule) -> None:
    group = group_of(rule)
    group.tell(TurnWanted(A))
    group.deliver()
    group.run("A", group.config.margin)
    for seat in group.of("A"):
        group.start(seat)
    mute = group.of("A")[0]
    group.tell(TurnRevoked(Epoch(1)))
    wait(group, lambda: A in group.coordinator.view().barred, mute, at_most=2 * CONFIG.mute_ns)
    group.lose()
    for seat in group.of("A"):
        group.at(seat, OperationEnded(OpIndex(group.participants[seat].view().next_operation - 1)))
    wait(group, lambda: A not in group.coordinator.view().barred, mute, at_most=2 * CONFIG.mute_ns)
    has_turn(group, "A")
    group.run("A", group.config.margin)
    assert {group.start(seat) for seat in group.of("A")} <= {Epoch(2), Epoch(3)}


def test_a_job_that_is_to_drain_does_in_bounded_time() -> None:
    """A move of its tree, which waits for that, would come to no end."""
    group = group_of(Rule.BY_INDEX)
    group.tell(TurnWanted(A))
    group.deliver()
    mute = group.of("A")[0]
    group.tell(JobHeld(A))
    wait(group, lambda: JobDrained(A) in group.actions, mute, at_most=3 * CONFIG.mute_ns)


def test_who_answers_slowly_and_always_is_never_left_out() -> None:
    group = group_of(Rule.BY_INDEX)
    group.tell(TurnWanted(A, 1))
    for _ in range(20):
        group.deliver(Prepare, Vote, Commit, EndTurn)
        group.pass_time(CONFIG.mute_ns // 2)
        group.deliver()
        group.run("A", 2)
    assert len({one.epoch for one in group.actions if isinstance(one, PoolFree)}) >= 10
    assert Mark.BARRED not in group.marks()
    assert Mark.GIVEN_UP not in group.marks()


def test_without_patience_there_is_no_end_to_it() -> None:
    patience = Patience(None)
    patience.owes([Epoch(1)], Instant(0))
    patience.bar(A, Instant(0))
    assert patience.mute(Instant(10**18)) == []
    assert patience.failed([A], Instant(0)) == []
    assert patience.deadline is None
    assert patience.barred == ()


def test_of_a_job_that_has_gone_nothing_is_remembered() -> None:
    patience = Patience(CONFIG)
    for _ in range(CONFIG.failed_max):
        patience.failed([A], Instant(0))
    assert patience.barred == (A,)
    patience.keep([], Instant(0))
    assert patience.barred == (A,), "it may come back at once"
    patience.lift(Instant(CONFIG.bar_ns))
    patience.keep([], Instant(CONFIG.bar_ns))
    assert patience == Patience(CONFIG)


def test_after_a_good_while_a_bar_is_as_short_as_the_first() -> None:
    patience = Patience(CONFIG)
    patience.bar(A, Instant(0))
    now = patience.until(A)
    patience.lift(now)
    patience.bar(A, now)
    assert patience.until(A) - now == 2 * CONFIG.bar_ns
    now = Instant(patience.until(A) + 8 * CONFIG.bar_ns)
    patience.lift(now)
    patience.bar(A, now)
    assert patience.until(A) - now == CONFIG.bar_ns


def test_a_patience_that_cannot_be_is_refused() -> None:
    for changes in ({"mute_ns": 0}, {"failed_max": 0}, {"bar_ns": 0}, {"bar_doublings_max": -1}):
        with pytest.raises(LocalMisuse):
            PatienceConfig(**changes)


def test_seats_that_are_said_again_while_their_job_is_barred_do_not_count() -> None:
    group = group_of(Rule.BY_INDEX)
    mute = group.of("A")[0]
    group.tell(TurnWanted(A))
    wait(group, lambda: A in group.coordinator.view().barred, mute, at_most=5 * S)
    group.tell(SeatsChanged(tuple(group.seats)))
    group.tell(TurnWanted(A))
    assert group.coordinator.view().phase == "idle"


def test_by_equal_indices_a_job_one_of_whose_processes_stands_does_not_keep_others_from_their_turns() -> None:
    """Rounds about others need its seats at one operation, too, and they never are."""
    group = group_of(Rule.EQUAL_INDEX)
    group.start(group.of("A")[0])
    group.tell(TurnWanted(B))
    group.deliver()
    nobody = Seat(JobId("C"), "h0")
    wait(group, lambda: turn_of(group) == "B", nobody, at_most=5 * S)
    assert group.marks().count(Mark.ABORTED_UNEQUAL) == CONFIG.failed_max


def test_by_equal_indices_a_job_that_goes_on_is_met_apart_as_often_as_it_may() -> None:
    patience = Patience(CONFIG)
    first, second = Seat(A, "h0"), Seat(A, "h1")
    for index in range(20):
        places = {first: OpIndex(index), second: OpIndex(index + 1)}
        assert patience.apart(A, places, Instant(0)) == []
    for _ in range(CONFIG.failed_max - 2):
        assert patience.apart(A, {first: OpIndex(19), second: OpIndex(20)}, Instant(0)) == []
    assert patience.apart(A, {second: OpIndex(20)}, Instant(0)) == [A]


def test_a_seat_owes_an_answer_since_it_was_asked() -> None:
    patience = Patience(CONFIG)
    patience.owes([Epoch(1)], Instant(5 * S))
    patience.owes([Epoch(1), Epoch(2)], Instant(6 * S))
    assert patience.mute(Instant(15 * S - 1)) == []
    assert patience.mute(Instant(15 * S)) == [Epoch(1)]


def test_a_job_that_has_voted_begins_anew_and_no_other_one() -> None:
    patience = Patience(CONFIG)
    for job in (A, B):
        for _ in range(CONFIG.failed_max - 1):
            assert patience.failed([job], Instant(0)) == []
    patience.voted([A])
    assert patience.failed([A], Instant(0)) == []
    assert patience.failed([B], Instant(0)) == [B]
