"""MINA, section III-B: placement, against the published simulator and against all choices there are."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import pytest

from inaproto.errors import LocalMisuse
from inaproto_controller.cluster.topology import FatTree
from inaproto_controller.planning.placement.least_fragments import LeastFragments
from inaproto_controller.planning.placement.occupancy import Occupancy, fragments
from inaproto_controller.planning.placement.simple import FirstFit, Hosts, RandomFit
from tests.data.mina.reference import reference

ALPHA = 0.5


def occupied(tree: FatTree, busy: list[int]) -> Occupancy:
    occupancy = Occupancy(tree)
    occupancy.take(busy)
    return occupancy


def cost(tree: FatTree, free: list[int], chosen: Hosts, alpha: float) -> float:
    """A + alpha B, from its definition."""
    job = np.zeros(tree.hosts, np.bool_)
    job[list(chosen)] = True
    rest = np.zeros(tree.hosts, np.bool_)
    rest[free] = True
    return fragments(tree, job) + alpha * fragments(tree, rest & ~job)


def test_hosts_and_fragments_are_those_of_the_published_simulator() -> None:
    for case in reference("ref05_placement")["cases"]:
        tree = FatTree(tuple(case["down"]), tuple(case["up"]))
        occupancy = occupied(tree, case["busy_hosts"])
        assert occupancy.busy_fragments() == case["busy_fragments_before"]
        assert occupancy.free_fragments() == case["free_fragments_before"]
        free = np.flatnonzero(occupancy.free).tolist()
        planner, request = LeastFragments(tree, alpha=case["alpha"]), case["request"]
        hosts = planner.place(occupancy, request)
        assert hosts is not None
        assert list(hosts) == case["hosts"]
        assert planner.score(occupancy, request) == pytest.approx(case["score"], rel=1e-12)
        assert cost(tree, free, hosts, case["alpha"]) == pytest.approx(case["score"], rel=1e-12)
        first = FirstFit().place(occupancy, request)
        assert first is not None
        assert list(first) == case["hosts_first"]
        assert cost(tree, free, first, case["alpha"]) == pytest.approx(case["score_first"], rel=1e-12)
        occupancy.take(hosts)
        assert occupancy.free_fragments() == case["free_fragments_after"]


def test_no_choice_of_hosts_is_better_in_500_small_pods() -> None:
    """Of all subsets, each cost computed from its definition."""
    draw = random.Random("placement by brute force")
    trees = [
        FatTree((2, 2, 3), (1, 2, 2)),
        FatTree((3, 2, 2), (1, 1, 1)),
        FatTree((4, 3), (1, 2)),
        FatTree((12,), (1,)),
    ]
    planners = {
        (tree, alpha): LeastFragments(tree, alpha=alpha) for tree in trees for alpha in (0.5, 0.25, 2.0)
    }
    for _ in range(500):
        tree, alpha = draw.choice(list(planners))
        busy = draw.sample(range(tree.hosts), draw.randint(0, tree.hosts - 1))
        occupancy = occupied(tree, busy)
        free = [host for host in range(tree.hosts) if host not in busy]
        count = draw.randint(1, len(free))
        best = min(cost(tree, free, chosen, alpha) for chosen in combinations(free, count))
        hosts = planners[tree, alpha].place(occupancy, count)
        assert hosts is not None
        assert sorted(set(hosts)) == list(hosts)
        assert set(hosts) <= set(free)
        assert len(hosts) == count
        assert cost(tree, free, hosts, alpha) == pytest.approx(best, abs=1e-12)
        assert planners[tree, alpha].score(occupancy, count) == pytest.approx(best, abs=1e-12)


def test_what_is_remembered_changes_nothing() -> None:
    """A planner that saw a cluster change, job by job, places as one that sees it for the first time."""
    tree, draw = FatTree.of_degree(8), random.Random("remembered")
    planner, occupancy = LeastFragments(tree), Occupancy(tree)
    jobs: list[Hosts] = []
    for _ in range(300):
        if jobs and draw.random() < 0.45:
            occupancy.release(jobs.pop(draw.randrange(len(jobs))))
            continue
        count = draw.choice([1, 2, 3, 4, 8, 16])
        hosts = planner.place(occupancy, count)
        assert hosts == LeastFragments(tree).place(occupancy, count)
        if hosts is None:
            assert count > occupancy.free_hosts
            continue
        occupancy.take(hosts)
        jobs.append(hosts)
    assert jobs


@pytest.mark.parametrize(
    "planner",
    [FirstFit(), RandomFit(1), LeastFragments(FatTree.of_degree(4))],
    ids=lambda planner: type(planner).__name__,
)
def test_what_does_not_fit_gets_nothing(planner: FirstFit | RandomFit | LeastFragments) -> None:
    tree = FatTree.of_degree(4)
    occupancy = occupied(tree, list(range(10)))
    assert planner.place(occupancy, 7) is None
    assert planner.place(occupancy, 6) == tuple(range(10, 16))


def test_random_hosts_depend_on_the_seed_alone() -> None:
    tree = FatTree.of_degree(8)
    chosen = [RandomFit(seed).place(Occupancy(tree), 9) for seed in (1, 1, 2)]
    assert chosen[0] == chosen[1] != chosen[2]


def test_a_host_is_taken_once() -> None:
    occupancy = occupied(FatTree.of_degree(4), [3])
    with pytest.raises(LocalMisuse):
        occupancy.take([2, 3])
    with pytest.raises(LocalMisuse):
        occupancy.release([2])
    assert occupancy.free_hosts == 15
    assert occupancy.free[2]
