"""PARING's planners on small networks of any shape against all trees there are (``paring_by_force``)."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

from inaproto.errors import Infeasible
from inaproto_controller.planning.paring.fees import ABOVE_BUDGET
from inaproto_controller.planning.paring.model import ProgrammableNetwork, Task, measure
from inaproto_controller.planning.paring.planner import Mode, Plan, plan
from tests.controller.paring_by_force import AllTrees, small_network, small_task
from tests.seeds import all_seeds


def drawn(seed: int, joined: float = 1.0) -> tuple[Random, ProgrammableNetwork, Task, frozenset[int]]:
    draw = Random(f"{seed}/by force")
    network = small_network(draw, joined=joined, hosts=draw.choice((4, 5, 6)))
    return draw, network, *small_task(draw, network)


def test_no_tree_is_faster_and_of_those_none_has_fewer_links() -> None:
    modes: dict[Mode, int] = dict.fromkeys(Mode, 0)
    for seed in all_seeds(25):
        _, network, task, busy = drawn(seed)
        every = AllTrees(network, task, busy)
        for mode in Mode:
            found = plan(network, task, busy=busy, mode=mode)
            if every.highest is None:
                assert isinstance(found, Infeasible), f"seed {seed}, {mode}"
                continue
            assert isinstance(found, Plan), f"seed {seed}, {mode}: {found}"
            assert found.measures == measure(network, task, found.tree)
            assert found.best_rate == every.highest, f"seed {seed}, {mode}"
            fewest = every.fewest(found.rate)
            assert found.bound <= fewest <= found.hops, f"seed {seed}, {mode}"
            assert found.is_proved <= (found.hops == fewest), f"seed {seed}, {mode}"
            assert mode is Mode.PRINTED or found.rate == every.highest, f"seed {seed}, {mode}"
            assert mode is not Mode.EXACT or found.is_proved, f"seed {seed}"
            modes[mode] += found.hops == fewest
    assert min(modes.values()) > 0, modes


def test_where_switches_may_be_apart_nothing_false_is_said() -> None:
    several = 0
    for seed in all_seeds(12):
        _, network, task, busy = drawn(1000 + seed, joined=0.2)
        every = AllTrees(network, task, busy)
        found = plan(network, task, busy=busy, mode=Mode.EXACT)
        if every.highest is None:
            assert isinstance(found, Infeasible), f"seed {seed}"
            continue
        assert isinstance(found, Plan), f"seed {seed}: {found}"
        assert found.rate <= every.highest, f"seed {seed}"
        assert found.bound <= every.fewest(found.rate) <= found.hops, f"seed {seed}"
        assert found.is_one_plane_of_several or (found.rate == every.highest and found.is_proved)
        several += found.is_one_plane_of_several
    assert several > 0


def test_of_fees_the_least_is_known_and_the_rate_that_a_budget_allows() -> None:
    refused = 0
    for seed in all_seeds(20):
        draw, network, task, busy = drawn(seed)
        fees = {switch: Fraction(draw.randint(1, 6), draw.choice((1, 2))) for switch in network.programmable}
        every, budget = AllTrees(network, task, busy, fees), Fraction(draw.randint(0, 4))
        if every.highest is None:
            continue
        found = plan(network, task, busy=busy, fees=fees, budget=budget)
        least = every.least_fees(every.highest)
        if isinstance(found, Plan):
            assert found.rate == every.highest, f"seed {seed}"
            assert least <= found.fee <= budget, f"seed {seed}"
            exact = plan(network, task, busy=busy, fees=fees, budget=budget, mode=Mode.EXACT)
            assert isinstance(exact, Plan), f"seed {seed}"
            cheapest = every.cheapest(found.rate, budget)
            assert found.cost_bound <= cheapest <= found.cost, f"seed {seed}"
            assert exact.cost == exact.cost_bound == cheapest, f"seed {seed}"
            assert exact.fee <= budget, f"seed {seed}"
            continue
        assert found.reason == ABOVE_BUDGET, f"seed {seed}: {found}"
        assert Fraction(str(found.witness["least fees"])) == least > budget, f"seed {seed}"
        within = Fraction(str(found.witness["highest rate within the budget"]))
        assert within == every.highest_within(budget), f"seed {seed}"
        refused += 1
    assert refused > 0


def test_workers_that_add_up_have_a_highest_rate_that_no_tree_exceeds() -> None:
    checked = 0
    for seed in all_seeds(20):
        draw, network, task, busy = drawn(seed)
        if network.topology.hosts > 5 or len(network.programmable) > 2:
            continue
        capacity = draw.choice((Fraction(10), Fraction(4), None))
        task = replace(task, workers=min(task.workers, 2), worker_capacity=capacity)
        every, found = AllTrees(network, task, busy), plan(network, task, busy=busy, mode=Mode.PRINTED)
        highest = every.highest_of_inner()
        if highest is None:
            assert isinstance(found, Infeasible), f"seed {seed}"
            continue
        assert isinstance(found, Plan), f"seed {seed}: {found}"
        assert found.rate <= found.best_rate == highest, f"seed {seed}"
        assert found.bound <= every.fewest_of_inner(found.rate) <= found.hops, f"seed {seed}"
        checked += 1
    assert checked > 3
