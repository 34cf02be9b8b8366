"""A switch of a tree beyond the paper's rules: what it refuses, drops, counts, steers and survives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inaproto.core.accelerator import (
    Accelerator,
    AcceleratorConfig,
    FramesArrived,
    InstallRing,
    PortDown,
    PortUp,
    RemoveRing,
    RingRefused,
)
from inaproto.core.aggregation_tree import TreeSwitch
from inaproto.core.aggregator import bytes_needed
from inaproto.core.translation import base_header, packet_header, share_of, translations
from inaproto.errors import Blame
from inaproto.units import Frames, PortId
from inaproto.wire.crc import crc32
from inaproto.wire.ina_header import FLAG_RESULT, InaHeader
from inaproto.wire.roce import Opcode, RocePacket
from inaproto.wire.tree_note import NoteKind, TreeNote
from tests.unit.switched_ring import NOW, block, by_port, mac, ring_of
from tests.unit.switched_tree import FIGURE_5, Carried, SwitchedTree, data_of

STEERED = TreeSwitch("S", (TreeSwitch("X", (0, 1), aggregates=False), TreeSwitch("L", (2, 3))))


def rules(tree: SwitchedTree) -> list[tuple[str, str]]:
    """Who was blamed for what: (switch, rule)."""
    return [(name, said.rule) for name, said in tree.said if isinstance(said, Blame)]


def sealed(packet: RocePacket) -> bytes:
    return packet.encode_frame()


def changed_ina(frame: bytes, **changes: Any) -> bytes:
    """A first packet with another INA header."""
    packet = RocePacket.decode_frame(frame)
    header = replace(InaHeader.decode(packet.payload), **changes)
    return sealed(replace(packet, payload=header.encode() + packet.payload[40:]))


def first_up(tree: SwitchedTree, serial: int = 0) -> list[Carried]:
    """L1's sums of a message, taken off the links; with the notes before them gone."""
    for rank in (0, 1):
        tree.send(rank, serial)
    up = data_of(list(tree.under_way))
    tree.under_way.clear()
    return up


def results_for_l1(tree: SwitchedTree) -> list[Carried]:
    """The results of message 0 on their way to L1, taken off the links; all else has arrived."""
    down: list[Carried] = []

    def held(sent: Carried) -> bool:
        if (sent.sender, sent.receiver) == ("S", "L1") and sent.note is None:
            down.append(sent)
            return True
        return False

    tree.finish(0, held)
    assert len(down) == 4
    tree.forget()
    return down


def note_of(tree: SwitchedTree, **changes: Any) -> TreeNote:
    spec = tree.hosts.spec
    known: dict[str, Any] = {"rank": 3, "ring_id": spec.ring_id, "epoch": spec.epoch, "msg_id": 0}
    return TreeNote(**{"kind": NoteKind.GAP, "offset": 1, "key": spec.key, **known, **changes})


def send_note(
    tree: SwitchedTree, receiver: str, sender: str, record: bytes, *, port: int | None = None
) -> None:
    """A record arrives on the virtual connection between two switches."""
    role = tree.specs()[sender].role
    assert role is not None
    links = [*role.children, *([role.parent] if role.parent else [])]
    link = next(link for link in links if link.peer == receiver)
    header = packet_header(base_header(link), Opcode.RC_SEND_ONLY, 0, len(record))
    tail = record + bytes(-len(record) % 4)
    frame = header + tail + (share_of(header, len(tail)) ^ crc32(tail)).to_bytes(4, "little")
    at = tree.ports[receiver][sender] if port is None else port
    tree.arrive(receiver, at, frame)


# -- rings -----------------------------------------------------------------------------------------


def test_memory_is_counted_by_inputs_and_given_back() -> None:
    tree = SwitchedTree()
    for name, accelerator in tree.switches.items():
        spec = tree.specs()[name]
        assert accelerator.view().memory_bytes == bytes_needed(spec) > 0
        assert bytes_needed(spec) < bytes_needed(ring_of(4)), "two inputs, not four"
        accelerator.step(RemoveRing(spec.ring_id), NOW)
        assert accelerator.view().memory_bytes == accelerator.view().connections == 0


def test_a_ring_that_does_not_fit_is_refused() -> None:
    spec = SwitchedTree().specs()["L1"]
    small = Accelerator(AcceleratorConfig(memory_bytes_max=bytes_needed(spec) - 1))
    assert [type(action) for action in small.step(InstallRing(spec), NOW)] == [RingRefused]
    assert small.rings == {}
    exact = Accelerator(AcceleratorConfig(memory_bytes_max=bytes_needed(spec)))
    assert exact.step(InstallRing(spec), NOW) == []


def test_steering_takes_no_memory_but_counts_as_a_ring() -> None:
    tree = SwitchedTree(STEERED)
    steering = tree.switches["X"]
    assert steering.view().memory_bytes == 0
    assert steering.view().rings == {7: {"ranks": 4, "steered": 2}}
    spec = tree.specs()["X"]
    refused = steering.step(InstallRing(spec), NOW)
    assert refused == [RingRefused(7, "ring 7 is installed already")]
    one = Accelerator(AcceleratorConfig(rings_max=1))
    assert one.step(InstallRing(spec), NOW) == []
    assert one.step(InstallRing(replace(ring_of(2), ring_id=8)), NOW) == [
        RingRefused(8, "all 1 rings are in use")
    ]


def test_connections_of_a_tree_belong_to_one_ring() -> None:
    tree = SwitchedTree()
    spec = tree.specs()["L1"]
    other = replace(spec, ring_id=8)
    assert tree.switches["L1"].step(InstallRing(other), NOW) == [
        RingRefused(8, "the connection of rank 0 belongs to another ring")
    ]
    flows = tuple(replace(flow, dst_qp=flow.dst_qp + 0x1000) for flow in spec.flows)
    assert tree.switches["L1"].step(InstallRing(replace(other, flows=flows)), NOW) == [
        RingRefused(8, "a ring between the same switches has the same low bits of its id")
    ]


def test_the_view_tells_what_the_switch_does_for_the_ring() -> None:
    tree = SwitchedTree()
    tree.finish(0)
    told = {name: accelerator.view().rings[7] for name, accelerator in tree.switches.items()}
    common = {"ranks": 4, "next_message": 1, "next_packet": 0, "failed": False, "inputs": 2}
    assert told == {
        "S": {**common, "root": True},
        "L1": {**common, "root": False},
        "L2": {**common, "root": False},
    }


def test_without_loss_every_packet_and_note_is_counted_once() -> None:
    tree = SwitchedTree()
    before = {name: tree.count(name).get("bridged", 0) for name in tree.switches}
    tree.finish(0)
    leaf = {
        "aggregated_in": 8,
        "results_out": 8,
        "sums_up": 4,
        "results_in": 4,
        "notes_in": 1,
        "notes_out": 1,
    }
    assert tree.count("L1") == {**leaf, "bridged": before["L1"]}
    assert tree.count("L2") == {**leaf, "bridged": before["L2"]}
    root = {"aggregated_in": 8, "results_down": 8, "notes_in": 2, "notes_out": 2, "bridged": before["S"]}
    assert tree.count("S") == root


def test_a_removed_ring_s_connections_are_closed_for_a_while() -> None:
    tree = SwitchedTree()
    for name in ("L1", "S"):
        tree.switches[name].step(RemoveRing(7), NOW)
    tree.send(1, 0, 1, 2)
    assert tree.under_way == type(tree.under_way)()
    assert tree.count("L1")["ring removed"] == 2


def test_a_switch_without_role_has_no_translations() -> None:
    assert translations(ring_of(3)) == ()
    assert translations(SwitchedTree(STEERED).specs()["X"]) == ()


# -- inputs ----------------------------------------------------------------------------------------


def test_raw_packets_of_a_rank_elsewhere_are_dropped() -> None:
    tree = SwitchedTree()
    for frame in tree.hosts.message(1, 0):
        assert tree.arrive("S", 0, frame) == []
        assert tree.arrive("L2", 2, frame) == []
    assert tree.count("S")["not an input of this switch"] == 4
    assert tree.count("L2")["not an input of this switch"] == 4


def test_results_that_were_sent_everywhere_are_dropped_without_blame() -> None:
    tree = SwitchedTree()
    for offset in range(4):
        tree.arrive("L2", 2, tree.result(2, 0, offset))
    assert tree.count("L2")["not an input of this switch"] == 4
    assert tree.said == []


def test_an_address_is_not_learnt_from_results_that_are_dropped() -> None:
    tree = SwitchedTree(STEERED)
    late = tree.result(0, 0, 0)
    tree.arrive("L", tree.ports["L"]["S"], tree.result(2, 0, 0))
    tree.switches["X"].step(RemoveRing(7), NOW)
    tree.arrive("X", tree.ports["X"]["S"], late)
    assert tree.count("X")["ring removed"] == tree.count("L")["not an input of this switch"] == 1
    for name, near, far in (("X", 0, 1), ("L", 2, 3)):
        frame = mac(near) + mac(far) + bytes(48)
        tree.from_host(far, frame)
        assert tree.got[near] == [frame], f"{name} knows that rank {near} is here"
    assert not tree.under_way


def test_results_find_a_receiver_behind_a_port_that_was_down_since() -> None:
    tree = SwitchedTree()
    tree.finish(0)
    tree.forget()
    port = tree.ports["L1"]["1"]
    tree.switches["L1"].step(PortDown(port), NOW)
    tree.switches["L1"].step(PortUp(port), NOW)
    tree.send(0, 0)
    assert tree.got[1] == tree.results(0)[1]


def test_a_switch_without_the_ring_drops_what_other_switches_send() -> None:
    tree = SwitchedTree()
    restarted = tree.switches["S"] = Accelerator()
    for port in tree.ports["S"].values():
        restarted.step(PortUp(port), NOW)
    tree.finish(0)
    assert tree.count("S") == {"virtual connection of no ring here": 10}, "8 sums and 2 notes"
    assert tree.between("S", "L1") == tree.between("S", "L2") == []


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"key": 1}, "wrong key"),
        ({"epoch": 4}, "wrong epoch"),
        ({"rank": 2}, "wrong rank"),
        ({"ring_size": 5}, "wrong ring size"),
        ({"flags": FLAG_RESULT}, "no INA header"),
        ({"msg_id": 2}, "window passed"),
    ],
)
def test_the_sums_of_a_switch_are_checked_like_packets_of_a_rank(changes: dict[str, int], rule: str) -> None:
    tree = SwitchedTree()
    up = first_up(tree)
    tree.arrive("S", 0, changed_ina(up[0].frame, **changes), *(sent.frame for sent in up[1:]))
    assert rules(tree) == [("S", rule)]
    assert tree.count("S")[rule] == 1
    assert tree.count("S")["first packet of the message not seen"] == 3


def test_a_damaged_sum_is_dropped() -> None:
    tree = SwitchedTree()
    up = first_up(tree)
    harmed = bytearray(up[1].frame)
    harmed[60] ^= 1
    tree.arrive("S", 0, up[0].frame, bytes(harmed))
    assert tree.count("S")["wrong ICRC"] == 1
    assert tree.count("S")["aggregated_in"] == 1
    assert rules(tree) == []


def test_sums_must_come_from_where_their_first_packet_came() -> None:
    tree = SwitchedTree()
    up = first_up(tree)
    tree.arrive("S", 0, up[0].frame)
    tree.arrive("S", 1, up[1].frame)
    assert rules(tree) == [("S", "not from where its rank is")]


def test_a_ring_that_failed_takes_neither_results_nor_notes() -> None:
    tree = SwitchedTree()
    down = results_for_l1(tree)
    tree.send(0, 1)
    tree.send(1, 1, op_index=9)
    assert [type(said).__name__ for _, said in tree.said] == ["RingFault"]
    tree.arrive("L1", 2, *(sent.frame for sent in down))
    send_note(tree, "L1", "S", note_of(tree).encode())
    assert tree.count("L1")["ring failed"] >= 5
    assert tree.got[0] == tree.got[1] == []


# -- results ---------------------------------------------------------------------------------------


def test_results_come_from_the_port_of_the_switch_above_only() -> None:
    tree = SwitchedTree()
    down = results_for_l1(tree)
    tree.arrive("L1", 0, *(sent.frame for sent in down))
    assert set(rules(tree)) == {("L1", "not from where its switch is")}
    tree.arrive("L1", 2, *(sent.frame for sent in down))
    assert tree.got[0] == tree.results(0)[0]


@pytest.mark.parametrize("changes", [{"key": 1}, {"flags": 1}, {"rank": 2}, {"op_index": 5}, {"msg_id": 1}])
def test_the_first_packet_of_a_result_must_be_that_of_its_message(changes: dict[str, int]) -> None:
    tree = SwitchedTree()
    down = results_for_l1(tree)
    tree.arrive("L1", 2, changed_ina(down[0].frame, **changes))
    assert rules(tree) == [("L1", "no result of this message")]
    assert tree.got[0] == []


def test_results_that_fit_no_slot_are_dropped_by_name() -> None:
    tree = SwitchedTree()
    down = [RocePacket.decode_frame(sent.frame) for sent in results_for_l1(tree)]

    def at(number: int, **changes: Any) -> bytes:
        return sealed(replace(down[number], bth=replace(down[number].bth, **changes)))

    tree.arrive("L1", 2, at(1, psn=tree.psn_at(4)))
    assert tree.count("L1")["result of no message here"] == 1
    tree.arrive("L1", 2, at(1, psn=tree.psn_at(-1)))
    assert tree.count("L1")["result of no message here"] == 2
    tree.arrive("L1", 2, at(1, psn=tree.psn_at(3)), sealed(replace(down[3], payload=bytes(60))))
    assert tree.count("L1")["layout"] == 2
    tree.arrive("L1", 2, at(1, opcode=Opcode.RC_SEND_MIDDLE))
    assert tree.count("L1")["not an RDMA WRITE"] == 1
    tree.send(0, 1, packets=3)  # message 1 has three packets
    tree.arrive("L1", 2, at(1, psn=tree.psn_at(7)))
    assert tree.count("L1")["layout"] == 3
    tree.arrive("L1", 2, at(1, psn=tree.psn_at(5)))
    assert tree.count("L1")["result before its sum"] == 1
    assert tree.got[0] == tree.got[1] == []


def test_a_damaged_result_is_dropped_and_asked_for_again() -> None:
    tree = SwitchedTree()
    down = [sent.frame for sent in results_for_l1(tree)]
    harmed = bytearray(down[1])
    harmed[-9] ^= 4
    rows = np.concatenate([block(bytes(harmed)), block(down[2])])
    actions = tree.switches["L1"].step(FramesArrived(PortId(2), [block(down[0]), rows]), NOW)
    assert tree.count("L1")["wrong ICRC"] == 1
    up = by_port(actions)[2]
    assert [RocePacket.decode_frame(frame).bth.psn for frame in up] == [tree.psn_at(1)], (
        "a hole: the sum goes up again"
    )
    tree.take("L1", actions)
    tree.settle()
    tree.arrive("L1", 2, down[3])
    assert tree.got[0] == tree.results(0)[0]
    assert tree.got[1] == tree.results(0)[1]


def test_a_hole_is_asked_for_once() -> None:
    tree = SwitchedTree()
    down = [sent.frame for sent in results_for_l1(tree)]
    tree.arrive("L1", 2, down[0], down[2])
    assert len(tree.under_way) == 1
    tree.arrive("L1", 2, down[3])
    assert len(tree.under_way) == 1, "still the same hole"
    assert tree.count("L1")["sums_up_again"] == 1


def test_of_all_repeats_for_a_late_result_those_of_one_rank_are_heeded() -> None:
    tree = SwitchedTree()
    first_up(tree)
    for turn in (1, 2, 3):
        for rank in (0, 1):
            tree.send(rank, 0)
            assert tree.count("L1")["sums_up_again"] == 4 * turn
    for turn in (1, 2):
        tree.send(1, 0, 2)
        assert tree.count("L1")["sums_up_again"] == 12 + turn, "the other rank sends no more"


def test_results_of_several_messages_in_one_block() -> None:
    tree = SwitchedTree()
    middles: list[bytes] = []

    def held(sent: Carried) -> bool:
        late = (sent.sender, sent.receiver) == ("S", "L1") and sent.note is None
        late = late and sent.packet.opcode == Opcode.RC_WRITE_MIDDLE
        if late:
            middles.append(sent.frame)
        return late

    for serial in (0, 1):
        for rank in range(4):
            tree.send(rank, serial)
    tree.settle(held)
    tree.forget()
    kept = list(dict.fromkeys(middles))  # holes were asked for, and answered, in vain
    assert len(kept) == 4
    order = [kept[number] for number in (3, 0, 2, 1)]
    tree.take("L1", tree.switches["L1"].step(FramesArrived(PortId(2), [block(*order)]), NOW))
    tree.settle()
    for receiver in (0, 1):
        expected = tree.results(0)[receiver][1:] + tree.results(1)[receiver]
        assert [frame for frame in tree.got[receiver] if frame in expected][: len(expected)] == expected


def test_what_was_left_of_an_earlier_ring_falls_nowhere() -> None:
    tree = SwitchedTree()
    down = [sent.frame for sent in results_for_l1(tree)]
    again = SwitchedTree(key=0xBEEF)
    results_for_l1(again)
    again.arrive("L1", 2, *down[1:])
    assert again.count("L1")["result of no message here"] == 3
    assert again.got[0] == again.got[1] == []


def test_a_result_that_comes_twice_changes_nothing() -> None:
    tree = SwitchedTree()
    down = [sent.frame for sent in results_for_l1(tree)]
    tree.arrive("L1", 2, *down)
    got = {rank: list(frames) for rank, frames in tree.got.items()}
    tree.arrive("L1", 2, *down)
    assert tree.got == got
    assert tree.count("L1")["results_in"] == 8


# -- notes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"key": 1}, "note of another ring"),
        ({"ring_id": 8}, "note of another ring"),
        ({"epoch": 2}, "note of another ring"),
        ({"rank": 0}, "note for nobody here"),
        ({"rank": 2}, "note for nobody here"),
        ({"offset": 4}, "note for nobody here"),
    ],
)
def test_notes_that_are_refused(changes: dict[str, int], rule: str) -> None:
    tree = SwitchedTree()
    send_note(tree, "L1", "S", note_of(tree, **changes).encode())
    assert rules(tree) == [("L1", rule)]
    assert tree.count("L1")[rule] == 1
    assert tree.carried == []


@pytest.mark.parametrize("msg_id", [4, 0xFFFF_FFFF])
def test_notes_of_messages_that_cannot_be_under_way_are_dropped(msg_id: int) -> None:
    tree = SwitchedTree()
    send_note(tree, "L1", "S", note_of(tree, msg_id=msg_id).encode())
    assert tree.count("L1")["note of another message"] == 1
    assert tree.said == []


def test_a_late_copy_of_a_gap_note_lets_nothing_pass() -> None:
    tree = SwitchedTree()

    def is_result_of_slot_0_or_1(sent: Carried) -> bool:
        below_s = (sent.sender, sent.receiver) == ("S", "L1")
        return below_s and sent.note is None and sent.packet.bth.psn in (tree.psn_at(0), tree.psn_at(1))

    tree.finish(0, is_result_of_slot_0_or_1)
    tree.forget()
    for offset in (0, 1, 0):
        send_note(tree, "L1", "S", note_of(tree, offset=offset).encode())
    assert tree.count("L1")["gaps_signalled"] == 2
    assert len(tree.got[0]) == 2


def test_a_message_that_is_opened_again_has_the_latest_headers() -> None:
    tree = SwitchedTree()
    tree.finish(0)
    tree.send(1, 0, ip_id=9)
    tree.settle()
    tree.forget()
    tree.send(1, 0, 2, 3, ip_id=9)
    tree.settle()
    assert tree.got[2] == [tree.result(1, 0, offset, ip_id=9) for offset in (2, 3)]


def test_an_opening_must_be_of_the_connection_that_it_is_about() -> None:
    tree = SwitchedTree()
    header = tree.hosts.packet(0, 0, 0)[:70]
    send_note(tree, "L1", "S", note_of(tree, kind=NoteKind.OPENS, offset=0, header=header).encode())
    assert rules(tree) == [("L1", "note for nobody here")]


def test_what_is_no_note_is_refused_on_both_sides() -> None:
    tree = SwitchedTree()
    send_note(tree, "L1", "S", bytes(32))
    send_note(tree, "S", "L1", b"no note")
    assert rules(tree) == [("L1", "no tree note"), ("S", "no tree note")]


def test_notes_come_from_the_port_of_their_switch_only() -> None:
    tree = SwitchedTree()
    send_note(tree, "S", "L1", note_of(tree, rank=1).encode(), port=1)
    send_note(tree, "L1", "S", note_of(tree).encode(), port=0)
    assert rules(tree) == [("S", "not from where its switch is"), ("L1", "not from where its switch is")]


def test_an_older_opening_does_not_replace_a_newer_one() -> None:
    tree = SwitchedTree()
    old = tree.hosts.packet(3, 0, 0)[:70]
    for serial in range(4):
        tree.finish(serial)
    for rank in range(4):
        tree.send(rank, 4)
    sent = [carried for carried in tree.under_way if carried.note is not None]
    tree.under_way = type(tree.under_way)(carried for carried in tree.under_way if carried not in sent)
    for carried in [one for one in sent if one.receiver == "S"]:
        tree.arrive("S", tree.ports["S"][carried.sender], carried.frame)
    notes = [carried for carried in tree.under_way if carried.note is not None]
    for carried in notes:
        tree.under_way.remove(carried)
        tree.arrive(carried.receiver, tree.ports[carried.receiver]["S"], carried.frame)
    send_note(tree, "L1", "S", note_of(tree, kind=NoteKind.OPENS, offset=0, header=old).encode())
    tree.forget()
    tree.settle()
    assert tree.got[0] == tree.results(4)[0]


# -- links and steering ----------------------------------------------------------------------------


def test_a_link_that_was_down_costs_a_repeat() -> None:
    tree = SwitchedTree()
    tree.switches["L1"].step(PortDown(PortId(2)), NOW)
    tree.finish(0)
    assert tree.between("L1", "S") == []
    assert tree.count("L1")["links_down"] == 5, "4 sums and a note"
    tree.switches["L1"].step(PortUp(PortId(2)), NOW)
    tree.finish(0)
    for rank in range(4):
        assert set(tree.got[rank]) == set(tree.results(0)[rank])


def test_results_steer_clear_of_the_address_table_on_their_way_down() -> None:
    tree = SwitchedTree(STEERED)
    tree.finish(0)
    addresses = tree.switches["X"]._bridge.addresses
    assert (addresses[mac(0)], addresses[mac(1)]) == (0, 1)
    assert addresses[mac(3)] == tree.ports["X"]["S"], "the other way round for a rank elsewhere"
    for rank in range(4):
        assert set(tree.got[rank]) >= set(tree.results(0)[rank])


def test_steered_packets_go_nowhere_while_the_port_is_down() -> None:
    tree = SwitchedTree(STEERED)
    tree.switches["X"].step(PortDown(tree.ports["X"]["S"]), NOW)
    tree.send(0, 0)
    assert (tree.carried, tree.got[1]) == ([], [])
    assert tree.count("X")["port to the switch above is down"] == 4


def test_odd_forms_of_steered_packets_are_dropped() -> None:
    tree = SwitchedTree(STEERED)
    frame = tree.hosts.packet(0, 0, 1)
    tagged = frame[:12] + b"\x81\x00\x00\x05" + frame[12:]
    tree.from_host(0, tagged)
    assert tree.count("X")["malformed packet of a ring"] == 1
    assert tree.carried == []


def test_steering_ends_with_the_ring_and_its_connections_stay_closed() -> None:
    tree = SwitchedTree(STEERED)
    tree.switches["X"].step(RemoveRing(7), NOW)
    assert tree.switches["X"].view().rings == {}
    tree.send(0, 0, 1)
    assert tree.count("X")["ring removed"] == 1
    assert tree.switches["X"].step(InstallRing(tree.specs()["X"]), NOW) == []
    tree.send(0, 0, 1)
    assert len(tree.between("X", "S")) == 1


def test_sums_of_a_switch_pass_one_that_steers() -> None:
    pod = TreeSwitch("X", (0, TreeSwitch("L", (1, 2))), aggregates=False)
    tree = SwitchedTree(TreeSwitch("S", (pod, 3)))
    tree.finish(0)
    assert len(data_of(tree.between("L", "X"))) == 4
    for rank in range(4):
        assert set(tree.got[rank]) >= set(tree.results(0)[rank])


def with_damaged_copy_before(sent: Carried) -> Frames:
    """A frame between switches behind a copy with another UDP source port: two rows of one run."""
    damaged = bytearray(sent.frame)
    damaged[34] ^= 0x40
    return np.frombuffer(bytes(damaged) + sent.frame, np.uint8).reshape(2, -1)


def test_a_damaged_source_port_does_not_make_strays_of_the_sums_behind_it() -> None:
    pod = TreeSwitch("X", (0, TreeSwitch("L", (1, 2))), aggregates=False)
    tree = SwitchedTree(TreeSwitch("S", (pod, 3)))
    for rank in (1, 2):
        tree.send(rank, 0)
    (first, *_) = data_of(tree.between("L", "X"))
    tree.forget()
    event = FramesArrived(tree.ports["X"]["L"], [with_damaged_copy_before(first)])
    tree.take("X", tree.switches["X"].step(event, NOW))
    assert rules(tree) == []
    assert first.frame in [sent.frame for sent in tree.between("X", "S")]


def test_a_damaged_source_port_does_not_put_blame_on_sums_for_a_ring_that_is_not_here() -> None:
    tree = SwitchedTree()
    (first, *_) = first_up(tree)
    restarted = Accelerator()
    restarted.step(PortUp(PortId(0)), NOW)
    actions = restarted.step(FramesArrived(PortId(0), [with_damaged_copy_before(first)]), NOW)
    assert actions == []
    assert restarted.counters.dropped == {"virtual connection of no ring here": 2}


def test_figure_5_is_what_the_other_tests_take_it_for() -> None:
    assert SwitchedTree().at == {0: "L1", 1: "L1", 2: "L2", 3: "L2"}
    assert FIGURE_5.ranks == (0, 1, 2, 3)
