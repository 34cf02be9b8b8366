"""The rendezvous core: joining, connecting, running, and every way in which a job ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inaproto.core.rendezvous.events import (
    HostArrived,
    MemberAsked,
    MemberEvent,
    MemberGone,
    MemberLeft,
    MemberReady,
    MemberRefused,
    OperationStalled,
    RefuseHost,
    RendezvousAction,
    RendezvousConfig,
    RendezvousEvent,
    RingStands,
    Send,
    SessionEnded,
    SessionId,
    ShuttingDown,
    WelcomeHost,
)
from inaproto.core.rendezvous.jobs import Phase
from inaproto.core.rendezvous.rendezvous import Rendezvous
from inaproto.core.switch.accelerator import InstallRing, RemoveRing, RingFault, RingRefused
from inaproto.errors import Blame
from inaproto.wire.control_messages import (
    Closed,
    Error,
    Failed,
    Gone,
    JobStatus,
    Left,
    OpStarted,
    RankRefused,
    Ready,
    Ring,
    Start,
)
from tests.unit.rendezvous_members import hello, ip, mac, member
from tests.unit.rendezvous_world import KEY, World, refusal, sent


def test_table_is_complete() -> None:
    events = [MemberAsked, *get_args(MemberEvent), RingFault, RingRefused, RingStands]
    assert set(Rendezvous(RendezvousConfig()).handlers) == {
        (phase, event) for phase in Phase for event in events
    }


# --- from members to a ring


def test_ring_is_installed_and_told_when_the_last_rank_joins() -> None:
    world = World()
    assert sent(world.join(member(2)), JobStatus) == [(2, JobStatus(job="train", waiting_for=(0, 1)))]
    assert sent(world.join(member(0)), JobStatus) == [
        (0, JobStatus(job="train", waiting_for=(1,))),
        (2, JobStatus(job="train", waiting_for=(1,))),
    ]
    actions = world.join(member(1))
    assert isinstance(actions[0], InstallRing)
    spec = actions[0].spec
    assert (spec.key, spec.window_messages, spec.message_packets, spec.mtu) == (KEY, 2, 170, 1024)
    # The flow of rank r goes from r's address to its successor's receiving queue pair.
    assert [flow.connection for flow in spec.flows] == [
        (ip(0), ip(1), 21),
        (ip(1), ip(2), 22),
        (ip(2), ip(0), 20),
    ]
    rings = sent(actions, Ring)
    assert [(session, ring.position, ring.id) for session, ring in rings] == [
        (0, 0, 100),
        (1, 1, 101),
        (2, 2, 102),
    ]
    for session, ring in rings:
        assert ring.successor == member((session + 1) % 3).into
        assert ring.predecessor == member((session - 1) % 3).out
        assert (ring.ring_id, ring.epoch, ring.ring_key) == (spec.ring_id, spec.epoch, KEY)
        assert ring.peers == ("h0", "h1", "h2")


def test_start_goes_to_all_when_all_are_ready() -> None:
    world = World()
    world.connecting()
    first = world.step(MemberReady(SessionId(1), Ready(job="train", rank=1)))
    assert not sent(first, Start)
    assert {message.waiting_for for _, message in sent(first, JobStatus)} == {(0, 2)}
    world.step(MemberReady(SessionId(0), Ready(job="train", rank=0)))
    last = world.step(MemberReady(SessionId(2), Ready(job="train", rank=2)))
    [ring_id] = world.installed
    assert sent(last, Start) == [(s, Start(job="train", ring_id=ring_id)) for s in range(3)]
    assert world.core.view().jobs[0].phase == "running"


def test_several_ranks_of_one_host_hear_of_the_job_once() -> None:
    world = World(hosts=2)
    for rank, host in ((0, 0), (1, 0), (2, 1)):
        world.join(member(rank, host=host))
    actions: list[RendezvousAction] = []
    for rank, host in ((0, 0), (2, 1)):
        actions = world.step(MemberReady(SessionId(host), Ready(job="train", rank=rank)))
    assert [session for session, _ in sent(actions, Start)] == [0, 1]
    # The host that lost one of its ranks has another, which must be told.
    actions = world.step(MemberGone(SessionId(0), Gone(job="train", rank=1, reason="it was killed")))
    assert [session for session, _ in sent(actions, Failed)] == [0, 1]


def test_a_rank_alone_needs_no_ring_in_the_accelerator() -> None:
    world = World()
    actions = world.join(member(0, size=1))
    assert world.installed == {}
    [(_, ring)] = sent(actions, Ring)
    assert ring.successor == member(0).into
    assert sent(world.step(MemberReady(SessionId(0), Ready(job="train", rank=0))), Start)
    actions = world.leave(0)
    assert sent(actions, Closed)
    assert not [a for a in actions if isinstance(a, RemoveRing)]


def test_two_jobs_have_different_rings() -> None:
    world = World()
    for job in ("a", "b"):
        for rank in range(2):
            world.join(member(rank, size=2, job=job))
    assert sorted(world.installed) == [1, 2]


def test_ring_ids_wrap_without_zero() -> None:
    world = World(config=RendezvousConfig(first_ring_id=0xFFFF_FFFF))
    for job in ("a", "b"):
        for rank in range(2):
            world.join(member(rank, size=2, job=job))
    assert sorted(world.installed) == [1, 0xFFFF_FFFF]


# --- refusals


def test_rank_that_is_held_is_refused_naming_the_holder() -> None:
    world = World()
    world.join(member(0))
    other = replace(member(0, host=1), pid=77)
    text = refusal(world.join(other))
    assert "rank 0 (h1, pid 77)" in text
    assert "held by process 1000 on h0" in text
    world.join(member(1))
    world.join(member(2))
    assert "held by process 1000 on h0" in refusal(world.join(other))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"key": "guess"}, "wrong key"),
        ({"size": 4}, "it says the job has 4 ranks, rank 0 (h0, pid 1000), which opened the job, said 3"),
        ({"rank": 3}, "there is no rank 3 in a job of 3; ranks are 0 to 2"),
        ({"mtu": 512}, "its mtu is 512, rank 0 (h0, pid 1000), which opened the job, said 1024"),
        ({"mtu": 1000}, "mtu is 1000; this switch takes 256, 512, 1024, 2048"),
        ({"mtu": 4096}, "mtu is 4096; this switch takes 256, 512, 1024, 2048"),
        ({"message_packets": 100}, "its message_packets is 100"),
        ({"window_messages": 3}, "power of two"),
        ({"window_messages": 4}, "its receive buffer has 4 slots"),
        ({"window_messages": 1 << 14}, "2 x window_messages x message_packets is"),
        ({"job": "no good"}, "a job's name is"),
        ({"size": 9}, "it has 9 ranks; this switch takes 8"),
        ({"host": "h2"}, "a host speaks for itself"),
    ],
)
def test_refusals_say_what_and_what_to_do(change: dict[str, object], words: str) -> None:
    world = World(config=RendezvousConfig(mtu_max=2048, ranks_max=8))
    world.join(member(0))
    before = world.core.view().jobs
    message = replace(member(1), **change)  # type: ignore[arg-type]
    text = refusal(world.join(message, session=1))
    assert words in text
    assert "(h" in text
    assert "secret" not in text
    assert "guess" not in text
    assert world.core.view().jobs == before


def waits(actions: Sequence[RendezvousAction]) -> list[tuple[int, str]]:
    """Which hosts hear of which refusals."""
    return [(session, told.refused) for session, told in sent(actions, JobStatus)]


def test_who_waits_for_a_rank_hears_that_it_was_refused() -> None:
    """docs/protocol.md 12.4: at once, without what the refused process is to do, and with no key."""
    world = World()
    world.join(member(0))
    world.join(member(2))
    wrong = replace(member(1), key="guess")
    text = "rank 1 (h1, pid 1001) was refused: wrong key"
    actions = world.join(wrong)
    assert "give the key" in refusal(actions)
    assert sent(actions, JobStatus) == [
        (session, JobStatus(job="train", waiting_for=(1,), refused=text)) for session in (0, 2)
    ]
    assert waits(world.join(replace(wrong, pid=7))) == [], "the same again, of another process"
    sizes = waits(world.join(replace(member(1), size=2)))
    assert sizes == [(0, both := f"{text}; {sizes[0][1].partition('; ')[2]}"), (2, both)]
    assert "it says the job has 2 ranks" in both
    assert waits(world.gone(2)) == [(0, both)]
    assert waits(world.join(member(2))) == [(0, both), (2, both)], "who comes later hears of it"
    assert len(sent(world.join(member(1)), Ring)) == 3
    assert waits(world.join(wrong)) == []
    ready = world.step(MemberReady(SessionId(1), Ready(job="train", rank=1)))
    assert waits(ready) == [(session, "") for session in range(3)]


def test_a_refusal_is_forgotten_when_its_rank_comes() -> None:
    world = World()
    world.join(member(0))
    world.join(replace(member(1), key="guess"))
    world.join(replace(member(2), key="guess"))
    assert [told for _, told in waits(world.join(member(1)))] == [
        "rank 2 (h2, pid 1002) was refused: wrong key"
    ] * 2


def test_few_refusals_are_told_however_many_there_are() -> None:
    """docs/protocol.md 12.4: who has no key can flood nobody with them."""
    world = World()
    world.join(member(0, size=50))
    told = [waits(world.join(replace(member(rank, host=1, size=50), key="guess"))) for rank in range(1, 40)]
    assert [len(each) for each in told] == [1] * 8 + [0] * 31
    assert len(told[7][0][1]) < 8 * 300


def test_a_host_says_which_rank_it_has_not_taken() -> None:
    """docs/protocol.md 12.4: as if the control plane had refused it."""
    world = World()
    world.join(member(0))
    words = RankRefused(job="train", rank=0, pid=9, reason="the rank is held by process 8; " + 300 * "x")
    assert world.step(MemberRefused(SessionId(9), words)) == [], "a host that has said no hello"
    assert world.step(MemberRefused(SessionId(2), replace(words, job="other"))) == []
    told = waits(world.step(MemberRefused(SessionId(2), words)))
    assert told == [(0, "rank 0 (h2, pid 9) was refused: the rank is held by process 8")]
    [(_, long)] = waits(world.step(MemberRefused(SessionId(2), replace(words, reason=300 * "x"))))
    assert long.endswith("; rank 0 (h2, pid 9) was refused: " + 200 * "x")


def test_a_host_that_speaks_for_another_is_not_told_of() -> None:
    world = World()
    world.join(member(0))
    assert waits(world.join(replace(member(1), host="h2"), session=1)) == []


def test_a_host_cannot_direct_the_flows_of_another() -> None:
    world = World()
    forged = replace(member(0), into=member(1).into)
    assert "a host speaks for itself" in refusal(world.join(forged))
    assert "has not introduced itself" in refusal(world.join(member(0), session=9))


def test_too_many_jobs_and_ranks_per_host() -> None:
    world = World(config=RendezvousConfig(jobs_max=1, ranks_per_host_max=1))
    world.join(member(0))
    assert "serves 1 jobs, its limit" in refusal(world.join(member(0, job="other")))
    assert "already has 1 ranks of this job" in refusal(world.join(member(1, host=0)))


def test_hosts_with_the_same_name_or_address_are_refused() -> None:
    world = World(hosts=1)
    for change, words in (
        ({"host": "h0"}, "its name 'h0'"),
        ({"ip": ip(0)}, "its IP address 10.0.0.1"),
        ({"mac": mac(0)}, "its MAC address 02:00:0a:00:00:01"),
    ):
        [refused] = world.step(HostArrived(SessionId(5), replace(hello(5), **change)))
        assert isinstance(refused, RefuseHost)
        assert words in refused.error.message
    assert isinstance(world.step(HostArrived(SessionId(5), hello(5)))[0], WelcomeHost)
    [blame] = world.step(HostArrived(SessionId(5), hello(6)))
    assert isinstance(blame, Blame)


# --- joins that come to nothing


def test_a_rank_that_stops_waiting_frees_its_seat() -> None:
    world = World()
    world.join(member(0))
    world.join(member(1))
    actions = world.gone(0, "join timed out")
    assert not sent(actions, Failed)
    assert sent(actions, JobStatus) == [(1, JobStatus(job="train", waiting_for=(0, 2)))]
    world.gone(1)
    assert world.core.view().jobs == ()


def test_status_shows_who_is_missing() -> None:
    world = World()
    world.join(member(1))
    [job] = world.core.view().jobs
    assert (job.phase, job.missing, job.ring_id) == ("joining", (0, 2), 0)
    assert [(rank.rank, rank.host, rank.pid, rank.state) for rank in job.ranks] == [(1, "h1", 1001, "here")]


# --- ends of a ring


@pytest.mark.parametrize("phase", [Phase.CONNECTING, Phase.RUNNING])
def test_a_lost_rank_fails_the_others_by_name(phase: Phase) -> None:
    world = World()
    if phase is Phase.RUNNING:
        world.running()
    else:
        world.connecting()
    [ring_id] = world.installed
    actions = world.gone(1, "process 1001 ended without leaving")
    assert isinstance(actions[0], RemoveRing)
    failed = sent(actions, Failed)
    assert [session for session, _ in failed] == [0, 2]
    for _, message in failed:
        assert (message.code, message.ring_id) == ("rank_lost", ring_id)
        assert (
            message.message
            == "rank 1 (h1, pid 1001) of job 'train' is lost: process 1001 ended without leaving"
        )
    assert world.core.view().jobs == ()
    assert world.gone(2) == []


def test_a_lost_host_fails_all_its_jobs_and_only_these() -> None:
    world = World()
    world.running()
    for rank in range(2):
        world.join(member(rank, size=2, job="other"))
    actions = world.step(SessionEnded(SessionId(2), "its control connection was closed by its peer"))
    assert [(session, message.job) for session, message in sent(actions, Failed)] == [
        (0, "train"),
        (1, "train"),
    ]
    assert "its host daemon is gone" in sent(actions, Failed)[0][1].message
    assert [job.name for job in world.core.view().jobs] == ["other"]
    assert world.step(SessionEnded(SessionId(2), "again")) == []


def test_the_name_of_a_job_can_be_used_again() -> None:
    world = World()
    world.running()
    world.gone(0)
    world.running()
    assert list(world.installed) == [2]


def test_a_fault_of_an_earlier_ring_is_not_one_of_a_later_job_of_that_name() -> None:
    world = World()
    world.running()
    world.gone(0)
    world.running()
    assert world.step(RingFault(1, 0, "strange", "late")) == []
    assert list(world.installed) == [2]


def test_orderly_end_closes_the_ring_when_all_have_left() -> None:
    world = World()
    world.running()
    [ring_id] = world.installed
    assert not sent(world.leave(0), Closed)
    assert list(world.installed) == [ring_id]
    text = refusal(world.join(member(0)))
    assert "the job is ending, rank 1 (h1, pid 1001), rank 2 (h2, pid 1002) has yet to leave" in text
    world.leave(2)
    actions = world.leave(1)
    assert sent(actions, Closed) == [(s, Closed(job="train", ring_id=ring_id)) for s in range(3)]
    assert world.installed == {}
    world.running()


def test_a_ring_that_broke_at_ranks_that_had_left_fails_nobody_who_has_all_results() -> None:
    world = World()
    world.running()
    world.stalled(1, 4)  # it had the result by then, or says so again
    world.leave(0)
    assert not sent(world.gone(0, "its link is down"), Failed)
    world.leave(1)
    assert len(sent(world.leave(2), Closed)) == 3
    counters = world.core.view().counters
    assert (counters["jobs_closed"], counters["jobs_failed"]) == (1, 0)


def test_a_ring_that_broke_at_ranks_that_had_left_fails_who_waits_for_a_result() -> None:
    world = World()
    world.running()
    world.leave(0)
    for reason in ("its link is down", "what follows from that"):
        world.gone(0, reason)
    failed = sent(world.stalled(1, 4), Failed)
    assert [session for session, _ in failed] == [1, 2]
    text = "rank 0 (h0, pid 1000) of job 'train' is lost: its link is down"
    assert {(message.code, message.message) for _, message in failed} == {("rank_lost", text)}


def test_leaving_while_connecting_loses_the_rank() -> None:
    world = World()
    world.connecting()
    assert len(sent(world.leave(0), Failed)) == 2
    assert world.installed == {}


def test_ending_switch_tells_every_job() -> None:
    world = World()
    world.running()
    world.join(member(0, job="other"))
    actions = world.step(ShuttingDown("SIGTERM"))
    assert [(session, message.job) for session, message in sent(actions, Failed)] == [
        (0, "train"),
        (1, "train"),
        (2, "train"),
        (0, "other"),
    ]
    assert {message.code for _, message in sent(actions, Failed)} == {"switch_unreachable"}


# --- operations that do not end


def test_stalled_rank_hears_for_whom_it_waits() -> None:
    world = World()
    world.running()
    assert sent(world.stalled(0, 5), JobStatus) == [
        (0, JobStatus(job="train", op_index=5, waiting_for=(1, 2)))
    ]
    # Rank 2 comes: whoever waits hears that only rank 1 is missing.
    assert sent(world.stalled(2, 5), JobStatus) == [
        (2, JobStatus(job="train", op_index=5, waiting_for=(1,))),
        (0, JobStatus(job="train", op_index=5, waiting_for=(1,))),
    ]
    assert sent(world.stalled(2, 5), JobStatus) == [(2, JobStatus(job="train", op_index=5, waiting_for=(1,)))]
    # A rank that is in a later operation has sent all of this one.
    assert sent(world.stalled(1, 6), JobStatus) == [
        (1, JobStatus(job="train", op_index=6, waiting_for=(0, 2)))
    ]
    assert sent(world.stalled(0, 5), JobStatus) == [(0, JobStatus(job="train", op_index=5, waiting_for=()))]


def test_waiting_for_a_rank_that_left_fails() -> None:
    world = World()
    world.running()
    world.stalled(1, 4)
    assert sent(world.leave(0, operations=5), Failed) == []
    failed = sent(world.stalled(1, 5), Failed)
    assert len(failed) == 3
    assert "rank 0 (h0, pid 1000) left job 'train' after 5 all-reduces" in failed[0][1].message
    world.running()
    world.stalled(1, 5)
    assert len(sent(world.leave(0, operations=5), Failed)) == 3


def test_other_faults_and_refusals_of_the_accelerator() -> None:
    world = World()
    world.running()
    [(_, message), *_] = sent(world.step(RingFault(1, 2, "strange", "evidence")), Failed)
    assert message.code == "fabric_lost"
    world.connecting()
    [(_, message), *_] = sent(world.step(RingRefused(2, "needs 9 bytes of memory, 1 are free")), Failed)
    assert message.code == "join_refused"
    assert "needs 9 bytes" in message.message
    assert world.installed == {}


def test_report_for_an_unknown_job_is_answered() -> None:
    world = World()
    [(_, message)] = sent(world.stalled(0, 3), Failed)
    assert "is not known to the switch" in message.message
    assert world.leave(0) == []


def test_messages_out_of_order_are_blamed_and_change_nothing() -> None:
    world = World()
    world.join(member(0))
    for event in (
        MemberReady(SessionId(0), Ready(job="train", rank=0)),
        OperationStalled(SessionId(0), OpStarted(job="train", rank=0, op_index=0, signature=0, nbytes=4)),
    ):
        [blame] = world.step(event)
        assert isinstance(blame, Blame)
        assert blame.peer == "host h0"
    world.gone(0)
    world.running()
    assert isinstance(world.step(MemberReady(SessionId(0), Ready(job="train", rank=0)))[0], Blame)
    world.leave(0)
    assert isinstance(world.leave(0)[0], Blame)
    # A rank belongs to the session that holds it.
    assert world.step(MemberGone(SessionId(1), Gone(job="train", rank=2, reason="lie"))) == []
    assert len(world.installed) == 1


# --- whatever happens

SESSIONS = st.integers(0, 3)
JOBS = st.sampled_from(["a", "b"])
EVENTS = st.one_of(
    st.builds(lambda s: HostArrived(SessionId(s), hello(s)), SESSIONS),
    st.builds(lambda s: SessionEnded(SessionId(s), "closed"), SESSIONS),
    st.builds(
        lambda s, rank, size, job: MemberAsked(
            SessionId(s), member(rank, host=s, size=size, job=job, id=1000 * s + 10 * rank + size), KEY
        ),
        SESSIONS,
        st.integers(0, 2),
        st.integers(1, 3),
        JOBS,
    ),
    st.builds(
        lambda s, job, r: MemberReady(SessionId(s), Ready(job=job, rank=r)), SESSIONS, JOBS, st.integers(0, 2)
    ),
    st.builds(
        lambda s, job, r, n: MemberLeft(SessionId(s), Left(job=job, rank=r, operations=n)),
        SESSIONS,
        JOBS,
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    st.builds(
        lambda s, job, r: MemberGone(SessionId(s), Gone(job=job, rank=r, reason="gone")),
        SESSIONS,
        JOBS,
        st.integers(0, 2),
    ),
    st.builds(
        lambda s, job, r: MemberRefused(SessionId(s), RankRefused(job=job, rank=r, pid=7, reason="so")),
        SESSIONS,
        JOBS,
        st.integers(0, 2),
    ),
    st.builds(
        lambda s, job, r, op, sig: OperationStalled(
            SessionId(s), OpStarted(job=job, rank=r, op_index=op, signature=sig, nbytes=4)
        ),
        SESSIONS,
        JOBS,
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(0, 1),
    ),
    st.builds(
        lambda ring, rank: RingFault(ring, rank, "operations differ", "x"),
        st.integers(1, 4),
        st.integers(0, 2),
    ),
    st.builds(lambda ring: RingRefused(ring, "no room"), st.integers(1, 4)),
)


@settings(max_examples=300)
@given(st.lists(EVENTS, max_size=60))
def test_invariants_hold_for_any_events(events: list[RendezvousEvent]) -> None:
    world = World(hosts=3)
    connected = {0, 1, 2}
    for event in events:
        if isinstance(event, SessionEnded):
            connected.discard(event.session)
        actions = world.step(event)
        for action in actions:
            if isinstance(action, WelcomeHost):
                connected.add(action.session)
            if isinstance(action, Send) and not isinstance(action.message, Error | Failed):
                assert action.session in connected
        view = world.core.view()
        with_ring = {
            job.ring_id
            for job in view.jobs
            if job.phase != "joining" and len({rank.host for rank in job.ranks}) > 1
        }
        assert set(world.installed) == with_ring
        for job in view.jobs:
            assert job.ranks
            assert all(rank.rank < job.size for rank in job.ranks)
            assert (job.phase == "joining") == bool(job.missing)
            assert {int(rank.host[1:]) for rank in job.ranks} <= connected
            assert not all(rank.state == "left" for rank in job.ranks)
