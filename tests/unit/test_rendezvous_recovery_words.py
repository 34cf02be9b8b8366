"""What the rendezvous says and counts when rings end, to the letter, and who of several is meant."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.core.rendezvous.events import (
    HostArrived,
    MemberAsked,
    MemberBroken,
    MemberGone,
    MemberHalted,
    MemberLeft,
    MemberReady,
    Noted,
    RendezvousConfig,
    SessionEnded,
    SessionId,
)
from inaproto.core.rendezvous.recovery import RETURN_FIRST_NS, JobRecovery
from inaproto.core.rendezvous.rendezvous import Rendezvous
from inaproto.core.rendezvous.state import REMEMBERED_MAX
from inaproto.core.switch.accelerator import InstallRing, RemoveRing, RingRefused
from inaproto.units import Instant, S
from inaproto.wire.control import LENGTH_BYTES, decode_control
from inaproto.wire.control_messages import (
    Broken,
    Error,
    Failed,
    Gone,
    Halt,
    Halted,
    IntoAddress,
    Left,
    PathAsked,
    Ready,
    Ring,
    RingPath,
    encode_message,
)
from tests.unit.rendezvous_members import hello, member
from tests.unit.test_rendezvous_recovery import World, failure, sent


def large(rank: int) -> IntoAddress:
    """With slots that suffice for a chain."""
    return replace(member(rank).into, slot_bytes=1 << 22)


def two_jobs() -> tuple[World, int]:
    """Jobs ``train`` and ``other`` on the same three hosts, both running; the id of the second's ring."""
    world = World().running()
    for rank in range(3):
        world.step(MemberAsked(world.session[rank], member(rank, job="other"), 7))
    for rank in range(3):
        world.step(MemberReady(world.session[rank], Ready(job="other", rank=rank)))
    return world, world.core.view().jobs[1].ring_id


def test_a_first_ring_begins_at_nothing() -> None:
    world = World()
    world.asks(0)
    world.asks(1)
    assert {(ring.progress, ring.donor) for _, ring in sent(world.asks(2), Ring)} == {(0, 0)}


def test_before_any_event_it_is_the_beginning_of_time() -> None:
    assert Rendezvous(RendezvousConfig())._state.now == 0


def test_breaks_that_change_the_path_are_counted_as_fallbacks_and_returns() -> None:
    world = World().running()
    seen = []
    for _ in range(3):
        world.broken(1, progress=9)
        world.all_halted(9, 9, 9)
        world.ready()
        seen.append({name: world.counters.get(name, 0) for name in ("recoveries", "fallbacks", "returns")})
    assert seen == [
        {"recoveries": 1, "fallbacks": 0, "returns": 0},
        {"recoveries": 2, "fallbacks": 1, "returns": 0},
        {"recoveries": 3, "fallbacks": 1, "returns": 0},
    ]
    # It came farther on the chain, and breaks twice there: the switch is next.
    for progress in (20, 20):
        world.broken(1, progress=progress)
        world.all_halted(progress, progress, progress)
        world.ready()
    assert (world.job.path, world.job.fallback) == ("switch", "")
    assert world.counters["returns"] == 1
    assert world.counters["fallbacks"] == 1


def test_fallbacks_are_counted_one_by_one() -> None:
    world = World().running()
    for progress in (9, 9, 30, 30, 50, 50):  # away from the switch, back, away
        world.broken(1, progress=progress)
        world.all_halted(progress, progress, progress)
        world.ready()
    assert (world.counters["fallbacks"], world.counters["returns"]) == (2, 1)


def test_without_recovery_a_broken_ring_is_told_with_its_reason() -> None:
    world = World()
    world.core = Rendezvous(RendezvousConfig())
    for host in range(3):
        world.arrive(host)
    world.running()
    assert failure(world.broken(1)) == (
        "rank_lost: rank 1 (h1, pid 1001) of job 'train' is lost: the queue pair failed"
    )


def test_who_comes_back_may_have_left_or_not() -> None:
    for left_after in (3, None):
        world = World().running()
        world.goes_away(1)
        world.halted(0, 5)
        world.halted(2, 5)
        world.arrive(1)
        world.asks(1, progress=5, left_after=left_after)
        world.ready()
        assert world.job.ranks[1].state == ("left" if left_after else "ready")


def test_a_halted_rank_s_addresses_are_those_that_it_says() -> None:
    world = World().running()
    world.broken(0)
    rings = [ring for _, ring in sent(world.all_halted(1, 1, 1), Ring)]
    assert [ring.predecessor.qpn for ring in rings] == [1003, 1001, 1002]


def test_halted_from_another_time_or_of_one_that_is_away_counts_for_nothing() -> None:
    world = World().running()
    ring_id = world.job.ring_id
    away = world.session[2]
    world.goes_away(2)
    told = Halted(job="train", rank=2, ring_id=ring_id, progress=5, out=member(2).out, into=member(2).into)
    assert world.step(MemberHalted(away, told, 8)) == []
    assert world.halted(0, 5) == world.halted(1, 5) == []
    assert world.job.phase == "halted"
    assert world.halted(0, 5, ring_id=ring_id + 1) == []


def test_a_ring_of_one_rank_is_in_no_accelerator() -> None:
    world = World(size=1).running()
    assert not [act for act in world.broken(0) if isinstance(act, RemoveRing)]
    actions = world.halted(0, 3)
    assert not [act for act in actions if isinstance(act, InstallRing)]
    assert len(sent(actions, Ring)) == 1


def test_a_ring_of_two_ranks_is_removed_when_it_ends() -> None:
    world = World(size=2).running()
    ring_id = world.job.ring_id
    assert world.broken(0)[0] == RemoveRing(ring_id)


def test_a_refused_ring_is_not_removed_and_halts_once() -> None:
    world = World()
    for rank in range(3):
        world.asks(rank)
    world.refused()
    world.all_halted()
    world.ready()
    assert not [act for act in world.broken(1, progress=4) if isinstance(act, RemoveRing)]


# --- hosts


def test_a_host_that_was_started_anew_loses_its_ranks_in_every_job_and_nobody_else_s() -> None:
    world, _ = two_jobs()
    world.goes_away(1)
    world.goes_away(2)
    newcomer = replace(hello(1), instance="another")
    actions = world.step(HostArrived(world.session[1], newcomer))
    assert [type(act).__name__ for act in actions[:2]] == ["WelcomeHost", "Noted"]
    assert {(message.job, message.message) for _, message in sent(actions, Failed)} == {
        (job, f"rank 1 (h1, pid 1001) of job {job!r} is lost: its host daemon was started anew")
        for job in ("train", "other")
    }
    assert world.core.view().jobs == ()


def test_a_host_that_is_the_same_keeps_its_ranks() -> None:
    world = World().running()
    world.goes_away(1)
    world.goes_away(2)
    world.arrive(1)
    assert [rank.state for rank in world.job.ranks] == ["here", "away", "away"]


def test_a_host_whose_other_ranks_failed_the_job_already_is_looked_at_once() -> None:
    """Both its ranks are lost; the job fails once."""
    world = World()
    for rank, host in ((0, 0), (1, 1), (2, 1)):
        world.step(MemberAsked(world.session[host], member(rank, host=host), 7))
    for rank, host in ((0, 0), (1, 1)):
        world.step(MemberReady(world.session[host], Ready(job="train", rank=rank)))
    world.step(SessionEnded(world.session[1], "its cable was pulled"))
    assert [rank.state for rank in world.job.ranks] == ["here", "away", "away"]
    newcomer = replace(hello(1), instance="another")
    actions = world.step(HostArrived(SessionId(11), newcomer))
    assert failure(actions).startswith("rank_lost: host h1 (ranks 1, 2)")
    assert len(sent(actions, Failed)) == 1


def test_a_session_that_ends_takes_the_ranks_of_all_its_jobs() -> None:
    world, _ = two_jobs()
    actions = world.goes_away(1)
    assert [(session, halt.job) for session, halt in sent(actions, Halt)] == [
        (0, "train"),
        (2, "train"),
        (0, "other"),
        (2, "other"),
    ]


def test_who_was_ready_and_goes_away_is_waited_for_again() -> None:
    world = World().running()
    world.broken(0)
    world.all_halted(1, 1, 1)
    world.ready(0, 1)
    world.goes_away(1)
    world.halted(0, 1)
    world.halted(2, 1)
    assert failure(world.woke_at(5 * S)).startswith("rank_lost: rank 1 (h1, pid 1001) of job")


# --- in vain


def test_all_who_did_not_come_back_are_named() -> None:
    world = World().running()
    world.goes_away(1)
    world.goes_away(2)
    world.halted(0, 1)
    assert failure(world.woke_at(5 * S)).startswith(
        "rank_lost: rank 1 (h1, pid 1001), rank 2 (h2, pid 1002) of job 'train' is lost: "
    )
    world = World().running()
    world.broken(0)
    world.all_halted(1, 1, 1)
    world.ready(0)
    assert failure(world.woke_at(5 * S)).startswith(
        "rank_lost: rank 1 (h1, pid 1001), rank 2 (h2, pid 1002) of job 'train' is lost: "
    )
    world = World(epoch=2)
    world.asks(1, progress=4)
    [(_, error)] = sent(world.woke_at(5 * S), Error)
    assert error.message == "rank 0, 2 of job 'train' is lost: it has not come back within 5 s"


def test_two_jobs_that_wait_in_vain_both_fail() -> None:
    world, _ = two_jobs()
    world.goes_away(1)
    actions = world.woke_at(5 * S)
    assert {message.job for _, message in sent(actions, Failed)} == {"train", "other"}


def test_two_jobs_return_to_the_switch_together() -> None:
    world, other = two_jobs()
    train = world.core.view().jobs[0].ring_id
    for job, ring_id in (("train", train), ("other", other)):
        world.step(RingRefused(ring_id, "full"))
        for rank in range(3):
            told = Halted(
                job=job, rank=rank, ring_id=ring_id, progress=0, out=member(rank).out, into=large(rank)
            )
            world.step(MemberHalted(world.session[rank], told, 8))
        for rank in range(3):
            world.step(MemberReady(world.session[rank], Ready(job=job, rank=rank)))
    actions = world.woke_at(1 * S)
    assert {halt.job for _, halt in sent(actions, Halt)} == {"train", "other"}
    assert {halt.reason for _, halt in sent(actions, Halt)} == {"to return to the switch, left for: full"}


# --- who is not known, or not any more


def test_refusals_of_a_job_that_gathers_go_to_who_asked() -> None:
    world = World(epoch=2)
    world.asks(0, progress=12)
    [(session, error)] = sent(world.asks(2), Error)
    assert (session, error.of) == (2, 102)
    assert error.message == (
        "rank 2 (h2, pid 1002) cannot join job 'train': its ranks are in the middle of it, and gather "
        "after a restart; use another name, or wait"
    )
    world = World(epoch=2)
    world.asks(0)
    [(session, error)] = sent(world.asks(2, progress=12), Error)
    assert (session, error.of) == (2, 102)
    assert error.message == (
        "rank 2 (h2, pid 1002) cannot join job 'train': it has ended meanwhile, and another job of that "
        "name is gathering"
    )


def test_a_rank_that_was_lost_is_forgotten_when_another_process_takes_its_place() -> None:
    world = World(epoch=2)
    gone = MemberGone(world.session[2], Gone(job="train", rank=2, reason="it was killed"))
    assert world.step(gone) == []
    world.asks(2)
    world.step(gone)
    assert not sent(world.asks(0, progress=3), Error)
    assert world.job.missing == (1, 2)


def test_another_process_with_progress_fails_the_job_and_is_refused() -> None:
    world = World().running()
    world.goes_away(2)
    world.arrive(2)
    actions = world.asks(2, progress=5, pid=4711)
    why = "rank 2 (h2, pid 1002) of job 'train' is lost: a new process came in its place"
    assert failure(actions) == f"rank_lost: {why}"
    [(session, error)] = sent(actions, Error)
    assert (session, error.of) == (12, 102)
    assert error.message == f"rank 2 (h2, pid 4711) cannot join job 'train': {why}"
    assert world.core.view().jobs == ()


def test_what_unknown_ranks_say_changes_nothing() -> None:
    world = World()
    stranger = SessionId(99)
    assert world.step(MemberReady(world.session[0], Ready(job="none", rank=0))) == []
    gone = Gone(job="train", rank=2, reason="it was killed")
    assert world.step(MemberGone(stranger, gone)) == []
    world.asks(0)
    assert world.step(MemberGone(world.session[2], gone)) == []
    assert world.job.missing == (1, 2)
    world = World().running()
    world.goes_away(2)
    assert world.step(MemberGone(stranger, gone)) == []
    assert world.job.phase == "halted"


def test_without_recovery_a_host_with_two_ranks_fails_its_job_once() -> None:
    world = World()
    world.core = Rendezvous(RendezvousConfig())
    for host in range(3):
        world.arrive(host)
    for rank, host in ((0, 0), (1, 1), (2, 1)):
        world.step(MemberAsked(world.session[host], member(rank, host=host), 7))
    actions = world.step(SessionEnded(world.session[1], "its cable was pulled"))
    assert len(sent(actions, Failed)) == 1


def alone(world: World, job: str) -> None:
    """A whole life of a job of one rank on host 0."""
    world.step(MemberAsked(world.session[0], member(0, size=1, job=job), 7))
    world.step(MemberReady(world.session[0], Ready(job=job, rank=0)))
    world.step(MemberLeft(world.session[0], Left(job=job, rank=0, operations=1)))


def why_ended(world: World, job: str) -> str:
    asked = replace(member(0, size=1, job=job), progress=1, boot_id="this")
    [(_, error)] = sent(world.step(MemberAsked(world.session[0], asked, 7)), Error)
    return error.message.partition("it has ended meanwhile: ")[2]


def test_the_ends_of_so_many_jobs_are_remembered() -> None:
    world = World()
    world.core._state.config = replace(world.core._state.config, boot_id="this")
    alone(world, "twice")
    for number in range(REMEMBERED_MAX - 1):
        alone(world, f"job{number}")
    assert why_ended(world, "twice") == "all its ranks left"
    alone(world, "twice")
    alone(world, "last")
    assert why_ended(world, "job0") == "long ago"
    for job in ("job1", "twice", "last"):
        assert why_ended(world, job) == "all its ranks left"


def test_the_plan_follows_from_where_the_hosts_of_the_ranks_are() -> None:
    plan = ReductionPlan((0, (1, 2)))
    world = World(plan=plan)
    for rank in range(3):
        world.asks(rank)
    assert world.job.plan == str(plan)
    world.broken(0)
    world.step(SessionEnded(world.session[2], "it moves"))
    world.session[2] = SessionId(12)
    world.at = (world.at[0], world.at[1], world.at[0])
    world.arrive(2)
    world.asks(2, 0)
    for rank in range(3):
        world.halted(rank, 0)
    assert world.job.plan == str(ReductionPlan((0, (1,), 2))), "it came back at another switch"


# --- the recovery of one job


PATHS: Final[tuple[RingPath, ...]] = ("switch", "chain")


def test_breaks_of_one_path_alone_leave_hope() -> None:
    recovery = JobRecovery()
    assert recovery.broke("first", 0, PATHS)
    assert recovery.path == "switch"
    assert recovery.broke("second", 0, PATHS)
    assert (recovery.path, recovery.fallback) == ("chain", "second")
    assert recovery.broke("third", 0, PATHS)
    assert not recovery.broke("fourth", 0, PATHS)


def test_a_path_by_the_hosts_that_broke_is_left_for_the_switch() -> None:
    recovery = JobRecovery()
    recovery.refused("full", "ring")
    assert recovery.broke("first", 0, ("switch", "ring"))
    assert recovery.broke("second", 0, ("switch", "ring"))
    assert (recovery.path, recovery.fallback) == ("switch", "")


@pytest.mark.parametrize("path", ["chain", "ring"])
def test_a_path_that_was_asked_for_is_kept_and_never_returned_from(path: PathAsked) -> None:
    recovery = JobRecovery.on(path)
    assert (recovery.path, recovery.fallback, recovery.is_asked) == (path, "asked for", True)
    recovery.started(Instant(5))
    recovery.room_made(Instant(6))
    assert recovery.return_at is None
    assert recovery.broke("first", 0, (recovery.path,))
    assert not recovery.broke("second", 0, (recovery.path,))
    assert recovery.path == path


def test_a_return_forgets_when_it_was_due() -> None:
    recovery = JobRecovery()
    recovery.refused("full", "chain")
    recovery.started(Instant(5))
    assert recovery.return_at == 5 + RETURN_FIRST_NS
    recovery.return_to_switch()
    assert recovery.return_at is None


def test_room_that_was_made_begins_the_waits_anew() -> None:
    recovery = JobRecovery()
    for _ in range(3):
        recovery.refused("full", "chain")
        recovery.started(Instant(0))
    recovery.room_made(Instant(7))
    assert recovery.return_at == 7
    recovery.refused("full", "chain")
    recovery.started(Instant(10))
    assert recovery.return_at == 10 + RETURN_FIRST_NS


@pytest.mark.parametrize("name", ["train", "other"])
def test_a_break_is_of_the_job_that_it_names(name: str) -> None:
    world, _ = two_jobs()
    ring_id = next(job.ring_id for job in world.core.view().jobs if job.name == name)
    told = Broken(job=name, rank=1, ring_id=ring_id, progress=0, reason="it broke")
    actions = world.step(MemberBroken(world.session[1], told))
    assert {halt.job for _, halt in sent(actions, Halt)} == {name}
    assert isinstance(actions[-1], Noted)


def test_why_a_ring_ended_is_told_however_long_it_is() -> None:
    """The words of one host come behind those of the rendezvous, to all hosts."""
    world = World().running()
    told = Broken(job="train", rank=1, ring_id=100, progress=0, reason="\N{SNOWMAN}" * 2730)
    halts = sent(world.step(MemberBroken(world.session[1], told)), Halt)
    assert len(halts) == 3
    for _, halt in halts:
        heard = decode_control(encode_message(halt)[LENGTH_BYTES:])["reason"]
        assert heard.startswith("rank 1 (h1, pid 1001): \N{SNOWMAN}")
        assert 8190 <= len(heard.encode()) <= 8192
