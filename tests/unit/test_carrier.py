"""Carries out what ranks of one host have called, event by event (NetReduce 3.1, 3.4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.host.carrier import Carrier, Unusable, Wait
from inaproto.core.host.config import HostConfig
from inaproto.core.host.engines.two_paths import Binding
from inaproto.core.host.events import AllReduceDone, HostAction, Log, Noted, SumLocally, Tell
from inaproto.core.host.operations import (
    BASE,
    UP,
    Operation,
    OperationFailed,
    PostMessage,
    ResultArrived,
    RingBroken,
    SendCompleted,
    Stalled,
    TakeResult,
)
from inaproto.core.host.ranks import HostedRank, HostedRanks
from inaproto.errors import FabricLost, JobError, OperationTimeout, RankLost
from inaproto.units import MS, Instant, OpIndex, S
from inaproto.wire.control_messages import IntoAddress, JobStatus, OpStarted, OutAddress, Ring, RingPath
from inaproto.wire.ina_header import FLAG_RESULT, Dtype, InaHeader, Op
from inaproto.wire.messages.client import Join

CONFIG = HostConfig(
    job="j",
    host="h0",
    mtu=256,
    message_packets=3,
    window_messages=2,
    stall_ns=10 * MS,
    timeout_ns=100 * MS,
    recover_ns=S,
)
OUT = OutAddress(mac=bytes(6), ip=bytes(4), qpn=17, psn=0)
INTO = IntoAddress(mac=bytes(6), ip=bytes(4), qpn=18, psn=0, va=0, rkey=1, slots=4, slot_bytes=768)
ALONE, BESIDE_ONE, TWO_HOSTS = ((0, 1),), ((0, 2), (1,)), ((0,), (1,))
LATE = Noted("a rank of a host came late")


def carrier(*numbers: int, size: int, recover_ns: int = S) -> Carrier:
    ranks = HostedRanks()
    for number in numbers:
        join = Join(id=1, job="j", rank=number, size=size, key="", pid=7 + number)
        ranks.add(HostedRank(join, number))
    return Carrier(replace(CONFIG, recover_ns=recover_ns), ranks)


def ring(ranks: tuple[tuple[int, ...], ...], path: RingPath = "switch", progress: int = 0) -> Ring:
    return Ring(
        id=1,
        job="j",
        ring_id=5,
        epoch=1,
        ring_key=1,
        position=0,
        successor=INTO,
        predecessor=OUT,
        peers=tuple(f"h{number}" for number in range(len(ranks))),
        ranks=ranks,
        path=path,
        progress=progress,
    )


def begun(
    ranks: tuple[tuple[int, ...], ...] = BESIDE_ONE, path: RingPath = "switch", recover_ns: int = S
) -> Carrier:
    """The ranks of the first host, in a ring that runs."""
    made = carrier(*ranks[0], size=sum(map(len, ranks)), recover_ns=recover_ns)
    assert made.connect(ring(ranks, path)) == []
    assert made.start(Instant(0)) == []
    return made


def operation(index: int = 0, nbytes: int = 400) -> Operation:
    return Operation(OpIndex(index), Dtype.F32, Op.SUM, nbytes, 1)


def asks(
    rank: int, index: int = 0, nbytes: int = 400, path: str | None = None, unlike: str | None = None
) -> Tell:
    return Tell(
        OpStarted(job="j", rank=rank, op_index=index, signature=1, nbytes=nbytes, path=path, unlike=unlike)  # type: ignore[arg-type]
    )


def state(ours: Carrier) -> tuple[bool, bool, Wait | None]:
    """Whether it waits for ranks here, whether it is busy, and what has to make progress."""
    return ours.waits_here, ours.is_busy, ours.wait


def posted(actions: list[HostAction]) -> list[tuple[int, int]]:
    """Operation and bytes of each message."""
    return [(int(one.op_index), one.nbytes) for one in actions if isinstance(one, PostMessage)]


@pytest.mark.parametrize(
    ("ranks", "path", "expected"),
    [
        (((0,),), "switch", "local"),
        (ALONE, "switch", "local"),
        (BESIDE_ONE, "switch", "switch"),
        (BESIDE_ONE, "chain", "chain"),
        (BESIDE_ONE, "ring", "ring"),
        (BESIDE_ONE, "shared", "chain"),
    ],
)
def test_by_which_path_operations_go(
    ranks: tuple[tuple[int, ...], ...], path: RingPath, expected: str
) -> None:
    before = carrier(*ranks[0], size=sum(map(len, ranks)))
    assert before.done_path == ("local" if ranks == ((0,),) else "switch"), "before there is a ring"
    assert begun(ranks, path).done_path == expected


def test_ranks_of_a_job_that_has_no_other_host_sum_among_themselves() -> None:
    ours = begun(ALONE)
    assert state(ours) == (False, False, None)
    assert ours.call(0, operation(), Instant(1)) == []
    assert state(ours) == (True, False, Wait(operation(), messages=1, results=0, since=Instant(1)))
    assert ours.call(1, operation(), Instant(2)) == [LATE, SumLocally(operation())]
    assert state(ours) == (False, True, None)
    assert ours.call(0, operation(1), Instant(2)) == []
    assert (*state(ours), ours.deadline) == (False, True, None, None), "the sum is awaited first"
    assert ours.summed(OpIndex(1), Instant(3)) == [], "another one is under way"
    assert ours.summed(OpIndex(0), Instant(3)) == [AllReduceDone(OpIndex(0), "local")]
    assert state(ours) == (True, False, Wait(operation(1), messages=1, results=0, since=Instant(3)))
    assert ours.deadline == 3 + CONFIG.stall_ns, "from when it had nothing else to do"
    assert ours.done_by == {"local": 1}


def test_a_rank_that_is_alone_has_its_result_at_once() -> None:
    ours = begun(((0,),))
    assert ours.call(0, operation(), Instant(1)) == [AllReduceDone(OpIndex(0), "local")]


def test_the_sum_of_a_host_goes_to_the_others() -> None:
    ours = begun()
    assert ours.call(0, operation(), Instant(1)) == []
    actions = ours.call(2, operation(), Instant(2))
    assert actions[0] == LATE
    assert posted(actions) == [(0, 400)]
    assert ours.wait == Wait(operation(), messages=1, results=0, since=Instant(2))
    assert ours.call(2, operation(1, 1200), Instant(3)) == []
    assert posted(ours.call(0, operation(1, 1200), Instant(3))) == [(1, 728)], "what the window takes of it"
    assert ours.wait == Wait(operation(), messages=1, results=0, since=Instant(2))


def test_ranks_of_one_host_that_differ_are_told_of_at_once() -> None:
    ours = begun()
    assert ours.call(2, operation(), Instant(1)) == []
    assert ours.call(0, operation(nbytes=404), Instant(2)) == [
        Noted("ranks of one host disagreed"),
        asks(0, nbytes=404),
        asks(2),
    ]


def test_a_wait_for_ranks_of_the_same_host_is_reported() -> None:
    ours = begun()
    ours.call(2, operation(), Instant(1))
    assert ours.woke(Instant(10 * MS)) == []
    assert ours.woke(Instant(10 * MS + 1)) == [
        Noted("an all-reduce stalled for ranks of one host"),
        asks(2),
        Stalled(operation(), 10 * MS, messages=1, results=0),
    ]
    assert ours.watch.stall == "0 of 1 results, no progress for 10 ms"
    ours.woke(Instant(100 * MS + 1))
    ours.heard(JobStatus(job="j", op_index=0, waiting_for=(0,)), Instant(101 * MS))
    assert isinstance(ours.verdict, OperationTimeout)
    assert str(ours.verdict).startswith("ranks 0, 2 of job 'j' (pids 7, 9): all-reduce 0 did not end")


def test_for_whom_an_all_reduce_waits_is_logged_once() -> None:
    ours = begun()
    status = JobStatus(job="j", op_index=0, waiting_for=(1, 2))
    assert ours.heard(replace(status, op_index=None), Instant(0)) == [], "while it gathers"
    assert ours.watch.waiting_for == (1, 2)
    for number in (0, 2):
        ours.call(number, operation(), Instant(1))
    text = "ranks 0, 2 of job 'j' (pids 7, 9): all-reduce without progress: waits for rank 1"
    assert ours.heard(status, Instant(2)) == [Log(text)]
    assert ours.heard(status, Instant(3)) == []
    assert ours.heard(replace(status, op_index=1, waiting_for=(0,)), Instant(3)) == [], "another one"
    assert ours.verdict is None


@pytest.mark.parametrize(
    ("recover_ns", "kind", "then"),
    [(S, Unusable, "the ring cannot go on"), (0, FabricLost, "report this if it comes back")],
)
def test_a_ring_that_breaks_is_left_for_another_or_ends_its_job(
    recover_ns: int, kind: type[Unusable | JobError], then: str
) -> None:
    ours = begun(recover_ns=recover_ns)
    for number in (0, 2):
        ours.call(number, operation(), Instant(1))
    actions = ours.step(ResultArrived(0, 3, b""), Instant(2))
    assert [one.code for one in actions if isinstance(one, RingBroken)] == [FabricLost.code]
    text = ours.verdict.reason if isinstance(ours.verdict, Unusable) else str(ours.verdict)
    assert isinstance(ours.verdict, kind)
    assert text.startswith("rank 0 of ring 5 got a wrong message")
    assert text.endswith(f"{then}; places in this ring are of hosts: 0 is h0 (ranks 0, 2), 1 is h1 (rank 1)")


def test_operations_of_a_job_that_fails_end_with_its_error() -> None:
    ours = begun()
    for number in (0, 2):
        ours.call(number, operation(), Instant(1))
    failed = OperationFailed(OpIndex(0), RankLost.code, "rank 1 is lost")
    assert ours.fail(RankLost("rank 1 is lost"), Instant(2)) == [failed]
    assert ours.verdict is None
    alone = begun(ALONE)
    for number in (0, 1):
        alone.call(number, operation(), Instant(1))
    alone.fail(RankLost("rank 1 is lost"), Instant(2))
    assert not alone.is_busy


def test_operations_go_on_in_the_next_ring() -> None:
    ours = begun(TWO_HOSTS, "chain")
    ours.call(0, operation(), Instant(1))
    ours.halt()
    assert ours.connect(ring(TWO_HOSTS, "chain")) == []
    assert ours.resumes
    actions = ours.start(Instant(3))
    assert actions[0] == Noted("a job went on in another ring")
    assert posted(actions) == [(0, 400)]
    assert not ours.resumes


def test_an_all_reduce_that_goes_by_another_path_elsewhere_is_asked_about() -> None:
    ours = begun(BESIDE_ONE, "shared")
    for number in (0, 2):
        ours.call(number, operation(), Instant(1))
    assert ours.ask(Instant(2), unlike="h1") == [asks(number, path="chain", unlike="h1") for number in (0, 2)]
    assert ours.answered(OpIndex(0), Binding(BASE), Instant(3)) == [], "it is bound already"
    plain = begun()
    for number in (0, 2):
        plain.call(number, operation(), Instant(1))
    assert plain.ask(Instant(2), unlike="h1") == [asks(number, unlike="h1") for number in (0, 2)]
    assert plain.answered(OpIndex(0), Binding(BASE), Instant(3)) == []


@pytest.mark.parametrize("path", ["switch", "chain"])
def test_several_acknowledgements_are_the_same_as_each_after_the_other(path: RingPath) -> None:
    together, apart = begun(TWO_HOSTS, path), begun(TWO_HOSTS, path)
    ids = []
    for made in (together, apart):
        called = made.call(0, operation(nbytes=5000), Instant(0))
        ids = [int(it.msg_id) for it in called if isinstance(it, PostMessage)] or [0, 2]
    one_by_one = [it for msg_id in ids for it in apart.step(SendCompleted(msg_id), Instant(0))]
    assert together.exchanged(BASE, UP, ids, (), Instant(0)) == one_by_one
    assert together.engine is not None
    assert apart.engine is not None
    assert together.engine.view() == apart.engine.view()
    assert together.engine.view().unacknowledged == 0


@pytest.mark.parametrize("path", ["switch", "chain"])
def test_several_results_are_the_same_as_each_after_the_other(path: RingPath) -> None:
    together, apart = begun(TWO_HOSTS, path), begun(TWO_HOSTS, path)
    for made in (together, apart):
        made.call(0, operation(), Instant(0))
    came = [(1, 440, bytes(40)), (3, 440, bytes(range(40)))]
    one_by_one = [
        it
        for imm, nbytes, header in came
        for it in apart.step(ResultArrived(imm, nbytes, header), Instant(5))
    ]
    assert one_by_one
    assert together.exchanged(BASE, UP, (), came, Instant(5)) == one_by_one
    assert isinstance(together.verdict, Unusable)


def test_a_result_is_taken_at_its_time() -> None:
    made = begun(TWO_HOSTS)
    (post,) = [it for it in made.call(0, operation(), Instant(0)) if isinstance(it, PostMessage)]
    header = InaHeader.decode(post.header)
    came = replace(header, flags=header.flags | FLAG_RESULT, rank=1 - header.rank).encode()
    found = made.exchanged(BASE, UP, (0,), ((0, 440, came),), Instant(5))
    assert [type(it) for it in found] == [TakeResult, AllReduceDone]
    assert made.engine is not None
    assert made.engine.operations.since == 5


def test_a_host_without_a_ring_has_nothing_to_be_acknowledged() -> None:
    assert carrier(0, size=2).exchanged(BASE, UP, (0, 1), (), Instant(0)) == []
