"""Elastic jobs at the rendezvous: who may go on, by what name, and who may take that name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.rendezvous.events import (
    MemberAsked,
    MemberGone,
    MemberLeft,
    MemberReady,
    MemberRegroups,
    Noted,
    OperationStalled,
    RegroupingView,
    RendezvousAction,
    SessionId,
)
from inaproto.units import S
from inaproto.wire.control_messages import (
    Error,
    Failed,
    Gone,
    Left,
    Member,
    OpStarted,
    Ready,
    Regroup,
    Regrouped,
    Ring,
)
from tests.unit.rendezvous_hosts import PAIRS, World, failure, refusal, sent
from tests.unit.rendezvous_members import member

KILLED = "rank 0 (h0, pid 1000) of job 'train' is lost: it was killed"
UNKNOWN = (
    "the switch knows of no survivors of it among which this rank is: the job is not elastic, has not lost a "
    "rank, this rank asked too late, or the switch was restarted; start the job anew"
)
RESERVED = (
    "names with '~' are those of jobs that went on without a lost rank (shrink), and no ranks are about to "
    "join this one: they came too late, or the switch was restarted"
)


class Elastic(World):
    """A job that is elastic, by default of two hosts with two ranks each."""

    def __init__(self, ranks: Mapping[int, tuple[int, ...]] = PAIRS, **config: Any) -> None:
        super().__init__(ranks, **config)

    def member(self, rank: int, **changes: Any) -> Member:
        return super().member(rank, **({"elastic": True} | changes))

    def regroups(self, rank: int, done: int = 3, ring_id: int = 1, **changes: Any) -> list[RendezvousAction]:
        told = Regroup(id=200 + rank, job="train", ring_id=ring_id, rank=rank, operations_done=done)
        return self.step(MemberRegroups(self.at(rank), replace(told, **changes)))

    def all_regroup(self, *ranks: int, **changes: Any) -> list[RendezvousAction]:
        """What comes of the last of them."""
        return [self.regroups(rank, **changes) for rank in ranks][-1]

    def gone_late(self, rank: int, ring_id: int = 1) -> list[RendezvousAction]:
        told = Gone(job="train", rank=rank, reason="it was killed, too", ring_id=ring_id)
        return self.step(MemberGone(self.at(rank), told))

    def next_member(self, rank: int, old: int, size: int = 3, **changes: Any) -> Member:
        its = replace(member(rank, host=self.host_of[old], size=size, job="train~1"), pid=1000 + old)
        return replace(its, **({"elastic": True} | changes))

    def joins(self, rank: int, old: int, size: int = 3, **changes: Any) -> list[RendezvousAction]:
        return self.step(MemberAsked(self.at(old), self.next_member(rank, old, size, **changes), 7))

    @property
    def regrouping(self) -> RegroupingView:
        [view] = self.core.view().regroupings
        return view


def lost() -> Elastic:
    """Rank 0 has been lost."""
    world = Elastic()
    world.running()
    assert failure(world.gone(0)) == f"rank_lost: {KILLED}"
    return world


def decided() -> Elastic:
    world = lost()
    for rank in (1, 2, 3):
        world.regroups(rank)
    return world


def answers(actions: Sequence[RendezvousAction]) -> list[tuple[int, int, str, tuple[int, ...], int]]:
    return [(at, told.id, told.job, told.ranks, told.agreed) for at, told in sent(actions, Regrouped)]


def error(actions: Sequence[RendezvousAction]) -> str:
    [(_, told)] = sent(actions, Error)
    return f"{told.code}: {told.message}"


def notes(actions: Sequence[RendezvousAction]) -> list[str]:
    return [action.text for action in actions if isinstance(action, Noted)]


def test_survivors_are_answered_through_their_hosts_when_all_have_come() -> None:
    world = lost()
    assert world.regrouping == RegroupingView("train", "", "gathering", (), (1, 2, 3))
    assert world.core.deadline == 5 * S
    assert world.regroups(3, 7) == world.regroups(1, 6) == []
    assert world.regrouping == RegroupingView("train", "", "gathering", (3, 1), (2,))
    actions = world.regroups(2, 8)
    assert answers(actions) == [
        (at, 200 + rank, "train~1", (1, 2, 3), 6) for at, rank in ((0, 1), (1, 2), (1, 3))
    ]
    text = "job train: ranks 1, 2, 3 go on as job train~1; all have the results of 6 all-reduces"
    assert notes(actions) == [text]
    assert world.regrouping == RegroupingView("train", "train~1", "decided", (3, 1, 2), ())


def test_survivors_that_name_no_ring_are_those_of_the_last_job_of_that_name() -> None:
    world = lost()
    world.running()
    world.gone(0)
    world.regroups(1, ring_id=0)
    assert [view.came for view in world.core.view().regroupings] == [(), (1,)]


def test_the_end_of_an_elastic_job_says_who_is_waited_for() -> None:
    world = Elastic()
    world.running()
    assert notes(world.gone(0))[-1] == (
        "job train: waits for what of ranks 1, 2, 3 goes on without those that are lost"
    )


def test_the_next_job_is_joined_by_ordinary_joins_and_gets_a_ring() -> None:
    world = decided()
    world.joins(0, 1)
    world.joins(2, 3)
    rings = sent(world.joins(1, 2), Ring)
    assert {ring.ranks for _, ring in rings} == {((0,), (1, 2))}
    for session, rank in ((0, 0), (1, 1)):
        world.step(MemberReady(SessionId(session), Ready(job="train~1", rank=rank)))
    assert world.job.phase == "running"
    assert (
        error(world.regroups(1))
        == f"join_refused: rank 1 of job 'train' cannot go on with the others: {UNKNOWN}"
    )
    assert world.gone_late(1) == []  # its old connection is closed
    assert world.leaves(1) == []
    assert world.job.phase == "running"
    assert world.woke_at(5 * S) == []
    assert world.core.view().regroupings == ()


def test_ranks_of_a_host_that_is_away_in_the_end_are_lost() -> None:
    world = Elastic()
    world.running()
    world.goes_away(1)
    world.halted(0, 4)
    world.woke_at(5 * S)
    assert world.regrouping.awaited == (0, 1)


def test_who_left_is_no_survivor() -> None:
    world = Elastic()
    world.running()
    world.leaves(3)
    world.gone(0)
    assert world.regrouping.awaited == (1, 2)


def test_a_host_whose_next_link_cannot_be_used_has_no_survivors() -> None:
    world = Elastic()
    world.running()
    world.broken(0)
    assert "rank_lost" in failure(world.halted(0, 4, slots=3))
    assert world.regrouping.awaited == (2, 3)


def test_a_rank_in_whose_place_another_process_came_is_no_survivor() -> None:
    world = Elastic()
    world.running()
    world.goes_away(1)
    world.arrives(1)
    world.asks(2, pid=77, progress=4)
    assert world.regrouping.awaited == (0, 1, 3)


def test_a_job_that_loses_all_its_ranks_is_not_kept() -> None:
    world = Elastic({0: (0,)})
    world.running()
    world.gone(0)
    assert world.core.view().regroupings == ()
    assert world.core.deadline is None


@pytest.mark.parametrize("elastic", [False, True])
def test_a_job_that_is_not_elastic_or_ends_for_another_reason_is_not_kept(elastic: bool) -> None:
    world = Elastic()
    for rank in range(4):
        world.asks(rank, elastic=elastic)
    world.ready()
    if elastic:
        world.stalled(0)
        world.step(differs(world, 2))
    else:
        world.gone(0)
    assert not world.core.view().jobs
    assert not world.core.view().regroupings
    assert error(world.regroups(1)).endswith(UNKNOWN)


def differs(world: World, rank: int) -> OperationStalled:
    told = OpStarted(job="train", rank=rank, op_index=3, signature=8, nbytes=64)
    return OperationStalled(world.at(rank), told)


def test_survivors_that_die_meanwhile_are_not_waited_for() -> None:
    world = lost()
    world.regroups(1)
    assert world.gone_late(1) == []
    assert world.regrouping.came == ()
    assert world.gone(2) == []  # said before its host heard of the end
    assert answers(world.regroups(3)) == [(1, 203, "train~1", (3,), 3)]
    text = "rank 1 of job 'train' cannot go on with the others: it was killed, too"
    assert sent(world.regroups(1), Error) == [(0, Error(id=201, code="join_refused", message=text, of=201))]
    world.gone_late(3)
    assert world.core.view().regroupings == ()


def test_who_left_before_it_heard_that_its_job_has_failed_is_not_waited_for() -> None:
    world = lost()
    assert world.regroups(1) == world.regroups(3) == []
    actions = world.step(MemberLeft(world.at(2), Left(job="train", rank=2, operations=3)))
    assert [ranks for _, _, _, ranks, _ in answers(actions)] == [(1, 3), (1, 3)]
    assert error(world.regroups(2)).endswith("cannot go on with the others: it left")


def test_what_is_said_of_ranks_that_leave_counts_for_survivors_of_that_host_only() -> None:
    world = lost()
    left = Left(job="train", rank=1, operations=3)
    for session, changes in ((1, {}), (9, {}), (0, {"job": "other"}), (0, {"rank": 0})):
        assert world.step(MemberLeft(SessionId(session), replace(left, **changes))) == []
    assert world.regrouping.awaited == (1, 2, 3)


def test_who_left_a_job_that_nobody_goes_on_from_is_not_missed() -> None:
    world = Elastic()
    world.running()
    world.gone(0)
    for rank in (1, 2, 3):
        world.step(MemberLeft(world.at(rank), Left(job="train", rank=rank, operations=3)))
    assert world.core.view().regroupings == ()


def test_when_nobody_goes_on_it_is_noted_and_forgotten() -> None:
    world = lost()
    world.gone_late(1)
    world.gone_late(2)
    assert world.gone_late(3) == [Noted("job train: no rank goes on", is_problem=True)]
    assert world.core.view().regroupings == ()


def test_time_ends_both_waits() -> None:
    world = lost()
    world.regroups(1)
    world.now = 2 * S
    assert world.woke_at(5 * S - 1) == []
    assert answers(world.woke_at(5 * S)) == [(0, 201, "train~1", (1,), 3)]
    assert world.core.deadline == 10 * S
    assert error(world.regroups(2)) == (
        "join_refused: rank 2 of job 'train' cannot go on with the others: it did not say within 5 s that it "
        "goes on"
    )
    assert world.woke_at(10 * S) == [Noted("job train: the time to join train~1 is over", is_problem=True)]
    assert error(world.regroups(1)).endswith(UNKNOWN)
    assert refusal(world.joins(0, 1, 1), 0) == RESERVED


def test_a_host_that_loses_its_connection_has_to_ask_again() -> None:
    world = lost()
    world.regroups(2)
    world.regroups(3)
    world.goes_away(1)
    assert world.regroups(1) == []
    assert world.regrouping.awaited == (2, 3)
    world.arrives(1)
    world.regroups(2)
    assert [at for at, *_ in answers(world.regroups(3))] == [0, 11, 11]
    assert answers(world.regroups(3)) == [(11, 203, "train~1", (1, 2, 3), 3)]


def test_a_host_daemon_that_was_started_anew_has_lost_its_ranks() -> None:
    world = lost()
    world.regroups(1)
    world.goes_away(1)
    actions = world.arrives(1, instance="another")
    assert answers(actions) == [(0, 201, "train~1", (1,), 3)]
    assert error(world.regroups(2)).endswith("others: its host daemon was started anew")


def test_the_answer_comes_with_whatever_rank_of_that_host_is_the_last() -> None:
    world = lost()
    world.regroups(1)
    world.gone_late(3)
    world.goes_away(1)
    assert answers(world.arrives(1, instance="another")) == [(0, 201, "train~1", (1,), 3)]


def test_a_new_process_may_begin_a_job_of_that_name_anew() -> None:
    world = lost()
    assert notes(world.asks(1)) == ["job train: rank 1 (h0, pid 1001) joined, 1 of 4 ranks are here"]


def test_a_name_that_a_job_has_is_not_given() -> None:
    world = decided()
    for rank, old in enumerate((1, 2, 3)):
        world.joins(rank, old)
    for session, rank in ((0, 0), (1, 1)):
        world.step(MemberReady(SessionId(session), Ready(job="train~1", rank=rank)))
    world.woke_at(5 * S)
    assert world.core.view().regroupings == ()
    for rank in range(4):
        world.asks(rank)
    world.ready()
    world.gone(0)
    actions = world.all_regroup(1, 2, 3, ring_id=3)
    assert {told[2] for told in answers(actions)} == {"train~2"}


def test_a_host_that_comes_back_hears_why_its_job_has_failed() -> None:
    world = Elastic()
    world.running()
    world.goes_away(1)
    world.gone(0)
    world.arrives(1)
    told = Error(id=102, code="rank_lost", message=KILLED, of=102)
    assert sent(world.asks(2, progress=4, boot_id=""), Error) == [(11, told)]
    world.regroups(2)
    world.regroups(3)
    assert len(answers(world.regroups(1))) == 3


def test_hosts_speak_for_their_own_ranks_and_rings_only() -> None:
    world = lost()
    told = Regroup(id=9, job="train", ring_id=1, rank=1, operations_done=0)
    for session, changes in ((1, {}), (5, {}), (0, {"ring_id": 2}), (0, {"job": "other"}), (0, {"rank": 0})):
        actions = world.step(MemberRegroups(SessionId(session), replace(told, **changes)))
        assert error(actions).endswith(UNKNOWN)
        assert [(at, told.of) for at, told in sent(actions, Error)] == [(session, 9)]
    gone = Gone(job="train", rank=1, reason="lie", ring_id=1)
    for session, changes in ((1, {}), (5, {}), (0, {"ring_id": 2}), (0, {"job": "other"}), (0, {"rank": 0})):
        assert world.step(MemberGone(SessionId(session), replace(gone, **changes))) == []
    assert world.regrouping.awaited == (1, 2, 3)


def test_the_end_of_an_old_life_is_not_that_of_the_job_that_has_the_name_now() -> None:
    world = lost()
    world.running()
    assert answers(world.gone_late(1)) == []
    assert world.job.phase == "running"
    assert world.regrouping.awaited == (2, 3)


@pytest.mark.parametrize("ring_id", [1, 2, 3])
def test_a_host_may_know_an_earlier_ring_of_the_job(ring_id: int) -> None:
    world = Elastic()
    world.running()
    for progress in (4, 5):
        world.broken(0, progress)
        world.halted(0, progress)
        world.halted(1, progress)
        world.ready()
    world.gone(0)
    assert world.regroups(1, ring_id=ring_id) == []
    assert error(world.regroups(1, ring_id=4)).endswith(UNKNOWN)


def test_of_two_lives_each_has_its_own_next_job() -> None:
    world = lost()
    world.running()
    world.gone(3)
    actions = world.all_regroup(0, 1, 2, ring_id=2)
    assert {told[2:4] for told in answers(actions)} == {("train~1", (0, 1, 2))}
    actions = world.all_regroup(1, 2, 3, ring_id=1)
    assert {told[2:4] for told in answers(actions)} == {("train~2", (1, 2, 3))}


def test_only_so_many_jobs_regroup_at_once() -> None:
    world = Elastic(regroupings_max=1)
    world.running()
    world.gone(0)
    world.running()
    actions = world.gone(0)
    assert actions[-1] == Noted("job train: its ranks cannot go on, 1 jobs regroup already", is_problem=True)
    assert error(world.regroups(1, ring_id=2)).endswith(UNKNOWN)
    assert world.regroups(1, ring_id=1) == []


# --- another is lost before the next job has started


def test_a_loss_before_the_next_job_has_a_ring_begins_another_round() -> None:
    world = decided()
    world.joins(0, 1)
    world.joins(2, 3)
    actions = world.gone_late(2)
    why = "rank_lost: job 'train~1' does not begin: rank 2 of job 'train' is lost as well: it was killed, too"
    assert [(at, f"{told.code}: {told.message}") for at, told in sent(actions, Error)] == [(0, why), (1, why)]
    assert world.core.view().jobs == ()
    assert world.regrouping == RegroupingView("train", "", "gathering", (), (1, 3))
    assert error(world.joins(0, 1)) == why  # it comes late to the first round's job
    world.regroups(1)
    assert {told[2:4] for told in answers(world.regroups(3))} == {("train~2", (1, 3))}


def test_a_loss_before_the_next_job_has_started_begins_another_round() -> None:
    world = decided()
    for rank, old in enumerate((1, 2, 3)):
        world.joins(rank, old)
    actions = world.step(MemberGone(world.at(2), Gone(job="train~1", rank=1, reason="it was killed")))
    lost = "rank_lost: rank 1 (h1, pid 1002) of job 'train~1' is lost: it was killed"
    assert failure(actions) == lost
    assert sent(actions, Failed)[0][0] == 0
    assert world.regrouping == RegroupingView("train", "", "gathering", (), (1, 3))
    assert world.gone_late(2) == []
    assert error(world.regroups(2)).endswith(f"cannot go on with the others: {lost.partition(': ')[2]}")
    told = Regroup(id=9, job="train~1", ring_id=2, rank=0, operations_done=0)
    assert "knows of no survivors" in error(world.step(MemberRegroups(world.at(1), told)))
    world.regroups(1)
    assert {told[2:4] for told in answers(world.regroups(3))} == {("train~2", (1, 3))}


def test_the_time_to_join_is_over_when_all_have_joined() -> None:
    """A host that went away just then was waited for as long: nobody could go on when it was lost."""
    world = decided()
    for rank, old in enumerate((1, 2, 3)):
        world.joins(rank, old)
    world.woke_at(60 * S)
    world.step(MemberGone(world.at(2), Gone(job="train~1", rank=1, reason="it was killed")))
    assert world.regrouping == RegroupingView("train", "", "gathering", (), (1, 3))
    world.regroups(1)
    assert {told[2:4] for told in answers(world.regroups(3))} == {("train~2", (1, 3))}


def test_a_loss_after_the_next_job_has_started_is_its_own() -> None:
    world = decided()
    for rank, old in enumerate((1, 2, 3)):
        world.joins(rank, old)
    for session, rank in ((0, 0), (1, 1)):
        world.step(MemberReady(SessionId(session), Ready(job="train~1", rank=rank)))
    world.step(MemberGone(world.at(2), Gone(job="train~1", rank=1, reason="it was killed")))
    names = [(view.name, view.next_name, view.awaited) for view in world.core.view().regroupings]
    assert names == [("train", "train~1", ()), ("train~1", "", (0, 2))]
    told = Regroup(id=9, job="train~1", ring_id=2, rank=0, operations_done=1)
    world.step(MemberRegroups(world.at(1), told))
    actions = world.step(MemberRegroups(world.at(3), replace(told, rank=2)))
    assert {told[2:] for told in answers(actions)} == {("train~2", (0, 2), 1)}


def test_a_host_daemon_started_anew_after_the_next_job_has_started_is_its_loss() -> None:
    """The agreement of the job before ended the next one with all its ranks lost: nobody could go on."""
    world = decided()
    for rank, old in enumerate((1, 2, 3)):
        world.joins(rank, old)
    for session, rank in ((0, 0), (1, 1)):
        world.step(MemberReady(SessionId(session), Ready(job="train~1", rank=rank)))
    world.goes_away(0)
    world.arrives(0, instance="another")
    names = [(view.name, view.next_name, view.awaited) for view in world.core.view().regroupings]
    assert names == [("train", "train~1", ()), ("train~1", "", (1, 2))]


# --- who may join


def test_the_next_job_is_for_the_survivors_each_in_its_place() -> None:
    world = decided()
    for rank, changes in (
        (1, {}),  # the place of old rank 2
        (0, {"size": 2}),
        (0, {"pid": 4711}),
        (3, {"size": 4}),
    ):
        its = world.next_member(rank, 1, **changes)
        actions = world.step(MemberAsked(world.at(1), its, 7))
        assert refusal(actions, 0) == f"that place in it is not given to process {its.pid} on h0"
    assert refusal(world.joins(0, 1, key="guessed"), 0) == (
        "wrong key; give the key of the job that it goes on with"
    )
    assert "4 of" not in str(world.joins(0, 1))
    assert world.job.name == "train~1"


def test_a_name_with_a_generation_cannot_be_taken() -> None:
    world = Elastic()
    assert refusal(world.joins(0, 1), 0) == RESERVED
    assert refusal(world.asks(0, job="train~01"), 0).startswith("a job's name is 1 to 128 letters")
    assert refusal(world.asks(0, job="~1"), 0).startswith("a job's name is 1 to 128 letters")


def test_after_a_restart_of_the_switch_ranks_of_a_later_generation_gather_as_those_of_any_job() -> None:
    world = Elastic(boot_id="second")
    actions = world.joins(0, 1, progress=7, boot_id="first")
    assert notes(actions) == ["job train~1: rank 0 (h0, pid 1001) joined, 1 of 3 ranks are here"]


def test_the_name_of_an_elastic_job_leaves_room_for_a_generation() -> None:
    world = Elastic()
    long = "the name of an elastic job has at most 117 characters"
    assert refusal(world.asks(0, job="a" * 118), 0) == long
    assert sent(world.asks(0, job="a" * 117), Error) == []
    assert world.asks(1, job="b" * 128, elastic=False)


def test_all_ranks_say_alike_whether_the_job_is_elastic() -> None:
    world = Elastic()
    world.asks(0)
    assert refusal(world.asks(1, elastic=False), 0) == (
        "it says elastic=False, rank 0 (h0, pid 1000), which opened the job, said elastic=True; all must say "
        "the same"
    )


def test_a_switch_that_does_not_wait_for_ranks_takes_no_elastic_job() -> None:
    world = Elastic(recover_ns=0)
    assert refusal(world.asks(0), 0) == (
        "it is elastic, and this switch keeps no job that lost something (switch: --recover-ms)"
    )
    assert world.asks(0, elastic=False)


def test_nobody_who_says_to_go_on_with_an_older_job_takes_a_name_that_is_given() -> None:
    """Its ranks may be more than those of the survivors; they may come back after a restart of the switch."""
    world = decided()
    for rank in range(5):
        of_before = replace(member(rank, host=1, size=5, job="train~1"), elastic=True)
        asked = replace(of_before, progress=0, boot_id="another")
        actions = world.step(MemberAsked(world.session[1], asked, 7))
        assert "that place in it is not given to process" in refusal(actions, world.session[1])
    assert world.jobs == ()
