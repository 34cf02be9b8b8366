"""The window's size by the paper's formula, whom it blames in which words, and its very limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.core.host.message_window import (
    MessageWindow,
    Offered,
    ResultAccepted,
    ResultArrived,
    SendCompleted,
    SendMessage,
    WindowConfig,
    window_messages_for,
)
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import Instant, MsgId, S

NOW = Instant(0)


@given(st.integers(0, 10_000_000), st.integers(1, 400_000_000_000), st.integers(1, 1 << 20))
def test_the_smallest_power_of_two_that_fills_the_path(
    rtt_ns: int, rate_bps: int, message_bytes: int
) -> None:
    """NetReduce section 3.2: N * MsgLen * pktSize >= RTT * rate."""
    window = window_messages_for(rtt_ns=rtt_ns, rate_bps=rate_bps, message_bytes=message_bytes)
    assert window & (window - 1) == 0
    assert window * message_bytes * 8 * S >= rtt_ns * rate_bps
    assert window == 2 or (window // 2) * message_bytes * 8 * S < rtt_ns * rate_bps


@pytest.mark.parametrize(
    ("rtt_ns", "rate_bps", "message_bytes", "window"),
    [
        (0, 1, 1, 2),  # one travels while the result of another does
        (8 * S, 2, 1, 2),  # exactly two messages
        (8 * S, 3, 1, 4),
        (8 * S, 4, 1, 4),
        (8 * S, 5, 1, 8),
        (8 * S + 1, 4, 1, 8),  # one bit too much for four
        (20_000, 100_000_000_000, 170 * 1024, 2),
        (20_000, 100_000_000_000, 16 * 1024, 16),
    ],
)
def test_windows_of_some_paths(rtt_ns: int, rate_bps: int, message_bytes: int, window: int) -> None:
    assert window_messages_for(rtt_ns=rtt_ns, rate_bps=rate_bps, message_bytes=message_bytes) == window


@pytest.mark.parametrize(("rtt_ns", "rate_bps", "message_bytes"), [(-1, 1, 1), (0, 0, 1), (0, 1, 0)])
def test_paths_that_are_none(rtt_ns: int, rate_bps: int, message_bytes: int) -> None:
    with pytest.raises(LocalMisuse) as caught:
        window_messages_for(rtt_ns=rtt_ns, rate_bps=rate_bps, message_bytes=message_bytes)
    assert str(caught.value) == (
        f"window for {rtt_ns} ns, {rate_bps} bit/s, messages of {message_bytes} bytes"
    )


def test_results_out_of_order_blame_the_predecessor() -> None:
    window = MessageWindow(WindowConfig(window_messages=2))
    window.step(Offered(2), NOW)
    window.step(ResultArrived(0), NOW)
    assert window.step(ResultArrived(0), NOW) == [
        Blame("predecessor", "result out of order", "result 0 where 1 is due")
    ]
    window.step(ResultArrived(1), NOW)
    assert window.step(ResultArrived(2), NOW) == [
        Blame("predecessor", "result of a message not sent", "result 2 where 2 is due")
    ]


def test_completions_out_of_order_blame_the_transport() -> None:
    window = MessageWindow(WindowConfig(window_messages=2))
    window.step(Offered(2), NOW)
    window.step(SendCompleted(0), NOW)
    rule = "send completed out of order"
    assert window.step(SendCompleted(0), NOW) == [Blame("transport", rule, "message 0 where 1 is due")]
    window.step(SendCompleted(1), NOW)
    assert window.step(SendCompleted(2), NOW) == [Blame("transport", rule, "message 2 where 2 is due")]


def test_offering_nothing_is_allowed_and_less_is_not() -> None:
    window = MessageWindow(WindowConfig())
    assert window.step(Offered(0), NOW) == []
    assert window.step(Offered(1), NOW) == [SendMessage(MsgId(0), 0)]
    with pytest.raises(LocalMisuse, match=r"^-1 messages offered$"):
        window.step(Offered(-1), NOW)


def test_a_window_of_one_message_with_ids_of_one_bit() -> None:
    """2N messages fill the ids exactly: the least that can be told apart."""
    window = MessageWindow(WindowConfig(window_messages=1, id_bits=1))
    assert window.step(Offered(3), NOW) == [SendMessage(MsgId(0), 0)]
    assert window.step(SendCompleted(0), NOW) == []
    assert window.step(ResultArrived(0), NOW) == [ResultAccepted(MsgId(0), 0), SendMessage(MsgId(1), 1)]
    assert window.deadline is None


@pytest.mark.parametrize(
    ("n", "bits", "message"),
    [
        (3, 32, "window_messages 3: must be a power of two, msg_id mod 2N outlives its wrap"),
        (2, 1, "a window of 2 messages does not fit message ids of 1 bits"),
    ],
)
def test_windows_that_cannot_work_say_why(n: int, bits: int, message: str) -> None:
    with pytest.raises(LocalMisuse) as caught:
        WindowConfig(window_messages=n, id_bits=bits)
    assert str(caught.value) == message
