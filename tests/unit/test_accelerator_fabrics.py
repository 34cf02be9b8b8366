"""Fabrics between hosts and switch that change what no ICRC covers: VLANs, routers, UDP checksums.

Each case sends all packets of a ring as a fabric would deliver them, and all of them are summed: 20 of 20.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import pytest

from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.core.switch.accelerator import Action
from inaproto.core.switch.lookup_table import FIRST_SIGHTINGS
from inaproto.errors import Blame
from inaproto.wire.roce import RocePacket
from tests.accelerators import EACH_ACCELERATOR
from tests.unit.switched_ring import (
    SwitchedRing,
    block,
    by_port,
    dropped,
    emitted,
    mac,
    nameless,
    others,
    ring_of,
)
from tests.unit.switched_tree import FIGURE_5, SwitchedTree
from tests.unit.tree_records import STEERED

PACKETS = 10
Fabric = Callable[[int, list[bytes]], list[bytes]]
"""(rank, its packets) -> what comes to the switch of them."""


def tagged(frame: bytes, tci: int, tpid: int = 0x8100) -> bytes:
    return frame[:12] + tpid.to_bytes(2, "big") + tci.to_bytes(2, "big") + frame[12:]


def by_router(frame: bytes, source: bytes, target: bytes, hops: int = 1) -> bytes:
    """As the last of some routers sends it on: its addresses, less time to live, another IP checksum."""
    packet = bytearray(target + source + frame[12:])
    packet[22] -= hops
    packet[24:26] = bytes(2)
    total = sum(int.from_bytes(packet[at : at + 2], "big") for at in range(14, 34, 2))
    total = (total & 0xFFFF) + (total >> 16)
    packet[24:26] = (~((total & 0xFFFF) + (total >> 16)) & 0xFFFF).to_bytes(2, "big")
    return bytes(packet)


def with_checksum(frame: bytes) -> bytes:
    """A value that differs from packet to packet: no ICRC covers it."""
    return frame[:40] + (zlib.crc32(frame) & 0xFFFF | 1).to_bytes(2, "big") + frame[42:]


def gateway(port: int) -> bytes:
    return mac(0x80 + port)


def case(change: Callable[[int, int, bytes], bytes]) -> Fabric:
    """(rank, number of the packet, packet) -> packet"""
    return lambda rank, frames: [change(rank, number, frame) for number, frame in enumerate(frames)]


FABRICS: dict[str, Fabric] = {
    "as NICs send": case(lambda rank, number, frame: frame),
    "VLAN 100, priority 3": case(lambda rank, number, frame: tagged(frame, 0x6064)),
    "priority alone": case(lambda rank, number, frame: tagged(frame, 0x6000)),
    "VLAN of one rank alone": case(lambda rank, number, frame: frame if rank else tagged(frame, 0x6064)),
    "priorities that change": case(lambda rank, number, frame: tagged(frame, (number % 8) << 13 | 7)),
    "priority tags at times": case(
        lambda rank, number, frame: tagged(frame, 0xA000) if number % 3 else frame
    ),
    "a router before rank 0": case(
        lambda rank, number, frame: frame if rank else by_router(frame, gateway(0), mac(1))
    ),
    "routers on all sides": case(
        lambda rank, number, frame: by_router(frame, gateway(rank), gateway(1 - rank), hops=3)
    ),
    "a router in a VLAN": case(
        lambda rank, number, frame: tagged(by_router(frame, gateway(rank), gateway(1 - rank)), 0x2005)
    ),
    "congestion marks": case(lambda rank, number, frame: frame[:15] + bytes([frame[15] | 3]) + frame[16:]),
    "UDP checksums": case(lambda rank, number, frame: with_checksum(frame)),
    "UDP checksums at times": case(lambda rank, number, frame: with_checksum(frame) if number % 2 else frame),
}


@dataclass(slots=True)
class Run:
    """What came of two messages of two ranks through a fabric, in blocks as ports deliver them."""

    ring: SwitchedRing
    sent: dict[int, list[bytes]] = field(default_factory=dict)
    """By rank: its packets as they came to the switch."""
    out: dict[int, list[bytes]] = field(default_factory=dict)
    """By port: what left there."""
    other: list[Action] = field(default_factory=list)


def blocks_of(frames: Sequence[bytes], together: int) -> list[list[bytes]]:
    groups: list[list[bytes]] = []
    for frame in frames:
        if groups and len(groups[-1]) < together and len(groups[-1][0]) == len(frame):
            groups[-1].append(frame)
        else:
            groups.append([frame])
    return groups


def through(fabric: Fabric, together: int, ring: SwitchedRing | None = None, messages: int = 2) -> Run:
    run = Run(ring or SwitchedRing(2, message_packets=PACKETS))
    for serial in range(messages):
        for rank in range(2):
            frames = fabric(rank, run.ring.message(rank, serial))
            run.sent.setdefault(rank, []).extend(frames)
            actions = run.ring.arrive_blocks(rank, *(block(*group) for group in blocks_of(frames, together)))
            run.other += others(actions)
            for port, found in by_port(actions).items():
                run.out.setdefault(port, []).extend(found)
    return run


@pytest.mark.parametrize("kernels", ["numpy", "compiled"])
@pytest.mark.parametrize("together", [1, 3, 64])
@pytest.mark.parametrize("name", FABRICS)
def test_all_packets_of_both_ranks_are_summed(
    use_kernels: Callable[[str], None], name: str, together: int, kernels: str
) -> None:
    use_kernels(kernels)
    run = through(FABRICS[name], together)
    counters = run.ring.accelerator.counters
    assert (counters.aggregated_in, counters.results_out, counters.dropped) == (40, 40, {})
    assert run.other == []
    for rank in range(2):
        results = [frame for serial in range(2) for frame in run.ring.results(serial)[1 - rank]]
        assert len(run.out[1 - rank]) == len(results)
        for own, expected, got in zip(run.sent[rank], results, run.out[1 - rank], strict=True):
            bare = without_tag(got)
            assert bare[14:15] + bare[26:] == expected[14:15] + expected[26:]
            assert bare[:12] + bare[15:26] == without_tag(own)[:12] + without_tag(own)[15:26]
            assert RocePacket.decode_frame(bare).udp.checksum == 0
            if "at times" not in name and "change" not in name:
                assert got[:16] == own[:16], "the tag that its packets have"


def without_tag(frame: bytes) -> bytes:
    return frame[:12] + frame[16:] if frame[12:14] == b"\x81\0" else frame


# -- VLANs


def vlan_ring(tci: int = 0x6064) -> SwitchedRing:
    """One message has passed in that VLAN."""
    ring = SwitchedRing(2, message_packets=PACKETS)
    run = through(case(lambda rank, number, frame: tagged(frame, tci)), 64, ring, messages=1)
    assert len(run.out[1]) == PACKETS
    return ring


@pytest.mark.parametrize("together", [1, 64])
@pytest.mark.parametrize("tci", [0x6065, 0x6000, None])
def test_packets_without_the_key_come_in_the_vlan_of_first_packets(tci: int | None, together: int) -> None:
    """Of another VLAN they are another network's, whoever sent them there."""
    ring = vlan_ring()
    first, *rest = ring.message(1, 1)
    ring.arrive(0, *(tagged(frame, 0x6064) for frame in ring.message(0, 1)))
    ring.arrive(1, tagged(first, 0x6064))
    strange = [frame if tci is None else tagged(frame, tci) for frame in rest]
    actions = ring.arrive_blocks(1, *(block(*group) for group in blocks_of(strange, together)))
    assert emitted(actions) == []
    assert {action.rule for action in actions if isinstance(action, Blame)} == {"not from where its rank is"}
    assert dropped(ring) == {"not from where its rank is": PACKETS - 1}
    sent = by_port(ring.arrive(1, *(tagged(frame, 0x6064) for frame in rest)))
    assert sent[0] == [tagged(frame, 0x6064) for frame in ring.results(1)[0][1:]]


def test_first_packets_say_which_vlan_a_rank_is_in_now() -> None:
    ring = vlan_ring()
    ring.arrive(0, *(tagged(frame, 0x6064) for frame in ring.message(0, 1)))
    sent = by_port(ring.arrive(1, *(tagged(frame, 0x0007) for frame in ring.message(1, 1))))
    assert sent == {
        0: [tagged(frame, 0x0007) for frame in ring.results(1)[0]],
        1: [tagged(frame, 0x6064) for frame in ring.results(1)[1]],
    }


def test_a_damaged_tag_on_a_first_packet_does_not_shut_out_its_rank() -> None:
    """No ICRC covers it, and a first packet that is acknowledged does not come again."""
    ring = vlan_ring()
    first, *rest = ring.message(1, 1)
    ring.arrive(0, *(tagged(frame, 0x6064) for frame in ring.message(0, 1)))
    ring.arrive(1, tagged(first, 0x6264))
    sent = by_port(ring.arrive(1, *(tagged(frame, 0x6064) for frame in rest)))
    assert sent[0] == [tagged(frame, 0x6064) for frame in ring.results(1)[0][1:]]


def test_the_vlans_that_first_packets_taught_are_few() -> None:
    """What damage taught is forgotten in the end."""
    ring = vlan_ring()
    for number in range(4):
        ring.arrive(1, tagged(ring.message(1, 1)[0], 0x6101 + number))
    assert emitted(ring.arrive(1, *(tagged(frame, 0x6064) for frame in ring.message(1, 1)[1:]))) == []
    assert dropped(ring) == {"not from where its rank is": PACKETS - 1}


def test_resends_are_answered_in_the_vlan_too() -> None:
    ring = vlan_ring()
    again = ring.arrive(1, *(tagged(frame, 0x4064) for frame in ring.message(1, 0)[3:5]))
    assert by_port(again) == {0: [tagged(frame, 0x4064) for frame in ring.results(0)[0][3:5]]}


def test_gaps_are_signalled_in_the_vlan_too() -> None:
    ring = vlan_ring()
    ring.arrive(0, *(tagged(frame, 0x6064) for frame in ring.message(0, 1)))
    frames = [tagged(frame, 0x6064) for frame in ring.message(1, 1)]
    sent = ring.arrive(1, frames[0], frames[2])
    assert emitted(sent)[-1] == (0, tagged(ring.result(1, 1, 2), 0x6064))


OTHERS: dict[str, Callable[[SwitchedRing], bytes]] = {
    "acknowledgement": lambda ring: ring.ack(0),
    "RoCE between other queue pairs": lambda ring: ring.packet(1, 0, 1, dest_qp=0x999),
    "congestion notification": lambda ring: (
        (cnp := ring.packet(1, 0, 1, dest_qp=0x999))[:42] + b"\x81" + cnp[43:]
    ),
    "ARP": lambda ring: mac(0) + mac(1) + bytes.fromhex("08060001080006040001") + mac(1) + bytes(30),
    "TCP": lambda ring: (frame := ring.packet(1, 0, 1))[:23] + b"\x06" + frame[24:],
    "short": lambda ring: mac(0) + mac(1) + b"\x08\x00",
}


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_of_no_ring_passes_with_its_tag(name: str, rows: int) -> None:
    ring = vlan_ring()
    frame = tagged(OTHERS[name](ring), 0x6064)
    assert emitted(ring.arrive_blocks(1, block(*[frame] * rows))) == [(0, frame)] * rows


def test_the_magic_on_a_connection_of_no_ring_passes_in_no_vlan_either() -> None:
    """Behind a switch that started again a receiver would take a gradient for a sum."""
    ring = vlan_ring()
    actions = ring.arrive(1, tagged(ring.packet(1, 0, 0, dest_qp=0x999), 0x6064))
    assert [action.rule for action in actions if isinstance(action, Blame)] == ["connection not registered"]
    assert emitted(actions) == []


@pytest.mark.parametrize("tpid", [0x88A8, 0x8100])
def test_a_second_tag_is_none_that_is_taken_off(tpid: int) -> None:
    ring = vlan_ring()
    frame = tagged(tagged(ring.packet(1, 1, 0), 0x6064), 5, tpid)
    assert emitted(ring.arrive(1, frame)) == []
    assert dropped(ring) == {"malformed packet of a ring": 1}


@pytest.mark.parametrize("kernels", ["numpy", "compiled"])
@pytest.mark.parametrize("first", [0, 1])
def test_one_block_may_have_tagged_and_plain_frames(
    use_kernels: Callable[[str], None], first: int, kernels: str
) -> None:
    """Frames of one length: packets of the ring in its VLAN, and others that are four bytes longer."""
    use_kernels(kernels)
    ring = vlan_ring()
    ring.arrive(0, *(tagged(frame, 0x6064) for frame in ring.message(0, 1)))
    head, *rest = (tagged(frame, 0x6064) for frame in ring.message(1, 1))
    plain = ring.packet(1, 0, 1, dest_qp=0x999, payload=bytes(68))
    mixed = [frame for middle in rest[:-1] for frame in ((plain, middle), (middle, plain))[first]]
    sent = by_port(ring.arrive_blocks(1, block(head), block(*mixed), block(rest[-1])))[0]
    assert sorted(sent) == sorted([plain] * (PACKETS - 2) + [tagged(r, 0x6064) for r in ring.results(1)[0]])
    assert dropped(ring) == {}


# -- routers


def routed_ring() -> SwitchedRing:
    """Two messages have passed; the hosts are behind gateways, whose addresses are known."""
    ring = SwitchedRing(2, message_packets=PACKETS, extra_ports=2)
    for port in range(2):
        ring.arrive(port, b"\xff" * 6 + gateway(port) + bytes(48))
    run = through(FABRICS["routers on all sides"], 64, ring)
    assert len(run.out[1]) == 2 * PACKETS
    return ring


def routed(ring: SwitchedRing, rank: int, serial: int) -> list[bytes]:
    return [by_router(frame, gateway(rank), gateway(1 - rank)) for frame in ring.message(rank, serial)]


@pytest.mark.parametrize("together", [1, 64])
def test_packets_without_the_key_come_from_an_address_of_first_packets(together: int) -> None:
    ring = routed_ring()
    ring.arrive(0, *routed(ring, 0, 2))
    first, *rest = routed(ring, 1, 2)
    strange = [frame[:6] + mac(9) + frame[12:] for frame in rest]
    ring.arrive(1, first)
    assert emitted(ring.arrive_blocks(1, *(block(*group) for group in blocks_of(strange, together)))) == []
    assert dropped(ring) == {"not from where its rank is": PACKETS - 1}
    assert len(by_port(ring.arrive(1, *rest))[0]) == PACKETS - 1


def test_a_stranger_s_first_packet_teaches_no_address() -> None:
    ring = routed_ring()
    ring.arrive(0, *routed(ring, 0, 2))
    forged = ring.packet(1, 2, 0, key=1)
    for _ in range(3):
        ring.arrive(1, forged[:6] + mac(9) + forged[12:])
    ring.arrive(1, routed(ring, 1, 2)[0])
    assert emitted(ring.arrive(1, *(f[:6] + mac(9) + f[12:] for f in ring.message(1, 2)[1:]))) == []
    assert dropped(ring) == {"wrong key": 3, "not from where its rank is": PACKETS - 1}


def test_a_damaged_address_on_a_first_packet_does_not_shut_out_a_router() -> None:
    ring = routed_ring()
    ring.arrive(0, *routed(ring, 0, 2))
    first, *rest = routed(ring, 1, 2)
    ring.arrive(1, first[:6] + mac(9) + first[12:])
    assert len(by_port(ring.arrive(1, *rest))[0]) == PACKETS - 1


def test_results_go_where_the_router_is_and_not_where_the_host_was() -> None:
    """The control plane knows the host's own address, which somebody may have on another port."""
    ring = routed_ring()
    ring.arrive(3, b"\xff" * 6 + mac(0) + bytes(48))
    ring.arrive(0, *routed(ring, 0, 2))
    sent = ring.arrive(1, *routed(ring, 1, 2))
    assert {port for port, _ in emitted(sent)} == {0, 1}


@EACH_ACCELERATOR
@pytest.mark.parametrize("packets", [2, PACKETS])
def test_the_first_message_finds_a_router_with_two_links(packets: int) -> None:
    """By one come the packets of the rank behind it; what is for that rank has the address of the other."""
    ring = SwitchedRing(2, message_packets=PACKETS, extra_ports=1)
    links = {0: gateway(0), 1: gateway(1), 2: gateway(2)}
    for port, address in links.items():
        ring.arrive(port, b"\xff" * 6 + address + bytes(48))

    def send(rank: int, to: bytes) -> list[list[Action]]:
        frames = ring.message(rank, 0, packets=packets)
        return [ring.arrive(rank, by_router(frame, links[rank], to)) for frame in frames]

    assert [emitted(actions) for actions in send(1, links[0])] == [[]] * packets
    _, *sent = send(0, links[2])
    assert [{port for port, _ in emitted(actions)} for actions in sent] == [{0, 2}] * (packets - 1)


@EACH_ACCELERATOR
def test_packets_that_come_together_confirm_a_way_that_results_have_left() -> None:
    """Their headers have been seen before, so they are not decoded."""
    ring = routed_ring()
    ring.arrive(3, b"\xff" * 6 + gateway(3) + bytes(48))
    for serial, back in ((2, 0), (3, 3)):
        ring.arrive(0, by_router(ring.packet(0, serial, 0, packets=1), gateway(0), gateway(1)))
        only = by_router(ring.packet(1, serial, 0, packets=1), gateway(1), gateway(3))
        assert {port for port, _ in emitted(ring.arrive(1, only))} == {1, back}
    ring.arrive(0, *routed(ring, 0, 4))
    frames = [by_router(frame, gateway(1), gateway(0), hops=3) for frame in ring.message(1, 4)]
    ring.arrive(1, frames[0])
    assert {port for port, _ in emitted(ring.arrive_blocks(1, block(*frames[1:-1])))} == {0, 1}


def test_a_way_is_found_alike_however_packets_are_taken_in(use_kernels: Callable[[str], None]) -> None:
    """One by one, in vectors, and by kernels; paths change, addresses are damaged, packets come twice."""
    ways = [b"", *(gateway(to) + gateway(by) for by, to in ((0, 1), (3, 4), (0, 4)))]
    for seed in range(60):
        rng, way = random.Random(f"{seed}/ways"), b""
        rings = []
        for kernels in ("numpy", "numpy", "compiled"):
            use_kernels(kernels)
            rings.append(SwitchedRing(2, message_packets=8, window_messages=8, extra_ports=3))
        for serial in range(8):
            frames = []
            for frame in rings[0].message(0, serial):
                way = rng.choice(ways) if rng.random() < 0.25 else way
                frames.append(by_router(frame, way[6:], way[:6]) if way else frame)
                if rng.random() < 0.05:
                    frames[-1] = mac(rng.randrange(16)) + frames[-1][6:]
                frames += [frames[-1]] * (rng.random() < 0.1)
            while frames:
                some = [frames.pop(0) for _ in range(min(len(frames), rng.choice([1, 2, 4])))]
                for frame in some:
                    rings[0].arrive(0, frame)
                for ring in rings[1:]:
                    alike = (block(*group) for _, group in groupby(some, len))
                    ring.arrive_blocks(0, *alike)
                assert len({told_of_way(ring) for ring in rings}) == 1, seed


def told_of_way(ring: SwitchedRing) -> object:
    flow = ring.accelerator.rings[ring.spec.ring_id].flows[0]
    way = flow.src_mac, flow.dst_mac, flow.is_routed, flow.shown, flow.sources, flow.ingress
    strange = ring.accelerator.counters.strange_addresses
    return way, strange, tuple(sorted(ring.accelerator.addresses.items()))


def test_a_router_s_first_packet_does_not_say_that_the_host_is_there() -> None:
    ring = SwitchedRing(2, message_packets=PACKETS)
    ring.arrive(2, by_router(ring.packet(1, 0, 0), gateway(2), gateway(0)))
    assert ring.accelerator.addresses[mac(1)] == 1


@EACH_ACCELERATOR
def test_a_way_that_changes_under_the_only_packet_of_a_message() -> None:
    """No other packet follows it, as its result does not come."""
    ring = routed_ring()
    ring.arrive(3, b"\xff" * 6 + gateway(3) + bytes(48))
    only = ring.packet(1, 2, 0, packets=1)
    ring.arrive(0, by_router(ring.packet(0, 2, 0, packets=1), gateway(0), gateway(1)))
    ports = []
    for _ in range(FIRST_SIGHTINGS + 1):
        ports += [
            port for port, frame in emitted(ring.arrive(1, by_router(only, gateway(1), gateway(3)))) if port
        ]
    assert 3 in ports


def test_a_damaged_address_that_comes_twice_steers_no_results_elsewhere() -> None:
    """A copy of a packet has its damage too."""
    ring = routed_ring()
    ring.arrive(3, b"\xff" * 6 + mac(9) + bytes(48))
    first, *rest = routed(ring, 1, 2)
    for _ in range(3):
        ring.arrive(1, mac(9) + first[6:])
    ring.arrive(0, *routed(ring, 0, 2))
    assert {port for port, _ in emitted(ring.arrive(1, *rest))} == {0, 1}


def test_the_bridge_learns_from_a_router_s_packets_nothing_of_the_host_behind_it() -> None:
    ring = routed_ring()
    ring.arrive(3, b"\xff" * 6 + mac(1) + bytes(48))
    before = ring.accelerator.addresses
    through(FABRICS["routers on all sides"], 64, ring, messages=0)
    for serial in (2, 3):
        for rank in range(2):
            ring.arrive(rank, *routed(ring, rank, serial))
    assert ring.accelerator.addresses == before


def test_a_host_that_is_reached_without_its_router_again() -> None:
    ring = routed_ring()
    for serial in (2, 3, 4):
        ring.send(0, serial)
        assert by_port(ring.send(1, serial)) == ring.results(serial)
    assert dropped(ring) == {}


def test_where_no_address_is_known_a_router_s_is_as_good_as_any() -> None:
    ring = SwitchedRing(2, message_packets=PACKETS, flows=nameless(ring_of(2)))
    run = through(FABRICS["routers on all sides"], 64, ring)
    assert len(run.out[0]) == len(run.out[1]) == 2 * PACKETS


# -- several switches


@pytest.mark.parametrize("tree", [FIGURE_5, STEERED])
def test_below_a_tree_of_switches_results_have_the_tags_of_their_receivers_and_links_none(
    tree: TreeSwitch,
) -> None:
    """The connection of a result may come in at another switch; its receiver's own packets do not."""
    switched = SwitchedTree(tree)
    for serial in range(2):
        for rank in tree.ranks:
            frames = switched.hosts.message(rank, serial)
            switched.from_host(rank, *(tagged(frame, 0x6064) for frame in frames))
        switched.settle()
    for rank in tree.ranks:
        expected = [frame for serial in range(2) for frame in switched.results(serial)[rank]]
        assert switched.got[rank] == [tagged(frame, 0x6064) for frame in expected]
    assert switched.said == []


def test_a_switch_that_steers_passes_a_rank_s_packets_with_their_tag() -> None:
    switched = SwitchedTree(STEERED)
    frame = tagged(switched.hosts.packet(0, 0, 0), 0x6064)
    switched.from_host(0, frame)
    assert [sent.frame for sent in switched.between("X", "S")] == [frame]
