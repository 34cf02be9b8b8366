"""The path that a job asks for, and what exact_plan=False lets it take: of hosts with several ranks each."""

from __future__ import annotations

from typing import Any

import pytest

from inaproto.core.plan.accumulators import Accumulators
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.core.rendezvous.events import MemberBroken, MemberHalted, MemberLeft, Noted, RendezvousAction
from inaproto.core.switch.accelerator import RingRefused
from inaproto.units import S
from inaproto.wire.control_messages import Broken, Error, Failed, Halt, Halted, Left, PathAsked, Ring, Start
from inaproto.wire.ina_header import INA_HEADER_BYTES
from tests.unit.rendezvous_hosts import PAIRS, World, failure, refusal, sent
from tests.unit.rendezvous_members import member

THREE = {0: (0, 3), 1: (1,), 2: (2,)}
CROSSED = ReductionPlan(((0, 2), 1))
"""An order of positions in which no chain can add."""
BY_HOSTS: tuple[PathAsked, ...] = ("chain", "ring")
MESSAGE_BYTES = 170 * 1024


def asks_all(world: World, **wishes: Any) -> list[RendezvousAction]:
    actions: list[RendezvousAction] = []
    for rank in range(world.size):
        actions = world.asks(rank, **wishes)
    return actions


def halted_all(world: World, progress: int = 0, **changes: Any) -> list[RendezvousAction]:
    actions: list[RendezvousAction] = []
    for host in world.ranks:
        actions = world.halted(host, progress, **changes)
    return actions


def running(path: PathAsked, **config: Any) -> World:
    world = World(THREE, **config)
    asks_all(world, path=path)
    halted_all(world)
    world.ready()
    assert world.job.phase == "running"
    return world


@pytest.mark.parametrize("path", BY_HOSTS)
@pytest.mark.parametrize("recover_ns", [0, 5 * S])
def test_a_path_that_is_asked_for_never_asks_the_switches(path: PathAsked, recover_ns: int) -> None:
    world = World(THREE, recover_ns=recover_ns)
    world.asks(0, path=path)
    assert (world.job.path, world.job.fallback) == (path, "asked for"), "also while it gathers"
    world.gone(0)
    halts = sent(asks_all(world, path=path), Halt)
    assert [session for session, _ in halts] == [0, 1, 2], "each host makes a link with larger slots, once"
    assert {(halt.path, halt.plan, halt.reason) for _, halt in halts} == {(path, "", "")}
    assert world.core.deadline is None, "how long to wait is the joining processes' decision"
    assert world.halted(0, 0) == world.halted(1, 0) == []
    rings = sent(world.halted(2, 0), Ring)
    assert {(ring.path, ring.progress, ring.plan) for _, ring in rings} == {(path, 0, "")}
    assert [ring.successor.slot_bytes for _, ring in rings] == [1 << 22] * 4
    started = world.ready()
    assert len(sent(started, Start)) == 3
    assert started[-1] == Noted("job train: started, the hosts sum: asked for")
    assert world.installed == {}
    job = world.job
    assert (job.path, job.fallback, job.exact_plan) == (path, "asked for", path == "chain")
    assert (job.recoveries, job.last_recovery, world.core.deadline) == (0, "", None)
    assert {name: n for name, n in world.core.view().counters.items() if n} == {"rings_made": 1}


@pytest.mark.parametrize("path", BY_HOSTS)
def test_links_that_are_large_enough_are_not_made_again(path: PathAsked) -> None:
    """Two hosts: nobody passes on a sum of two that is not the result."""
    world = World(PAIRS)
    rings = sent(asks_all(world, path=path), Ring)
    assert {ring.path for _, ring in rings} == {path}
    assert world.installed == {}


def test_a_job_on_one_host_has_no_ring_whatever_it_asks_for() -> None:
    world = World({0: (0, 1)})
    assert {ring.path for _, ring in sent(asks_all(world, path="ring"), Ring)} == {"switch"}
    assert world.installed == {}


def test_slots_for_a_chain_follow_the_plan_and_too_small_ones_end_the_job() -> None:
    plan = ReductionPlan((0, (1, (2, 3))))
    world = World({0: (0, 4), 1: (1,), 2: (2,), 3: (3,)}, plan=plan)
    assert {halt.plan for _, halt in sent(asks_all(world, path="chain"), Halt)} == {"[0, [1, [2, 3]]]"}
    needs = Accumulators(plan).slot_bytes(MESSAGE_BYTES - INA_HEADER_BYTES)
    small = world.halted(0, 0, slots=3)
    assert failure(small).startswith("rank_lost: host h0 (ranks 0, 4) of job 'train' is lost: its receive")
    assert f"needs 4 slots of {needs}" in failure(small)


def test_a_chain_that_cannot_keep_the_plan_is_refused_in_words() -> None:
    world = World(THREE, plan=CROSSED)
    refused = sent(asks_all(world, path="chain"), Error)
    assert [session for session, _ in refused] == [0, 1, 2, 0]
    [words] = {error.message for _, error in refused}
    assert words == (
        "job 'train' asked for the path chain, but its hosts cannot sum in the order [[[0, 3], 2], 1]; "
        "number its ranks rack by rank, or connect with path='auto' or path='ring'"
    )
    assert world.core.view().jobs == ()


def test_the_ring_follows_no_plan() -> None:
    world = World(THREE, plan=CROSSED)
    halts = sent(asks_all(world, path="ring"), Halt)
    assert {(halt.path, halt.plan) for _, halt in halts} == {("ring", "")}
    assert {(ring.path, ring.plan) for _, ring in sent(halted_all(world), Ring)} == {("ring", "")}


@pytest.mark.parametrize("path", BY_HOSTS)
def test_a_rank_that_is_lost_before_the_first_ring_ends_the_job(path: PathAsked) -> None:
    world = World(THREE)
    halts = sent(asks_all(world, path=path), Halt)
    lost = world.gone(2)
    assert failure(lost) == "rank_lost: rank 2 (h2, pid 1002) of job 'train' is lost: it was killed"
    assert {failed.ring_id for _, failed in sent(lost, Failed)} == {halts[0][1].ring_id}


def test_what_a_host_said_of_a_ring_of_the_life_before_is_late_not_wrong() -> None:
    world = World(THREE)
    halts = sent(asks_all(world, path="ring"), Halt)
    before = halts[0][1].ring_id
    world.gone(2)
    world.asks(0, path="ring")
    link = member(0)
    halted = Halted(job="train", rank=0, ring_id=before, progress=0, out=link.out, into=link.into)
    assert world.step(MemberHalted(world.session[0], halted, 8)) == []
    broken = Broken(job="train", rank=0, ring_id=before, progress=0, reason="its queue pair failed")
    assert world.step(MemberBroken(world.session[0], broken)) == []
    assert world.job.phase == "joining"


def test_a_host_that_is_away_before_the_first_ring_is_waited_for() -> None:
    world = World(THREE)
    asks_all(world, path="ring")
    world.halted(0, 0)
    world.goes_away(1)
    assert world.core.deadline == 5 * S
    world.arrives(1)
    [(session, halt)] = sent(world.asks(1, path="ring"), Halt)
    assert (session, halt.path) == (11, "ring")
    world.halted(1, 0)
    assert {ring.path for _, ring in sent(world.halted(2, 0), Ring)} == {"ring"}
    world.ready()
    assert world.job.phase == "running"
    assert world.core.deadline is None


def test_one_that_does_not_come_back_before_the_first_ring_is_named() -> None:
    world = World(THREE)
    asks_all(world, path="ring")
    world.goes_away(1)
    assert "rank 1 (h1, pid 1001)" in failure(world.woke_at(5 * S))


@pytest.mark.parametrize("path", BY_HOSTS)
def test_it_breaks_once_and_goes_on_twice_and_fails_in_words(path: PathAsked) -> None:
    world = running(path)
    halts = sent(world.broken(1, progress=3), Halt)
    assert {halt.path for _, halt in halts} == {path}
    assert {(ring.path, ring.progress) for _, ring in sent(halted_all(world, 3), Ring)} == {(path, 3)}
    world.ready()
    assert failure(world.broken(1, progress=3)) == (
        "fabric_lost: the ring of job 'train' broke again where it broke before; last rank 1 (h1, pid 1001): "
        f"its queue pair failed; it asked for the path {path} alone: connect with path='auto' for others"
    )
    counters = world.core.view().counters
    assert (counters["fallbacks"], counters["returns"], counters["recoveries"]) == (0, 0, 1)


@pytest.mark.parametrize("path", BY_HOSTS)
def test_after_a_restart_of_the_switch_it_has_its_path_again(path: PathAsked) -> None:
    world = World(THREE)
    actions: list[RendezvousAction] = []
    for rank, progress in ((0, 4), (3, 4), (1, 5), (2, 5)):
        actions = world.asks(rank, path=path, progress=progress)
    assert {halt.path for _, halt in sent(actions, Halt)} == {path}, "they announced links for the switch"
    assert world.core.deadline == 5 * S
    world.halted(0, 4)
    world.halted(1, 5)
    rings = sent(world.halted(2, 5), Ring)
    assert {(ring.path, ring.progress, ring.donor) for _, ring in rings} == {(path, 5, 1)}
    assert world.installed == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"path": "ring"}, "its path is 'ring', rank 0 (h0, pid 1000), which opened the job, said 'auto'; "),
        ({"exact_plan": False}, "its exact_plan is False, rank 0 (h0, pid 1000), which opened the job, said"),
    ],
)
def test_all_ranks_ask_for_the_same(changes: dict[str, Any], words: str) -> None:
    world = World()
    world.asks(0)
    refused = refusal(world.asks(1, **changes), 0)
    assert refused.startswith(words)
    assert refused.endswith("; connect with the same value on all ranks")


# --- auto, without an exact plan


def inexact(plan: ReductionPlan | None = CROSSED) -> World:
    world = World(THREE, plan=plan)
    asks_all(world, exact_plan=False)
    world.ready()
    assert (world.job.phase, world.job.path, world.job.exact_plan) == ("running", "switch", True)
    assert list(world.installed) == [1]
    return world


def test_where_no_chain_can_follow_the_plan_the_hosts_sum_as_a_ring() -> None:
    world = inexact()
    actions = world.step(RingRefused(1, "full"))
    assert {(halt.path, halt.plan) for _, halt in sent(actions, Halt)} == {("ring", "")}
    assert {(ring.path, ring.progress) for _, ring in sent(halted_all(world, 2), Ring)} == {("ring", 2)}
    why = "full; not in the order [[[0, 3], 2], 1], which its hosts cannot keep"
    assert world.ready()[-1] == Noted(f"job train: started, the hosts sum: {why}", is_problem=True)
    job = world.job
    assert (job.path, job.fallback, job.exact_plan) == ("ring", why, False)
    assert job.plan == "[[[0, 3], 2], 1]"
    assert world.core.view().counters["fallbacks"] == 1
    assert {halt.path for _, halt in sent(world.woke_at(1 * S), Halt)} == {"switch"}
    halted_all(world, 2)
    assert (world.job.path, world.job.exact_plan) == ("switch", True)


def test_a_chain_that_can_keep_the_plan_is_taken_before_the_ring() -> None:
    world = inexact(ReductionPlan(((0, 1), 2)))
    assert {halt.path for _, halt in sent(world.step(RingRefused(1, "full")), Halt)} == {"chain"}
    halted_all(world)
    world.ready()
    assert (world.job.fallback, world.job.exact_plan) == ("full", True)


def test_a_switch_where_the_ring_broke_twice_is_left_for_the_hosts() -> None:
    world = inexact()
    paths = []
    for _ in range(3):
        paths += sorted({halt.path for _, halt in sent(world.broken(1), Halt)})
        halted_all(world)
        world.ready()
    assert paths == ["switch", "ring", "ring"]
    assert failure(world.broken(1)).startswith("fabric_lost: job 'train' makes no progress by any path; last")


def test_all_leave_a_job_on_the_ring_and_it_is_closed() -> None:
    world = running("ring")
    for rank in range(4):
        told = Left(job="train", rank=rank, operations=5)
        world.step(MemberLeft(world.at(rank), told))
    assert world.core.view().jobs == ()
