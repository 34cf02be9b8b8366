"""A host in a job and its rings: how they are connected, carry messages, break, end, and come again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.host import events
from inaproto.core.host.job import HALTS_SHOWN, HostJob
from inaproto.core.host.operations import BASE, INA, UP, PostMessage, TakeResult, Woke
from inaproto.core.host.rings import links_for, why_connection_failed
from inaproto.core.host.view import Phase
from inaproto.core.rdma.verbs import Completion, CompletionKind, Status
from inaproto.errors import FabricLost, JoinRefused, RankLost, SwitchUnreachable
from inaproto.units import Instant, OpIndex
from inaproto.wire.control_messages import Broken, Gone, Halted, JobStatus, Ready
from inaproto.wire.host_header import Kind
from tests.unit.host_of_ranks import (
    ENDS,
    Shown,
    answer,
    call,
    failed,
    gone,
    halt,
    host_of,
    result,
    running_on,
    shown,
    start,
    unacknowledged_by,
)
from tests.unit.test_host_job import CONFIG, INTO, LINKS, OUT, Host

NO_RECOVERY = replace(CONFIG, recover_ns=0)
BAD = events.MessageArrived(BASE, UP, 3, 7, 100, bytes(40))
LOST = RankLost("rank 3 is lost")
CLOSES = events.CloseLinks(recovers=True)
BEFORE = events.Noted("a rank was halted before it could go on")
TREE: dict[str, Any] = {"path": "overlay", "in_degree": 1, "below": (INTO,)}
LINK_UP = events.LinkReady(BASE)
CUT = Completion(17, CompletionKind.SEND, 0, Status.RETRY_EXCEEDED)
CONNECTION = events.ConnectionFailed(BASE, UP, True, CUT)


def broken(reason: str, progress: int = 0) -> Broken:
    return Broken(job="j", rank=0, ring_id=5, progress=progress, reason=reason)


# --- messages


def test_a_message_is_taken_and_its_receive_is_posted_again() -> None:
    host = running_on(0, path="chain")
    assert [type(action) for action in call(host, 0, nbytes=1000)] == [PostMessage] * 2
    host.now = 4
    actions = host.feed(result(host, last=False, nbytes=728))
    assert actions[0] == TakeResult(1, OpIndex(0), 0, 728)
    assert actions[-1] == events.PostReceive(BASE, UP, 3)
    assert (host.job.progress, host.job.deadline) == (1, 4 + CONFIG.stall_ns)
    actions = host.feed(result(host, 1, nbytes=272))
    assert events.AllReduceDone(OpIndex(0), "chain") in actions
    assert unacknowledged_by(host) == 2
    assert host.feed(events.MessageAcknowledged(BASE, UP, 0)) == []
    assert unacknowledged_by(host) == 1


def test_in_a_tree_a_message_is_of_the_connection_that_it_came_by() -> None:
    host = running_on(0, **TREE)
    call(host, 0, nbytes=4 * 728)
    names = []
    for serial in range(3):
        came = result(host, serial, kind=Kind.ACCUMULATOR, last=False, nbytes=728, rank=1)
        names = [type(action).__name__ for action in host.feed(came._replace(edge=0))]
        assert (names == ["PostReceive"]) is (serial == 2), "the slot of the third is still being sent"
    host.now = 9
    names = [type(action).__name__ for action in host.feed(events.MessageAcknowledged(BASE, 0, 1))]
    assert names == ["Fold", "TakeResult", "PostDown"]
    assert (unacknowledged_by(host), host.job.deadline) == (2, 9 + CONFIG.stall_ns)
    last = result(host, 3, kind=Kind.ACCUMULATOR, nbytes=728, rank=1)
    host.feed(last._replace(edge=0))
    host.feed(events.MessageAcknowledged(BASE, 0, 3))
    view = host.job.view()
    assert (view.path, view.operations_by_path) == ("overlay", {"overlay": 1})


def test_a_wrong_message_breaks_its_ring_and_its_receive_is_not_posted_again() -> None:
    host = running_on(0)
    call(host, 0)
    actions = shown(host.feed(BAD))
    [word] = [word for word in actions if isinstance(word, Broken)]
    assert word.reason.startswith("rank 0 of ring 5 got a wrong message (")
    assert events.PostReceive(BASE, UP, 3) not in actions
    assert host.feed(BAD) == []
    host = running_on(0, config=NO_RECOVERY)
    call(host, 0)
    actions = shown(host.feed(BAD))
    [(_, number, kind, _)] = [it for it in actions if isinstance(it, tuple) and it[0] == "failed"]
    assert (number, kind) == (0, "FabricLost")
    assert events.PostReceive(BASE, UP, 3) not in actions


@pytest.mark.parametrize("config", [CONFIG, NO_RECOVERY])
@pytest.mark.parametrize("event", [BAD, events.MessageAcknowledged(BASE, UP, 0), CONNECTION])
def test_what_comes_of_links_while_there_is_no_ring_is_nothing(event: events.HostEvent, config: Any) -> None:
    assert host_of(0, config=config).feed(event) == [], "before the first"
    halted = running_on(0, config=config)
    halted.feed(halt())
    assert halted.feed(event) == [], "after one that has ended"


# --- connections


def test_a_link_that_nobody_waits_for_says_nothing() -> None:
    assert host_of(0).feed(LINK_UP) == []
    host = host_of(0)
    answer(host, [0])
    assert host.feed(events.LinkReady(INA)) == []
    host.feed(events.JobFailed(LOST))
    assert host.feed(LINK_UP) == []


def test_a_host_in_a_tree_waits_for_one_link() -> None:
    host = host_of(0)
    assert answer(host, [0], **TREE) == [events.ConnectTree(None, (INTO,))]
    assert shown(host.feed(LINK_UP)) == [Ready(job="j", rank=0)]


@pytest.mark.parametrize(
    ("early", "why", "is_early_told"),
    [([], "no route", False), ([CONNECTION], "no route", False), ([CONNECTION], "", True)],
)
def test_a_link_that_is_not_connected_breaks_its_ring_when_that_is_known(
    early: list[events.HostEvent], why: str, is_early_told: bool
) -> None:
    """A request that fails sooner is the reason only if there is no better one."""
    host = host_of(0)
    answer(host, [0])
    for event in [*early, *(replace(CONNECTION, at_out=False) for _ in early)]:
        assert host.feed(event) == []
    host.told.clear()
    host.feed(events.LinkLost(BASE, why) if why else LINK_UP)
    present = host.job.ring
    assert present is not None
    reason = why_connection_failed("j", present, CONNECTION) if is_early_told else f"{host.job}: {why}"
    assert host.told == [broken(reason)]


@pytest.mark.parametrize("config", [CONFIG, NO_RECOVERY])
def test_a_connection_that_fails_later_breaks_its_ring_at_once(config: Any) -> None:
    host = running_on(0, config=config)
    present = host.job.ring
    assert present is not None
    reason = why_connection_failed("j", present, CONNECTION)
    actions = shown(host.feed(CONNECTION))
    if config is CONFIG:
        assert actions[-1] == broken(reason)
    else:
        assert actions == [gone(0, reason), *ENDS, failed(0, FabricLost, reason)]


@pytest.mark.parametrize("ranks", [(0,), (0, 1)])
def test_who_has_left_tells_of_a_connection_that_fails(ranks: tuple[int, ...]) -> None:
    """Others may lack results that come of what it sent last, and nobody sends that again."""
    host = running_on(*ranks, config=NO_RECOVERY)
    for rank in ranks:
        host.feed(events.RankLeft(rank))
    host.told.clear()
    host.feed(CONNECTION)
    present = host.job.ring
    assert present is not None
    assert host.told == [gone(rank, why_connection_failed("j", present, CONNECTION)) for rank in ranks]


# --- rings that end, and those after them


def test_a_halted_host_makes_links_for_the_path_that_it_is_told() -> None:
    plan = "[0,[1,[2,3]]]"
    for path, children in (("chain", 0), ("overlay", 2), ("switch", 0), ("shared", 0)):
        host = running_on(0)
        asked: Shown = [links_for(CONFIG, path, plan, size=4, children=children)]  # type: ignore[arg-type]
        actions = shown(host.feed(halt(path=path, plan=plan, children=children)))
        assert actions == [events.KeepResults((), 0, None), CLOSES, *asked]
        assert host.told == [Halted(job="j", rank=0, ring_id=5, progress=0, out=OUT, into=INTO)]


def test_a_path_that_cannot_be_followed_ends_the_job_here() -> None:
    host = running_on(0)
    *_, last = shown(host.feed(halt(path="chain", plan="[0, 1")))
    [word] = host.told
    assert isinstance(word, Gone)
    assert word.reason.startswith(f"{host.job}: the path chain that its switch names cannot be used here: ")
    assert last == failed(0, JoinRefused, word.reason)


def test_a_halt_of_another_ring_or_once_more_is_nothing() -> None:
    host = running_on(0)
    assert host.feed(halt(4)) == []
    host.feed(halt())
    assert host.feed(halt()) == []
    assert host.feed(start()) == []
    assert host.phase() is Phase.HALTED
    assert host.job.view().recoveries == 1


def test_who_gathers_and_is_halted_waits_for_nobody_any_more() -> None:
    """All have joined; once halted, for whom it waits is of the next ring."""
    host = host_of(0)
    waits = events.Said(JobStatus(job="j", waiting_for=(2, 3)))
    host.feed(waits)
    assert host.job.view().waiting_for == (2, 3)
    asked = links_for(CONFIG, "chain", "", size=4, children=0)
    assert host.feed(halt(5, "chain")) == [events.CloseLinks(), asked]
    assert (host.job.view().waiting_for, host.job.ring_id) == ((), 5)
    host.feed(waits)
    assert host.feed(halt(6, "chain")) == [events.CloseLinks(), asked]
    assert (host.job.view().waiting_for, host.job.ring_id) == ((2, 3), 6)


def again(host: Host, ring_id: int, **fields: Any) -> None:
    """The next ring has connected."""
    answer(host, [0], ring_id, **fields)
    host.feed(LINK_UP)


def test_the_last_ends_of_rings_are_shown_and_all_are_counted() -> None:
    host = running_on(0)
    for number in range(5, 5 + HALTS_SHOWN + 2):
        host.feed(halt(number, reason=f"end {number}"))
        again(host, number + 1)
        host.feed(start(number + 1))
    view = host.job.view()
    assert view.halts == tuple(f"end {number}" for number in range(7, 12))
    assert (view.recoveries, view.phase, view.path) == (7, Phase.RUNNING, "switch")
    assert view.ring is host.job.ring is not None


def test_only_results_of_the_present_ring_are_in_the_slots_of_its_link() -> None:
    host = running_on(0, path="chain")
    call(host, 0, nbytes=3000)
    for serial in (0, 1):
        host.feed(result(host, serial, last=False, nbytes=728))
        host.feed(events.MessageAcknowledged(BASE, UP, 2 * serial))
    (keeps, *_) = host.feed(halt())
    assert isinstance(keeps, events.KeepResults)
    assert ([kept.serial for kept in keeps.results], keeps.since) == ([0, 1], 0)
    answer(host, [0], 6, path="chain", progress=2)
    noted, keeps, *_ = host.feed(halt(6))
    assert noted == BEFORE, "it had not begun"
    assert isinstance(keeps, events.KeepResults)
    assert ([kept.serial for kept in keeps.results], keeps.since) == ([0, 1], 2)


def test_an_all_reduce_that_was_called_between_rings_starts_with_the_next_and_its_clock() -> None:
    host = running_on(0)
    host.feed(halt())
    assert call(host, 0) == []
    again(host, 6)
    host.now = 5
    assert "PostMessage" in [type(action).__name__ for action in host.feed(start(6))]
    assert host.job.deadline == 5 + CONFIG.stall_ns


def test_a_host_that_has_ended_waits_for_nothing() -> None:
    host = running_on(0, 1)
    deadlines = [host.job.deadline]
    call(host, 0)
    deadlines.append(host.job.deadline)
    host.feed(events.JobFailed(LOST))
    deadlines.append(host.job.deadline)
    assert deadlines == [None, CONFIG.stall_ns, None]
    host.now = CONFIG.timeout_ns
    assert host.feed(Woke()) == []


def test_a_job_that_fails_between_rings_before_its_first_is_told_to_the_switch() -> None:
    """Processes that joined anew are in the job's next life, with the link that is closed now."""
    host = host_of(0)
    host.feed(halt())
    host.told.clear()
    ends = failed(0, RankLost, str(LOST))
    assert shown(host.feed(events.JobFailed(LOST))) == [gone(0, str(LOST)), *ENDS, ends]
    for later in (None, halt()):
        host = running_on(0)
        if later is not None:
            host.feed(later)
        assert shown(host.feed(events.JobFailed(LOST))) == [*ENDS, ends]


def test_links_that_are_made_for_nobody_are_given_back() -> None:
    host = running_on(0)
    job = host.job
    job.step(halt(), Instant(0))
    job.step(events.JobFailed(LOST), Instant(0))
    assert job.step(LINKS, Instant(0)) == [events.CloseLinks()]


# --- the switch is lost, and back


def test_ranks_that_had_no_ring_are_announced_to_the_next_switch_by_others() -> None:
    host = host_of(0, 1)
    lost = events.SwitchLost(SwitchUnreachable("gone"))
    assert host.feed(lost) == [*ENDS, events.AnnounceAgain(0), events.AnnounceAgain(1)]
    assert host.feed(lost) == []
    assert host.feed(events.SwitchBack((1,))) == []


def test_without_recovery_the_job_ends_with_its_switch() -> None:
    host = running_on(0, config=NO_RECOVERY)
    lost = events.SwitchLost(SwitchUnreachable("gone"))
    assert shown(host.feed(lost)) == [*ENDS, failed(0, SwitchUnreachable, "gone")]


def test_a_host_without_a_switch_has_no_ring_and_a_halted_one_had_none_before() -> None:
    lost = events.SwitchLost(SwitchUnreachable("gone"))
    host = running_on(0)
    assert not host.job.is_away
    assert host.feed(lost) == [events.KeepResults((), 0, None), CLOSES, events.ForgetNic()]
    assert host.job.view().halts == ("gone",)
    assert host.feed(lost) == []
    halted = running_on(0)
    halted.feed(halt())
    assert halted.feed(lost) == [BEFORE, CLOSES, events.ForgetNic()]


def test_a_host_that_is_back_waits_no_more_and_says_so_in_its_next_ring() -> None:
    host = running_on(0)
    job: HostJob = host.job
    job.step(events.SwitchLost(SwitchUnreachable("gone")), Instant(0))
    [opens] = job.step(events.SwitchBack((20,)), Instant(1))
    assert (job.phase, job.deadline) == (Phase.JOINING, None)
    assert opens == replace(job.opening, registers=True)
    host.feed(LINKS)
    assert answer(host, [0], 6)[0] == events.Noted("a rank came back from away")
