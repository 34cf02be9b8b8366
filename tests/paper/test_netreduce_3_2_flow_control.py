"""NetReduce section 3.2, "Flow Control", and the array size of section 3.1: the message window."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest

from inaproto.core.host.message_window import (
    MessageWindow,
    Offered,
    ResultArrived,
    SendCompleted,
    SendMessage,
    WindowConfig,
    window_messages_for,
)
from inaproto.units import US, Instant
from tests.unit.ideal_ring import IdealRing

NOW = Instant(0)


def test_3_2_messages_are_a_fifo_with_at_most_n_in_flight() -> None:
    """ "gradient messages are buffered in a FIFO queue with the sliding window"."""
    window = MessageWindow(WindowConfig(window_messages=4))
    actions = window.step(Offered(3), NOW) + window.step(Offered(3), NOW)
    assert [action.msg_id for action in actions if isinstance(action, SendMessage)] == [0, 1, 2, 3]


def test_3_2_the_window_advances_on_the_result_from_the_predecessor_only() -> None:
    """ "whenever a result message is received (from the predecessor), the window advances"."""
    window = MessageWindow(WindowConfig(window_messages=2))
    window.step(Offered(5), NOW)
    for msg_id in (0, 1):
        assert window.step(SendCompleted(msg_id), NOW) == [], "an acknowledgement must not advance it"
    sent = [a.msg_id for a in window.step(ResultArrived(0), NOW) if isinstance(a, SendMessage)]
    assert sent == [2]


@pytest.mark.parametrize(
    ("rtt_us", "rate_gbps", "expected"),
    [
        (10, 100, 2),  # 125 KB in flight, one message of 174 080 bytes would do: never less than two
        (20, 100, 2),  # 250 KB
        (30, 100, 4),  # 375 KB: 2.15 messages, and a power of two
        (100, 100, 8),  # 1.25 MB: 7.2 messages
    ],
)
def test_3_2_the_window_covers_the_bandwidth_delay_product(
    rtt_us: int, rate_gbps: int, expected: int
) -> None:
    """ "N x MsgLen x pktSize >= RTT x PortRate"."""
    message_bytes = 170 * 1024
    n = window_messages_for(rtt_ns=rtt_us * US, rate_bps=rate_gbps * 10**9, message_bytes=message_bytes)
    assert n == expected
    assert n * message_bytes * 8 >= rtt_us * 1e-6 * rate_gbps * 1e9


class Windows:
    """The windows of W ranks around an ideal network: result m exists once all ranks have sent m."""

    def __init__(self, windows: list[MessageWindow]) -> None:
        self.windows = windows

    def key(self) -> tuple[tuple[int, int, int], ...]:
        views = [window.view() for window in self.windows]
        return tuple((view.offered, view.received, view.completed) for view in views)

    def in_use(self) -> range:
        """Messages whose aggregators may still be needed: sent by some rank, lacked by some rank."""
        views = [window.view() for window in self.windows]
        return range(min(view.received for view in views), max(view.sent for view in views))

    def successors(self, messages: int, id_mask: int) -> list[Windows]:
        following = []
        for rank, window in enumerate(self.windows):
            view = window.view()
            events: list[Offered | ResultArrived | SendCompleted] = []
            if view.offered < messages:
                events.append(Offered(1))
            if all(other.view().sent > view.received for other in self.windows):
                events.append(ResultArrived(view.received & id_mask))
            # The transport completes a send after the successor has the result that travels in it.
            successor = self.windows[(rank + 1) % len(self.windows)].view()
            if view.completed < min(view.sent, successor.received):
                events.append(SendCompleted(view.completed & id_mask))
            for event in events:
                windows = [copy.copy(each) for each in self.windows]
                windows[rank].step(event, NOW)
                following.append(Windows(windows))
        return following


@pytest.mark.parametrize(("ranks", "n", "messages"), [(3, 1, 4), (3, 2, 5), (4, 1, 3)])
def test_3_1_two_windows_of_aggregators_are_enough_and_needed(ranks: int, n: int, messages: int) -> None:
    """ "the aggregator array size is set to be 2N messages": every reachable state, message ids of 3 bits.

    Stragglers, late results and late acknowledgements in every order. In no state are two messages in
    use whose aggregators are the same, in no state short of the end is everybody stuck, and some state
    uses all 2N.
    """
    config = WindowConfig(window_messages=n, id_bits=3)
    start = Windows([MessageWindow(config) for _ in range(ranks)])
    seen = {start.key()}
    queue = [start]
    most = 0
    while queue:
        state = queue.pop()
        most = max(most, len(state.in_use()))
        following = state.successors(messages, 7)
        if not following:
            assert all(window.view().received == messages for window in state.windows), "stuck"
        for successor in following:
            if successor.key() not in seen:
                seen.add(successor.key())
                queue.append(successor)
    assert most == 2 * n


def test_3_1_messages_are_cut_alike_and_results_put_back_in_order() -> None:
    """Section 3.1, "Worker Sending Gradient" and "Worker Receiving Results", on whole messages."""
    ring = IdealRing(4, window_messages=2)
    values = np.arange(1000, dtype=np.int32)
    for rank in range(4):
        ring.submit(rank, 0, values * (rank + 1))
    assert [message.msg_id for message in ring.members[0].sent] == [0, 1]
    ring.run(random.Random(5).randrange)
    for member in ring.members:
        assert np.array_equal(member.buffers[0].view(np.int32), values * 10)
