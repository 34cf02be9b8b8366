"""Packets of a flow that has a rate (docs/protocol.md 4.5)."""

from __future__ import annotations

import pytest

from inaproto.core.rdma.pacing import FRAME_OVERHEAD_BYTES, PACKET_BY_PACKET, Pace, PaceConfig
from inaproto.errors import ConfigError
from inaproto.units import MS, US, Instant, S

PACKET = 1000 - FRAME_OVERHEAD_BYTES
GBPS = 10**9
T0 = Instant(0)


def pace(rate: int = GBPS, config: PaceConfig = PACKET_BY_PACKET) -> Pace:
    """Frames of 1000 bytes: 8 us each at 1 Gbit/s."""
    return Pace(config, PACKET, rate, T0)


def test_packets_leave_one_by_one_each_when_its_frame_is_paid() -> None:
    flow = pace()
    assert (flow.packets(T0), flow.ready_at()) == (0, 8 * US)
    assert flow.packets(Instant(8 * US - 1)) == 0
    assert flow.packets(Instant(8 * US)) == 1
    flow.spend(1)
    assert (flow.packets(Instant(8 * US)), flow.ready_at()) == (0, 16 * US)


@pytest.mark.parametrize("rate", [10**6, 333_333_333, 7 * GBPS + 1, 40 * GBPS])
def test_over_a_second_the_rate_is_exact(rate: int) -> None:
    flow, now, sent = pace(rate), T0, 0
    end = min(S, 2000 * 8000 * GBPS // rate)
    while (now := flow.ready_at()) <= end:
        packets = flow.packets(now)
        flow.spend(packets)
        sent += packets
    assert sent == rate * end // (8000 * 10**9)


def test_a_silent_flow_may_send_two_packets_at_once_or_its_burst() -> None:
    flow = pace()
    assert (flow.packets(Instant(S)), flow.ready_at()) == (2, S)
    assert pace(config=PaceConfig(burst_bytes=10_000)).packets(Instant(S)) == 10


def test_what_is_sent_all_the_same_is_paid_later() -> None:
    flow = pace()
    flow.spend(3)
    assert flow.ready_at() == 4 * 8 * US


def test_another_rate_holds_from_now_on() -> None:
    flow = pace()
    flow.set_rate(GBPS // 2, Instant(4 * US))
    assert flow.rate_bps == GBPS // 2
    assert flow.ready_at() == 12 * US, "half was paid at the rate before"


def test_a_rate_that_is_cut_takes_what_was_saved_at_the_rate_before() -> None:
    flow = pace(20 * GBPS, PaceConfig(quantum_ns=200 * US))
    assert flow.packets(Instant(10**9)) > 900
    flow.set_rate(10**6, Instant(10**9))
    assert flow.packets(Instant(10**9)) == 2


def test_a_coarse_clock_lets_packets_of_a_quantum_leave_together() -> None:
    flow = pace(config=PaceConfig(quantum_ns=MS // 2))
    assert flow.packets(Instant(MS // 2 - 1)) == 0
    assert flow.packets(Instant(MS // 2)) == 62
    flow.spend(62)
    assert MS - 8 * US <= flow.ready_at() <= MS
    assert pace(10**6, PaceConfig(quantum_ns=MS // 2)).ready_at() == 8 * MS, "one packet is more than that"


def test_negative_bursts_are_refused() -> None:
    with pytest.raises(ConfigError, match="pacing"):
        PaceConfig(burst_bytes=-1)
