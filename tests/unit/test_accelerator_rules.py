"""The accelerator around its rings: what is dropped by which rule, who is blamed, how memory is counted."""

from __future__ import annotations

import dataclasses

import pytest

from inaproto.core.switch.accelerator import (
    AcceleratorConfig,
    AcceleratorView,
    FramesArrived,
    InstallRing,
    PortUp,
    RemoveRing,
    RingRefused,
)
from inaproto.core.switch.aggregator import bytes_needed
from inaproto.core.switch.events import Counters
from inaproto.errors import Blame
from inaproto.units import Instant, PortId
from inaproto.wire import icrc
from inaproto.wire.ina_header import FLAG_LAST, FLAG_RESULT, INA_HEADER_BYTES, InaHeader
from inaproto.wire.roce import RocePacket
from tests.accelerators import EACH_ACCELERATOR, FIXED, ONE_BY_ONE, software_only
from tests.unit.switched_ring import NOW, SwitchedRing, block, by_port, dropped, emitted, mac, others, ring_of
from tests.unit.test_accelerator_identity import double_vlan
from tests.unit.test_accelerator_switch import moved, tcp

pytestmark = EACH_ACCELERATOR

# -- frames that no NIC of a ring emits


def test_malformed_packets_of_a_ring_are_counted_by_frames() -> None:
    ring = SwitchedRing(2)
    malformed = [double_vlan(ring.packet(0, 0, offset)) for offset in (1, 2)]
    assert ring.arrive_blocks(0, block(*malformed)) == []
    assert dropped(ring) == {"malformed packet of a ring": 2}
    assert ring.arrive_blocks(0, block(malformed[0])) == []
    assert dropped(ring) == {"malformed packet of a ring": 3}
    assert ring.accelerator.view().counters.bridged == 3, "of the ports' first frames"


def test_one_malformed_packet_of_a_ring_takes_its_block_along() -> None:
    """Frames of one key but for what a lenient reader sees: none of them passes."""
    ring = SwitchedRing(2)
    other = double_vlan(ring.packet(0, 0, 1, dest_qp=0x999))
    own = double_vlan(ring.packet(0, 0, 1))
    assert emitted(ring.arrive_blocks(0, block(other))) == [(1, other)]
    for frames in ((own, own), (other, own)):
        before = sum(dropped(ring).values())
        passed = [frame for _, frame in emitted(ring.arrive_blocks(0, block(*frames)))]
        assert own not in passed
        assert sum(dropped(ring).values()) > before


@software_only(ONE_BY_ONE)
def test_a_frame_of_no_connection_hides_none_behind_it() -> None:
    """Both are of one kind to the decoder; only one of them is IPv4 behind its VLAN tags."""
    ring = SwitchedRing(2)
    own = double_vlan(ring.packet(0, 0, 1))
    nothing = own[:22] + b"\x65" + own[23:]
    assert emitted(ring.arrive_blocks(0, block(nothing))) == [(1, nothing)]
    assert emitted(ring.arrive_blocks(0, block(nothing, own))) == []
    assert dropped(ring) == {"malformed packet of a ring": 2}


def test_malformed_packets_of_a_removed_ring_are_dropped_for_a_while() -> None:
    ring = SwitchedRing(2, config=AcceleratorConfig(retired_ns=1000))
    frame = double_vlan(ring.packet(0, 0, 1))
    ring.accelerator.step(RemoveRing(7), NOW)
    for now, passes in ((0, False), (999, False), (1000, True)):
        actions = ring.accelerator.step(FramesArrived(PortId(0), [block(frame)]), Instant(now))
        assert bool(emitted(actions)) is passes


# -- connections of removed rings


@software_only("it remembers as many as it has places for rings")
def test_what_is_remembered_of_removed_rings_is_bounded() -> None:
    """The oldest make room; exactly as many as allowed stay."""
    ring = SwitchedRing(2, config=AcceleratorConfig(retired_max=4))
    first, second, third = (moved(ring.spec, number) for number in (1, 2, 3))
    for spec in (first, second, third):
        assert ring.accelerator.step(InstallRing(spec), NOW) == []
    for spec in (first, second):
        ring.accelerator.step(RemoveRing(spec.ring_id), NOW)

    def passes(number: int) -> bool:
        qp = ring.spec.flows[0].dst_qp + 0x1000 * number
        return bool(emitted(ring.arrive(0, ring.packet(0, 0, 1, dest_qp=qp))))

    assert not passes(1), "four connections fit"
    assert not passes(2)
    ring.accelerator.step(RemoveRing(3), NOW)
    assert passes(1)
    assert not passes(2)
    assert not passes(3)


def test_connections_whose_time_is_over_make_room_first() -> None:
    ring = SwitchedRing(2, config=AcceleratorConfig(retired_max=2, retired_ns=100))
    assert ring.accelerator.step(InstallRing(moved(ring.spec, 1)), NOW) == []
    ring.accelerator.step(RemoveRing(1), NOW)
    ring.accelerator.step(RemoveRing(7), Instant(100))
    frame = ring.packet(0, 0, 1)
    actions = ring.accelerator.step(FramesArrived(PortId(0), [block(frame)]), Instant(199))
    assert emitted(actions) == []
    assert dropped(ring) == {"ring removed": 1}


def test_a_ring_installed_anew_may_send_at_once() -> None:
    ring = SwitchedRing(2)
    ring.accelerator.step(RemoveRing(7), NOW)
    assert ring.send(0, 0) == []
    assert ring.accelerator.step(InstallRing(ring.spec), NOW) == []
    assert by_port(ring.finish(0)) == ring.results(0)
    assert ring.accelerator.step(RemoveRing(7), NOW) == []
    assert ring.arrive_blocks(0, block(double_vlan(ring.packet(0, 0, 1)))) == []


def test_middle_packets_of_a_removed_ring_are_not_known_by_their_headers() -> None:
    ring = SwitchedRing(2, message_packets=8)
    for rank in (0, 1):
        first, *middle, last = ring.message(rank, 0)
        ring.arrive_blocks(rank, block(first), block(*middle), block(last))
    middles = block(*ring.message(0, 1)[1:-1])
    ring.accelerator.step(RemoveRing(7), NOW)
    assert ring.arrive_blocks(0, middles) == []
    assert dropped(ring)["ring removed"] == 6


# -- INA messages on connections of no ring


def stray(ring: SwitchedRing, **ina: int) -> bytes:
    return ring.packet(0, 3, 0, dest_qp=0x999, **ina)  # type: ignore[arg-type]


@software_only("it says no more than the rule")
@pytest.mark.parametrize(("ring_id", "rule"), [(7, "connection not registered"), (8, "unknown ring")])
def test_a_stray_message_blames_its_sender(ring_id: int, rule: str) -> None:
    ring = SwitchedRing(2)
    frames = [stray(ring, ring_id=ring_id), stray(ring, ring_id=ring_id)]
    blame = Blame("10.0.0.0 to queue pair 2457", rule, f"ring {ring_id}, rank 0, message 3")
    assert ring.arrive_blocks(0, block(*frames)) == [blame, blame]
    assert dropped(ring) == {rule: 2}


def test_a_damaged_stray_message_is_dropped_and_nobody_is_blamed() -> None:
    ring = SwitchedRing(2)
    harmed = bytearray(stray(ring))
    harmed[-1] ^= 1
    assert ring.arrive(0, bytes(harmed)) == []
    assert dropped(ring) == {"wrong ICRC": 1}


def test_results_of_another_accelerator_pass() -> None:
    ring = SwitchedRing(2)
    frame = stray(ring, flags=FLAG_LAST | FLAG_RESULT)
    assert emitted(ring.arrive(0, frame)) == [(1, frame)]


def payload_replaced(frame: bytes, payload: bytes) -> bytes:
    return dataclasses.replace(RocePacket.decode_frame(frame), payload=payload).encode_frame()


def test_what_only_looks_like_a_message_passes() -> None:
    ring = SwitchedRing(2)
    header = InaHeader.decode(RocePacket.decode_frame(stray(ring)).payload).encode()
    for payload in (header[:39], header[:3], bytes(64), header[:4] + bytes(60), b"JUNK" + header[4:]):
        frame = payload_replaced(stray(ring), payload)
        assert emitted(ring.arrive(0, frame)) == [(1, frame)]
    alone = payload_replaced(stray(ring), header)
    assert len(header) == INA_HEADER_BYTES
    assert emitted(ring.arrive(0, alone)) == [], "a header and nothing else is a message"


def test_stray_messages_and_others_of_one_block_are_told_apart() -> None:
    ring = SwitchedRing(2)
    one = stray(ring, va=1)
    other = payload_replaced(stray(ring, va=1), bytes(64))
    for frames in ((one, other), (other, one), (other, one, other)):
        actions = ring.arrive_blocks(0, block(*frames))
        assert [frame for _, frame in emitted(actions)] == [frame for frame in frames if frame is other]
        assert [port for port, _ in emitted(actions)] == [1] * (len(frames) - 1)
        assert len(others(actions)) == 1


def test_what_passes_does_not_return_to_its_port() -> None:
    ring = SwitchedRing(2)
    for offset in (0, 1):
        frame = ring.packet(0, 0, offset, dest_qp=0x999, payload=bytes(64))
        flooded = frame[:5] + b"\x09" + frame[6:]
        assert {port for port, _ in emitted(ring.arrive(0, flooded))} == {1, 2}


# -- blocks


def test_an_empty_block_between_others_is_passed_over() -> None:
    ring = SwitchedRing(2)
    empty = block(tcp(0, 1))[:0]
    frames = ring.message(0, 0)
    assert ring.arrive_blocks(0, empty, *(block(frame) for frame in frames[:2]), empty) == []
    assert ring.arrive_blocks(0, *(part for frame in frames[2:] for part in (empty, block(frame)))) == []
    assert by_port(ring.send(1, 0)) == ring.results(0)


def test_an_acknowledgement_tells_where_its_host_is() -> None:
    ring = SwitchedRing(2)
    ack = mac(0) + mac(9) + ring.ack(0)[12:]
    ring.arrive(2, ack)
    assert emitted(ring.arrive(0, tcp(0, 9))) == [(2, tcp(0, 9))]


def test_an_acknowledgement_for_a_host_that_is_not_known_is_flooded_but_not_to_its_sender() -> None:
    ring = SwitchedRing(2)
    ack = mac(9) + ring.ack(0)[6:]
    assert emitted(ring.arrive(1, ack)) == [(0, ack), (2, ack)]


# -- memory and views


@software_only(FIXED)
def test_memory_of_several_rings_adds_up() -> None:
    need = bytes_needed(ring_of(2))
    ring = SwitchedRing(2, config=AcceleratorConfig(memory_bytes_max=3 * need))
    for number in (1, 2):
        assert ring.accelerator.step(InstallRing(moved(ring.spec, number)), NOW) == []
    assert ring.accelerator.view().memory_bytes == 3 * need, "the last byte may be used"
    [refused] = ring.accelerator.step(InstallRing(moved(ring.spec, 3)), NOW)
    assert refused == RingRefused(3, f"needs {need} bytes of memory, 0 are free")
    ring.accelerator.step(RemoveRing(1), NOW)
    assert ring.accelerator.view().memory_bytes == 2 * need


def test_what_was_counted_when_one_looked_stays() -> None:
    ring = SwitchedRing(2)
    ring.send(0, 0, 1)
    dropped(ring)
    before = ring.accelerator.view()
    ring.send(0, 0, 1)
    assert before.counters.dropped == {"first packet of the message not seen": 1}
    assert dropped(ring) == {"first packet of the message not seen": 2}


def test_the_view_as_plain_values() -> None:
    view = AcceleratorView({7: {"ranks": 2}}, Counters(results_out=3), 5, 6)
    assert view.as_dict() == {
        "rings": {7: {"ranks": 2}},
        "counters": {
            "aggregated_in": 0,
            "results_out": 3,
            "replayed": 0,
            "replay_filled": 0,
            "gaps_signalled": 0,
            "losses_told": 0,
            "naks_in": 0,
            "bridged": 0,
            "for_links": 0,
            "sums_up": 0,
            "sums_up_again": 0,
            "results_in": 0,
            "results_down": 0,
            "results_down_again": 0,
            "notes_in": 0,
            "notes_out": 0,
            "steered": 0,
            "strange_addresses": 0,
            "early": 0,
            "early_taken": 0,
            "path_probes": 0,
            "links_down": 0,
            "pool_takeovers": 0,
            "pool_conflicts": 0,
            "stale_turns": 0,
            "dropped": {},
        },
        "memory_bytes": 5,
        "connections": 6,
        "pools": {},
        "waiting": 0,
    }


@software_only(FIXED)
def test_output_in_reused_memory_is_bounded_by_the_configuration() -> None:
    """The bound changes where results are built, never what they are, in steps that need more than it too."""
    for output_bytes_max in (0, 1 << 17, 1 << 20):
        config = AcceleratorConfig(output_bytes_max=output_bytes_max)
        ring = SwitchedRing(2, message_packets=400, config=config)
        for serial in range(3):
            actions = []
            for rank in range(2):
                first, *middle, last = ring.message(rank, serial)
                actions = ring.arrive_blocks(rank, block(first), block(*middle), block(last))
            sent = by_port(actions)
            assert [len(sent[port]) for port in (0, 1)] == [400, 400]
            assert all(icrc.verify(frame) for frames in sent.values() for frame in frames)
            for offset in (0, 1, 200, 399):
                assert sent[1][offset] == ring.result(0, serial, offset)


def test_ports_that_come_up_take_part_in_flooding() -> None:
    ring = SwitchedRing(2)
    ring.accelerator.step(PortUp(PortId(9)), NOW)
    assert {port for port, _ in emitted(ring.arrive(0, tcp(0, 8)))} == {1, 2, 9}


@pytest.mark.parametrize("last", [0x00, 0x01, 0x02, 0x03, 0x0E, 0x0F])
def test_what_is_for_the_far_end_of_a_link_ends_at_its_port_and_is_counted(last: int) -> None:
    """Pauses, LACP, LLDP, spanning trees (IEEE 802.1Q, table 8-1), amid a message."""
    ring = SwitchedRing(2)
    frame = bytes([1, 0x80, 0xC2, 0, 0, last]) + mac(1) + b"\x88\x08\0\1\xff\xff" + bytes(42)
    ring.send(0, 0)
    for offset in range(4):
        assert emitted(ring.arrive(1, frame)) == []
        assert emitted(ring.send(1, 0, offset)) == [
            (1, ring.result(0, 0, offset)),
            (0, ring.result(1, 0, offset)),
        ]
    view = ring.accelerator.view()
    assert (view.counters.for_links, view.counters.dropped) == (4, {})
    near = bytes([1, 0x80, 0xC2, 0, 0, 0x10]) + frame[6:]
    assert {port for port, _ in emitted(ring.arrive(1, near))} == {0, 2}
    assert ring.accelerator.view().counters.for_links == 4
