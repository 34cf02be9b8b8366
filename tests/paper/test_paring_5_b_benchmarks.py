"""PARING section V-B: the benchmarks, on the paper's own numbers and against brute force."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from fractions import Fraction
from itertools import combinations
from math import log

import pytest

from inaproto.errors import Infeasible, LocalMisuse
from inaproto_controller.cluster.graph_topology import GraphLink, GraphSwitch, GraphTopology
from inaproto_controller.planning.paring.baselines.atp import AtpRule, plan_atp
from inaproto_controller.planning.paring.baselines.deepsys import plan_deepsys
from inaproto_controller.planning.paring.baselines.delivery_tree import DeliveryTree
from inaproto_controller.planning.paring.baselines.marina import plan_marina
from inaproto_controller.planning.paring.baselines.node_steiner import steiner_tree
from inaproto_controller.planning.paring.baselines.panama import SpreadTrees, plan_panama
from inaproto_controller.planning.paring.baselines.soar import plan_soar, switches_of_least_traffic
from inaproto_controller.planning.paring.fat_tree_names import fat_tree_network, switches_named
from inaproto_controller.planning.paring.model import Measures, PlacedTree, ProgrammableNetwork, Task, measure
from inaproto_controller.planning.paring.switch_use import switch_use
from tests.controller.paring_networks import random_graph, random_network

GB = 10**9
TEN = Fraction(10)
EXAMPLE = "e0.1 e1.0 e2.* e3.0 a0.* a1.1 a2.* a3.*"
"""Of figure 1: the mask that fits all that is said of it."""
LSTM = 1627 << 20
PLANNERS: dict[str, Callable[..., PlacedTree | SpreadTrees | Infeasible]] = {
    "deepsys": plan_deepsys,
    "soar": plan_soar,
    "atp": plan_atp,
    "marina": plan_marina,
    "panama": plan_panama,
}


def tree_of(found: PlacedTree | Infeasible) -> PlacedTree:
    assert isinstance(found, PlacedTree), found
    return found


def spread_of(found: SpreadTrees | Infeasible) -> SpreadTrees:
    assert isinstance(found, SpreadTrees), found
    return found


def example() -> tuple[ProgrammableNetwork, Task]:
    return fat_tree_network(4, EXAMPLE, capacity=Fraction(2)), Task(7, GB, Fraction(1))


def evaluated(names: str, workers: int) -> tuple[ProgrammableNetwork, Task]:
    return fat_tree_network(6, names, capacity=TEN), Task(workers, LSTM, Fraction(5))


# -- DeepSys


@pytest.mark.parametrize(
    ("workers", "hops", "gigabytes"), [(15, 70, 111.22), (20, 100, 158.89), (35, 190, 301.88)]
)
def test_deepsys_is_the_paper_s_to_the_digit(workers: int, hops: int, gigabytes: float) -> None:
    network, task = evaluated("", workers)
    found = measure(network, task, tree_of(plan_deepsys(network, task)))
    assert (found.hops, found.rate) == (hops, Fraction(10, workers))
    assert found.traffic_bytes(task) / 2**30 == pytest.approx(gigabytes, abs=0.01)


def test_figure_1_a_deepsys_takes_28_seconds_for_34_gb() -> None:
    network, task = example()
    tree = tree_of(plan_deepsys(network, task, ps=7))
    found = measure(network, task, tree)
    assert tree.workers(network) == tuple(range(7))
    assert (found.hops, found.rate, found.seconds(task)) == (34, Fraction(2, 7), Fraction(28))


def test_deepsys_fills_the_rack_then_the_pod_of_the_server_and_passes_over_who_is_busy() -> None:
    network, task = evaluated("", 4)
    assert tree_of(plan_deepsys(network, task, ps=13)).workers(network) == (9, 10, 12, 14)
    assert tree_of(plan_deepsys(network, task, busy=[14, 10], ps=13)).workers(network) == (9, 11, 12, 15)
    assert tree_of(plan_deepsys(network, task, busy=[0, 1])).ps == 2


# -- ATP


def test_figure_1_b_atp_takes_12_seconds_for_18_gb() -> None:
    network, task = example()
    found = measure(network, task, tree_of(plan_atp(network, task, ps=7)))
    assert (found.hops, found.rate, found.seconds(task)) == (18, Fraction(2, 3), Fraction(12))
    first, e01, e10 = switches_named(4, "a0.0") + switches_named(4, "e0.1 e1.0")
    assert found.loads == {7: 3, first: 3, e01: 2, e10: 2}
    assert switch_use(network, found) == Fraction(7, 36)  # 19.4 %


def test_figure_1_by_the_written_rule_atp_takes_16_seconds_for_22_gb() -> None:
    network, task = example()
    found = measure(network, task, tree_of(plan_atp(network, task, ps=7, rule=AtpRule.FIRST)))
    assert (found.hops, found.rate, found.seconds(task)) == (22, Fraction(1, 2), Fraction(16))


def test_figure_1_c_the_best_tree_uses_twice_as_much_of_the_switches() -> None:
    network, _ = example()
    loads = dict.fromkeys((0, *switches_named(4, "e0.1 e2.0 e2.1 a0.1 a2.1")), 2)
    assert switch_use(network, Measures(Fraction(1), 15, loads)) == Fraction(5, 12)  # 41.7 %


def test_a_switch_adds_what_it_can_and_passes_the_rest_to_the_server() -> None:
    """At 2.5 Gbit/s a0.0 adds four of its six inputs; the server has one sum, and the two others."""
    network, task = evaluated("e0.* e1.* a0.0 a1.0", 20)
    partly = tree_of(plan_atp(network, task))
    found = measure(network, task, partly)
    (first,) = switches_named(6, "a0.0")
    assert (found.hops, found.rate, found.loads[0], found.loads[first]) == (42, Fraction(5, 2), 3, 4)
    whole = measure(network, task, tree_of(plan_atp(network, task, is_partial=False)))
    assert (whole.hops, whole.rate, whole.loads[0], whole.loads[first]) == (38, Fraction(5, 3), 1, 6)


def test_without_partial_adding_a_switch_that_cannot_add_all_adds_none() -> None:
    for seed in range(20):
        network, task = random_network(seed), Task(6, GB, Fraction(4))
        for rule in AtpRule:
            tree = tree_of(plan_atp(network, task, rule=rule, is_partial=False))
            paths = DeliveryTree.shortest(network.topology, tree.ps, tree.workers(network))
            adds = tree.switches(network)
            if rule is AtpRule.MULTI:
                assert tree.parents == paths.contracted(adds)
            else:
                partly = tree_of(plan_atp(network, task, rule=rule))
                assert measure(network, task, partly).rate >= measure(network, task, tree).rate


# -- SOAR


def brute_force(
    paths: DeliveryTree, allowed: Collection[int], most: int, hops: Callable[[int, int], int]
) -> int:
    return min(
        sum(hops(*edge) for edge in paths.contracted(adds).items())
        for count in range(min(most, len(allowed)) + 1)
        for adds in combinations(sorted(allowed), count)
    )


@pytest.mark.parametrize("switches_max", [0, 1, 2, 3, 7])
def test_soar_is_brute_force_over_all_sets_of_switches(switches_max: int) -> None:
    for seed in range(40):
        network = random_network(seed)
        draw = random.Random(f"{seed}/members")
        root, *members = draw.sample(range(network.topology.hosts), 7)
        paths = DeliveryTree.shortest(network.topology, root, members)
        chosen = switches_of_least_traffic(paths, network.programmable, switches_max)
        least = brute_force(paths, network.programmable, switches_max, network.hops)
        assert len(chosen) <= switches_max
        above = paths.contracted(chosen)
        assert sum(network.hops(*edge) for edge in above.items()) == least
        assert set(chosen) <= above.keys(), "each adds something up"


def test_with_all_switches_soar_is_adding_at_every_one_on_the_way() -> None:
    network, task = evaluated("e0.* e1.* a0.* a1.*", 20)
    found = measure(network, task, tree_of(plan_soar(network, task)))
    assert (found.hops, found.rate) == (38, Fraction(10, 6))
    assert measure(network, task, tree_of(plan_soar(network, task, switches_max=0))).hops == 100


# -- MARINA


def is_joined(topology: GraphTopology, switches: Collection[int], terminals: Collection[int]) -> bool:
    kept = set(switches)
    links = [link for link in topology.links if max(link.one, link.other) in kept]
    links = [link for link in links if min(link.one, link.other) in kept | set(terminals)]
    first = next(iter(kept), None)
    reached, waiting = {first}, [first]
    while waiting:
        node = waiting.pop()
        for link in links:
            for one, other in ((link.one, link.other), (link.other, link.one)):
                if one == node and other not in reached:
                    reached.add(other)
                    if other >= topology.hosts:
                        waiting.append(other)
    return set(terminals) <= reached


def test_steiner_trees_are_near_the_cheapest_set_of_switches() -> None:
    for seed in range(60):
        topology = random_graph(seed)
        draw = random.Random(f"{seed}/costs")
        costs = {switch: draw.choice([0, 1, 1, 3, 20]) for switch in range(topology.hosts, topology.nodes)}
        terminals = sorted(draw.sample(range(topology.hosts), draw.randint(2, 6)))
        parents = steiner_tree(topology, costs, terminals, terminals[0])
        assert {node for node in parents if node < topology.hosts} == set(terminals[1:])
        for node in terminals:
            for _ in range(topology.nodes):
                node = parents.get(node, node)
            assert node == terminals[0]
        used = [node for node in parents if node >= topology.hosts]
        cheapest = min(
            sum(costs[switch] for switch in chosen)
            for count in range(1, len(costs) + 1)
            for chosen in combinations(costs, count)
            if is_joined(topology, chosen, terminals)
        )
        bound = max(1.0, 2 * log(len(terminals)))
        assert cheapest <= sum(costs[switch] for switch in used) <= bound * cheapest


def test_marina_evens_the_load_of_switches_and_leaves_the_server_s() -> None:
    """All 35 workers: the only two switches that add are in the same pod."""
    network, task = evaluated("e0.0 e0.1", 35)
    found = measure(network, task, tree_of(plan_marina(network, task)))
    one, other = (found.loads[switch] for switch in switches_named(6, "e0.0 e0.1"))
    assert abs(one - other) <= 1
    assert found.loads[0] == 1


def test_marina_goes_where_switches_add_though_that_is_longer() -> None:
    """Two ways of two and three switches; only the longer one adds anything up."""
    links = [(0, 3), (1, 3), (2, 4), (3, 5), (5, 4), (3, 6), (6, 7), (7, 4)]
    topology = GraphTopology(
        ("h0", "h1", "h2"),
        tuple(GraphSwitch(f"s{number}") for number in range(3, 8)),
        tuple(GraphLink(*ends) for ends in links),
    )
    network = ProgrammableNetwork.uniform(topology, {6: TEN, 7: Fraction(5)}, TEN)
    costs = {3: 100, 4: 100, 5: 100, 6: 1, 7: 2}
    assert set(steiner_tree(topology, costs, [0, 1, 2], 2)) == {0, 1, 3, 4, 6, 7}
    tree = tree_of(plan_marina(network, Task(2, GB, Fraction(9)), ps=2))
    assert tree.parents == {0: 6, 1: 6, 6: 2}


# -- PANAMA


def test_adding_at_every_switch_on_the_way_to_the_server_is_the_printed_60_4_gb() -> None:
    network, task = evaluated("e0.* e1.* a0.* a1.*", 20)
    found = spread_of(plan_panama(network, task, roots=[0]))
    assert found.hops(network) == 38
    assert float(found.hops(network)) * 1627 / 1024 == pytest.approx(60.4, abs=0.05)


def test_panama_shares_a_gradient_among_its_trees() -> None:
    network, task = evaluated("e0.* e1.* a0.* a1.*", 20)
    found = spread_of(plan_panama(network, task))
    assert [root for root, _ in found.trees] == list(switches_named(6, "a0.* a1.*"))
    a00, e11 = switches_named(6, "a0.0") + switches_named(6, "e1.1")
    loads = found.loads()
    assert loads[e11] == 3
    # as the root of one tree of six: e0.*, a1.0 and three of pod 2; on the way to a1.0: e0.* and none else
    assert loads[a00] == Fraction(7 + 3, 6)
    assert found.hops(network) == 37
    assert found.rate(network, task) == Fraction(10, 3)


def test_without_a_switch_that_adds_nobody_has_the_sum() -> None:
    network, task = evaluated("", 20)
    found = plan_panama(network, task)
    assert isinstance(found, Infeasible)
    assert found.reason == "no switch adds gradients up, so nobody has the sum"


# -- all of them


@pytest.mark.parametrize("name", PLANNERS)
def test_requests_without_an_answer_have_a_reason_and_a_witness(name: str) -> None:
    network, _ = evaluated("e0.*", 1)
    plan = PLANNERS[name]
    many = plan(network, Task(54, GB, Fraction(5)))
    assert isinstance(many, Infeasible)
    assert many.witness == {"needed": 55, "idle": 54}
    busy = plan(network, Task(3, GB, Fraction(5)), busy=[4], ps=4)
    assert isinstance(busy, Infeasible)
    assert busy.witness == {"server": "h4"}
    weak = fat_tree_network(6, "e0.*", capacity=TEN, server=Fraction(0))
    assert isinstance(plan(weak, Task(3, GB, Fraction(5))), Infeasible)


@pytest.mark.parametrize("name", PLANNERS)
def test_servers_and_switches_that_no_path_leads_to_are_left_out(name: str) -> None:
    """Two racks of three servers, apart; each of the three switches adds up."""
    links = [(0, 6), (1, 6), (2, 6), (3, 7), (4, 7), (5, 7), (7, 8)]
    topology = GraphTopology(
        tuple(f"h{number}" for number in range(6)),
        tuple(GraphSwitch(f"s{number}") for number in range(6, 9)),
        tuple(GraphLink(*ends) for ends in links),
        may_be_apart=True,
    )
    network = ProgrammableNetwork.uniform(topology, dict.fromkeys((6, 7, 8), TEN), TEN)
    plan = PLANNERS[name]
    found = plan(network, Task(2, GB, Fraction(5)))
    if isinstance(found, SpreadTrees):
        assert (found.workers, [root for root, _ in found.trees]) == ((1, 2), [6])
    else:
        assert tree_of(found).workers(network) == (1, 2)
    many = plan(network, Task(3, GB, Fraction(5)))
    assert isinstance(many, Infeasible)
    assert many.witness == {"server": "h0", "needed": 3, "reach it": 2}


@pytest.mark.parametrize("name", PLANNERS)
def test_a_parameter_server_that_is_no_server_is_a_mistake(name: str) -> None:
    network, task = evaluated("e0.*", 3)
    for node in (-1, 54):
        with pytest.raises(LocalMisuse, match="no server"):
            PLANNERS[name](network, task, ps=node)


def test_a_root_that_is_no_node_or_adds_nothing_is_none() -> None:
    network, task = evaluated("e0.*", 3)
    with pytest.raises(LocalMisuse, match="none of the network"):
        plan_panama(network, task, roots=[1000])
    found = plan_panama(network, task, roots=switches_named(6, "c0"))
    assert isinstance(found, Infeasible)
    assert found.reason == "a root cannot add gradients up"


@pytest.mark.parametrize("name", [name for name in PLANNERS if name != "panama"])
def test_whatever_the_network_a_benchmark_s_tree_is_one_of_the_task(name: str) -> None:
    for seed in range(40):
        network, task = random_network(seed), Task(5, GB, Fraction(4))
        found = PLANNERS[name](network, task, busy=[3])
        assert isinstance(found, PlacedTree)
        told = measure(network, task, found)
        star = measure(network, task, tree_of(plan_deepsys(network, task, busy=[3])))
        assert 3 not in found.workers(network)
        assert found.workers(network) == tree_of(plan_deepsys(network, task, busy=[3])).workers(network)
        if name in ("soar", "atp"):
            assert told.hops <= star.hops
        if name == "atp":
            assert told.rate >= star.rate
        assert all(told.loads.get(switch, 0) > 1 for switch in found.switches(network))
