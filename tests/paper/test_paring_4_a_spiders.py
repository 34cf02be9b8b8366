"""PARING Algorithm 4: a minimum spider is a star, at the cost of the paper's minimum-cost flow."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest

from inaproto.errors import LocalMisuse
from inaproto_controller.cluster.graph_topology import GraphLink, GraphSwitch, GraphTopology
from inaproto_controller.planning.paring.fat_tree_names import switches_named
from inaproto_controller.planning.paring.logical_graph import LogicalGraph
from inaproto_controller.planning.paring.model import Node, PlacedTree, ProgrammableNetwork, Task
from inaproto_controller.planning.paring.spiders.flows import FlowSpiders
from inaproto_controller.planning.paring.spiders.printed import plan_printed
from inaproto_controller.planning.paring.spiders.stars import Cost, Ground, Spider, StarSpiders
from tests.controller.paring_draws import irregular_network, masked


def drawn_ground(seed: int) -> Ground:
    """A tree that has grown at random, some of its vertices full, and fees on half of the switches."""
    draw = np.random.default_rng(seed)
    graph = LogicalGraph.of(irregular_network(seed))
    fees: dict[Node, Cost] = {
        switch: Fraction(int(draw.integers(0, 13)), 4) for switch in graph.switches if draw.integers(2)
    }
    ground = Ground(graph, graph.racks[0][0], fees)
    servers = sorted(ground.free)
    for foot in draw.choice(servers, len(servers) // 3, replace=False):
        ground.joins(Spider(ground.graph.racks[0][0], (int(foot),), None, 0))
        if draw.integers(2):
            ground.opens(int(foot))
    for switch in graph.switches:
        if draw.integers(4) == 0:
            ground.joins(Spider(switch, (), None, 0))
            ground.opens(switch)
    if draw.integers(2):
        ground.closes(graph.racks[0][0])
    return ground


@dataclass
class Both:
    """Stars, each compared with the flow."""

    ground: Ground
    flow: FlowSpiders = field(init=False)
    star: StarSpiders = field(init=False)

    def __post_init__(self) -> None:
        self.flow, self.star = FlowSpiders(self.ground), StarSpiders(self.ground)

    def costs(self, centre: Node, feet_max: int) -> list[Cost]:
        costs = self.star.costs(centre, feet_max)
        assert self.flow.costs(centre, feet_max) == costs
        for feet, cost in enumerate(costs, start=1):
            spider = self.star.spider(centre, feet)
            assert spider == self.flow.spider(centre, feet)
            assert (spider.cost, len(spider.feet), len(set(spider.feet))) == (cost, feet, feet)
        return costs

    def spider(self, centre: Node, feet: int) -> Spider:
        return self.star.spider(centre, feet)


@pytest.mark.parametrize("seed", range(28))
def test_a_star_costs_what_the_flow_costs(seed: int) -> None:
    draw, ground = np.random.default_rng([seed, 2]), drawn_ground(seed)
    both = Both(ground)
    centres = sorted(ground.free | ground.open | set(ground.graph.switches))
    for centre in draw.choice(centres, min(4, len(centres)), replace=False):
        both.costs(int(centre), 5)


def test_the_printed_network_has_the_same_flows() -> None:
    """Virtual vertices on edges (line 2 of Algorithm 3) and legs over servers: none is cheaper by them."""
    graph = LogicalGraph.of(masked(4, "e0.0 a1.0 c2"), range(4, 12))
    ground = Ground(graph, 0, {graph.switches[0]: Fraction(1, 2)})
    printed, plain = FlowSpiders(ground, is_as_printed=True), FlowSpiders(ground)
    for centre in (0, 2, *graph.switches):
        assert printed.costs(centre, 3) == plain.costs(centre, 3) == StarSpiders(ground).costs(centre, 3)
        assert printed.spider(centre, 3) == plain.spider(centre, 3)
    assert printed.flows == plain.flows == 15


def test_servers_pass_nothing_on() -> None:
    """Departure: over h2, which has two homes, s1 is 3 links from the PS; but h2 is no worker then."""
    links = [(0, 3), (2, 3), (3, 5), (5, 6), (6, 4), (2, 4), (1, 4)]
    topology = GraphTopology(
        ("h0", "h1", "h2"),
        tuple(GraphSwitch(f"s{number}") for number in range(4)),
        tuple(GraphLink(*link) for link in links),
    )
    network = ProgrammableNetwork.uniform(topology, {4: Fraction(9)}, Fraction(9))
    ground = Ground(LogicalGraph.of(network), 0, {})
    assert FlowSpiders(ground).costs(4, 2) == StarSpiders(ground).costs(4, 2) == [5, 6]
    assert FlowSpiders(ground, is_as_printed=True).costs(4, 2) == [4, 6]


def test_legs_go_where_vertices_are_cheap() -> None:
    """PS h0, centre e1.0 of another pod: its own servers first, and 5 links to the PS, the only way out."""
    graph = LogicalGraph.of(masked(4, "e1.0 a0.0 a1.0"))
    edge, above, other = (switches_named(4, name)[0] for name in ("e1.0", "a1.0", "a0.0"))
    ground = Ground(graph, 0, {edge: 2})
    star = StarSpiders(ground)
    assert star.costs(edge, 4) == [8, 9, 12, 15]
    assert star.spider(edge, 3) == Spider(edge, (4, 5, 6), 0, 12)
    assert star.costs(0, 3) == [2, 6, 10]
    assert star.costs(4, 3) == [6, 8, 12]
    assert star.spider(4, 2) == Spider(4, (4, 5), 0, 8)
    ground.joins(Spider(above, (6, 7), 0, 0))
    ground.opens(above)
    assert star.spider(edge, 1) == Spider(edge, (4,), above, 4)
    assert star.costs(above, 2) == [2, 4]
    assert star.spider(other, 1) == Spider(other, (1,), 0, 4)
    ground.closes(above)
    assert star.spider(edge, 1) == Spider(edge, (4,), 0, 8)
    ground.closes(0)
    assert star.costs(edge, 3) == FlowSpiders(ground).costs(edge, 3) == []


def test_fees_are_not_negative() -> None:
    with pytest.raises(LocalMisuse, match="fee"):
        plan_printed(masked(4, "e0.0"), Task(3, 1, Fraction(1)), fees={16: -1})


@pytest.mark.parametrize(
    ("worker", "beta"), [(Fraction(0), Fraction(1)), (Fraction(10), Fraction(3, 2))], ids=["leaf", "interior"]
)
def test_all_spiders_of_a_run_are_stars(worker: Fraction, beta: Fraction) -> None:
    """At k = 4; ``tests/figures`` has the runs at k = 6."""
    network, task = masked(4, "e0.0 e1.0 c2"), Task(4, 1, Fraction(100), worker)
    found = plan_printed(network, task, beta=beta, spiders=Both)
    assert isinstance(found, PlacedTree)
    assert found == plan_printed(network, task, beta=beta)
