"""PARING Algorithm 1: idle servers, programmable switches, and the links between any two of them."""

from __future__ import annotations

from fractions import Fraction

import networkx as nx
import pytest

from inaproto.errors import ConfigError, LocalMisuse
from inaproto_controller.cluster.graph_topology import GraphLink, GraphSwitch, GraphTopology
from inaproto_controller.cluster.topology import FatTree, Quota
from inaproto_controller.planning.paring.fat_tree_names import fat_tree_network, switch_name, switches_named
from inaproto_controller.planning.paring.logical_graph import LogicalGraph
from inaproto_controller.planning.paring.model import ProgrammableNetwork, Task
from inaproto_controller.planning.paring.rates import best_rate
from tests.controller.paring_networks import random_network

TWO = Fraction(2)


def servers(degree: int) -> int:
    return degree**3 // 4


@pytest.mark.parametrize("degree", [2, 4, 6, 8])
def test_names_of_a_fat_tree_say_where_a_switch_is(degree: int) -> None:
    """Each name's links, from the definition in section V: edge to servers, edge to aggregation, columns."""
    half, topology = degree // 2, GraphTopology.of_fat_tree(FatTree.of_degree(degree), Quota.SWITCH)
    linked = {frozenset((link.one, link.other)) for link in topology.links}
    one = {name: switches_named(degree, name)[0] for name in _all_names(degree)}
    wanted = set()
    for pod in range(degree):
        for place in range(half):
            first = (pod * half + place) * half
            wanted |= {frozenset((server, one[f"e{pod}.{place}"])) for server in range(first, first + half)}
            wanted |= {frozenset((one[f"e{pod}.{other}"], one[f"a{pod}.{place}"])) for other in range(half)}
    for core in range(half * half):
        wanted |= {frozenset((one[f"c{core}"], one[f"a{pod}.{core // half}"])) for pod in range(degree)}
    assert linked == wanted
    assert [switch_name(degree, node) for node in one.values()] == list(one)
    assert switches_named(degree, "e*.* a*.* c*") == tuple(range(servers(degree), topology.nodes))


def _all_names(degree: int) -> list[str]:
    half = degree // 2
    below = [f"{kind}{pod}.{place}" for kind in "ea" for pod in range(degree) for place in range(half)]
    return below + [f"c{core}" for core in range(half * half)]


@pytest.mark.parametrize("name", ["e4.0", "e0.2", "a0", "c4", "x1.1", "e0.-1", "c1.1"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        switches_named(4, name)


@pytest.mark.parametrize("node", [15, 36])
def test_nodes_without_a_name(node: int) -> None:
    with pytest.raises(ConfigError, match=f"node {node}"):
        switch_name(4, node)


@pytest.mark.parametrize(("degree", "servers", "switches"), [(4, 16, 20), (6, 54, 45), (16, 1024, 320)])
def test_sizes_of_fat_trees(degree: int, servers: int, switches: int) -> None:
    graph = LogicalGraph.of(fat_tree_network(degree, "e*.* a*.* c*", capacity=TWO))
    assert (graph.servers, len(graph.switches)) == (servers, switches)


def test_capacities_by_name() -> None:
    network = fat_tree_network(4, {"e0.*": TWO, "c1": None}, capacity=TWO, server=Fraction(5))
    assert network.programmable == (16, 17, 34)
    assert [network.capacities[node] for node in (0, 15, 16, 18, 34)] == [5, 5, 2, 0, None]


def test_section_3_b_distances_of_a_fat_tree() -> None:
    """By the closed form: servers, edge, aggregation and core switches near and far."""
    graph = LogicalGraph.of(fat_tree_network(6, "e*.* a*.* c*", capacity=TWO))
    near = dict(
        zip(("e", "a", "c"), (switches_named(6, name)[0] for name in ("e0.0", "a0.0", "c0")), strict=True)
    )
    far = {name: switches_named(6, name)[0] for name in ("e0.1", "e1.0", "a0.1", "a1.0", "a1.1", "c1", "c3")}
    assert [graph.cost(0, server) for server in (0, 1, 3, 9)] == [0, 2, 4, 6]
    assert [graph.cost(0, node) for node in (near["e"], far["e0.1"], far["e1.0"])] == [1, 3, 5]
    assert [graph.cost(0, node) for node in (near["a"], far["a0.1"], far["a1.0"])] == [2, 2, 4]
    assert [graph.cost(node, 0) for node in (near["c"], far["c3"])] == [3, 3]
    assert [graph.cost(near["e"], far[name]) for name in ("e0.1", "e1.0")] == [2, 4]
    assert [graph.cost(far["a0.1"], far[name]) for name in ("e0.1", "e1.0", "a1.1", "a1.0")] == [1, 3, 2, 4]
    assert [graph.cost(near["a"], node) for node in (near["c"], far["c3"])] == [1, 3]
    assert [graph.cost(near["c"], far[name]) for name in ("c1", "c3")] == [2, 4]
    assert graph.cost(near["e"], near["c"]) == 2


@pytest.mark.parametrize("seed", range(6))
def test_section_3_b_distances_are_those_of_all_the_network(seed: int) -> None:
    network = random_network(seed)
    topology = network.topology
    hosts, busy = topology.hosts, {1, 4}
    graph = LogicalGraph.of(network, busy)
    assert sorted(node for rack in graph.racks for node in rack) == [0, 2, 3, 5, 6, 7]
    assert [rack[0] for rack in graph.racks] == sorted(rack[0] for rack in graph.racks)
    assert graph.switches == network.programmable
    shortest = nx.DiGraph()
    for link in topology.links:
        for one, other in ((link.one, link.other), (link.other, link.one)):
            if one >= topology.hosts:
                shortest.add_edge(one, other)
            else:
                shortest.add_edge(("from", one), other)  # servers pass nothing on
    vertices = list(graph.place_of)
    for one in vertices:
        ways = nx.single_source_shortest_path_length(shortest, one if one >= hosts else ("from", one))
        for other in vertices:
            if one != other:
                assert graph.cost(one, other) == ways[other] == network.hops(one, other)
    for rack in graph.racks:
        assert len({network.homes[server] for server in rack}) == 1


def test_a_switch_that_no_server_reaches_is_left_out() -> None:
    topology = of_links(2, 2, [(0, 2), (1, 2)])
    network = ProgrammableNetwork.uniform(topology, {2: TWO, 3: TWO}, TWO)
    graph = LogicalGraph.of(network)
    assert graph.switches == (2,)
    assert graph.apart is None


def of_links(
    hosts: int, switches: int, links: list[tuple[int, int]], *, may_be_apart: bool = False
) -> GraphTopology:
    names = tuple(f"h{host}" for host in range(hosts)), tuple(f"s{number}" for number in range(switches))
    return GraphTopology(
        names[0],
        tuple(map(GraphSwitch, names[1])),
        tuple(GraphLink(*link) for link in links),
        may_be_apart=may_be_apart,
    )


def test_of_two_planes_that_with_the_most_switches_is_taken() -> None:
    """h0 and h1 are linked to s0 of one plane, and to s1, s2 - s3 of the other."""
    topology = of_links(2, 4, [(0, 2), (1, 2), (0, 3), (1, 4), (3, 5), (4, 5)])
    graph = LogicalGraph.of(ProgrammableNetwork.uniform(topology, dict.fromkeys(range(2, 6), TWO), TWO))
    assert graph.switches == (3, 4, 5)
    graph = LogicalGraph.of(ProgrammableNetwork.uniform(topology, {2: TWO, 5: TWO}, TWO))
    assert graph.switches == (2,)
    assert graph.cost(0, 1) == 2


def test_switches_are_those_that_all_idle_servers_reach() -> None:
    """s1 is out of the reach of h1, and h2 of that of h1, though h0 reaches them all."""
    topology = of_links(3, 2, [(0, 3), (0, 4), (1, 3), (2, 4)], may_be_apart=True)
    network = ProgrammableNetwork.uniform(topology, {3: TWO, 4: TWO}, TWO)
    assert LogicalGraph.of(network, [2]).switches == (3,)
    assert LogicalGraph.of(network, [2]).apart is None
    assert LogicalGraph.of(network).apart == (1, 2)
    found = best_rate(network, Task(2, 1, TWO))
    assert str(found) == "no path leads from an idle server to another (from: h1, to: h2)"


def test_no_idle_servers_and_no_programmable_switches() -> None:
    network = fat_tree_network(2, "", capacity=TWO)
    assert LogicalGraph.of(network).switches == ()
    assert LogicalGraph.of(network).rack_to_switch.shape == (2, 0)
    graph = LogicalGraph.of(network, range(2))
    assert (graph.racks, graph.servers, graph.apart) == ((), 0, None)


def test_only_servers_are_busy() -> None:
    with pytest.raises(LocalMisuse, match="node 16 is no server"):
        LogicalGraph.of(fat_tree_network(4, "", capacity=TWO), [16])
