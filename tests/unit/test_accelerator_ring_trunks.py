"""Trunks beyond the fabric's own tree: they carry packets of rings along assigned trees, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.core.switch.accelerator import AcceleratorConfig, Action, FramesArrived, PortDown, PortUp
from inaproto.faults.announcement import announcement
from inaproto.units import PortId
from inaproto.wire.roce import Opcode
from inaproto.wire.trunk_hello import TrunkHello
from tests.unit.switched_ring import NOW, emitted, mac
from tests.unit.switched_tree import FIGURE_5, SwitchedTree
from tests.unit.test_accelerator_switch import arp, plain_write, tcp
from tests.unit.tree_records import STEERED, rules

ORDINARY = PortId(9)
"""Of each leaf, to the root of the fabric's own tree, which is not S."""
OF_NO_RING = "of no ring, on a trunk for rings"


class BesideTheOwnTree(SwitchedTree):
    """The ring's tree is not the fabric's: S is a further root, and each leaf has a trunk elsewhere."""

    def __init__(self, tree: TreeSwitch = FIGURE_5) -> None:
        self.ordinary: list[tuple[str, bytes]] = []
        """What leaves on the trunks of the fabric's own tree."""
        super().__init__(tree)
        for name in self.switches:
            if name != "S":
                self.switches[name].step(PortUp(ORDINARY), NOW)

    def config_of(self, name: str) -> AcceleratorConfig:
        trunks = frozenset(port for other, port in self.ports[name].items() if not other.isdigit())
        if name == "S":
            return AcceleratorConfig(ring_ports=trunks)
        return AcceleratorConfig(ring_ports=trunks, ports_up=trunks | {ORDINARY})

    def take(self, name: str, actions: list[Action]) -> None:
        frames = emitted(actions)
        self.ordinary += [(name, frame) for port, frame in frames if port == ORDINARY]
        on_tree = [action for action in actions if getattr(action, "port", None) != ORDINARY]
        super().take(name, on_tree)


@pytest.mark.parametrize("shape", [FIGURE_5, STEERED], ids=["summed", "steered"])
def test_a_ring_is_summed_along_further_trunks_alone(shape: TreeSwitch) -> None:
    tree = BesideTheOwnTree(shape)
    for serial in range(3):
        tree.finish(serial)
    for rank in range(4):
        expected = [frame for serial in range(3) for frame in tree.results(serial)[rank]]
        assert set(tree.got[rank]) == set(expected)
    assert tree.ordinary == []
    assert rules(tree) == []


PLANNED = TreeSwitch(
    "S",
    (
        TreeSwitch(
            "X", (0, TreeSwitch("Y", (1, 2)), TreeSwitch("Z", (3,), aggregates=False)), aggregates=False
        ),
        TreeSwitch("L", (4, TreeSwitch("W", (5,), aggregates=False))),
    ),
)
"""X passes on what Y adds up, and what Z's rank and its own send; L adds what comes to it by W."""


class AnyWay(BesideTheOwnTree):
    """All trunks lead up in the fabric, also those that the ring's tree goes down from its root."""

    is_beside = True


def test_sums_pass_switches_that_add_nothing_and_go_down_trunks_of_the_fabric() -> None:
    tree = AnyWay(PLANNED)
    for serial in range(3):
        tree.finish(serial)
    for rank in range(6):
        expected = [frame for serial in range(3) for frame in tree.results(serial)[rank]]
        assert set(tree.got[rank]) == set(expected), rank
    assert tree.ordinary == []
    assert rules(tree) == []
    assert tree.count("X").get("aggregated_in", 0) == 0
    assert tree.count("X")["steered"] > 0


class OverOrdinaryTrunks(AnyWay):
    """The ring's tree has trunks of the fabric's own, which has others between some of the hosts."""

    def config_of(self, name: str) -> AcceleratorConfig:
        return AcceleratorConfig(ports_up=super().config_of(name).ports_up)


def test_where_packets_of_such_a_ring_come_from_teaches_nothing_of_its_hosts() -> None:
    """Else ACKs for a rank would leave on a trunk that does not lead to it."""
    tree = OverOrdinaryTrunks(PLANNED)
    elsewhere = (("X", 3), ("L", 5), ("Z", 2), ("W", 4))
    """Ranks whose packets come to these switches on the ring's trunks, up or down."""
    for name, rank in elsewhere:
        tree.arrive(name, ORDINARY, announcement(mac(rank), bytes(4)).tobytes())
        tree.under_way.clear()
    tree.forget()
    tree.finish(0)
    assert [tree.switches[name].addresses[mac(rank)] for name, rank in elsewhere] == [ORDINARY] * 4
    assert all(set(tree.got[rank]) == set(tree.results(0)[rank]) for rank in range(6))


@pytest.mark.parametrize(
    "frame", [arp(0), tcp(0, 3), tcp(0, 9), plain_write(Opcode.RC_WRITE_ONLY), announcement(mac(0), bytes(4))]
)
def test_frames_of_no_ring_neither_leave_nor_enter_there(frame: bytes | np.ndarray) -> None:
    data = frame if isinstance(frame, bytes) else frame.tobytes()
    tree = BesideTheOwnTree()
    tree.from_host(0, data)
    assert tree.carried == []
    before = dict(tree.switches["L2"].addresses)
    tree.forget()
    tree.arrive("L2", tree.ports["L2"]["S"], data)
    tree.arrive("S", 0, data)
    assert (tree.carried, tree.ordinary[1:]) == ([], [])
    assert not any(tree.got.values())
    assert dict(tree.switches["L2"].addresses) == before, "nothing is learnt there"
    assert (tree.count("L2")[OF_NO_RING], tree.count("S")[OF_NO_RING]) == (1, 1)


def test_acknowledgements_go_along_the_own_tree() -> None:
    tree = BesideTheOwnTree()
    tree.finish(0)
    tree.forget()
    tree.from_host(2, tree.hosts.ack(1))
    assert [name for name, _ in tree.ordinary] == ["L2"]
    assert tree.carried == []


def test_greetings_between_switches_are_no_strays() -> None:
    tree = BesideTheOwnTree()
    hello = TrunkHello(mac=mac(7), switch="spine1", peer="leaf0", boot_id="b").encode()
    tree.arrive("L1", tree.ports["L1"]["S"], hello)
    assert OF_NO_RING not in tree.count("L1")


@pytest.mark.parametrize("offset", [0, 1], ids=["first", "middle"])
def test_packets_of_a_rank_never_come_from_above(offset: int) -> None:
    """Neither on the trunk of its tree nor on that of the fabric's."""
    tree = BesideTheOwnTree()
    frame = tree.hosts.message(0, 0)[offset]
    for port in (tree.ports["L1"]["S"], ORDINARY):
        tree.arrive("L1", port, frame)
    assert tree.count("L1")["not an input of this switch"] == 2
    assert tree.count("L1").get("aggregated_in", 0) == 0
    tree.finish(0)
    assert set(tree.got[1]) == set(tree.results(0)[1])


def test_results_never_leave_upwards_though_nobody_knows_where_their_receiver_is() -> None:
    tree = BesideTheOwnTree()
    for rank in range(4):
        tree.send(rank, 0)
    for port in (0, 1):
        tree.switches["L1"].step(PortDown(PortId(port)), NOW)
        tree.switches["L1"].step(PortUp(PortId(port)), NOW)
    tree.settle()
    assert tree.ordinary == []
    assert all(sent.packet.bth.dest_qp >> 23 for sent in tree.between("L1", "S")), "no host's connection"
    assert set(tree.got[2]) >= set(tree.results(0)[2])


def test_steered_results_go_down_by_address_where_no_port_is_known() -> None:
    tree = BesideTheOwnTree(STEERED)
    down = []
    for rank in range(4):
        tree.send(rank, 0)
    steering = tree.switches["X"]
    tree.settle(lambda sent: sent.receiver == "X" and not down.append(sent))  # type: ignore[func-returns-value]
    for port in (0, 1):
        steering.step(PortDown(PortId(port)), NOW)
        steering.step(PortUp(PortId(port)), NOW)
    tree.forget()
    tree.from_host(1, tcp(1, 0))  # shows where it is, not of which rank it is
    tree.ordinary.clear()
    before = tree.count("X")["bridged"]
    for sent in down:
        tree.arrive("X", tree.ports["X"]["S"], sent.frame)
    assert set(tree.got[1]) >= set(tree.results(0)[1])
    assert (tree.ordinary, tree.carried) == ([], [])
    assert tree.count("X")["bridged"] == before + len(down)


def test_a_further_trunk_that_is_down_costs_repeats() -> None:
    tree = BesideTheOwnTree()
    port = tree.ports["L1"]["S"]
    tree.switches["L1"].step(PortDown(port), NOW)
    tree.finish(0)
    assert tree.between("L1", "S") == []
    tree.switches["L1"].step(PortUp(port), NOW)
    tree.finish(0)
    for rank in range(4):
        assert set(tree.got[rank]) == set(tree.results(0)[rank])


def test_many_frames_at_once_are_counted_each() -> None:
    tree = BesideTheOwnTree()
    block = np.frombuffer(arp(0) * 3, np.uint8).reshape(3, -1)
    assert tree.switches["S"].step(FramesArrived(PortId(0), [block]), NOW) == []
    assert tree.count("S")[OF_NO_RING] == 3
