"""MINA, section III-C and V: trees for life, which the paper's builder is measured against."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from inaproto_controller.cluster.model import CLUSTER, measured
from inaproto_controller.cluster.network import FatTreeNetwork
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.cluster.topology import FatTree, Link, Quota, Switch
from inaproto_controller.planning.trees.builder import TreeBuilder, TreeJob
from inaproto_controller.planning.trees.exclusive import FirstFitL, FirstFitP, NoTrees, RandomFit

TIMES = StepTimes(measured("opt-125m-4"), CLUSTER, hosts=2)
TREE = FatTree((2, 2, 4), (1, 2, 2))


def entered(network: FatTreeNetwork, placed: Sequence[Sequence[int]]) -> list[TreeJob]:
    """Jobs in slots from 0 on."""
    return [
        TreeJob(slot, slot, len(hosts), TIMES, network.enter(slot, hosts), steps_left=10)
        for slot, hosts in enumerate(placed)
    ]


def test_no_trees_are_no_trees() -> None:
    network = FatTreeNetwork(TREE, Quota.LINK)
    jobs = entered(network, [[0, 1], [2, 4]])
    assert NoTrees().build(jobs, [0, 1], now=0.0, completed=False) == {}


def test_generation_p_looks_only_at_operations_in_flight() -> None:
    network = FatTreeNetwork(TREE, Quota.LINK)
    # All three span the pods of hosts 0-3 and 4-7 and share a rack with each other.
    jobs = entered(network, [[0, 4], [1, 5], [2, 6], [3, 7]])
    builder = FirstFitP(network)
    assert builder.build(jobs[:2], [0, 1], now=0.0, completed=False) == {0: 0, 1: 0}
    running = [replace(jobs[0], tree=0, using=0), replace(jobs[1], tree=0)]
    assert builder.build([*running, jobs[2]], [2], now=1.0, completed=False) == {2: 1}
    # No root that differs from 0, 1, 2 and 3 is left: for life.
    busy = [replace(job, tree=root, using=root) for root, job in enumerate(jobs[:3])]
    assert builder.build([*busy, jobs[3]], [3], now=1.0, completed=False) == {3: 3}
    assert builder.build(busy, [], now=1.0, completed=True) == {}


def test_generation_l_looks_at_the_trees_of_all_running_jobs() -> None:
    network = FatTreeNetwork(TREE, Quota.LINK)
    jobs = entered(network, [[0, 4], [1, 5], [2, 6], [8, 9]])
    builder = FirstFitL(network)
    # The first two share both racks: not the same way up from them. The third shares pods with both.
    assert builder.build(jobs, range(4), now=0.0, completed=False) == {0: 0, 1: 1, 2: 2, 3: 0}
    running = [replace(job, tree=root) for job, root in zip(jobs, (0, 1, 2, 0), strict=True)]
    assert builder.build(running, [], now=1.0, completed=True) == {}


@pytest.mark.parametrize("quota", Quota)
def test_exclusive_trees_are_exclusive_and_nobody_goes_without_for_no_reason(quota: Quota) -> None:
    """Judged by the sets of links or switches themselves."""
    draw, tree, without = random.Random(f"exclusive {quota}"), FatTree.of_degree(4), 0
    parts = tree.tree_links if quota is Quota.LINK else tree.tree_switches
    for seed in range(50):
        network = FatTreeNetwork(tree, quota)
        order = draw.sample(range(tree.hosts), tree.hosts)
        cuts = [0, *sorted(draw.sample(range(1, tree.hosts), 5)), tree.hosts]
        placed = [order[one:other] for one, other in pairwise(cuts)]
        jobs = entered(network, placed)
        needs: list[list[set[Link | Switch]]] = [
            [set(parts(footprint, colour)) for colour in tree.colours(footprint.height)]
            for footprint in map(tree.footprint, placed)
        ]
        builders: list[TreeBuilder] = [FirstFitL(network), RandomFit(network, seed)]
        for builder in builders:
            found = builder.build(jobs, range(len(jobs)), now=0.0, completed=False)
            taken: set[Link | Switch] = set()
            for slot, candidates in enumerate(needs):
                root = found.get(slot)
                acceptable = [one for one, need in enumerate(candidates) if not need & taken]
                assert root in acceptable or (root is None and not acceptable)
                if builder is builders[0] and acceptable:
                    assert root == acceptable[0]
                without += root is None
                taken.update(() if root is None else candidates[root])
    assert without > 0
