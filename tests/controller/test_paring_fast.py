"""PARING's ``fast`` mode: the highest rate always, the same tree each time, few hops too many."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from inaproto.errors import Infeasible
from inaproto_controller.paring.fast import fast_tree, plan_fast
from inaproto_controller.paring.fat_tree_names import fat_tree_network
from inaproto_controller.paring.local_search import improved
from inaproto_controller.paring.model import (
    Accounting,
    Capacity,
    PlacedTree,
    ProgrammableNetwork,
    Task,
    measure,
)
from inaproto_controller.paring.rates import BestRate, best_rate
from inaproto_controller.paring.slot_greedy import greedy_tree
from inaproto_controller.paring.slot_problem import SlotProblem
from tests.controller.paring_networks import random_graph

TEN, MANY = Fraction(10), Fraction(1000)

CAPACITIES = st.one_of(st.none(), st.fractions(0, 20, max_denominator=8))


@st.composite
def networks(draw: st.DrawFn) -> ProgrammableNetwork:
    """Graphs of any shape with capacities of any size, of servers as well."""
    hosts = draw(st.integers(2, 24))
    topology = random_graph(draw(st.integers(0, 10**6)), switches=draw(st.integers(1, 12)), hosts=hosts)
    capacities: list[Capacity] = [draw(CAPACITIES) for _ in range(topology.nodes)]
    return ProgrammableNetwork(topology, tuple(capacities))


TASKS = st.builds(
    Task,
    st.integers(1, 20),
    st.just(1),
    st.sampled_from([MANY, TEN, Fraction(1, 3)]),
    accounting=st.sampled_from(Accounting),
)


@settings(max_examples=60, deadline=None)
@given(networks(), TASKS, st.sets(st.integers(0, 23), max_size=4))
def test_the_highest_rate_is_always_reached(
    network: ProgrammableNetwork, task: Task, taken: set[int]
) -> None:
    busy = {server for server in taken if server < network.topology.hosts}
    rate, found = best_rate(network, task, busy), plan_fast(network, task, busy)
    if isinstance(rate, Infeasible):
        assert found == rate
        return
    assert isinstance(found, PlacedTree)
    assert measure(network, task, found).rate == rate.rate
    assert not {found.ps, *found.workers(network)} & busy


@settings(max_examples=100, deadline=None)
@given(networks(), TASKS)
def test_every_start_reaches_it_and_is_only_improved(network: ProgrammableNetwork, task: Task) -> None:
    """Whatever the rack of the parameter server; hops are as ``measure`` counts them."""
    problem = SlotProblem.of(network, task)
    if isinstance(problem, Infeasible):
        return
    for rack in problem.ps_racks:
        start = greedy_tree(problem, rack)
        better = improved(problem, start, 2000)
        hops = [tree.hops(problem) for tree in (start, better)]
        assert hops == sorted(hops, reverse=True)
        for tree, count in zip((start, better), hops, strict=True):
            measured = measure(network, task, tree.placed(problem))
            assert (measured.hops, measured.rate) == (count, problem.rate)


def test_racks_that_are_alike_are_tried_once() -> None:
    """Racks of one pod without a switch of their own are; those of two pods are not, each by itself."""
    problem = SlotProblem.of(fat_tree_network(6, "e0.0 e1.0", capacity=TEN), Task(20, 1, MANY))
    assert not isinstance(problem, Infeasible)
    assert problem.ps_rack_classes == (
        (0,),
        (1, 2),
        (3,),
        (4, 5),
        *((rack, rack + 1, rack + 2) for rack in (6, 9, 12, 15)),
    )


def test_no_switch_adds_up() -> None:
    """All send straight to the server: two from its rack, six from its pod, twelve from other pods."""
    network, task = fat_tree_network(6, "", capacity=TEN), Task(20, 1, MANY)
    found = plan_fast(network, task)
    assert isinstance(found, PlacedTree)
    assert measure(network, task, found).hops == 2 * 2 + 6 * 4 + 12 * 6


def test_interior_workers_are_not_used() -> None:
    """Their capacity does not count: the rate is that of leaves."""
    network = fat_tree_network(6, "e0.0 e1.0", capacity=TEN)
    task = Task(20, 1, MANY, worker_capacity=TEN)
    leaves, best, found = (
        best_rate(network, replace(task, worker_capacity=Fraction(0))),
        best_rate(network, task),
        plan_fast(network, task),
    )
    assert isinstance(leaves, BestRate)
    assert isinstance(best, BestRate)
    assert isinstance(found, PlacedTree)
    assert measure(network, task, found).rate == leaves.rate < best.rate


_SMALL = """
from fractions import Fraction
from inaproto_controller.paring import fast
from inaproto_controller.paring.fat_tree_names import fat_tree_network
from inaproto_controller.paring.model import Task
fast.CHANGES_MIN, fast.CHANGES_PER_ELEMENT = 0, 500
network = fat_tree_network(4, "e0.0 a1.1 c2 e3.*", capacity=Fraction(10))
print(fast.plan_fast(network, Task(6, 1, Fraction(1000))))
"""


def test_the_tree_is_the_same_compiled_or_not() -> None:
    found = set()
    for disabled in ("0", "1"):
        environment = {**os.environ, "NUMBA_DISABLE_JIT": disabled, "PYTHONHASHSEED": f"{disabled}7"}
        done = subprocess.run(
            [sys.executable, "-c", _SMALL], env=environment, capture_output=True, text=True, check=True
        )
        found.add(done.stdout)
    assert len(found) == 1


def test_a_tree_of_a_thousand_servers() -> None:
    """Every other edge switch adds up: 64 switches, 500 workers."""
    network = fat_tree_network(16, " ".join(f"e*.{number}" for number in (0, 2, 4, 6)), capacity=TEN)
    task = Task(500, 1, MANY)
    problem = SlotProblem.of(network, task)
    assert not isinstance(problem, Infeasible)
    tree = fast_tree(problem)
    measured = measure(network, task, tree.placed(problem))
    assert measured.rate == problem.rate
    assert measured.hops == tree.hops(problem) <= greedy_tree(problem, 0).hops(problem)
    assert np.count_nonzero(tree.parents >= 0) <= 64
