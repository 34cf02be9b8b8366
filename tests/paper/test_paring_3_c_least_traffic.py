"""PARING section III-C: first the highest rate, then the least traffic; proved (``exact``), and fast."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from inaproto.errors import Infeasible
from inaproto_controller.planning.paring.fat_tree_names import fat_tree_network
from inaproto_controller.planning.paring.model import (
    Accounting,
    Capacity,
    PlacedTree,
    ProgrammableNetwork,
    Task,
    measure,
)
from inaproto_controller.planning.paring.rates import BestRate, best_rate
from inaproto_controller.planning.paring.slots.exact import plan_exact
from inaproto_controller.planning.paring.slots.fast import plan_fast
from inaproto_controller.planning.paring.slots.problem import UNUSED, SlotProblem
from tests.controller.paring_networks import random_graph

TEN, MANY = Fraction(10), Fraction(1000)


@pytest.mark.parametrize(
    ("degree", "switches", "workers", "sharers", "hops"),
    [
        (4, "e0.0 e1.0 e2.0 e3.0 a0.0 a1.0", 7, 2, 17),
        (4, "e*.*", 7, 2, 21),
        (4, "a*.0", 9, 3, 26),
        (4, "e0.0 a1.1 c2", 6, 3, 16),
        (4, "e0.1 a0.0 e2.0 a3.1", 8, 3, 21),
        (6, "e0.* e1.* a0.0 a1.0", 20, 4, 34),
        (6, "e*.0 a0.0 a1.0", 20, 4, 40),
        (6, "e*.0 a*.0", 35, 4, 72),
        (6, "a*.0", 30, 6, 72),
        (6, "e0.0 e0.1", 20, 8, 66),
        (6, "e0.0 e1.0", 20, 8, 58),
    ],
    ids=str,
)
def test_fewest_hops_in_fat_trees(degree: int, switches: str, workers: int, sharers: int, hops: int) -> None:
    network, task = fat_tree_network(degree, switches, capacity=TEN), Task(workers, 1, MANY)
    found = plan_exact(network, task, seconds=600)
    assert not isinstance(found, Infeasible)
    measured = measure(network, task, found.tree)
    assert (measured.hops, measured.rate, found.bound) == (hops, TEN / sharers, hops)
    assert found.is_proved


def test_section_2_the_best_tree_of_the_example_is_the_best() -> None:
    """Figure 1(c): 15 hops at 1 Gbit/s, 8 s."""
    network = fat_tree_network(4, "e0.1 e1.0 e2.* e3.0 a0.* a1.1 a2.* a3.*", capacity=Fraction(2))
    found = plan_exact(network, Task(7, 10**9, Fraction(1)), seconds=600)
    assert not isinstance(found, Infeasible)
    assert (found.hops, found.bound) == (15, 15)


CAPACITIES: tuple[Capacity, ...] = (None, Fraction(2), Fraction(5), Fraction(7, 2), TEN)


def drawn(seed: int) -> tuple[ProgrammableNetwork, Task, tuple[int, ...]]:
    """Any graph, up to four switches that add up, all capacities unlike, servers taken."""
    topology = random_graph(seed)
    draw = random.Random(f"{seed}/least traffic")
    hosts = topology.hosts
    adding = draw.sample(range(hosts, topology.nodes), draw.randint(0, 4))
    capacities: list[Capacity] = [draw.choice(CAPACITIES[1:]) for _ in range(hosts)]
    capacities += [
        draw.choice(CAPACITIES) if node in adding else Fraction(0) for node in range(hosts, topology.nodes)
    ]
    busy = tuple(draw.sample(range(hosts), draw.randint(0, 2)))
    task = Task(
        draw.randint(1, 5), 1, draw.choice([MANY, Fraction(3)]), accounting=draw.choice(list(Accounting))
    )
    return ProgrammableNetwork(topology, tuple(capacities)), task, busy


def fewest_hops(problem: SlotProblem) -> int:
    """All ways to hang the switches together, and for each an assignment of single servers to open slots."""
    switches = len(problem.switches)
    return min(
        least
        for rack in problem.ps_racks
        for parents in product([UNUSED, *range(switches + 1)], repeat=switches)
        for least in assigned(problem, rack, parents)
    )


def assigned(problem: SlotProblem, ps_rack: int, parents: tuple[int, ...]) -> Iterator[int]:
    """Hops of a tree whose switches have these parents, if there is one."""
    switches, hops = len(parents), 0
    left = [*problem.switch_slots.tolist(), int(problem.ps_slots[ps_rack])]
    for switch, parent in enumerate(parents):
        if parent == UNUSED:
            left[switch] = 0
            continue
        top, steps = switch, 0
        while top != switches and steps <= switches:
            top, steps = parents[top], steps + 1
            if top == UNUSED:
                return
        if top != switches:
            return
        left[parent] -= 1
        hops += int(
            problem.rack_to_switch[ps_rack, switch] if parent == switches else problem.between[switch, parent]
        )
    if min(left) < 0 or sum(left) < problem.workers:
        return
    servers = [rack for rack, count in enumerate(problem.free) for _ in range(count - (rack == ps_rack))]
    slots = [parent for parent, count in enumerate(left) for _ in range(count)]
    costs = np.hstack([problem.rack_to_switch, problem.rack_to_rack[:, [ps_rack]]])[np.ix_(servers, slots)]
    nobody = np.zeros((len(servers), len(servers) - problem.workers), np.int64)
    costs = np.hstack([costs, nobody])
    yield hops + int(costs[linear_sum_assignment(costs)].sum())


@pytest.mark.parametrize("seed", range(40))
def test_no_tree_has_fewer_hops(seed: int) -> None:
    """Against all trees of switches with the best assignment of servers, on graphs without any order."""
    network, task, busy = drawn(seed)
    problem = SlotProblem.of(network, task, busy)
    found, fast = plan_exact(network, task, busy, seconds=600), plan_fast(network, task, busy)
    rate = best_rate(network, task, busy)
    if isinstance(problem, Infeasible) or isinstance(rate, Infeasible):
        assert found == fast == problem == rate
        return
    assert not isinstance(found, Infeasible)
    assert isinstance(fast, PlacedTree)
    assert isinstance(rate, BestRate)
    assert found.is_proved
    assert found.hops == fewest_hops(problem)
    for tree in (found.tree, fast):
        measured = measure(network, task, tree)
        assert measured.rate == rate.rate
        assert measured.hops >= found.hops
        assert not {tree.ps, *tree.workers(network)} & set(busy)


def test_the_ps_may_be_kept_to_some_racks() -> None:
    network, task = fat_tree_network(6, "e0.0 e1.0", capacity=TEN), Task(20, 1, MANY)
    for rack, hops in ((0, 68), (1, 64), (6, 58)):
        found = plan_exact(network, task, seconds=600, ps_racks=[rack])
        assert not isinstance(found, Infeasible)
        assert (found.hops, found.bound, found.tree.ps // 3) == (hops, hops, rack)
    assert isinstance(plan_exact(network, task, seconds=600, ps_racks=[]), Infeasible)


def test_without_time_there_is_a_tree_and_a_bound() -> None:
    network, task = fat_tree_network(6, "e*.* a*.*", capacity=TEN), Task(40, 1, MANY)
    found = plan_exact(network, task, seconds=0.0)
    assert not isinstance(found, Infeasible)
    measured = measure(network, task, found.tree)
    assert measured.hops == found.hops >= found.bound
