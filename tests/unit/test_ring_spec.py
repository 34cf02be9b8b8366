"""What a ring must be before an accelerator takes it, at the very limits, and how a refusal reads."""

from __future__ import annotations

from typing import Any

import pytest

from inaproto.core.ring_spec import FlowSpec, RingSpec
from inaproto.errors import LocalMisuse


def flows(ranks: int) -> tuple[FlowSpec, ...]:
    return tuple(
        FlowSpec(rank, bytes([10, 0, 0, rank]), bytes([10, 0, 0, (rank + 1) % ranks]), 20 + rank)
        for rank in range(ranks)
    )


def ring(**changes: Any) -> RingSpec:
    values: dict[str, Any] = {
        "ring_id": 7,
        "epoch": 1,
        "key": 3,
        "window_messages": 2,
        "message_packets": 4,
        "mtu": 256,
        "flows": flows(2),
    }
    return RingSpec(**values | changes)


def test_the_smallest_ring() -> None:
    spec = ring(window_messages=1, message_packets=1, mtu=64)
    assert (spec.size, spec.regions) == (2, 2)
    assert spec.flows[0].connection == (bytes([10, 0, 0, 0]), bytes([10, 0, 0, 1]), 20)


def test_a_larger_one() -> None:
    spec = ring(flows=flows(5), window_messages=8)
    assert (spec.size, spec.regions) == (5, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flows": flows(1)}, "ring 7 has 1 ranks; a ring needs at least 2"),
        ({"flows": flows(2)[::-1]}, "ring 7: flows must be those of ranks 0, 1, 2, ... in order"),
        ({"flows": flows(3)[1:]}, "ring 7: flows must be those of ranks 0, 1, 2, ... in order"),
        (
            {"flows": tuple(FlowSpec(rank, b"\1\1\1\1", b"\2\2\2\2", 5) for rank in range(2))},
            "ring 7: two ranks share one connection",
        ),
        ({"window_messages": 0}, "ring 7: window of 0 messages is no power of two"),
        ({"window_messages": 3}, "ring 7: window of 3 messages is no power of two"),
        ({"window_messages": 6}, "ring 7: window of 6 messages is no power of two"),
        ({"message_packets": 0}, "ring 7: 0 packets a message"),
        ({"message_packets": 1 << 16}, "ring 7: 65536 packets a message"),
        ({"mtu": 56}, "ring 7: MTU 56 is below 64 or no multiple of 8"),
        ({"mtu": 260}, "ring 7: MTU 260 is below 64 or no multiple of 8"),
        (
            {"window_messages": 2, "message_packets": 3, "psn_bits": 4},
            "ring 7: 2 x 2 messages of 3 packets do not fit in half of a 4-bit PSN space",
        ),
        ({"msg_id_bits": 3}, "ring 7: message ids of 3 bits are too narrow"),
    ],
)
def test_what_no_ring_can_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LocalMisuse) as caught:
        ring(**changes)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "changes",
    [
        {"window_messages": 2, "message_packets": 2, "psn_bits": 4},  # exactly half of the PSN space
        {"window_messages": 2, "msg_id_bits": 4},
        {"window_messages": 1, "message_packets": (1 << 16) - 1},
        {"mtu": 72},
    ],
)
def test_what_just_fits(changes: dict[str, Any]) -> None:
    ring(**changes)
