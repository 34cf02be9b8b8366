"""Losses of selective rings that the switch finds and repairs (docs/protocol.md 6.14), packet by packet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.switch.accelerator import Action, FramesArrived, PortDown, RemoveRing
from inaproto.core.switch.repairs import LOSSY_MESSAGES
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.units import PSN_MASK, PortId
from inaproto.wire.behind_gap import AtSwitch, BehindGap
from inaproto.wire.packet import PacketBuilder
from inaproto.wire.roce import Aeth, Bth, Opcode, RocePacket
from inaproto.wire.vector import FlowTemplate
from inaproto.wire.vlan import with_tag
from tests.unit.switched_ring import (
    LATER,
    NOW,
    SwitchedRing,
    block,
    by_port,
    emitted,
    into_qp,
    ip,
    mac,
    nameless,
    ring_of,
)

NAK = 0x60
RNR_NAK = 0x20
PACKETS = 4
TAG = bytes.fromhex("81006064")


def own_qp(rank: int) -> int:
    return 0x300 + rank


def repaired(ranks: int = 2, **changes: Any) -> SwitchedRing:
    flows = tuple(replace(flow, src_qp=own_qp(flow.rank)) for flow in ring_of(ranks).flows)
    settings: dict[str, Any] = {"selective": True, "flows": flows, **changes}
    return SwitchedRing(ranks, **settings)


def psn(ring: SwitchedRing, serial: int, offset: int) -> int:
    return (ring.psn0 + serial * PACKETS + offset) & PSN_MASK


def said(actions: list[Action]) -> list[tuple[int, RocePacket, Aeth]]:
    """Port, and packet, of acknowledge packets that left."""
    found = []
    for port, frame in emitted(actions):
        packet = RocePacket.decode_frame(frame)
        if packet.bth.opcode == Opcode.RC_ACK:
            assert packet.aeth is not None
            found.append((port, packet, packet.aeth))
    return found


def acknowledgements(actions: list[Action]) -> dict[int, list[tuple[int, int, AtSwitch | None]]]:
    """By port: PSN, syndrome and what is said, of acknowledge packets that left."""
    found: dict[int, list[tuple[int, int, AtSwitch | None]]] = {}
    for port, packet, aeth in said(actions):
        told = AtSwitch.decode(packet.payload)
        assert told is not None or not packet.payload
        found.setdefault(port, []).append((packet.bth.psn, aeth.syndrome, told))
    return found


def lacking_one(
    ring: SwitchedRing, serial: int = 0, *, tos: int = 0, source: bytes = mac(0), tag: bytes = b""
) -> list[Action]:
    """Rank 0 sends packets 0 and 2 of a message, as these say."""
    blocks = []
    for offset in (0, 2):
        own = RocePacket.decode_frame(ring.packet(0, serial, offset))
        own = replace(own, eth=replace(own.eth, src=source), ip=replace(own.ip, tos=tos))
        blocks.append(with_tag(block(own.encode_frame()), tag))
    return ring.arrive_blocks(0, *blocks)


def nak(
    ring: SwitchedRing, rank: int, missing: int, *, reach: int, there: int = 0, syndrome: int = NAK
) -> bytes:
    """Of the receiver on ``rank``'s connection, with MSN 5."""
    successor = (rank + 1) % ring.spec.size
    return RocePacket.build(
        src_mac=mac(successor),
        dst_mac=mac(rank),
        src_ip=ip(successor),
        dst_ip=ip(rank),
        udp_source_port=0xC111,
        bth=Bth(opcode=Opcode.RC_ACK, dest_qp=own_qp(rank), psn=missing),
        aeth=Aeth(syndrome=syndrome, msn=5),
        payload=BehindGap(reach, there).encode(),
    ).encode_frame()


def complain(ring: SwitchedRing, missing: int, *, reach: int, there: int = 0, rank: int = 0) -> list[Action]:
    """The receiver of ``rank``'s results misses some."""
    return ring.arrive((rank + 1) % ring.spec.size, nak(ring, rank, missing, reach=reach, there=there))


# ---- before the switch -------------------------------------------------------------------------------


def test_a_rank_is_told_which_of_its_packets_have_come_when_one_is_missing() -> None:
    ring = repaired()
    told = acknowledgements(ring.send(0, 0, 0, 2, 3))
    assert told == {0: [(psn(ring, 0, 1), NAK, AtSwitch(reach=2, arrived=0b110))]}
    assert ring.accelerator.counters.losses_told == 1


def test_what_is_said_comes_from_who_receives_its_results() -> None:
    ring = repaired(3)
    [(port, frame)] = emitted(ring.send(1, 0, 0, 2))
    packet = RocePacket.decode_frame(frame)
    assert port == 1
    assert (packet.eth.src, packet.eth.dst) == (mac(2), mac(1))
    assert (packet.ip.src, packet.ip.dst) == (ip(2), ip(1))
    assert packet.bth.dest_qp == own_qp(1)


def test_nothing_is_said_while_packets_come_in_order() -> None:
    ring = repaired()
    for offset in range(PACKETS):
        for rank in range(2):
            assert acknowledgements(ring.send(rank, 0, offset)) == {}
    for rank in range(2):
        assert acknowledgements(ring.send(rank, 1)) == {}


def test_each_time_that_more_comes_it_is_said_until_nothing_is_missing() -> None:
    ring = repaired()
    missing = psn(ring, 0, 1)
    ring.send(0, 0, 0, 2)
    assert acknowledgements(ring.send(0, 0, 3)) == {0: [(missing, NAK, AtSwitch(2, 0b110))]}
    assert acknowledgements(ring.send(0, 1, 0)) == {0: [(missing, NAK, AtSwitch(3, 0b1110))]}
    assert ring.accelerator.counters.losses_told == 3
    assert acknowledgements(ring.send(0, 0, 1)) == {}
    assert acknowledgements(ring.send(0, 1, 1)) == {}


def test_others_are_told_nothing_of_a_loss_that_is_not_theirs() -> None:
    ring = repaired()
    ring.send(0, 0, 0, 2, 3)
    assert acknowledgements(ring.send(1, 0)) == {}


def test_the_end_of_a_message_is_missing_when_a_later_one_has_begun() -> None:
    ring = repaired()
    assert acknowledgements(ring.send(0, 0, 0, 1)) == {}
    told = acknowledgements(ring.send(0, 1, 0, 1))
    assert told == {0: [(psn(ring, 0, 2), NAK, AtSwitch(reach=3, arrived=0b1100))]}


def test_of_a_message_without_its_first_packet_that_is_missing() -> None:
    """What comes behind it waits for it (6.13), so it is not asked for."""
    ring = repaired()
    ring.finish(0)
    ring.send(0, 1, 1, 2, 3)
    told = acknowledgements(ring.send(0, 2, 0))
    assert told == {0: [(psn(ring, 1, 0), NAK, AtSwitch(reach=4, arrived=0b11110))]}
    ring.send(1, 1)
    assert by_port(ring.send(0, 1, 0)) == ring.results(1)


def test_a_rank_is_told_of_a_first_packet_when_others_wait_for_it() -> None:
    ring = repaired()
    ring.finish(0)
    missing = psn(ring, 1, 0)
    assert acknowledgements(ring.send(0, 1, 1, 3)) == {0: [(missing, NAK, AtSwitch(3, 0b1010))]}
    assert acknowledgements(ring.send(0, 1, 2)) == {0: [(missing, NAK, AtSwitch(3, 0b1110))]}
    assert acknowledgements(ring.send(0, 1, 0)) == {}
    assert ring.accelerator.waiting == 0


def test_of_first_packets_nothing_is_said_while_the_message_before_is_not_whole() -> None:
    ring = repaired()
    ring.send(0, 0, 0, 1, 2)
    assert acknowledgements(ring.send(0, 1, 1, 2)) == {}


def test_before_all_messages_nothing_is_known_of_first_packets() -> None:
    assert acknowledgements(repaired().send(0, 0, 1, 2, 3)) == {}


def test_of_messages_whose_ends_are_not_known_nothing_is_said() -> None:
    ring = repaired(window_messages=4)
    ring.finish(0)
    assert acknowledgements(ring.send(0, 3)) == {}


@pytest.mark.parametrize("kernels", ["numpy", "compiled"])
@pytest.mark.parametrize("harmed", [(2,), (1, 2)])
def test_what_came_damaged_has_not_come(
    harmed: tuple[int, ...], kernels: str, use_kernels: Callable[[str], None]
) -> None:
    """With reach 0 its sender would take it for here."""
    use_kernels(kernels)
    ring = repaired()
    for serial in (0, 1):
        frames = [bytearray(ring.packet(0, serial, offset)) for offset in range(PACKETS)]
        for offset in harmed if serial else ():
            frames[offset][-7] ^= 4
        ring.arrive(0, bytes(frames[0]))
        assert acknowledgements(ring.arrive_blocks(0, block(*map(bytes, frames[1:3])))) == {}
        if not serial:
            ring.arrive(0, bytes(frames[3]))
            ring.send(1, 0)


def test_the_newest_message_is_not_the_one_whose_packets_came_last() -> None:
    ring = repaired()
    ring.send(0, 0, 0, 1)
    late = [ring.packet(0, *place) for place in ((1, 0), (0, 3))]
    told = acknowledgements(ring.arrive_blocks(0, *(block(frame) for frame in late)))
    assert told == {0: [(psn(ring, 0, 2), NAK, AtSwitch(reach=2, arrived=0b110))]}


def test_what_is_missing_of_the_newest_message_is_said_though_an_older_one_became_whole() -> None:
    ring = repaired()
    ring.send(0, 0, 0, 1, 2)
    late = [ring.packet(0, *place) for place in ((1, 0), (1, 2), (0, 3))]
    told = acknowledgements(ring.arrive_blocks(0, *(block(frame) for frame in late)))
    assert told == {0: [(psn(ring, 1, 1), NAK, AtSwitch(reach=1, arrived=0b10))]}


def test_of_a_message_of_one_packet_that_is_missing() -> None:
    ring = repaired()
    ring.finish(0)
    missing = psn(ring, 1, 0)
    told = acknowledgements(ring.arrive(0, ring.packet(0, 2, 0, psn=missing + 1 & PSN_MASK)))
    assert told == {0: [(missing, NAK, AtSwitch(reach=1, arrived=0b10))]}


def test_of_a_last_packet_before_a_gap_of_unknown_length_it_is_said_that_it_is_missing() -> None:
    """With reach 0 its sender would take it for here."""
    ring = repaired(window_messages=4)
    ring.send(0, 0, 0, 1, 2)
    told = acknowledgements(ring.send(0, 3))
    assert told == {0: [(psn(ring, 0, 3), NAK, AtSwitch(reach=1, arrived=0))]}


@pytest.mark.parametrize("psn_of", [(1, 0), (3, 1), (0, 2)], ids=["none", "too many", "less than none"])
def test_between_messages_whose_psns_leave_no_place_for_another_the_gap_is_unknown(
    psn_of: tuple[int, int],
) -> None:
    ring = repaired(window_messages=4)
    ring.finish(0)
    ring.arrive(0, ring.packet(0, 2, 0, psn=psn(ring, *psn_of)))
    assert acknowledgements(ring.arrive(0, ring.packet(0, 2, 1, psn=psn(ring, *psn_of) + 1))) == {}


# ---- behind the switch -------------------------------------------------------------------------------


def test_a_result_that_is_missing_comes_from_the_switch() -> None:
    ring = repaired()
    ring.finish(0)
    sent = by_port(complain(ring, psn(ring, 0, 1), reach=1, there=0b1))
    assert sent[1] == [ring.result(0, 0, 1)] * 2
    assert ring.accelerator.counters.replayed == 2
    assert ring.accelerator.counters.naks_in == 1


def test_a_result_that_is_missing_leaves_by_the_way_that_its_flow_has_now() -> None:
    """Its packet came by a path that is no more, and does not come again for this."""
    ring = repaired(extra_ports=2)
    ring.finish(0)
    ring.arrive(3, b"\xff" * 6 + mac(9) + bytes(48))
    moved = [mac(9) + mac(8) + frame[12:] for frame in ring.message(0, 1)]
    ring.arrive(0, *moved)
    sent = by_port(complain(ring, psn(ring, 0, 1), reach=1, there=0b1))
    assert [frame[:12] for frame in sent[3]] == [mac(9) + mac(8)]
    assert [frame[12:] for frame in sent[3]] == [ring.result(0, 0, 1)[12:]]


def test_the_sender_hears_what_each_nak_acknowledges_and_once_that_results_are_lost() -> None:
    """The acknowledgement may be lost, and nothing but another NAK brings it again."""
    ring = repaired()
    ring.finish(0)
    missing = psn(ring, 0, 1)
    sent = acknowledgements(complain(ring, missing, reach=1))
    assert sent == {0: [(missing, NAK, AtSwitch(0, 0)), (psn(ring, 0, 0), 0x1F, None)]}
    again = acknowledgements(complain(ring, missing, reach=2, there=0b1))
    assert again == {0: [(psn(ring, 0, 0), 0x1F, None)]}
    assert acknowledgements(complain(ring, psn(ring, 0, 2), reach=1)) == {0: [(missing, 0x1F, None)]}


def test_what_is_missing_here_too_is_left_to_the_ranks_that_have_not_sent_it() -> None:
    ring = repaired()
    ring.send(1, 0)
    ring.send(0, 0, 0, 2, 3)
    missing = psn(ring, 0, 1)
    sent = complain(ring, missing, reach=2, there=0b11, rank=1)
    assert acknowledgements(sent) == {1: [(psn(ring, 0, 0), 0x1F, None)]}
    assert list(by_port(sent)) == [1]


def test_a_copy_is_given_up_when_a_result_that_left_after_it_has_come() -> None:
    ring = repaired()
    ring.finish(0)
    missing = psn(ring, 0, 1)
    assert 1 in by_port(complain(ring, missing, reach=2, there=0b10))
    assert 1 not in by_port(complain(ring, missing, reach=2, there=0b11))
    ring.finish(1)
    sent = by_port(complain(ring, missing, reach=3, there=0b111))
    assert sent[1] == [ring.result(0, 0, 1)]


def test_a_late_result_is_lost_when_one_that_left_after_it_has_come() -> None:
    """Its receiver may have missed it before it was there at all."""
    ring = repaired()
    ring.send(1, 0)
    ring.send(0, 0, 0, 2, 3)
    ring.send(0, 0, 1)
    missing = psn(ring, 0, 1)
    assert 1 not in by_port(complain(ring, missing, reach=2, there=0b11))
    ring.finish(1)
    assert 1 in by_port(complain(ring, missing, reach=3, there=0b111))


def test_when_the_sender_asks_copies_count_as_lost() -> None:
    ring = repaired()
    ring.finish(0)
    missing = psn(ring, 0, 1)
    complain(ring, missing, reach=2, there=0b10)
    assert by_port(ring.send(0, 0, 1)) == {1: [ring.result(0, 0, 1)]}
    assert 1 in by_port(complain(ring, missing, reach=2, there=0b10))


@pytest.mark.parametrize("kernels", ["numpy", "compiled"])
@pytest.mark.parametrize("tail", [(), (2,)], ids=["alone", "with another"])
def test_a_packet_that_came_twice_at_once_does_not_ask(
    tail: tuple[int, ...], kernels: str, use_kernels: Callable[[str], None]
) -> None:
    """Its result had not left when it came again, though kernels have that as soon as the first one came."""
    use_kernels(kernels)
    ring = repaired()
    ring.finish(0)
    missing = psn(ring, 0, 1)
    complain(ring, missing, reach=2, there=0b10)
    ring.send(1, 1)
    ring.send(0, 1, 0)
    frames = [ring.packet(0, 1, offset) for offset in (1, 1, *tail)]
    left = by_port(ring.arrive_blocks(0, block(*frames)))
    assert left[1] == [ring.result(0, 1, offset) for offset in (1, *tail)]
    assert 1 not in by_port(complain(ring, missing, reach=2, there=0b10))


def test_what_came_and_could_not_be_kept_is_sent_again() -> None:
    ring = repaired()
    ring.finish(0)
    sent = by_port(complain(ring, psn(ring, 0, 1), reach=2))
    assert sent[1] == [ring.result(0, 0, 1), ring.result(0, 0, 2), ring.result(0, 0, 3)] * 2


def test_copies_are_known_in_every_message() -> None:
    ring = repaired()
    ring.finish(0)
    ring.finish(1)
    missing = psn(ring, 1, 1)
    sent = by_port(complain(ring, missing, reach=2, there=0b10))
    assert sent[1] == [ring.result(0, 1, 1), ring.result(0, 1, 2)] * 2
    assert 1 not in by_port(complain(ring, missing, reach=2, there=0b10))
    assert 1 not in by_port(complain(ring, psn(ring, 1, 2), reach=1, there=0b1))
    assert ring.accelerator.counters.naks_in == 3


def test_several_messages_are_repaired_at_once() -> None:
    ring = repaired()
    ring.finish(0)
    ring.finish(1)
    there = 0b1011  # offsets 2 and 3 of message 0, and 1 of message 1
    sent = by_port(complain(ring, psn(ring, 0, 1), reach=4, there=there))
    assert sent[1] == [ring.result(0, 0, 1), *[ring.result(0, 1, 0)] * 2], "what is newest goes twice"


def test_what_is_late_leaves_twice() -> None:
    """Nothing would show that it is lost before results of other messages have come."""
    ring = repaired()
    ring.send(1, 0)
    ring.send(0, 0, 0, 2, 3)
    late = by_port(ring.send(0, 0, 1))
    assert late == {0: [ring.result(1, 0, 1)] * 2, 1: [ring.result(0, 0, 1)] * 2}
    counters = ring.accelerator.counters
    assert (counters.results_out, counters.replayed) == (2 * PACKETS, 2)


def test_what_is_late_leaves_once_if_a_later_message_has_begun() -> None:
    ring = repaired()
    ring.send(1, 0)
    ring.send(0, 0, 0, 2, 3)
    ring.send(1, 1, 0)
    assert by_port(ring.send(0, 0, 1))[1] == [ring.result(0, 0, 1)]


def test_a_long_stretch_leaves_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inaproto.core.switch.emission.TWICE_PACKETS_MAX", 1)
    ring = repaired()
    ring.send(1, 0)
    ring.send(0, 0, 0, 3)
    late = by_port(ring.send(0, 0, 1, 2))
    assert late[1] == [ring.result(0, 0, 1), ring.result(0, 0, 2)]
    ring.finish(1)
    sent = by_port(complain(ring, psn(ring, 1, 1), reach=1))
    assert sent[1] == [ring.result(0, 1, 1), ring.result(0, 1, 2)]


def test_while_losses_are_expected_the_last_result_of_all_leaves_twice() -> None:
    ring = repaired(window_messages=4)
    assert by_port(ring.finish(0))[1][-2:] == [ring.result(0, 0, 2), ring.result(0, 0, 3)]
    complain(ring, psn(ring, 0, 1), reach=1, there=0b1)
    assert by_port(ring.finish(1))[1][-2:] == [ring.result(0, 1, 3)] * 2
    ring.send(0, 2)
    ring.send(0, 3)
    sent = by_port(ring.send(1, 2))
    assert sent[1][-2:] == [ring.result(0, 2, 2), ring.result(0, 2, 3)], "another message shows its loss"
    assert by_port(ring.send(1, 3))[1][-2:] == [ring.result(0, 3, 3)] * 2
    for serial in range(4, LOSSY_MESSAGES):
        ring.finish(serial)
    assert by_port(ring.finish(LOSSY_MESSAGES))[1][-2:] == [ring.result(0, LOSSY_MESSAGES, 3)] * 2
    assert len(by_port(ring.finish(LOSSY_MESSAGES + 1))[1]) == PACKETS


# ---- what it says, before and behind -----------------------------------------------------------------


def test_what_is_said_has_the_vlan_tag_of_its_flow() -> None:
    ring = repaired()
    [(_, told)] = emitted(lacking_one(ring, tag=TAG))
    [(_, passed)] = emitted(complain(ring, psn(ring, 0, 1), reach=1))
    assert (told[12:16], passed[12:16]) == (TAG, TAG)


def test_what_is_said_has_the_latest_traffic_class_of_its_flow() -> None:
    ring = repaired()
    for serial, tos in enumerate((0x68, 0x28)):
        [(_, told, _)] = said(lacking_one(ring, serial, tos=tos))
        [(_, passed, _)] = said(complain(ring, psn(ring, 0, 1), reach=1))
        assert (told.ip.tos, passed.ip.tos) == (tos, tos)


@pytest.mark.parametrize("kernels", ["numpy", "compiled"])
def test_a_late_packet_of_an_older_message_does_not_change_the_traffic_class(
    kernels: str, use_kernels: Callable[[str], None]
) -> None:
    use_kernels(kernels)
    ring = repaired()
    for serial, tos in enumerate((0x68, 0x28)):
        lacking_one(ring, serial, tos=tos)
    [(_, told, _)] = said(ring.send(0, 0, 1))
    assert told.ip.tos == 0x28


def test_before_its_flow_has_a_message_it_has_no_traffic_class() -> None:
    ring = repaired()
    ring.send(0, 0, 1)  # waits for the first packet
    [(port, passed, _)] = said(complain(ring, psn(ring, 0, 0), reach=1))
    assert (port, passed.ip.tos) == (0, 0)


def test_what_is_said_follows_its_rank_to_another_address() -> None:
    flows = tuple(replace(flow, src_qp=own_qp(flow.rank)) for flow in nameless(ring_of(2)))
    ring = repaired(flows=flows)
    for serial, source in enumerate((mac(0), mac(8))):
        [(_, told, _)] = said(lacking_one(ring, serial, source=source))
        [(_, passed, _)] = said(complain(ring, psn(ring, 0, 1), reach=1))
        assert (told.eth.dst, passed.eth.dst) == (source, source)


def test_one_builder_makes_all_that_is_said_on_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def builder(template: FlowTemplate) -> PacketBuilder:
        made.append(template.tos)
        return PacketBuilder(template)

    monkeypatch.setattr("inaproto.core.switch.repairs.PacketBuilder", builder)
    ring = repaired()
    for serial, tos in enumerate((0x68, 0x28)):
        lacking_one(ring, serial, tos=tos)
        complain(ring, psn(ring, 0, 1), reach=1)
    assert made == [0x68, 0x28]


def test_nothing_is_said_while_it_is_not_known_where_the_rank_is() -> None:
    ring = repaired()
    assert said(complain(ring, psn(ring, 0, 0), reach=1)) == []
    ring.finish(0)
    ring.accelerator.step(PortDown(PortId(0)), NOW)
    assert by_port(complain(ring, psn(ring, 0, 1), reach=1, there=0b1)) == {1: [ring.result(0, 0, 1)] * 2}


def test_the_switch_counts_no_message_and_passes_the_count_of_the_receiver() -> None:
    ring = repaired()
    [(_, _, told)] = said(lacking_one(ring))
    [(_, packet, passed)] = said(complain(ring, psn(ring, 0, 1), reach=1))
    assert (told, passed) == (Aeth(syndrome=NAK, msn=0), Aeth(syndrome=0x1F, msn=5))
    assert packet.payload == b"", "what the receiver said of others is not passed on"


def test_ip_ids_of_what_is_said_differ() -> None:
    ring = repaired()
    [(_, told, _)] = said(lacking_one(ring))
    [(_, passed, _)] = said(complain(ring, psn(ring, 0, 1), reach=1))
    assert told.ip.identification != passed.ip.identification


# ---- left alone --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [{"flows": ring_of(2).flows}, {"selective": False}],
    ids=["its NIC has not said that it knows of it", "not selective"],
)
def test_other_rings_are_left_to_their_hosts(changes: dict[str, Any]) -> None:
    ring = repaired(**changes)
    assert acknowledgements(ring.send(0, 0, 0, 2, 3)) == {}
    frame = nak(ring, 0, psn(ring, 0, 1), reach=2, there=0b11)
    assert emitted(ring.arrive(1, frame)) == [(0, frame)]


def test_other_acknowledgements_pass() -> None:
    ring = repaired()
    ring.finish(0)
    frame = nak(ring, 0, psn(ring, 0, 1), reach=1, syndrome=RNR_NAK)
    assert emitted(ring.arrive(1, frame)) == [(0, frame)]
    stranger = nak(ring, 0, psn(ring, 0, 1), reach=1).replace(ip(1), ip(9))
    assert emitted(ring.arrive(1, stranger)) == [(0, stranger)]


def test_a_damaged_nak_is_dropped() -> None:
    ring = repaired()
    ring.finish(0)
    frame = bytearray(nak(ring, 0, psn(ring, 0, 1), reach=1))
    frame[-6] ^= 1
    assert ring.arrive(1, bytes(frame)) == []
    assert ring.accelerator.counters.dropped == {"wrong ICRC": 1}


def test_naks_that_come_together_are_answered_as_each_alone() -> None:
    alone, together = repaired(), repaired()
    for ring in (alone, together):
        ring.finish(0)
        ring.finish(1)
    frames = [nak(alone, 0, psn(alone, *place), reach=2, there=0b10) for place in ((0, 1), (0, 2), (1, 0))]
    one_by_one = [sent for frame in frames for sent in emitted(alone.arrive(1, frame))]
    assert emitted(together.arrive_blocks(1, block(*frames))) == one_by_one
    assert {port for port, _ in one_by_one} == {0, 1}
    assert together.accelerator.counters == alone.accelerator.counters
    assert together.accelerator.counters.naks_in == len(frames)


@pytest.mark.parametrize("harmed", [(0,), (1,), (0, 1)])
def test_of_naks_that_come_together_damaged_ones_are_dropped(harmed: tuple[int, ...]) -> None:
    alone, together = repaired(), repaired()
    for ring in (alone, together):
        ring.finish(0)
    frames = [bytearray(nak(alone, 0, psn(alone, 0, offset), reach=1)) for offset in (1, 2)]
    right = [bytes(frame) for at, frame in enumerate(frames) if at not in harmed]
    for at in harmed:
        frames[at][-6] ^= 1
    one_by_one = [sent for frame in right for sent in emitted(alone.arrive(1, frame))]
    assert emitted(together.arrive_blocks(1, block(*map(bytes, frames)))) == one_by_one
    assert together.accelerator.counters.dropped == {"wrong ICRC": len(harmed)}
    assert together.accelerator.counters.naks_in == len(right)


@pytest.mark.parametrize(
    "changes",
    [{"flows": ring_of(2).flows}, {"selective": False}, {}],
    ids=["not told", "not selective", "removed"],
)
def test_naks_of_other_rings_that_come_together_pass(changes: dict[str, Any]) -> None:
    ring = repaired(**changes)
    ring.finish(0)
    if not changes:
        ring.accelerator.step(RemoveRing(ring.spec.ring_id), LATER)
    frames = [nak(ring, 0, psn(ring, 0, offset), reach=1) for offset in (1, 2)]
    sent = emitted(ring.accelerator.step(FramesArrived(PortId(1), [block(*frames)]), LATER))
    assert sent == [(0, frame) for frame in frames]


def test_other_acknowledgements_that_come_together_pass() -> None:
    ring = repaired()
    ring.finish(0)
    frames = [nak(ring, 0, psn(ring, 0, offset), reach=1, syndrome=RNR_NAK) for offset in (1, 2)]
    assert emitted(ring.arrive_blocks(1, block(*frames))) == [(0, frame) for frame in frames]


def test_naks_of_what_nobody_sent_change_nothing() -> None:
    ring = repaired()
    ring.finish(0)
    assert 1 not in by_port(complain(ring, psn(ring, 7, 0), reach=1))
    assert 1 not in by_port(complain(ring, psn(ring, 0, 1), reach=900))


def test_a_ring_that_is_removed_is_not_looked_after() -> None:
    ring = repaired()
    ring.finish(0)
    ring.accelerator.step(RemoveRing(ring.spec.ring_id), LATER)
    frame = nak(ring, 0, psn(ring, 0, 1), reach=1)
    assert emitted(ring.accelerator.step(FramesArrived(PortId(1), [block(frame)]), LATER)) == [(0, frame)]


def test_the_queue_pair_is_part_of_a_ring() -> None:
    spec: RingSpec = repaired().spec
    assert [flow.src_qp for flow in spec.flows] == [own_qp(0), own_qp(1)]
    assert [flow.dst_qp for flow in spec.flows] == [into_qp(1), into_qp(0)]
