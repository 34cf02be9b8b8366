"""When a rank gives up an all-reduce that takes too long, and what it says then."""

from __future__ import annotations

from inaproto.core.host.engines.in_network import Operation, Overdue
from inaproto.core.host.operation_watch import ANSWER_NS, OperationWatch
from inaproto.units import Instant, OpIndex, S
from inaproto.wire.control_messages import JobStatus
from inaproto.wire.ina_header import Dtype, Op

OVERDUE = Overdue(Operation(OpIndex(7), Dtype.F32, Op.SUM, 4, 1), 600 * S, 3, 1)
NOW = Instant(1000)


def said(*ranks: int) -> JobStatus:
    return JobStatus(job="j", op_index=7, waiting_for=ranks)


def test_gives_up_at_once_when_it_is_known_for_whom_it_waits() -> None:
    watch = OperationWatch()
    watch.heard(said(1, 3))
    assert not watch.overdue(OVERDUE, NOW)
    why = watch.why_give_up(NOW)
    for part in ("all-reduce 7 did not end within 600 s", "1 of 3 result messages", "waits for ranks 1, 3"):
        assert part in why


def test_asks_if_it_is_not_known_and_gives_up_with_the_answer_or_without_one() -> None:
    for answered in (True, False):
        watch = OperationWatch()
        assert watch.overdue(OVERDUE, NOW)
        assert watch.deadline == NOW + ANSWER_NS
        assert watch.why_give_up(Instant(NOW + ANSWER_NS - 1)) == ""
        if answered:
            watch.heard(said())
            assert "all ranks are in it" in watch.why_give_up(NOW)
        else:
            assert "does not say for which ranks" in watch.why_give_up(Instant(NOW + ANSWER_NS))


def test_a_result_at_the_last_moment_ends_the_wait() -> None:
    watch = OperationWatch()
    watch.heard(said(1))
    watch.overdue(OVERDUE, NOW)
    watch.ended()
    assert watch.deadline is None
    assert watch.why_give_up(Instant(1 << 60)) == ""
    assert (watch.waiting_for, watch.stall) == ((), "")
    assert watch.overdue(OVERDUE, NOW), "what was said of one operation is not said of the next"


def test_news_are_news_once() -> None:
    watch = OperationWatch()
    watch.stalled(1, 3, 2 * S)
    assert watch.stall == "1 of 3 results, no progress for 2000 ms"
    assert watch.heard(said(1))
    assert not watch.heard(said(1))
    assert watch.heard(said())


def test_an_overdue_wait_outlives_its_ring_and_what_was_said_of_it_does_not() -> None:
    watch = OperationWatch()
    assert not watch.ring_ended(), "nothing is overdue"
    watch.overdue(OVERDUE, NOW)
    watch.heard(said(1))
    assert watch.ring_ended()
    assert not watch.waiting_for
    assert (watch.stall, watch.deadline) == ("", NOW + ANSWER_NS)
    assert watch.why_give_up(NOW) == ""
    watch.heard(said(3))
    assert "waits for rank 3" in watch.why_give_up(NOW)


def test_before_anything_waits_nothing_is_given_up() -> None:
    watch = OperationWatch()
    assert (watch.waiting_for, watch.stall, watch.deadline) == ((), "", None)
    assert watch.why_give_up(NOW) == ""
    watch.heard(said(1))
    watch.overdue(OVERDUE, NOW)
    assert watch.deadline == NOW, "it is known for whom it waits"


def test_why_it_is_given_up_is_said_in_words() -> None:
    watch = OperationWatch()
    watch.overdue(OVERDUE, NOW)
    whom = "the switch does not say for which ranks it waits"
    assert watch.why_give_up(Instant(NOW + ANSWER_NS)).endswith(f"result messages are here, {whom}")
    watch.heard(said())
    assert watch.stall == "all ranks are in it"
    assert watch.why_give_up(NOW).endswith("result messages are here, all ranks are in it")
