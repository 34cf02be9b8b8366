"""The ranks of a host in a job: how they join and leave, what is said of one that is lost, and to whom."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from inaproto.core.host import events
from inaproto.core.host.operations import BASE, UP, Operation, PostMessage, Woke
from inaproto.core.host.view import Phase
from inaproto.errors import FabricLost, JobError, JoinRefused, LocalMisuse, RankLost, SwitchUnreachable
from inaproto.units import OpIndex, S
from inaproto.wire.control_messages import Closed, Halt, Left, Member, OpStarted, Ready, Start
from inaproto.wire.ina_header import Dtype, Op
from tests.unit.host_of_ranks import (
    ENDS,
    alone,
    answer,
    call,
    failed,
    gone,
    host_of,
    result,
    running_on,
    shown,
)
from tests.unit.test_host_job import CONFIG, INTO, JOIN, OUT, Host

LOST = RankLost("rank 3 is lost")
NO_RECOVERY = replace(CONFIG, recover_ns=0)
PLACE = "rank {} (h0, pid {}) of job 'j' is lost: {}"
UNUSABLE = "the switch's ring {}cannot be used here: "


def left(number: int, operations: int) -> Left:
    return Left(job="j", rank=number, operations=operations)


# --- joining


def test_a_rank_is_announced_as_it_asked_to_join() -> None:
    host = Host()
    view = host.job.view()
    assert (view.phase, view.recoveries, view.operations, view.wait) == (Phase.JOINING, 0, None, None)
    assert (host.job.deadline, host.job.ring_id) == (None, None)
    join = replace(JOIN, size=3, pid=9, path="ring", exact_plan=False, elastic=True)
    member = Member(
        id=4, job="j", rank=0, size=3, key="", pid=9, host="h0", mtu=256, window_messages=2,
        message_packets=3, out=OUT, into=INTO, path="ring", exact_plan=False, elastic=True,
    )  # fmt: skip
    assert host.feed(events.RankJoined(join, 4)) == [events.Tell(member)]
    assert (member.progress, member.boot_id, member.left_after) == (None, "", None)


def test_ranks_are_named_together() -> None:
    assert str(host_of(2, 0).job) == "ranks 0, 2 of job 'j' (pids 11, 10)"


@pytest.mark.parametrize("phase", [Phase.CONNECTING, Phase.RUNNING, Phase.JOINING])
def test_nobody_joins_ranks_that_have_a_ring_or_had_one(phase: Phase) -> None:
    host = host_of(0) if phase is Phase.CONNECTING else running_on(0)
    if phase is Phase.CONNECTING:
        answer(host, [0])
    elif phase is Phase.JOINING:
        host.comes_back()
    assert host.phase() is phase
    text = f"a rank joins {host.job}, which gathers no more"
    with pytest.raises(LocalMisuse, match=f"^{re.escape(text)}$"):
        host.feed(events.RankJoined(replace(JOIN, rank=1), 30))


def test_a_rank_that_is_not_taken_is_withdrawn_alone_and_the_last_one_ends_the_host() -> None:
    host, refused = host_of(0, 1), JoinRefused("the job has 2 ranks")
    assert host.feed(events.JoinDenied(99, refused)) == [], "nobody asked by that request"
    assert host.feed(events.JoinDenied(10, refused)) == [events.RankFailed(0, refused)]
    assert host.job.ranks.numbers == [1]
    assert shown(host.feed(events.JoinDenied(11, refused)))[1:] == ENDS
    assert host.told == []


def test_a_refusal_that_comes_too_late_is_nothing() -> None:
    host = host_of(0)
    answer(host, [0])
    assert host.feed(events.JoinDenied(10, LOST)) == []
    host.feed(events.Stopped("stop"))
    assert host.feed(events.JoinDenied(10, LOST)) == []


@pytest.mark.parametrize(
    ("elastic", "error", "is_told"),
    [(True, LOST, False), (False, LOST, True), (True, JoinRefused("it is closed"), True)],
)
def test_ranks_that_came_back_and_are_not_taken_end_together(
    elastic: bool, error: JobError, is_told: bool
) -> None:
    """Where the others may go on without the lost rank, these were not lost: the switch is not told so."""
    host = running_on(0, 1, elastic=elastic)
    host.feed(events.SwitchLost(SwitchUnreachable("gone")))
    host.feed(events.SwitchBack((20, 21)))
    actions = shown(host.feed(events.JoinDenied(21, error)))
    ends = [failed(number, type(error), str(error)) for number in (0, 1)]
    words = [gone(number, str(error)) for number in (0, 1)] if is_told else []
    assert actions == [*words, *ENDS, *ends]


# --- answers


def test_a_host_connects_when_all_of_its_ranks_that_the_ring_has_are_answered() -> None:
    host = host_of(0, 1, 2)
    assert answer(host, [0, 1], only=[0]) == []
    connect = events.ConnectLink(BASE, INTO, OUT)
    reason = "its job has begun without it; it asks again"
    assert answer(host, [0, 1], only=[1]) == [events.LetGo(2), connect, gone(2, reason)]
    assert (host.phase(), host.job.ranks.numbers) == (Phase.CONNECTING, [0, 1])
    assert shown(host.feed(events.LinkReady(BASE))) == [Ready(job="j", rank=0)]


def test_answers_of_two_rings_are_not_taken_for_one() -> None:
    host = host_of(0, 1)
    assert answer(host, [0, 1], only=[0]) == []
    assert answer(host, [0, 1], ring_id=6, only=[1]) == []
    assert len(answer(host, [0, 1], ring_id=6, only=[0])) == 1


def test_where_a_job_has_no_other_host_its_ranks_are_ready_at_once() -> None:
    host = host_of(2, 1)
    assert alone(host, [1, 2]) == [Ready(job="j", rank=1)]
    assert shown(host.feed(events.Said(Start(job="j", ring_id=5)))) == [events.RanksBegun(5)]


@pytest.mark.parametrize(
    ("here", "position", "text"), [((7,), 0, "(7,) "), ((0,), 2, "() "), ((0,), 7, "() ")]
)
def test_a_ring_without_the_rank_that_it_is_said_to_is_refused(
    here: tuple[int, ...], position: int, text: str
) -> None:
    host = host_of(0)
    why = f"{host.job}: {UNUSABLE.format(text)}it is without them"
    refused = [gone(0, why), *ENDS, failed(0, JoinRefused, why)]
    assert answer(host, here, only=[0], position=position) == refused


def test_a_ring_that_cannot_be_is_refused_in_words() -> None:
    host = host_of(0)
    order = "a chain follows its ring: the plan [1, 0] has the ranks in another order"
    why = f"{host.job}: {UNUSABLE.format('')}{order}"
    refused = [gone(0, why), *ENDS, failed(0, JoinRefused, why)]
    assert answer(host, [0], path="chain", plan="[1, 0]") == refused
    assert host.phase() is Phase.ENDED


def test_ranks_of_a_ring_that_failed_before_it_was_made_end_and_others_go_on() -> None:
    host = host_of(0, 1, 2)
    answer(host, [0, 1, 2], only=[0, 1])
    assert host.feed(events.JoiningFailed(6, LOST)) == []
    assert host.feed(events.JoiningFailed(5, LOST)) == [events.RankFailed(at, LOST) for at in (0, 1)]
    assert host.job.ranks.numbers == [2]


def test_an_answer_dies_with_its_rank() -> None:
    """One that joins in its place is answered by itself."""
    host = host_of(0, 1)
    answer(host, [0, 1], only=[0])
    host.feed(events.RankGone(0, "died"))
    host.feed(events.RankJoined(replace(JOIN, rank=0, size=4), 30))
    assert answer(host, [0, 1], only=[1]) == []
    assert host.feed(events.JoiningFailed(5, LOST)) == [events.RankFailed(1, LOST)]


# --- leaving


def test_ranks_leave_one_by_one_and_are_closed_when_the_ranks_of_all_hosts_have_left() -> None:
    host = running_on(0, 1)
    closed = events.Said(Closed(job="j", ring_id=5))
    assert shown(host.feed(events.RankLeft(1))) == [left(1, 0)]
    assert host.feed(closed) == [], "not all of these have"
    assert host.phase() is Phase.RUNNING
    assert shown(host.feed(events.RankLeft(0))) == [left(0, 0)]
    assert (host.phase(), host.job.deadline) == (Phase.LEFT, None)
    assert host.feed(events.RankGone(0, "it ended")) == [], "as it said"
    assert shown(host.feed(closed)) == [*ENDS, events.RankClosed(0), events.RankClosed(1)]
    assert host.feed(closed) == []


def test_a_rank_says_after_how_many_all_reduces_it_left() -> None:
    host = running_on(0, 1, path="chain")
    for index in range(3):
        call(host, 0, index)
    for index in range(2):
        call(host, 1, index)
        assert host.job.progress == index
        host.now = 10 + index
        host.feed(result(host, index, op_index=index))
        host.feed(events.MessageAcknowledged(BASE, UP, 2 * index))
    view = host.job.view()
    assert (view.path, view.operations_by_path) == ("chain", {"chain": 2})
    assert host.job.deadline == 11 + CONFIG.stall_ns, "then the third is waited for"
    assert shown(host.feed(events.RankLeft(1))) == [left(1, 2)]
    host.told.clear()
    host.feed(events.RankLeft(0))
    assert host.told[0] == gone(0, "it left while its all-reduce 2 was running")


def test_who_has_left_goes_with_its_host_into_the_next_ring_and_has_left_there() -> None:
    host = running_on(0)
    host.feed(events.RankLeft(0))
    host.feed(events.Said(Halt(job="j", ring_id=5, path="switch", reason="it broke")))
    assert host.phase() is Phase.HALTED
    answer(host, [0], ring_id=6)
    host.feed(events.LinkReady(BASE))
    host.feed(events.Said(Start(job="j", ring_id=6)))
    assert host.phase() is Phase.LEFT


def test_a_rank_that_leaves_a_halted_ring_has_left_it_all_the_same() -> None:
    host = running_on(0)
    host.feed(events.Said(Halt(job="j", ring_id=5, path="switch", reason="it broke")))
    assert shown(host.feed(events.RankLeft(0))) == [left(0, 0)]
    assert host.phase() is Phase.HALTED


def test_a_rank_that_leaves_too_soon_is_lost() -> None:
    host = host_of(0)
    reason = "it left before the job had started"
    assert shown(host.feed(events.RankLeft(0))) == [events.RankEnded(0), gone(0, reason), *ENDS]
    host = running_on(0)
    call(host, 0)
    host.feed(events.RankLeft(0))
    assert host.told == [gone(0, "it left while its all-reduce 0 was running")]
    assert host.feed(events.RankLeft(0)) == [], "it has ended"


def test_a_rank_that_has_left_calls_nothing() -> None:
    host = running_on(0, 1)
    host.feed(events.RankLeft(0))
    with pytest.raises(LocalMisuse, match=r"^rank 0 of ranks 0, 1 .* calls all-reduce 0, and may not$"):
        call(host, 0)


# --- ranks that are lost


def test_a_rank_that_is_lost_while_others_gather_is_withdrawn() -> None:
    host = host_of(0, 1)
    assert shown(host.feed(events.RankGone(1, "died"))) == [events.RankEnded(1), gone(1, "died")]
    assert host.feed(events.RankGone(1, "died")) == [], "it was withdrawn"
    assert host.job.ranks.numbers == [0]
    assert shown(host.feed(events.RankGone(0, "died"))) == [events.RankEnded(0), gone(0, "died"), *ENDS]


@pytest.mark.parametrize("elastic", [False, True])
def test_a_rank_that_is_lost_ends_all_and_is_named_first(elastic: bool) -> None:
    host = running_on(0, 1, elastic=elastic)
    text = PLACE.format(1, 11, "died")
    others = [] if elastic else [gone(0, text)]
    assert shown(host.feed(events.RankGone(1, "died"))) == [
        events.RankEnded(1),
        gone(1, "died"),
        *others,
        *ENDS,
        failed(0, RankLost, text),
    ]
    assert host.feed(events.RankGone(0, "died, too")) == []


def test_what_was_lost_while_there_was_no_switch_is_told_to_the_next_one() -> None:
    host = running_on(0, 1)
    host.feed(events.SwitchLost(SwitchUnreachable("gone")))
    host.told.clear()
    host.feed(events.RankGone(1, "died"))
    host.feed(events.RankGone(0, "died, too"))
    assert host.told == []
    text = PLACE.format(1, 11, "died")
    words = [gone(1, "died"), gone(0, text), gone(0, "died, too", ring_id=5)]
    assert host.job.last_words == words
    assert shown(host.feed(events.SwitchBack((20, 21)))) == words
    assert host.feed(events.SwitchBack((20, 21))) == [], "once"


# --- ends that the host finds itself


@pytest.mark.parametrize(
    ("event", "kind", "text"),
    [
        (events.LinksRefused("no memory"), JoinRefused, "job 'j': host h0 has no room for it: no memory"),
        (events.LinkUnusable("no MTU"), JoinRefused, "{}: the switch's ring cannot be used here: no MTU"),
        (
            events.Faulted("oops"),
            FabricLost,
            "{}: a fault in the host daemon ended it: oops; please report it",
        ),
        (events.JobUnknown(LOST), RankLost, "rank 3 is lost"),
    ],
)
def test_what_ends_a_job_here_is_told_to_the_switch_and_to_each_rank(
    event: events.HostEvent, kind: type[JobError], text: str
) -> None:
    host = running_on(0, 1)
    why = text.format(host.job)
    ends = [failed(number, kind, why) for number in (0, 1)]
    assert shown(host.feed(event)) == [gone(0, why), gone(1, why), *ENDS, *ends]
    assert host.feed(event) == [], "once"


@pytest.mark.parametrize("has_recovery", [True, False])
def test_ranks_that_have_left_hear_of_a_daemon_s_end_where_nobody_takes_them_back(has_recovery: bool) -> None:
    host = running_on(0, config=CONFIG if has_recovery else NO_RECOVERY)
    host.feed(events.RankLeft(0))
    why = f"{host.job}: the daemon ends"
    ends = [] if has_recovery else [failed(0, SwitchUnreachable, why)]
    assert shown(host.feed(events.Stopped("the daemon ends"))) == [*ENDS, *ends]


def test_ranks_that_have_not_left_are_lost_with_their_daemon() -> None:
    host = running_on(0, 1, config=NO_RECOVERY)
    host.feed(events.RankLeft(1))
    assert shown(host.feed(events.Stopped("the daemon ends"))) == [gone(0, "the daemon ends"), *ENDS]
    assert host.feed(events.Stopped("the daemon ends")) == []


# --- what ranks of one host wait for


def test_all_ranks_here_have_to_call_before_anything_is_sent() -> None:
    host = running_on(0, 1)
    assert call(host, 1) == []
    assert host.job.waits_here
    late = events.Noted("a rank of a host came late")
    noted, post = call(host, 0)
    assert (noted, type(post)) == (late, PostMessage)
    assert host.job.view().wait is not None


def test_sums_of_a_job_that_is_here_alone_are_ordered_and_done() -> None:
    host = host_of(0, 1)
    alone(host, [0, 1])
    host.feed(events.Said(Start(job="j", ring_id=5)))
    assert call(host, 0) == []
    operation = Operation(OpIndex(0), Dtype.F32, Op.SUM, 400, 1)
    assert call(host, 1)[-1] == events.SumLocally(operation)
    call(host, 0, 1)
    host.now = 7
    done = shown(host.feed(events.SummedLocally(OpIndex(0))))
    assert events.AllReduceDone(OpIndex(0), "local") in done
    assert host.job.deadline == 7 + CONFIG.stall_ns, "now the other rank is waited for"
    view = host.job.view()
    assert (view.path, view.operations_by_path) == ("local", {"local": 1})
    call(host, 1, 1)
    host.feed(events.Stopped("stop"))
    assert host.feed(events.SummedLocally(OpIndex(1))) == []


def test_without_a_switch_nobody_is_asked_whom_an_all_reduce_waits_for() -> None:
    host = running_on(0)
    call(host, 0)
    host.feed(events.SwitchLost(SwitchUnreachable("gone")))
    host.now += CONFIG.stall_ns
    assert [type(action).__name__ for action in host.feed(Woke())] == ["Stalled"]
    host = running_on(0)
    call(host, 0)
    host.now += CONFIG.stall_ns
    asked = OpStarted(job="j", rank=0, op_index=0, signature=1, nbytes=400)
    assert asked in shown(host.feed(Woke()))
    assert host.job.view().stall == "0 of 1 results, no progress for 10 ms"


@pytest.mark.parametrize("late", [0, 1])
def test_a_switch_that_does_not_come_back_in_time_is_given_up(late: int) -> None:
    host = running_on(0)
    host.now = 3 * S
    host.feed(events.SwitchLost(SwitchUnreachable("its link is down")))
    assert (host.job.deadline, host.job.is_away) == (4 * S, True)
    host.now += S - 1
    assert host.feed(Woke()) == []
    host.now += 1 + late
    text = f"{host.job}: its switch has not come back within 1 s; it was lost: its link is down"
    actions = shown(host.feed(Woke()))
    assert actions[0] == events.Noted("a rank gave its switch up")
    assert actions[-1] == failed(0, SwitchUnreachable, text)
