"""MLNet section 4, its trees: RACK, BINARY and what they add, by their definition."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.core.models.tree.latency_trees import UNKNOWN, latency_tree
from inaproto.core.models.tree.trees import (
    OverlayTree,
    direct_tree,
    heap_tree,
    planned_tree,
    rack_tree,
    shard_trees,
    topology_tree,
)
from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan
from inaproto.errors import Infeasible, LocalMisuse
from inaproto.wire.messages.models import NodeId

PS = NodeId(5000)


def nodes(*numbers: int) -> list[NodeId]:
    return [NodeId(number) for number in numbers]


def up_to(count: int) -> list[NodeId]:
    return nodes(*range(count))


# --- section 4: RACK


def test_section_4_rack_has_one_aggregator_in_each_rack_to_which_the_others_send() -> None:
    """128 racks of 8: d = 7 in the rack, and the server hears one node of each rack."""
    racks = [up_to(1024)[8 * rack : 8 * rack + 8] for rack in range(128)]
    order = [NodeId(node * 5 % 1024) for node in range(1024)]
    tree = rack_tree(PS, racks, order)
    assert len(tree.children(PS)) == 128
    assert tree.height() == 2
    for rack, aggregator in zip(racks, tree.children(PS), strict=True):
        assert aggregator == min(rack, key=order.index)
        assert sorted([aggregator, *tree.children(aggregator)]) == rack
        assert len(tree.children(aggregator)) == 7


def test_section_4_the_server_of_rack_hears_as_many_racks_as_hold_workers() -> None:
    tree = rack_tree(PS, [nodes(3, 1), [], nodes(7)], nodes(1, 7, 3))
    assert tree.below == ((NodeId(1), (NodeId(3),)), (PS, (NodeId(1), NodeId(7))))


def test_section_4_shared_rack_loads_one_server_of_a_rack_with_all_parameter_servers() -> None:
    racks, servers = [nodes(0, 1, 2), nodes(3, 4, 5)], nodes(900, 901, 902)
    orders = [nodes(0, 1, 2, 3, 4, 5), nodes(1, 2, 0, 4, 5, 3), nodes(2, 0, 1, 5, 3, 4)]

    def interior(trees: Sequence[OverlayTree]) -> list[list[NodeId]]:
        return [[node for node in tree.nodes if tree.children(node) and node != tree.root] for tree in trees]

    def build(root: NodeId, order: Sequence[NodeId]) -> OverlayTree:
        return rack_tree(root, racks, order)

    assert interior(shard_trees(servers, orders, build)) == [nodes(0, 3), nodes(1, 4), nodes(2, 5)]
    assert interior(shard_trees(servers, orders[:1], build, shared=True)) == [nodes(0, 3)] * 3
    with pytest.raises(LocalMisuse, match="3 servers, shared: 3 orders"):
        shard_trees(servers, orders, build, shared=True)


@pytest.mark.parametrize("order", [nodes(0, 1), nodes(0, 1, 1), nodes(0, 1, 4), nodes(0, 1, 2, 2)])
def test_an_order_for_racks_has_every_node_once(order: list[NodeId]) -> None:
    with pytest.raises(LocalMisuse, match="every node of them once"):
        rack_tree(PS, [nodes(0, 1), nodes(2)], order)
    with pytest.raises(LocalMisuse, match="each is in one rack"):
        rack_tree(PS, [nodes(0, 1), nodes(1)], nodes(0, 1))


# --- section 4: BINARY


def test_section_4_binary_is_a_heap_whose_first_two_are_children_of_the_server() -> None:
    order = nodes(5, 3, 8, 1, 9, 2, 7)
    tree = heap_tree(PS, order)
    assert tree.children(PS) == (5, 3)
    assert [tree.parent(order[position]) for position in range(2, 7)] == [
        order[(position - 2) // 2] for position in range(2, 7)
    ]
    assert tree.nodes == (PS, *order)
    assert tree.ancestors(NodeId(7)) == (8, 5, PS)
    assert tree.leaves == (1, 9, 2, 7)


@pytest.mark.parametrize(("count", "height"), [(0, 0), (1, 1), (2, 1), (3, 2), (6, 2), (7, 3), (800, 9)])
def test_section_4_binary_of_800_workers_is_nine_high(count: int, height: int) -> None:
    tree = heap_tree(PS, up_to(count))
    assert tree.height() == height
    assert tree.in_degree_max == min(count, 2)


@given(st.integers(0, 60), st.integers(1, 9))
def test_section_4_a_node_sends_at_most_d_copies(count: int, in_degree: int) -> None:
    tree = heap_tree(PS, up_to(count), in_degree=in_degree)
    assert tree.in_degree_max <= in_degree
    assert sorted(tree.nodes) == sorted([*up_to(count), PS])
    full = [node for node in tree.nodes if len(tree.children(node)) == in_degree]
    assert tree.nodes[: len(full)] == tuple(full), "a node has children only when those before it have all"


def test_an_in_degree_is_positive() -> None:
    with pytest.raises(LocalMisuse, match="1 or more"):
        heap_tree(PS, up_to(2), in_degree=0)


# --- direct, and networks of several levels


def test_section_3_2_direct_mode_is_a_tree_without_interior_nodes() -> None:
    tree = direct_tree(PS, up_to(5))
    assert tree.children(PS) == (0, 1, 2, 3, 4)
    assert (tree.height(), tree.in_degree_max) == (1, 5)
    assert direct_tree(PS, []).nodes == (PS,)


def test_a_topology_has_an_aggregator_for_each_of_its_parts() -> None:
    places = {NodeId(node): (f"pod {node // 4}", f"rack {node // 2}") for node in range(8)}
    tree = topology_tree(PS, places, nodes(1, 0, 2, 3, 6, 7, 4, 5))
    assert tree.children(PS) == (1, 6)
    assert tree.children(NodeId(1)) == (0, 2)  # its rack, then the other rack of its pod
    assert tree.children(NodeId(2)) == (3,)
    assert tree.children(NodeId(6)) == (7, 4)
    assert topology_tree(PS, {}, []).nodes == (PS,)
    with pytest.raises(LocalMisuse, match="one for each node"):
        topology_tree(PS, places, nodes(1, 0))
    with pytest.raises(LocalMisuse, match="all of one length"):
        topology_tree(PS, {NodeId(0): ("a",), NodeId(1): ("a", "b")}, nodes(0, 1))


# --- reduction plans


def plans(size: int) -> st.SearchStrategy[ReductionPlan]:
    def cut(ranks: list[int], draw: st.DrawFn) -> PlanList:
        found: list[int | PlanList] = []
        while ranks:
            take = draw(st.integers(1, len(ranks)))
            part, ranks = ranks[:take], ranks[take:]
            whole = take == 1 or (not found and not ranks)
            found.extend(part if whole else [cut(part, draw)])
        return tuple(found)

    return st.composite(lambda draw: ReductionPlan(cut(draw(st.permutations(range(size))), draw)))()


def folded(tree: OverlayTree, node: NodeId, inputs: Sequence[np.float32]) -> np.float32:
    """What a node sends up: its own first, then its children's, left to right."""
    parts = [folded(tree, child, inputs) for child in tree.children(node)]
    if node != PS:
        parts.insert(0, inputs[node])
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


@given(st.integers(1, 9).flatmap(plans), st.integers(0, 2**32 - 1))
def test_a_tree_of_a_plan_has_its_additions_bit_for_bit(plan: ReductionPlan, seed: int) -> None:
    inputs = np.random.default_rng(seed).normal(0, 1e3, plan.size).astype(np.float32)
    tree = planned_tree(PS, plan, up_to(plan.size))

    def reference(part: int | PlanList) -> np.float32:
        if isinstance(part, int):
            return np.float32(inputs[part])
        total = reference(part[0])
        for other in part[1:]:
            total = total + reference(other)
        return total

    assert folded(tree, PS, list(inputs)).tobytes() == reference(plan.children).tobytes()
    assert sorted(tree.nodes) == [*up_to(plan.size), PS]


@given(st.integers(0, 40), st.integers(1, 5))
def test_the_plan_of_a_tree_gives_that_tree(count: int, in_degree: int) -> None:
    if not count:
        return
    tree = heap_tree(PS, up_to(count), in_degree=in_degree)
    ranks = {node: int(node) for node in up_to(count)}
    assert planned_tree(PS, tree.plan(ranks), up_to(count)) == tree


def test_a_plan_of_racks_is_rack() -> None:
    plan = ReductionPlan(((0, 1, 2), (3, 4), (5,)))
    assert planned_tree(PS, plan, up_to(6)) == rack_tree(
        PS, [nodes(0, 1, 2), nodes(3, 4), nodes(5)], up_to(6)
    )


def test_a_node_without_a_worker_adds_nothing_of_its_own() -> None:
    tree = OverlayTree.of(PS, {PS: nodes(7), NodeId(7): nodes(1, 2)})
    assert tree.plan({NodeId(1): 0, NodeId(2): 1}).children == ((0, 1),)
    with pytest.raises(LocalMisuse, match="node 2 is a leaf without a worker"):
        tree.plan({NodeId(1): 0})
    with pytest.raises(LocalMisuse, match="node 3 has a rank"):
        tree.plan({NodeId(1): 0, NodeId(3): 1})
    with pytest.raises(LocalMisuse, match="of 3 ranks was given nodes"):
        planned_tree(PS, ReductionPlan.flat(3), nodes(1, 2, 2))


# --- what is no tree


@pytest.mark.parametrize(
    ("below", "why"),
    [
        (((5000, (1, 1)),), "the child of one node"),
        (((5000, (1, 5000)),), "the child of one node"),
        (((1, (2,)), (5000, (1, 2))), "the child of one node"),
        (((2, (3,)), (5000, (1,))), "from node 2 no way leads to the root"),
        (((2, (3,)), (3, (2,)), (5000, (1,))), "from node 3 no way leads to the root"),
        (((5000, ()),), "once, ascending"),
        (((5000, (1,)), (1, (2,))), "once, ascending"),
    ],
)
def test_what_is_no_tree_is_refused(below: tuple[tuple[NodeId, tuple[NodeId, ...]], ...], why: str) -> None:
    with pytest.raises(LocalMisuse, match=why):
        OverlayTree(PS, below)


def test_a_stranger_has_no_parent() -> None:
    tree = heap_tree(PS, up_to(3))
    assert tree.parent(PS) is None
    assert NodeId(2) in tree
    with pytest.raises(LocalMisuse, match="node 5 is not in the tree"):
        tree.parent(NodeId(5))
    assert list(tree.descendants(NodeId(0))) == [2]
    assert (tree.height(NodeId(0)), tree.height(NodeId(2))) == (1, 0)


# --- measured latency


def matrices(size: int) -> st.SearchStrategy[list[list[int]]]:
    pairs = list(itertools.combinations(range(size), 2))

    def made(lengths: list[int]) -> list[list[int]]:
        matrix = [[0] * size for _ in range(size)]
        for (a, b), length in zip(pairs, lengths, strict=True):
            matrix[a][b] = matrix[b][a] = length
        return matrix

    return st.lists(st.integers(1, 100), min_size=len(pairs), max_size=len(pairs)).map(made)


def ways_ns(
    tree: OverlayTree, nodes: Sequence[NodeId], round_trips_ns: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """Round trips of each node on its way to the root, added up, in the order of ``nodes``."""
    index = {node: number for number, node in enumerate(nodes)}
    found = []
    for node in nodes:
        way = [node, *tree.ancestors(node)]
        found.append(sum(round_trips_ns[index[a]][index[b]] for a, b in itertools.pairwise(way)))
    return tuple(found)


def best_way(matrix: list[list[int]], in_degree_max: int) -> int:
    """The longest way of the best of all trees."""
    size, best = len(matrix), 1 << 60
    for parents in itertools.product(*[[p for p in range(size) if p != node] for node in range(1, size)]):
        if any(parents.count(node) > in_degree_max for node in range(size)):
            continue
        longest = 0
        for node in range(1, size):
            at, way, steps = node, 0, 0
            while at and steps <= size:
                way, at, steps = way + matrix[at][parents[at - 1]], parents[at - 1], steps + 1
            longest = max(longest, way if not at else 1 << 60)
        best = min(best, longest)
    return best


@given(matrices(5), st.integers(1, 4))
def test_a_tree_of_measured_latency_is_bounded_and_never_better_than_the_best(
    matrix: list[list[int]], in_degree_max: int
) -> None:
    tree = latency_tree(up_to(5), matrix, in_degree_max=in_degree_max)
    assert isinstance(tree, OverlayTree)
    assert tree.in_degree_max <= in_degree_max
    assert sorted(tree.nodes) == up_to(5)
    assert max(ways_ns(tree, up_to(5), matrix)) >= best_way(matrix, in_degree_max)


@pytest.mark.parametrize("in_degree_max", [1, 2, 3])
def test_in_the_mean_a_tree_of_measured_latency_is_within_5_percent_of_the_best(in_degree_max: int) -> None:
    """Of five nodes in a plane; single ones are up to 1.7 times as long."""
    ratios = []
    for seed in range(60):
        points = np.random.default_rng(seed).integers(0, 100, (5, 2))
        matrix = [[int(np.abs(a - b).sum()) for b in points] for a in points]
        tree = latency_tree(up_to(5), matrix, in_degree_max=in_degree_max)
        assert isinstance(tree, OverlayTree)
        ratios.append(max(ways_ns(tree, up_to(5), matrix)) / best_way(matrix, in_degree_max))
    assert sum(ratios) / len(ratios) < 1.05
    assert max(ratios) < 2


@given(matrices(9))
def test_with_room_for_all_everybody_has_its_shortest_way(matrix: list[list[int]]) -> None:
    tree = latency_tree(up_to(9), matrix, in_degree_max=8)
    assert isinstance(tree, OverlayTree)
    shortest = [row[:] for row in matrix]
    for via, a, b in itertools.product(range(9), repeat=3):
        shortest[a][b] = min(shortest[a][b], shortest[a][via] + shortest[via][b])
    assert max(ways_ns(tree, up_to(9), matrix)) == max(shortest[0])


@given(matrices(12), st.integers(2, 4))
def test_exchanges_never_make_a_tree_worse(matrix: list[list[int]], in_degree_max: int) -> None:
    greedy = latency_tree(up_to(12), matrix, in_degree_max=in_degree_max, exchanges_max=0)
    tree = latency_tree(up_to(12), matrix, in_degree_max=in_degree_max)
    assert isinstance(greedy, OverlayTree)
    assert isinstance(tree, OverlayTree)
    assert max(ways_ns(tree, up_to(12), matrix)) <= max(ways_ns(greedy, up_to(12), matrix))
    assert latency_tree(up_to(12), matrix, in_degree_max=in_degree_max) == tree


def test_racks_that_are_near_become_subtrees() -> None:
    """Two racks of three, 10 us inside and 100 us across, the server in the first."""
    rack = [0, 0, 0, 1, 1, 1]
    matrix = [[0 if a == b else 10 if rack[a] == rack[b] else 100 for b in range(6)] for a in range(6)]
    tree = latency_tree(up_to(6), matrix, in_degree_max=3)
    assert isinstance(tree, OverlayTree)
    assert tree.children(NodeId(0)) == (1, 2, 3)
    assert sum(rack[node] != rack[tree.parent(node) or 0] for node in up_to(6)[1:]) <= 3


def test_what_was_not_measured_is_not_used() -> None:
    matrix = [[0, 5, UNKNOWN], [5, 0, 5], [UNKNOWN, 5, 0]]
    tree = latency_tree(up_to(3), matrix, in_degree_max=2)
    assert isinstance(tree, OverlayTree)
    assert tree.ancestors(NodeId(2)) == (1, 0)
    matrix[1][2] = matrix[2][1] = UNKNOWN
    lost = latency_tree(up_to(3), matrix, in_degree_max=2)
    assert isinstance(lost, Infeasible)
    assert str(lost) == "no tree reaches a node (node: 2, in_degree_max: 2)"


@pytest.mark.parametrize(
    ("members", "matrix", "in_degree_max", "why"),
    [
        (nodes(), [], 1, "nodes, each of them once"),
        (nodes(1, 1), [[0, 1], [1, 0]], 1, "nodes, each of them once"),
        (nodes(1), [[0]], 0, "in-degree of 1 or more"),
        (nodes(1, 2), [[0, 1]], 1, "2 rows of 2"),
        (nodes(1, 2), [[0, 1], [2, 0]], 1, "not one number"),
        (nodes(1, 2), [[0, -2], [-2, 0]], 1, "not one number"),
    ],
)
def test_what_is_no_matrix_is_refused(
    members: list[NodeId], matrix: list[list[int]], in_degree_max: int, why: str
) -> None:
    with pytest.raises(LocalMisuse, match=why):
        latency_tree(members, matrix, in_degree_max=in_degree_max)
