"""Clusters of any shape under the simulator: a fat tree as a graph does what a fat tree does."""

from __future__ import annotations

import random

import pytest

from inaproto_controller.cluster.graph_network import GraphNetwork
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.cluster.model import EVALUATED, SHARING
from inaproto_controller.cluster.network import FatTreeNetwork, Network
from inaproto_controller.cluster.requests import Request
from inaproto_controller.cluster.topology import FatTree, Quota
from inaproto_controller.planning.placement.least_fragments import LeastFragments
from inaproto_controller.planning.placement.occupancy import Occupancy
from inaproto_controller.planning.placement.simple import RandomFit
from inaproto_controller.planning.turns.policy import Policy
from inaproto_controller.simulate.arrivals import poisson
from inaproto_controller.simulate.cluster import simulate
from inaproto_controller.simulate.presets import TREES
from inaproto_controller.simulate.results import Result
from inaproto_controller.simulate.setting import Setting
from tests.controller.graphs import HDR, NDR, cluster

TREE = FatTree.of_degree(4)


def requests(draw: random.Random, count: int, hosts_max: int) -> list[Request]:
    return [
        Request(draw.choice(EVALUATED), draw.randint(1, hosts_max), draw.randint(2, 6)) for _ in range(count)
    ]


@pytest.mark.parametrize("quota", Quota)
@pytest.mark.parametrize("trees", TREES)
def test_a_fat_tree_as_a_graph_does_what_a_fat_tree_does(quota: Quota, trees: str) -> None:
    """Job by job and event by event: placement by fragments, trees by each builder, shared by the score."""
    graph = GraphTopology.of_fat_tree(TREE, quota)
    asked = requests(random.Random("graphs simulated"), 40, 6)
    arrivals = (0.0, *poisson(len(asked) - 1, rate=20.0, seed=1))

    def run(network: Network, occupancy: Occupancy, hierarchy: FatTree) -> Result:
        builder = TREES[trees](network, 7)
        setting = Setting(network, occupancy, LeastFragments(hierarchy), builder, Policy.SCORE, SHARING)
        return simulate(setting, asked, arrivals=arrivals)

    closed = run(FatTreeNetwork(TREE, quota), Occupancy(TREE), TREE)
    assert run(GraphNetwork(graph), Occupancy(graph), graph.hierarchy()) == closed
    assert len(closed.jobs) == len(asked)


@pytest.mark.parametrize("trees", TREES)
def test_jobs_without_candidates_go_without_ina(trees: str) -> None:
    """One of two racks has an old switch, and the only way between them is through it."""
    topology = cluster(
        {f"h{number}": "new" if number < 4 else "old" for number in range(8)},
        {"new": HDR, "old": {}, "spine": NDR},
        ("new", "spine"),
        ("old", "spine"),
    )
    network = GraphNetwork(topology)
    setting = Setting(
        network, Occupancy(topology), RandomFit(1), TREES[trees](network, 1), Policy.GREEDY, SHARING
    )
    result = simulate(setting, requests(random.Random("without"), 40, 4))
    ina = {True: 0.0, False: 0.0}
    for job in result.jobs:
        ina[sum(host >= 4 for host in job.placed_on) > 1] += job.ina_seconds * (job.hosts > 1)
    assert ina[True] == 0.0, "their inputs would join at the old switch"
    assert (ina[False] > 0) == (trees != "none")
