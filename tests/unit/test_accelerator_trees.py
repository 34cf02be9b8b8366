"""What an accelerator does alike for rings of one switch, of several, and for those that it steers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.core.switch.accelerator import (
    Accelerator,
    AcceleratorConfig,
    Event,
    FramesArrived,
    InstallRing,
    PortDown,
    PortUp,
    RemoveRing,
)
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.units import PortId
from tests.unit.switched_ring import NOW, SwitchedRing, block, by_port, emitted, mac
from tests.unit.switched_tree import Carried, SwitchedTree

STEERED = TreeSwitch("S", (TreeSwitch("X", (0, 1), aggregates=False), TreeSwitch("L", (2, 3))))
PLAIN_QP = 0x999
"""Of a connection that belongs to no ring."""

# -- addresses -------------------------------------------------------------------------------------

FRAMES: dict[str, Callable[[SwitchedRing, int], list[bytes]]] = {
    "acknowledgement": lambda hosts, _: [hosts.ack(hosts.spec.size - 1)],
    "acknowledgements": lambda hosts, _: [hosts.ack(hosts.spec.size - 1)] * 2,
    "first packet": lambda hosts, serial: [hosts.packet(0, serial, 0)],
    "first packet twice": lambda hosts, serial: [hosts.packet(0, serial, 0)] * 2,
    "other RoCE": lambda hosts, serial: [hosts.packet(0, serial, 1, dest_qp=PLAIN_QP)],
}
"""What rank 0's host sends, by message, as one block."""


def told_by(accelerator: Accelerator, port: int, *blocks: list[bytes]) -> list[dict[bytes, int]]:
    """Addresses at the port that are known after each block; before the first none are."""
    accelerator.step(PortDown(PortId(port)), NOW)
    accelerator.step(PortUp(PortId(port)), NOW)
    known = []
    for frames in blocks:
        accelerator.step(FramesArrived(PortId(port), [block(*frames)]), NOW)
        known.append({address: at for address, at in accelerator._bridge.addresses.items() if at == port})
    return known


def from_elsewhere(frames: list[bytes]) -> list[bytes]:
    """With a damaged Ethernet source address, which no check of a RoCE packet covers."""
    return [frame[:6] + mac(9) + frame[12:] for frame in frames]


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("tree", [None, "L1", "X"], ids=["one switch", "leaf of a tree", "steering"])
def test_every_kind_of_packet_tells_where_its_host_is_and_a_damaged_address_does_not(
    kind: str, tree: str | None
) -> None:
    if tree is None:
        hosts = SwitchedRing(4)
        accelerator = hosts.accelerator
    else:
        several = SwitchedTree(STEERED) if tree == "X" else SwitchedTree()
        hosts, accelerator = several.hosts, several.switches[tree]
    frames = FRAMES[kind]
    assert told_by(accelerator, 0, frames(hosts, 0), from_elsewhere(frames(hosts, 1))) == [{mac(0): 0}] * 2


def test_results_from_above_tell_a_steering_switch_where_their_rank_is() -> None:
    tree = SwitchedTree(STEERED)
    above = int(tree.ports["X"]["S"])
    first, second = ([tree.result(3, serial, 1)] for serial in range(2))
    told = told_by(tree.switches["X"], above, first, from_elsewhere(second))
    assert told == [{mac(3): above}] * 2


# -- several rings, several runs -------------------------------------------------------------------


def test_a_ring_that_failed_does_not_hold_up_another_of_the_same_step() -> None:
    ring = SwitchedRing(2)
    flows = tuple(replace(flow, dst_qp=flow.dst_qp + 0x1000) for flow in ring.spec.flows)
    assert ring.accelerator.step(InstallRing(replace(ring.spec, ring_id=8, flows=flows)), NOW) == []
    ring.send(0, 0)
    ring.send(1, 0, signature=0x6161)
    assert ring.accelerator.view().rings[7]["failed"]

    def of_ring_8(rank: int) -> list[bytes]:
        return ring.message(rank, 0, ring_id=8, dest_qp=flows[rank].dst_qp)

    ring.arrive(1, *of_ring_8(1))
    after_a_failed_one = ring.arrive(0, ring.packet(0, 0, 1), *of_ring_8(0))
    assert by_port(after_a_failed_one) == {
        (rank + 1) % 2: [
            ring.result(rank, 0, offset, ring_id=8, dest_qp=flows[rank].dst_qp) for offset in range(4)
        ]
        for rank in range(2)
    }


def test_of_a_block_a_switch_steers_what_belongs_to_the_ring_and_bridges_the_rest() -> None:
    tree = SwitchedTree(STEERED)
    mine, other = tree.hosts.packet(0, 0, 1), tree.hosts.packet(0, 0, 1, dest_qp=PLAIN_QP)
    tree.take("X", tree.switches["X"].step(FramesArrived(PortId(0), [block(mine, other)]), NOW))
    assert [sent.frame for sent in tree.between("X", "S")] == [mine]
    assert tree.got[1] == [other]


# -- steering --------------------------------------------------------------------------------------


def test_steered_packets_are_counted_and_so_are_the_results_that_come_back() -> None:
    tree = SwitchedTree(STEERED)
    before = tree.count("X")["bridged"]
    for serial in range(2):
        tree.finish(serial)
    assert tree.count("X")["steered"] == 16, "two messages of two ranks"
    assert tree.count("X")["bridged"] == before + len(tree.between("S", "X"))


def test_results_for_a_host_that_nobody_knows_go_everywhere_but_back() -> None:
    tree = SwitchedTree(STEERED)
    down: list[Carried] = []

    def held(sent: Carried) -> bool:
        if (sent.sender, sent.receiver) == ("S", "X"):
            down.append(sent)
            return True
        return False

    tree.finish(0, held)
    tree.forget()
    for port in (0, 1):
        tree.switches["X"].step(PortDown(PortId(port)), NOW)
        tree.switches["X"].step(PortUp(PortId(port)), NOW)
    tree.arrive("X", tree.ports["X"]["S"], *(sent.frame for sent in down))

    def by_addresses(frames: list[bytes]) -> list[bytes]:
        return sorted(frames, key=lambda frame: frame[:12])

    assert tree.got[0] == tree.got[1]
    assert by_addresses(tree.got[0]) == by_addresses([sent.frame for sent in down]) != []
    assert tree.carried == []


# -- rings that end --------------------------------------------------------------------------------


def test_connections_that_end_again_are_the_latest_that_ended() -> None:
    """What makes room is what ended first: here the connections of ring 8, not those of the leaf's ring 7."""
    tree, two = SwitchedTree(), SwitchedRing(2)
    leaf = Accelerator(AcceleratorConfig(retired_max=7))  # four of the ring, one to the switch above, two

    def other(number: int) -> RingSpec:
        flows = tuple(replace(flow, dst_qp=flow.dst_qp + 0x1000 * number) for flow in two.spec.flows)
        return replace(two.spec, ring_id=number, flows=flows)

    def passes(port: int, frame: bytes) -> bool:
        return bool(emitted(leaf.step(FramesArrived(PortId(port), [block(frame)]), NOW)))

    for port in (0, 1, 2):
        leaf.step(PortUp(PortId(port)), NOW)
    spec = tree.specs()["L1"]
    events: list[Event] = [InstallRing(spec), InstallRing(other(8)), InstallRing(other(9))]
    events += [RemoveRing(7), RemoveRing(8), InstallRing(spec), RemoveRing(7), RemoveRing(9)]
    for event in events:
        assert leaf.step(event, NOW) == []
    of_ring_8 = [two.packet(rank, 0, 1, dest_qp=other(8).flows[rank].dst_qp) for rank in range(2)]
    of_ring_7 = [tree.hosts.packet(rank, 0, 1) for rank in range(4)]
    assert [passes(rank, frame) for rank, frame in enumerate(of_ring_8)] == [True, True]
    assert not any(passes(0, frame) for frame in of_ring_7)
