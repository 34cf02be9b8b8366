"""Turns of rings that span several switches: each switch has a pool, and sees turns begin by itself."""

from __future__ import annotations

import pytest

from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.core.switch.accelerator import RingFault
from inaproto.wire.tree_note import NoteKind
from tests.unit.pooled_rings import pool_at, two_trees
from tests.unit.switched_tree import Carried, SwitchedTree, data_of
from tests.unit.tree_records import note_of, rules, send_note

THREE_HIGH = TreeSwitch("S", (TreeSwitch("M", (TreeSwitch("L0", (0, 1)), 2)), TreeSwitch("L1", (3, 4))))


def turn(tree: SwitchedTree, epoch: int, *serials: int) -> None:
    """The ring's turn, to its end; nothing is lost."""
    tree.hosts.epoch = epoch
    for serial in serials:
        for frames in tree.got.values():
            frames.clear()
        tree.finish(serial)
        assert tree.got == tree.results(serial)


def faults(tree: SwitchedTree) -> list[tuple[str, int, int, str]]:
    return [
        (name, said.ring_id, said.rank, said.rule) for name, said in tree.said if isinstance(said, RingFault)
    ]


@pytest.mark.parametrize("shape", [None, THREE_HIGH], ids=["figure 5", "three high"])
def test_rings_below_a_tree_take_turns(shape: TreeSwitch | None) -> None:
    one, two = two_trees() if shape is None else two_trees(shape)
    turn(one, 1, 0, 1, 2)
    turn(two, 2, 0, 1)
    turn(one, 3, 3, 4, 5)
    turn(two, 4, 2)
    for name in one.switches:
        view = pool_at(one, name)
        assert (view.holders, view.epochs, view.takeovers, view.conflicts) == ((2,), (4,), 4, 0)
        assert one.switches[name].view().counters.dropped == {}
    assert one.said == []


def test_that_a_message_opens_at_another_leaf_begins_its_turn() -> None:
    """Rank 3's connection ends at L1, whose hosts are late: without its note they would wait for a resend."""
    one, two = two_trees()
    turn(one, 1, 0)
    one.forget()
    two.hosts.epoch = 2
    for rank in (2, 3):
        two.send(rank, 0)
    two.settle()
    assert pool_at(two, "L1").holders == (2,)
    for rank in (0, 1):
        two.send(rank, 0)
    two.settle()
    assert two.got == two.results(0)
    assert two.count("L1")["notes_in"] == 2, "one in each turn"


def test_notes_of_a_turn_that_is_over_are_dropped() -> None:
    one, two = two_trees()
    turn(one, 1, 0)
    notes = [sent for sent in one.carried if sent.note is not None and sent.receiver == "L1"]
    turn(two, 2, 0)
    one.forget()
    for sent in notes:
        one.arrive("L1", one.ports["L1"]["S"], sent.frame)
    assert one.count("L1")["stale turn"] == len(notes) == 1
    assert pool_at(one, "L1").stale == 1
    assert one.said == []


@pytest.mark.parametrize("kind", [NoteKind.GAP, NoteKind.REPEATS])
def test_other_notes_begin_no_turn(kind: NoteKind) -> None:
    one, two = two_trees()
    turn(one, 1, 0)
    count = 1 if kind is NoteKind.REPEATS else 0
    send_note(two, "L1", "S", note_of(two, kind=kind, count=count, epoch=2).encode())
    assert two.count("L1")["note of a turn to come"] == 1
    assert pool_at(two, "L1").holders == (1,)
    assert two.said == []


def test_a_note_of_another_connection_begins_no_turn() -> None:
    one, two = two_trees()
    turn(one, 1, 0)
    header = one.hosts.packet(3, 0, 0)[:70]
    note = note_of(two, kind=NoteKind.OPENS, offset=0, header=header, epoch=2)
    send_note(two, "L1", "S", note.encode())
    assert rules(two) == [("L1", "note for nobody here")]
    assert pool_at(two, "L1").holders == (1,)


def test_a_note_of_a_message_that_is_open_under_another_epoch_is_refused() -> None:
    one, _ = two_trees()
    one.hosts.epoch = 5
    one.send(0, 0)
    header = one.hosts.packet(3, 0, 0)[:70]
    send_note(one, "L1", "S", note_of(one, kind=NoteKind.OPENS, offset=0, header=header, epoch=6).encode())
    assert rules(one) == [("L1", "wrong epoch")]


@pytest.mark.parametrize(("epoch", "goes_on"), [(4, True), (2, False)])
def test_a_switch_on_the_way_sends_notes_on_unless_their_turn_is_over(epoch: int, *, goes_on: bool) -> None:
    one, two = two_trees(THREE_HIGH)
    turn(one, 1, 0)
    turn(two, 2, 0)
    turn(one, 3, 1)
    one.forget()
    header = two.hosts.packet(4, 1, 0)[:70]
    note = note_of(two, kind=NoteKind.OPENS, offset=0, header=header, rank=4, msg_id=1, epoch=epoch)
    send_note(two, "M", "S", note.encode())
    assert [(sent.sender, sent.receiver) for sent in two.carried] == [("M", "L0")] * goes_on
    assert pool_at(two, "M").epochs == (3,)


def test_sums_of_a_turn_that_is_over_are_dropped_above() -> None:
    one, two = two_trees()
    turn(one, 1, 0)
    late = data_of(one.between("L1", "S"))
    assert len(late) == 4
    turn(two, 2, 0)
    one.forget()
    for sent in late:
        one.arrive("S", one.ports["S"]["L1"], sent.frame)
    assert one.carried == []
    one.count("S")
    assert one.switches["S"].view().counters.dropped == {
        "stale turn": 1,
        "first packet of the message not seen": 3,
    }


@pytest.mark.parametrize("is_its_turn", [False, True])
def test_results_of_a_turn_that_is_over_belong_to_no_message_below(is_its_turn: bool) -> None:
    one, two = two_trees()
    turn(one, 1, 0)
    late = data_of(one.between("S", "L1"))
    turn(two, 2, 0)
    if is_its_turn:
        one.hosts.epoch = 3
        one.send(0, 1)
    one.forget()
    for sent in late:
        one.arrive("L1", one.ports["L1"]["S"], sent.frame)
    assert one.count("L1")["result of no message here"] == 4
    assert all(frames == [] for frames in one.got.values())


def lost_below(receiver: str) -> SwitchedTree:
    """Two rings; the results of the first did not get through to ``receiver``."""
    one, two = two_trees()
    one.hosts.epoch, two.hosts.epoch = 1, 2

    def is_lost(sent: Carried) -> bool:
        return (sent.sender, sent.receiver) == ("S", receiver) and sent.note is None

    one.finish(0, is_lost)
    one.forget()
    return two


def test_a_switch_whose_results_have_not_come_stops_the_ring_that_loses_its_turn() -> None:
    two = lost_below("L1")
    two.finish(0)
    assert faults(two) == [("L1", 1, 0, "turn lost")]
    assert two.got == two.results(0)
    assert [pool_at(two, name).conflicts for name in ("S", "L1", "L2")] == [0, 1, 0]


def test_results_that_wait_for_a_note_are_unfinished() -> None:
    """All sums are done, but the results of a connection that begins elsewhere were not sent."""
    one, two = two_trees()
    one.hosts.epoch, two.hosts.epoch = 1, 2
    one.finish(0, lambda sent: sent.note is not None and sent.receiver == "L1")
    assert [len(one.got[rank]) for rank in range(4)] == [0, 4, 4, 4]
    one.forget()
    two.send(0, 0)
    assert faults(two) == [("L1", 1, 0, "turn lost")]
