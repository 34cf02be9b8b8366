"""PARING where not all switches reach each other: planes that servers share, and islands that they do not."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations, permutations, product
from random import Random

import pytest

from inaproto.errors import Infeasible, LocalMisuse
from inaproto_controller.cluster.graph_topology import GraphLink, GraphSwitch, GraphTopology
from inaproto_controller.plan_command.lines import lines
from inaproto_controller.planning.paring.admission import Admitted, Part, Subtasks, Tenants
from inaproto_controller.planning.paring.coarse import CoarsePlan, plan_coarse
from inaproto_controller.planning.paring.model import (
    Accounting,
    Capacity,
    PlacedTree,
    ProgrammableNetwork,
    Task,
    measure,
)
from inaproto_controller.planning.paring.planner import Fixed, Mode, Plan, plan
from inaproto_controller.planning.paring.slots.fast import plan_fast
from inaproto_controller.simulate.paring_execution import go
from tests.seeds import all_seeds

TEN, FAST = Fraction(10), Fraction(100)


def of_planes(
    homes: Sequence[Sequence[int]],
    switches: Sequence[int | None],
    links: Sequence[tuple[int, int]] = (),
    *,
    servers: Sequence[Capacity] | None = None,
) -> ProgrammableNetwork:
    """``homes``: by server; ``switches``: their capacities; ``links``: between switches; of servers 10."""
    hosts = len(homes)
    ends = [(server, hosts + home) for server, own in enumerate(homes) for home in own]
    ends += [(hosts + one, hosts + other) for one, other in links]
    topology = GraphTopology(
        tuple(f"h{server}" for server in range(hosts)),
        tuple(GraphSwitch(f"s{switch}") for switch in range(len(switches))),
        tuple(GraphLink(*both) for both in ends),
        may_be_apart=True,
    )
    able = tuple(servers) if servers is not None else (TEN,) * hosts
    return ProgrammableNetwork(
        topology, (*able, *(None if one is None else Fraction(one) for one in switches))
    )


def found(network: ProgrammableNetwork, task: Task, **options: object) -> Plan:
    answer = plan(network, task, **options)  # type: ignore[arg-type]
    assert isinstance(answer, Plan), answer
    assert answer.measures == measure(network, task, answer.tree)
    return answer


SLOW_AND_FAST = of_planes([(0, 2)] * 4, (1, 1, 100), [(0, 1)])
"""h0 to h3 are linked to s0 - s1 of one plane, slow, and to s2 of the other."""
SHARED = of_planes([(0, 1)] * 4 + [(1,)], (20, 0))
"""h4 is out of reach of s0, the only one that adds up."""


@pytest.mark.parametrize("mode", list(Mode))
def test_the_better_plane_is_taken_not_that_of_more_switches(mode: Mode) -> None:
    """By brute force over all trees: 10 Gbit/s, 4 hops."""
    planned = found(SLOW_AND_FAST, Task(3, 1, FAST), mode=mode)
    assert [planned.rate, planned.best_rate, planned.hops] == [10, 10, 4]
    assert go(SLOW_AND_FAST, planned.task, planned.tree).rate == planned.rate


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("busy", [(), (4,)])
def test_an_idle_server_out_of_a_switch_s_reach_keeps_nobody_from_it(
    mode: Mode, busy: tuple[int, ...]
) -> None:
    """By brute force: 20/3 Gbit/s, 4 hops, whether h4 is busy or not."""
    planned = found(SHARED, Task(3, 1, FAST), mode=mode, busy=busy)
    assert [planned.rate, planned.best_rate, planned.hops] == [Fraction(20, 3), Fraction(20, 3), 4]


def test_no_proof_where_trees_across_planes_are_possible() -> None:
    """5 workers, h0 to h2 in both planes: three to s0 and two to s1, both to the PS, is 5 Gbit/s. That is
    not looked for, and not denied."""
    network = of_planes([(0, 1)] * 3 + [(0,)] * 2 + [(1,)] * 2, (10, 10))
    planned = found(network, Task(4, 1, FAST), mode=Mode.EXACT)
    assert planned.is_one_plane_of_several
    assert not planned.is_proved
    assert planned.bound <= planned.hops
    assert any("within one plane" in line for line in lines_of(planned))


@pytest.mark.parametrize("mode", list(Mode))
def test_all_straight_to_a_server_of_two_planes_if_neither_has_room(mode: Mode) -> None:
    network = of_planes([(0,), (0, 1), (1,)], (20, 20))
    planned = found(network, Task(2, 1, FAST), mode=mode)
    assert [planned.tree.ps, planned.rate, planned.hops, planned.is_proved] == [1, 5, 4, False]
    refused = plan(network, Task(2, 1, FAST), mode=mode, ps=0)
    assert isinstance(refused, Infeasible)


def lines_of(planned: Plan) -> list[str]:
    admitted = Admitted(planned.task, (Part(planned, Subtasks(planned.task.gradient_bytes, 1, 0)),))
    return list(lines(admitted))


def test_proof_where_only_one_plane_adds_up_and_where_planes_share_no_server() -> None:
    only = found(of_planes([(0, 1)] * 5, (20, 0)), Task(3, 1, FAST), mode=Mode.EXACT)
    assert only.is_proved
    islands = of_planes([(0,)] * 4 + [(1,)] * 4, (20, 40))
    planned = found(islands, Task(3, 1, FAST), mode=Mode.EXACT)
    assert [planned.rate, planned.hops, planned.is_proved] == [10, 4, True]
    assert planned.tree.ps == 4


@pytest.mark.parametrize("mode", list(Mode))
def test_a_server_on_an_island_refuses_no_task(mode: Mode) -> None:
    network = of_planes([(0,)] * 11 + [(1,)], (10, 10))
    planned = found(network, Task(3, 1, Fraction(5)), mode=mode)
    assert 11 not in {planned.tree.ps, *planned.tree.workers(network)}
    assert planned.best_rate == 5
    assert mode is Mode.PRINTED or planned.rate == 5
    assert isinstance(Tenants(network).admitted("a", Task(3, 1, Fraction(5))), Tenants)


def test_the_reason_if_no_plane_has_enough_servers() -> None:
    network = of_planes([(0,)] * 5 + [(1,)] * 3, (10, 10))
    answer = plan(network, Task(5, 1, Fraction(5)), busy=[0])
    assert isinstance(answer, Infeasible)
    assert "one plane" in answer.reason
    assert answer.witness == {"needed": 6, "idle": 7, "of one plane": 4}
    answer = plan(network, Task(7, 1, Fraction(5)), busy=[0])
    assert isinstance(answer, Infeasible)
    assert answer.witness == {"needed": 8, "idle": 7}
    answer = plan(network, Task(3, 1, Fraction(5)), ps=6)
    assert isinstance(answer, Infeasible)
    assert answer.witness == {"needed": 4, "idle": 8, "of one plane": 3}


def test_the_reason_if_who_can_add_up_is_linked_to_too_few() -> None:
    network = of_planes([(0,)] * 4 + [(1,)] * 2, (10, 10), servers=[Fraction(0)] * 4 + [TEN] * 2)
    answer = plan(network, Task(3, 1, Fraction(5)))
    assert isinstance(answer, Infeasible)
    assert answer.witness == {"needed": 4, "server": "h4", "of its plane": 2}
    assert isinstance(plan(network, Task(1, 1, Fraction(5))), Plan)


def test_fixed_servers_and_further_ones_are_of_one_plane() -> None:
    network = of_planes([(0,)] * 4 + [(1,)] * 6, (20, 20), servers=[TEN] * 4 + [Fraction(12)] * 6)
    planned = found(network, Task(3, 1, FAST), fixed=Fixed(1, (0, 2, 3)))
    assert planned.tree.ps == 1
    apart = plan(network, Task(3, 1, FAST), fixed=Fixed(1, (0, 2, 5)))
    assert isinstance(apart, Infeasible)
    state = Tenants(network, others=frozenset(range(4, 8))).admitted("a", Task(2, 2, FAST), servers=2)
    assert isinstance(state, Tenants)
    assert set(state.running["a"].servers) <= {0, 1, 2, 3}


def test_only_servers_are_busy_on_planes_too() -> None:
    with pytest.raises(LocalMisuse, match="node 4 is no server"):
        plan(SLOW_AND_FAST, Task(1, 1, FAST), busy=[4])


def test_fees_and_budgets_over_planes() -> None:
    """The rate comes before fees; which is the highest that the budget allows is that of any plane."""
    network, task = of_planes([(0,)] * 4 + [(1,)] * 4, (20, 40)), Task(3, 1, FAST)
    fees = {8: Fraction(1), 9: Fraction(5)}
    assert found(network, task, fees=fees, budget=Fraction(5)).tree.ps == 4
    answer = plan(network, task, fees=fees, budget=Fraction(1))
    assert isinstance(answer, Infeasible)
    assert answer.witness == {
        "budget": "1",
        "least fees": "5",
        "rate": "10",
        "highest rate within the budget": "20/3",
    }


@pytest.mark.parametrize("accounting", list(Accounting))
def test_a_plane_of_switches_without_capacity_is_only_a_way(accounting: Accounting) -> None:
    network = of_planes([(0, 2), (0, 2), (1, 2), (1, 2)], (20, 0, 0), [(0, 1)])
    planned = found(network, Task(3, 1, FAST, accounting=accounting), mode=Mode.EXACT)
    assert planned.is_proved


# -- section V-C.3, coarse routing


@pytest.mark.parametrize("mode", list(Mode))
def test_section_5_c_3_ways_of_coarse_routing_stay_in_a_plane(mode: Mode) -> None:
    """Each server is linked to s0, which adds nothing up, and to s1; no link joins them."""
    network, task = of_planes([(0, 1)] * 4, (0, 100)), Task(3, 1, FAST)
    planned = found(network, task, mode=mode, is_coarse=True)
    assert [planned.rate, planned.hops] == [10, 4]
    coarse = plan_coarse(network, task, lambda asked: plan_fast(network, asked))
    assert isinstance(coarse, CoarsePlan)
    assert {way[1] for way in coarse.routes.values()} <= {5, planned.tree.ps}


def test_section_5_c_3_coarse_routing_where_an_island_is_cut_off() -> None:
    network = of_planes([(0,)] * 4 + [(1,)], (100, 100))
    planned = found(network, Task(3, 1, FAST), is_coarse=True)
    assert [planned.rate, planned.hops] == [10, 4]
    apart = of_planes([(0,), (0, 1), (1,)], (20, 20))
    assert found(apart, Task(2, 1, FAST), is_coarse=True).tree.ps == 1


# -- by brute force


def drawn(seed: int) -> tuple[ProgrammableNetwork, Task]:
    """4 servers, each linked to one or two of 3 switches, of which two are joined at times, and 2 add up."""
    draw = Random(f"{seed}/planes")
    homes = [sorted(draw.sample(range(3), draw.choice((1, 1, 2)))) for _ in range(4)]
    switches = [draw.choice((None, 1, 3, 10)), draw.choice((2, 5)), 0]
    servers = [draw.choice((None, Fraction(0), Fraction(2), TEN)) for _ in range(4)]
    links = draw.choice(([], [(0, 1)], [(1, 2)]))
    accounting = draw.choice(list(Accounting))
    network = of_planes(homes, switches, links, servers=servers)
    return network, Task(draw.randint(1, 3), 1, Fraction(draw.choice((1, 100))), accounting=accounting)


def best_of_all(network: ProgrammableNetwork, task: Task) -> tuple[Fraction, int] | None:
    """Rate, and the fewest hops at it, of all trees of leaf workers; None: there is none."""
    best: tuple[Fraction, int] | None = None
    for ps, *workers in permutations(range(4), task.workers + 1):
        if workers != sorted(workers):
            continue
        for chosen in ((), *combinations(network.programmable, 1), network.programmable):
            vertices = (*workers, *chosen)
            for parents in product((ps, *chosen), repeat=len(vertices)):
                try:
                    tree = PlacedTree(ps, dict(zip(vertices, parents, strict=True)))
                    told = measure(network, task, tree)
                except LocalMisuse:
                    continue
                if best is None or (told.rate, -told.hops) > (best[0], -best[1]):
                    best = told.rate, told.hops
    return best


def test_no_tree_is_better_but_for_those_across_planes_which_nothing_denies() -> None:
    seen: set[str] = set()
    for seed in all_seeds(20):
        network, task = drawn(seed)
        best, planned = best_of_all(network, task), plan(network, task, mode=Mode.EXACT)
        if best is None:
            assert isinstance(planned, Infeasible), f"seed {seed}"
            seen.add("none")
            continue
        assert isinstance(planned, Plan), f"seed {seed}: {planned}"
        if planned.is_one_plane_of_several:
            assert planned.rate <= best[0], f"seed {seed}"
            assert planned.rate < best[0] or planned.bound <= best[1] <= planned.hops, f"seed {seed}"
            assert not planned.is_proved
            seen.add("one of several")
        else:
            assert [planned.rate, planned.best_rate, planned.hops, planned.bound] == [
                best[0],
                best[0],
                best[1],
                best[1],
            ], f"seed {seed}"
            seen.add("proved")
    assert seen == {"none", "one of several", "proved"}
