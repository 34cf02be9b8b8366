"""Cases in which an accelerator that looks right goes wrong: blocks of mixed packets, forgery, odd layouts.

Each has been a defect of this one. Vectors are the common cause: a rule that holds for a packet has to
hold for every row of a block.
"""

from __future__ import annotations

import pytest

from inaproto.core.switch.accelerator import (
    AcceleratorConfig,
    FramesArrived,
    InstallRing,
    RemoveRing,
    RingFault,
)
from inaproto.errors import Blame
from inaproto.units import Instant, PortId
from inaproto.wire import icrc
from inaproto.wire.ina_header import INA_HEADER_BYTES, InaHeader
from tests.accelerators import EACH_ACCELERATOR, FIXED, software_only
from tests.unit.switched_ring import MTU, NOW, SwitchedRing, block, by_port, emitted, mac, others

pytestmark = EACH_ACCELERATOR

# -- packets in flight of a ring that is gone


def test_packets_in_flight_of_a_removed_ring_never_reach_a_receiver() -> None:
    """A ring is removed the moment its job fails; hosts hear of it later and go on sending.

    Here rank 0's receiver has the first two results of a message. If the rest arrives raw, in PSN order
    and with the right immediate, it takes gradients for the sum, and its all-reduce succeeds.
    """
    ring = SwitchedRing(2)
    ring.send(0, 0)
    assert len(by_port(ring.send(1, 0, 0, 1))[1]) == 2
    ring.accelerator.step(RemoveRing(ring.spec.ring_id), NOW)
    assert ring.send(0, 0, 2, 3) == []
    assert ring.accelerator.view().counters.dropped == {"ring removed": 2}


def test_connections_of_a_removed_ring_open_again_after_a_while_or_with_a_new_ring() -> None:
    config = AcceleratorConfig(retired_ns=1000)
    ring = SwitchedRing(2, config=config)
    middle = block(ring.packet(0, 0, 1))
    ring.accelerator.step(RemoveRing(ring.spec.ring_id), NOW)
    assert ring.accelerator.step(FramesArrived(PortId(0), [middle]), Instant(999)) == []
    assert len(emitted(ring.accelerator.step(FramesArrived(PortId(0), [middle]), Instant(1000)))) == 1
    assert ring.accelerator.step(InstallRing(ring.spec), Instant(500)) == []
    assert by_port(ring.finish(0)) == ring.results(0)


# -- layouts


def test_bytes_behind_the_icrc_are_ignored() -> None:
    """Ethernet padding: a switch or NIC on the way may leave it on any frame."""
    ring = SwitchedRing(2, message_packets=9, psn0=0)
    for rank in (0, 1):
        first, *middle, _ = (frame + bytes(4) for frame in ring.message(rank, 0))
        ring.arrive_blocks(rank, block(first), block(*middle[:3]))
        ring.arrive_blocks(rank, block(*middle[3:]))
    ring.send(0, 0, 8)
    assert by_port(ring.send(1, 0, 8)) == ring.results(0, 8)


@pytest.mark.parametrize(("offset", "rows"), [(1, 1), (1, 2), (3, 1)])
def test_pad_bits_on_a_packet_of_full_size_never_raise(offset: int, rows: int) -> None:
    """Whoever can write to the network can compute an ICRC: one packet ends the switch daemon."""
    ring = SwitchedRing(2)
    ring.send(0, 0, 0)
    frame = bytearray(ring.packet(0, 0, offset, payload=bytes(MTU)))
    frame[-4:-4] = bytes(3)
    frame[43] |= 3 << 4
    for at, behind in ((16, 14), (38, 34)):  # IP and UDP lengths
        frame[at : at + 2] = (len(frame) - behind).to_bytes(2, "big")
    icrc.seal(frame)
    ring.arrive_blocks(0, block(*[bytes(frame)] * rows))


# -- blocks


def test_first_packets_of_two_messages_in_one_block_keep_their_own_ina_headers() -> None:
    """They are one run where the packets between them were lost and both name the same address."""
    ring = SwitchedRing(2, message_packets=2)
    for serial in (0, 1):
        ring.send(0, serial)
    sent = emitted(ring.arrive_blocks(1, block(*(ring.packet(1, serial, 0, va=1) for serial in (0, 1)))))
    sent += emitted(ring.arrive(1, ring.packet(1, 0, 1), ring.packet(1, 1, 1)))
    firsts = [frame for port, frame in sent if port == 0 and frame[42] == 0x06]
    assert firsts
    for frame in firsts:
        serial = (int.from_bytes(frame[51:54], "big") - ring.psn0) // 2
        assert InaHeader.decode(frame[70 : 70 + INA_HEADER_BYTES]).msg_id == serial


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_every_packet_of_a_block_is_judged_for_the_ina_magic(order: tuple[bool, bool]) -> None:
    """A plain write must pass, a raw gradient must not, also when they are rows of one run."""
    ring = SwitchedRing(2)
    stray = ring.packet(0, 0, 0, dest_qp=0x999, va=1)
    plain = ring.packet(0, 0, 0, dest_qp=0x999, va=1, payload=bytes(MTU))
    frames = [stray if is_stray else plain for is_stray in order]
    assert emitted(ring.arrive_blocks(0, block(*frames))) == [(1, plain)]


# -- forgery and damage


def test_a_forged_packet_does_not_steer_results() -> None:
    """No key, no ICRC: addresses that everybody on the network can see are enough to starve a receiver."""
    ring = SwitchedRing(2, extra_ports=2)
    ring.send(0, 0)
    ring.send(1, 0, 0, 1, 2)
    ring.arrive(3, b"\xff" * 6 + mac(9) + bytes(48))
    forged = bytearray(ring.packet(0, 0, 1))
    forged[:12] = mac(9) + mac(8)
    forged[-1] ^= 1
    ring.arrive(2, bytes(forged))
    assert by_port(ring.send(1, 0, 3))[1] == [ring.result(0, 0, 3)]


def test_damage_on_the_way_is_nobody_s_fault() -> None:
    """A flipped bit of the queue pair number makes a member's first packet one of an unknown connection."""
    ring = SwitchedRing(2)
    damaged = bytearray(ring.packet(0, 0, 0))
    damaged[49] ^= 0x40
    assert ring.arrive(0, bytes(damaged)) == []


# -- gaps and resends


def test_a_gap_is_signalled_although_no_rank_s_first_packet_came() -> None:
    """Both lost the first packet of message 0; message 1 is finished. Without a signal both time out."""
    ring = SwitchedRing(2)
    for rank in (0, 1):
        ring.send(rank, 0, 1, 2, 3)
    ring.send(0, 1)
    assert by_port(ring.send(1, 1)) == {1: [ring.result(0, 1, 0)], 0: [ring.result(1, 1, 0)]}


def test_a_resend_over_two_messages_is_answered_in_psn_order() -> None:
    """Middle packets of messages 1 and 2 in one run: last and first packets between them were lost."""
    ring = SwitchedRing(2, window_messages=1)
    for serial in range(3):
        ring.finish(serial)
    middles = [ring.packet(0, serial, offset) for serial in (1, 2) for offset in (1, 2)]
    frames = [frame for _, frame in emitted(ring.arrive_blocks(0, block(*middles)))]
    psns = [(int.from_bytes(frame[51:54], "big") - ring.psn0) & 0xFF_FFFF for frame in frames]
    assert psns == sorted(psns)


@pytest.mark.parametrize("fill", [32, 1])
def test_a_hole_is_counted_in_packets_across_a_short_message(fill: int) -> None:
    """With ``fill`` 1 the one missing packet is not filled; with 32 it is, and counted as three."""
    ring = SwitchedRing(2, config=AcceleratorConfig(replay_fill_packets_max=fill))
    ring.finish(0, packets=2)
    ring.finish(1)
    ring.arrive(0, ring.packet(0, 0, 0, packets=2))
    frames = emitted(ring.send(0, 1, 0))
    assert frames == [(1, ring.result(0, 0, 1, packets=2)), (1, ring.result(0, 1, 0))]
    assert ring.accelerator.view().counters.replay_filled == 1


def test_a_resend_that_reached_the_frontier_is_over() -> None:
    """A later, other resend is then filled with results that its receiver has."""
    ring = SwitchedRing(2)
    ring.finish(0, packets=2)
    ring.send(0, 1, packets=1)
    assert emitted(ring.send(0, 0, 1, packets=2)) == [(1, ring.result(0, 0, 1, packets=2))]
    ring.send(1, 1, packets=1)
    assert emitted(ring.send(0, 2, packets=1)) == []


@software_only(FIXED)
def test_a_hole_inside_a_block_is_filled_only_if_it_is_short() -> None:
    ring = SwitchedRing(2, message_packets=9, config=AcceleratorConfig(replay_fill_packets_max=2))
    ring.finish(0)
    rows = block(ring.packet(0, 0, 1), ring.packet(0, 0, 7))
    frames = [frame for _, frame in emitted(ring.arrive_blocks(0, rows))]
    assert frames == [ring.result(0, 0, offset) for offset in (1, 7)]


@pytest.mark.parametrize("wrong_first", [True, False])
def test_a_refused_first_packet_neither_takes_its_neighbour_along_nor_its_place(wrong_first: bool) -> None:
    ring = SwitchedRing(2)
    right, wrong = ring.packet(0, 0, 0), ring.packet(0, 0, 0, payload=ring.packet(1, 0, 0, key=1)[70:-4])
    rows = [wrong, right] if wrong_first else [right, wrong]
    (blame,) = others(ring.arrive_blocks(0, block(*rows)))
    assert isinstance(blame, Blame)
    ring.send(0, 0, 1, 2, 3)
    assert by_port(ring.send(1, 0)) == ring.results(0)


# -- the quick ways decline what is not theirs


def known(ring: SwitchedRing) -> None:
    """Finish message 0 in blocks, so that the headers of all middle packets are known."""
    for rank in range(ring.spec.size):
        first, *middle, last = ring.message(rank, 0)
        ring.arrive_blocks(rank, block(first), block(*middle), block(last))


def test_a_block_of_middle_packets_fills_a_hole_before_it_too() -> None:
    ring = SwitchedRing(2, message_packets=9, psn0=0)
    known(ring)
    ring.send(0, 1, 0, 1)
    ring.send(1, 1, 0, 1)
    assert emitted(ring.send(0, 1, 0)) == [(1, ring.result(0, 1, 0))]
    middles = block(*(ring.packet(0, 1, offset) for offset in (2, 3, 4)))
    assert emitted(ring.arrive_blocks(0, middles)) == [(1, ring.result(0, 1, 1))]


def test_a_block_of_middle_packets_of_a_failed_ring_is_dropped() -> None:
    ring = SwitchedRing(2, message_packets=9, psn0=0)
    known(ring)
    ring.send(0, 1, 0)
    ring.send(1, 1, 0, signature=1)
    assert ring.accelerator.view().rings[7]["failed"]
    assert ring.arrive_blocks(0, block(*(ring.packet(0, 1, offset) for offset in (1, 2)))) == []
    assert ring.accelerator.view().counters.dropped == {"operations differ": 1, "ring failed": 2}


def test_a_block_of_middle_packets_that_reaches_the_last_place_faults_the_ring() -> None:
    ring = SwitchedRing(2, message_packets=9, psn0=0)
    known(ring)
    ring.send(0, 1, 0)
    (fault,) = ring.arrive_blocks(0, block(*(ring.packet(0, 1, offset, opcode=7) for offset in (7, 8))))
    assert isinstance(fault, RingFault)
    assert fault.rule == "packet layout"


# -- requests that are no writes


@pytest.mark.parametrize(
    "rows",
    [1, 3],
)
def test_a_send_on_a_registered_connection_is_refused(rows: int) -> None:
    ring = SwitchedRing(2)
    actions = ring.arrive_blocks(0, block(*[ring.packet(0, 0, 1, opcode=0x01)] * rows))
    assert emitted(actions) == []
    assert {blame.rule for blame in actions if isinstance(blame, Blame)} == {"not an RDMA WRITE"}
    assert ring.accelerator.view().counters.dropped == {"not an RDMA WRITE": rows}


@pytest.mark.parametrize("opcode", [0x00, 0x01, 0x04])
def test_nothing_unverified_is_forwarded_on_a_registered_connection(opcode: int) -> None:
    ring = SwitchedRing(2)
    harmed = bytearray(ring.packet(0, 0, 1, opcode=opcode))
    harmed[-1] ^= 1
    assert emitted(ring.arrive(0, bytes(harmed))) == []


# -- every frame that comes in is counted once


def accounted(ring: SwitchedRing) -> int:
    counters = ring.accelerator.view().counters
    waiting = ring.accelerator.view().waiting
    return counters.aggregated_in + counters.bridged + sum(counters.dropped.values()) + waiting


def test_first_packets_of_one_block_that_disagree_are_all_counted() -> None:
    """The second faults the ring: the first is stored by then, and the third is not any more."""
    ring = SwitchedRing(2)
    before = accounted(ring)
    (fault,) = ring.arrive_blocks(0, block(*(ring.packet(0, 0, 0, signature=row) for row in (1, 2, 1))))
    assert isinstance(fault, RingFault)
    assert ring.accelerator.view().counters.dropped == {"operations differ": 1, "ring failed": 1}
    assert ring.accelerator.view().counters.aggregated_in == 1
    assert accounted(ring) - before == 3


def test_a_packet_of_two_messages_whose_numbers_overlap_is_counted_once() -> None:
    """No right sender makes such messages; a row of theirs goes to one of them."""
    ring = SwitchedRing(2, message_packets=9, psn0=0)
    ring.send(0, 0, 0)
    ring.arrive(0, ring.packet(0, 1, 0, psn=4))
    before = accounted(ring)
    ring.arrive_blocks(0, block(*(ring.packet(0, 0, offset) for offset in (5, 3, 6))))
    assert ring.accelerator.view().counters.aggregated_in == 5
    assert accounted(ring) - before == 3


def test_what_is_flooded_replayed_or_lost_is_counted_once() -> None:
    ring = SwitchedRing(3, extra_ports=4)
    before = accounted(ring)
    sent = 0

    def arrive(port: int, *frames: bytes) -> None:
        nonlocal sent
        ring.arrive(port, *frames)
        sent += len(frames)

    arrive(0, mac(99) + mac(0) + bytes(50), b"\xff" * 6 + mac(0) + bytes(50), mac(0) + mac(0) + bytes(50))
    arrive(1, b"short")
    for rank in range(3):
        arrive(rank, *ring.message(rank, 0))
    arrive(0, *ring.message(0, 0))  # answered from kept results
    arrive(1, *ring.message(1, 1)[1:])  # its first packet is missing
    arrive(2, ring.ack(2))
    harmed = bytearray(ring.packet(1, 1, 0))
    harmed[-9] ^= 1
    arrive(1, bytes(harmed))
    assert ring.accelerator.view().counters.replayed == 4
    assert accounted(ring) - before == sent
