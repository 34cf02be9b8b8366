"""MINA, section III-C: how far tree building is from the best there is, and the short paper's formulation."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest

from inaproto.errors import LocalMisuse
from inaproto_controller.cluster.model import EVALUATED, SHARING, measured
from inaproto_controller.cluster.network import FatTreeNetwork, Ints
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.cluster.topology import FatTree, Quota
from inaproto_controller.planning.trees.builder import TreeBuilder, TreeJob
from inaproto_controller.planning.trees.clique import HeaviestClique, decrease, heavy_set
from inaproto_controller.planning.trees.exact import heaviest_set, most_trees
from inaproto_controller.planning.trees.exclusive import FirstFitL
from inaproto_controller.planning.trees.rebuild_all import RebuildAll
from tests.controller.branch_and_bound import largest_set

Needs = list[list[set[Hashable]]]


def cluster(draw: random.Random, tree: FatTree, jobs: int, quota: Quota) -> tuple[list[list[int]], Needs]:
    """A full one: hosts of each job, and what each of its candidate trees needs."""
    order = draw.sample(range(tree.hosts), tree.hosts)
    cuts = [0, *sorted(draw.sample(range(1, tree.hosts), jobs - 1)), tree.hosts]
    placed = [sorted(order[one:other]) for one, other in pairwise(cuts)]
    parts = tree.tree_links if quota is Quota.LINK else tree.tree_switches
    needs: Needs = []
    for footprint in map(tree.footprint, placed):
        needs.append([set(parts(footprint, colour)) for colour in tree.colours(footprint.height)])
    return placed, needs


def entered(network: FatTreeNetwork, placed: Sequence[Sequence[int]]) -> list[TreeJob]:
    times = [StepTimes(measured(model), SHARING, hosts=2) for model in EVALUATED]
    return [
        TreeJob(
            slot,
            slot,
            len(hosts),
            times[slot % len(times)],
            network.enter(slot, hosts),
            steps_left=10 + slot,
        )
        for slot, hosts in enumerate(placed)
    ]


def all_candidates(jobs: Sequence[TreeJob]) -> tuple[Ints, Ints]:
    pairs = [(job.slot, root) for job in jobs for root in range(job.roots)]
    return np.array([slot for slot, _ in pairs]), np.array([root for _, root in pairs])


def test_tree_building_is_this_far_from_the_most_trees_on_200_small_instances() -> None:
    """The exact set has as many as the integer program, always. The paper's heuristic falls short of it by
    one tree in a hundred, of all candidates as of five that are drawn; first fit by seven."""
    draw = random.Random("200 small instances")
    trees = [FatTree((2, 2, 4), (1, 2, 2)), FatTree.of_degree(6), FatTree((4, 4, 2), (1, 2, 2))]
    most = 0
    short = {"all candidates": 0, "five candidates": 0, "first fit": 0}
    for number in range(200):
        tree, quota = trees[number % len(trees)], list(Quota)[number % 2]
        placed, needs = cluster(draw, tree, draw.randint(3, 8), quota)
        network = FatTreeNetwork(tree, quota)
        jobs = entered(network, placed)
        best = most_trees(needs, 1)
        assert best.value == best.bound
        exact = largest_set(network.conflicts(*all_candidates(jobs)), 100_000)
        assert exact is not None
        assert np.count_nonzero(exact) == best.value
        builders: dict[str, TreeBuilder] = {
            "all candidates": RebuildAll(network, seed=number, candidates_max=1000),
            "five candidates": RebuildAll(network, seed=number),
            "first fit": FirstFitL(network),
        }
        most += int(best.value)
        for name, builder in builders.items():
            found = builder.build(jobs, range(len(jobs)), now=0.0, completed=False)
            assert len(found) <= best.value
            short[name] += int(best.value) - len(found)
    print(f"of {most} trees that there can be, short by {short}")
    assert max(short["all candidates"], short["five candidates"]) <= 0.012 * most
    assert 0.05 * most <= short["first fit"] <= 0.09 * most


def best_by_force(needs: Needs, capacity: int) -> int:
    best = 0
    for roots in product(*([None, *range(len(candidates))] for candidates in needs)):
        used: dict[Hashable, int] = {}
        for job, root in enumerate(roots):
            for resource in () if root is None else needs[job][root]:
                used[resource] = used.get(resource, 0) + 1
        if all(count <= capacity for count in used.values()):
            best = max(best, sum(root is not None for root in roots))
    return best


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_most_trees_are_brute_force_for_any_capacity(capacity: int) -> None:
    draw, tree = random.Random(f"force {capacity}"), FatTree((2, 2, 2), (1, 2, 1))
    for number in range(25):
        _, needs = cluster(draw, tree, draw.randint(2, 6), list(Quota)[number % 2])
        best = most_trees(needs, capacity)
        assert best.value == best.bound == best_by_force(needs, capacity)
        used: dict[Hashable, int] = {}
        for candidates, root in zip(needs, best.roots, strict=True):
            for resource in () if root is None else candidates[root]:
                used[resource] = used.get(resource, 0) + 1
        assert max(used.values(), default=0) <= capacity
        assert sum(root is not None for root in best.roots) == best.value


def test_capacities_and_weights_decide_who_gets_a_tree() -> None:
    needs = [[{"a"}], [{"a", "b"}], [{"b"}, {"c"}], [set[str]()]]
    capacities = {"a": 1, "b": 1, "c": 0}
    assert most_trees(needs, capacities).value == 3
    heavy = most_trees(needs, capacities, weights=[1.0, 5.0, 1.0, 0.5])
    assert heavy.roots == (None, 0, None, 0)
    assert heavy.value == 5.5
    assert most_trees([], 1).roots == ()
    with pytest.raises(LocalMisuse, match="no capacity"):
        most_trees(needs, {"a": 1})


@pytest.mark.parametrize("quota", Quota)
def test_cliques_of_jobs_that_gain_most(quota: Quota) -> None:
    """Short paper: the heuristic is near the exact clique, and never above it; trees never conflict."""
    draw, tree, sums = random.Random(f"cliques {quota}"), FatTree.of_degree(6), [0.0, 0.0]
    for seed in range(20):
        network = FatTreeNetwork(tree, quota)
        jobs = entered(network, cluster(draw, tree, 12, quota)[0])
        jobs[0] = replace(jobs[0], tree=7)
        for exact in (False, True):
            builder = HeaviestClique(network, seed=seed, exact=exact)
            assert builder.build(jobs, [], now=0.0, completed=True) == {}
            changes = builder.build(jobs, [3], now=0.0, completed=False)
            assert builder.unproved == 0
            having = [(job, changes.get(job.slot, job.tree)) for job in jobs]
            chosen = [(job.slot, root) for job, root in having if root is not None]
            slots, roots = (np.array(column) for column in zip(*chosen, strict=True))
            assert not network.conflicts(slots, roots).any()
            sums[exact] += sum(decrease(job) for job, root in having if root is not None)
    assert 0.98 * sums[1] <= sums[0] <= sums[1]


def test_heaviest_sets_are_brute_force() -> None:
    draw = random.Random("heaviest")
    for seed in range(60):
        count = draw.randint(1, 10)
        conflicts = np.triu(np.random.default_rng(seed).random((count, count)) < 0.4, 1)
        conflicts |= conflicts.T
        weights = np.array([draw.choice([0.0, 1.0, 2.5, 7.0]) for _ in range(count)])
        best = 0.0
        for members in product([False, True], repeat=count):
            picked = np.array(members)
            if not conflicts[np.ix_(picked, picked)].any():
                best = max(best, weights[picked].sum())
        exact, bound = heaviest_set(conflicts, weights)
        assert not conflicts[np.ix_(exact, exact)].any()
        assert weights[exact].sum() == pytest.approx(best) == bound
        some = heavy_set(conflicts, weights, 16, np.random.default_rng(seed))
        assert not conflicts[np.ix_(some, some)].any()
        assert (conflicts[:, some].any(axis=1) | some).all()
        assert weights[some].sum() <= best
