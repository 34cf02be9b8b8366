"""What hosts, operators and blamed peers are told by the rendezvous: whole messages, notes and counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from inaproto.core.rendezvous.events import (
    HostArrived,
    MemberAsked,
    MemberReady,
    Noted,
    OperationStalled,
    RankView,
    RefuseHost,
    RendezvousAction,
    RendezvousConfig,
    Send,
    SessionEnded,
    SessionId,
    ShuttingDown,
    WelcomeHost,
    Woke,
)
from inaproto.core.switch.accelerator import RingFault
from inaproto.errors import Blame
from inaproto.wire.control_messages import (
    Error,
    Failed,
    JobStatus,
    Member,
    OpStarted,
    Ready,
    Ring,
)
from tests.unit.rendezvous_members import hello, ip, mac, member
from tests.unit.rendezvous_world import KEY, World, sent


def notes(actions: Sequence[RendezvousAction]) -> list[Noted]:
    return [action for action in actions if isinstance(action, Noted)]


def refused(actions: Sequence[RendezvousAction]) -> tuple[int, int, str]:
    """(session, request, reason behind who cannot join what)."""
    [(session, error)] = sent(actions, Error)
    _, _, reason = error.message.partition(": ")
    return session, error.of, reason


# --- what goes into the log


def test_a_job_from_its_first_rank_to_its_end() -> None:
    world = World(hosts=0)
    assert world.step(HostArrived(SessionId(0), replace(hello(0), id=31))) == [
        WelcomeHost(SessionId(0), 31),
        Noted("host h0 is here (10.0.0.1, 02:00:0a:00:00:01)"),
    ]
    world.step(HostArrived(SessionId(1), hello(1)))
    assert notes(world.join(member(0, size=2))) == [
        Noted("job train: rank 0 (h0, pid 1000) joined, 1 of 2 ranks are here")
    ]
    assert notes(world.join(member(1, size=2))) == [Noted("job train: ring 1 of 2 ranks on h0, h1")]
    assert notes(world.step(MemberReady(SessionId(0), Ready(job="train", rank=0)))) == []
    assert notes(world.step(MemberReady(SessionId(1), Ready(job="train", rank=1)))) == [
        Noted("job train: started")
    ]
    assert notes(world.leave(0)) == [Noted("job train: rank 0 (h0, pid 1000) left")]
    assert notes(world.leave(1)) == [Noted("job train: all ranks left, closed")]
    assert world.step(SessionEnded(SessionId(1), "closed")) == [Noted("host h1 is gone: closed")]
    assert world.core.view().hosts == ("h0",)


def test_a_rank_that_stops_waiting_and_a_job_that_fails() -> None:
    world = World()
    world.join(member(0))
    assert notes(world.gone(0, "join timed out")) == [
        Noted("job train: rank 0 (h0, pid 1000) is no longer waiting: join timed out")
    ]
    world.join(member(0))
    assert notes(world.leave(0)) == [Noted("job train: rank 0 (h0, pid 1000) is no longer waiting: it left")]
    world.running()
    assert notes(world.gone(1, "it was killed")) == [
        Noted(
            "job train: failed: rank 1 (h1, pid 1001) of job 'train' is lost: it was killed", is_problem=True
        )
    ]


# --- counts


def test_counters_count_every_ring_failure_end_and_refusal() -> None:
    world = World()
    assert world.core.view().counters == {
        "rings_made": 0,
        "jobs_failed": 0,
        "jobs_closed": 0,
        "refused": 0,
        "recoveries": 0,
        "fallbacks": 0,
        "returns": 0,
        "disagreements": 0,
        "trees_parked": 0,
        "trees_moved": 0,
        "parkings_given_up": 0,
        "generations_for_trees": 0,
    }
    for _ in range(2):
        world.running()
        for rank in range(3):
            world.leave(rank)
    for _ in range(3):
        world.connecting()
        world.gone(0)
    for _ in range(2):
        world.join(member(9))
    for session in (7, 8):
        world.step(HostArrived(SessionId(session), hello(0)))
    assert world.core.view().counters == {
        "rings_made": 5,
        "jobs_failed": 3,
        "jobs_closed": 2,
        "refused": 4,
        "recoveries": 0,
        "fallbacks": 0,
        "returns": 0,
        "disagreements": 0,
        "trees_parked": 0,
        "trees_moved": 0,
        "parkings_given_up": 0,
        "generations_for_trees": 0,
    }


def test_ranks_in_the_view() -> None:
    world = World()
    world.connecting()
    world.step(MemberReady(SessionId(1), Ready(job="train", rank=1)))
    [job] = world.core.view().jobs
    assert (job.name, job.phase, job.size, job.ring_id, job.missing) == ("train", "connecting", 3, 1, ())
    assert [rank.state for rank in job.ranks] == ["here", "ready", "here"]
    for rank in (0, 2):
        world.step(MemberReady(SessionId(rank), Ready(job="train", rank=rank)))
    world.stalled(1, 0)
    world.stalled(2, 5)
    world.leave(0, operations=9)
    [job] = world.core.view().jobs
    assert job.ranks == (
        RankView(0, "h0", 1000, "left", None),
        RankView(1, "h1", 1001, "ready", 0),
        RankView(2, "h2", 1002, "ready", 5),
    )


# --- hosts


def test_a_host_that_is_another_is_answered_on_its_own_session() -> None:
    world = World(hosts=1)
    asked = replace(hello(3), ip=ip(0), id=41)
    assert world.step(HostArrived(SessionId(5), asked)) == [
        RefuseHost(
            SessionId(5),
            Error(
                code="hello_refused",
                message="host 'h3' refused: its IP address 10.0.0.1 is that of host 'h0', which is "
                "connected; give each host daemon its own",
                of=41,
            ),
        )
    ]


def test_a_second_hello_is_blamed_by_name() -> None:
    world = World(hosts=1)
    assert world.step(HostArrived(SessionId(0), hello(6))) == [
        Blame("host h0", "second hello", "now as 'h6'")
    ]
    assert world.core.view().hosts == ("h0",)


def test_a_lost_host_loses_ranks_of_all_its_jobs() -> None:
    world = World()
    world.running()
    for rank in range(2):
        world.join(member(rank, size=2, job="other"))
    world.join(member(0, size=2, job="third"))
    actions = world.step(SessionEnded(SessionId(0), "closed"))
    assert [(session, message.job) for session, message in sent(actions, Failed)] == [
        (1, "train"),
        (2, "train"),
        (1, "other"),
    ]
    assert notes(actions)[0] == Noted("host h0 is gone: closed")
    assert len(notes(actions)) == 4
    assert world.core.view().jobs == ()
    assert world.installed == {}


def test_a_switch_that_ends_says_why() -> None:
    world = World()
    world.running()
    texts = {message.message for _, message in sent(world.step(ShuttingDown("SIGTERM")), Failed)}
    assert texts == {"job 'train' ends, for the switch is ending: SIGTERM"}


# --- who may not join, and what the answer belongs to


SMALL = RendezvousConfig(mtu_max=2048, ranks_max=3, ring_packets_max=680, ranks_per_host_max=2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rank": 3}, "there is no rank 3 in a job of 3; ranks are 0 to 2"),
        ({"size": 4}, "it has 4 ranks; this switch takes 3 (switch: --ranks-max)"),
        (
            {"job": "no good"},
            "a job's name is 1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit",
        ),
        (
            {"job": "#0/2"},
            "a job's name is 1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit",
        ),
        (
            {"job": "train#01/2"},
            "a job's name is 1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit",
        ),
        ({"mtu": 4096}, "mtu is 4096; this switch takes 256, 512, 1024, 2048 (host daemon: --mtu)"),
        (
            {"window_messages": 6},
            "window_messages is 6; it must be a power of two (host daemon: --window-messages)",
        ),
        (
            {"message_packets": 171},
            (
                "2 x window_messages x message_packets is 684, at most 680; lower one of them "
                "(host daemon: --message-packets)"
            ),
        ),
        (
            {"window_messages": 1},
            (
                "its receive buffer has 4 slots of 174080 bytes; a window of 1 messages of 170 packets needs "
                "2 slots of 174080"
            ),
        ),
        (
            {"mtu": 2048},
            (
                "its receive buffer has 4 slots of 174080 bytes; a window of 2 messages of 170 packets needs "
                "4 slots of 348160"
            ),
        ),
        (
            {"key": "guess"},
            "wrong key; give the key of the processes that opened the job, or use another job name",
        ),
        (
            {"message_packets": 160},
            (
                "its message_packets is 160, rank 0 (h0, pid 1000), which opened the job, said 170; "
                "start the host daemons with the same value"
            ),
        ),
    ],
)
def test_a_refused_rank_is_told_why(change: dict[str, object], reason: str) -> None:
    world = World(config=SMALL)
    world.join(member(0))
    asked = replace(member(1), **change)  # type: ignore[arg-type]
    assert refused(world.join(asked, session=1)) == (1, 101, reason)


@pytest.mark.parametrize(
    "member_at_the_limit",
    [
        member(0),  # three ranks, 2 x 2 x 170 packets, slots just large enough
        replace(member(0), mtu=2048, into=replace(member(0).into, slot_bytes=170 * 2048)),
        replace(member(0), into=replace(member(0).into, slot_bytes=1 << 20)),
        replace(member(0), window_messages=1, into=replace(member(0).into, slots=2)),
        replace(member(0), job="a" * 128),
        replace(member(0), job="train#10/11"),  # of parallel rings
    ],
)
def test_a_rank_at_every_limit_is_taken(member_at_the_limit: Member) -> None:
    world = World(config=SMALL)
    assert sent(world.join(member_at_the_limit), Error) == []


def test_a_host_speaks_for_itself_only() -> None:
    world = World()
    for of, forged in (
        ("out", replace(member(0), out=member(1).out)),
        ("into", replace(member(0), into=member(1).into)),
    ):
        session, request, reason = refused(world.join(forged))
        assert (session, request) == (0, 100)
        assert reason == (
            f"its '{of}' address is h0 10.0.0.2 02:00:0a:00:00:02, its host daemon is h0 10.0.0.1 "
            "02:00:0a:00:00:01; a host speaks for itself"
        )
    stranger = world.step(MemberAsked(SessionId(9), member(0), KEY))
    assert refused(stranger) == (9, 100, "its host daemon has not introduced itself (hello)")


def test_a_seat_that_is_taken_and_a_host_that_is_full() -> None:
    world = World(config=SMALL)
    world.join(member(0))
    assert refused(world.join(member(0, host=1))) == (
        1,
        100,
        "the rank is held by process 1000 on h0; end that process or take another rank",
    )
    world.join(member(1, host=0))
    assert refused(world.join(member(2, host=0))) == (
        0,
        102,
        "its host already has 2 ranks of this job, the limit; run it on another host",
    )


def test_a_ring_of_two_is_removed_when_it_fails() -> None:
    world = World()
    world.connecting(size=2)
    [ring_id] = world.installed
    actions = world.gone(0)
    assert world.installed == {}
    assert [(session, message.ring_id) for session, message in sent(actions, Failed)] == [(1, ring_id)]


# --- what members say


def test_messages_out_of_order_are_blamed_in_stable_words() -> None:
    world = World()
    world.join(member(0))
    told = OpStarted(job="train", rank=0, op_index=0, signature=0, nbytes=4)
    who = "rank 0 of job train"
    assert world.step(MemberReady(SessionId(0), Ready(job="train", rank=0))) == [
        Blame("host h0", "ready while joining", who)
    ]
    assert world.step(OperationStalled(SessionId(0), told)) == [
        Blame("host h0", "op_started while joining", who)
    ]
    world.gone(0)
    world.running()
    assert world.step(MemberReady(SessionId(0), Ready(job="train", rank=0))) == [
        Blame("host h0", "ready while running", who)
    ]
    world.leave(0)
    assert world.leave(0) == [Blame("host h0", "left twice", "rank 0 (h0, pid 1000) of job train")]


def test_a_stalled_rank_that_the_switch_does_not_know_is_answered() -> None:
    world = World()
    [answer] = world.stalled(2, 3)
    assert isinstance(answer, Send)
    assert answer.session == 2
    assert isinstance(answer.message, Failed)
    assert (answer.message.job, answer.message.code) == ("train", "rank_lost")
    assert answer.message.message == (
        "job 'train': rank 2 of this host is not known to the switch; the job has failed or the switch was "
        "restarted; join again"
    )


def test_different_all_reduces_are_told_with_all_that_differs() -> None:
    world = World()
    world.running()
    world.stalled(0, 5)
    actions = world.stalled(1, 5, nbytes=128, signature=10)
    text = (
        "all-reduce 5 of job 'train' differs between ranks: rank 0 (h0, pid 1000): 64 bytes, signature "
        "0x0009; rank 1 (h1, pid 1001): 128 bytes, signature 0x000a; every rank must call the same ones in "
        "the same order, with the same shape, dtype and op"
    )
    assert sent(actions, JobStatus) == [
        (1, JobStatus(job="train", op_index=5, waiting_for=(), mismatch=text))
    ]
    assert {message.message for _, message in sent(actions, Failed)} == {text}


def test_faults_of_the_accelerator_are_told_whole() -> None:
    world = World()
    world.running()
    world.step(RingFault(1, 1, "operations differ", "i32 and f32"))
    deadline = world.core.deadline
    assert deadline is not None
    actions = world.core.step(Woke(), deadline)
    world.installed.clear()
    assert {message.message for _, message in sent(actions, Failed)} == {
        (
            "the ranks of job 'train' called different all-reduces, seen at rank 1 (h1, pid 1001): i32 and "
            "f32; every rank must call the same ones in the same order, with the same shape, dtype and op"
        )
    }
    world.running()
    actions = world.step(RingFault(2, 9, "strange", "evidence"))
    assert {message.message for _, message in sent(actions, Failed)} == {
        "the switch stopped job 'train': strange at position 9: evidence"
    }
    assert world.step(RingFault(7, 0, "strange", "of no ring")) == []


def test_a_waiting_rank_is_found_behind_ranks_that_wait_for_nobody() -> None:
    """Whoever the pair is that cannot meet: each waiter is held against each rank that left."""
    world = World(hosts=4)
    world.running(size=4)
    world.leave(1, operations=9)
    world.leave(2, operations=5)
    failed = sent(world.stalled(3, 5), Failed)
    assert len(failed) == 4
    assert failed[0][1].message == (
        "rank 2 (h2, pid 1002) left job 'train' after 5 all-reduces, and rank 3 (h3, pid 1003) waits in "
        "all-reduce 5 (counted from 0)"
    )


def test_every_rank_of_a_ring_hears_its_own_neighbours() -> None:
    world = World()
    for _, ring in sent(world.connecting(), Ring):
        assert ring.successor.mac == mac((ring.position + 1) % 3)
        assert ring.predecessor.mac == mac((ring.position + 2) % 3)
