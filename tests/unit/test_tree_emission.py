"""What a switch of a tree sends: to whom, how often, under which headers, and how it is counted.

Of Figure 5, unless a test draws a tree of its own: the connections of ranks 0 and 2 stay in their racks, that
of rank 1 ends below L2, that of rank 3 below L1. Positions are ``message * 4 + offset``.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.core.switch.accelerator import PortDown, PortUp
from inaproto.wire.tree_note import NoteKind, TreeNote
from tests.unit.switched_ring import NOW, SwitchedRing, by_port, mac
from tests.unit.switched_tree import Carried, SwitchedTree, data_of
from tests.unit.tree_records import note_of, send_note

ALL = range(4)


def positions_from(tree: SwitchedTree, rank: int, positions: Iterable[int]) -> None:
    """A host sends these packets, each in a step of its own."""
    for position in positions:
        tree.send(rank, *divmod(position, 4))


def results_at(tree: SwitchedTree, rank: int, positions: Iterable[int]) -> list[bytes]:
    """The results on a rank's connection."""
    return [tree.result(rank, *divmod(position, 4)) for position in positions]


def notes_between(tree: SwitchedTree, sender: str, receiver: str, kind: NoteKind) -> list[TreeNote]:
    told = [sent.note for sent in tree.between(sender, receiver)]
    return [note for note in told if note is not None and note.kind is kind]


def places(notes: list[TreeNote]) -> list[tuple[int, int]]:
    """(rank, position) of notes."""
    return [(note.rank, note.msg_id * 4 + note.offset) for note in notes]


def is_result_for(name: str, carried: Carried) -> bool:
    return (carried.sender, carried.receiver) == ("S", name) and carried.note is None


# -- hosts' connections ----------------------------------------------------------------------------


def test_results_go_where_the_receiver_s_own_packets_come_from() -> None:
    tree = SwitchedTree()
    for rank in ALL:
        tree.send(rank, 0)
    elsewhere = tree.ports["L1"]["S"]
    tree.arrive("L1", elsewhere, mac(0) + mac(1) + bytes(48))  # the address of rank 1's host, astray
    tree.forget()
    tree.settle()
    assert tree.got == tree.results(0)


@pytest.mark.parametrize("heard_again", [False, True])
def test_a_receiver_whose_port_was_down_is_sought_below_and_never_above(*, heard_again: bool) -> None:
    tree = SwitchedTree()
    tree.finish(0)
    port = tree.ports["L1"]["1"]
    tree.switches["L1"].step(PortDown(port), NOW)
    tree.switches["L1"].step(PortUp(port), NOW)
    if heard_again:
        tree.from_host(1, mac(0) + mac(1) + bytes(48))
    tree.forget()
    tree.send(0, 0)
    expected = tree.results(0)[1]
    assert tree.got == {0: [] if heard_again else expected, 1: expected, 2: [], 3: []}
    assert tree.carried == []


def test_results_are_counted_on_every_connection_that_ends_here() -> None:
    tree = SwitchedTree(TreeSwitch("S", (TreeSwitch("L1", (0, 1, 2)), TreeSwitch("L2", (3,)))))
    tree.finish(0)
    assert tree.got == tree.results(0)
    assert (tree.count("L1")["results_out"], tree.count("L2")["results_out"]) == (12, 4)


def test_a_gap_on_a_connection_within_a_rack_lets_one_later_result_through() -> None:
    tree = SwitchedTree()
    for rank in ALL:
        positions_from(tree, rank, (0, 2, 3) if rank == 0 else ALL)
    tree.settle()
    assert tree.got[1] == results_at(tree, 0, (0, 2))
    assert {rank: tree.got[rank] for rank in (0, 2, 3)} == {
        rank: results_at(tree, (rank - 1) % 4, (0,)) for rank in (0, 2, 3)
    }


def test_rings_of_one_switch_get_replays_and_later_results_as_before() -> None:
    ring = SwitchedRing()
    for rank in (0, 1):
        ring.send(rank, 0)
    assert by_port(ring.send(2, 0, 0, 2, 3)) == {
        0: [ring.result(2, 0, 0), ring.result(2, 0, 2)],
        1: [ring.result(0, 0, 0)],
        2: [ring.result(1, 0, 0)],
    }
    assert by_port(ring.send(0, 0, 0)) == {1: [ring.result(0, 0, 0)]}


# -- between switches ------------------------------------------------------------------------------


def test_a_sum_goes_up_though_an_earlier_message_waits() -> None:
    tree = SwitchedTree()
    tree.send(0, 1)
    tree.from_host(1, *tree.hosts.message(1, 0), *tree.hosts.message(1, 1))
    assert tree.positions(data_of(tree.between("L1", "S"))) == [4, 5, 6, 7]


def test_packets_between_switches_are_counted_message_by_message() -> None:
    tree = SwitchedTree()
    tree.finish(0, lambda sent: is_result_for("L1", sent))
    tree.finish(1)
    tree.send(0, 0)
    tree.settle()
    assert tree.count("L1")["sums_up"] == 8
    assert tree.count("S")["results_down"] == 16
    asked = tree.count("L1")["sums_up_again"]
    assert tree.count("S")["results_down_again"] == asked >= 4


def test_what_a_link_that_is_down_would_carry_is_counted_as_that_alone() -> None:
    tree = SwitchedTree()
    bridged = tree.count("L1")["bridged"]
    tree.switches["L1"].step(PortDown(tree.ports["L1"]["S"]), NOW)
    tree.finish(0)
    assert tree.count("L1") == {"aggregated_in": 8, "notes_in": 1, "links_down": 5, "bridged": bridged}


@pytest.mark.parametrize(
    ("came", "asked"),
    [
        ([1], [0]),
        ([2], [0, 1]),
        ([0, 2], [1]),
        ([0, 2, 3], [1]),
        ([0, 1, 2, 3, 6], [4, 5]),
        ([0, 1, 2, 3, 4, 6], [5]),
        ([0, 5], [1, 2, 3, 4]),
        ([2, 5], [0, 1, 3, 4]),
    ],
)
def test_each_sum_whose_result_is_overtaken_goes_up_again_once(came: list[int], asked: list[int]) -> None:
    tree = SwitchedTree()
    kept: dict[int, bytes] = {}

    def held(sent: Carried) -> bool:
        late = is_result_for("L1", sent)
        if late:
            kept[tree.positions([sent])[0]] = sent.frame
        return late

    for serial in (0, 1):
        tree.finish(serial, held)
    tree.forget()
    tree.arrive("L1", tree.ports["L1"]["S"], *(kept[position] for position in came))
    assert tree.positions(data_of(tree.between("L1", "S"))) == asked


# -- gaps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [0, 5 * 4])
@pytest.mark.parametrize(
    ("rank_0", "rank_1", "told"),
    [
        pytest.param(range(4), (0, 2, 3), [1], id="once"),
        pytest.param(range(4), (0, 3), [1], id="the first of several"),
        pytest.param((0, 2), (0, 1, 2), [], id="packets that are still to come are no gap"),
        pytest.param((0, 2, 3), range(4), [], id="nor are those that another rank lacks"),
        pytest.param((0, 4, 5, 6, 7), (0, 1, 2, 3, 4, 6), [5], id="behind a message that another rank lacks"),
        pytest.param(range(4, 8), range(4, 8), [0], id="a message that nobody opened"),
        pytest.param(range(8), (0, 2, 3, 1, 4, 6), [1, 5], id="one after the other"),
        pytest.param(range(5), (0, 1, 2, 3, 4, 6), [], id="no sum behind it is complete"),
        pytest.param(range(4), (0, 1, 2, 3, 4, 6), [], id="nor any of its message"),
        pytest.param(range(8), (0, 4, 5, 1, 2, 3), [1], id="not while a resend trickles in"),
        pytest.param(range(8), (0, 4, 5, 1, 2, 4), [1, 3], id="what the resend loses again"),
    ],
)
def test_the_first_gap_below_complete_sums_is_told_once(
    base: int, rank_0: Iterable[int], rank_1: Iterable[int], told: list[int]
) -> None:
    tree = SwitchedTree()
    for serial in range(base // 4):
        tree.finish(serial)
    tree.forget()
    positions_from(tree, 0, (base + at for at in rank_0))
    positions_from(tree, 1, (base + at for at in rank_1))
    gaps = notes_between(tree, "L1", "S", NoteKind.GAP)
    assert places(gaps) == [(1, base + at) for at in told]


def test_a_short_message_has_no_gap_behind_its_end() -> None:
    tree = SwitchedTree()
    tree.send(0, 0, 0, packets=2)
    tree.send(1, 0, packets=2)
    for rank in (0, 1):
        tree.send(rank, 1)
    assert notes_between(tree, "L1", "S", NoteKind.GAP) == []


def test_the_gaps_of_all_connections_that_end_elsewhere_are_told() -> None:
    tree = SwitchedTree(TreeSwitch("S", (TreeSwitch("L1", (0, 2)), TreeSwitch("L2", (1, 3)))))
    positions_from(tree, 0, (0, 2))
    positions_from(tree, 2, (0, 2))
    assert places(notes_between(tree, "L1", "S", NoteKind.GAP)) == [(0, 1), (2, 1)]


@pytest.mark.parametrize("base", [0, 4, 5 * 4])
@pytest.mark.parametrize(
    ("rank_1", "others", "passes"),
    [
        pytest.param((0, 2), (0, 1, 2), 2, id="before the last packet of the message is known"),
        pytest.param((0, 3), range(4), 3, id="the last packet of the message"),
        pytest.param((0, 1, 2, 4, 5), range(8), 4, id="the first packet of the next message"),
        pytest.param(range(4, 8), range(8), 4, id="of a message that rank 1 did not open"),
        pytest.param(range(4, 8), range(4, 8), 4, id="of a message that nobody opened"),
    ],
)
def test_the_first_result_past_a_told_gap_leaves_once(
    base: int, rank_1: Iterable[int], others: Iterable[int], passes: int
) -> None:
    tree = SwitchedTree()
    for serial in range(base // 4):
        tree.finish(serial)
    tree.forget()
    sent = list(rank_1)
    for rank in ALL:
        positions_from(tree, rank, (base + at for at in (sent if rank == 1 else others)))
    tree.settle()
    in_order = [at for at in range(4) if sent[: at + 1] == list(range(at + 1))]
    assert tree.got[2] == results_at(tree, 1, (base + at for at in (*in_order, passes)))


# -- repeats of a host whose receiver is elsewhere -------------------------------------------------


@pytest.mark.parametrize("selective", [False, True])
def test_what_is_sent_again_is_in_the_vlan_of_its_receiver(*, selective: bool) -> None:
    tag = b"\x81\0\x60\x64"
    tree = SwitchedTree(selective=selective)

    def send(rank: int, offset: int) -> None:
        frame = tree.hosts.message(rank, 0)[offset]
        tree.from_host(rank, frame[:12] + tag + frame[12:])
        tree.settle()

    for rank in ALL:
        for offset in range(4):
            send(rank, offset)
    first = {rank: sorted(frames) for rank, frames in tree.got.items()}
    assert {frame[12:16] for frames in first.values() for frame in frames} == {tag}
    for rank in ALL:
        tree.got[(rank + 1) % 4].clear()
        for offset in range(4):
            send(rank, offset)
    assert {rank: sorted(set(frames)) for rank, frames in tree.got.items()} == first


def test_the_leaf_where_a_repeated_packet_is_delivered_asks_for_its_result() -> None:
    tree = SwitchedTree()
    tree.finish(0, lambda sent: is_result_for("L2", sent))
    tree.forget()
    tree.send(1, 0, 1)
    tree.settle(lambda sent: sent.sender == "L2")
    assert tree.positions(data_of(tree.between("L2", "S"))) == [1]
    assert tree.count("L2")["sums_up_again"] == 1


def test_a_told_repeat_of_more_than_was_sent_is_answered_as_far_as_it_was() -> None:
    tree = SwitchedTree()
    for rank in ALL:
        positions_from(tree, rank, (0, 1))
    tree.settle()
    tree.forget()
    note = note_of(tree, kind=NoteKind.REPEATS, rank=3, offset=1, count=3)
    send_note(tree, "L1", "S", note.encode())
    assert tree.got[0] == results_at(tree, 3, (1,))
    assert tree.said == []


def test_a_told_repeat_of_a_message_that_is_not_here_changes_nothing() -> None:
    tree = SwitchedTree()
    note = note_of(tree, kind=NoteKind.REPEATS, msg_id=1, offset=0, count=4)
    send_note(tree, "L1", "S", note.encode())
    assert (tree.said, tree.carried) == ([], [])
    tree.finish(0)
    assert tree.got == tree.results(0)


@pytest.mark.parametrize("offset", [2, 3])
def test_a_told_repeat_of_packets_that_the_message_does_not_have_changes_nothing(offset: int) -> None:
    tree = SwitchedTree()
    tree.finish(0, packets=2)
    tree.finish(1)
    tree.forget()
    note = note_of(tree, kind=NoteKind.REPEATS, offset=offset, count=1)
    send_note(tree, "L1", "S", note.encode())
    tree.send(3, 1, 1)
    tree.settle()
    assert tree.got[0] == results_at(tree, 3, (5,)), "no hole before it is taken for repeated too"


@pytest.mark.parametrize("at", [0, 4, 9])
@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("again", [False, True])
def test_damaged_addresses_are_not_told(at: int, offset: int, again: bool) -> None:
    """All results of the message would leave under them, and the host repeats only what has no ACK."""
    tree = SwitchedTree()
    if again:
        tree.finish(0)
        tree.forget()
    frame = bytearray(tree.hosts.packet(1, 0, offset))
    frame[at] ^= 2
    before = [tree.hosts.packet(1, 0, earlier) for earlier in range(offset)]
    for packet in (*before, bytes(frame)):
        tree.from_host(1, packet)
    tree.send(1, 0, *range(offset, 4))
    for rank in (0, 2, 3):
        tree.send(rank, 0)
    tree.settle()
    assert set(results_at(tree, 1, ALL)) <= set(tree.got[2]), "none is missing"
    assert {frame[:12] for frame in tree.got[2]} == {mac(2) + mac(1)}


def test_a_message_is_told_of_once_though_its_packets_come_one_by_one() -> None:
    tree = SwitchedTree()
    positions_from(tree, 1, range(8))
    assert places(notes_between(tree, "L1", "S", NoteKind.OPENS)) == [(1, 0), (1, 4)]


def test_notes_are_outside_the_sequence_of_sums() -> None:
    tree = SwitchedTree()
    tree.finish(0)
    notes = [sent for sent in tree.carried if sent.note is not None]
    assert {sent.packet.bth.psn for sent in notes} == {0}
    assert len(notes) == 4


def test_notes_name_a_message_by_the_bits_that_the_ring_has_for_it() -> None:
    tree = SwitchedTree(msg_id_bits=4)
    for serial in range(18):
        tree.forget()
        tree.finish(serial, msg_id=serial % 16)
        opened = notes_between(tree, "L1", "S", NoteKind.OPENS)
        assert [note.msg_id for note in opened] == [serial % 16]
        known = tree.results(serial, 0, 1, 2, msg_id=serial % 16)
        assert {rank: frames[:3] for rank, frames in tree.got.items()} == known
