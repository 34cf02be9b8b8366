"""Rings of hosts that end: a host is halted, goes away and comes back with all its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.core.rendezvous.events import MemberAsked, MemberHalted, MemberReady, Noted, RendezvousAction
from inaproto.core.switch.accelerator import RingRefused
from inaproto.errors import Blame
from inaproto.units import S
from inaproto.wire.control_messages import (
    Closed,
    Failed,
    Halt,
    Halted,
    Message,
    Ready,
    Ring,
    Start,
)
from tests.unit.rendezvous_hosts import APART, World, failure, refusal, sent
from tests.unit.rendezvous_members import ip, member


def test_a_ring_is_halted_and_says_so_once_to_each_host() -> None:
    world = World(APART).running()
    actions = world.broken(5)
    why = "host h1 (ranks 0, 2, 5): its queue pair failed"
    halt = Halt(job="train", ring_id=1, path="switch", reason=why)
    assert sent(actions, Halt) == [(session, halt) for session in (1, 0, 2)]
    assert world.installed == {}
    assert world.broken(1) == []  # of the ring that has ended


def test_halted_is_said_once_for_all_ranks_of_a_host() -> None:
    world = World(APART).running()
    world.broken(0)
    assert world.halted(1, 40) == world.halted(2, 41) == []
    rings = sent(world.halted(0, 42), Ring)
    assert len(rings) == world.size
    assert {(ring.ring_id, ring.progress, ring.donor) for _, ring in rings} == {(2, 42, 1)}
    assert [ring.successor.qpn for _, ring in rings] == [600, 602, 600, 602, 601, 600]
    assert [ring.predecessor.qpn for _, ring in rings] == [502, 501, 502, 501, 500, 502]
    [installed] = world.installed.values()
    assert [flow.dst_qp for flow in installed.spec.flows] == [600, 602, 601]
    assert sent(world.ready(), Start) == [(s, Start(job="train", ring_id=2)) for s in (1, 0, 2)]


def test_the_note_of_the_next_ring_names_the_host_that_is_ahead() -> None:
    world = World().running()
    world.broken(0)
    world.halted(0, 4)
    assert world.halted(1, 5)[-1] == Noted(
        "job train: ring 2 of 4 ranks on h0 (ranks 0, 1), h1 (ranks 2, 3), by switch, from message 5, where "
        "host h1 (ranks 2, 3) is"
    )


def test_hosts_farther_apart_than_the_window_cannot_go_on() -> None:
    world = World(APART).running()
    world.broken(0)
    world.halted(0, 43)
    world.halted(1, 40)
    assert failure(world.halted(2, 42)) == (
        "fabric_lost: job 'train' cannot go on: host h1 (ranks 0, 2, 5) has 40 results and another host 43: "
        "more than the window of 2 apart, which no fault of the network explains"
    )


def test_a_host_may_not_direct_its_predecessor_elsewhere_when_halted() -> None:
    world = World().running()
    world.broken(0)
    words = failure(world.halted(1, 5, slots=3))
    assert words.startswith(
        "rank_lost: host h1 (ranks 2, 3) of job 'train' is lost: its receive buffer has 3"
    )


def test_a_host_comes_back_with_all_its_ranks() -> None:
    world = World(APART).running()
    actions = world.goes_away(1)
    why = "host h1 (ranks 0, 2, 5) is away: its host daemon is gone: its cable was pulled"
    halts = sent(actions, Halt)
    assert [(session, halt.reason) for session, halt in halts] == [(0, why), (2, why)]
    assert [rank.state for rank in world.job.ranks] == ["away", "here", "away", "here", "here", "away"]
    world.halted(0, 5)
    world.halted(2, 5)
    world.arrives(1)
    link = {"out": replace(world.member(0).out, qpn=77), "into": replace(world.member(0).into, qpn=78)}
    for rank in (2, 0):
        assert world.asks(rank, progress=6, **link) == []
        assert world.job.phase == "halted"
    rings = sent(world.asks(5, progress=6, **link), Ring)
    assert len(rings) == world.size
    assert {(ring.progress, ring.donor) for _, ring in rings} == {(6, 0)}
    assert {ring.predecessor.qpn for _, ring in rings if ring.position == 1} == {77}
    assert {ring.successor.qpn for _, ring in rings if ring.position == 2} == {78}
    assert [session for session, _ in sent(world.ready(), Start)] == [11, 0, 2]


def test_a_host_that_comes_back_with_two_links_is_refused_until_it_has_one() -> None:
    world = World().running()
    world.goes_away(0)
    world.halted(1, 5)
    world.arrives(0)
    assert world.asks(0, progress=5) == []
    wrong = replace(world.member(1).out, qpn=77)
    assert refusal(world.asks(1, progress=5, out=wrong), 10).startswith(
        "its 'out' differs from that of rank 0"
    )
    assert [rank.state for rank in world.job.ranks] == ["here", "away", "here", "here"]
    assert len(sent(world.asks(1, progress=5), Ring)) == 4


def test_a_host_that_comes_back_to_a_chain_is_halted_once_when_all_its_ranks_are_there() -> None:
    world = World()
    world.connecting()
    world.step(RingRefused(1, "full"))
    world.goes_away(1)
    world.halted(0, 0)
    world.arrives(1)
    assert world.asks(2, progress=0) == []
    halts = sent(world.asks(3, progress=0), Halt)
    assert [(session, halt.path) for session, halt in halts] == [(11, "chain")]
    rings = sent(world.halted(1, 0), Ring)
    assert [(session, ring.path) for session, ring in rings] == [(0, "chain")] * 2 + [(11, "chain")] * 2
    assert world.installed == {}


def test_slots_for_a_chain_are_those_of_a_ring_of_hosts() -> None:
    """Six ranks whose tree would need wide sums of them all; the three hosts of the ring do not."""
    world = World(APART)
    world.connecting()
    world.step(RingRefused(1, "full"))
    link = member(0, host=0)
    told = Halted(job="train", rank=1, ring_id=1, progress=0, out=link.out, into=link.into)
    words = failure(world.step(MemberHalted(world.session[0], told, 8)))
    assert "needs 4 slots of 348120" in words  # as three hosts of a rank each


def test_a_chain_goes_by_the_order_of_hosts_not_of_ranks() -> None:
    """Ranks are interleaved, positions are in order: the chain can follow."""
    world = World({0: (0, 2), 1: (1, 3)}, plan=ReductionPlan((0, (1,))))
    world.connecting()
    assert {halt.path for _, halt in sent(world.step(RingRefused(1, "full")), Halt)} == {"chain"}
    world = World({0: (0, 1), 1: (2, 3), 2: (4, 5)}, plan=ReductionPlan(((0, 2), 1)))
    world.connecting()
    assert failure(world.step(RingRefused(1, "full"))).endswith(
        "its hosts cannot sum in the order [[[0, 1], [4, 5]], [2, 3]], but with exact_plan=False in another"
    )


def test_a_host_that_was_started_anew_is_named_with_its_ranks_once() -> None:
    world = World().running()
    world.goes_away(1)
    actions = world.arrives(1, instance="another")
    assert [session for session, _ in sent(actions, Failed)] == [0]
    assert failure(actions) == (
        "rank_lost: host h1 (ranks 2, 3) of job 'train' is lost: its host daemon was started anew"
    )


def test_a_new_process_on_a_host_that_comes_back_fails_the_job_for_its_other_ranks_too() -> None:
    world = World().running()
    world.goes_away(1)
    world.halted(0, 5)
    world.arrives(1)
    world.asks(2, progress=5)
    actions = world.asks(3, pid=4711)
    assert [session for session, _ in sent(actions, Failed)] == [0, 11]
    assert failure(actions) == (
        "rank_lost: rank 3 (h1, pid 1003) of job 'train' is lost: a new process came in its place"
    )
    assert (world.job.phase, world.job.missing) == ("joining", (0, 1, 2))


def test_a_rank_does_not_come_back_on_another_host() -> None:
    """Its host's sum would have other inputs, and other bytes, than in the rings before."""
    world = World().running()
    world.goes_away(1)
    world.arrives(1)
    moved = world.member(3, host="h0", out=world.member(0).out, into=world.member(0).into, progress=0)
    actions = world.step(MemberAsked(world.session[0], moved, 7))
    assert failure(actions) == (
        "rank_lost: rank 3 (h1, pid 1003) of job 'train' is lost: a new process came in its place"
    )


def test_a_rank_that_died_while_its_host_was_away_is_lost_when_that_says_so() -> None:
    world = World().running()
    world.goes_away(1)
    world.arrives(1)
    world.asks(2, progress=5)
    actions = world.gone(3)
    assert [session for session, _ in sent(actions, Failed)] == [0, 11]
    assert failure(actions) == "rank_lost: rank 3 (h1, pid 1003) of job 'train' is lost: it was killed"


def test_who_does_not_come_back_is_named_by_host_and_ranks() -> None:
    world = World(APART).running()
    world.goes_away(1)
    world.goes_away(2)
    world.halted(0, 1)
    assert failure(world.woke_at(5 * S)).startswith(
        "rank_lost: host h1 (ranks 0, 2, 5), rank 4 (h2, pid 1004) of job 'train' is lost: it has not come "
    )
    world = World(APART).running()
    world.goes_away(1)
    world.halted(0, 1)
    world.halted(2, 1)
    world.arrives(1)
    world.asks(2, progress=1)
    assert failure(world.woke_at(5 * S)).startswith("rank_lost: host h1 (ranks 0, 2, 5) of job 'train'")


def test_after_a_restart_of_the_switch_all_ranks_of_all_hosts_join_with_their_progress() -> None:
    world = World(epoch=2)
    for rank, progress in ((0, 12), (2, 11), (1, 12)):
        assert not sent(world.asks(rank, progress=progress), Ring)
    rings = sent(world.asks(3, progress=11, left_after=4), Ring)
    assert {(ring.progress, ring.donor, ring.epoch) for _, ring in rings} == {(12, 0, 2)}
    assert sent(world.ready(), Start)
    assert [rank.state for rank in world.job.ranks] == ["ready", "ready", "ready", "left"]


def test_a_second_ready_of_a_host_is_blamed_once_the_job_runs() -> None:
    world = World().running()
    told = Ready(job="train", rank=1)
    assert world.step(MemberReady(world.at(1), told)) == [
        Blame("host h0", "ready while running", "rank 1 of job train")
    ]


# --- whatever happens

KINDS = ["away", "back", "broken", "halted", "ready", "asks", "gone", "leaves", "refused", "woke"]
MOVES = st.tuples(
    st.sampled_from(KINDS),
    st.integers(0, 5),
    st.integers(0, 2),
)
ONCE = (Halt, Start, Closed, Failed)


def move(world: World, kind: str, rank: int, progress: int) -> list[RendezvousAction]:
    host = rank % 3
    is_known = bool(world.core.view().jobs)
    match kind:
        case "away":
            return world.goes_away(host)
        case "back":
            actions = world.arrives(host)
            for its in world.ranks[host]:
                actions += world.asks(its, progress=progress)
            return actions
        case "broken" if is_known:
            return world.broken(rank, progress)
        case "halted" if is_known:
            return world.halted(host, progress)
        case "ready":
            return world.ready(host)
        case "asks":
            return world.asks(rank)
        case "gone":
            return world.gone(rank)
        case "leaves":
            return world.leaves(rank)
        case "refused" if is_known:
            return world.step(RingRefused(world.job.ring_id, "full"))
        case _:
            return world.woke_at(world.now + 2 * S)


def check_rings(rings: Sequence[tuple[int, Ring]]) -> None:
    """All ranks hear of one ring, in which what a host is told of its neighbours is what these are told."""
    assert [ring.id for _, ring in rings] == [100 + rank for rank in range(6)]
    assert {ring.ranks for _, ring in rings} == {((0, 2, 5), (1, 3), (4,))}
    for rank, (_, ring) in enumerate(rings):
        assert rank in ring.ranks[ring.position]
        for at, address in ((1, ring.successor), (-1, ring.predecessor)):
            assert address.ip == ip((1, 0, 2)[(ring.position + at) % 3])
    assert len({replace(ring, id=0) for _, ring in rings}) == 3


@settings(max_examples=300)
@given(st.lists(MOVES, max_size=40))
def test_whatever_happens_each_host_hears_once_and_rings_are_whole(
    moves: list[tuple[str, int, int]],
) -> None:
    world = World(APART).running()
    for kind, rank, progress in moves:
        actions = move(world, kind, rank, progress)
        rings = sent(actions, Ring)
        if rings:
            check_rings(rings)
        told = [
            (session, type(message), message.ring_id)
            for session, message in sent(actions, Message)
            if isinstance(message, ONCE)
        ]
        assert len(told) == len(set(told))
        view = world.core.view()
        with_ring = {
            job.ring_id
            for job in view.jobs
            if job.phase in ("connecting", "running") and job.path == "switch"
        }
        assert set(world.installed) == with_ring
        for job in view.jobs:
            for its in world.ranks.values():
                states = {one.state for one in job.ranks if one.rank in its} - {"left"}
                assert job.phase == "halted" or len(states) < 2
