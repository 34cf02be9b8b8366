"""Links between switches, and switches that steer: what they pass, drop and survive."""

from __future__ import annotations

import numpy as np

from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.core.switch.accelerator import (
    Accelerator,
    FramesArrived,
    InstallRing,
    PortDown,
    PortUp,
    RemoveRing,
)
from inaproto.units import Frames, PortId
from tests.unit.switched_ring import NOW, mac
from tests.unit.switched_tree import FIGURE_5, Carried, SwitchedTree, data_of
from tests.unit.tree_records import (
    STEERED,
    first_up,
    rules,
)

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
    tagged = frame[:12] + b"\x88\xa8\x00\x05" + frame[12:]
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


def test_where_sums_passed_results_do_not_say_where_their_rank_is() -> None:
    """Rank 3 is below X, behind L: its results come to rank 0 from above, under its own address."""
    pod = TreeSwitch("X", (0, TreeSwitch("L", (2, 3))), aggregates=False)
    tree = SwitchedTree(TreeSwitch("S", (1, pod)))
    tree.finish(0)
    addresses, up = tree.switches["X"]._bridge.addresses, tree.ports["X"]["S"]
    assert [rank for rank in range(4) if addresses.get(mac(rank)) == up] == [1]
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
