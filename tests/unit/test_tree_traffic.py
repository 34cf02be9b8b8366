"""Results, notes and steered packets at a switch of a tree: several at once, what is said of wrong ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.plan.aggregation_tree import VIRTUAL_QP_BASE, TreeSwitch
from inaproto.core.switch.accelerator import (
    FramesArrived,
    InstallRing,
    PortDown,
    PortUp,
    RemoveRing,
    RingRefused,
)
from inaproto.core.switch.tree.translation import base_header, packet_header, share_of, start_psn
from inaproto.errors import Blame
from inaproto.units import PortId
from inaproto.wire.crc import crc32
from inaproto.wire.ina_header import InaHeader
from inaproto.wire.roce import Aeth, Bth, Opcode, RocePacket
from inaproto.wire.tree_note import NoteKind
from tests.unit.switched_ring import NOW, block, into_qp, ip, mac, ring_of
from tests.unit.switched_tree import Carried, SwitchedTree, data_of
from tests.unit.tree_records import STEERED, note_of

STEERED_LAST = TreeSwitch("S", (TreeSwitch("L", (0, 1)), TreeSwitch("X", (2, 3), aggregates=False)))
ABOVE_L1 = "10.9.0.0 to queue pair 8388615"
"""S, as L1 sees it."""
BELOW_S = "10.9.0.1 to queue pair 8388615"
"""L1, as S sees it."""


def at_once(tree: SwitchedTree, name: str, port: int, *frames: bytes) -> None:
    """Frames of one length arrive as one block."""
    tree.take(name, tree.switches[name].step(FramesArrived(PortId(port), [block(*frames)]), NOW))


def results_for_l1(tree: SwitchedTree, messages: int = 1) -> list[bytes]:
    """By position: the results of the first messages on their way to L1; all else has arrived."""
    down: dict[int, bytes] = {}

    def held(sent: Carried) -> bool:
        late = (sent.sender, sent.receiver) == ("S", "L1") and sent.note is None
        if late:
            down[tree.positions([sent])[0]] = sent.frame
        return late

    for serial in range(messages):
        tree.finish(serial, held)
    tree.forget()
    return [down[position] for position in range(4 * messages)]


def moved(tree: SwitchedTree, frame: bytes, position: int, **changes: Any) -> bytes:
    """A packet between switches, at another position."""
    packet = RocePacket.decode_frame(frame)
    bth = replace(packet.bth, psn=tree.psn_at(position), **changes)
    return replace(packet, bth=bth).encode_frame()


def with_key(frame: bytes, key: int) -> bytes:
    packet = RocePacket.decode_frame(frame)
    header = replace(InaHeader.decode(packet.payload), key=key)
    return replace(packet, payload=header.encode() + packet.payload[40:]).encode_frame()


def damaged(frame: bytes) -> bytes:
    return frame[:-9] + bytes([frame[-9] ^ 1]) + frame[-8:]


def from_s(tree: SwitchedTree, record: bytes, **changes: Any) -> bytes:
    """A record on the virtual connection from S to the first switch below it."""
    role = tree.specs()["S"].role
    assert role is not None
    header = packet_header(
        base_header(replace(role.children[0], **changes)), Opcode.RC_SEND_ONLY, 0, len(record)
    )
    tail = record + bytes(-len(record) % 4)
    return header + tail + (share_of(header, len(tail)) ^ crc32(tail)).to_bytes(4, "little")


# -- results ---------------------------------------------------------------------------------------


def test_of_results_in_one_block_each_message_is_judged_for_itself() -> None:
    tree = SwitchedTree()
    down = results_for_l1(tree, messages=2)
    nowhere = moved(tree, down[1], 9)
    at_once(tree, "L1", 2, down[1], nowhere, down[5], down[6])
    assert tree.said == []
    assert tree.count("L1")["result of no message here"] == 1
    assert tree.count("L1")["results_in"] == 3


def test_a_result_that_fits_no_slot_takes_no_other_with_it() -> None:
    tree = SwitchedTree()
    down = results_for_l1(tree, messages=2)
    at_once(tree, "L1", 2, moved(tree, down[1], 3), down[5])
    assert tree.said == [("L1", Blame(ABOVE_L1, "layout", "opcode 0x07 at packets 3 to 3 of 4"))]
    assert tree.count("L1")["layout"] == 1
    assert tree.count("L1")["results_in"] == 1


def test_a_result_without_the_ring_s_key_takes_no_other_with_it() -> None:
    tree = SwitchedTree()
    down = results_for_l1(tree, messages=2)
    at_once(tree, "L1", 2, down[0], with_key(down[4], 1))
    assert tree.said == [("L1", Blame(ABOVE_L1, "no result of this message", "message 1"))]
    assert tree.count("L1")["no result of this message"] == 1
    assert tree.count("L1")["results_in"] == 1


@pytest.mark.parametrize("position", [3, 7])
def test_results_behind_the_end_of_a_short_message_are_refused(position: int) -> None:
    tree = SwitchedTree()
    for rank in range(4):
        tree.send(rank, 0, packets=3)
        tree.send(rank, 1, packets=3)
    tree.settle(lambda sent: (sent.sender, sent.receiver) == ("S", "L1"))
    sent = tree.between("S", "L1")
    middle = next(one.frame for one in sent if one.packet.bth.opcode == Opcode.RC_WRITE_MIDDLE)
    tree.forget()
    tree.arrive("L1", 2, moved(tree, middle, position))
    assert tree.said == [("L1", Blame(ABOVE_L1, "layout", "opcode 0x07 at packets 3 to 3 of 3"))]
    assert "results_in" not in tree.count("L1")
    assert tree.got[0] == tree.got[1] == []


def test_a_last_result_is_laid_out_as_the_last_inputs_are() -> None:
    tree = SwitchedTree()
    down = results_for_l1(tree)
    short = RocePacket.decode_frame(down[3])
    tree.arrive("L1", 2, replace(short, payload=short.payload[:60]).encode_frame())
    assert tree.said == [("L1", Blame(ABOVE_L1, "layout", "another last packet than the inputs have"))]
    assert "results_in" not in tree.count("L1"), "it is refused, not taken"
    tree.arrive("L1", 2, *down)
    assert tree.got[0] == tree.results(0)[0]


def test_a_result_before_its_sum_is_not_taken() -> None:
    tree = SwitchedTree()
    down = results_for_l1(tree)
    tree.send(0, 1)
    at_once(tree, "L1", 2, moved(tree, down[1], 5), moved(tree, down[1], 6))
    assert tree.count("L1")["result before its sum"] == 2
    assert "results_in" not in tree.count("L1")
    assert tree.said == []


def test_results_fall_into_place_when_psns_wrap() -> None:
    narrow = ring_of(4, psn_bits=6)
    key = next(key for key in range(1000) if start_psn(replace(narrow, key=key)) == 62)
    tree = SwitchedTree(psn_bits=6, key=key, psn0=0)
    for serial in range(5):
        tree.forget()
        tree.finish(serial)
        assert tree.got == tree.results(serial)
    assert tree.said == []


@pytest.mark.parametrize("position", [37, -12])
def test_a_psn_far_from_the_frontier_is_of_no_message(position: int) -> None:
    tree = SwitchedTree(psn_bits=6, psn0=0)
    for serial in range(4):
        tree.finish(serial)
    middle = RocePacket.decode_frame(tree.between("S", "L1")[2].frame)
    psn = (start_psn(tree.hosts.spec) + position) & 63
    frame = replace(middle, bth=replace(middle.bth, psn=psn, opcode=Opcode.RC_WRITE_MIDDLE)).encode_frame()
    tree.arrive("L1", 2, frame)
    assert tree.count("L1")["result of no message here"] == 1


@pytest.mark.parametrize("port", [0, 2])
def test_nobody_is_blamed_for_what_was_damaged_on_its_way(port: int) -> None:
    tree = SwitchedTree()
    down = results_for_l1(tree)
    at_once(tree, "L1", port, damaged(down[1]), damaged(down[2]))
    at_once(tree, "L1", port, damaged(from_s(tree, note_of(tree).encode())))
    assert tree.count("L1")["wrong ICRC"] == 3
    assert tree.said == []


def test_what_comes_from_another_port_than_its_switch_s_is_refused_with_that_port() -> None:
    tree = SwitchedTree()
    tree.finish(0)
    note = next(sent.frame for sent in tree.between("L1", "S") if sent.note is not None)
    down = data_of(tree.between("S", "L1"))
    tree.forget()
    at_once(tree, "L1", 0, down[1].frame, down[2].frame)
    at_once(tree, "S", 1, note, note)
    assert tree.said == [
        ("L1", Blame(ABOVE_L1, "not from where its switch is", "port 0")),
        *[("S", Blame(BELOW_S, "not from where its switch is", "port 1"))] * 2,  # one PSN, so no vector
    ]
    assert [tree.count(name)["not from where its switch is"] for name in ("L1", "S")] == [2, 2]


def test_only_writes_and_notes_come_from_above() -> None:
    tree = SwitchedTree()
    down = results_for_l1(tree)
    tree.arrive("L1", 2, moved(tree, down[1], 1, opcode=Opcode.RC_SEND_MIDDLE))
    assert tree.said == [("L1", Blame(ABOVE_L1, "not an RDMA WRITE", "opcode 0x01"))]


# -- notes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"key": 1}, "note of another ring"),
        ({"rank": 2}, "note for nobody here"),
    ],
)
def test_of_notes_in_one_block_each_is_judged_for_itself(changes: dict[str, int], rule: str) -> None:
    tree = SwitchedTree()
    results_for_l1(tree)
    wrong = note_of(tree, **changes)
    right = from_s(tree, note_of(tree).encode())
    before = tree.count("L1")["notes_in"]
    at_once(tree, "L1", 2, from_s(tree, wrong.encode()), right, right)
    assert tree.said == [("L1", Blame(ABOVE_L1, rule, str(wrong)))]
    assert tree.count("L1")[rule] == 1
    assert tree.count("L1")["notes_in"] == before + 2


def test_what_is_no_note_leaves_those_beside_it_alone() -> None:
    tree = SwitchedTree()
    results_for_l1(tree)
    before = tree.count("L1")["notes_in"]
    at_once(tree, "L1", 2, from_s(tree, bytes(32)), from_s(tree, note_of(tree).encode()))
    assert tree.said == [
        ("L1", Blame(ABOVE_L1, "no tree note", "tree note: magic is 0x00000000, not 0x494e4154 (at byte 0)"))
    ]
    assert tree.count("L1")["no tree note"] == 1
    assert tree.count("L1")["notes_in"] == before + 1


def test_every_note_that_passes_is_counted() -> None:
    tree = SwitchedTree()
    for serial in range(3):
        tree.finish(serial)
    assert [tree.count(name)["notes_in"] for name in ("S", "L1", "L2")] == [6, 3, 3]


def test_an_opening_tells_of_a_queue_pair_with_all_its_bytes() -> None:
    tree = SwitchedTree()
    other = tree.hosts.packet(3, 0, 0, dest_qp=into_qp(0) | 0x01_0000)[:70]
    note = note_of(tree, kind=NoteKind.OPENS, offset=0, header=other)
    tree.arrive("L1", 2, from_s(tree, note.encode()))
    assert tree.said == [("L1", Blame(ABOVE_L1, "note for nobody here", str(note)))]


def test_results_go_to_the_address_that_the_opening_named() -> None:
    tree = SwitchedTree()
    tree.finish(0)
    port = tree.ports["L1"]["0"]
    tree.switches["L1"].step(PortDown(port), NOW)
    tree.switches["L1"].step(PortUp(port), NOW)
    tree.from_host(0, b"\xff" * 6 + mac(0) + bytes(48))
    tree.settle()
    tree.forget()
    tree.arrive("L1", 2, from_s(tree, note_of(tree, kind=NoteKind.REPEATS, offset=2, count=1).encode()))
    assert tree.got[0] == tree.results(0, 2)[0]
    assert tree.got[1] == []


def test_a_second_copy_of_a_gap_note_is_not_heeded() -> None:
    tree = SwitchedTree()
    openings: list[Carried] = []

    def held(sent: Carried) -> bool:
        late = sent.receiver == "L1" and sent.note is not None
        if late:
            openings.append(sent)
        return late

    tree.finish(0, held)
    tree.finish(1, held)
    assert tree.got[0] == [], "no opening came"
    gap = from_s(tree, note_of(tree, offset=3).encode())
    tree.arrive("L1", 2, gap)
    tree.arrive("L1", 2, openings[1].frame)
    tree.arrive("L1", 2, gap)
    assert tree.got[0] == []
    tree.arrive("L1", 2, openings[0].frame)
    assert tree.got[0] == tree.results(0)[0] + tree.results(1)[0]


# -- rings and addresses ---------------------------------------------------------------------------


def test_a_removed_ring_leaves_none_of_its_connections_behind() -> None:
    tree = SwitchedTree()
    down = results_for_l1(tree)
    tree.switches["L1"].step(RemoveRing(7), NOW)
    tree.arrive("L1", 2, *down)
    assert tree.got[0] == tree.got[1] == []
    assert tree.count("L1")["virtual connection of no ring here"] == 4
    assert tree.switches["L1"].step(InstallRing(tree.specs()["L1"]), NOW) == []


def test_repeats_of_a_host_show_where_it_is() -> None:
    tree = SwitchedTree()
    tree.finish(0)
    port = tree.ports["L1"]["0"]
    tree.switches["L1"].step(PortDown(port), NOW)
    tree.switches["L1"].step(PortUp(port), NOW)
    tree.send(0, 0, 2)
    tree.settle()
    tree.forget()
    frame = mac(0) + mac(1) + bytes(48)
    tree.from_host(1, frame)
    assert tree.got[0] == [frame]
    assert tree.carried == [], "not flooded"


# -- steering --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steered", "others", "shared"),
    [
        (STEERED, (2,), (0, 1, 3)),
        (STEERED_LAST, (0,), (1, 2, 3)),
    ],
)
def test_a_switch_that_steers_claims_the_connections_that_begin_or_end_below_it(
    steered: TreeSwitch, others: tuple[int, ...], shared: tuple[int, ...]
) -> None:
    for rank in (*others, *shared):
        tree = SwitchedTree(steered)
        spec = tree.specs()["X"]
        flows = tuple(
            flow if flow.rank == rank else replace(flow, dst_qp=flow.dst_qp + 0x1000) for flow in spec.flows
        )
        said = tree.switches["X"].step(InstallRing(replace(spec, ring_id=8, flows=flows)), NOW)
        taken = [RingRefused(8, f"the connection of rank {rank} belongs to another ring")]
        assert said == (taken if rank in shared else [])


def steered_results(tree: SwitchedTree) -> list[Carried]:
    """The results of message 0 on their way to X, taken off the links."""
    down: list[Carried] = []

    def held(sent: Carried) -> bool:
        late = (sent.sender, sent.receiver) == ("S", "X")
        if late:
            down.append(sent)
        return late

    tree.finish(0, held)
    tree.forget()
    return down


def test_results_go_where_their_receiver_s_own_packets_come_from() -> None:
    tree = SwitchedTree(STEERED)
    down = steered_results(tree)
    tree.from_host(1, b"\xff" * 6 + mac(0) + bytes(48))  # the address table now has rank 0 at rank 1's port
    tree.under_way.clear()
    tree.forget()
    tree.arrive("X", tree.ports["X"]["S"], *(sent.frame for sent in down))
    for rank in (0, 1):
        assert set(tree.got[rank]) == set(tree.results(0)[rank])


def test_what_was_seen_behind_a_port_that_went_down_is_forgotten() -> None:
    tree = SwitchedTree(STEERED)
    down = steered_results(tree)
    gone = tree.ports["X"]["0"]
    tree.switches["X"].step(PortDown(gone), NOW)
    tree.switches["X"].step(PortUp(gone), NOW)
    tree.from_host(1, b"\xff" * 6 + mac(0) + bytes(48), b"\xff" * 6 + mac(1) + bytes(48))
    tree.under_way.clear()
    tree.forget()
    tree.arrive("X", tree.ports["X"]["S"], *(sent.frame for sent in down))
    assert tree.got[0] == [], "rank 0 is behind the port of rank 1 now"
    assert set(tree.got[1]) == {*tree.results(0)[0], *tree.results(0)[1]}
    tree.send(0, 1)
    assert len(tree.between("X", "S")) == 4, "and may come back"


def test_a_queue_pair_of_a_host_may_have_the_number_of_a_virtual_one() -> None:
    tree = SwitchedTree(STEERED)
    frame = tree.hosts.packet(0, 0, 1, dest_qp=VIRTUAL_QP_BASE | tree.hosts.spec.ring_id)
    tree.from_host(0, frame)
    assert tree.got[1] == [frame]
    assert tree.carried == []


def test_packets_between_switches_of_another_ring_are_not_steered() -> None:
    tree = SwitchedTree(STEERED)
    frame = from_s(tree, note_of(tree).encode(), qp=VIRTUAL_QP_BASE | 9)
    tree.arrive("X", tree.ports["X"]["S"], frame)
    assert tree.count("X")["virtual connection of no ring here"] == 1
    assert tree.said == []
    assert tree.carried == []


def test_acks_are_bridged_though_they_bear_the_numbers_of_a_steered_connection() -> None:
    tree = SwitchedTree(STEERED)
    ack = RocePacket.build(
        src_mac=mac(0),
        dst_mac=mac(1),
        src_ip=ip(0),
        dst_ip=ip(1),
        udp_source_port=0xC111,
        bth=Bth(opcode=Opcode.RC_ACK, dest_qp=into_qp(1), psn=5),
        aeth=Aeth(syndrome=0x1F, msn=1),
    ).encode_frame()
    at_once(tree, "X", tree.ports["X"]["0"], ack, ack)
    assert tree.got[1] == [ack, ack]
    assert tree.carried == []
