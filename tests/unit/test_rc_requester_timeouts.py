"""RC requester: what a timeout sends, what its answer brings, and which time is not counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.rdma.reliable_connection import NAK_SEQUENCE, RETRY_FOREVER, RNR_NAK, Outcome
from inaproto.core.rdma.requester import LATE_PARTS, LinkWasSilent, RcRequester, TimerExpired
from inaproto.units import Instant, S
from tests.unit.test_rc_requester import CONFIG, T0, TIMER, ack, asking, at, ended, post, sent, write

WIDE = replace(CONFIG, outstanding_packets_max=256, ack_every=64)
MESSAGE = 170


def expire(requester: RcRequester, late_ns: int = 0) -> list[int]:
    """PSNs that the timer sends."""
    assert requester.deadline is not None
    return sent(requester.step(TimerExpired(), Instant(requester.deadline + late_ns)))


def test_a_timeout_asks_by_one_packet_twice() -> None:
    requester = RcRequester(WIDE)
    post(requester, MESSAGE)
    actions = requester.step(TimerExpired(), at(TIMER))
    assert sent(actions) == [100, 100]
    assert asking(actions) == [100]
    assert requester.view().window == 256, "which proves no loss, so nothing is narrowed"
    assert expire(requester) == [100, 100]
    assert (requester.counters.timeouts, requester.counters.retransmits) == (2, 4)
    assert requester.counters.packets == MESSAGE + 4


def test_a_second_timeout_asks_at_every_message() -> None:
    """An accelerator has forgotten messages that all have, and answers for none of them."""
    requester = RcRequester(WIDE)
    post(requester, 5, 1, 90, 60, 200)
    assert expire(requester) == [100, 100]
    for _ in range(2):
        actions = requester.step(TimerExpired(), requester.deadline or T0)
        assert sent(actions) == [100, 100, 105, 106, 196, 256]
        assert asking(actions) == [100, 105, 106, 196, 256]
    assert requester.counters.retransmits == 14
    assert sent(ack(requester, 110)) == [111, 111], "from where the receiver is"
    assert expire(requester) == [111, 111], "and after an answer one packet will do again"


def test_a_packet_that_asked_for_an_ack_is_its_own_probe() -> None:
    """An accelerator repeats it as it was: it needs no copy to be answered."""
    requester = RcRequester(WIDE)
    post(requester, MESSAGE)
    ack(requester, 100 + 62)
    assert expire(requester) == [163], "the end of a group"
    ack(requester, 268)
    assert expire(requester) == [269], "the end of the message"


def test_what_is_really_lost_follows_as_soon_as_the_receiver_says_so() -> None:
    requester = RcRequester(WIDE)
    first = sent(post(requester, MESSAGE))
    assert expire(requester) == [100, 100]
    again = sent(ack(requester, 100))
    assert again == first[1:128], "as far as the narrowed window reaches"
    assert requester.view().window == 128
    assert sent(ack(requester, 227)) == first[128:]


def test_packets_that_were_there_already_are_not_sent_again() -> None:
    """The timeout was needless: each ACK costs two packets, not the rest of the window."""
    requester = RcRequester(WIDE)
    post(requester, MESSAGE)
    assert expire(requester) == [100, 100]
    assert sent(ack(requester, 163)) == [164, 164]
    assert sent(ack(requester, 227)) == [228, 228]
    assert ended(ack(requester, 269)) == [(1, Outcome.SUCCESS)]
    assert requester.counters.retransmits == 6
    assert requester.view().window == 256
    assert sent(post(requester, MESSAGE)) == list(range(270, 440)), "and the next message goes as ever"


def test_an_answer_from_behind_the_probe_brings_what_is_missing_there() -> None:
    """The last packet was lost: the receiver has all before it, which the first timeout finds out."""
    requester = RcRequester(WIDE)
    post(requester, MESSAGE)
    ack(requester, 227)
    assert expire(requester) == [228, 228]
    actions = ack(requester, 268)
    assert sent(actions) == [269]
    assert asking(actions) == [269]


def test_an_answer_from_behind_the_probe_in_mid_message_goes_on_there() -> None:
    requester = RcRequester(WIDE)
    post(requester, 3, MESSAGE)
    assert expire(requester) == [100, 100]
    assert ended(actions := ack(requester, 103)) == [(1, Outcome.SUCCESS)]
    assert sent(actions) == [104, 104]
    assert sent(ack(requester, 104)) == list(range(105, 231)), "nothing behind it was there"


def test_nothing_new_overtakes_what_a_timeout_asks_for() -> None:
    requester = RcRequester(WIDE)
    post(requester, 3)
    assert expire(requester) == [100, 100]
    assert sent(post(requester, 3)) == []
    assert sent(ack(requester, 102)) == [103, 104, 105]


def test_behind_a_probe_that_is_all_there_is_new_messages_go_on() -> None:
    requester = RcRequester(WIDE)
    post(requester, 1)
    assert expire(requester) == [100]
    assert sent(post(requester, 3)) == [101, 102, 103]
    assert sent(ack(requester, 100)) == []


def test_a_nak_ends_the_asking() -> None:
    requester = RcRequester(WIDE)
    post(requester, MESSAGE)
    expire(requester)
    assert sent(ack(requester, 100, NAK_SEQUENCE, at(TIMER + 1))) == list(range(100, 228))
    assert requester.view().window == 128


def test_a_nak_right_behind_the_probe_goes_back_once() -> None:
    requester = RcRequester(WIDE)
    post(requester, MESSAGE)
    expire(requester)
    assert sent(ack(requester, 101, NAK_SEQUENCE, at(TIMER + 1))) == list(range(101, 228))
    assert requester.view().window == 128


def test_a_receiver_that_is_not_ready_ends_the_asking() -> None:
    requester = RcRequester(WIDE)
    post(requester, 5)
    expire(requester)
    ack(requester, 100, RNR_NAK | 1)
    assert expire(requester) == list(range(100, 105))


def test_a_receiver_that_is_not_ready_for_what_follows_is_waited_for() -> None:
    requester = RcRequester(WIDE)
    post(requester, 5)
    expire(requester)
    assert sent(ack(requester, 101, RNR_NAK | 1)) == []
    assert requester.view().window == 256
    assert expire(requester) == list(range(101, 105))


# ---- time that is not counted ------------------------------------------------------------------


def test_a_timer_that_is_served_late_is_set_again_once() -> None:
    requester = RcRequester(WIDE)
    post(requester, 2)
    late = TIMER // LATE_PARTS + 1
    assert expire(requester, late) == []
    assert requester.deadline == at(TIMER + 2 * late), "by as much as it was late"
    assert (requester.counters.timeouts, requester.counters.timers_late) == (0, 1)
    assert expire(requester, TIMER) == [100, 100], "and then it counts"
    assert (requester.counters.timeouts, requester.counters.timers_late) == (1, 1)


def test_a_timer_that_is_a_little_late_counts() -> None:
    requester = RcRequester(WIDE)
    post(requester, 2)
    assert expire(requester, TIMER // LATE_PARTS) == [100, 100]
    assert requester.counters.timers_late == 0


def test_a_process_that_stood_still_for_minutes_waits_for_one_timer_more() -> None:
    requester = RcRequester(WIDE)
    post(requester, 2)
    assert expire(requester, 300 * S) == []
    assert requester.deadline == at(TIMER + 300 * S + TIMER)


def test_every_timer_may_be_late_once() -> None:
    requester = RcRequester(WIDE)
    post(requester, 2)
    for timeouts in (1, 2):
        assert expire(requester, TIMER) == []
        assert expire(requester) == [100, 100]
        assert requester.counters.timeouts == requester.counters.timers_late == timeouts


def test_a_wait_for_the_receiver_that_ends_late_is_simply_over() -> None:
    requester = RcRequester(WIDE)
    post(requester, 2)
    ack(requester, 100, RNR_NAK | 1)
    assert expire(requester, S) == [100, 101]


@pytest.mark.parametrize("retry_count", range(RETRY_FOREVER))
def test_a_silent_peer_is_given_up_when_all_timers_have_passed(retry_count: int) -> None:
    requester = RcRequester(replace(WIDE, retry_count=retry_count))
    requester.step(write(1, 3), T0)
    now = T0
    while requester.deadline is not None:
        now = requester.deadline
        requester.step(TimerExpired(), now)
    assert now - T0 == sum(min(TIMER << tried, S) for tried in range(retry_count + 1))
    assert requester.counters.retransmits == 2 * retry_count


def test_time_that_is_not_counted_is_no_try() -> None:
    requester = RcRequester(replace(WIDE, retry_count=1))
    post(requester, 1)
    assert expire(requester, TIMER) == []
    assert expire(requester) == [100]
    assert expire(requester, TIMER) == []
    assert requester.deadline is not None
    assert ended(requester.step(TimerExpired(), requester.deadline)) == [(1, Outcome.RETRY_EXCEEDED)]


def test_a_timer_stands_still_while_the_link_is_paused() -> None:
    requester = RcRequester(WIDE)
    post(requester, MESSAGE)
    over = Instant(at(TIMER) + 7)
    assert requester.step(LinkWasSilent(at(TIMER - 100)), over) == []
    assert requester.deadline == over + 100, "what was left of it when the pause began"
    assert expire(requester) == [100, 100]


def test_what_was_sent_into_a_paused_link_has_all_its_time_from_when_it_leaves() -> None:
    requester = RcRequester(CONFIG)
    requester.step(write(1), at(50))
    over = at(1_000_000)
    requester.step(LinkWasSilent(T0), over)
    assert requester.deadline == over + TIMER
    ack(requester, 100, now=Instant(over + 3000))
    assert requester.view().round_trip_ns == 3000, "without the pause"
    requester.step(LinkWasSilent(T0), over)
    assert requester.deadline is None
