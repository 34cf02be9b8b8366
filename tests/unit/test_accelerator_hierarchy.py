"""A switch of a tree beyond the paper's rules: its rings, and what it takes as their inputs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.switch.accelerator import (
    Accelerator,
    AcceleratorConfig,
    InstallRing,
    PortDown,
    PortUp,
    RemoveRing,
    RingRefused,
)
from inaproto.core.switch.aggregator import bytes_needed
from inaproto.core.switch.tree.translation import translations
from inaproto.wire.ina_header import FLAG_RESULT
from tests.accelerators import EACH_ACCELERATOR_OF_TREES, software_only
from tests.unit.switched_ring import NOW, mac, ring_of
from tests.unit.switched_tree import SwitchedTree
from tests.unit.tree_records import (
    STEERED,
    changed_ina,
    first_up,
    note_of,
    results_for_l1,
    rules,
    send_note,
)

pytestmark = EACH_ACCELERATOR_OF_TREES
STEERS = "no switch that only steers is one"

# -- rings -----------------------------------------------------------------------------------------


@software_only("its memory is not lent by the byte")
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


@software_only(STEERS)
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


@software_only(STEERS)
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


@software_only(STEERS)
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


@pytest.mark.parametrize("packet", [0, 1], ids=["first", "middle"])
def test_sums_must_come_on_the_trunk_to_their_switch(packet: int) -> None:
    """Also the first one, which has the key: another trunk is not that of its tree."""
    tree = SwitchedTree()
    up = first_up(tree)
    before = tree.count("S").get("aggregated_in", 0)
    tree.arrive("S", 1, up[packet].frame)
    assert rules(tree) == [("S", "not from where its switch is")]
    tree.arrive("S", 0, *(sent.frame for sent in up))
    assert tree.count("S")["aggregated_in"] > before
    assert rules(tree) == [("S", "not from where its switch is")], "the right ones are taken still"


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
