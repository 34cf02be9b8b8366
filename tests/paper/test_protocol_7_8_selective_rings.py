"""Selective rings through several switches (docs/protocol.md 7.8; beyond NetReduce section 3.3)."""

from __future__ import annotations

import pytest

from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.core.switch.tree.ring import TreeRing
from inaproto.wire.tree_note import NoteKind
from tests.unit.switched_tree import Carried, SwitchedTree, data_of

ALL = range(4)
OTHERS = (0, 2, 3)


def tree() -> SwitchedTree:
    """Ranks 0 and 1 in rack L1, 2 and 3 in L2: the connections of 1 and 3 end in the other rack."""
    return SwitchedTree(selective=True)


def without(switched: SwitchedTree, rank: int, offset: int) -> SwitchedTree:
    """After message 0 of all ranks, less that packet."""
    for sender in ALL:
        switched.send(sender, 0, *(at for at in ALL if (sender, at) != (rank, offset)))
    switched.settle()
    return switched


def notes(
    switched: SwitchedTree, *, begin: str = "L1", end: str = "S"
) -> list[tuple[NoteKind, int, int, int]]:
    told = [sent.note for sent in switched.between(begin, end)]
    return [(note.kind, note.rank, note.offset, note.count) for note in told if note is not None]


def test_7_8_1_results_leave_as_they_are_done_in_every_rack() -> None:
    switched = without(tree(), 1, 1)
    assert switched.got == switched.results(0, *OTHERS)
    switched.forget()
    switched.send(1, 0, 1)
    switched.settle()
    assert switched.got == switched.results(0, 1)
    assert switched.count("L1")["results_out"] == 8


def test_7_8_1_a_message_behind_one_that_is_missing_leaves_at_once() -> None:
    switched = tree()
    for rank in OTHERS:
        switched.send(rank, 0)
    switched.finish(1)
    assert switched.got == switched.results(1)
    switched.forget()
    switched.send(1, 0)
    switched.settle()
    assert switched.got == switched.results(0)


def test_7_8_1_results_wait_until_their_message_opens_where_they_leave() -> None:
    switched = tree()
    late: list[Carried] = []

    def holds_notes(sent: Carried) -> bool:
        if sent.note is not None and sent.receiver == "L2":
            late.append(sent)
        return sent in late

    switched.finish(0, holds_notes)
    assert {rank: len(frames) for rank, frames in switched.got.items()} == {0: 4, 1: 4, 2: 0, 3: 4}
    switched.under_way.extend(late[:1])
    switched.settle()
    assert switched.got == switched.results(0)
    switched.under_way.extend(late)  # once more is no news
    switched.settle()
    assert switched.got == switched.results(0)


def test_7_8_1_messages_that_are_done_together_leave_together() -> None:
    switched = SwitchedTree(TreeSwitch("S", (TreeSwitch("L1", (0, 1)), 2, 3)), selective=True)
    for serial in (0, 1):
        for rank in (0, 1, 2):
            switched.send(rank, serial)
    switched.settle()
    switched.from_host(3, *switched.hosts.message(3, 0), *switched.hosts.message(3, 1))
    switched.settle()
    wanted = {rank: frames + switched.results(1)[rank] for rank, frames in switched.results(0).items()}
    assert frames_of(switched.got) == frames_of(wanted)


def test_7_8_1_what_waits_for_an_opening_keeps_a_turn_from_ending() -> None:
    """As docs/protocol.md 6.10.4 asks: a turn ends between messages."""
    switched = tree()
    late: list[Carried] = []

    def holds_notes(sent: Carried) -> bool:
        if sent.note is not None and sent.receiver == "L2" and sent.note.msg_id < 2:
            late.append(sent)
        return sent in late

    ring = switched.switches["L2"].rings[switched.hosts.spec.ring_id]
    assert isinstance(ring, TreeRing)
    for serial in range(3):
        switched.finish(serial, holds_notes)
    assert ring.learnt[1].sent == 0, "message 0 is not open there"
    switched.under_way.append(late[0])
    switched.settle()
    assert ring.learnt[1].sent == 4, "nor is message 1"
    assert not ring.is_between_messages
    switched.under_way.extend(late[1:])
    switched.settle()
    assert ring.learnt[1].sent == 12
    assert ring.is_between_messages


def test_7_8_2_what_comes_again_is_answered_by_itself_where_its_connection_ends() -> None:
    switched = tree()
    switched.finish(0)
    switched.forget()
    switched.send(0, 0, 1)
    switched.send(0, 0, 3)
    switched.settle()
    wanted = switched.results(0, 1, 3)[1]
    assert switched.got == {0: [], 1: wanted, 2: [], 3: []}
    assert switched.carried == []


def test_7_8_2_packets_that_come_again_together_are_answered_together() -> None:
    switched = tree()
    switched.finish(0)
    switched.forget()
    switched.send(0, 0, 1, 2)
    assert switched.got[1] == switched.results(0, 1, 2)[1]


@pytest.mark.parametrize(("rack", "rank"), [("L1", 0), ("L2", 1)])
def test_7_8_2_no_other_sum_goes_up_again_than_of_what_came_again(rack: str, rank: int) -> None:
    switched = tree()
    switched.finish(0, lambda sent: (sent.sender, sent.receiver) == ("S", rack) and sent.note is None)
    switched.forget()
    switched.send(rank, 0, 1)
    switched.settle(lambda sent: (sent.sender, sent.receiver) == ("S", rack) and sent.note is None)
    assert switched.positions(data_of(switched.between(rack, "S"))) == [1]


def test_7_8_2_a_note_names_the_packets_that_came_again_and_no_other() -> None:
    switched = tree()
    switched.finish(0)
    switched.forget()
    switched.send(1, 0, 1, 3)
    switched.settle()
    assert notes(switched) == [(NoteKind.REPEATS, 1, 1, 1), (NoteKind.REPEATS, 1, 3, 1)]
    assert switched.got == {0: [], 1: [], 2: switched.results(0, 1, 3)[2], 3: []}


def test_7_8_2_a_first_packet_that_comes_again_opens_its_message_again() -> None:
    switched = tree()
    switched.finish(0, lambda sent: sent.note is not None)
    assert switched.got[2] == []
    switched.send(1, 0, 0)
    switched.settle()
    assert set(switched.got[2]) == set(switched.results(0)[2])


def finish_less(switched: SwitchedTree, sender: str, receiver: str, position: int) -> None:
    """Message 0 from all, of which one packet is lost between two switches, once."""
    lost: list[Carried] = []

    def is_lost(sent: Carried) -> bool:
        is_it = (sent.sender, sent.receiver) == (sender, receiver) and sent.note is None
        if not is_it or lost or switched.positions([sent]) != [position]:
            return False
        lost.append(sent)
        return True

    switched.finish(0, is_lost)


def frames_of(got: dict[int, list[bytes]]) -> dict[int, list[bytes]]:
    return {rank: sorted(frames) for rank, frames in got.items()}


@pytest.mark.parametrize(("sender", "receiver"), [("L1", "S"), ("S", "L1")])
def test_7_8_2_what_was_lost_between_switches_goes_again_alone(sender: str, receiver: str) -> None:
    switched = tree()
    finish_less(switched, sender, receiver, 2)
    assert switched.positions(data_of(switched.between(sender, receiver))) == [0, 1, 2, 3, 2]
    assert frames_of(switched.got) == frames_of(switched.results(0))


@pytest.mark.parametrize(("sender", "receiver"), [("L1", "S"), ("S", "L1")])
def test_7_8_2_with_nothing_behind_it_when_its_host_asks(sender: str, receiver: str) -> None:
    switched = tree()
    finish_less(switched, sender, receiver, 3)
    assert switched.positions(data_of(switched.between(sender, receiver))) == [0, 1, 2, 3]
    switched.send(0, 0, 3)
    switched.settle()
    assert switched.positions(data_of(switched.between(sender, receiver))) == [0, 1, 2, 3, 3]
    assert frames_of(switched.got) == frames_of(switched.results(0))


def test_7_8_2_nor_where_the_results_of_another_rack_are_missing() -> None:
    switched = tree()
    finish_less(switched, "S", "L2", 3)
    switched.send(1, 0, 3)  # at L1, where its result is; its connection ends at L2
    switched.settle()
    assert notes(switched)[2:] == [(NoteKind.REPEATS, 1, 3, 1)]
    assert switched.positions(data_of(switched.between("L2", "S"))) == [0, 1, 2, 3, 3]
    assert frames_of(switched.got) == frames_of(switched.results(0))


def test_7_8_2_a_note_of_what_another_rack_knows_nothing_of_changes_nothing() -> None:
    switched = tree()
    for rank in (0, 1):
        switched.send(rank, 0)
    switched.send(1, 0, 1)
    switched.settle()
    for rank in (2, 3):
        switched.send(rank, 0)
    switched.settle()
    assert frames_of(switched.got) == frames_of(switched.results(0))


def test_7_8_2_what_is_repeated_is_counted() -> None:
    switched = tree()
    switched.finish(0, lambda sent: (sent.sender, sent.receiver) == ("S", "L1") and sent.note is None)
    switched.send(0, 0, 0)
    switched.settle()
    switched.send(0, 0, 3)
    switched.settle()
    assert switched.count("S")["results_down_again"] == 4, "3 brought what had not come before it, too"
    switched.send(1, 0, 0, 3)
    switched.settle()
    assert switched.count("L2")["replayed"] == 2
    assert switched.count("L2")["results_out"] == switched.count("L1")["results_out"] == 8


def test_7_8_3_a_gap_is_not_told() -> None:
    switched = without(tree(), 1, 1)
    assert NoteKind.GAP not in {kind for kind, *_ in notes(switched)}
    assert "gaps_signalled" not in switched.count("L1") | switched.count("L2")


def test_7_8_4_that_a_message_opens_is_told_again_with_its_last_packet() -> None:
    switched = tree()
    switched.send(1, 0, 0, 1, 2)
    assert notes(switched) == [(NoteKind.OPENS, 1, 0, 0)]
    switched.send(1, 0, 3)
    assert notes(switched) == [(NoteKind.OPENS, 1, 0, 0)] * 2
    switched.send(1, 0, 3)
    assert notes(switched) == [(NoteKind.OPENS, 1, 0, 0)] * 2


def test_7_8_4_of_each_connection() -> None:
    mixed = TreeSwitch("S", (TreeSwitch("L1", (0, 2)), TreeSwitch("L2", (1, 3))))
    switched = SwitchedTree(mixed, selective=True)
    switched.finish(0)
    assert sorted(notes(switched)) == [(NoteKind.OPENS, 0, 0, 0)] * 2 + [(NoteKind.OPENS, 2, 0, 0)] * 2


def test_7_8_4_not_where_the_first_packet_is_the_last() -> None:
    switched = tree()
    for rank in ALL:
        switched.send(rank, 0, packets=1)
    switched.settle()
    assert notes(switched) == [(NoteKind.OPENS, 1, 0, 0)]


def test_a_middle_switch_hands_on_what_is_done() -> None:
    pods = (TreeSwitch("A", (TreeSwitch("L1", (0, 1)), TreeSwitch("L2", (2,)))), TreeSwitch("L3", (3,)))
    switched = without(SwitchedTree(TreeSwitch("S", pods), selective=True), 2, 1)
    assert switched.got == switched.results(0, *OTHERS)
    switched.send(2, 0, 1)
    switched.settle()
    assert frames_of(switched.got) == frames_of(switched.results(0))
