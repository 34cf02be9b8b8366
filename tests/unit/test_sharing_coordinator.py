"""The coordinator of a sharing group: what the paper's rules do not cover."""

from __future__ import annotations

import itertools

import pytest

from inaproto.core.sharing.coordinator import SharingCoordinator
from inaproto.core.sharing.events import (
    Closing,
    CoordinatorLost,
    JobDrained,
    JobHeld,
    JobReleased,
    Mark,
    OperationEnded,
    OperationStarting,
    Persisted,
    PoolFree,
    RingRemoved,
    SeatGone,
    SeatsChanged,
    SharingConfig,
    TurnRevoked,
    TurnWanted,
    Woke,
)
from inaproto.core.sharing.participant import HANDLERS as SEAT_HANDLERS
from inaproto.core.sharing.participant import Phase as SeatPhase
from inaproto.core.sharing.rounds import HANDLERS, Phase
from inaproto.errors import LocalMisuse
from inaproto.units import Epoch, Instant, JobId, OpIndex, S
from inaproto.wire.messages.sharing import (
    Abort,
    Ask,
    AskPeer,
    Commit,
    Done,
    EndTurn,
    Prepare,
    Refusal,
    Rule,
    Seat,
    TellPeerDecision,
    Vote,
)
from tests.paper.sharing_group import Group

A, B = JobId("A"), JobId("B")
BOTH = pytest.mark.parametrize("rule", list(Rule), ids=lambda rule: rule.value)


def test_the_tables_are_complete() -> None:
    assert set(HANDLERS) == set(itertools.product(Phase, (Woke, Persisted, Vote, Refusal, Done, Ask)))
    said = (Prepare, Commit, Abort, EndTurn, AskPeer, TellPeerDecision)
    own = (OperationStarting, OperationEnded, Closing, CoordinatorLost, Woke)
    assert set(SEAT_HANDLERS) == set(itertools.product(SeatPhase, (*said, *own)))


def with_turn(rule: Rule) -> Group:
    group = Group(rule)
    group.tell(TurnWanted(A))
    group.deliver()
    group.run("A", group.config.margin)
    return group


@BOTH
def test_a_seat_that_is_gone_while_the_decision_is_made_durable_is_not_waited_for(rule: Rule) -> None:
    """Found by ``inaproto explore --world sharing --host-crashes 1``: its turn stood for ever."""
    group = Group(rule)
    group.persists = False
    group.tell(TurnWanted(A))
    group.deliver()
    gone = group.of("A")[0]
    group.tell(SeatGone(gone, "it crashed"))
    del group.participants[gone]
    group.write()
    group.deliver()
    assert PoolFree(Epoch(1)) in group.actions
    assert gone not in group.coordinator.view().missing


@BOTH
def test_a_job_that_is_held_drains_and_gets_no_turn_until_it_is_released(rule: Rule) -> None:
    group = with_turn(rule)
    group.tell(JobHeld(A))
    group.deliver()
    group.run("A", group.config.end_margin)
    group.deliver()
    assert JobDrained(A) in group.actions
    assert group.run("A", 3) == [{None}] * 3
    group.tell(JobReleased(A))
    group.deliver()
    assert group.run("A", 3)[-1] == {Epoch(2)}


@BOTH
def test_a_ring_that_was_removed_frees_the_pool_at_once(rule: Rule) -> None:
    group = with_turn(rule)
    for seat in group.of("A"):
        group.start(seat)
    group.tell(RingRemoved(A, Epoch(1)))
    assert PoolFree(Epoch(1)) in group.actions
    group.deliver()
    turns = [group.participants[seat].view().turn for seat in group.of("A")]
    assert all(turn is None or turn.epoch > 1 for turn in turns)


@BOTH
def test_a_turn_that_is_revoked_ends_at_once_and_what_runs_in_it_is_waited_for(rule: Rule) -> None:
    group = with_turn(rule)
    busy, idle = group.of("A")
    assert group.start(busy) == Epoch(1)
    group.tell(TurnRevoked(Epoch(1)))
    group.deliver()
    assert Mark.TURN_FORCED in group.marks()
    assert group.participants[idle].view().turn is None
    assert PoolFree(Epoch(1)) not in group.actions
    group.at(busy, OperationEnded(OpIndex(group.participants[busy].view().next_operation - 1)))
    group.deliver()
    assert PoolFree(Epoch(1)) in group.actions
    before = len(group.actions)
    group.tell(TurnRevoked(Epoch(1)))
    assert len(group.actions) == before, "it is over"


@BOTH
def test_a_job_that_loses_a_seat_loses_its_turn_without_a_round(rule: Rule) -> None:
    group = with_turn(rule)
    gone, left = group.of("A")
    group.tell(SeatGone(gone, "it crashed"))
    del group.participants[gone]
    group.deliver()
    assert Mark.TURN_FORCED in group.marks()
    assert PoolFree(Epoch(1)) in group.actions
    turn = group.participants[left].view().turn
    assert turn is None or turn.epoch == Epoch(2)


@BOTH
def test_a_seat_that_closes_gives_its_turn_up_for_all(rule: Rule) -> None:
    group = with_turn(rule)
    for seat in group.of("A"):
        group.at(seat, Closing())
    group.tell(SeatsChanged(tuple(group.of("B"))))
    group.deliver()
    assert PoolFree(Epoch(1)) in group.actions
    assert not group.coordinator.view().turns


def test_two_units_have_two_turns() -> None:
    group = Group(Rule.BY_INDEX, jobs="ABC", capacity=2)
    for job in (A, B):
        group.tell(TurnWanted(job))
        group.deliver()
    assert [one.turn.job for one in group.coordinator.view().turns] == [A, B]
    group.tell(TurnWanted(JobId("C")))
    group.deliver()
    group.run("A", 2 * group.config.end_margin)
    group.deliver()
    assert [one.turn.job for one in group.coordinator.view().turns] == [B, "C"]


def test_a_turn_has_the_epoch_of_a_place_that_is_free() -> None:
    """A switch puts a turn where ``epoch mod capacity`` says: turn 3 would take the slots of turn 1."""
    group = Group(Rule.BY_INDEX, jobs="ABC", capacity=2)
    group.tell(TurnWanted(A))
    group.deliver()
    group.tell(TurnWanted(B, operations=1))
    group.deliver()
    group.run("B", 1)
    group.deliver()
    assert [(one.turn.job, one.turn.epoch) for one in group.coordinator.view().turns] == [(A, 1), (B, 4)]


def test_misuse_changes_nothing() -> None:
    coordinator = SharingCoordinator(SharingConfig("g", seats_max=1))
    seat = Seat(A, "h")
    with pytest.raises(LocalMisuse):
        coordinator.step(TurnWanted(A, 0), Instant(0))
    with pytest.raises(LocalMisuse):
        coordinator.step(TurnWanted(A, None, OpIndex(3), OpIndex(3)), Instant(0))
    with pytest.raises(LocalMisuse):
        coordinator.step(SeatsChanged((seat, seat)), Instant(0))
    group = Group(Rule.BY_INDEX)
    with pytest.raises(LocalMisuse):
        group.at(group.seats[0], OperationStarting(OpIndex(1)))
    with pytest.raises(LocalMisuse):
        group.at(group.seats[0], OperationEnded(OpIndex(0)))
    with pytest.raises(LocalMisuse):
        SharingConfig("g", capacity=0)


def test_by_index_slow_hosts_are_waited_for_longer_until_a_round_can_be_decided() -> None:
    """Votes that always took longer than ``vote_ns`` would decide nothing, for ever."""
    group = Group(Rule.BY_INDEX)
    vote_ns, lease_ns = group.config.vote_ns, group.config.lease_ns
    group.tell(TurnWanted(A))
    waits = []
    while not group.coordinator.view().turns:
        group.deliver(Prepare)
        deadline = group.coordinator.deadline
        assert deadline is not None
        waits.append(deadline - group.now)
        group.pass_time(min(waits[-1], 3 * vote_ns))
        group.deliver()
        group.pass_time((group.coordinator.deadline or group.now) - group.now)
    assert waits == [vote_ns, 2 * vote_ns, 4 * vote_ns]
    prepares = [one for one in group.delivered if isinstance(one, Prepare)]
    assert sorted({one.lease_ns for one in prepares}) == [lease_ns, 2 * lease_ns, 4 * lease_ns]
    for job in "BAB":  # at once, now
        group.tell(TurnWanted(JobId(job), 1))
        group.deliver()
        for other in "AB":
            group.run(other, 4)
        group.deliver()
    prepares = [one for one in group.delivered if isinstance(one, Prepare)]
    assert prepares[-1].lease_ns == lease_ns


def test_back_offs_grow_and_have_the_seed_s_jitter() -> None:
    group = Group(Rule.EQUAL_INDEX)
    group.start(group.of("A")[0])
    group.tell(TurnWanted(A))
    waits = []
    for _ in range(3):
        group.deliver()
        deadline = group.coordinator.deadline
        assert deadline is not None
        waits.append(deadline - group.now)
        group.pass_time(deadline - group.now)
    assert waits == [group.config.retry_ns << doublings for doublings in range(3)]
    group.pass_time(S)
