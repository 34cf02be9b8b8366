"""RC requester: what a timeout sends, how long a timer runs, and which time is not counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.rdma.reliable_connection import NAK_SEQUENCE, RETRY_FOREVER, RNR_NAK, Outcome
from inaproto.core.rdma.requester import BURST_GROWTH, LATE_PARTS, PostWrite, RcRequester, TimerExpired
from inaproto.units import Instant, S
from tests.unit.test_rc_requester import CONFIG, T0, TIMER, ack, asking, at, ended, post, sent, write

WIDE = replace(CONFIG, outstanding_packets_max=256, ack_every=64)
MESSAGE = 170


def expire(requester: RcRequester, late_ns: int = 0) -> list[int]:
    """PSNs that the timer sends."""
    assert requester.deadline is not None
    return sent(requester.step(TimerExpired(), Instant(requester.deadline + late_ns)))


def measured(*round_trips_ns: int) -> RcRequester:
    """With packets 100 and following acknowledged after these times; the clock stands at their sum."""
    requester = RcRequester(WIDE)
    now = 0
    for number, took in enumerate(round_trips_ns):
        requester.step(write(number), at(now))
        now += took
        ack(requester, 100 + number, now=at(now))
    requester.step(write(99), at(now))
    return requester


def test_a_timeout_asks_by_one_packet_for_an_answer() -> None:
    requester = RcRequester(WIDE)
    post(requester, MESSAGE)
    actions = requester.step(TimerExpired(), at(TIMER))
    assert sent(actions) == asking(actions) == [100]
    assert requester.view().window == 256, "which proves no loss, so nothing is narrowed"
    assert expire(requester) == [100]
    assert requester.counters.retransmits == requester.counters.timeouts == 2


def test_a_second_timeout_asks_at_every_message() -> None:
    """An accelerator has forgotten messages that all have, and answers for none of them."""
    requester = RcRequester(WIDE)
    post(requester, 5, 1, 90, 60)
    assert expire(requester) == [100]
    for _ in range(2):
        assert expire(requester) == [100, 105, 106, 196]
    assert sent(ack(requester, 110)) == [111], "from where the receiver is"
    assert expire(requester) == [111], "and after an answer one packet will do again"


def test_what_is_really_lost_comes_in_bursts_that_grow_until_a_group_is_due() -> None:
    requester = RcRequester(WIDE)
    first = sent(post(requester, MESSAGE))
    again = expire(requester)
    bursts = [len(again)]
    while len(again) < len(first):
        actions = ack(requester, again[-1])
        assert asking(actions)[-1] == sent(actions)[-1]
        bursts.append(len(sent(actions)))
        again += sent(actions)
    assert again == first
    assert bursts == [1, BURST_GROWTH, BURST_GROWTH**2, 128 - 21, MESSAGE - 128], "within the narrowed window"


def test_a_burst_ends_with_its_ack_group() -> None:
    requester = RcRequester(WIDE)
    post(requester, MESSAGE)
    ack(requester, 100 + 61)
    assert expire(requester) == [162]
    assert sent(ack(requester, 162)) == [163], "and the group with it"
    assert sent(ack(requester, 163)) == list(range(164, 180))


def test_packets_that_were_there_already_are_not_sent_again() -> None:
    """The timer was too short: each ACK costs one packet, not the rest of the window."""
    requester = RcRequester(WIDE)
    post(requester, MESSAGE)
    assert expire(requester) == [100]
    assert sent(ack(requester, 163)) == [164]
    assert sent(ack(requester, 227)) == [228]
    assert ended(ack(requester, 269)) == [(1, Outcome.SUCCESS)]
    assert requester.counters.retransmits == 3
    assert sent(post(requester, MESSAGE))[0] == 270, "and the next message goes as ever"


def test_an_answer_from_behind_the_probe_brings_what_is_missing_there() -> None:
    """The last packet was lost: the receiver has all before it, which the first timeout finds out."""
    requester = RcRequester(WIDE)
    post(requester, MESSAGE)
    ack(requester, 227)
    assert expire(requester) == [228]
    assert sent(ack(requester, 268)) == [269]


def test_an_unanswered_burst_is_not_followed_by_another() -> None:
    requester = RcRequester(WIDE)
    post(requester, MESSAGE)
    expire(requester)
    assert sent(ack(requester, 100)) == [101, 102, 103, 104]
    assert sent(ack(requester, 102)) == [], "a part of it"
    assert requester.deadline is not None
    assert sent(ack(requester, 104)) == list(range(105, 121))


def test_nothing_new_overtakes_what_a_timeout_asks_for() -> None:
    requester = RcRequester(WIDE)
    post(requester, 3)
    assert expire(requester) == [100]
    assert sent(post(requester, 3)) == []
    assert sent(ack(requester, 102)) == [103, 104, 105]


def test_a_nak_ends_the_asking() -> None:
    requester = RcRequester(WIDE)
    post(requester, MESSAGE)
    expire(requester)
    actions = ack(requester, 100, NAK_SEQUENCE, at(TIMER + 1))
    assert sent(actions) == list(range(100, 228))
    assert requester.view().window == 128


def test_a_receiver_that_is_not_ready_ends_the_asking() -> None:
    requester = RcRequester(WIDE)
    post(requester, 5)
    expire(requester)
    ack(requester, 100, RNR_NAK | 1)
    assert expire(requester) == list(range(100, 105))


# ---- how long it runs --------------------------------------------------------------------------


def timer_of(requester: RcRequester, *round_trips_ns: int) -> int:
    assert requester.deadline is not None
    return requester.deadline - at(sum(round_trips_ns))


def test_the_timer_is_four_variations_above_the_round_trip() -> None:
    """RFC 6298, 2.2 and 2.3, in whole nanoseconds."""
    one = 4 * TIMER
    assert timer_of(measured(one), one) == one + 4 * (one // 2)
    variation = one // 2 + (one - one // 2) // 4
    assert timer_of(measured(one, 2 * one), one, 2 * one) == min(S, one + one // 8 + 4 * variation)
    assert timer_of(measured(one, one), one, one) == one + 4 * (one // 2 - one // 8)


def test_the_timer_is_never_shorter_than_configured() -> None:
    assert timer_of(measured(1000, 1000), 2000) == TIMER


def test_the_measured_timer_is_bounded_however_late_a_rank_was() -> None:
    requester = measured(300 * S)
    assert timer_of(requester, 300 * S) == S
    trips = 0
    now = 300 * S
    while timer_of(requester, now) > TIMER:
        ack(requester, 101 + trips, now=at(now))
        trips += 1
        requester.step(write(trips), at(now))
    assert trips <= 40, "soon it is forgotten"


def test_the_measured_timer_doubles_too() -> None:
    requester = measured(2 * TIMER)
    begin, waits = 2 * TIMER, []
    for _ in range(3):
        assert requester.deadline is not None
        waits.append(requester.deadline - at(begin))
        begin += waits[-1]
        expire(requester)
    assert waits == [6 * TIMER, 12 * TIMER, S]


def test_a_probe_does_not_spoil_the_measurement_of_a_packet_behind_it() -> None:
    """Karn's rule is about packets that were sent twice: the last one here was not."""
    requester = RcRequester(WIDE)
    post(requester, 5)
    expire(requester)
    expire(requester)
    ack(requester, 104, now=at(4 * TIMER))
    assert requester.view().round_trip_ns == 4 * TIMER
    requester.step(write(2), at(4 * TIMER))
    assert requester.deadline == at(4 * TIMER + 12 * TIMER), "so it waits for late ranks next time"


# ---- time that is not counted ------------------------------------------------------------------


def test_a_timer_that_is_served_late_is_set_again_once() -> None:
    requester = RcRequester(WIDE)
    post(requester, 2)
    late = TIMER // LATE_PARTS + 1
    assert expire(requester, late) == []
    assert requester.deadline == at(TIMER + 2 * late), "by as much as it was late"
    assert (requester.counters.timeouts, requester.counters.timers_late) == (0, 1)
    assert expire(requester, TIMER) == [100], "and then it counts"
    assert (requester.counters.timeouts, requester.counters.timers_late) == (1, 1)


def test_a_timer_that_is_a_little_late_counts() -> None:
    requester = RcRequester(WIDE)
    post(requester, 2)
    assert expire(requester, TIMER // LATE_PARTS) == [100]
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
        assert expire(requester) == [100]
        assert requester.counters.timeouts == requester.counters.timers_late == timeouts


def test_a_wait_for_the_receiver_that_ends_late_is_simply_over() -> None:
    requester = RcRequester(WIDE)
    post(requester, 2)
    ack(requester, 100, RNR_NAK | 1)
    assert expire(requester, S) == [100, 101]


# ---- when a peer is given up -------------------------------------------------------------------


def given_up_after_ns(requester: RcRequester, begin_ns: int, late_ns: int = 0) -> int:
    """From ``begin_ns`` on, if every timer is served so late."""
    now = at(begin_ns)
    while requester.deadline is not None:
        now = Instant(requester.deadline + late_ns)
        requester.step(TimerExpired(), now)
    return now - at(begin_ns)


@pytest.mark.parametrize("retry_count", range(RETRY_FOREVER))
@pytest.mark.parametrize("round_trip", [1000, 2 * TIMER, 5 * S])
def test_a_silent_peer_is_given_up_in_the_time_of_the_least_timers(retry_count: int, round_trip: int) -> None:
    requester = RcRequester(replace(WIDE, retry_count=retry_count))
    requester.step(write(1), T0)
    ack(requester, 100, now=at(round_trip))
    requester.step(write(2, 3), at(round_trip))
    fixed = sum(min(TIMER << tried, S) for tried in range(retry_count + 1))
    assert given_up_after_ns(requester, round_trip) == fixed
    assert requester.counters.retransmits <= retry_count


def test_time_that_is_not_counted_brings_no_peer_nearer_to_its_end() -> None:
    requester = RcRequester(replace(WIDE, retry_count=1))
    requester.step(PostWrite(1, 1024, 0, 7, 1), T0)
    late = TIMER
    # Each of the two timers is late, is set again for as long, and is late again.
    assert given_up_after_ns(requester, 0, late) == 3 * TIMER + 6 * late
    assert requester.counters.timers_late == 2
    assert requester.counters.retransmits == 1


def test_progress_gives_a_peer_its_whole_time_again() -> None:
    requester = RcRequester(replace(WIDE, retry_count=1))
    post(requester, 1, 1)
    expire(requester)
    assert requester.deadline is not None
    now = requester.deadline - at(1)
    ack(requester, 100, now=at(now))
    assert given_up_after_ns(requester, now) == 3 * TIMER
