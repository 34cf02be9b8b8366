"""NetReduce section 3.3, extension to several racks: Figure 5's spine and two leaves, packet by packet.

W1 and W2 (ranks 0 and 1) are below L1, W3 and W4 (ranks 2 and 3) below L2, S is the root. The ring is
W1 -> W2 -> W3 -> W4 -> W1, so W1 -> W2 and W3 -> W4 stay in their racks.
"""

from __future__ import annotations

from inaproto.core.plan.aggregation_tree import VIRTUAL_QP_BASE, TreeSwitch
from inaproto.core.switch.accelerator import RingFault
from inaproto.core.switch.tree.translation import Direction, translations
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype, InaHeader, Op
from inaproto.wire.roce import Opcode, RocePacket
from inaproto.wire.tree_note import NoteKind
from tests.accelerators import EACH_ACCELERATOR_OF_TREES, software_only
from tests.unit.exact_reference import exact
from tests.unit.switched_ring import MTU, into_qp, ip
from tests.unit.switched_tree import Carried, SwitchedTree, addresses_of, data_of

pytestmark = EACH_ACCELERATOR_OF_TREES
ALL = range(4)


def result_frames(tree: SwitchedTree, *serials: int) -> dict[int, list[bytes]]:
    """What every rank should have received."""
    found: dict[int, list[bytes]] = {rank: [] for rank in ALL}
    for serial in serials:
        for rank, frames in tree.results(serial).items():
            found[rank] += frames
    return found


def test_the_translation_tables_of_figure_5_are_those_of_table_3() -> None:
    tree = SwitchedTree()
    ips = {name: address.ip for name, address in addresses_of(tree.tree).items()}
    qp = VIRTUAL_QP_BASE | tree.hosts.spec.ring_id
    names = {
        (ips[one], ips[two], qp): f"{one}->{two}"
        for one, two in (("L1", "S"), ("L2", "S"), ("S", "L1"), ("S", "L2"))
    }
    names |= {
        (ip(rank), ip((rank + 1) % 4), into_qp((rank + 1) % 4)): f"W{rank + 1}->W{(rank + 1) % 4 + 1}"
        for rank in ALL
    }
    table = {
        name: {
            (entry.direction, names[entry.came_on], names[entry.leaves_on]) for entry in translations(spec)
        }
        for name, spec in tree.specs().items()
    }
    up, down, both = Direction.AGGREGATION, Direction.MULTICAST, Direction.BOTH
    assert table["S"] == {
        (both, "L1->S", "S->L1"),
        (both, "L1->S", "S->L2"),
        (both, "L2->S", "S->L1"),
        (both, "L2->S", "S->L2"),
    }
    assert table["L1"] == {
        (up, "W1->W2", "L1->S"),
        (up, "W2->W3", "L1->S"),
        (down, "S->L1", "W1->W2"),
        (down, "S->L1", "W4->W1"),
    }


def test_every_rank_gets_the_sum_of_all_racks_on_its_own_connection() -> None:
    tree = SwitchedTree()
    for serial in range(6):
        tree.forget()
        tree.finish(serial)
        assert tree.got == result_frames(tree, serial)
    assert tree.said == []


def test_a_leaf_sends_one_sum_up_for_all_its_ranks() -> None:
    tree = SwitchedTree()
    for rank in (0, 1):
        tree.send(rank, 0)
    sums = data_of(tree.between("L1", "S"))
    assert len(sums) == 4, "as many packets as one rank sends"
    assert tree.got == {rank: [] for rank in ALL}, "a sum of one rack is no result"
    for offset, sent in enumerate(sums):
        skip = 0 if offset else INA_HEADER_BYTES
        parts = [tree.hosts.data(rank, 0, offset, MTU - skip) for rank in (0, 1)]
        assert sent.packet.payload[skip:] == exact(Dtype.I32, Op.SUM, parts)
    first = InaHeader.decode(sums[0].packet.payload)
    assert (first.rank, first.ring_size, first.key) == (0, 4, tree.hosts.spec.key)
    assert not first.is_result


def test_sums_and_results_travel_on_connections_between_switches() -> None:
    tree = SwitchedTree()
    tree.finish(0)
    addresses = addresses_of(tree.tree)
    for sent in tree.carried:
        here, there = addresses[sent.sender], addresses[sent.receiver]
        packet = sent.packet
        assert (packet.eth.src, packet.eth.dst) == (here.mac, there.mac)
        assert (packet.ip.src, packet.ip.dst) == (here.ip, there.ip)
        assert packet.bth.dest_qp == VIRTUAL_QP_BASE | tree.hosts.spec.ring_id


def test_the_root_sends_each_result_down_once_to_each_leaf() -> None:
    tree = SwitchedTree()
    tree.finish(0)
    for leaf in ("L1", "L2"):
        down = data_of(tree.between("S", leaf))
        assert tree.positions(down) == [0, 1, 2, 3]
        assert InaHeader.decode(down[0].packet.payload).is_result
        assert tree.positions(data_of(tree.between(leaf, "S"))) == [0, 1, 2, 3]


def test_psns_of_a_switch_to_switch_connection_follow_from_message_and_offset() -> None:
    tree = SwitchedTree()
    tree.finish(0, packets=2)
    tree.forget()
    tree.finish(1, packets=3)
    up = data_of(tree.between("L1", "S"))
    assert tree.positions(up) == [4, 5, 6], "as if message 0 had been full"
    assert tree.got == tree.results(1, packets=3)


def test_first_packets_are_told_along_the_route_of_their_connection() -> None:
    tree = SwitchedTree()
    tree.finish(0)
    notes = [(sent.sender, sent.receiver, note) for sent in tree.carried if (note := sent.note) is not None]
    assert sorted((one, two, note.kind.name, note.rank) for one, two, note in notes) == [
        ("L1", "S", "OPENS", 1),
        ("L2", "S", "OPENS", 3),
        ("S", "L1", "OPENS", 3),
        ("S", "L2", "OPENS", 1),
    ], "W2->W3 and W4->W1, once each on every link"


def test_a_notification_populates_the_entry_at_the_leaf_where_the_connection_ends() -> None:
    tree = SwitchedTree()
    tree.finish(0, lost=lambda sent: sent.receiver == "L2" and sent.note is not None)
    assert tree.got[2] == [], "nothing can be sent on W2->W3 before its header is known"
    assert tree.got[3] == tree.results(0)[3]
    tree.send(1, 0, 0)  # the first of what W2 sends again when its timer expires
    tree.settle()
    assert tree.got[2] == tree.results(0)[2]


def test_results_reach_a_leaf_but_never_its_aggregators() -> None:
    tree = SwitchedTree()
    tree.finish(0)
    assert tree.count("L1")["aggregated_in"] == 8
    assert tree.count("L1")["results_in"] == 4


def test_a_repeat_of_a_host_goes_up_where_the_result_has_not_come() -> None:
    tree = SwitchedTree()
    tree.finish(0, lost=lambda sent: (sent.sender, sent.receiver) == ("S", "L1") and sent.note is None)
    assert tree.got[0] == tree.got[1] == []
    tree.forget()
    tree.send(0, 0)
    assert tree.positions(tree.between("L1", "S")) == [0, 1, 2, 3]
    tree.settle()
    down = data_of(tree.between("S", "L1"))
    assert tree.positions(down) == [0, 1, 2, 3]
    assert tree.between("S", "L2") == [], "the kept result goes back where it was asked for"
    assert tree.got == {**{rank: [] for rank in ALL}, **{rank: tree.results(0)[rank] for rank in (0, 1)}}


def test_a_repeat_of_a_host_is_answered_by_the_leaf_that_has_the_result() -> None:
    tree = SwitchedTree()
    tree.finish(0)
    tree.forget()
    tree.send(0, 0, 2, 3)
    assert tree.got == {**{rank: [] for rank in ALL}, 1: tree.results(0, 2, 3)[1]}
    assert tree.carried == []


def test_a_repeat_on_a_connection_that_ends_elsewhere_is_answered_there() -> None:
    tree = SwitchedTree()
    tree.finish(0)
    tree.forget()
    tree.send(1, 0, 2, 3)
    tree.settle()
    frames = tree.got.pop(2)
    assert frames == tree.results(0, 2, 3)[2]
    assert not any(tree.got.values())
    assert {sent.note.kind for sent in tree.carried if sent.note} == {NoteKind.REPEATS}
    assert data_of(tree.carried) == []


def test_a_sum_that_was_lost_on_its_way_up_is_repeated_by_the_leaf_at_once() -> None:
    tree = SwitchedTree()
    lost: list[Carried] = []

    def loses(sent: Carried) -> bool:
        first = sent.sender == "L1" and sent.note is None and tree.positions([sent]) == [1] and not lost
        if first:
            lost.append(sent)
        return first

    tree.finish(0, lost=loses)
    assert lost
    assert tree.got == result_frames(tree, 0), "no host had to repeat anything"


def test_aggregation_is_idempotent_at_every_level() -> None:
    tree = SwitchedTree()
    for rank in ALL:
        tree.send(rank, 0)
        tree.send(rank, 0)
    twice = list(tree.under_way)
    tree.under_way.extend(twice)
    tree.settle()
    expected = result_frames(tree, 0)
    for rank in ALL:
        assert set(tree.got[rank]) == set(expected[rank])
        assert tree.got[rank][: len(expected[rank])] == expected[rank]
    tree.forget()
    tree.finish(1)
    assert tree.got == result_frames(tree, 1)


def test_results_leave_in_psn_order_though_they_came_in_another() -> None:
    tree = SwitchedTree()
    for rank in ALL:
        tree.send(rank, 0)
    up = [sent for sent in tree.under_way if sent.receiver == "S"]
    tree.under_way.clear()
    for sent in up:
        tree.arrive("S", tree.ports["S"][sent.sender], sent.frame)
    tree.under_way.reverse()
    notes = [sent for sent in tree.under_way if sent.note is not None]
    for note in notes:
        tree.under_way.remove(note)
    tree.under_way.extendleft(notes)
    while tree.under_way:
        sent = tree.under_way.popleft()
        if sent.receiver != "S":
            tree.arrive(sent.receiver, tree.ports[sent.receiver]["S"], sent.frame)
    assert tree.got == result_frames(tree, 0)


def test_a_gap_on_a_connection_that_ends_elsewhere_lets_one_later_result_through_there_once() -> None:
    tree = SwitchedTree()
    for rank in ALL:
        tree.send(rank, 0, *((0, 2, 3) if rank == 1 else ALL))
    tree.settle()
    assert tree.got == {
        0: [tree.result(3, 0, 0)],
        1: [tree.result(0, 0, 0)],
        2: [tree.result(1, 0, 0), tree.result(1, 0, 2)],
        3: [tree.result(2, 0, 0)],
    }
    tree.forget()
    tree.send(1, 0, 1, 2, 3)  # W3 sent a NAK, W2 went back
    tree.settle()
    assert tree.got[0] == tree.results(0, 1, 2, 3)[0]
    assert set(tree.got[2]) == set(tree.results(0, 1, 2, 3)[2])


def test_racks_whose_operations_differ_are_found_where_they_meet() -> None:
    tree = SwitchedTree()
    for rank in ALL:
        tree.send(rank, 0, op_index=9 if rank > 1 else 8)
    tree.settle()
    assert [(name, said.rule, said.rank) for name, said in tree.said if isinstance(said, RingFault)] == [
        ("S", "operations differ", 2)
    ]
    assert tree.got == {rank: [] for rank in ALL}, "nobody gets a result"


@software_only("it has no words for what differs")
def test_what_differs_is_told_in_words() -> None:
    tree = SwitchedTree()
    for rank in ALL:
        tree.send(rank, 0, op_index=9 if rank > 1 else 8)
    tree.settle()
    assert "rank 2 sent operation 9" in str(tree.said[0][1])


def test_a_middle_switch_adds_up_sums_and_hands_results_on() -> None:
    pods = (TreeSwitch("A", (TreeSwitch("L1", (0, 1)), TreeSwitch("L2", (2,)))), TreeSwitch("L3", (3,)))
    tree = SwitchedTree(TreeSwitch("S", pods))
    for serial in range(3):
        tree.forget()
        tree.finish(serial)
        assert tree.got == result_frames(tree, serial)
        for one, two in (("L1", "A"), ("L2", "A"), ("A", "S"), ("S", "A"), ("A", "L1"), ("A", "L2")):
            assert len(data_of(tree.between(one, two))) == 4


@software_only("no switch that only steers is one")
def test_a_switch_that_does_not_aggregate_sends_raw_packets_up_and_results_down() -> None:
    tree = SwitchedTree(
        TreeSwitch("S", (TreeSwitch("L1", (0, 1), aggregates=False), TreeSwitch("L2", (2, 3))))
    )
    tree.finish(0)
    raw = [RocePacket.decode_frame(sent.frame) for sent in tree.between("L1", "S")]
    assert sorted((packet.ip.src, packet.bth.psn) for packet in raw) == sorted(
        (ip(rank), (tree.hosts.psn0 + offset) & 0xFF_FFFF) for rank in (0, 1) for offset in range(4)
    )
    assert all(packet.opcode != Opcode.RC_SEND_ONLY for packet in raw)
    expected = {rank: set(frames) for rank, frames in result_frames(tree, 0).items()}
    assert {rank: set(frames) for rank, frames in tree.got.items()} == expected
    assert tree.count("L1")["steered"] == 8
