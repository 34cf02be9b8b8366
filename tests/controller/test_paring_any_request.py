"""Whatever PARING is asked on whatever network: a plan that is as it says, or a reason that is true."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from inaproto.errors import Infeasible
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.planning.paring.fees import ABOVE_BUDGET
from inaproto_controller.planning.paring.model import ProgrammableNetwork, Task, measure
from inaproto_controller.planning.paring.planes import NOBODY_ABLE_NEAR, TOO_FEW, TOO_FEW_OF_A_PLANE
from inaproto_controller.planning.paring.planner import Mode, Plan, plan
from inaproto_controller.simulate.paring_execution import go
from tests.controller.paring_draws import drawn_task, irregular_network
from tests.seeds import all_seeds, seeds


def drawn(seed: int) -> tuple[ProgrammableNetwork, Task, frozenset[int]]:
    """Half of the networks lack links, so that servers may be apart; some have no able server at all."""
    network = irregular_network(seed)
    task, busy = drawn_task(seed, network)
    draw = Random(f"{seed}/any request")
    if draw.random() < 0.5:
        network = replace(network, topology=thinned(draw, network.topology))
    if draw.random() < 0.15:
        hosts = network.topology.hosts
        capacities = (Fraction(0) if node < hosts else one for node, one in enumerate(network.capacities))
        network = replace(network, capacities=tuple(capacities))
    if draw.random() < 0.2:
        task = replace(task, workers=network.topology.hosts + draw.randint(-2, 3))
    return network, task, busy


def thinned(draw: Random, topology: GraphTopology) -> GraphTopology:
    """Without some links between switches."""
    hosts = topology.hosts
    kept = [one for one in topology.links if min(one.one, one.other) < hosts or draw.random() < 0.75]
    return replace(topology, links=tuple(kept), may_be_apart=True)


def is_true(network: ProgrammableNetwork, task: Task, busy: frozenset[int], answer: Infeasible) -> bool:
    """By other means than the planner's."""
    idle = [server for server in range(network.topology.hosts) if server not in busy]
    if answer.reason == TOO_FEW:
        return len(idle) < task.workers + 1
    able = [server for server in idle if network.capacities[server] != 0]
    is_near = network.topology.all_distances[:, idle] <= network.topology.nodes
    if answer.reason == TOO_FEW_OF_A_PLANE:
        return int(is_near.sum(axis=1).max()) == int(answer.witness["of one plane"]) < task.workers + 1
    if answer.reason == NOBODY_ABLE_NEAR:
        near = is_near[[home for server in able for home in network.homes[server]]].sum(axis=1)
        return int(near.max()) == int(answer.witness["of its plane"]) < task.workers + 1
    return "add gradients up" in answer.reason and not able


@pytest.mark.parametrize("mode", [Mode.FAST, Mode.PRINTED])
def test_every_request_has_a_true_answer(mode: Mode) -> None:
    told: dict[str, int] = {}
    for seed in all_seeds(80):
        network, task, busy = drawn(seed)
        answer = plan(network, task, busy=busy, mode=mode)
        if isinstance(answer, Infeasible):
            assert is_true(network, task, busy, answer), f"seed {seed}: {answer}"
            assert answer.witness
            told[answer.reason] = told.get(answer.reason, 0) + 1
            continue
        told["planned"] = told.get("planned", 0) + 1
        assert answer.measures == measure(network, task, answer.tree), f"seed {seed}"
        assert answer.bound <= answer.hops, f"seed {seed}"
        assert answer.rate <= answer.best_rate, f"seed {seed}"
        assert not busy & {answer.tree.ps, *answer.tree.workers(network)}
        if mode is Mode.FAST and task.worker_capacity == 0:
            assert answer.rate == answer.best_rate, f"seed {seed}"
    assert len(told) == 4, f"not all that can happen did: {told}"


def test_the_count_of_links_that_any_tree_needs_is_a_bound() -> None:
    checked = 0
    for seed in all_seeds(40):
        network, task, busy = drawn(seed)
        if task.workers > 6 or task.worker_capacity != 0:
            continue
        exact = plan(network, task, busy=busy, mode=Mode.EXACT, seconds=20.0)
        fast = plan(network, task, busy=busy)
        if isinstance(exact, Plan):
            assert isinstance(fast, Plan)
            assert fast.bound <= exact.hops, f"seed {seed}"
            checked += 1
    assert checked > 3


@pytest.mark.parametrize("seed", seeds(12))
def test_a_planned_tree_goes_at_the_planned_rate(seed: int) -> None:
    network, task, busy = drawn(seed)
    answer = plan(network, task, busy=busy, mode=Mode.PRINTED)
    if isinstance(answer, Plan):
        assert go(network, task, answer.tree).rate == answer.rate


def test_fees_and_budgets_on_any_network() -> None:
    kept = refused = 0
    for seed in all_seeds(20):
        network, task, busy = drawn(seed)
        task, draw = replace(task, rate_cap=Fraction(100)), Random(f"{seed}/fees")
        fees = {node: Fraction(draw.randint(0, 9), draw.choice((1, 2))) for node in network.programmable}
        if not any(fees.values()):
            continue
        budget = Fraction(draw.randint(0, 6))
        answer = plan(network, task, busy=busy, fees=fees, budget=budget)
        free = plan(network, task, busy=busy)
        if isinstance(answer, Plan):
            assert isinstance(free, Plan)
            assert answer.fee <= budget, f"seed {seed}"
            assert answer.rate == free.rate, f"seed {seed}: the rate comes before fees"
            kept += 1
        elif answer.reason == ABOVE_BUDGET:
            assert Fraction(str(answer.witness["least fees"])) > budget
            within = Fraction(str(answer.witness["highest rate within the budget"]))
            slower = plan(network, replace(task, rate_cap=within), busy=busy, fees=fees, budget=budget)
            assert isinstance(slower, Plan), f"seed {seed}: {slower}"
            assert slower.rate == within, f"seed {seed}"
            refused += 1
    assert min(kept, refused) > 0, (kept, refused)
