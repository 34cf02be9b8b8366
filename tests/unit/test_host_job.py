"""A host in a job, event by event: which ring a word of the switch is of, and what is said of an end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.host import events
from inaproto.core.host.config import HostConfig
from inaproto.core.host.hearing import Hearing
from inaproto.core.host.job import HostJob
from inaproto.core.host.operation_watch import ANSWER_NS
from inaproto.core.host.operations import BASE, INA, Operation, Woke
from inaproto.core.host.view import Phase
from inaproto.errors import FabricLost, LocalMisuse, OperationTimeout, RankLost, SwitchUnreachable
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
from inaproto.wire.messages.ina import InaPark, InaParked, InaStands

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

    def __init__(self, config: HostConfig = CONFIG) -> None:
        self.now = 0
        self.job = HostJob(config)
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


def test_for_the_next_switch_links_are_made_and_memory_is_registered_anew() -> None:
    host = running()
    host.feed(events.SwitchLost(SwitchUnreachable("gone")))
    assert host.job.deadline == CONFIG.recover_ns
    assert host.feed(events.SwitchBack((2,))) == [replace(host.job.opening, registers=True)]


def test_a_ring_of_a_switch_that_names_no_mtu_has_the_one_that_was_announced() -> None:
    """One of the release before takes the place of a switch whose path carried more."""
    host = Host(replace(CONFIG, mtu=4096, message_packets=2, mtu_fits=True))
    host.join()
    host.hears(replace(ring(5), mtu=4096))
    host.feed(events.LinkReady(BASE))
    host.hears(Start(job="j", ring_id=5))
    host.feed(events.SwitchLost(SwitchUnreachable("gone")))
    host.hearing = Hearing("boot")
    host.told.clear()
    host.feed(events.SwitchBack((2,), 1024))
    [member] = host.told
    assert isinstance(member, Member)
    assert (member.mtu, member.message_packets) == (1024, 8)
    host.hears(ring(6, request=2))
    assert host.job.engine is not None
    config = host.job.engine.config
    assert (config.mtu, config.message_packets) == (1024, 8)


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


# --- a ring in the switches beside that of the hosts

TWO_LINKS = events.LinksOpened(events.LinkAddresses(OUT, INTO), events.LinkAddresses(OUT, INTO))
BESIDE = replace(ring(5), path="shared", ina_ring_id=9, ina_successor=INTO, ina_predecessor=OUT)
CALLED = Operation(OpIndex(0), Dtype.F32, Op.SUM, 400, 1)


def beside() -> Host:
    """Both its rings are connected."""
    host = Host()
    host.feed(TWO_LINKS)
    host.join()
    host.hears(BESIDE)
    assert host.feed(events.LinkReady(BASE)) == []
    assert host.feed(events.LinkReady(INA)) == [events.Tell(Ready(job="j", rank=0))]
    return host


def stands(epoch: int) -> InaStands:
    return InaStands(job="j", ring_id=9, epoch=epoch)


WITHOUT = [events.CloseIna(), events.Noted("a job began without the ring in the switches")]
PARKED = events.Noted("a job began with its second ring parked")
STOOD = events.BeginTurns(stands(2), 2, OpIndex(0))
HAS_TWO, BEGUN = events.Noted("a job had two rings"), events.RanksBegun(5)


@pytest.mark.parametrize(
    ("start", "actions", "path", "is_parked"),
    [
        ({"ina_ring_id": 9, "ina_epoch": 2}, [HAS_TWO, STOOD], "shared", False),
        ({"ina_ring_id": 9, "ina_parked": True}, [HAS_TWO, PARKED], "shared", True),
        ({}, WITHOUT, "chain", False),
        ({"ina_ring_id": 8}, WITHOUT, "chain", False),
    ],
)
def test_a_job_begins_with_the_ring_in_the_switches_or_without(
    start: dict[str, Any], actions: list[events.HostAction], path: str, is_parked: bool
) -> None:
    host = beside()
    assert host.feed(events.Said(Start(job="j", ring_id=5, **start))) == [*actions, BEGUN]
    view = host.job.view()
    assert (view.path, view.is_parked) == (path, is_parked)
    assert (view.ina_ring_id, host.job.ina_stands) == ((9, True) if path == "shared" else (None, False))


def test_the_ring_in_the_switches_is_parked_stands_again_and_ends_with_that_of_the_hosts() -> None:
    host = beside()
    host.hears(Start(job="j", ring_id=5, ina_ring_id=9))
    park = InaPark(job="j", ring_id=9, epoch=3)
    assert host.feed(events.Said(replace(park, ring_id=8))) == []
    assert host.feed(events.Said(park)) == [events.ParkTurns(park)]
    said = InaParked(job="j", rank=0, ring_id=9, epoch=3, messages=0)
    assert host.feed(events.TurnsParked(park)) == [events.Tell(said)]
    assert host.job.view().is_parked
    assert host.feed(events.Said(replace(stands(3), ring_id=8))) == []
    assert host.feed(events.Said(stands(3))) == [events.BeginTurns(stands(3), 2, OpIndex(0))]
    ended = host.feed(events.Said(Halt(job="j", ring_id=5, path="switch", reason="x")))
    assert ended[:3] == [events.EndTurns(), events.KeepResults((), 0, 9), events.CloseLinks(recovers=True)]


def test_an_all_reduce_that_goes_another_way_elsewhere_is_asked_about_at_once() -> None:
    host = beside()
    host.hears(Start(job="j", ring_id=5, ina_ring_id=9))
    host.feed(events.RankCalled(0, CALLED))
    asked = OpStarted(job="j", rank=0, op_index=0, signature=1, nbytes=400, path="chain", unlike="h1")
    assert host.feed(events.BindingDiffers(OpIndex(0), "h1")) == [events.Tell(asked)]
    assert host.feed(events.BindingDiffers(OpIndex(1), "h1")) == []


# --- rings that end, and what is for nobody


def test_a_ring_that_ends_keeps_what_others_may_lack() -> None:
    host = running()
    actions = host.feed(events.Said(Halt(job="j", ring_id=5, path="chain", reason="it broke")))
    assert actions[:2] == [events.KeepResults((), 0, None), events.CloseLinks(recovers=True)]
    [halted] = [word for word in host.told if isinstance(word, Halted)]
    assert halted == Halted(job="j", rank=0, ring_id=5, progress=0, out=OUT, into=INTO)
    assert host.job.view().halts == ("it broke",)
    assert host.feed(events.NicRefused("queue full")) == [], "it is in no ring"


def test_a_ring_that_breaks_is_told_of_with_what_broke_it() -> None:
    host = running()
    broke, log = host.feed(events.NicRefused("no memory"))[::-1]
    text = "rank 0 of job 'j' (pid 7): no memory"
    assert log == events.Log(f"rank 0 of job 'j' (pid 7): its ring broke, the job goes on by another: {text}")
    assert broke == events.Tell(Broken(job="j", rank=0, ring_id=5, progress=0, reason=text))
    assert Host().feed(events.NicRefused("no memory")) == [], "there is no ring"


def test_an_answer_that_nobody_waits_for_makes_no_ring() -> None:
    host = running()
    for answer in (ring(6), ring(6, request=2)):
        assert host.feed(events.Answered(answer, "boot")) == []
    assert host.job.ring_id == 5


def test_a_rank_that_may_not_call_is_refused_by_name() -> None:
    host = Host()
    host.join()
    with pytest.raises(LocalMisuse, match=r"rank 0 of rank 0 of job 'j' .* calls all-reduce 0, and may not"):
        host.feed(events.RankCalled(0, CALLED))


@pytest.mark.parametrize(
    ("phase", "has_started", "may"),
    [
        (Phase.JOINING, True, True),
        (Phase.CONNECTING, True, True),
        (Phase.HALTED, False, True),
        (Phase.HALTED, True, False),
        (Phase.RUNNING, True, False),
    ],
)
def test_a_process_may_give_up_as_long_as_nobody_depends_on_it(
    phase: Phase, has_started: bool, may: bool
) -> None:
    job = HostJob(CONFIG)
    job.phase, job.has_started = phase, has_started
    assert job.may_have_orphans is may


def test_of_a_job_that_has_ended_no_rank_ends_again() -> None:
    host = running()
    host.feed(events.Stopped("stop"))
    assert host.phase() is Phase.ENDED
    assert host.feed(events.RankGone(0, "its process died")) == []
