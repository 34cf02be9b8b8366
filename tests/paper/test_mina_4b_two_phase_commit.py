"""MINA, section IV-B, "host coordination": who may use INA is agreed upon in two-phase commit.

The seven steps of the paper's Figure 9, then where it is silent (docs/protocol.md 15): termination,
durability.
"""

from __future__ import annotations

import pytest

from inaproto.core.sharing.coordinator import SharingCoordinator
from inaproto.core.sharing.events import (
    CoordinatorLost,
    Differs,
    FromCoordinator,
    HoldOperation,
    Mark,
    OperationEnded,
    OperationStarting,
    ParticipantConfig,
    PoolFree,
    SharingConfig,
    SharingRecord,
    TurnStands,
    TurnWanted,
)
from inaproto.sim.explore.engine import Kind, explore
from inaproto.sim.explore.sharing.variants import sharing_world
from inaproto.units import Epoch, JobId, OpIndex, S
from inaproto.wire.messages.sharing import (
    Abort,
    Ask,
    AskPeer,
    Commit,
    Done,
    Drained,
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


def test_step_1_all_hosts_of_the_group_are_asked() -> None:
    group = Group(Rule.EQUAL_INDEX)
    group.tell(TurnWanted(A))
    group.deliver(Prepare)
    assert [one.seat for one in group.delivered if isinstance(one, Prepare)] == group.seats


def test_step_2_a_host_that_has_the_lock_starts_no_operation() -> None:
    group = Group(Rule.EQUAL_INDEX)
    group.tell(TurnWanted(A))
    group.deliver(Prepare)
    seat = group.of("B")[0]
    group.at(seat, OperationStarting(OpIndex(0)))
    assert isinstance(group.actions[-2], HoldOperation)
    assert (seat, 0) not in group.started
    group.deliver()
    assert group.started[seat, 0] is None, "it is released with the commit, and job B has no turn"


def test_step_3_the_ack_has_the_index_of_the_current_operation() -> None:
    group = Group(Rule.EQUAL_INDEX)
    group.run("A", 3)
    group.run("B", 1)
    group.tell(TurnWanted(A))
    group.deliver(Prepare, Vote)
    votes = {one.seat: one.index for one in group.delivered if isinstance(one, Vote)}
    assert [votes[seat] for seat in group.seats] == [3, 3, 1, 1]


def test_step_4_and_5_indices_that_differ_abort_and_are_tried_again_later() -> None:
    group = Group(Rule.EQUAL_INDEX)
    ahead = group.of("A")[0]
    group.start(ahead)
    group.tell(TurnWanted(A))
    group.deliver()
    assert Mark.ABORTED_UNEQUAL in group.marks()
    assert group.phases("A") == group.phases("B") == ["free", "free"]
    assert group.record is not None
    assert not group.record.turns
    group.start(group.of("A")[1])
    group.pass_time(S)
    group.deliver()
    assert group.marks()[-1] is Mark.COMMITTED


def test_indices_of_different_jobs_may_differ() -> None:
    group = Group(Rule.EQUAL_INDEX)
    group.run("B", 5)
    group.tell(TurnWanted(A))
    group.deliver()
    assert Mark.COMMITTED in group.marks()


def test_step_6_and_7_the_update_is_applied_the_lock_released_and_acknowledged() -> None:
    group = Group(Rule.EQUAL_INDEX)
    group.tell(TurnWanted(A))
    group.deliver()
    assert {one.seat for one in group.delivered if isinstance(one, Done)} == set(group.seats)
    assert group.phases("A") == group.phases("B") == ["free", "free"]
    assert group.run("A", 2) == [{Epoch(1)}, {Epoch(1)}]
    assert group.run("B") == [{None}]


@BOTH
def test_no_operation_needs_a_round_trip(rule: Rule) -> None:
    group = Group(rule)
    group.tell(TurnWanted(A))
    group.deliver()
    group.lose()
    group.run("A", 20)
    assert not group.under_way


def test_a_job_in_an_ina_operation_is_not_deprived_of_its_turn() -> None:
    """Ours: the paper does not say what becomes of an operation that is under way."""
    group = Group(Rule.EQUAL_INDEX)
    group.tell(TurnWanted(A))
    group.deliver()
    for seat in group.of("A"):
        group.start(seat)
    group.tell(TurnWanted(B))
    group.deliver()
    assert Mark.ABORTED_IN_INA in group.marks()
    assert not [one for one in group.actions if isinstance(one, PoolFree)]


@pytest.mark.parametrize("objections_max", [3, None])
def test_a_job_that_is_met_in_ina_operations_again_and_again_loses_its_turn_without_a_round(
    objections_max: int | None,
) -> None:
    """Ours: as the paper has it (None), it can keep it for ever."""
    group = Group(Rule.EQUAL_INDEX, hosts=1, objections_max=objections_max)
    group.tell(TurnWanted(A))
    group.deliver()
    (seat,) = group.of("A")
    group.tell(TurnWanted(B))
    epochs = []
    for index in range(8):
        epochs.append(group.start(seat))
        group.deliver()
        group.pass_time(2 * S)
        group.deliver()
        group.at(seat, OperationEnded(OpIndex(index)))
        group.deliver()
    if objections_max is None:
        assert epochs == [Epoch(1)] * 8
        return
    assert group.marks().count(Mark.ABORTED_IN_INA) == objections_max
    assert None in epochs
    assert group.run("B") == [{Epoch(2)}]


def test_with_the_paper_s_rule_one_round_passes_the_turn_on() -> None:
    group = Group(Rule.EQUAL_INDEX)
    group.tell(TurnWanted(A))
    group.deliver()
    group.run("A", 3)
    group.tell(TurnWanted(B, 2))
    group.deliver()
    assert group.run("A") == [{None}]
    assert group.run("B", 3) == [{Epoch(2)}, {Epoch(2)}, {None}]
    assert Drained(group.of("B")[0], Epoch(2)) in [event.message for _, event in group.under_way]


# --- by index, beyond the paper


def test_by_index_only_the_job_s_seats_are_asked_and_none_is_locked() -> None:
    group = Group(Rule.BY_INDEX)
    group.tell(TurnWanted(A))
    group.deliver(Prepare)
    assert group.phases("A") == ["voted", "voted"]
    assert group.phases("B") == ["free", "free"]
    assert group.start(group.of("A")[0]) is None
    assert Mark.HELD not in group.marks()


def test_by_index_differing_indices_need_no_abort() -> None:
    group = Group(Rule.BY_INDEX)
    for _ in range(3):
        group.start(group.of("A")[0])
    group.tell(TurnWanted(A, 4))
    group.deliver()
    margin = group.config.margin
    stands = [one for one in group.actions if isinstance(one, TurnStands)]
    assert stands == [TurnStands(A, Epoch(1), OpIndex(3 + margin), OpIndex(7 + margin))]


def test_by_index_the_next_turn_waits_until_all_seats_have_drained() -> None:
    group = Group(Rule.BY_INDEX)
    group.tell(TurnWanted(A, 1))
    group.deliver()
    group.run("A", group.config.margin)
    group.tell(TurnWanted(B))
    first, second = group.of("A")
    assert group.start(first) == Epoch(1)
    group.deliver()
    assert group.coordinator.view().wanted == B
    assert not [one for one in group.delivered if isinstance(one, Prepare) and one.granted == B]
    assert group.start(second) == Epoch(1)
    for seat in (first, second):
        group.participants[seat].step(_ended(group, seat), group.now)
    group.lose()
    group.pass_time(S)
    group.deliver(EndTurn, Drained)
    assert PoolFree(Epoch(1)) in group.actions, "what was lost is asked for"


def test_by_index_an_open_turn_ends_at_an_operation_that_no_seat_has_started() -> None:
    group = Group(Rule.BY_INDEX)
    group.tell(TurnWanted(A))
    group.deliver()
    group.run("A", 4)
    group.start(group.of("A")[0])
    group.tell(TurnWanted(B))
    group.deliver()
    stands = [one for one in group.actions if isinstance(one, TurnStands)]
    assert stands[-1].until == 5 + group.config.end_margin


def test_by_index_a_turn_begins_where_it_is_planned_to_or_with_the_next_operation() -> None:
    for planned, first in ((6, 6), (2, 3)):
        group = Group(Rule.BY_INDEX)
        group.run("A", 3)
        group.tell(TurnWanted(A, 2, OpIndex(planned)))
        group.deliver()
        epochs = group.run("A", first - 3 + 3)
        assert epochs == [*[{None}] * (first - 3), {Epoch(1)}, {Epoch(1)}, {None}]
        assert Mark.FELL_BACK_IN_DOUBT not in group.marks()


@pytest.mark.parametrize(("begun", "in_turn"), [(0, [2, 3]), (3, [3]), (4, []), (6, [])])
def test_a_turn_ends_where_it_was_planned_to_however_late_it_is_agreed_upon(
    begun: int, in_turn: list[int]
) -> None:
    """Else it would go on into the next step of its job, for whose first operation the pool would wait."""
    group = Group(Rule.BY_INDEX)
    group.run("A", begun)
    group.tell(TurnWanted(A, None, OpIndex(2), OpIndex(4)))
    group.deliver()
    epochs = group.run("A", 8 - begun)
    assert [begun + place for place, one in enumerate(epochs) if one == {Epoch(1)}] == in_turn
    group.deliver()
    assert group.coordinator.view().turns == (), "and then the pool is free"


def test_by_index_who_began_before_it_heard_of_its_turn_is_on_the_fallback_and_others_are_rescued() -> None:
    """Without locks no index can be named that nobody has started. Control worlds have the rescue."""
    group = Group(Rule.BY_INDEX)
    group.tell(TurnWanted(A, 2))
    group.deliver(Prepare)
    early, late = group.of("A")
    assert group.start(early) is None
    assert group.marks()[-1] is Mark.FELL_BACK_IN_DOUBT
    group.deliver()
    assert group.start(late) == Epoch(1), "the first of the turn is one that a seat has begun"
    assert [group.start(seat) for seat in (early, late)] == [Epoch(1), Epoch(1)]


# --- termination (ours)


@BOTH
def test_the_decision_is_durable_before_the_first_commit_leaves(rule: Rule) -> None:
    group = Group(rule)
    group.persists = False
    group.tell(TurnWanted(A))
    group.deliver()
    assert not [one for one in group.delivered if isinstance(one, Commit)]
    group.write()
    group.deliver()
    assert [one for one in group.delivered if isinstance(one, Commit)]


def test_a_lock_is_held_no_longer_than_its_lease() -> None:
    """In the paper's protocol it is held for ever if the coordinator dies (``inaproto explore``)."""
    group = Group(Rule.EQUAL_INDEX)
    group.tell(TurnWanted(A))
    group.deliver(Prepare)
    seat = group.of("A")[0]
    group.at(seat, OperationStarting(OpIndex(0)))
    group.lose()
    group.pass_time(S)
    assert group.phases("A") == ["in doubt", "in doubt"]
    assert group.started[seat, 0] is None, "in doubt it falls back"


def test_the_paper_s_lock_is_held_for_ever_when_the_coordinator_dies_after_a_vote() -> None:
    """Every interleaving of the paper's rule: ``inaproto explore --world sharing --variant paper``."""
    found = explore(sharing_world("paper"), states_max=80_000).counterexample
    assert found is not None
    assert found.kind is Kind.STUCK
    assert "is locked" in found.run[-2]
    assert found.run[-1] == "the coordinator CRASHES"


def test_a_seat_in_doubt_never_uses_ina() -> None:
    group = Group(Rule.EQUAL_INDEX)
    group.tell(TurnWanted(A))
    group.deliver()
    group.run("A")
    group.tell(TurnWanted(B))
    group.deliver(Prepare)
    group.lose()
    group.pass_time(S)
    assert group.run("A") == [{None}]
    assert Mark.FELL_BACK_IN_DOUBT in group.marks()


@BOTH
def test_a_restarted_coordinator_repeats_what_its_log_decided(rule: Rule) -> None:
    group = Group(rule)
    group.tell(TurnWanted(A))
    group.deliver(Prepare, Vote)
    group.lose()
    group.restart()
    group.deliver()
    assert group.coordinator.view().term == 2
    assert Mark.RECOVERED in group.marks()
    assert group.run("A", 3)[-1] == {Epoch(1)}


@BOTH
def test_a_restarted_coordinator_aborts_what_its_log_has_not(rule: Rule) -> None:
    group = Group(rule)
    group.tell(TurnWanted(A))
    group.deliver(Prepare)
    group.lose()
    group.restart()
    group.pass_time(S)
    group.deliver(Ask, Abort)
    assert Mark.PRESUMED_ABORT in group.marks()
    assert group.phases("A") == ["free", "free"]


@BOTH
def test_a_peer_that_heard_the_commit_ends_the_doubt(rule: Rule) -> None:
    group = Group(rule)
    group.tell(TurnWanted(A))
    group.deliver(Prepare, Vote)
    told, in_doubt = group.of("A")
    commit = next(event for seat, event in group.under_way if seat == told)
    assert isinstance(commit, FromCoordinator)
    group.at(told, commit)
    group.lose()
    group.pass_time(S)
    group.lose()
    group.pass_time(S)
    group.deliver(AskPeer, TellPeerDecision)
    assert Mark.RESOLVED_BY_PEER in group.marks()
    assert group.participants[in_doubt].view().turn == group.participants[told].view().turn


def in_doubt_of(group: Group) -> tuple[Seat, Seat, FromCoordinator]:
    """Job A's seats have voted, and only the first was told what was decided: that word, and the coordinator
    is lost."""
    group.tell(TurnWanted(A))
    group.deliver(Prepare, Vote)
    told, other = group.of("A")
    commit = next(event for seat, event in group.under_way if seat == told)
    assert isinstance(commit, FromCoordinator)
    group.lose()
    return told, other, commit


@BOTH
def test_who_loses_the_coordinator_takes_what_was_decided_from_its_peers_at_once(rule: Rule) -> None:
    group = Group(rule)
    told, other, commit = in_doubt_of(group)
    group.at(told, commit)
    group.lose()
    for seat in (told, other):
        group.at(seat, CoordinatorLost())
    group.deliver()
    assert Mark.RESOLVED_BY_PEER in group.marks()
    assert Mark.IN_DOUBT not in group.marks(), "and no operation has waited"
    assert group.participants[other].view().turn == group.participants[told].view().turn


@BOTH
def test_who_is_asked_too_early_answers_when_it_knows(rule: Rule) -> None:
    group = Group(rule)
    told, other, commit = in_doubt_of(group)
    group.at(other, CoordinatorLost())
    group.deliver(AskPeer)
    assert not [one for one in group.delivered if isinstance(one, TellPeerDecision)]
    group.at(told, commit)
    group.deliver(TellPeerDecision)
    assert group.participants[other].view().turn == group.participants[told].view().turn
    group.at(other, CoordinatorLost())
    assert not group.under_way or isinstance(group.under_way[-1][1].message, Done)


@BOTH
def test_who_is_asked_about_a_round_that_was_aborted_meanwhile_says_so(rule: Rule) -> None:
    group = Group(rule)
    told, other, _ = in_doubt_of(group)
    version = group.participants[told].view().version
    group.at(other, CoordinatorLost())
    group.deliver(AskPeer)
    group.at(told, FromCoordinator(Abort(told, 2, version)))
    group.deliver(TellPeerDecision)
    assert group.phases("A") == ["free", "free"]


@BOTH
def test_who_loses_the_coordinator_waits_no_longer_than_its_peers_take_to_answer(rule: Rule) -> None:
    group = Group(rule)
    _, other, _ = in_doubt_of(group)
    lease, answer_ns = group.participants[other].deadline, ParticipantConfig(other).answer_ns
    group.at(other, CoordinatorLost())
    shorter = group.participants[other].deadline
    assert lease is not None
    assert shorter == group.now + answer_ns < lease
    group.pass_time(answer_ns)
    assert group.phases("A")[1] == "in doubt"
    assert group.start(other) is None


def test_what_a_seat_in_doubt_runs_by_the_fallback_others_that_have_yet_to_begin_run_so_too() -> None:
    group = Group(Rule.BY_INDEX)
    told, other, commit = in_doubt_of(group)
    group.at(other, CoordinatorLost())
    group.pass_time(S)
    group.lose()
    assert group.start(other) is None
    group.deliver(AskPeer)
    group.at(told, commit)
    assert group.start(told) is None
    assert group.marks()[-1] is Mark.FOLLOWED_PEER
    group.deliver()
    assert [group.start(seat) for seat in (told, other)] == [Epoch(1), Epoch(1)], "it had only to be said"


def test_who_has_begun_by_ina_what_another_runs_by_the_fallback_hears_so_at_once() -> None:
    """Neither can end it, so whoever owns the rings need not wait until it stalls."""
    group = Group(Rule.BY_INDEX)
    told, other, commit = in_doubt_of(group)
    group.at(told, commit)
    group.lose()
    group.pass_time(S)
    group.lose()
    assert group.start(told) == Epoch(1)
    assert group.start(other) is None
    index = OpIndex(0)
    group.deliver(AskPeer)
    assert [one for one in group.actions if isinstance(one, Differs)] == [Differs(index, other)]
    group.deliver()
    assert group.start(other) == Epoch(1), "with the answer"


@BOTH
def test_a_peer_that_never_voted_ends_the_doubt_and_never_will(rule: Rule) -> None:
    group = Group(rule)
    group.tell(TurnWanted(A))
    voted, other = group.of("A")
    prepares = dict(group.under_way)
    group.at(voted, prepares[voted])  # type: ignore[arg-type]
    group.lose()
    group.pass_time(S)
    group.lose()
    group.pass_time(S)
    group.deliver(AskPeer, TellPeerDecision)
    assert group.participants[voted].view().phase == "free"
    assert Mark.PROMISED in group.marks()
    group.at(other, prepares[other])  # type: ignore[arg-type]
    assert group.participants[other].view().phase == "free"
    assert isinstance(group.under_way[-1][1].message, Refusal)


@BOTH
def test_an_older_term_is_refused(rule: Rule) -> None:
    group = Group(rule)
    group.tell(TurnWanted(A))
    old = dict(group.under_way)
    group.lose()
    group.restart()
    group.tell(TurnWanted(A))
    group.deliver()
    for seat in group.of("A"):
        before = group.participants[seat].view()
        group.at(seat, old[seat])  # type: ignore[arg-type]
        assert group.participants[seat].view().phase == before.phase
    assert group.marks()[-1] is Mark.STALE


class Termless(SharingCoordinator):
    """After a restart counts its rounds on from the last in its log, under one term for ever."""

    def __init__(self, config: SharingConfig, record: SharingRecord | None = None) -> None:
        super().__init__(config, record)
        self._rounds.term, self._rounds.number = 1, 0 if record is None else record.version.number


@pytest.mark.parametrize("make", [SharingCoordinator, Termless])
def test_without_terms_votes_of_a_round_that_a_crash_ended_count_in_another_and_two_jobs_use_the_pool(
    make: type[SharingCoordinator],
) -> None:
    """Two seats, one crash, two letters that are late; too long a run for the search."""
    group = Group(Rule.EQUAL_INDEX, hosts=1, make=make)
    holder, other = group.seats
    group.tell(TurnWanted(A))
    group.deliver()
    group.tell(TurnWanted(B))
    group.deliver(Prepare)
    late = list(group.under_way)
    assert [type(event.message) for _, event in late] == [Vote, Vote]
    group.lose()
    group.restart()
    group.pass_time(S)
    group.deliver()
    assert group.phases("A") == group.phases("B") == ["free"], "they were told that it was aborted"
    assert group.start(holder) == Epoch(1), "so the turn goes on"
    group.tell(TurnWanted(B))
    group.under_way.extend(late)
    group.deliver()
    group.start(other)
    using = [seat.job for seat in group.seats if group.participants[seat].view().in_ina]
    assert using == ([A] if make is SharingCoordinator else [A, B])


def _ended(group: Group, seat: Seat) -> OperationEnded:
    return OperationEnded(OpIndex(group.participants[seat].view().next_operation - 1))
