"""A tenant's packets against another tenant's ring: whatever it forges, no gradient and no result changes.

The tenant has a ring of its own, on hosts 2 and 3, and knows all of the other's that is not secret:
addresses, queue pairs, PSNs, the number of its ring. The ring's key, 64 random bits, is in first packets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.switch.accelerator import FramesArrived, InstallRing
from inaproto.core.switch.ring_spec import FlowSpec
from inaproto.errors import Blame
from inaproto.units import PortId
from inaproto.wire.ina_header import FLAG_RESULT
from inaproto.wire.roce import RocePacket
from tests.unit.switched_ring import NOW, SwitchedRing, block, by_port, emitted, ip, mac, others, ring_of

TENANT, PARTNER = 2, 3
OWN_KEY = 0xB0B


def shared_switch() -> SwitchedRing:
    """The ring under attack; the tenant's own is installed beside it."""
    ring = SwitchedRing(2, extra_ports=2)
    flows = tuple(
        FlowSpec(rank, ip(here), ip(there), 0x400 + there, mac(here), mac(there))
        for rank, (here, there) in enumerate([(TENANT, PARTNER), (PARTNER, TENANT)])
    )
    own = replace(ring_of(2, flows=flows), ring_id=8, key=OWN_KEY)
    assert ring.accelerator.step(InstallRing(own), NOW) == []
    return ring


def attack(ring: SwitchedRing, *frames: bytes) -> list[Any]:
    return ring.accelerator.step(FramesArrived(PortId(TENANT), [block(frame) for frame in frames]), NOW)


def by_own_connection(frame: bytes) -> bytes:
    """The same data, on the connection that is the tenant's."""
    packet = RocePacket.decode_frame(frame)
    return replace(
        packet,
        eth=replace(packet.eth, src=mac(TENANT), dst=mac(PARTNER)),
        ip=replace(packet.ip, src=ip(TENANT), dst=ip(PARTNER)),
        bth=replace(packet.bth, dest_qp=0x400 + PARTNER),
    ).encode_frame()


def from_own_address(frame: bytes) -> bytes:
    """To the victim's queue pair, from the tenant's address."""
    packet = RocePacket.decode_frame(frame)
    eth, addressed = replace(packet.eth, src=mac(TENANT)), replace(packet.ip, src=ip(TENANT))
    return replace(packet, eth=eth, ip=addressed).encode_frame()


def is_unharmed(ring: SwitchedRing, serial: int = 0) -> bool:
    return by_port(ring.finish(serial)) == ring.results(serial)


@pytest.mark.parametrize("key", [0, OWN_KEY, 0xFEED ^ 1, (1 << 64) - 1])
def test_a_guessed_key_with_the_victim_s_addresses(key: int) -> None:
    ring = shared_switch()
    actions = attack(ring, *ring.message(1, 0, key=key))
    assert emitted(actions) == []
    assert next(action.rule for action in others(actions) if isinstance(action, Blame)) == "wrong key"
    assert is_unharmed(ring)


def test_a_flood_of_guesses_costs_the_guesser_alone() -> None:
    ring = shared_switch()
    for key in range(2000):
        assert emitted(attack(ring, ring.packet(0, 0, 0, key=key))) == []
    assert ring.accelerator.view().counters.dropped["wrong key"] == 2000
    assert is_unharmed(ring)


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_packets_without_a_key_from_another_port(offset: int) -> None:
    """Everything about them is right but where they come from; the message they would join is open."""
    ring = shared_switch()
    ring.send(1, 0, 0)
    forged = ring.packet(1, 0, offset, payload=bytes(64))
    assert emitted(attack(ring, forged)) == []
    assert emitted(ring.send(0, 0)) == [(port, ring.results(0)[port][0]) for port in (1, 0)]
    assert by_port(ring.send(1, 0, 1, 2, 3)) == {port: rest for port, (_, *rest) in ring.results(0).items()}


def test_another_ring_s_number_with_its_key_on_the_tenant_s_connection() -> None:
    """A key that leaked is worth nothing at an address that the lookup table does not have for it."""
    ring = shared_switch()
    [first, *_] = ring.message(1, 0)
    actions = attack(ring, by_own_connection(first))
    assert emitted(actions) == []
    assert [action.rule for action in others(actions) if isinstance(action, Blame)] == ["wrong ring"]
    assert is_unharmed(ring)


def test_another_ring_s_number_with_the_tenant_s_key() -> None:
    ring = shared_switch()
    [first, *_] = ring.message(1, 0, key=OWN_KEY)
    actions = attack(ring, by_own_connection(first))
    assert emitted(actions) == []
    assert [action.rule for action in others(actions) if isinstance(action, Blame)] == ["wrong ring"]
    assert is_unharmed(ring)


def test_the_right_key_from_the_wrong_address_is_never_summed() -> None:
    """The packet with the header is dropped; the others are traffic of strangers, of which NICs take none."""
    ring = shared_switch()
    forged = [from_own_address(frame) for frame in ring.message(1, 0)]
    actions = attack(ring, *forged)
    assert sorted(frame for _, frame in emitted(actions)) == sorted(forged[1:])
    assert any(isinstance(action, Blame) for action in actions)
    assert is_unharmed(ring)


def test_a_forged_result() -> None:
    ring = shared_switch()
    ring.send(0, 0)
    actions = attack(ring, ring.packet(1, 0, 0, flags=FLAG_RESULT, key=0))
    assert emitted(actions) == []
    assert is_unharmed(ring)


def test_a_replayed_first_packet_brings_no_gradient() -> None:
    """With the true key, as whoever taps the victim's own link has it: nothing is summed twice."""
    ring = shared_switch()
    first = ring.message(0, 0)[0]
    ring.finish(0)
    before = ring.results(1)
    attack(ring, first)
    assert by_port(ring.finish(1)) == before
