"""RC requester, rule by rule. Times in the comments are multiples of the first retransmission timer."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import pytest

from inaproto.core.rdma.reliable_connection import (
    ACK,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATION,
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
    PostWrite,
    RcRequester,
    RequesterAction,
    RequesterConfig,
    RequesterState,
    TimerExpired,
    Transmit,
)
from inaproto.errors import Blame, ConfigError, LocalMisuse
from inaproto.units import PSN_MASK, Instant, S

T0 = Instant(1_000_000)
TIMER = TIMEOUT_UNIT_NS << 14
CONFIG = RequesterConfig(initial_psn=100, outstanding_packets_max=8, ack_every=4)


def at(ns: int) -> Instant:
    return Instant(T0 + ns)


def write(wr_id: int, packets: int = 1) -> PostWrite:
    return PostWrite(wr_id, packets * 1024, 0x1000, 7, wr_id)


def post(requester: RcRequester, *packets: int, now: Instant = T0) -> list[RequesterAction]:
    """Post a message of each size, wr_ids counting from 1."""
    return [action for i, n in enumerate(packets) for action in requester.step(write(i + 1, n), now)]


def ack(requester: RcRequester, psn: int, syndrome: int = ACK, now: Instant = T0) -> list[RequesterAction]:
    return requester.step(AckArrived(psn, syndrome, 0), now)


def sent(actions: list[RequesterAction]) -> list[int]:
    """PSNs in the order of sending."""
    return [
        (action.psn + i) & PSN_MASK
        for action in actions
        if isinstance(action, Transmit)
        for i in range(action.count)
    ]


def ends_message(sent: Transmit) -> bool:
    """The message's last packet is among them; it carries AckReq too."""
    return sent.first_packet + sent.count == sent.message.packets


def asking(actions: list[RequesterAction]) -> list[int]:
    """PSNs that carry AckReq."""
    psns = []
    for action in actions:
        if isinstance(action, Transmit):
            base = action.psn - action.first_packet
            psns += [base + packet for packet in action.ack_packets]
            psns += [action.psn + action.count - 1] * ends_message(action)
    return sorted(set(psns))


def ended(actions: list[RequesterAction]) -> list[tuple[int, Outcome]]:
    return [(action.wr_id, action.outcome) for action in actions if isinstance(action, Complete)]


def test_psns_are_contiguous_over_messages_and_wrap() -> None:
    requester = RcRequester(replace(CONFIG, initial_psn=PSN_MASK - 1, ack_every=2))
    assert sent(post(requester, 2, 1, 3)) == [PSN_MASK - 1, PSN_MASK, 0, 1, 2, 3]
    assert ended(ack(requester, PSN_MASK)) == [(1, Outcome.SUCCESS)]
    assert ended(ack(requester, 3)) == [(2, Outcome.SUCCESS), (3, Outcome.SUCCESS)]
    assert requester.view().una_psn == requester.view().next_psn == 4


@pytest.mark.parametrize(("nbytes", "packets"), [(0, 1), (1, 1), (1024, 1), (1025, 2), (170 * 1024, 170)])
def test_packets_of_a_message(nbytes: int, packets: int) -> None:
    requester = RcRequester(replace(CONFIG, outstanding_packets_max=400))
    actions = requester.step(PostWrite(1, nbytes, 0, 0, None), T0)
    assert len(sent(actions)) == packets


def test_an_ack_is_asked_for_at_the_end_of_each_message_and_of_each_group() -> None:
    requester = RcRequester(replace(CONFIG, outstanding_packets_max=100))
    assert asking(post(requester, 10, 4, 1)) == [103, 107, 109, 113, 114]


def test_the_last_packet_before_the_window_closes_asks_for_an_ack() -> None:
    for window in range(1, 20):
        for ack_every in range(1, 12):
            requester = RcRequester(replace(CONFIG, outstanding_packets_max=window, ack_every=ack_every))
            actions = post(requester, 5, 30, 2)
            assert len(sent(actions)) <= window
            assert asking(actions)[-1] == sent(actions)[-1]


def test_the_window_opens_by_whole_ack_groups() -> None:
    requester = RcRequester(CONFIG)
    assert sent(post(requester, 20)) == list(range(100, 108))
    assert sent(ack(requester, 100)) == []
    assert sent(ack(requester, 103)) == [108, 109, 110, 111]
    assert sent(ack(requester, 111)) == list(range(112, 120))
    assert ended(ack(requester, 119)) == [(1, Outcome.SUCCESS)]
    assert requester.deadline is None


def test_acks_are_cumulative() -> None:
    requester = RcRequester(CONFIG)
    post(requester, 2, 2, 2)
    assert ended(ack(requester, 102)) == [(1, Outcome.SUCCESS)]
    assert ended(ack(requester, 105)) == [(2, Outcome.SUCCESS), (3, Outcome.SUCCESS)]


@pytest.mark.parametrize("psn", [99, 106, 107, 100 - (1 << 23), 100 + (1 << 23), 101])
@pytest.mark.parametrize("syndrome", [ACK, NAK_SEQUENCE, NAK_REMOTE_ACCESS, RNR_NAK])
def test_acks_outside_the_outstanding_range_are_ignored(psn: int, syndrome: int) -> None:
    requester = RcRequester(CONFIG)
    post(requester, 2, 2, 2)
    ack(requester, 101)
    before = requester.view()
    assert ack(requester, psn & PSN_MASK, syndrome) == []
    assert requester.view() == before
    assert requester.counters.acks_ignored == 1


def test_a_nak_acknowledges_all_before_and_goes_back_in_mid_message() -> None:
    requester = RcRequester(replace(CONFIG, outstanding_packets_max=16))
    post(requester, 2, 6)
    actions = ack(requester, 104, NAK_SEQUENCE)
    assert ended(actions) == [(1, Outcome.SUCCESS)]
    assert sent(actions) == [104, 105, 106, 107]
    transmit = actions[-1]
    assert isinstance(transmit, Transmit)
    assert (transmit.message.write.wr_id, transmit.first_packet) == (2, 2)
    assert asking(actions) == [105, 107], "a resent packet asks as its original did"
    assert requester.counters.retransmits == 4


def test_every_packet_from_the_missing_one_on_is_resent() -> None:
    """Go-back-N: not the missing packet alone."""
    requester = RcRequester(CONFIG)
    post(requester, *[1] * 8)
    actions = ack(requester, 102, NAK_SEQUENCE)
    resent = sent(actions)
    for psn in range(102, 106):
        resent += sent(ack(requester, psn))
    assert resent == list(range(102, 108))


def test_a_second_nak_of_one_gap_is_ignored_while_the_first_go_back_is_under_way() -> None:
    requester = RcRequester(CONFIG)
    post(requester, 4, 4)
    ack(requester, 103, now=at(1000))  # the round trip is 1000
    assert sent(ack(requester, 104, NAK_SEQUENCE, at(2000))) == [104, 105, 106, 107]
    assert sent(ack(requester, 104, NAK_SEQUENCE, at(2001))) == []
    assert sent(ack(requester, 104, NAK_SEQUENCE, at(2499))) == []
    assert requester.counters.naks_ignored == 2
    # An answer to the resent packets: the head was lost again.
    assert sent(ack(requester, 104, NAK_SEQUENCE, at(3000))) == [104, 105, 106, 107]


def test_before_a_round_trip_is_known_a_second_nak_waits_for_the_timer() -> None:
    requester = RcRequester(CONFIG)
    post(requester, 4)
    assert sent(ack(requester, 100, NAK_SEQUENCE, at(0))) == [100, 101, 102, 103]
    assert sent(ack(requester, 100, NAK_SEQUENCE, at(TIMER - 1))) == []
    assert sent(requester.step(TimerExpired(), at(TIMER))) == [100, 100]
    assert sent(ack(requester, 100, NAK_SEQUENCE, at(TIMER))) == [100, 101, 102, 103]


def test_the_timer_goes_back_to_the_first_unacknowledged_packet() -> None:
    requester = RcRequester(CONFIG)
    post(requester, 2, 1)
    ack(requester, 101, now=at(10))
    assert requester.deadline == at(10 + TIMER), "progress restarts the timer"
    assert requester.step(TimerExpired(), at(9 + TIMER)) == []
    assert sent(requester.step(TimerExpired(), at(10 + TIMER))) == [102]
    assert requester.counters.timeouts == 1


def test_the_timer_doubles_up_to_its_bound_and_progress_resets_it() -> None:
    requester = RcRequester(replace(CONFIG, backoff_doublings_max=6))
    post(requester, 2)
    now, waits = T0, []
    for _ in range(7):
        deadline = requester.deadline
        assert deadline is not None
        waits.append(deadline - now)
        now = deadline
        assert sent(requester.step(TimerExpired(), now)) == [100, 100]
    assert waits == [TIMER, 2 * TIMER, 4 * TIMER, 8 * TIMER, S, S, S]
    ack(requester, 100, now=now)
    assert requester.deadline == now + TIMER


def test_a_first_timer_above_the_bound_is_kept() -> None:
    requester = RcRequester(replace(CONFIG, timeout=20))
    post(requester, 1)
    for _ in range(3):
        before = requester.deadline
        assert before is not None
        requester.step(TimerExpired(), before)
        assert requester.deadline == before + (TIMEOUT_UNIT_NS << 20)


def waits(requester: RcRequester, count: int) -> list[int]:
    """Between the first timeouts of a packet that is never acknowledged."""
    post(requester, 1)
    found, now = [], T0
    for _ in range(count):
        assert requester.deadline is not None
        found.append(requester.deadline - now)
        now = requester.deadline
        requester.step(TimerExpired(), now)
    return found


def test_from_the_third_timeout_on_each_requester_has_timers_of_its_own() -> None:
    plain, one, other, again = (
        waits(RcRequester(replace(CONFIG, timeout=8, spread=spread)), 12) for spread in (0, 1, 2, 1)
    )
    assert one == again
    assert plain[:3] == one[:3] == other[:3]
    for spread, found in ((1, one), (2, other)):
        drawn = [zlib.crc32(struct.pack(">IQ", spread, timeouts)) % 256 for timeouts in range(3, 12)]
        assert found[3:] == [
            exact - exact // 1024 * part for exact, part in zip(plain[3:], drawn, strict=True)
        ]
    assert not set(one[3:]) & set(other[3:]), "at the bound too, so no two stay in step"


def test_a_first_timer_beyond_the_bound_is_not_spread() -> None:
    assert waits(RcRequester(replace(CONFIG, timeout=20, spread=1)), 5) == [TIMEOUT_UNIT_NS << 20] * 5


def test_timeout_zero_never_expires() -> None:
    requester = RcRequester(replace(CONFIG, timeout=0))
    post(requester, 3)
    assert requester.deadline is None
    assert sent(ack(requester, 101, NAK_SEQUENCE)) == [101, 102]
    assert sent(ack(requester, 101, NAK_SEQUENCE, at(S))) == []


def test_losses_narrow_the_window_and_progress_widens_it() -> None:
    requester = RcRequester(replace(CONFIG, outstanding_packets_max=32))
    post(requester, *[4] * 100)
    assert requester.view().outstanding == 32
    ack(requester, 100, NAK_SEQUENCE)
    assert requester.view().window == 16
    for later in range(1, 4):
        ack(requester, 100, NAK_SEQUENCE, at(later * TIMER))
    assert requester.view().window == 4, "never below one ACK group"
    psn, windows = 99, []
    for _ in range(60):
        psn += 4
        ack(requester, psn)
        windows.append(requester.view().window)
    assert windows == sorted(windows)
    assert windows[0] == 8
    assert windows[-1] == 32


def test_retry_count_3_is_4_transmissions_then_the_head_fails_and_the_rest_is_flushed() -> None:
    requester = RcRequester(replace(CONFIG, retry_count=3))
    transmissions = [post(requester, 1, 2)]
    while requester.deadline is not None:
        transmissions.append(requester.step(TimerExpired(), requester.deadline))
    assert [sent(actions) for actions in transmissions] == [[100, 101, 102], [100], *[[100, 101]] * 2, []]
    assert transmissions[-1] == [
        Complete(1, Outcome.RETRY_EXCEEDED, transmissions[0][0].message),  # type: ignore[union-attr]
        Complete(2, Outcome.FLUSHED, transmissions[0][1].message),  # type: ignore[union-attr]
        Failed(Outcome.RETRY_EXCEEDED),
    ]
    assert requester.view().state is RequesterState.ERROR
    assert requester.step(write(3), T0) == [Complete(3, Outcome.FLUSHED, None)]
    assert ack(requester, 100) == []


def test_progress_refills_the_retries() -> None:
    requester = RcRequester(replace(CONFIG, retry_count=1))
    post(requester, 1, 1)
    for psn in (100, 101):
        assert requester.deadline is not None
        assert sent(requester.step(TimerExpired(), requester.deadline))
        ack(requester, psn)
    assert requester.view().state is RequesterState.READY
    assert requester.view().messages == 0


def test_retry_count_7_never_gives_up() -> None:
    requester = RcRequester(CONFIG)
    post(requester, 1)
    for _ in range(100):
        assert requester.deadline is not None
        assert sent(requester.step(TimerExpired(), requester.deadline)) == [100]


@pytest.mark.parametrize(
    ("syndrome", "outcome"),
    [
        (NAK_INVALID_REQUEST, Outcome.REMOTE_INVALID_REQUEST),
        (NAK_REMOTE_ACCESS, Outcome.REMOTE_ACCESS),
        (NAK_REMOTE_OPERATION, Outcome.REMOTE_OPERATION),
    ],
)
def test_fatal_naks_complete_what_came_before(syndrome: int, outcome: Outcome) -> None:
    requester = RcRequester(CONFIG)
    post(requester, 2, 2, 2)
    actions = ack(requester, 103, syndrome)
    assert ended(actions) == [(1, Outcome.SUCCESS), (2, outcome), (3, Outcome.FLUSHED)]
    assert actions[-1] == Failed(outcome)
    assert requester.deadline is None


@pytest.mark.parametrize("syndrome", [0x40, 0x64, 0x7F, 0x80, 0xFF])
def test_reserved_syndromes_are_blamed_and_change_nothing(syndrome: int) -> None:
    requester = RcRequester(CONFIG)
    post(requester, 2)
    before = requester.view()
    (blame,) = ack(requester, 100, syndrome)
    assert isinstance(blame, Blame)
    assert requester.view() == before


def test_rnr_nak_waits_as_long_as_it_says_and_resends_from_there() -> None:
    requester = RcRequester(CONFIG)
    post(requester, 1, 2)
    wait = RNR_TIMER_NS[12]
    assert wait == 640_000
    assert ended(ack(requester, 101, RNR_NAK | 12)) == [(1, Outcome.SUCCESS)]
    assert requester.deadline == at(wait)
    assert ack(requester, 101, NAK_SEQUENCE) == [], "sent before the receiver was not ready"
    assert ack(requester, 101, RNR_NAK | 1) == []
    assert post(requester, 1) == [], "nothing leaves during the wait"
    assert requester.step(TimerExpired(), at(wait - 1)) == []
    assert sent(requester.step(TimerExpired(), at(wait))) == [101, 102, 103]
    assert requester.view().window == 8, "a receiver that is not ready is no loss"


def test_rnr_wait_ends_early_when_the_message_is_acknowledged() -> None:
    requester = RcRequester(CONFIG)
    post(requester, 1, 2)
    ack(requester, 100, RNR_NAK | 12)
    actions = ack(requester, 100)
    assert ended(actions) == [(1, Outcome.SUCCESS)]
    assert sent(actions) == [101, 102]


def test_rnr_retries_run_out_and_progress_refills_them() -> None:
    requester = RcRequester(replace(CONFIG, rnr_retry=1))
    post(requester, 1, 1)
    for psn in (100, 101):
        assert ended(ack(requester, psn, RNR_NAK)) == ([(1, Outcome.SUCCESS)] if psn == 101 else [])
        assert requester.deadline is not None
        requester.step(TimerExpired(), requester.deadline)
    actions = ack(requester, 101, RNR_NAK)
    assert ended(actions) == [(2, Outcome.RNR_RETRY_EXCEEDED)]


def test_closing_flushes() -> None:
    requester = RcRequester(CONFIG)
    post(requester, 3, 30)
    assert ended(requester.step(Closing(), T0)) == [(1, Outcome.FLUSHED), (2, Outcome.FLUSHED)]
    assert requester.deadline is None
    assert ack(requester, 101) == []
    with pytest.raises(LocalMisuse, match="closed"):
        requester.step(write(1), T0)


def test_misuse_leaves_the_state_untouched() -> None:
    requester = RcRequester(replace(CONFIG, messages_max=2))
    post(requester, 1, 1)
    before = requester.view()
    with pytest.raises(LocalMisuse, match="send queue full"):
        requester.step(write(3), T0)
    for nbytes in (-1, (1 << 31) + 1):
        with pytest.raises(LocalMisuse, match="bytes"):
            requester.step(PostWrite(3, nbytes, 0, 0, None), T0)
    assert requester.view() == before


def test_a_round_trip_is_not_taken_from_a_resent_packet() -> None:
    """Karn's rule: the ACK might answer either transmission."""
    requester = RcRequester(CONFIG)
    post(requester, 1)
    requester.step(TimerExpired(), at(TIMER))
    ack(requester, 100, now=at(TIMER + 5))
    assert requester.view().round_trip_ns is None
    requester.step(write(2), at(TIMER + 10))
    ack(requester, 101, now=at(TIMER + 30))
    assert requester.view().round_trip_ns == 20


def test_a_round_trip_ends_with_the_ack_of_the_very_packet() -> None:
    requester = RcRequester(CONFIG)
    post(requester, 4)
    ack(requester, 102, now=at(5))
    assert requester.view().round_trip_ns is None
    ack(requester, 103, now=at(9))
    assert requester.view().round_trip_ns == 9


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("initial_psn", PSN_MASK + 1),
        ("mtu", 0),
        ("outstanding_packets_max", 1 << 23),
        ("ack_every", 0),
        ("timeout", 32),
        ("retry_count", 8),
        ("rnr_retry", -1),
        ("messages_max", 0),
    ],
)
def test_configuration_names_the_field(field: str, value: int) -> None:
    with pytest.raises(ConfigError, match=field):
        replace(CONFIG, **{field: value})
