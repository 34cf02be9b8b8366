"""Selective connections, where packets leave (docs/protocol.md 4.4): what is sent again, and when."""

from __future__ import annotations

import pytest

from inaproto.core.rdma.reliable_connection import (
    NAK_SEQUENCE,
    RNR_NAK,
    RNR_TIMER_NS,
    TIMEOUT_UNIT_NS,
    Outcome,
)
from inaproto.core.rdma.requester import (
    AckArrived,
    Closing,
    Complete,
    Failed,
    LinkWasSilent,
    RequesterAction,
    RequesterConfig,
    TimerExpired,
    Transmit,
)
from inaproto.core.rdma.responder import (
    ResponderConfig,
)
from inaproto.core.rdma.selective_requester import (
    LOSSY_MESSAGES,
    SHORTEST_NS,
    TWICE_PACKETS_MAX,
    SelectiveRequester,
)
from inaproto.errors import ConfigError
from inaproto.units import Instant
from inaproto.wire.behind_gap import BEHIND_PACKETS_MAX, AtSwitch
from tests.unit.test_rc_requester import T0, ack, asking, at, post, sent
from tests.unit.test_rc_selective_responder import nak

TIMER = TIMEOUT_UNIT_NS << 14


def requester(**changes: int) -> SelectiveRequester:
    config = {"initial_psn": 100, "outstanding_packets_max": 8, "ack_every": 4, "behind_max": 64}
    return SelectiveRequester(RequesterConfig(**config | changes))


def told(
    core: SelectiveRequester, psn: int, *arrived: int, reach: int = 0, now: Instant = T0
) -> list[RequesterAction]:
    reply = nak(psn, *arrived, reach=reach)
    return core.step(AckArrived(psn, NAK_SEQUENCE, 0, reply.behind), now)


def test_only_what_is_missing_before_what_came_is_sent_again() -> None:
    core = requester()
    post(core, 4)
    assert sent(post(core, 4)) == [104, 105, 106, 107]
    assert sent(told(core, 101, 103, 104)) == [101, 102]
    assert core.counters.retransmits == 2
    assert core.view().window == 8


def stretches(actions: list[RequesterAction]) -> list[tuple[int, int, int]]:
    """Message, its first packet that is sent, and how many."""
    transmits = [action for action in actions if isinstance(action, Transmit)]
    return [(sends.message.write.wr_id, sends.first_packet, sends.count) for sends in transmits]


def test_what_is_sent_again_is_cut_where_messages_end() -> None:
    core = requester()
    post(core, 4, 4)
    assert stretches(told(core, 101, 102, 106)) == [(1, 1, 1), (1, 3, 1), (2, 0, 2)]


def test_what_is_told_of_packets_that_were_never_sent_is_none_of_those_to_come() -> None:
    core = requester(ack_every=1)
    post(core, 16)
    assert sent(told(core, 101, 102, 108)) == [101, 103, 104, 105, 106, 108, 109]
    core = requester()
    post(core, 8)
    assert sent(told(core, 101, 102, reach=100)) == [101, 103, 104, 105, 106]
    assert sent(told(core, 101, 102, reach=100)) == []
    assert core.counters.naks == 2


def test_what_a_receiver_has_forgotten_is_missing_again() -> None:
    """It had no receive for it when it was due, and what said so was lost."""
    core = requester()
    post(core, 8)
    told(core, 100, 101)
    assert sent(told(core, 101, 102)) == [101]


def test_a_copy_is_sent_once_until_something_that_was_sent_after_it_is_there() -> None:
    core = requester()
    post(core, 16)
    assert sent(told(core, 101, 102, 103)) == [101]
    assert sent(told(core, 101, 102, 103, 104, 105, 106)) == [108, 109, 110, 111]
    assert sent(told(core, 101, 102, 103, 104, 105, 106, 107)) == []
    assert sent(told(core, 101, 102, 103, 104, 105, 106, 107, 108))[:1] == [101]


def test_a_copy_that_is_there_proves_nothing_of_others() -> None:
    core = requester()
    post(core, 8)
    assert sent(told(core, 101, 102, 104)) == [101, 103]
    assert sent(told(core, 101, 102, 103, 104)) == []


def test_a_copy_that_is_there_does_not_go_again() -> None:
    core = requester(ack_every=1)
    post(core, 16)
    assert sent(told(core, 101, 102, 104)) == [101, 103, 108, 109, 110]
    assert sent(told(core, 101, 102, 103, 104, 108)) == [101, 105, 106, 107, 111, 112]


def test_what_is_there_does_not_fill_the_window() -> None:
    core = requester()
    post(core, 64)
    assert sent(told(core, 100, 101, 102, 103, 104)) == [100, 108, 109, 110, 111]


def test_a_missing_packet_holds_the_sender_when_the_receiver_keeps_no_more() -> None:
    core = requester(behind_max=11, ack_every=1)
    assert sent(post(core, 64)) == list(range(100, 108))
    assert sent(told(core, 100, *range(101, 108))) == [100, 108, 109, 110, 111]
    assert sent(told(core, 100, *range(101, 112))) == [100]


def test_what_came_and_could_not_be_kept_is_sent_again_when_more_has_come() -> None:
    core = requester()
    post(core, 8)
    assert sent(told(core, 100, reach=3)) == [100, 101, 102]


def test_a_nak_that_tells_nothing_asks_for_its_packet() -> None:
    core = requester(ack_every=1)
    post(core, 64)
    assert sent(ack(core, 101, NAK_SEQUENCE)) == [101, 108]
    assert sent(ack(core, 101, NAK_SEQUENCE)) == []


def timed_out(core: SelectiveRequester) -> list[RequesterAction]:
    assert core.deadline is not None
    return core.step(TimerExpired(), core.deadline)


def test_after_a_timeout_more_and_more_goes_again_while_nothing_new_is_there() -> None:
    core = requester(outstanding_packets_max=32)
    post(core, 32)
    assert sent(core.step(TimerExpired(), at(TIMER))) == [100, 100]
    assert sent(ack(core, 100)) == [101, 102]
    assert sent(ack(core, 102)) == [103, 104, 105, 106]
    assert sent(ack(core, 105)) == []  # the last of those that asked is still to come
    assert sent(ack(core, 106)) == list(range(107, 115))
    assert sent(ack(core, 114)) == list(range(115, 131))
    assert sent(ack(core, 130)) == [131]


def test_what_is_known_to_be_there_is_no_news_and_does_not_go_again() -> None:
    core = requester()
    post(core, 8)
    assert sent(told(core, 100, 101)) == [100]
    assert sent(timed_out(core)) == [100, 100]
    assert sent(ack(core, 101)) == [102, 103]


def test_what_asks_goes_beside_what_is_there() -> None:
    core = requester()
    post(core, 8)
    told(core, 100, 101, 103)
    timed_out(core)
    assert stretches(ack(core, 101)) == [(1, 2, 1), (1, 4, 1)]


def test_a_nak_is_an_answer() -> None:
    """So no other message is asked for with the next timer."""
    core = requester()
    post(core, 4, 4)
    timed_out(core)
    told(core, 100, 101)
    assert sent(timed_out(core)) == [100, 100]


def test_what_asked_and_is_there_behind_a_gap_is_no_news() -> None:
    core = requester(outstanding_packets_max=32)
    post(core, 32)
    timed_out(core)
    assert sent(ack(core, 100)) == [101, 102]
    assert sent(told(core, 101, 102)) == []
    assert sent(ack(core, 102)) == [103, 104, 105, 106]


@pytest.mark.parametrize("late", [103, 107])
def test_what_waited_for_another_rank_does_not_go_again(late: int) -> None:
    """NetReduce 3.2: an accelerator holds packets until the last rank has sent."""
    core = requester()
    post(core, 8)
    assert sent(timed_out(core)) == [100, 100]
    assert sent(told(core, 101, late)) == list(range(101, late))  # sent once, and there
    core = requester()
    post(core, 8)
    assert sent(timed_out(core)) == [100, 100]
    assert sent(ack(core, late)) == []
    assert sent(ack(core, 107)) == []
    assert core.counters.retransmits == 2


def test_news_from_behind_the_gap_ends_the_asking() -> None:
    core = requester(outstanding_packets_max=32)
    post(core, 32)
    assert sent(timed_out(core)) == [100, 100]
    assert sent(ack(core, 100)) == [101, 102]
    assert sent(told(core, 101, 110)) == list(range(103, 110))  # 101 and 102 are on their way
    assert sent(ack(core, 102)) == []


# ---- a switch that repairs (docs/protocol.md 6.14) ---------------------------------------------------


def at_switch(
    core: SelectiveRequester, psn: int, *arrived: int, reach: int | None = None, now: Instant = T0
) -> list[RequesterAction]:
    """``arrived``: PSNs behind ``psn`` that have come there."""
    bits = sum(1 << there - psn for there in arrived)
    behind = AtSwitch(max(arrived) - psn if reach is None else reach, bits)
    return core.step(AckArrived(psn, NAK_SEQUENCE, 0, behind), now)


def test_what_the_switch_lacks_is_sent_again_and_nothing_is_acknowledged() -> None:
    core = requester()
    post(core, 8)
    assert sent(at_switch(core, 103, 104, 106)) == [103, 105] * 2
    assert core.view().una_psn == 100
    assert core.counters.retransmits == 4


def test_what_is_at_the_switch_does_not_fill_the_window() -> None:
    core = requester(ack_every=1)
    post(core, 64)
    assert sent(at_switch(core, 100, reach=0)) == [108]


def test_what_goes_again_to_the_switch_asks_for_nothing_more() -> None:
    core = requester()
    post(core, 8)
    assert asking(at_switch(core, 101, 102)) == []


def test_of_two_words_that_say_as_much_both_count() -> None:
    core = requester(ack_every=1)
    post(core, 64)
    assert sent(at_switch(core, 100, 101, 104))[-2:] == [108, 109]
    assert sent(at_switch(core, 100, 101, 102, 104)) == [110]
    core = requester()
    post(core, 8)
    assert sent(at_switch(core, 100, 100, 104)) == [101, 102, 103] * 2
    assert sent(at_switch(core, 100, 101, 104)) == [], "which one is older is not known"


def test_a_copy_is_given_up_when_something_that_was_sent_after_it_is_at_the_switch() -> None:
    core = requester()
    post(core, 16)
    assert sent(at_switch(core, 103, 104, 105)) == [103, 103, 108, 109, 110, 111]
    assert sent(at_switch(core, 103, 104, 105, 106, 107)) == []
    assert sent(at_switch(core, 103, 104, 105, 106, 107, 108)) == [103, 103, 112, 113, 114, 115, 115]


def test_what_is_missing_up_to_the_reach_is_lost_before_it() -> None:
    """Something behind the reach has come, where a switch does not know how long a gap is."""
    core = requester()
    post(core, 8)
    assert sent(at_switch(core, 103, reach=1)) == [103] * 2


def test_the_latest_word_counts() -> None:
    """Of packets that wait for the first one of their message the switch knows more when that has come."""
    core = requester()
    post(core, 8)
    assert sent(at_switch(core, 100, 101, 102, 103, 104)) == [100] * 2
    assert sent(at_switch(core, 102, 103, 104, 105)) == [102] * 2


def test_words_that_were_overtaken_take_nothing_back() -> None:
    core = requester()
    post(core, 8)
    assert sent(at_switch(core, 100, 101, 103, 104)) == [100, 102] * 2
    assert sent(at_switch(core, 103, 104, 105)) == [103] * 2
    assert sent(at_switch(core, 100, 101, 103, 104)) == []
    assert sent(at_switch(core, 101, 102, 104, 105)) == []


def test_what_is_said_of_packets_that_were_never_sent_counts_for_those_that_were() -> None:
    core = requester()
    post(core, 8)
    assert sent(at_switch(core, 105, 106, 200, reach=100)) == [105] * 2
    assert sent(at_switch(core, 99, 101)) == []  # acknowledged
    assert core.counters.acks_ignored == 1
    core = requester(ack_every=1)
    post(core, 64)
    ack(core, 101)
    new = [110, 111, 112, 113]
    assert sent(at_switch(core, 105, 106, 110, reach=100)) == [105, 107, 108] * 2 + new


def test_of_lost_results_the_sender_only_hears_that_timers_should_be_short() -> None:
    core = requester()
    post(core, 8)
    assert sent(ack(core, 103, now=at(ANSWER))) == []
    assert sent(at_switch(core, 104, reach=0, now=at(ANSWER))) == []
    assert core.deadline == at(ANSWER + 2 * ANSWER)
    assert sent(at_switch(core, 104, reach=0, now=at(2 * ANSWER))) == []
    assert core.deadline == at(ANSWER + 2 * ANSWER), "it goes on"


def test_after_a_timeout_what_the_switch_says_makes_no_timer_shorter() -> None:
    core = requester()
    post(core, 8)
    timed_out(core)
    before = core.deadline
    at_switch(core, 100, reach=0, now=at(TIMER + 1))
    assert core.deadline == before


def test_what_was_sent_again_is_no_measure_of_an_answer() -> None:
    core = requester()
    post(core, 8)
    at_switch(core, 100, 101)
    ack(core, 100, now=at(ANSWER))
    assert core.deadline == at(ANSWER + TIMER)


def test_an_answer_is_that_of_the_receiver() -> None:
    core = requester()
    post(core, 4)
    ack(core, 100, now=at(ANSWER))
    post(core, 4, now=at(ANSWER))
    at_switch(core, 101, *range(102, 108), now=at(ANSWER))
    now = ANSWER + ANSWER // 4
    ack(core, 102, now=at(now))
    assert core.deadline == at(now + 2 * ANSWER)
    now = ANSWER + ANSWER // 2
    ack(core, 104, now=at(now))
    assert core.deadline == at(now + ANSWER)


def test_news_of_what_the_switch_had_ends_the_asking() -> None:
    core = requester()
    post(core, 8)
    at_switch(core, 103, *range(104, 108))
    timed_out(core)
    assert sent(ack(core, 102)) == []


def test_how_soon_the_switch_says_something_is_no_measure_of_an_answer() -> None:
    core = requester()
    post(core, 8)
    assert sent(at_switch(core, 100, 101, now=at(ANSWER // 8))) == [100] * 2
    assert sent(ack(core, 106, now=at(ANSWER))) == []
    assert core.deadline == at(ANSWER + 2 * ANSWER)


def test_a_timeout_asks_with_what_the_switch_has_too() -> None:
    """Its result is lost, and is sent again for it."""
    core = requester(outstanding_packets_max=32)
    post(core, 32)
    assert sent(at_switch(core, 110, *range(111, 132))) == [110] * 2
    assert sent(timed_out(core)) == [100, 100]
    assert sent(ack(core, 100)) == [101, 102]
    assert sent(post(core, 4)) == [132, 133, 134, 135]
    assert sent(ack(core, 102)) == [103, 104, 105, 106]


def test_of_many_packets_that_are_lost_the_last_one_alone_goes_twice() -> None:
    for number in (TWICE_PACKETS_MAX, TWICE_PACKETS_MAX + 1):
        core = requester(outstanding_packets_max=32)
        post(core, 32)
        lost = [*range(100, 100 + 2 * number, 2)]
        again = lost if number <= TWICE_PACKETS_MAX else lost[-1:]
        assert sent(at_switch(core, 100, *(psn + 1 for psn in lost))) == lost + again


def test_what_is_asked_for_more_goes_once() -> None:
    """It may wait at the switch for a rank that is late."""
    core = requester(outstanding_packets_max=32)
    post(core, 32)
    at_switch(core, 110, *range(111, 132))
    timed_out(core)
    assert sent(ack(core, 100)) == [101, 102]


def test_what_is_asked_for_more_asks_for_its_answer() -> None:
    """Nothing may be behind it that would be answered: then a timer would have to bring each few packets."""
    for packets, asked in ((32, ((100, 102), (102, 106), (106, 114))), (8, ((100, 102), (102, 106)))):
        core = requester(outstanding_packets_max=32, ack_every=32)
        post(core, packets)
        timed_out(core)
        for acknowledged, last in asked:
            assert asking(ack(core, acknowledged)) == [last]


def test_what_is_asked_for_more_keeps_the_requests_of_its_groups() -> None:
    """The last packet of many may be lost, too: what came before it shows."""
    core = requester(outstanding_packets_max=64, ack_every=4)
    post(core, 64)
    timed_out(core)
    for acknowledged in (100, 102):
        ack(core, acknowledged)
    again = ack(core, 106)
    assert sent(again) == list(range(107, 115))
    assert asking(again) == [107, 111, 114]


def test_while_losses_are_expected_the_last_packet_of_all_goes_twice() -> None:
    core = requester()
    assert sent(post(core, 4)) == [100, 101, 102, 103]
    at_switch(core, 102, 103)
    ack(core, 103)
    assert sent(post(core, 4)) == [104, 105, 106, 107, 107]
    assert sent(post(core, 4)) == [108, 109, 110, 111], "another message is on its way, which would show it"
    ack(core, 111)
    for _ in range(LOSSY_MESSAGES):
        begin = core.view().next_psn
        post(core, 1)
        ack(core, begin)
    assert len(sent(post(core, 4))) == 4


def test_where_no_switch_repairs_nothing_goes_twice() -> None:
    core = lossy()
    ack(core, 107)
    assert sent(post(core, 4)) == [108, 109, 110, 111]


# ---- short timers ------------------------------------------------------------------------------------


ANSWER = TIMER // 16


def lossy() -> SelectiveRequester:
    """Eight packets of which 105 was lost; the answers came ``ANSWER`` after they were sent."""
    core = requester()
    post(core, 8)
    assert sent(told(core, 105, 106, 107, now=at(ANSWER))) == [105]
    return core


def test_after_a_loss_the_timer_is_twice_the_time_until_an_answer() -> None:
    assert lossy().deadline == at(ANSWER + 2 * ANSWER)
    core = requester()
    post(core, 8)
    told(core, 100, 101, now=at(ANSWER))
    assert core.deadline == at(ANSWER + 2 * ANSWER), "though nothing was acknowledged"


def test_the_time_until_an_answer_is_that_of_the_first_packet_that_had_none() -> None:
    core = requester()
    post(core, 4)
    post(core, 4, now=at(ANSWER // 2))
    told(core, 101, 102, now=at(ANSWER))
    assert core.deadline == at(ANSWER + 2 * ANSWER)


def test_what_asks_again_begins_no_time_until_an_answer() -> None:
    core = lossy()
    ack(core, 107, now=at(ANSWER))
    post(core, 4, now=at(ANSWER))
    ack(core, 110, now=at(2 * ANSWER))
    assert sent(timed_out(core)) == [111]
    ack(core, 111, now=at(4 * ANSWER))
    post(core, 4, now=at(20 * ANSWER))
    ack(core, 112, now=at(21 * ANSWER))
    assert core.deadline == at(21 * ANSWER + 2 * ANSWER)


def test_what_was_sent_again_before_it_had_an_answer_is_not_measured_by_a_later_one() -> None:
    """Nothing may be sent for hours after that, and the timer of the next loss would be a long one."""
    for packets in (1, 8):
        core = lossy()
        ack(core, 107, now=at(ANSWER))
        post(core, packets, now=at(ANSWER))
        timed_out(core)
        while core.view().outstanding:  # all of it was lost
            ack(core, core.view().una_psn, now=at(8 * ANSWER))
        post(core, 8, now=at(1000 * ANSWER))
        ack(core, core.view().una_psn, now=at(1001 * ANSWER))
        assert core.deadline == at(1001 * ANSWER + 2 * ANSWER)


def test_what_was_sent_again_is_not_measured_by_what_is_sent_after_it() -> None:
    core = lossy()
    ack(core, 107, now=at(ANSWER))
    post(core, 1, now=at(ANSWER))
    timed_out(core)
    post(core, 8, now=at(16 * ANSWER))
    ack(core, 110, now=at(17 * ANSWER))
    assert core.deadline == at(17 * ANSWER + 2 * ANSWER)


def test_a_link_that_was_silent_is_no_part_of_the_time_until_an_answer() -> None:
    core = requester()
    post(core, 8)
    assert core.step(LinkWasSilent(T0), at(ANSWER)) == []
    assert core.deadline == at(ANSWER + TIMER)
    assert sent(told(core, 105, 106, 107, now=at(2 * ANSWER))) == [105]
    assert core.deadline == at(2 * ANSWER + 2 * ANSWER)
    core.step(LinkWasSilent(at(2 * ANSWER)), at(3 * ANSWER))
    assert core.deadline == at(3 * ANSWER + 2 * ANSWER)


def test_without_a_loss_it_has_its_length() -> None:
    core = requester()
    post(core, 8)
    ack(core, 105, now=at(ANSWER))
    assert core.deadline == at(ANSWER + TIMER)


def test_short_timers_double_until_they_are_as_long_as_the_ordinary_one() -> None:
    core, now, waits = lossy(), at(ANSWER), []
    for _ in range(6):
        assert core.deadline is not None
        waits.append((core.deadline - now) // ANSWER)
        now = core.deadline
        core.step(TimerExpired(), now)
    assert waits == [2, 4, 8, 16, 32, 64]


def test_what_brings_no_progress_does_not_make_it_short_again() -> None:
    core = lossy()
    timed_out(core)
    told(core, 105, 106, 107)
    now = core.deadline
    timed_out(core)
    assert now is not None
    assert core.deadline == now + 8 * ANSWER


def test_progress_makes_it_short_again() -> None:
    core = lossy()
    timed_out(core)
    post(core, 8)
    ack(core, 107, now=at(4 * ANSWER))
    assert core.deadline == at(4 * ANSWER + 2 * ANSWER)


def test_the_least_time_counts_and_longer_ones_a_little() -> None:
    core, now = lossy(), at(ANSWER)
    for took, expected in ((9 * ANSWER, 2 * ANSWER), (ANSWER, ANSWER), (1, SHORTEST_NS // 2)):
        ack(core, core.view().next_psn - 1, now=now)
        post(core, 8, now=now)
        now = Instant(now + took)
        ack(core, core.view().una_psn, now=now)
        assert core.deadline == now + 2 * expected


def test_losses_are_forgotten_after_so_many_messages() -> None:
    core = lossy()
    ack(core, 107, now=at(2 * ANSWER))
    for number in range(1, LOSSY_MESSAGES + 2):
        post(core, 1)
        is_short = core.deadline == at(2 * ANSWER)
        assert is_short != (core.deadline == at(TIMER))
        assert is_short == (number < LOSSY_MESSAGES), number
        ack(core, core.view().una_psn, now=at(ANSWER))


def test_a_timeout_is_needless_if_more_is_there() -> None:
    core = requester()
    post(core, 8)
    assert sent(core.step(TimerExpired(), at(TIMER))) == [100, 100]
    assert sent(ack(core, 103, now=at(TIMER))) == []
    assert core.counters.retransmits == 2


def test_resent_packets_carry_the_requests_of_their_originals() -> None:
    core = requester()
    post(core, 8)
    assert asking(told(core, 102, 107)) == [103]
    core = requester()
    post(core, 8)
    assert asking(told(core, 102, 104)) == [103]


def test_after_a_wait_for_a_receive_that_packet_comes_again() -> None:
    core = requester()
    post(core, 1, 1)
    assert ack(core, 100, RNR_NAK | 1) == []
    assert told(core, 100, 101) == []
    assert sent(core.step(TimerExpired(), at(RNR_TIMER_NS[1]))) == [100]


def test_after_a_wait_for_a_receive_what_was_posted_meanwhile_goes_too() -> None:
    core = requester()
    post(core, 4)
    ack(core, 100, RNR_NAK | 1)
    assert post(core, 2) == []
    actions = core.step(TimerExpired(), at(RNR_TIMER_NS[1]))
    assert sent(actions) == [100, 104, 105]
    assert asking(actions) == [105]
    ack(core, 105, now=at(RNR_TIMER_NS[1] + ANSWER))
    assert core.view().round_trip_ns == ANSWER


def test_what_waits_for_a_receive_is_not_there() -> None:
    core = requester(ack_every=1)
    post(core, 64)
    assert sent(told(core, 100, 101)) == [100, 108]
    assert ack(core, 101, RNR_NAK | 1) == []
    assert sent(core.step(TimerExpired(), at(RNR_TIMER_NS[1]))) == [101]


def test_a_receiver_that_does_not_answer_ends_the_connection() -> None:
    core = requester(retry_count=0)
    post(core, 1)
    completed, failed = timed_out(core)
    assert isinstance(completed, Complete)
    assert (completed.outcome, failed) == (Outcome.RETRY_EXCEEDED, Failed(Outcome.RETRY_EXCEEDED))


def test_a_packet_that_is_lost_too_often_ends_the_connection() -> None:
    core = requester(retry_count=1)
    post(core, 16)
    assert sent(told(core, 100, 101)) == [100]
    told(core, 100, 101, 102, 103, 104)
    completed, failed = told(core, 100, *range(101, 110))
    assert isinstance(completed, Complete)
    assert (completed.outcome, failed) == (Outcome.RETRY_EXCEEDED, Failed(Outcome.RETRY_EXCEEDED))


def test_closing_flushes_and_forgets() -> None:
    core = requester()
    post(core, 8)
    told(core, 100, 101)
    assert [action.outcome for action in core.step(Closing(), T0) if isinstance(action, Complete)] == [
        Outcome.FLUSHED
    ]
    assert core.deadline is None


@pytest.mark.parametrize("config", [RequesterConfig, ResponderConfig])
def test_what_is_kept_fits_a_bitmap(config: type[RequesterConfig | ResponderConfig]) -> None:
    config(initial_psn=0, behind_max=BEHIND_PACKETS_MAX)
    for wrong in (-1, BEHIND_PACKETS_MAX + 1):
        with pytest.raises(ConfigError):
            config(initial_psn=0, behind_max=wrong)
