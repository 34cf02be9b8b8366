"""Selective connections, rule by rule: what is kept behind a gap and told, and what is sent again."""

from __future__ import annotations

import pytest

from inaproto.core.rdma.reliable_connection import (
    ACK,
    NAK_INVALID_REQUEST,
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
    RequesterAction,
    RequesterConfig,
    TimerExpired,
)
from inaproto.core.rdma.responder import (
    Deliver,
    MessageInProgress,
    PacketArrived,
    Place,
    PostReceive,
    RcResponder,
    Reply,
    ResponderClosing,
    ResponderConfig,
    ResponderFailed,
    StretchBehind,
)
from inaproto.core.rdma.selective_requester import (
    LOSSY_MESSAGES,
    SHORTEST_NS,
    TWICE_PACKETS_MAX,
    SelectiveRequester,
)
from inaproto.core.rdma.selective_responder import SelectiveResponder
from inaproto.errors import ConfigError, InvariantBroken
from inaproto.units import Instant
from inaproto.wire.behind_gap import BEHIND_PACKETS_MAX, AtSwitch, BehindGap
from tests.unit.test_rc_requester import T0, ack, asking, at, post, sent
from tests.unit.test_rc_responder import (
    FIRST,
    LAST_IMM,
    MIDDLE,
    MTU,
    NOW,
    ONLY_IMM,
    RKEY,
    VA,
    arrive,
    run,
)

TIMER = TIMEOUT_UNIT_NS << 14


# ---- responder ---------------------------------------------------------------------------------------


def responder(psn: int = 10, receives: int = 4, behind_max: int = 64) -> SelectiveResponder:
    made = SelectiveResponder(ResponderConfig(initial_psn=psn, behind_max=behind_max))
    for wr_id in range(receives):
        assert made.step(PostReceive(wr_id), NOW) == []
    return made


def nak(psn: int, *arrived: int, reach: int = 0, msn: int = 0) -> Reply:
    """``arrived``: PSNs that are there."""
    bits = sum(1 << (there - psn - 1) for there in arrived)
    return Reply(psn, NAK_SEQUENCE, msn, BehindGap(reach or max(arrived) - psn, bits))


def begun(length: int = 8 * MTU, **options: int) -> SelectiveResponder:
    """Its first packet, 10, is there; the last is 17."""
    core = responder(**options)
    assert arrive(core, run(FIRST, 10, length=length)) == [Place(VA, RKEY, 0, 1)]
    return core


def test_packets_behind_a_gap_are_placed_by_their_psn_and_told() -> None:
    core = begun()
    assert arrive(core, run(MIDDLE, 13, 14)) == [Place(VA + 3 * MTU, RKEY, 0, 2), nak(11, 13, 14)]
    assert core.counters.behind_gap == 2
    assert core.view().expected_psn == 11


def test_what_was_placed_behind_a_gap_before_it_is_told_is_as_if_it_came_now() -> None:
    core, other = begun(), begun()
    for psn, packets in ((13, 2), (12, 1), (16, 1)):
        assert core.room_behind(psn) is not None
        told = arrive(other, run(MIDDLE, *range(psn, psn + packets)))
        assert core.step(StretchBehind(psn, packets), NOW) == told[1:]
        assert core.counters == other.counters
    assert core.counters.behind_gap == 4
    assert core.counters.naks == 2, "two gaps"
    for psn in (11, 15):
        assert arrive(core, run(MIDDLE, psn)) == arrive(other, run(MIDDLE, psn))
    assert core.view() == other.view()


def test_where_there_is_room_behind_a_gap() -> None:
    """Up to the last packet of the message, what has come, and as far as packets are kept."""
    core = begun()
    assert core.room_behind(12) == (MessageInProgress(VA + 2 * MTU, RKEY, 6 * MTU, 8 * MTU), 5)
    arrive(core, run(MIDDLE, 14))
    assert core.room_behind(12) == (MessageInProgress(VA + 2 * MTU, RKEY, 6 * MTU, 8 * MTU), 2)
    for psn, why in (
        (10, "it came"),
        (11, "it is expected"),
        (14, "it came behind the gap"),
        (17, "it ends its message"),
        (18, "nobody knows its message"),
    ):
        assert core.room_behind(psn) is None, why
    near = begun(behind_max=3)
    assert [near.room_behind(psn) is None for psn in (13, 14, 15, 16)] == [False, False, True, True]
    assert near.room_behind(13) == (MessageInProgress(VA + 3 * MTU, RKEY, 5 * MTU, 8 * MTU), 2)
    near.step(ResponderClosing(), NOW)
    assert near.room_behind(13) is None


@pytest.mark.parametrize("stretch", [(11, 1), (13, 3), (13, 0), (17, 1)])
def test_nothing_else_may_be_placed_behind_a_gap(stretch: tuple[int, int]) -> None:
    core = begun()
    arrive(core, run(MIDDLE, 15))
    with pytest.raises(InvariantBroken, match="was placed where there is room for"):
        core.step(StretchBehind(*stretch), NOW)


def test_who_keeps_nothing_behind_a_gap_has_no_room_there() -> None:
    core = RcResponder(ResponderConfig(initial_psn=10))
    assert core.room_behind(12) is None
    with pytest.raises(InvariantBroken, match="nothing is kept behind a gap"):
        core.step(StretchBehind(12, 1), NOW)


def test_while_there_is_a_gap_whatever_comes_is_told() -> None:
    core = begun()
    arrive(core, run(MIDDLE, 12))
    assert arrive(core, run(MIDDLE, 13)) == [Place(VA + 3 * MTU, RKEY, 0, 1), nak(11, 12, 13)]
    assert arrive(core, run(MIDDLE, 14, asks=(14,))) == [
        Place(VA + 4 * MTU, RKEY, 0, 1),
        nak(11, 12, 13, 14),
    ]


def test_another_gap_is_told() -> None:
    core = begun()
    arrive(core, run(MIDDLE, 12))
    assert arrive(core, run(MIDDLE, 15)) == [Place(VA + 5 * MTU, RKEY, 0, 1), nak(11, 12, 15)]
    assert core.counters.naks == 2


def test_what_comes_into_a_gap_is_told_and_the_last_closes_it() -> None:
    core = begun()
    arrive(core, run(MIDDLE, 13, 16))
    assert arrive(core, run(MIDDLE, 11)) == [Place(VA + MTU, RKEY, 0, 1), nak(12, 13, 16)]
    assert arrive(core, run(MIDDLE, 15)) == [Place(VA + 5 * MTU, RKEY, 0, 1), nak(12, 13, 15, 16)]
    assert arrive(core, run(MIDDLE, 12)) == [Place(VA + 2 * MTU, RKEY, 0, 1), nak(14, 15, 16)]
    assert arrive(core, run(MIDDLE, 14)) == [Place(VA + 4 * MTU, RKEY, 0, 1), Reply(16, ACK, 0)]
    assert core.place_at == MessageInProgress(VA + 7 * MTU, RKEY, MTU, 8 * MTU)


def test_a_packet_is_placed_once() -> None:
    core = begun()
    arrive(core, run(MIDDLE, 12))
    assert arrive(core, run(MIDDLE, 12)) == [nak(11, 12)]
    assert arrive(core, run(MIDDLE, 11, 12, 13)) == [
        Place(VA + MTU, RKEY, 0, 1),
        Place(VA + 3 * MTU, RKEY, 2, 1),
        Reply(12, ACK, 0),
    ]
    assert core.counters.duplicates == 2
    assert core.counters.packets == 4


def test_a_message_is_delivered_when_all_before_it_is_there() -> None:
    core = begun()
    length = 2 * MTU
    assert arrive(core, run(LAST_IMM, 17, imm=1))[0] == Place(VA + 7 * MTU, RKEY, 0, 1)
    arrive(core, run(FIRST, 18, length=length), run(LAST_IMM, 19, imm=2))
    arrive(core, run(MIDDLE, 12, 13, 14, 15, 16))
    assert arrive(core, run(MIDDLE, 11)) == [
        Place(VA + MTU, RKEY, 0, 1),
        Deliver(0, 1, 8 * MTU),
        Deliver(1, 2, length),
        Reply(19, ACK, 2),
    ]


def test_a_packet_whose_message_has_not_begun_is_as_if_lost_but_told_that_it_came() -> None:
    core = begun()
    assert arrive(core, run(MIDDLE, 20, 21)) == [nak(11, reach=10)]
    assert core.counters.out_of_sequence == 2
    assert arrive(core, run(FIRST, 18, length=5 * MTU)) == [
        Place(VA, RKEY, 0, 1),
        nak(11, 18, reach=10),
    ]
    assert arrive(core, run(MIDDLE, 20)) == [Place(VA + 2 * MTU, RKEY, 0, 1), nak(11, 18, 20, reach=10)]


@pytest.mark.parametrize(
    "wrong",
    [
        run(FIRST, 15, length=3 * MTU),
        run(MIDDLE, 17),
        run(LAST_IMM, 16),
        run(LAST_IMM, 17, nbytes=5),
        run(MIDDLE, 13, nbytes=MTU - 4),
        run(MIDDLE, 13, permitted=False),
        run(0x04, 13),
    ],
)
def test_what_contradicts_what_is_known_is_as_if_lost(wrong: object) -> None:
    core = begun()
    (told,) = arrive(core, wrong)  # type: ignore[arg-type]
    assert isinstance(told, Reply)
    assert told.behind is not None
    assert not told.behind.arrived
    assert core.counters.out_of_sequence == 1


def test_a_message_over_one_that_has_begun_ends_the_queue_pair() -> None:
    core = responder()
    arrive(core, run(FIRST, 13, length=3 * MTU))
    actions = arrive(core, run(FIRST, 10, length=8 * MTU))
    assert Reply(10, NAK_INVALID_REQUEST, 0) in actions
    assert isinstance(actions[-1], ResponderFailed)


def test_no_more_is_kept_than_the_bound() -> None:
    core = begun(behind_max=3)
    assert arrive(core, run(MIDDLE, 13, 14, 15)) == [Place(VA + 3 * MTU, RKEY, 0, 2), nak(11, 13, 14)]
    assert arrive(core, run(MIDDLE, 16)) == []
    assert core.counters.out_of_sequence == 2


def test_without_a_receive_a_packet_is_forgotten_until_it_comes_again() -> None:
    core = responder(receives=0)
    only = PacketArrived(ONLY_IMM, 11, True, 8, (VA, RKEY, 8), 5, True)
    before = PacketArrived(0x0A, 10, False, 8, (VA, RKEY, 8), None, True)
    assert core.step(only, NOW) == [Place(VA, RKEY, 0, 1), nak(10, 11)]
    assert core.step(before, NOW) == [Place(VA, RKEY, 0, 1), Reply(11, RNR_NAK | 12, 1)]
    core.step(PostReceive(3), NOW)
    assert core.step(only, NOW) == [Place(VA, RKEY, 0, 1), Deliver(3, 5, 8), Reply(11, ACK, 2)]


def test_in_order_all_is_as_ever() -> None:
    core = begun()
    assert arrive(core, run(MIDDLE, 11, 12, asks=(12,))) == [Place(VA + MTU, RKEY, 0, 2), Reply(12, ACK, 0)]
    assert arrive(core, run(MIDDLE, 11)) == [Reply(12, ACK, 0)]


# ---- requester ---------------------------------------------------------------------------------------


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
    post(core, 8)
    assert sent(told(core, 101, 103, 104)) == [101, 102]
    assert core.counters.retransmits == 2
    assert core.view().window == 8


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


def test_what_is_there_does_not_fill_the_window() -> None:
    core = requester()
    post(core, 64)
    assert sent(told(core, 100, 101, 102, 103, 104)) == [100, 108, 109, 110, 111]


def test_a_missing_packet_holds_the_sender_when_the_receiver_keeps_no_more() -> None:
    core = requester(behind_max=11)
    post(core, 64)
    assert sent(told(core, 100, *range(101, 108))) == [100, 108, 109, 110, 111]
    assert sent(told(core, 100, *range(101, 112))) == [100]


def test_what_came_and_could_not_be_kept_is_sent_again_when_more_has_come() -> None:
    core = requester()
    post(core, 8)
    assert sent(told(core, 100, reach=3)) == [100, 101, 102]


def test_a_nak_that_tells_nothing_asks_for_its_packet() -> None:
    core = requester()
    post(core, 8)
    assert sent(ack(core, 101, NAK_SEQUENCE)) == [101]
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
    assert sent(ack(core, 104)) == []  # the last of those that asked is still to come
    assert sent(ack(core, 106)) == list(range(107, 115))
    assert sent(ack(core, 114)) == list(range(115, 131))
    assert sent(ack(core, 130)) == [131]


def test_what_is_known_to_be_there_is_no_news_and_does_not_go_again() -> None:
    core = requester()
    post(core, 8)
    assert sent(told(core, 100, 101)) == [100]
    assert sent(timed_out(core)) == [100, 100]
    assert sent(ack(core, 101)) == [102, 103]


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


def test_of_lost_results_the_sender_only_hears_that_timers_should_be_short() -> None:
    core = requester()
    post(core, 8)
    assert sent(ack(core, 103, now=at(ANSWER))) == []
    assert sent(at_switch(core, 104, reach=0, now=at(ANSWER))) == []
    assert core.deadline == at(ANSWER + 2 * ANSWER)


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
    core = requester(outstanding_packets_max=32, ack_every=32)
    post(core, 32)
    timed_out(core)
    for acknowledged, last in ((100, 102), (102, 106), (106, 114)):
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


def test_after_a_wait_for_a_receive_that_packet_comes_again() -> None:
    core = requester()
    post(core, 1, 1)
    assert ack(core, 100, RNR_NAK | 1) == []
    assert told(core, 100, 101) == []
    assert sent(core.step(TimerExpired(), at(RNR_TIMER_NS[1]))) == [100]


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
