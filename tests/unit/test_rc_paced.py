"""The retransmission timer of a requester whose packets leave at a rate (docs/protocol.md 4.5, rule 6)."""

from __future__ import annotations

import pytest

from inaproto.core.rdma.pacing import FRAME_OVERHEAD_BYTES
from inaproto.core.rdma.reliable_connection import NAK_SEQUENCE, TIMEOUT_UNIT_NS
from inaproto.core.rdma.requester import (
    AckArrived,
    PostWrite,
    RateChanged,
    RcRequester,
    RequesterConfig,
    TimerExpired,
    Transmit,
)
from inaproto.core.rdma.selective_requester import SelectiveRequester
from inaproto.units import MS, Instant
from inaproto.wire.behind_gap import BEHIND_PACKETS_MAX, BehindGap

MTU, GROUP = 1024, 64
RATE_BPS = 10_000_000
PACKET_NS = (MTU + FRAME_OVERHEAD_BYTES) * 8 * 10**9 // RATE_BPS


def sent_until(
    packets: int, *, timeout: int, messages: int, kind: type[RcRequester] = RcRequester
) -> tuple[RcRequester, Instant]:
    """Nothing is acknowledged; until so many packets have left, or a timer has expired."""
    behind = BEHIND_PACKETS_MAX if kind is SelectiveRequester else 0
    requester = kind(
        RequesterConfig(
            0, mtu=MTU, outstanding_packets_max=512, ack_every=GROUP, timeout=timeout, behind_max=behind
        )
    )
    requester.step(RateChanged(RATE_BPS), Instant(0))
    for number in range(messages):
        requester.step(PostWrite(number, GROUP * MTU, 0, 0, 0), Instant(0))
    sent, now = 0, Instant(0)
    while sent < packets and not requester.counters.timeouts:
        assert requester.deadline is not None
        now = requester.deadline
        actions = requester.step(TimerExpired(), now)
        sent += sum(action.count for action in actions if isinstance(action, Transmit))
    return requester, now


@pytest.mark.parametrize("kind", [RcRequester, SelectiveRequester])
def test_the_timer_waits_for_the_rest_of_a_group_that_asks_nobody_yet(kind: type[RcRequester]) -> None:
    """A packet takes 0.9 ms, and the timer would be over in 0.26."""
    requester, now = sent_until(GROUP, timeout=6, messages=1, kind=kind)
    assert requester.counters.timeouts == 0
    assert now == pytest.approx(GROUP * PACKET_NS, rel=0.01)


def test_the_timer_does_not_wait_for_the_rest_of_a_group_of_which_a_packet_goes_again() -> None:
    requester, now = sent_until(8, timeout=6, messages=1, kind=SelectiveRequester)
    requester.step(AckArrived(0, NAK_SEQUENCE, 0, BehindGap(3, 0b111)), now)
    assert requester.deadline == now + (TIMEOUT_UNIT_NS << 6)


@pytest.mark.parametrize("timeout", [8, 10, 12])
def test_a_group_that_has_asked_is_not_waited_for_until_others_have_left(timeout: int) -> None:
    requester, now = sent_until(8 * GROUP, timeout=timeout, messages=8)
    assert requester.counters.timeouts == 1
    timer = TIMEOUT_UNIT_NS << timeout
    assert GROUP * PACKET_NS + timer <= now <= GROUP * PACKET_NS + timer + MS
