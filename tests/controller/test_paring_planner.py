"""The entrance to PARING's planners: plans that say what they come to, and reasons where there is none."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest

from inaproto.errors import Infeasible, LocalMisuse
from inaproto_controller.cluster.graph_topology import GraphLink, GraphSwitch, GraphTopology
from inaproto_controller.planning.paring.fat_tree_names import fat_tree_network, switches_named
from inaproto_controller.planning.paring.fees import ABOVE_BUDGET
from inaproto_controller.planning.paring.model import Accounting, ProgrammableNetwork, Task, measure
from inaproto_controller.planning.paring.network_file import read_network
from inaproto_controller.planning.paring.planner import Fixed, Mode, Plan, plan
from inaproto_controller.simulate.paring_execution import Unfolded, carry, go

UNEVEN = Path(__file__).resolve().parents[2] / "examples" / "uneven.json"
MASK = "e0.* e1.* a0.0 a1.0"


def uneven() -> ProgrammableNetwork:
    return read_network(UNEVEN, server=Fraction(4))


def found(network: ProgrammableNetwork, task: Task, **options: object) -> Plan:
    answer = plan(network, task, **options)  # type: ignore[arg-type]
    assert isinstance(answer, Plan), answer
    return answer


def refused(network: ProgrammableNetwork, task: Task, **options: object) -> Infeasible:
    answer = plan(network, task, **options)  # type: ignore[arg-type]
    assert isinstance(answer, Infeasible), answer
    return answer


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("workers", [2, 7, 12])
def test_a_planned_tree_on_an_uneven_graph_carries_and_goes_as_planned(mode: Mode, workers: int) -> None:
    network, task = uneven(), Task(workers, 10**6, Fraction(3))
    planned = found(network, task, mode=mode)
    carried = carry(Unfolded.of(network, planned.tree))
    assert carried.hops == planned.hops
    assert carried.hops * task.gradient_bytes == planned.traffic_bytes
    assert go(network, task, planned.tree).rate == planned.rate
    assert planned.rate <= planned.best_rate
    assert planned.bound <= planned.hops


def test_fast_and_exact_reach_the_highest_rate_and_bounds_hold() -> None:
    draw = Random("paring/planner")
    network = fat_tree_network(4, "e0.* e2.0 a1.1", capacity=Fraction(10))
    for _ in range(3):
        task = Task(draw.randint(3, 12), 10**6, Fraction(draw.choice((2, 5))))
        plans = {mode: found(network, task, mode=mode) for mode in Mode}
        exact = plans[Mode.EXACT]
        assert exact.is_proved
        assert plans[Mode.FAST].rate == exact.rate == exact.best_rate >= plans[Mode.PRINTED].rate
        assert plans[Mode.FAST].bound <= exact.hops <= plans[Mode.FAST].hops
        assert all(one.measures == measure(network, task, one.tree) for one in plans.values())


def test_what_a_plan_holds_is_rate_times_load() -> None:
    network = fat_tree_network(6, MASK, capacity=Fraction(10))
    planned = found(network, Task(20, 1627 * 10**6, Fraction(5)))
    assert (planned.rate, planned.best_rate) == (Fraction(5, 2), Fraction(5, 2))
    assert max(planned.held.values()) == 10
    assert planned.seconds == Fraction(1627 * 8, 2500)
    assert set(planned.held) == set(planned.tree.switches(network))


def test_workers_that_stay_and_a_server_that_has_to_be_it() -> None:
    network, task = fat_tree_network(6, MASK, capacity=Fraction(10)), Task(20, 10**6, Fraction(5))
    planned = found(network, task)
    again = found(network, task, fixed=Fixed(planned.tree.ps, planned.tree.workers(network)))
    assert again.tree.ps == planned.tree.ps
    assert again.tree.workers(network) == planned.tree.workers(network)
    assert again.rate == planned.rate
    elsewhere = found(network, task, ps=40)
    assert (elsewhere.tree.ps, elsewhere.rate) == (40, planned.rate)
    with pytest.raises(LocalMisuse, match="no idle server"):
        plan(network, task, ps=40, busy=[40])
    with pytest.raises(LocalMisuse, match="20 idle servers"):
        plan(network, task, fixed=Fixed(1, (1, 2)))


# -- no answer: a reason with its witness


def test_too_few_servers() -> None:
    answer = refused(uneven(), Task(14, 10**6, Fraction(3)), busy=[3])
    assert answer.witness == {"needed": 15, "idle": 14}


@pytest.mark.parametrize("mode", list(Mode))
def test_nobody_can_add_up(mode: Mode) -> None:
    network = read_network(UNEVEN, server=Fraction(0))
    answer = refused(network, Task(3, 10**6, Fraction(3)), mode=mode)
    assert "can add gradients up" in answer.reason
    assert answer.witness


def test_switches_without_capacity_leave_gradients_to_the_server() -> None:
    network = fat_tree_network(4, "", capacity=Fraction(10))
    planned = found(network, Task(5, 10**6, Fraction(5)))
    assert planned.rate == 2
    assert not planned.tree.switches(network)


def test_servers_that_are_apart() -> None:
    """Two racks without a link between them: neither has room for all."""
    links = tuple(GraphLink(host, 4 + host // 2) for host in range(4))
    topology = GraphTopology(
        ("a", "b", "c", "d"), (GraphSwitch("s"), GraphSwitch("t")), links, may_be_apart=True
    )
    network = ProgrammableNetwork.uniform(topology, {4: Fraction(9)}, Fraction(9))
    answer = refused(network, Task(3, 8, Fraction(1)))
    assert answer.witness == {"needed": 4, "idle": 4, "of one plane": 2}
    assert found(network, Task(1, 8, Fraction(1))).hops == 2
    assert found(network, Task(1, 8, Fraction(1)), busy=[2, 3]).hops == 2


# -- section IV-C.4: fees


def fees(network: ProgrammableNetwork, fee: int) -> dict[int, Fraction]:
    return dict.fromkeys(network.programmable, Fraction(fee))


@pytest.mark.parametrize("mode", [Mode.FAST, Mode.PRINTED])
def test_section_4_c_4_fees_are_paid_once_a_switch_and_weighed_against_links(mode: Mode) -> None:
    network, task = fat_tree_network(6, MASK, capacity=Fraction(10)), Task(20, 10**6, Fraction(5))
    free, dear = found(network, task, mode=mode), found(network, task, mode=mode, fees=fees(network, 4))
    switches = [len(one.tree.switches(network)) for one in (free, dear)]
    assert switches[1] <= switches[0]
    assert dear.fee == 4 * switches[1]
    if mode is Mode.FAST:
        assert dear.rate == free.rate
        assert dear.hops + dear.fee <= free.hops + 4 * switches[0]


def test_section_4_c_4_a_fee_that_is_no_more_than_a_link_may_be_worth_it() -> None:
    network, task = uneven(), Task(9, 10**6, Fraction(1))
    names = {network.topology.name(node): node for node in network.programmable}
    none, little, much = (found(network, task, fees={names["core-0"]: Fraction(fee)}) for fee in (0, 1, 1000))
    assert names["core-0"] not in much.tree.parents
    assert none.hops <= little.hops + little.fee <= much.hops + much.fee
    assert none.rate == little.rate == much.rate


def test_a_budget_is_kept_or_the_least_fees_are_told() -> None:
    network, task = fat_tree_network(6, MASK, capacity=Fraction(10)), Task(20, 10**6, Fraction(5))
    each = fees(network, 3)
    for mode in (Mode.FAST, Mode.PRINTED):
        assert found(network, task, mode=mode, fees=each, budget=Fraction(18)).fee <= 18
    answer = refused(network, task, fees=each, budget=Fraction(14))
    assert answer.reason == ABOVE_BUDGET
    assert answer.witness == {
        "budget": "14",
        "least fees": "18",
        "rate": "5/2",
        "highest rate within the budget": "2",
    }
    slower = found(network, replace(task, rate_cap=Fraction(2)), fees=each, budget=Fraction(14))
    assert slower.rate == 2
    assert slower.fee == 12


def test_fees_of_leaf_workers_are_counted_for_leaves_though_workers_could_add_up() -> None:
    network = fat_tree_network(6, MASK, capacity=Fraction(10))
    task = Task(20, 10**6, Fraction(5), worker_capacity=Fraction(10))
    answer = refused(network, task, fees=fees(network, 3), budget=Fraction(14))
    assert (answer.witness["least fees"], answer.witness["rate"]) == ("18", "5/2")


@pytest.mark.parametrize(
    ("fee", "is_told"), [(Fraction(5, 2), True), (Fraction(10**9), False), (Fraction(1, 999983), False)]
)
def test_section_4_c_4_exact_mode_has_the_least_of_links_and_fees(fee: Fraction, is_told: bool) -> None:
    """With a proof, unless a fee is such that the solver's numbers cannot tell sums of fees apart."""
    network, task = fat_tree_network(4, "e0.* e1.0 a0.0", capacity=Fraction(10)), Task(9, 8, Fraction(2))
    each = fees(network, 1) | {network.programmable[0]: fee}
    exact = found(network, task, fees=each, mode=Mode.EXACT)
    fast = found(network, task, fees=each)
    assert exact.rate == fast.rate
    assert exact.cost_bound <= exact.cost <= fast.cost
    assert exact.is_proved == is_told
    assert exact.bound <= exact.hops


def test_fees_that_are_none() -> None:
    network, task = uneven(), Task(3, 8, Fraction(1))
    with pytest.raises(LocalMisuse, match="only switches have fees"):
        plan(network, task, fees={0: Fraction(1)})
    with pytest.raises(LocalMisuse, match="fee of -1"):
        plan(network, task, fees=fees(network, -1))
    with pytest.raises(LocalMisuse, match="budget limits fees"):
        plan(network, task, budget=Fraction(1))


def test_section_4_c_5_a_switch_without_bound_on_its_rate() -> None:
    network = fat_tree_network(4, {"a0.0": None}, capacity=Fraction(0), server=Fraction(5))
    planned = found(network, Task(9, 10**6, Fraction(5)))
    (switch,) = switches_named(4, "a0.0")
    assert planned.rate == 5
    assert planned.tree.switches(network) == (switch,)
    assert found(network, Task(9, 10**6, Fraction(5), accounting=Accounting.PAPER)).rate == 5


@pytest.mark.parametrize("mode", list(Mode))
def test_a_server_that_has_to_be_it_and_cannot_is_the_one_that_is_named(mode: Mode) -> None:
    network = fat_tree_network(4, "e0.0", capacity=Fraction(10))
    able = tuple(Fraction(0) if node == 1 else one for node, one in enumerate(network.capacities))
    network, task = replace(network, capacities=able), Task(3, 8, Fraction(1))
    for where in ({"ps": 1}, {"fixed": Fixed(1, (0, 2, 3))}):
        answer = refused(network, task, mode=mode, **where)
        assert answer.reason == "the PS cannot add gradients up"
        assert answer.witness == {"server": network.topology.name(1), "capacity": 0}
