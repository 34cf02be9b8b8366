"""What a ring must be before an accelerator takes it, at the very limits, and how a refusal reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.errors import LocalMisuse
from inaproto.units import PortId
from inaproto.wire.messages.switch import Role, VirtualConnection
from tests.unit.switched_ring import ip, mac, nameless

SOME_ADDRESSES = "ring 7: Ethernet addresses of all ranks are known, or of none"


def flows(ranks: int) -> tuple[FlowSpec, ...]:
    return tuple(
        FlowSpec(rank, ip(rank), ip((rank + 1) % ranks), 20 + rank, mac(rank), mac((rank + 1) % ranks))
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


def test_addresses_as_a_frame_begins() -> None:
    assert [flow.addresses for flow in flows(2)] == [mac(1) + mac(0), mac(0) + mac(1)]
    assert nameless(ring())[0].addresses == b""


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
        ({"first_message": -1}, "ring 7 begins with message -1"),
        ({"msg_id_bits": 3}, "ring 7: message ids of 3 bits are too narrow"),
        ({"flows": (flows(2)[0], replace(flows(2)[1], src_mac=b"", dst_mac=b""))}, SOME_ADDRESSES),
        ({"flows": tuple(replace(flow, dst_mac=b"") for flow in flows(2))}, SOME_ADDRESSES),
        ({"flows": tuple(replace(flow, src_mac=bytes(5)) for flow in flows(2))}, SOME_ADDRESSES),
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
        {"first_message": 1 << 40},  # message ids wrap
    ],
)
def test_what_just_fits(changes: dict[str, Any]) -> None:
    ring(**changes)


# -- what the switch does for a ring that spans several ---------------------------------------------


def link(peer: int) -> VirtualConnection:
    """To a switch, which is at the port of its number."""
    here, there = ((bytes([2, 0, 0, 0, 9, at]), bytes([10, 9, 0, at])) for at in (0, peer))
    return VirtualConnection(f"switch {peer}", PortId(peer), *here, *there, 0x80_0007, peer)


@pytest.mark.parametrize(
    "role",
    [
        pytest.param(Role(inputs=(0, 1, 2, 3), delivers=(0, 1, 2, 3)), id="alone"),
        pytest.param(Role(inputs=(0, link(1)), delivers=(3,), notes=((0, link(1)),)), id="root"),
        pytest.param(Role(inputs=(link(1), link(2)), delivers=(1, 3)), id="no hosts"),
        pytest.param(
            Role(inputs=(0, 1), parent=link(3), delivers=(0, 3), notes=((1, link(3)), (3, link(3)))),
            id="leaf",
        ),
        pytest.param(Role(steered=(0, 1), steer_to=PortId(0)), id="steers"),
    ],
)
def test_what_a_switch_may_do_for_a_ring(role: Role) -> None:
    assert ring(flows=flows(4), role=role).role == role


@pytest.mark.parametrize(
    ("role", "named"),
    [
        (Role(inputs=(0, 4), delivers=(0, 4)), "[0, 4]"),
        (Role(inputs=(0,), delivers=(3, 0, 5)), "[0, 3, 5]"),
        (Role(inputs=(0,), parent=link(1), delivers=(0,), notes=((7, link(1)),)), "[0, 7]"),
        (Role(steered=(-1,), steer_to=PortId(0)), "[-1]"),
    ],
    ids=["inputs", "delivers", "notes", "steered"],
)
def test_a_role_names_ranks_of_its_ring(role: Role, named: str) -> None:
    with pytest.raises(LocalMisuse) as caught:
        ring(flows=flows(4), role=role)
    assert str(caught.value) == f"ring 7 has 4 ranks, its role names {named}"


def test_a_ring_over_several_switches_needs_the_addresses_of_its_ranks() -> None:
    with pytest.raises(LocalMisuse) as caught:
        ring(flows=nameless(ring()), role=Role(inputs=(0, 1), delivers=(0, 1)))
    message = "ring 7 spans several switches: the Ethernet addresses of its ranks are missing"
    assert str(caught.value) == message


STEERS_ONLY = "a switch without inputs steers, to a port, and does no more"


@pytest.mark.parametrize(
    ("role", "message"),
    [
        (Role(inputs=(0, 1, 0), delivers=(0, 1)), "an input twice"),
        (Role(inputs=(link(1), link(1))), "an input twice"),
        (
            Role(inputs=(0,), delivers=(0,), steered=(1,), steer_to=PortId(1)),
            "a switch sums for a ring or steers its packets, not both",
        ),
        (Role(steered=(0,)), STEERS_ONLY),
        (Role(steered=(0,), steer_to=PortId(1), parent=link(1)), STEERS_ONLY),
        (Role(steered=(0,), steer_to=PortId(1), delivers=(0,)), STEERS_ONLY),
        (Role(steered=(0,), steer_to=PortId(1), notes=((0, link(1)),)), STEERS_ONLY),
        (
            Role(inputs=(0, 1, 2), delivers=(0,), notes=((1, link(1)),)),
            "the connection of rank 2 ends elsewhere, and no note says so",
        ),
        (
            Role(inputs=(0, link(1)), parent=link(3), delivers=(0,), notes=((1, link(1)), (2, link(2)))),
            "notes of rank 2 go to switch 2, which is not next to this switch in its tree",
        ),
        (
            Role(inputs=(0,), delivers=(), notes=((0, link(3)),)),
            "notes of rank 0 go to switch 3, which is not next to this switch in its tree",
        ),
    ],
)
def test_what_no_switch_can_do_for_a_ring(role: Role, message: str) -> None:
    with pytest.raises(LocalMisuse) as caught:
        ring(flows=flows(4), role=role)
    assert str(caught.value) == f"ring 7: {message}"
