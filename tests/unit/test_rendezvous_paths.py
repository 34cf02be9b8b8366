"""By which path a job goes on: refused, broken again, back at the switch, in the order of its plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.core.rendezvous.events import (
    MemberAsked,
    MemberHalted,
    MemberLeft,
    MemberReady,
    Noted,
    RoomMade,
)
from inaproto.core.rendezvous.recovery import JobRecovery
from inaproto.core.switch.accelerator import RingRefused
from inaproto.units import Instant, S
from inaproto.wire.control_messages import (
    Halt,
    Halted,
    Left,
    Ready,
    Ring,
)
from tests.unit.rendezvous_members import member
from tests.unit.test_rendezvous_recovery import REFUSED, World, failure, sent


def test_a_ring_that_the_switch_refuses_is_summed_by_its_hosts() -> None:
    world = World()
    for rank in range(3):
        world.asks(rank)
    world.ready(0)
    actions = world.refused()
    assert {halt.path for _, halt in sent(actions, Halt)} == {"chain"}
    actions = world.all_halted()
    assert {(ring.path, ring.progress) for _, ring in sent(actions, Ring)} == {("chain", 0)}
    assert world.installed == []
    assert world.ready()[-1] == Noted(f"job train: started, the hosts sum: {REFUSED}", is_problem=True)
    assert (world.job.path, world.job.fallback) == ("chain", REFUSED)
    assert world.counters == {"rings_made": 2, "recoveries": 1, "fallbacks": 1}


def test_it_returns_to_the_switch_after_a_while_twice_as_long_each_time() -> None:
    world = World()
    for rank in range(3):
        world.asks(rank)
    for wait in (1, 2, 4):
        world.refused()
        world.all_halted()
        world.ready()
        assert world.core.deadline == world.now + wait * S
        assert world.woke_at(world.now + wait * S - 1) == []
        actions = world.woke_at(world.now + 1)
        assert {halt.path for _, halt in sent(actions, Halt)} == {"switch"}
        assert {ring.path for _, ring in sent(world.all_halted(), Ring)} == {"switch"}
    world.ready()
    assert (world.job.path, world.job.fallback, world.core.deadline) == ("switch", "", None)
    assert world.counters["returns"] == world.counters["fallbacks"] == 3


def test_it_returns_at_once_when_another_ring_has_made_room() -> None:
    world = World()
    for rank in range(3):
        world.step(MemberAsked(world.session[rank], member(rank, job="other"), 7))
    for rank in range(3):
        world.step(MemberReady(world.session[rank], Ready(job="other", rank=rank)))
    for rank in range(3):
        world.asks(rank)
    ring_id = world.core.view().jobs[1].ring_id
    world.step(RingRefused(ring_id, REFUSED))
    for rank in range(3):
        told = Halted(
            job="train",
            rank=rank,
            ring_id=ring_id,
            progress=0,
            out=member(rank).out,
            into=replace(member(rank).into, slot_bytes=1 << 22),
        )
        world.step(MemberHalted(world.session[rank], told, 8))
    world.ready()
    assert world.core.deadline == 1 * S
    for rank in range(3):
        world.step(MemberLeft(world.session[rank], Left(job="other", rank=rank, operations=1)))
    assert world.core.deadline == 0
    assert {halt.path for _, halt in sent(world.woke_at(0), Halt)} == {"switch"}


def deadline(world: World) -> int | None:
    return world.core.deadline


def until_room(world: World) -> None:
    world.step(RingRefused(world.job.ring_id, REFUSED, until_room=True))


def test_a_refusal_until_room_is_made_is_not_tried_again_before() -> None:
    world = World()
    for rank in range(3):
        world.asks(rank)
    until_room(world)
    world.all_halted()
    world.ready()
    assert deadline(world) is None
    assert world.step(RoomMade()) == []
    assert world.core.deadline == world.now
    actions = world.woke_at(world.now)
    assert {halt.path for _, halt in sent(actions, Halt)} == {"switch"}
    world.all_halted()
    world.refused()
    world.all_halted()
    world.ready()
    assert world.core.deadline == world.now + S, "another refusal is tried again after a while"


def never_as_it_is(world: World) -> None:
    world.step(RingRefused(world.job.ring_id, REFUSED, until_switch=True))


def other_job_comes_and_goes(world: World, name: str) -> None:
    for rank in range(3):
        world.step(MemberAsked(world.session[rank], member(rank, job=name), 7))
    for rank in range(3):
        world.step(MemberReady(world.session[rank], Ready(job=name, rank=rank)))
    for rank in range(3):
        world.step(MemberLeft(world.session[rank], Left(job=name, rank=rank, operations=1)))


def test_a_ring_that_no_present_switch_will_take_waits_for_another_one() -> None:
    """That other rings end is of no use to it."""
    world = World()
    for rank in range(3):
        world.asks(rank)
    never_as_it_is(world)
    world.all_halted()
    world.ready()
    for number in range(3):
        other_job_comes_and_goes(world, f"other{number}")
        assert deadline(world) is None
    assert world.step(RoomMade()) == []
    assert {halt.path for _, halt in sent(world.woke_at(world.now), Halt)} == {"switch"}


def test_a_ring_that_ends_by_something_else_is_tried_there_again() -> None:
    """Its next generation may be another one, at other switches."""
    world = World()
    for rank in range(3):
        world.asks(rank)
    never_as_it_is(world)
    world.all_halted()
    world.ready()
    assert deadline(world) is None
    world.broken(1, progress=4)
    world.all_halted()
    world.ready()
    assert (world.job.path, deadline(world)) == ("chain", world.now + S)


def test_room_that_is_made_while_the_hosts_connect_is_not_missed() -> None:
    world = World()
    for rank in range(3):
        world.asks(rank)
    until_room(world)
    world.step(RoomMade())
    world.all_halted()
    world.ready()
    assert world.core.deadline == world.now + S


def test_the_switch_that_a_chain_was_left_for_is_tried_again_as_ever() -> None:
    world = World()
    for rank in range(3):
        world.asks(rank)
    until_room(world)
    world.all_halted()
    world.ready()
    for path, progress in (("chain", 0), ("switch", 0), ("switch", 9), ("chain", 9)):
        world.broken(1, progress=progress)
        world.all_halted()
        assert world.job.path == path
        world.ready()
    assert world.core.deadline == world.now + S


def test_a_chain_that_breaks_while_the_switches_refuse_is_no_endless_round() -> None:
    world = World()
    for rank in range(3):
        world.asks(rank)
    world.refused()
    world.all_halted()
    world.ready()
    for path in ("chain", "switch"):
        world.broken(1)
        world.all_halted()
        assert world.job.path == path
    world.refused()
    world.all_halted()
    world.ready()
    assert "makes no progress by any path" in failure(world.broken(1))


def test_a_path_that_breaks_twice_at_one_place_is_left_and_then_the_job_fails() -> None:
    world = World().running()
    paths = []
    for _ in range(3):
        actions = world.broken(1, progress=9)
        paths += [halt.path for _, halt in sent(actions, Halt)][:1]
        world.all_halted(9, 9, 9)
        world.ready()
    assert paths == ["switch", "chain", "chain"]
    assert world.job.fallback == "rank 1 (h1, pid 1001): the queue pair failed"
    assert failure(world.broken(0, progress=9)) == (
        "fabric_lost: job 'train' makes no progress by any path; last rank 0 (h0, pid 1000): the queue pair "
        "failed"
    )


def test_progress_forgives_what_broke_before() -> None:
    world = World().running()
    for progress in range(1, 8):
        actions = world.broken(1, progress=progress)
        assert {halt.path for _, halt in sent(actions, Halt)} == {"switch"}
        world.all_halted(*(progress,) * 3)
        world.ready()
    assert world.job.recoveries == 7


def test_a_host_that_comes_back_to_a_chain_makes_queue_pairs_for_it() -> None:
    """Those that it announces are for the switch, and a chain may need larger slots."""
    world = World().running()
    world.refused()
    world.goes_away(2)
    world.halted(0, 5)
    world.halted(1, 5)
    world.arrive(2)
    actions = world.asks(2, progress=5)
    assert [(session, halt.path) for session, halt in sent(actions, Halt)] == [(12, "chain")]
    assert world.job.phase == "halted"
    rings = sent(world.halted(2, 5), Ring)
    assert [ring.path for _, ring in rings] == ["chain"] * 3
    assert rings[0][1].predecessor.qpn == world.queue_pairs


PLANS = {"in rank order": ((0, 1), 2), "in another": ((0, 2), 1)}


@pytest.mark.parametrize("name", PLANS)
def test_every_path_follows_the_plan_of_the_tree(name: str) -> None:
    plan = ReductionPlan(PLANS[name])
    world = World(plan=plan).running()
    actions = world.refused()
    if name == "in another":
        assert failure(actions) == (
            f"join_refused: the switch cannot sum for job 'train': {REFUSED}; wait for another job to end, "
            "or number its ranks rack by rank: its hosts cannot sum in the order [[0, 2], 1], but with "
            "exact_plan=False in another"
        )
        return
    assert {halt.plan for _, halt in sent(actions, Halt)} == {"[[0, 1], 2]"}
    assert {ring.plan for _, ring in sent(world.all_halted(), Ring)} == {"[[0, 1], 2]"}


def test_a_ring_that_broke_twice_fails_where_no_chain_can_follow() -> None:
    world = World(plan=ReductionPlan(PLANS["in another"])).running()
    world.broken(0)
    world.all_halted()
    world.ready()
    assert failure(world.broken(0)) == (
        "fabric_lost: the ring of job 'train' broke again where it broke before; last rank 0 (h0, pid 1000): "
        "the queue pair failed; its hosts cannot sum in the order [[0, 2], 1], but with exact_plan=False in "
        "another"
    )


def test_a_refusal_of_the_ring_beside_another_is_not_why_that_one_ends() -> None:
    """It goes on with the first alone; when that ends by something else the switches are tried anew."""
    recovery = JobRecovery.on("shared")
    recovery.refused("it has less in all", "chain", until_switch=True)
    recovery.started(Instant(0))
    assert recovery.return_at is None
    recovery.halt("a cable", Instant(S), 5 * S)
    assert recovery.came(3, Instant(S), 5 * S)
    recovery.started(Instant(S))
    assert recovery.return_at == 2 * S
