"""The accelerator as an ordinary switch, rings coming and going, and garbage."""

from __future__ import annotations

import contextlib
import dataclasses
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.core.switch.accelerator import (
    Accelerator,
    AcceleratorConfig,
    EmitFrames,
    FramesArrived,
    InstallRing,
    PortDown,
    PortUp,
    RemoveRing,
    RingRefused,
)
from inaproto.core.switch.aggregator import bytes_needed
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.errors import DecodeError, LocalMisuse
from inaproto.faults.announcement import announcement
from inaproto.units import PortId
from inaproto.wire import icrc
from inaproto.wire.ipv4 import Ipv4Header
from inaproto.wire.roce import Bth, Imm, Opcode, Reth, RocePacket
from tests.accelerators import ADDRESSES, EACH_ACCELERATOR, FIXED, software_only
from tests.unit.switched_ring import (
    NOW,
    SwitchedRing,
    block,
    by_port,
    dropped,
    emitted,
    ip,
    mac,
    nameless,
    others,
    ring_of,
)

pytestmark = EACH_ACCELERATOR

# -- an ordinary switch


def tcp(host: int, other: int) -> bytes:
    header = Ipv4Header(src=ip(host), dst=ip(other), total_length=60, protocol=6)
    return mac(other) + mac(host) + b"\x08\x00" + header.encode() + bytes(range(40))


def arp(host: int) -> bytes:
    return b"\xff" * 6 + mac(host) + b"\x08\x06" + bytes(range(28)) + bytes(18)


def plain_write(opcode: Opcode) -> bytes:
    """Host 0 to host 1 on queue pairs that no ring has."""
    return RocePacket.build(
        src_mac=mac(0),
        dst_mac=mac(1),
        src_ip=ip(0),
        dst_ip=ip(1),
        udp_source_port=0xC001,
        bth=Bth(opcode=opcode, dest_qp=0x55, psn=9),
        reth=Reth(va=1, rkey=2, dma_length=64) if opcode in (0x06, 0x0A, 0x0B) else None,
        imm=Imm(4) if opcode in (0x03, 0x05, 0x09, 0x0B) else None,
        payload=bytes(range(64)),
    ).encode_frame()


def test_arp_is_flooded_and_tcp_is_switched_untouched() -> None:
    ring = SwitchedRing(3)
    assert emitted(ring.arrive(0, arp(0))) == [(port, arp(0)) for port in (1, 2, 3)]
    assert emitted(ring.arrive(0, tcp(0, 2))) == [(2, tcp(0, 2))]
    assert emitted(ring.arrive(0, tcp(0, 9))) == [(port, tcp(0, 9)) for port in (1, 2, 3)]
    assert emitted(ring.arrive(0, tcp(0, 0))) == [], "never back to where it came from"
    assert ring.accelerator.view().counters.aggregated_in == 0


@pytest.mark.parametrize("opcode", [opcode for opcode in Opcode if opcode != Opcode.RC_ACK])
def test_a_plain_roce_connection_is_untouched(opcode: Opcode) -> None:
    ring = SwitchedRing(2)
    frame = plain_write(opcode)
    assert ring.accelerator.view().rings
    assert emitted(ring.arrive_blocks(0, block(frame, frame))) == [(1, frame), (1, frame)]
    harmed = frame[:-1] + bytes([frame[-1] ^ 1])
    assert emitted(ring.arrive(0, harmed)) == [(1, harmed)], "what merely passes is not ours to check"


def test_acks_pass_untouched_to_the_sender() -> None:
    ring = SwitchedRing(3)
    for rank in range(3):
        assert emitted(ring.arrive((rank + 1) % 3, ring.ack(rank))) == [(rank, ring.ack(rank))]


def test_frames_of_one_length_are_switched_each_by_its_own_address() -> None:
    ring = SwitchedRing(3)
    frames = [tcp(0, 1), tcp(0, 2), tcp(0, 2)[:-1] + b"2", tcp(0, 1)[:-1] + b"1"]
    actions = ring.arrive_blocks(0, block(*frames))
    assert by_port(actions) == {1: [frames[0], frames[3]], 2: [frames[1], frames[2]]}


def test_frames_too_short_for_ethernet_are_dropped() -> None:
    ring = SwitchedRing(2)
    assert (
        ring.arrive_blocks(0, block(bytes(13)), np.empty((2, 0), np.uint8), np.empty((0, 60), np.uint8)) == []
    )
    counters = ring.accelerator.view().counters
    assert counters.dropped == {"frame shorter than an Ethernet header": 3}


def test_a_port_that_goes_down_gets_nothing_and_loses_its_addresses() -> None:
    ring = SwitchedRing(3)
    ring.accelerator.step(PortDown(PortId(2)), NOW)
    assert emitted(ring.arrive(0, tcp(0, 2))) == [(1, tcp(0, 2)), (3, tcp(0, 2))]
    ring.accelerator.step(PortUp(PortId(2)), NOW)
    ring.arrive(2, arp(2))
    assert emitted(ring.arrive(0, tcp(0, 2))) == [(2, tcp(0, 2))]
    assert by_port(ring.finish(0)) == ring.results(0)


def test_results_for_a_host_that_is_not_known_are_flooded_but_not_to_their_sender() -> None:
    ring = SwitchedRing(2, extra_ports=2)
    ring.send(0, 0)
    ring.accelerator.step(PortDown(PortId(0)), NOW)
    ring.accelerator.step(PortUp(PortId(0)), NOW)
    actions = ring.send(1, 0)
    assert {port for port, frame in emitted(actions) if frame[:6] == mac(0)} == {0, 2, 3}
    assert {port for port, frame in emitted(actions) if frame[:6] == mac(1)} == {1}


def test_a_damaged_destination_sends_no_other_results_astray() -> None:
    """Nothing is known behind that address; where the receiver is, the control plane knows."""
    ring = SwitchedRing(2, extra_ports=1)
    ring.send(0, 0)
    *packets, last = ring.message(1, 0)
    sent = by_port(ring.arrive(1, *packets, mac(9) + last[6:]))
    right = ring.results(0)
    assert sent == {0: [*right[0][:3], mac(9) + right[0][3][6:]], 1: right[1]}


@pytest.mark.parametrize("rows", [1, 2])
def test_where_no_address_is_known_results_go_where_the_packets_say(rows: int) -> None:
    ring = SwitchedRing(2, extra_ports=1, flows=nameless(ring_of(2)))
    ring.send(0, 0)
    elsewhere = [mac(7) + frame[6:] for frame in ring.message(1, 0)]
    ring.arrive(2, b"\xff" * 6 + mac(7) + bytes(48))
    if rows == 1:
        sent = by_port(ring.arrive(1, *elsewhere))
    else:
        first, *middles, last = elsewhere
        sent = by_port(ring.arrive_blocks(1, block(first), block(*middles), block(last)))
    assert [frame[:6] for frame in sent[2]] == [mac(7)] * 4
    assert 0 not in sent


@software_only(ADDRESSES)
def test_an_arp_packet_with_a_damaged_source_teaches_nothing_and_passes() -> None:
    """Its own address is in it once more; one bit away is that of another host."""
    ring = SwitchedRing(2, extra_ports=1)
    before = ring.accelerator.addresses
    said = announcement(mac(1), ip(1)).tobytes()
    for strange in (mac(0), mac(9)):
        frame = said[:6] + strange + said[12:]
        assert emitted(ring.arrive(2, frame)) == [(0, frame), (1, frame)]
    assert ring.accelerator.addresses == before
    ring.arrive(2, said)
    assert ring.accelerator.addresses == {**before, mac(1): 2}


# -- rings


def moved(spec: RingSpec, ring_id: int) -> RingSpec:
    """The same ring on other queue pairs."""
    flows = tuple(dataclasses.replace(f, dst_qp=f.dst_qp + 0x1000 * ring_id) for f in spec.flows)
    return dataclasses.replace(spec, ring_id=ring_id, flows=flows)


def refusal(accelerator: Accelerator, spec: RingSpec) -> str:
    (action,) = accelerator.step(InstallRing(spec), NOW)
    assert isinstance(action, RingRefused)
    assert action.ring_id == spec.ring_id
    return action.reason


def test_a_ring_is_installed_once() -> None:
    ring = SwitchedRing(2)
    assert "installed already" in refusal(ring.accelerator, ring.spec)
    assert by_port(ring.finish(0)) == ring.results(0), "the refusal changed nothing"


def test_two_rings_do_not_share_a_connection() -> None:
    ring = SwitchedRing(2)
    assert "rank 0 belongs to another ring" in refusal(
        ring.accelerator, dataclasses.replace(ring.spec, ring_id=8)
    )
    assert ring.accelerator.view().connections == 2


@software_only(FIXED)
def test_the_number_of_rings_is_limited() -> None:
    ring = SwitchedRing(2, config=AcceleratorConfig(rings_max=2))
    assert ring.accelerator.step(InstallRing(moved(ring.spec, 1)), NOW) == []
    assert "all 2 rings are in use" in refusal(ring.accelerator, moved(ring.spec, 2))
    assert ring.accelerator.step(RemoveRing(1), NOW) == []
    assert ring.accelerator.step(InstallRing(moved(ring.spec, 2)), NOW) == []


@software_only(FIXED)
def test_memory_is_limited_and_given_back() -> None:
    need = bytes_needed(ring_of(2))
    ring = SwitchedRing(2, config=AcceleratorConfig(memory_bytes_max=2 * need - 1))
    assert ring.accelerator.view().memory_bytes == need
    other = moved(ring.spec, 1)
    assert refusal(ring.accelerator, other) == f"needs {need} bytes of memory, {need - 1} are free"
    assert ring.accelerator.step(RemoveRing(ring.spec.ring_id), NOW) == []
    assert ring.accelerator.view().memory_bytes == 0
    assert ring.accelerator.view().connections == 0
    assert ring.accelerator.step(InstallRing(other), NOW) == []


@software_only(FIXED)
def test_a_ring_that_can_never_fit_is_not_to_be_tried_by_time() -> None:
    spec = ring_of(2)
    need = bytes_needed(spec)
    small, large = (Accelerator(AcceleratorConfig(memory_bytes_max=room)) for room in (need - 1, need))
    words = f"needs {need} bytes of memory, it has {need - 1} in all"
    assert small.step(InstallRing(spec), NOW) == [RingRefused(spec.ring_id, words, until_switch=True)]
    assert large.step(InstallRing(spec), NOW) == []
    [refused] = large.step(InstallRing(moved(spec, 1)), NOW)
    assert isinstance(refused, RingRefused)
    assert not refused.until_switch


def test_a_removed_ring_sums_no_more_and_can_be_installed_anew() -> None:
    ring = SwitchedRing(2)
    ring.finish(0)
    ring.accelerator.step(RemoveRing(ring.spec.ring_id), NOW)
    assert ring.send(0, 1) == []
    assert ring.accelerator.view().counters.results_out == 8
    assert ring.accelerator.step(InstallRing(ring.spec), NOW) == []
    assert by_port(ring.finish(0)) == ring.results(0)


def test_removing_a_ring_that_is_not_there_changes_nothing() -> None:
    ring = SwitchedRing(2)
    assert ring.accelerator.step(RemoveRing(99), NOW) == []
    assert by_port(ring.finish(0)) == ring.results(0)


def test_the_view_is_a_snapshot() -> None:
    ring = SwitchedRing(2)
    ring.send(0, 0, 1)
    dropped(ring)
    before = ring.accelerator.view()
    ring.finish(0)
    assert before.rings == {7: {"ranks": 2, "next_message": 0, "next_packet": 0, "failed": False}}
    assert before.counters.dropped == {"first packet of the message not seen": 1}
    assert before.counters.results_out == 0
    assert ring.accelerator.view().rings[7]["next_message"] == 1
    assert ring.accelerator.view().as_dict()["connections"] == 2


@software_only("nobody asks it")
def test_there_is_no_deadline() -> None:
    assert SwitchedRing(2).accelerator.deadline is None


@pytest.mark.parametrize(
    "changes",
    [
        {"flows": ring_of(3).flows[:1]},
        {"flows": ring_of(3).flows[::-1]},
        {"flows": (ring_of(2).flows[0], dataclasses.replace(ring_of(2).flows[0], rank=1))},
        {"window_messages": 3},
        {"window_messages": 0},
        {"message_packets": 0},
        {"message_packets": 1 << 16},
        {"mtu": 56},
        {"mtu": 68},
        {"psn_bits": 4},
        {"msg_id_bits": 3},
    ],
)
def test_what_no_ring_can_be_is_misuse(changes: dict[str, object]) -> None:
    with pytest.raises(LocalMisuse):
        ring_of(2, **changes)


# -- garbage


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=160), st.integers(1, 3)), max_size=8))
def test_random_bytes_never_raise(frames: list[tuple[int, bytes, int]]) -> None:
    ring = SwitchedRing(2)
    for port, frame, count in frames:
        rows = np.frombuffer(frame * count, np.uint8).reshape(count, len(frame))
        for action in ring.arrive_blocks(port, rows):
            assert isinstance(action, EmitFrames)
    assert by_port(ring.finish(0)) == ring.results(0)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("sealed", [False, True])
def test_packets_of_a_ring_with_any_byte_changed_never_raise(seed: int, sealed: bool) -> None:
    """Sealed: by someone who can compute an ICRC."""
    rng = Random(seed)
    ring = SwitchedRing(2)
    for _ in range(150):
        rank = rng.randrange(2)
        frames = ring.message(rank, ring.accelerator.view().rings[7]["next_message"])
        if rng.random() < 0.7:
            harmed = bytearray(rng.choice(frames))
            for _byte in range(rng.choice([1, 1, 2, 8])):
                harmed[rng.randrange(len(harmed))] = rng.randrange(256)
            if sealed:
                with contextlib.suppress(DecodeError):
                    icrc.seal(harmed)
            frames = [bytes(harmed)] * rng.choice([1, 2])
        ring.arrive(rank, *frames)
        if ring.accelerator.view().rings[7]["failed"]:
            assert sealed, "without the right ICRC nobody can do that"
            ring = SwitchedRing(2)


def test_blocks_with_gaps_between_the_rows() -> None:
    """As they lie in a receive buffer, with length prefixes between them."""
    ring = SwitchedRing(2, message_packets=8)
    ring.send(0, 0)
    first, *middle, last = ring.message(1, 0)
    buffer = np.zeros((len(middle), len(middle[0]) + 4), np.uint8)
    buffer[:, 4:] = block(*middle)
    actions = ring.accelerator.step(FramesArrived(PortId(1), [block(first), buffer[:, 4:], block(last)]), NOW)
    assert by_port(actions) == ring.results(0)
    assert others(actions) == []
