"""What a queue pair is told of the messages that are to go by it."""

from __future__ import annotations

import pytest

from inaproto.core.rdma.verbs import ACK_GROUP_PACKETS_MAX, QpAttributes


@pytest.mark.parametrize(
    ("messages", "nbytes", "ack_every", "outstanding", "signal_every"),
    [
        (8, 170 * 1024, 170, 8 * 170, 2),
        (8, 170 * 1024 + 1, 171, 8 * 171, 2),
        (7, 1, 1, 7, 1),
        (1, 0, 1, 1, 1),
        (4, 300 * 1024, ACK_GROUP_PACKETS_MAX, 1200, 1),
    ],
)
def test_a_window_of_messages_fits_and_each_is_acknowledged_at_its_end(
    messages: int, nbytes: int, ack_every: int, outstanding: int, signal_every: int
) -> None:
    asked = QpAttributes(mtu=1024, timeout=12, traffic_class=8)
    assert asked.for_messages(messages, nbytes) == QpAttributes(
        mtu=1024,
        timeout=12,
        traffic_class=8,
        ack_every=ack_every,
        outstanding_packets=outstanding,
        signal_every=signal_every,
    )
