"""PARING's ``fast`` mode: the highest rate always, the same tree each time, few hops too many."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from inaproto.errors import Infeasible
from inaproto_controller.planning.paring.fat_tree_names import fat_tree_network
from inaproto_controller.planning.paring.fees import fee_of
from inaproto_controller.planning.paring.model import (
    Accounting,
    Capacity,
    PlacedTree,
    ProgrammableNetwork,
    Task,
    measure,
)
from inaproto_controller.planning.paring.planner import Mode, Plan, plan
from inaproto_controller.planning.paring.rates import BestRate, best_rate
from inaproto_controller.planning.paring.slots.fast import fast_tree, plan_fast
from inaproto_controller.planning.paring.slots.greedy import greedy_tree
from inaproto_controller.planning.paring.slots.local_search import improved
from inaproto_controller.planning.paring.slots.problem import SlotProblem
from tests.controller.paring_draws import masked, random_mask
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
@given(networks(), TASKS, st.lists(st.fractions(0, 9, max_denominator=6), max_size=12))
def test_every_start_reaches_it_and_is_only_improved(
    network: ProgrammableNetwork, task: Task, told: list[Fraction]
) -> None:
    """Whatever the rack of the parameter server, and fees; hops are as ``measure`` counts them."""
    problem = SlotProblem.of(network, task)
    if isinstance(problem, Infeasible):
        return
    fees = dict(zip(network.programmable, told, strict=False))
    problem = problem.with_fees(fees)
    for rack in problem.ps_racks:
        start = greedy_tree(problem, rack)
        better = improved(problem, start, 2000)
        hops = [tree.hops(problem) for tree in (start, better)]
        assert hops == sorted(hops, reverse=True)
        for tree, count in zip((start, better), hops, strict=True):
            placed = tree.placed(problem)
            measured = measure(network, task, placed)
            cost = measured.hops + fee_of(network, placed, fees)
            assert cost * problem.unit == count
            assert measured.rate == problem.rate


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
from inaproto_controller.planning.paring.slots import fast
from inaproto_controller.planning.paring.fat_tree_names import fat_tree_network
from inaproto_controller.planning.paring.model import Task
fast.CHANGES_MIN, fast.CHANGES_PER_ELEMENT = 0, 500
network = fat_tree_network(4, "e0.0 a1.1 c2 e3.*", capacity=Fraction(10))
print(fast.plan_fast(network, Task(6, 1, Fraction(1000))))
fees = {node: Fraction(node % 3, 2) for node in network.programmable}
print(fast.plan_fast(network, Task(6, 1, Fraction(3)), fees=fees))
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


def drawn_fees(seed: int) -> tuple[ProgrammableNetwork, Task, dict[int, Fraction]]:
    """2 to 8 switches at k = 4, or 12 at k = 6; every other time a fee may be large."""
    draw = Random(f"{seed}/fees")
    degree, workers, switches = draw.choice(((4, 11, 8), (6, 30, 12)))
    network = masked(degree, random_mask(np.random.default_rng(seed), degree, draw.randint(2, switches)))
    most = draw.choice((4, 40))
    fees = {switch: Fraction(draw.randint(0, 2 * most), 2) for switch in network.programmable}
    return network, Task(draw.randint(4, workers), 1, Fraction(draw.choice((1, 2, 5)))), fees


def test_section_4_c_4_links_and_fees_together_are_near_the_least() -> None:
    """As without fees: 3 % on average and 10 % at most; with half of the budget that it would spend, too."""
    gaps: list[Fraction] = []
    within: list[Fraction] = []
    for seed in range(10):
        network, task, fees = drawn_fees(seed)
        budget: Fraction | None = None
        for found in (gaps, within):
            fast, exact = (
                plan(network, task, fees=fees, budget=budget, mode=mode) for mode in (Mode.FAST, Mode.EXACT)
            )
            assert isinstance(fast, Plan) == isinstance(exact, Plan)
            if not isinstance(fast, Plan) or not isinstance(exact, Plan):
                break
            assert exact.is_proved
            assert fast.rate == exact.rate
            found.append(fast.cost / exact.cost - 1)
            budget = fast.fee / 2
    assert len(gaps) == 10
    assert len(within) > 2
    for found in (gaps, within):
        assert sum(found) / len(found) <= Fraction(3, 100), found
        assert max(found) <= Fraction(1, 10), found


def test_fees_without_a_small_denominator_are_rounded_only_while_trees_are_compared() -> None:
    network, task = masked(4, "e0.* a0.0"), Task(7, 1, Fraction(2))
    fees = {node: Fraction(node, 999983) for node in network.programmable}
    problem = SlotProblem.of(network, task)
    assert not isinstance(problem, Infeasible)
    assert problem.with_fees(fees).unit == 1024
    found = plan(network, task, fees=fees)
    assert isinstance(found, Plan)
    assert found.fee == fee_of(network, found.tree, fees)
    assert found.hops == measure(network, task, found.tree).hops


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
