"""What a switch of a tree sets up for a ring: rows, links and ways to hosts, whatever the tree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.core.switch.accelerator import PortDown, PortUp
from inaproto.core.switch.aggregator import AggregatorArray
from inaproto.core.switch.lookup_table import LookupTable
from inaproto.core.switch.tree.ring import TreeFlow, TreeRing, install_tree
from inaproto.core.switch.tree.translation import base_header, inward
from inaproto.errors import InvariantBroken
from inaproto.units import PortId
from tests.unit.switched_ring import NOW, mac, ring_of
from tests.unit.switched_tree import SwitchedTree, addresses_of

INTERLEAVED = TreeSwitch("S", (TreeSwitch("L1", (0, 2, 4)), TreeSwitch("L2", (1, 3, 5))))
"""Every connection begins in one rack and ends in the other."""
SHUFFLED = TreeSwitch("S", (TreeSwitch("L1", (3, 0, 2, 1)), TreeSwitch("L2", (4, 5))))
BETWEEN = TreeSwitch("S", (0, 1, TreeSwitch("L", (2, 3, 4)), 5, 6, 7, TreeSwitch("M", (8,)), 9))
"""Hosts at the root, on both sides of its switches."""


def installed(tree: TreeSwitch, name: str) -> tuple[TreeRing, LookupTable]:
    spec = SwitchedTree(tree).specs()[name]
    assert spec.role is not None
    table = LookupTable()
    return install_tree(spec, spec.role, table), table


@pytest.mark.parametrize("tree", [INTERLEAVED, SHUFFLED, BETWEEN], ids=["interleaved", "shuffled", "between"])
def test_every_rank_gets_every_result_on_its_own_connection(tree: TreeSwitch) -> None:
    switched = SwitchedTree(tree)
    for serial in range(6):
        switched.forget()
        switched.finish(serial)
        assert switched.got == switched.results(serial)
    assert switched.said == []


def test_results_go_where_the_receiver_sends_from_whatever_the_address_table_says() -> None:
    tree = SwitchedTree(SHUFFLED)
    for rank in range(6):
        tree.send(rank, 0)
    broadcast = b"\xff" * 6
    tree.from_host(3, broadcast + mac(0) + bytes(48))
    assert tree.switches["L1"]._bridge.addresses[mac(0)] == tree.ports["L1"]["3"]
    tree.settle()
    results = {
        rank: [frame for frame in frames if frame[:6] != broadcast] for rank, frames in tree.got.items()
    }
    assert results == tree.results(0)


def test_results_for_a_host_that_is_not_found_never_go_to_the_switch_above() -> None:
    """Its link was down since it sent, so its address is forgotten: they go to the hosts' ports alone."""
    tree = SwitchedTree(SHUFFLED)
    tree.send(0, 0)
    port = tree.ports["L1"]["0"]
    tree.switches["L1"].step(PortDown(port), NOW)
    tree.switches["L1"].step(PortUp(port), NOW)
    for rank in range(1, 6):
        tree.send(rank, 0)
    tree.settle()
    assert set(tree.got[0]) >= set(tree.results(0)[0])
    spine = addresses_of(SHUFFLED)["S"].mac
    assert {sent.packet.eth.dst for sent in tree.between("L1", "S")} == {spine}


# --- what is set up


def test_every_connection_knows_the_ethernet_addresses_of_its_ends() -> None:
    ring, _ = installed(BETWEEN, "L")
    switches = addresses_of(BETWEEN)
    known = {flow.spec.connection: (flow.src_mac, flow.dst_mac) for flow in ring.flows}
    assert ring.parent is not None
    from_above = known.pop(inward(ring.parent.connection))
    assert from_above == (switches["S"].mac, switches["L"].mac)
    assert list(known.values()) == [(mac(rank), mac((rank + 1) % 10)) for rank in range(10)]
    below = [flow for flow in installed(BETWEEN, "S")[0].flows if isinstance(flow, TreeFlow) and flow.below]
    assert [(flow.src_mac, flow.dst_mac) for flow in below] == [
        (switches[name].mac, switches["S"].mac) for name in ("L", "M")
    ]


def test_rows_are_those_of_inputs_then_learnt_connections_then_links() -> None:
    ring, table = installed(INTERLEAVED, "L1")
    by_rank = {flow.spec.rank: flow for flow in ring.flows if flow is not ring.from_parent}
    assert [by_rank[rank].row for rank in (0, 2, 4)] == [0, 1, 2]
    assert {rank: flow.row for rank, flow in ring.learnt.items()} == {1: 3, 3: 4, 5: 5}
    assert ring.parent is not None
    assert ring.parent.row == 6
    assert len(ring.tree_array.regions[0].header) == 7
    assert ring.delivered == []
    assert len(table) == 3, "nothing but inputs can be found in it"
    assert all(by_rank[rank].spec.connection in table for rank in (0, 2, 4))


def test_rows_of_a_root_with_hosts_and_switches() -> None:
    ring, table = installed(BETWEEN, "S")
    assert [flow.row for flow in ring.delivered] == [0, 3, 4, 7], "of ranks 0, 5, 6 and 9"
    assert {rank: flow.row for rank, flow in ring.learnt.items()} == {4: 8, 8: 9}
    assert [(link.connection.peer, link.row) for link in ring.children] == [("L", 10), ("M", 11)]
    assert (ring.parent, ring.from_parent) == (None, None)
    assert len(ring.tree_array.regions[0].header) == 12
    below = [flow for flow in ring.flows if isinstance(flow, TreeFlow) and flow.below]
    assert [(flow.row, flow.link) for flow in below] == [(2, ring.children[0]), (6, ring.children[1])]
    assert [flow.spec.connection for flow in below] == [inward(link.connection) for link in ring.children]
    assert len(table) == 8


@pytest.mark.parametrize(
    ("tree", "name", "groups"),
    [
        (BETWEEN, "S", [((0, 1), [0]), ((3, 5), [5, 6]), ((7, 8), [9])]),
        (SHUFFLED, "L1", [((1, 4), [0, 2, 1])]),
        (INTERLEAVED, "L1", []),
    ],
)
def test_connections_delivered_here_are_grouped_by_rows_that_follow_each_other(
    tree: TreeSwitch, name: str, groups: list[tuple[tuple[int, int], list[int]]]
) -> None:
    ring, _ = installed(tree, name)
    assert [((rows.start, rows.stop), [flow.spec.rank for flow in flows]) for rows, flows in ring.groups] == (
        groups
    )


def test_a_connection_delivered_here_knows_that_of_its_receiver() -> None:
    ring, _ = installed(SHUFFLED, "L1")
    delivered = [*ring.delivered, *ring.learnt.values()]
    assert {flow.spec.rank: flow.successor.spec.rank for flow in delivered if flow.successor} == {
        0: 1,
        1: 2,
        2: 3,
        5: 0,
    }
    assert [flow.spec.rank for flow in ring.told] == [3]
    assert ring.told[0].successor is None


def of_ranks(ring: TreeRing) -> list[TreeFlow]:
    return [flow for flow in ring.flows if isinstance(flow, TreeFlow) and flow is not ring.from_parent]


def test_connections_of_ranks_are_barred_from_the_port_to_the_switch_above() -> None:
    leaf, _ = installed(SHUFFLED, "L1")
    assert {flow.barred for flow in of_ranks(leaf)} == {frozenset({4})}
    root, _ = installed(BETWEEN, "S")
    assert {flow.barred for flow in of_ranks(root)} == {frozenset()}


def test_links_have_the_headers_of_what_leaves_on_them() -> None:
    ring, _ = installed(SHUFFLED, "L1")
    assert ring.parent is not None
    assert ring.parent.base == base_header(ring.parent.connection)
    assert ring.parent.port == PortId(4)
    assert ring.from_parent is not None
    assert ring.from_parent.spec.connection == inward(ring.parent.connection)
    assert ring.note_links == {3: ring.parent}


def test_a_ring_of_one_switch_has_no_aggregators_of_a_tree() -> None:
    ring, _ = installed(SHUFFLED, "L1")
    spec = replace(ring_of(), ring_id=31)
    plain = TreeRing(spec, AggregatorArray(spec), [])
    with pytest.raises(InvariantBroken, match=r"^ring 31 has no aggregators of a tree$"):
        _ = plain.tree_array
    assert ring.tree_array is ring.array
