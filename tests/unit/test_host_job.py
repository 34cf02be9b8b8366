"""A host in a job, event by event: which ring a word of the switch is of, and what is said of an end."""

from __future__ import annotations

from dataclasses import replace

from inaproto.core.host import events
from inaproto.core.host.config import HostConfig
from inaproto.core.host.engines.two_paths import BASE
from inaproto.core.host.hearing import Hearing
from inaproto.core.host.job import HostJob
from inaproto.core.host.operation_watch import ANSWER_NS
from inaproto.core.host.operations import Operation, Woke
from inaproto.core.host.view import Phase
from inaproto.errors import FabricLost, OperationTimeout, RankLost, SwitchUnreachable
from inaproto.units import MS, Instant, OpIndex, S
from inaproto.wire.control_messages import (
    Broken,
    Failed,
    Gone,
    Halt,
    Halted,
    IntoAddress,
    JobStatus,
    Member,
    Message,
    OpStarted,
    OutAddress,
    Ready,
    Ring,
    Start,
)
from inaproto.wire.ina_header import Dtype, Op
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
LINKS = events.LinksOpened(events.LinkAddresses(OUT, INTO))
JOIN = Join(id=1, job="j", rank=0, size=2, key="", pid=7)
LOST = RankLost("rank 1 is lost")


def ring(ring_id: int, request: int = 1, progress: int = 0) -> Ring:
    return Ring(
        id=request,
        job="j",
        ring_id=ring_id,
        epoch=1,
        ring_key=1,
        position=0,
        successor=INTO,
        predecessor=OUT,
        peers=("h0", "h1"),
        ranks=((0,), (1,)),
        progress=progress,
    )


class Host:
    """Rank 0 of a job of two, and what its host was told by one connection to the switch."""

    def __init__(self) -> None:
        self.now = 0
        self.job = HostJob(CONFIG)
        self.hearing = Hearing("boot")
        self.told: list[Message] = []
        self.failed: list[int] = []
        self.feed(LINKS)

    def feed(self, event: events.HostEvent) -> list[events.HostAction]:
        actions = self.job.step(event, Instant(self.now))
        self.told += [action.message for action in actions if isinstance(action, events.Tell)]
        self.failed += [action.number for action in actions if isinstance(action, events.RankFailed)]
        if any(isinstance(action, events.OpenLinks) for action in actions):
            self.feed(LINKS)
        return actions

    def hears(self, message: Message) -> None:
        for _, event in self.hearing.heard(message, [] if self.job.has_ended else [self.job]):
            self.feed(event)

    def phase(self) -> Phase:
        return self.job.phase

    def join(self, request: int = 1) -> None:
        self.feed(events.RankJoined(JOIN, request))

    def runs(self, ring_id: int = 5, request: int = 1) -> None:
        """In a ring in which all are ready."""
        self.hears(ring(ring_id, request))
        self.feed(events.LinkReady(BASE))
        self.hears(Start(job="j", ring_id=ring_id))
        assert self.phase() is Phase.RUNNING

    def comes_back(self) -> None:
        """It has lost its switch, and has another connection."""
        self.feed(events.SwitchLost(SwitchUnreachable("gone")))
        assert self.phase() is Phase.AWAY
        self.hearing = Hearing("boot")
        self.told.clear()
        self.feed(events.SwitchBack((2,)))


def running() -> Host:
    host = Host()
    host.join()
    host.runs()
    return host


def test_ranks_that_gather_are_not_halted_with_the_ring_before_them() -> None:
    host = Host()
    host.join()
    host.hears(replace(ring(5), id=99))  # a rank that was here before was in it
    host.hears(Halt(job="j", ring_id=5, path="chain", reason="it broke"))
    assert host.phase() is Phase.JOINING
    host.hears(Halt(job="j", ring_id=6, path="chain", reason="links are to be larger"))
    assert host.phase() is Phase.HALTED


def test_ranks_that_gather_do_not_fail_with_the_ring_before_them() -> None:
    host = Host()
    host.join()
    host.hears(replace(ring(5), id=99))
    host.hears(Failed(job="j", ring_id=5, code=RankLost.code, message="rank 0 is lost"))
    assert host.phase() is Phase.JOINING
    assert host.failed == []


def test_who_was_halted_is_asked_for_other_links_and_fails_with_that_ring() -> None:
    """The path of the next ring may change once more, when all have said how far they are."""
    host = running()
    host.hears(Halt(job="j", ring_id=5, path="chain", reason="it broke"))
    host.hears(Halt(job="j", ring_id=6, path="switch", reason="it broke"))
    assert [word.ring_id for word in host.told if isinstance(word, Halted)] == [5, 6]
    other = HostJob(CONFIG)
    other.step(LINKS, Instant(0))
    failed = Failed(job="j", ring_id=6, code=RankLost.code, message="rank 1 is lost")
    routed = host.hearing.heard(failed, [host.job, other])
    assert [type(event) for _, event in routed] == [events.JobFailed, events.JoiningFailed]


def test_a_process_that_joins_beside_a_halted_ring_that_never_started_does_not_fail_with_it() -> None:
    before, now = Host(), HostJob(CONFIG)
    before.join()
    before.hears(Halt(job="j", ring_id=6, path="chain", reason="links are to be larger"))
    now.step(LINKS, Instant(0))
    now.step(events.RankJoined(JOIN, 2), Instant(0))
    again = Halt(job="j", ring_id=7, path="overlay", reason="links are to be those of a tree")
    assert [number for number, _ in before.hearing.heard(again, [now, before.job])] == [1]
    failed = Failed(job="j", ring_id=6, code=RankLost.code, message="rank 1 is lost")
    routed = before.hearing.heard(failed, [before.job, now])
    assert events.JobUnknown not in [type(event) for _, event in routed]
    for number, event in routed:
        (before.job, now)[number].step(event, Instant(0))
    assert (before.phase(), now.phase) == (Phase.ENDED, Phase.JOINING)


def test_a_failure_of_another_ring_is_not_that_of_this_one() -> None:
    host = running()
    host.hears(Failed(job="j", ring_id=4, code=RankLost.code, message="rank 0 is lost"))
    assert host.phase() is Phase.RUNNING
    assert host.failed == []
    host.hears(Failed(job="j", ring_id=5, code=RankLost.code, message="rank 1 is lost"))
    assert host.phase() is Phase.ENDED
    assert host.failed == [0]


def test_ranks_that_came_back_fail_with_the_present_ring_of_their_job() -> None:
    """They may not have heard of it."""
    host = running()
    host.comes_back()
    host.hears(Failed(job="j", ring_id=9, code=RankLost.code, message="rank 1 is lost"))
    assert host.failed == [0]


def test_a_rank_that_comes_back_says_how_far_it_is() -> None:
    host = running()
    host.comes_back()
    [member] = host.told
    assert isinstance(member, Member)
    assert (member.id, member.progress, member.boot_id) == (2, 0, "boot")
    host.runs(6, request=2)
    assert not host.job.has_come_back


def test_the_next_switch_hears_of_a_rank_that_was_lost_while_there_was_none() -> None:
    host = running()
    host.feed(events.SwitchLost(SwitchUnreachable("gone")))
    host.told.clear()
    host.feed(events.RankGone(0, "its process died"))
    assert host.told == []
    host.feed(events.SwitchBack((2,)))
    assert host.told == [Gone(job="j", rank=0, reason="its process died")]


def stuck(host: Host) -> None:
    """An all-reduce that makes no progress, and is overdue."""
    host.feed(events.RankCalled(0, Operation(OpIndex(0), Dtype.F32, Op.SUM, 400, 1)))
    host.told.clear()
    host.now += CONFIG.timeout_ns
    host.feed(Woke())
    assert OpStarted in [type(word) for word in host.told]
    assert host.failed == []


def test_an_overdue_all_reduce_is_given_up_when_the_switch_says_for_whom_it_waits() -> None:
    host = running()
    stuck(host)
    actions = host.feed(events.Said(JobStatus(job="j", op_index=0, waiting_for=(1,))))
    [error] = [action.error for action in actions if isinstance(action, events.RankFailed)]
    assert isinstance(error, OperationTimeout)
    assert "waits for rank 1" in str(error)


def test_an_overdue_all_reduce_is_given_up_though_the_switch_says_nothing() -> None:
    host = running()
    stuck(host)
    assert host.job.deadline == host.now + CONFIG.stall_ns
    host.now += ANSWER_NS - 1
    host.feed(Woke())
    assert host.failed == []
    host.now += 1
    host.feed(Woke())
    assert host.failed == [0]


def test_a_ring_breaks_once_and_is_not_ready_any_more() -> None:
    host = Host()
    host.join()
    host.hears(ring(5))
    host.told.clear()
    host.feed(events.NicRefused("no memory"))
    host.feed(events.NicRefused("no memory"))
    host.feed(events.LinkReady(BASE))
    assert [type(word) for word in host.told] == [Broken]


def test_a_host_without_recovery_ends_with_its_first_ring() -> None:
    host = Host()
    host.job = HostJob(replace(CONFIG, recover_ns=0))
    host.feed(LINKS)
    host.join()
    host.runs()
    actions = host.feed(events.NicRefused("no memory"))
    [error] = [action.error for action in actions if isinstance(action, events.RankFailed)]
    assert isinstance(error, FabricLost)


def test_a_host_that_ends_gives_everything_back_once() -> None:
    host = running()
    actions = host.feed(events.JobFailed(LOST))
    assert sum(isinstance(action, events.CloseLinks) for action in actions) == 1
    assert sum(isinstance(action, events.Ended) for action in actions) == 1
    assert host.feed(events.JobFailed(LOST)) == []
    assert host.feed(events.Stopped("stop")) == []
    assert Ready in [type(word) for word in host.told]
