"""Several ranks on a host: the ring is one of hosts, and what concerns a host is said once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.rendezvous.events import Noted, RendezvousConfig
from inaproto.core.switch.accelerator import RingFault
from inaproto.errors import LocalMisuse
from inaproto.wire.control_messages import (
    Closed,
    Error,
    Failed,
    JobStatus,
    Ring,
    Start,
)
from tests.unit.rendezvous_hosts import APART, PAIRS, World, failure, refusal, sent
from tests.unit.rendezvous_members import ip, member
from tests.unit.test_tree_control import switch

# --- the ring


def test_four_ranks_on_two_hosts_make_a_ring_of_two() -> None:
    world = World()
    actions = world.connecting()
    [installed] = world.installed.values()
    assert [(flow.rank, flow.connection) for flow in installed.spec.flows] == [
        (0, (ip(0), ip(1), 21)),
        (1, (ip(1), ip(0), 20)),
    ]
    rings = sent(actions, Ring)
    assert [(session, ring.id, ring.position) for session, ring in rings] == [
        (0, 100, 0),
        (0, 101, 0),
        (1, 102, 1),
        (1, 103, 1),
    ]
    for _, ring in rings:
        assert (ring.peers, ring.ranks, ring.plan) == (("h0", "h1"), ((0, 1), (2, 3)), "")
        other = 1 - ring.position
        assert ring.successor == member(0, host=other).into
        assert ring.predecessor == member(0, host=other).out
    # The same for all ranks of a host, but for the request that it answers.
    assert replace(rings[0][1], id=0) == replace(rings[1][1], id=0)
    assert actions[-1] == Noted("job train: ring 1 of 4 ranks on h0 (ranks 0, 1), h1 (ranks 2, 3)")
    assert world.job.plan == "[[0, 1], [2, 3]]"


def test_ranks_of_a_host_need_not_be_neighbours_and_hosts_are_ordered_by_their_lowest() -> None:
    world = World(APART)
    rings = sent(world.connecting(), Ring)
    assert [(session, ring.id - 100, ring.position) for session, ring in rings] == [
        (1, 0, 0),
        (0, 1, 1),
        (1, 2, 0),
        (0, 3, 1),
        (2, 4, 2),
        (1, 5, 0),
    ]
    assert {ring.peers for _, ring in rings} == {("h1", "h0", "h2")}
    assert {ring.ranks for _, ring in rings} == {((0, 2, 5), (1, 3), (4,))}
    [installed] = world.installed.values()
    assert [(flow.src_ip, flow.dst_ip) for flow in installed.spec.flows] == [
        (ip(1), ip(0)),
        (ip(0), ip(2)),
        (ip(2), ip(1)),
    ]
    assert world.job.plan == "[[0, 2, 5], [1, 3], 4]"


def test_a_job_on_one_host_is_in_no_accelerator() -> None:
    world = World({0: (0, 1, 2)})
    actions = world.connecting()
    assert world.installed == {}
    rings = sent(actions, Ring)
    assert [(session, ring.id, ring.position) for session, ring in rings] == [
        (0, n, 0) for n in (100, 101, 102)
    ]
    for _, ring in rings:
        assert (ring.peers, ring.ranks) == (("h0",), ((0, 1, 2),))
        assert (ring.successor, ring.predecessor) == (member(0).into, member(0).out)
    assert sent(world.ready(), Start) == [(0, Start(job="train", ring_id=1))]
    assert world.job.plan == "[[0, 1, 2]]"
    for rank in range(2):
        assert not sent(world.leaves(rank), Closed)
    assert sent(world.leaves(2), Closed) == [(0, Closed(job="train", ring_id=1))]
    assert world.core.view().counters["jobs_closed"] == 1


def test_a_host_says_once_that_it_is_ready() -> None:
    world = World(APART)
    world.connecting()
    waiting = sent(world.ready(1), JobStatus)
    assert waiting == [(host, JobStatus(job="train", waiting_for=(1, 3, 4))) for host in (1, 0, 2)]
    assert [rank.state for rank in world.job.ranks] == ["ready", "here", "ready", "here", "here", "ready"]
    world.ready(2)
    assert sent(world.ready(0), Start) == [(host, Start(job="train", ring_id=1)) for host in (1, 0, 2)]


def test_the_plan_of_a_tree_follows_where_hosts_are_by_position_and_is_shown_with_all_ranks() -> None:
    switches = (switch("root"), switch("leaf", "root"))
    world = World(APART, switches=switches, at=["root", "leaf", "leaf"])
    rings = sent(world.connecting(), Ring)
    assert rings[0][1].peers == ("h1", "h0", "h2")
    assert {ring.plan for _, ring in rings} == {"[[0, 2], 1]"}
    assert world.job.plan == "[[[0, 2, 5], 4], [1, 3]]"


def test_no_plan_is_shown_before_all_ranks_are_there() -> None:
    world = World()
    for rank in range(3):
        world.asks(rank)
        assert world.job.plan == ""


# --- joining


@pytest.mark.parametrize("name", ["out", "into"])
def test_ranks_of_a_host_with_different_addresses_are_refused(name: str) -> None:
    world = World()
    world.asks(0)
    before = world.job
    wrong = replace(getattr(world.member(1), name), qpn=99)
    assert refusal(world.asks(1, **{name: wrong}), 0) == (
        f"its {name!r} differs from that of rank 0, on the same host; the ranks of a host share one link of "
        "the ring"
    )
    assert world.job == before
    assert not sent(world.asks(1), Error)
    # What another host says is its own affair, and so is another job.
    assert not sent(world.asks(2, **{name: replace(getattr(world.member(2), name), psn=5)}), Error)
    assert not sent(world.asks(1, **{name: wrong, "job": "other"}), Error)


def test_ranks_of_a_host_that_go_on_are_equally_far() -> None:
    world = World()
    world.asks(0, progress=7)
    assert refusal(world.asks(1, progress=8), 0).startswith("its 'progress' differs from that of rank 0, ")
    assert not sent(world.asks(1, progress=7), Error)


def test_a_rank_that_dies_before_the_ring_leaves_the_others_of_its_host_waiting() -> None:
    world = World()
    for rank in range(3):
        world.asks(rank)
    actions = world.gone(1)
    assert actions[0] == Noted("job train: rank 1 (h0, pid 1001) is no longer waiting: it was killed")
    assert sent(actions, JobStatus) == [(s, JobStatus(job="train", waiting_for=(1, 3))) for s in (0, 1)]
    assert not sent(actions, Failed)
    world.asks(1)
    assert len(sent(world.asks(3), Ring)) == 4


def test_a_host_that_is_lost_has_nothing_to_do_with_jobs_of_others() -> None:
    world = World()
    world.asks(2, job="other")
    for rank in range(2):
        world.asks(rank)
    world.goes_away(0)
    assert [job.name for job in world.core.view().jobs] == ["other"]


def test_a_host_that_is_lost_before_the_ring_frees_all_its_seats() -> None:
    world = World()
    for rank in range(3):
        world.asks(rank)
    actions = world.goes_away(0)
    assert actions[1] == Noted(
        "job train: host h0 (ranks 0, 1) is no longer waiting: its host daemon is gone: its cable was pulled"
    )
    assert sent(actions, JobStatus) == [(1, JobStatus(job="train", waiting_for=(0, 1, 3)))]
    world.goes_away(1)
    assert world.core.view().jobs == ()


def test_rings_that_no_psn_space_holds_are_refused_with_the_configuration() -> None:
    RendezvousConfig(ring_packets_max=1 << 23)
    with pytest.raises(LocalMisuse, match="ring_packets_max is 8388609; half the PSN space holds 8388608"):
        RendezvousConfig(ring_packets_max=(1 << 23) + 1)


# --- ends


def test_a_rank_that_dies_later_fails_the_job_and_is_named() -> None:
    world = World().running()
    actions = world.gone(2)
    assert failure(actions) == "rank_lost: rank 2 (h1, pid 1002) of job 'train' is lost: it was killed"
    assert [session for session, _ in sent(actions, Failed)] == [0, 1]  # its host has another rank
    assert world.installed == {}
    world = World(APART).running()
    assert [session for session, _ in sent(world.gone(4), Failed)] == [1, 0]


def test_a_rank_that_left_keeps_its_host_in_the_ring() -> None:
    world = World().running()
    for rank in (0, 1, 2):
        assert not sent(world.leaves(rank), Closed)
    assert list(world.installed) == [1]
    assert sent(world.leaves(3), Closed) == [(s, Closed(job="train", ring_id=1)) for s in (0, 1)]


def test_ranks_are_waited_for_by_rank_and_each_host_hears_it_once() -> None:
    world = World().running()
    assert sent(world.stalled(0), JobStatus) == [
        (0, JobStatus(job="train", op_index=3, waiting_for=(1, 2, 3)))
    ]
    assert sent(world.stalled(1), JobStatus) == [(0, JobStatus(job="train", op_index=3, waiting_for=(2, 3)))]
    assert sent(world.stalled(2), JobStatus) == [
        (session, JobStatus(job="train", op_index=3, waiting_for=(3,))) for session in (1, 0)
    ]


def test_faults_of_the_ring_name_the_host_at_their_position() -> None:
    words = {
        0: "host h1 (ranks 0, 2, 5)",
        1: "host h0 (ranks 1, 3)",
        2: "rank 4 (h2, pid 1004)",
        3: "position 3",
    }
    for position, who in words.items():
        world = World(APART).running()
        actions = world.step(RingFault(1, position, "strange", "evidence"))
        assert failure(actions) == f"fabric_lost: the switch stopped job 'train': strange at {who}: evidence"


def test_without_recovery_a_host_that_is_lost_is_named_with_its_ranks() -> None:
    world = World(recover_ns=0).running()
    actions = world.goes_away(0)
    assert [session for session, _ in sent(actions, Failed)] == [1]
    assert failure(actions) == (
        "rank_lost: host h0 (ranks 0, 1) of job 'train' is lost: its host daemon is gone: its cable was "
        "pulled"
    )


def test_without_recovery_a_host_whose_ring_broke_is_answered_too() -> None:
    for ranks in (PAIRS, {0: (0,), 1: (1,)}):
        world = World(ranks, recover_ns=0).running()
        actions = world.broken(1)
        assert [session for session, _ in sent(actions, Failed)] == [0, 1]
        assert failure(actions).endswith(" of job 'train' is lost: its queue pair failed")
        assert world.installed == {}
    assert failure(World(recover_ns=0).running().broken(1)).startswith("rank_lost: host h0 (ranks 0, 1) of")
