"""A switch of a tree beyond the paper's rules: results from above, and notes about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inaproto.core.switch.accelerator import FramesArrived
from inaproto.units import PortId
from inaproto.wire.roce import Opcode, RocePacket
from inaproto.wire.tree_note import NoteKind
from tests.accelerators import EACH_ACCELERATOR_OF_TREES
from tests.unit.switched_ring import NOW, block, by_port
from tests.unit.switched_tree import Carried, SwitchedTree
from tests.unit.tree_records import (
    changed_ina,
    first_up,
    note_of,
    results_for_l1,
    rules,
    sealed,
    send_note,
)

pytestmark = EACH_ACCELERATOR_OF_TREES

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
