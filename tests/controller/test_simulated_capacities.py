"""Switches and links that several jobs may use at a time: no more do, and nobody is denied in vain."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from inaproto_controller.cluster.graph_network import GraphNetwork
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.cluster.model import EVALUATED, SHARING
from inaproto_controller.cluster.network import Bools, Ints, Network
from inaproto_controller.cluster.requests import Request
from inaproto_controller.cluster.topology import FatTree, Quota
from inaproto_controller.planning.placement.occupancy import Occupancy
from inaproto_controller.planning.placement.simple import RandomFit
from inaproto_controller.planning.trees.builder import Changes, TreeBuilder, TreeJob
from inaproto_controller.planning.trees.exclusive import FirstFitP
from inaproto_controller.planning.turns.policy import Policy
from inaproto_controller.simulate.cluster import simulate
from inaproto_controller.simulate.presets import make_setting
from inaproto_controller.simulate.results import Operation, Result
from inaproto_controller.simulate.setting import Setting

TREE = FatTree.of_degree(4)


def requests(seed: int) -> list[Request]:
    draw = random.Random(f"{seed} capacities")
    return [Request(draw.choice(EVALUATED), draw.choice([2, 3, 4, 6]), draw.randint(2, 4)) for _ in range(30)]


def run(
    network: Network,
    builder: TreeBuilder,
    seed: int,
    *,
    operations: list[Operation] | None = None,
) -> Result:
    topology = GraphTopology.of_fat_tree(TREE, Quota.SWITCH)
    setting = Setting(
        network,
        Occupancy(topology),
        RandomFit(seed),
        builder,
        Policy.GREEDY,
        SHARING,
        jitter=0.01,  # so that no two events are at the same time
    )
    note = None if operations is None else operations.append
    return simulate(setting, requests(seed), on_operation=note)


class Restless:
    """A builder that gives everybody any root, each time."""

    wants_completions = True

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def build(self, jobs: Sequence[TreeJob], new: Sequence[int], *, now: float, completed: bool) -> Changes:
        return {job.slot: self._random.randrange(job.roots) for job in jobs}


class Noting:
    """What the trees of a builder use, from when on."""

    def __init__(self, network: GraphNetwork, builder: TreeBuilder) -> None:
        self._network = network
        self._builder = builder
        self.wants_completions = builder.wants_completions
        self._uses: dict[int, list[tuple[float, tuple[int, ...] | None]]] = {}
        """By number of the job in order of placement: that of its request."""

    def build(self, jobs: Sequence[TreeJob], new: Sequence[int], *, now: float, completed: bool) -> Changes:
        trees = self._builder.build(jobs, new, now=now, completed=completed)
        numbers = {job.slot: job.number for job in jobs}
        for slot, tree in trees.items():
            uses = None if tree is None else self._network.resources(slot, tree)
            self._uses.setdefault(numbers[slot], []).append((now, uses))
        return trees

    def used_by(self, operation: Operation) -> tuple[int, ...] | None:
        """When an operation begins no other of its job runs: its tree is the one given last."""
        given = [uses for at, uses in self._uses.get(operation.job, ()) if at <= operation.begin]
        return given[-1] if given else None


@pytest.mark.parametrize("quota", Quota)
@pytest.mark.parametrize("capacity", [1, 2])
@pytest.mark.parametrize("moves", [False, True], ids=["trees for life", "trees that move"])
def test_no_more_than_may_do_and_who_is_denied_met_as_many(quota: Quota, capacity: int, moves: bool) -> None:
    denied = moved = 0
    for seed in range(4):
        topology = GraphTopology.of_fat_tree(TREE, quota, jobs=capacity)
        network = OneByCounting(topology) if capacity == 1 else GraphNetwork(topology)
        inner = Restless(seed) if moves else FirstFitP(network)
        builder, operations = Noting(network, inner), list[Operation]()
        result = run(network, builder, seed, operations=operations)
        moved += result.migrations_counted
        by_resource: dict[int, list[Operation]] = {}
        for operation in operations:
            for resource in (builder.used_by(operation) or ()) if operation.uses_ina else ():
                by_resource.setdefault(resource, []).append(operation)
        for users in by_resource.values():
            edges = sorted([(one.begin, 1) for one in users] + [(one.end, -1) for one in users])
            assert max(np.cumsum([change for _, change in edges])) <= capacity
        for operation in operations:
            uses = builder.used_by(operation)
            if operation.uses_ina or uses is None:
                continue
            busy = [
                sum(one.begin <= operation.begin < one.end for one in by_resource.get(resource, ()))
                for resource in uses
            ]
            assert max(busy) == capacity
            denied += 1
    assert denied > 50
    assert (moved > 50) is moves


class OneByCounting(GraphNetwork):
    """What is for one at a time, told as what is counted instead of as conflicts."""

    is_counted = True

    def conflicts(self, slots: Ints, roots: Ints) -> Bools:
        return np.zeros((slots.size, slots.size), np.bool_)

    def conflicts_with(self, slot: int, root: int, slots: Ints, roots: Ints) -> Bools:
        return np.zeros(slots.size, np.bool_)

    def shared(self, slot: int, root: int) -> Sequence[tuple[int, int]]:
        return [(resource, 1) for resource in self.resources(slot, root)]


@pytest.mark.parametrize("trees", ["exclusive", "random", "sticky", "merging", "rebuild-all"])
def test_room_for_more_jobs_is_used(trees: str) -> None:
    """Twice the room is no reason to give everybody the same links and leave others idle."""
    tree, draw = FatTree.of_degree(8), random.Random("room")
    asked = [Request("vit-large-4", draw.choice([4, 6, 8, 12]), 6) for _ in range(50)]
    scores = []
    for capacity in (1, 2):
        cluster = GraphTopology.of_fat_tree(tree, Quota.LINK, jobs=capacity)
        found = simulate(make_setting(cluster, placement="random", trees=trees, speeds=SHARING), asked)
        scores.append(found.score or 0.0)
    assert scores[1] > scores[0] + 0.1
    assert scores[1] > 0.8
