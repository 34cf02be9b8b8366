"""RC requester: exact limits of its configuration, what its counters count, whom it blames in which words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.rdma.reliable_connection import (
    ACK,
    MESSAGE_BYTES_MAX,
    NAK_REMOTE_ACCESS,
    NAK_SEQUENCE,
    RETRY_FOREVER,
    RNR_NAK,
    RNR_TIMER_NS,
    Outcome,
)
from inaproto.core.rdma.requester import (
    Closing,
    Complete,
    PostWrite,
    RcRequester,
    RequesterConfig,
    RequesterCounters,
    TimerExpired,
    Transmit,
)
from inaproto.errors import Blame, ConfigError, LocalMisuse
from inaproto.units import PSN_MASK
from tests.unit.test_rc_requester import CONFIG, T0, TIMER, ack, asking, at, post, sent, write


@pytest.mark.parametrize(
    ("field", "least", "most"),
    [
        ("initial_psn", 0, PSN_MASK),
        ("mtu", 1, 4096),
        ("outstanding_packets_max", 1, PSN_MASK >> 1),
        ("messages_max", 1, 1 << 20),
        ("ack_every", 1, PSN_MASK),
        ("timeout", 0, 31),
        ("retry_count", 0, RETRY_FOREVER),
        ("rnr_retry", 0, RETRY_FOREVER),
        ("backoff_doublings_max", 0, 31),
        ("spread", 0, 0xFFFF_FFFF),
    ],
)
def test_limits_of_the_configuration(field: str, least: int, most: int) -> None:
    for value in (least, most):
        assert getattr(replace(CONFIG, **{field: value}), field) == value
    for value in (least - 1, most + 1):
        with pytest.raises(ConfigError) as caught:
            replace(CONFIG, **{field: value})
        assert str(caught.value) == f"{field} must be {least} to {most}, not {value}"


def test_defaults_are_those_of_hardware_where_it_has_any() -> None:
    config = RequesterConfig(initial_psn=0)
    assert (config.timeout, config.retry_count, config.rnr_retry) == (14, 7, 7)
    assert (config.mtu, config.outstanding_packets_max, config.psn_mask) == (1024, 512, PSN_MASK)


def test_the_longest_message() -> None:
    requester = RcRequester(replace(CONFIG, mtu=4096))
    [transmit] = requester.step(PostWrite(1, MESSAGE_BYTES_MAX, 0, 0, None), T0)
    assert isinstance(transmit, Transmit)
    assert transmit.message.packets == MESSAGE_BYTES_MAX // 4096
    assert transmit.count < transmit.message.packets
    with pytest.raises(LocalMisuse) as caught:
        requester.step(PostWrite(1, MESSAGE_BYTES_MAX + 1, 0, 0, None), T0)
    assert str(caught.value) == (
        f"a write of {MESSAGE_BYTES_MAX + 1} bytes: RC messages have 0 to {MESSAGE_BYTES_MAX}"
    )


def test_misuse_says_what_is_wrong() -> None:
    requester = RcRequester(replace(CONFIG, messages_max=1))
    post(requester, 1)
    with pytest.raises(LocalMisuse, match=r"^send queue full: 1 writes are not completed yet$"):
        requester.step(write(2), T0)
    requester.step(Closing(), T0)
    with pytest.raises(LocalMisuse, match=r"^write posted to a closed queue pair$"):
        requester.step(write(2), T0)


def test_reserved_syndromes_are_blamed_in_stable_words() -> None:
    requester = RcRequester(CONFIG)
    post(requester, 2)
    for count in (1, 2, 3):
        assert ack(requester, 101, 0x45) == [
            Blame("responder", "reserved AETH syndrome", "0x45 at PSN 101"),
        ]
        assert requester.counters.acks_ignored == count


def test_counters_count_each_of_their_kind() -> None:
    requester = RcRequester(replace(CONFIG, outstanding_packets_max=16))
    assert requester.counters == RequesterCounters()
    post(requester, *[1] * 8)
    for _ in range(3):
        ack(requester, 90)
    for psn in (100, 101):
        ack(requester, psn, RNR_NAK)
        ack(requester, psn, RNR_NAK)
        assert requester.deadline is not None
        requester.step(TimerExpired(), requester.deadline)
    for psn in (102, 103):
        ack(requester, psn, NAK_SEQUENCE, at(1 << 40))
    for _ in range(2):
        assert requester.deadline is not None
        requester.step(TimerExpired(), requester.deadline)
    ack(requester, 105, NAK_REMOTE_ACCESS, at(1 << 41))
    assert requester.counters == RequesterCounters(
        packets=8 + 31,
        # Each go-back narrows the window, down to one ACK group; a second timeout asks at each message.
        retransmits=8 + 7 + 6 + 4 + 1 + 5,
        timeouts=2,
        naks=3,
        naks_ignored=0,
        rnr_naks=4,
        acks_ignored=3,
    )


def test_naks_that_are_ignored_are_counted() -> None:
    requester = RcRequester(CONFIG)
    post(requester, 4)
    for _ in range(3):
        ack(requester, 100, NAK_SEQUENCE)
    assert (requester.counters.naks, requester.counters.naks_ignored) == (3, 2)


def test_the_view_shows_retries_while_they_last() -> None:
    requester = RcRequester(replace(CONFIG, retry_count=5))
    post(requester, 1, 1)
    for retries in (1, 2, 3):
        assert requester.deadline is not None
        requester.step(TimerExpired(), requester.deadline)
        assert requester.view().retries == retries
    ack(requester, 100)
    assert requester.view().retries == 0


def test_completions_carry_their_message() -> None:
    requester = RcRequester(CONFIG)
    [transmit] = post(requester, 2)
    assert isinstance(transmit, Transmit)
    assert ack(requester, 101) == [Complete(1, Outcome.SUCCESS, transmit.message)]


def test_messages_are_numbered_as_they_are_posted() -> None:
    requester = RcRequester(CONFIG)
    serials = [action.message.serial for action in post(requester, 1, 2, 1) if isinstance(action, Transmit)]
    assert serials == [0, 1, 2]
    assert requester.next_serial == 3


def test_every_rnr_retry_counts_as_one() -> None:
    requester = RcRequester(replace(CONFIG, rnr_retry=3))
    post(requester, 1)
    for _ in range(3):
        assert ack(requester, 100, RNR_NAK) == []
        assert requester.view().rnr_waiting
        assert requester.deadline is not None
        assert sent(requester.step(TimerExpired(), requester.deadline)) == [100]
    (complete, _) = ack(requester, 100, RNR_NAK)
    assert isinstance(complete, Complete)
    assert complete.outcome is Outcome.RNR_RETRY_EXCEEDED


def test_the_retransmission_timer_runs_after_an_rnr_wait() -> None:
    requester = RcRequester(CONFIG)
    post(requester, 1)
    ack(requester, 100, RNR_NAK | 1)
    wait = RNR_TIMER_NS[1]
    requester.step(TimerExpired(), at(wait))
    assert requester.deadline == at(wait + TIMER)


def test_an_acknowledgement_of_a_part_arms_the_timer_anew() -> None:
    requester = RcRequester(CONFIG)
    post(requester, 2)
    assert ack(requester, 100, now=at(7)) == []
    assert requester.deadline == at(7 + TIMER)


def test_the_round_trip_is_smoothed_by_eighths() -> None:
    """RFC 6298's gain, in whole nanoseconds."""
    requester = RcRequester(CONFIG)
    now, trips = 0, []
    for psn, trip in enumerate((1000, 1800, 1000, 1003), 100):
        requester.step(write(psn), at(now))
        now += trip
        ack(requester, psn, now=at(now))
        trips.append(requester.view().round_trip_ns)
    assert trips == [1000, 1100, 1087, 1076]
    assert all(isinstance(trip, int) for trip in trips)


def test_a_go_back_is_young_for_half_a_round_trip_exactly() -> None:
    requester = RcRequester(CONFIG)
    post(requester, 1, 4)
    ack(requester, 100, now=at(1001))
    assert requester.view().round_trip_ns == 1001
    assert sent(ack(requester, 101, NAK_SEQUENCE, at(2100))) == [101, 102, 103, 104]
    assert sent(ack(requester, 101, NAK_SEQUENCE, at(2100 + 499))) == []
    assert sent(ack(requester, 101, NAK_SEQUENCE, at(2100 + 500))) == [101, 102, 103, 104]


def test_the_window_grows_by_a_group_for_each_windows_worth() -> None:
    requester = RcRequester(replace(CONFIG, outstanding_packets_max=16))
    post(requester, *[1] * 100)
    ack(requester, 100, NAK_SEQUENCE)
    assert requester.view().window == 8
    windows = []
    for psn in range(100, 135):
        ack(requester, psn)
        windows.append(requester.view().window)
    assert windows == [8] * 7 + [12] * 12 + [16] * 16


def test_what_was_acknowledged_before_a_loss_does_not_count_towards_growth() -> None:
    requester = RcRequester(replace(CONFIG, outstanding_packets_max=16))
    post(requester, *[1] * 100)
    ack(requester, 100, NAK_SEQUENCE)
    for psn in range(100, 107):
        ack(requester, psn)
    assert requester.view().window == 8, "one packet short of its growth"
    ack(requester, 107, NAK_SEQUENCE, at(1 << 40))
    assert requester.view().window == 4
    windows = []
    for psn in range(107, 112):
        ack(requester, psn, now=at(1 << 40))
        windows.append(requester.view().window)
    assert windows == [4, 4, 4, 8, 8]


def test_a_window_that_opens_by_less_than_a_group_lets_nothing_out() -> None:
    requester = RcRequester(CONFIG)
    post(requester, 20)
    for psn in (100, 101, 102):
        assert ack(requester, psn) == [], "not even an empty order to send"
    assert sent(ack(requester, 103)) == [108, 109, 110, 111]


def test_after_closing_or_failure_the_view_is_at_rest() -> None:
    requester = RcRequester(CONFIG)
    post(requester, 3, 30)
    requester.step(Closing(), T0)
    view = requester.view()
    assert (view.outstanding, view.messages, view.una_psn, view.next_psn) == (0, 0, 133, 133)
    assert not view.rnr_waiting


def test_a_resent_packet_asks_as_its_original_did_at_every_width_of_the_window() -> None:
    requester = RcRequester(replace(CONFIG, outstanding_packets_max=12))
    first = post(requester, 11)
    assert asking(first) == [103, 107, 110]
    assert asking(ack(requester, 102, NAK_SEQUENCE)) == [103, 107]
    assert asking(ack(requester, 107, ACK)) == [110]


def test_no_more_is_kept_behind_a_gap_than_half_of_all_psns() -> None:
    narrow = replace(CONFIG, initial_psn=0, psn_mask=0xFF)
    assert replace(narrow, behind_max=127).behind_max == 127
    with pytest.raises(ConfigError, match="behind_max must be 0 to 127"):
        replace(narrow, behind_max=128)
