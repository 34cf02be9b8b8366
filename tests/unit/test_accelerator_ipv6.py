"""Rings whose packets come over IPv6, or with IPv4 options: summed; what is of no ring passes whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from inaproto.core.switch.accelerator import InstallRing, RemoveRing
from inaproto.core.switch.events import RingRefused
from inaproto.errors import Blame, LocalMisuse
from inaproto.wire.icrc import seal
from inaproto.wire.outer import dress, outer_of, short_ip
from tests.unit.switched_ring import NOW, SwitchedRing, block, by_port, dropped, emitted, ring_of
from tests.unit.switched_tree import SwitchedTree
from tests.unit.test_accelerator_fabrics import Fabric, case, through

PACKETS = 10
TAG = b"\x81\0\x60\x64"
ROUTER_ALERT = b"\x46\x94\x04\0\0"


def ip6(host: int) -> bytes:
    return bytes.fromhex("fd00") + bytes(13) + bytes([host])


def over_ipv6(frame: bytes, *, label: int = 0, tag: bytes = b"") -> bytes:
    """The same packet between the IPv6 addresses of its hosts."""
    src, dst = ip6(frame[29]), ip6(frame[33])
    plain = bytearray(frame[:26] + short_ip(src) + short_ip(dst) + frame[34:])
    seal(plain)
    outer = bytearray(outer_of(src, dst, tag=tag))
    outer[5:8] = label.to_bytes(3, "big")
    return bytes(dress(block(bytes(plain)), bytes(outer))[0])


def with_options(frame: bytes, tag: bytes) -> bytes:
    return bytes(dress(block(frame), tag + ROUTER_ALERT)[0])


def six(ring_id: int = 7) -> SwitchedRing:
    flows = tuple(
        replace(flow, src_ip=ip6(flow.src_ip[3]), dst_ip=ip6(flow.dst_ip[3])) for flow in ring_of(2).flows
    )
    return SwitchedRing(2, message_packets=PACKETS, flows=flows, ring_id=ring_id)


def four() -> SwitchedRing:
    return SwitchedRing(2, message_packets=PACKETS)


FORMS: dict[str, tuple[Callable[[], SwitchedRing], Callable[[int, bytes], bytes]]] = {
    "IPv6": (six, lambda number, frame: over_ipv6(frame)),
    "IPv6 in a VLAN": (six, lambda number, frame: over_ipv6(frame, tag=TAG)),
    "a flow label": (six, lambda number, frame: over_ipv6(frame, label=0xABCDE)),
    "IPv4 with options": (four, lambda number, frame: with_options(frame, bytes(4))),
    "options in a VLAN": (four, lambda number, frame: with_options(frame, TAG)),
}


@pytest.mark.parametrize("kernels", ["numpy", "compiled"])
@pytest.mark.parametrize("together", [1, 64])
@pytest.mark.parametrize("name", FORMS)
def test_all_packets_are_summed_and_results_have_their_form(
    use_kernels: Callable[[str], None], name: str, together: int, kernels: str
) -> None:
    use_kernels(kernels)
    make, change = FORMS[name]
    fabric: Fabric = case(lambda rank, number, frame: change(number, frame))
    run = through(fabric, together, make())
    counters = run.ring.accelerator.counters
    assert (counters.aggregated_in, counters.results_out, counters.dropped) == (40, 40, {})
    assert run.other == []
    for port in range(2):
        results = [frame for serial in range(2) for frame in run.ring.results(serial)[port]]
        assert run.out[port] == [change(number, frame) for number, frame in enumerate(results)]


@pytest.mark.parametrize("tag", [b"", TAG])
def test_a_tree_sums_over_ipv6_and_in_vlans(tag: bytes) -> None:
    """Results that are made where the packets of their connection never came have their form, too."""
    flows = tuple(
        replace(flow, src_ip=ip6(flow.src_ip[3]), dst_ip=ip6(flow.dst_ip[3])) for flow in ring_of(4).flows
    )
    tree = SwitchedTree(message_packets=PACKETS, flows=flows)
    for serial in range(2):
        for rank in tree.tree.ranks:
            tree.from_host(rank, *(over_ipv6(frame, tag=tag) for frame in tree.hosts.message(rank, serial)))
        tree.settle()
        expected = tree.results(serial)
        assert tree.got == {
            rank: [over_ipv6(frame, tag=tag) for frame in expected[rank]] for rank in expected
        }
        tree.forget()
    assert all(one.frame[12:14] == b"\x08\x00" for one in tree.between("L1", "S"))


def test_a_resend_and_a_gap_are_answered_over_ipv6_too() -> None:
    ring = six()
    for rank in range(2):
        ring.arrive(rank, *map(over_ipv6, ring.message(rank, 0)))
    again = ring.arrive(1, *map(over_ipv6, ring.message(1, 0)[3:5]))
    assert by_port(again) == {0: [over_ipv6(frame) for frame in ring.results(0)[0][3:5]]}
    ring.arrive(0, *map(over_ipv6, ring.message(0, 1)))
    frames = [over_ipv6(frame) for frame in ring.message(1, 1)]
    assert emitted(ring.arrive(1, frames[0], frames[2]))[-1] == (0, over_ipv6(ring.result(1, 1, 2)))


@pytest.mark.parametrize("rows", [1, 2])
def test_what_is_of_no_ring_passes_whole(rows: int) -> None:
    ring = six()
    for frame in (
        over_ipv6(ring.ack(0), label=5),
        over_ipv6(ring.packet(1, 0, 1, dest_qp=0x999), tag=TAG),
        with_hop_by_hop(over_ipv6(ring.packet(1, 0, 1, dest_qp=0x999))),
        over_ipv6(ring.packet(1, 0, 1))[:20] + b"\x3a" + over_ipv6(ring.packet(1, 0, 1))[21:],
    ):
        assert emitted(ring.arrive_blocks(1, block(*[frame] * rows))) == [(0, frame)] * rows
    assert dropped(ring) == {}


def with_hop_by_hop(frame: bytes) -> bytes:
    nbytes = (len(frame) - 54 + 8).to_bytes(2, "big")
    return frame[:18] + nbytes + b"\0" + frame[21:54] + b"\x11\0\x01\x04" + bytes(4) + frame[54:]


@pytest.mark.parametrize(
    "change", [with_hop_by_hop, lambda frame: frame + b"\0", lambda frame: frame[:58] + b"\0\0" + frame[60:]]
)
def test_what_a_receiver_might_take_though_no_nic_of_a_ring_sends_it_is_dropped(
    change: Callable[[bytes], bytes],
) -> None:
    ring = six()
    assert emitted(ring.arrive(1, change(over_ipv6(ring.packet(1, 0, 1))))) == []
    assert dropped(ring) == {"malformed packet of a ring": 1}


def test_what_still_comes_of_a_removed_ring_is_dropped() -> None:
    ring = six()
    ring.accelerator.step(RemoveRing(7), NOW)
    assert emitted(ring.arrive(1, over_ipv6(ring.packet(1, 0, 1)))) == []
    assert dropped(ring) == {"ring removed": 1}


def test_two_addresses_with_one_short_form_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = four()
    flows = tuple(
        replace(flow, dst_qp=5, src_ip=ip6(3 + flow.rank), dst_ip=ip6(9)) for flow in ring.spec.flows
    )
    monkeypatch.setattr("inaproto.core.switch.ring_spec.short_ip", lambda ip: bytes(4))
    refused = ring.accelerator.step(InstallRing(replace(ring.spec, ring_id=8, flows=flows)), NOW)
    assert refused == [RingRefused(8, "two IPv6 addresses of its hosts have one short form")]


def test_a_ring_has_addresses_of_one_kind() -> None:
    first, second = ring_of(2).flows
    with pytest.raises(LocalMisuse, match="some hosts have IPv4 addresses, some IPv6"):
        ring_of(2, flows=(replace(first, src_ip=ip6(0)), second))


def test_who_is_blamed_is_named_by_the_address_that_it_has() -> None:
    ring = six()
    (action,) = ring.arrive(1, over_ipv6(ring.packet(1, 0, 0, key=1)))
    assert isinstance(action, Blame)
    assert action.peer.startswith("fd00::1 to queue pair ")
