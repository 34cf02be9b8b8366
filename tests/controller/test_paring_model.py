"""PARING section III: what a tree comes to, by definition, on the paper's own example (figure 1)."""

from __future__ import annotations

from fractions import Fraction

import pytest

from inaproto.errors import LocalMisuse
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.cluster.topology import FatTree, Quota
from inaproto_controller.planning.paring.model import (
    Accounting,
    PlacedTree,
    ProgrammableNetwork,
    Task,
    measure,
)

GB = 10**9


def network() -> ProgrammableNetwork:
    """A fat tree of degree 4: hosts 0-15, edge 16-23, aggregation 24-31, core 32-35."""
    topology = GraphTopology.of_fat_tree(FatTree.of_degree(4), Quota.SWITCH)
    return ProgrammableNetwork.uniform(topology, {node: Fraction(2) for node in range(16, 36)}, Fraction(2))


TASK = Task(7, GB, Fraction(1))


def test_section_2_gradients_straight_to_the_server() -> None:
    tree = PlacedTree(7, dict.fromkeys(range(7), 7))
    found = measure(network(), TASK, tree)
    assert (found.hops, found.rate, found.seconds(TASK)) == (34, Fraction(2, 7), Fraction(28))
    assert found.traffic_bytes(TASK) == 34 * GB


def test_section_2_the_best_tree_of_the_example() -> None:
    """PS h0; h1 to it, h2 and h3 by e0.1 and a0.1, h8 to h11 by e2.0, e2.1 and a2.1."""
    e01, e20, e21, a01, a21 = 17, 20, 21, 25, 29
    tree = PlacedTree(
        0,
        {
            1: 0,
            2: e01,
            3: e01,
            e01: a01,
            8: e20,
            9: e20,
            10: e21,
            11: e21,
            e20: a21,
            e21: a21,
            a21: a01,
            a01: 0,
        },
    )
    found = measure(network(), TASK, tree)
    assert (found.hops, found.rate, found.seconds(TASK)) == (15, Fraction(1), Fraction(8))
    assert found.loads == {0: 2, e01: 2, e20: 2, e21: 2, a01: 2, a21: 2}


def test_section_3_what_a_capacity_is_shared_by() -> None:
    edge = 16
    tree = PlacedTree(0, {1: edge, 2: edge, 3: edge, 4: edge, edge: 0})
    assert measure(network(), Task(4, GB, Fraction(9)), tree).rate == Fraction(1, 2)
    paper = Task(4, GB, Fraction(9), accounting=Accounting.PAPER)
    assert measure(network(), paper, tree).rate == Fraction(2, 3)
    inner = PlacedTree(0, {1: 0, 2: 1, 3: 1})
    assert measure(network(), Task(3, GB, Fraction(9), Fraction(2)), inner).loads == {0: 1, 1: 3}


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (PlacedTree(0, {1: 0}), "a tree of 1 workers for a task of 7"),
        (PlacedTree(20, {1: 20}), "cannot be the parameter server"),
        (
            PlacedTree(0, {**dict.fromkeys(range(1, 8), 0), 16: 0}),
            "switch-1-0 is in the tree and adds nothing up",
        ),
        (PlacedTree(0, {**dict.fromkeys(range(1, 7), 0), 7: 1}), "host-1 is to add up"),
        (PlacedTree(0, {**dict.fromkeys(range(1, 8), 16), 16: 17, 17: 16}), "host-1 does not lead"),
    ],
    ids=["few", "switch", "idle", "leaf", "circle"],
)
def test_what_is_no_tree_of_a_task(tree: PlacedTree, words: str) -> None:
    with pytest.raises(LocalMisuse, match=words):
        measure(network(), TASK, tree)
