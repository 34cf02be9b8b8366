"""PARING section V-C.3: a switch adds up all that passes it, or nothing."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise

import pytest

from inaproto.errors import Infeasible
from inaproto_controller.planning.paring.baselines.atp import plan_atp
from inaproto_controller.planning.paring.coarse import CoarsePlan, made_coarse, plan_coarse
from inaproto_controller.planning.paring.fat_tree_names import fat_tree_network, switches_named
from inaproto_controller.planning.paring.model import PlacedTree, ProgrammableNetwork, Task, measure
from inaproto_controller.planning.paring.routes import Routes
from tests.controller.paring_networks import random_network

GB = 10**9


def judge(network: ProgrammableNetwork, task: Task, found: CoarsePlan) -> None:
    """Links are those of the network, as many as said, and nothing passes a switch that adds it not."""
    told = measure(network, task, found.tree)
    near = {(link.one, link.other) for link in network.topology.links}
    hosts, adds = network.topology.hosts, set(found.tree.switches(network))
    assert found.routes.keys() == found.tree.parents.keys()
    for sender, way in found.routes.items():
        assert (way[0], way[-1]) == (sender, found.tree.parents[sender])
        assert all(step in near or step[::-1] in near for step in pairwise(way))
        assert all(node >= hosts and node not in adds for node in way[1:-1])
    assert sum(len(way) - 1 for way in found.routes.values()) == told.hops
    installed = Routes(network.topology, found.tree).paths
    assert all(adds.isdisjoint(way[1:-1]) for way in installed.values())


def random_tree(network: ProgrammableNetwork, task: Task, seed: int) -> PlacedTree:
    """Of any shape: some switches joined at random, workers at any of them or at the server."""
    draw = random.Random(f"{seed}/tree")
    ps, *workers = draw.sample(range(network.topology.hosts), task.workers + 1)
    parents = {}
    joined = [ps]
    for switch in draw.sample(network.programmable, draw.randrange(len(network.programmable) + 1)):
        parents[switch] = draw.choice(joined)
        joined.append(switch)
    inner = [*joined, *workers[:2]] if task.worker_capacity != 0 else joined
    for number, worker in enumerate(workers):
        parents[worker] = draw.choice(inner if number > 1 else joined)
    while idle := [
        node for node in parents if node >= network.topology.hosts and node not in parents.values()
    ]:
        for node in idle:
            del parents[node]
    return PlacedTree(ps, parents)


@pytest.mark.parametrize("worker_capacity", [Fraction(0), Fraction(10)], ids=["leaves", "inner"])
def test_nothing_passes_a_switch_that_adds_up(worker_capacity: Fraction) -> None:
    adjusted = 0
    for seed in range(80):
        network = random_network(seed)
        task = Task(6, GB, Fraction(4), worker_capacity)
        tree = random_tree(network, task, seed)
        found = made_coarse(network, task, tree)
        judge(network, task, found)
        assert (found.tree.ps, found.tree.workers(network)) == (tree.ps, tree.workers(network))
        adjusted += found.tree.parents != tree.parents
    assert 20 < adjusted < 80


def test_trees_of_lower_rates_may_be_better_when_adjusted() -> None:
    better = 0
    for seed in range(40):
        network, task = random_network(seed), Task(6, GB, Fraction(4))

        def plan(asked: Task) -> PlacedTree | Infeasible:
            return plan_atp(network, asked)  # noqa: B023

        first = plan(task)
        found = plan_coarse(network, task, plan)
        assert isinstance(first, PlacedTree)
        assert isinstance(found, CoarsePlan)
        judge(network, task, found)
        alone = measure(network, task, made_coarse(network, task, first).tree)
        best = measure(network, task, found.tree)
        assert (best.rate, -best.hops) >= (alone.rate, -alone.hops)
        better += best.rate > alone.rate
    assert better > 0


def test_where_nothing_is_in_the_way_the_tree_stays() -> None:
    network = fat_tree_network(4, "e0.1 e1.0 e2.* e3.0 a0.* a1.1 a2.* a3.*", capacity=Fraction(2))
    e01, e20, e21, a01, a21 = (
        switches_named(4, name)[0] for name in ("e0.1", "e2.0", "e2.1", "a0.1", "a2.1")
    )
    leaves = {1: 0, 2: e01, 3: e01, 8: e20, 9: e20, 10: e21, 11: e21}
    tree = PlacedTree(0, {**leaves, e01: a01, e20: a21, e21: a21, a21: a01, a01: 0})
    task = Task(7, GB, Fraction(1))
    found = made_coarse(network, task, tree)
    assert found.tree == tree
    judge(network, task, found)
    assert found.routes[a21] == (a21, *switches_named(4, "c2"), a01)


def test_gradients_go_around_a_switch_where_a_way_as_short_leads() -> None:
    """h3 sends to the server past a0.0, which adds for others: over a0.1."""
    network = fat_tree_network(4, "a0.0", capacity=Fraction(10))
    (a00,) = switches_named(4, "a0.0")
    tree = PlacedTree(0, {2: a00, 4: a00, 3: 0, a00: 0})
    found = made_coarse(network, Task(3, GB, Fraction(5)), tree)
    assert found.tree == tree
    assert found.routes[3] == (3, *switches_named(4, "e0.1 a0.1"), *switches_named(4, "e0.0"), 0)


def test_the_switch_of_the_own_rack_adds_what_it_was_to_pass_on() -> None:
    """e0.1 adds h2 alone for a0.0; h3's way to the server leads through it."""
    network = fat_tree_network(4, "e0.1 a0.0", capacity=Fraction(10))
    e01, a00 = switches_named(4, "e0.1 a0.0")
    tree = PlacedTree(0, {2: e01, 4: e01, 3: 0, 5: a00, e01: a00, a00: 0})
    found = made_coarse(network, Task(4, GB, Fraction(5)), tree)
    assert found.tree.parents == {2: e01, 3: e01, 4: e01, 5: a00, e01: a00, a00: 0}
    assert measure(network, Task(4, GB, Fraction(5)), found.tree).rate == Fraction(10, 3)


def test_a_sum_that_comes_down_through_its_own_input_changes_places_with_it() -> None:
    """e0.0 sends up to a0.0, whose sum comes down through e0.0 to the server: e0.0 is the last to add."""
    network = fat_tree_network(4, "e0.0 a0.0", capacity=Fraction(10))
    e00, a00 = switches_named(4, "e0.0 a0.0")
    tree = PlacedTree(0, {1: e00, 2: a00, 4: a00, 3: e00, e00: a00, a00: 0})
    found = made_coarse(network, Task(4, GB, Fraction(5)), tree)
    assert found.tree.parents == {1: e00, 2: a00, 3: e00, 4: a00, a00: e00, e00: 0}


def test_a_switch_that_would_hold_the_rate_down_adds_nothing() -> None:
    """e0.1 could add two of its three at 5 Gbit/s; the server takes all three as fast as it would."""
    capacities = {"e0.1": Fraction(2), "a1.0": Fraction(10)}
    network = fat_tree_network(4, capacities, capacity=Fraction(10), server=Fraction(20))
    e01 = switches_named(4, "e0.1")[0]
    tree = PlacedTree(0, {2: e01, 4: e01, 3: 0, e01: 0})
    task = Task(3, GB, Fraction(5))
    assert measure(network, task, tree).rate == 1
    found = made_coarse(network, task, tree)
    assert found.tree.parents == {2: 0, 3: 0, 4: 0}
    assert measure(network, task, found.tree).rate == 5
