"""PARING section IV-A, step 2: the highest sending rate, by counting places for children."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, product

import pytest

from inaproto.errors import Infeasible, LocalMisuse
from inaproto_controller.cluster.graph_topology import GraphLink, GraphSwitch, GraphTopology
from inaproto_controller.planning.paring.fat_tree_names import fat_tree_network
from inaproto_controller.planning.paring.model import (
    Accounting,
    Capacity,
    PlacedTree,
    ProgrammableNetwork,
    Task,
    measure,
)
from inaproto_controller.planning.paring.rates import BestRate, best_rate, slots

TEN, MANY = Fraction(10), Fraction(1000)
STRICT, PAPER = Accounting.STRICT, Accounting.PAPER
SWITCHES = {2: "e0.0 e0.1", 4: "e0.* e1.0", 8: "e0.* e1.* a0.0 a1.0", 12: "e0.* e1.* a0.* a1.*"}


@pytest.mark.parametrize(
    ("accounting", "switches", "n", "least"),
    [
        *((STRICT, *row) for row in [(2, 20, 8), (8, 20, 4), (12, 20, 3), (8, 35, 5), (4, 35, 8)]),
        *((PAPER, *row) for row in [(2, 20, 7), (8, 20, 3), (8, 35, 4), (8, 15, 2), (12, 20, 2)]),
    ],
    ids=str,
)
def test_how_many_share_the_capacity(accounting: Accounting, switches: int, n: int, least: int) -> None:
    """Uniform capacities of 10 Gbit/s: r* is 10 / m."""
    found = best_rate(
        fat_tree_network(6, SWITCHES[switches], capacity=TEN), Task(n, 1, MANY, accounting=accounting)
    )
    assert isinstance(found, BestRate)
    assert found.rate == TEN / least
    assert found.slots >= found.edges == n + switches


def test_the_cap_is_the_rate_where_capacities_allow_it() -> None:
    network = fat_tree_network(6, SWITCHES[8], capacity=TEN)
    for cap, rate in (("0.4", "2/5"), ("2.5", "5/2"), ("6", "5/2")):
        found = best_rate(network, Task(20, 1, Fraction(cap)))
        assert isinstance(found, BestRate)
        assert found.rate == Fraction(rate)


def star(ps: Capacity, switches: tuple[Capacity, ...], n: int) -> ProgrammableNetwork:
    """n + 1 servers at an ordinary switch, and switches around it; only server 0 can be the PS."""
    hosts, hub = n + 1, n + 1
    links = [GraphLink(host, hub) for host in range(hosts)]
    links += [GraphLink(hub, hub + 1 + number) for number in range(len(switches))]
    names = tuple(f"s{number}" for number in range(len(switches) + 1))
    topology = GraphTopology(
        tuple(f"h{host}" for host in range(hosts)), tuple(map(GraphSwitch, names)), tuple(links)
    )
    return ProgrammableNetwork(topology, (ps, *[Fraction(0)] * n, Fraction(0), *switches))


def all_trees(n: int, switches: int) -> Iterator[PlacedTree]:
    """And much that is none: all choices of parents among PS 0, workers 1..n and switches after the hub."""
    for count in range(switches + 1):
        for chosen in combinations(range(n + 2, n + 2 + switches), count):
            vertices = (*range(1, n + 1), *chosen)
            for parents in product((0, *vertices), repeat=len(vertices)):
                if all(one != other for one, other in zip(vertices, parents, strict=True)):
                    yield PlacedTree(0, dict(zip(vertices, parents, strict=True)))


def highest_of_all_trees(network: ProgrammableNetwork, task: Task) -> Fraction:
    best = Fraction(0)
    for tree in all_trees(task.workers, len(network.programmable)):
        try:
            best = max(best, measure(network, task, tree).rate)
        except LocalMisuse:
            continue
    return best


F = Fraction
CASES: list[tuple[int, Capacity, tuple[Capacity, ...], Capacity]] = [
    (3, F(2), (F(2), F(2)), F(0)),
    (3, F(2), (F(3), F(7)), F(0)),
    (3, F(1, 3), (F(9), F(9)), F(0)),  # the PS is the bottleneck, however much the switches have
    (3, F(2), (F(1), F(1, 2)), F(0)),  # switches that gain nothing, or with ``PAPER`` just something
    (3, F(5), (None,), F(0)),
    (3, None, (F(1),), F(0)),
    (4, F(2), (F(2),), F(2)),
    (4, F(2), (), F(2)),
    (4, F(1), (F(2),), F(3)),
    (4, F(1), (), None),
    (1, F(3), (F(9),), F(9)),
    (2, F(4), (F(4),), F(1, 2)),
]


@pytest.mark.parametrize("accounting", list(Accounting), ids=lambda accounting: accounting.value)
@pytest.mark.parametrize(
    ("n", "ps", "switches", "worker"), CASES, ids=lambda value: str(value).replace("Fraction", "")
)
@pytest.mark.parametrize("cap", [F(1, 4), F(3, 2), MANY], ids=str)
def test_no_tree_at_all_is_faster(
    n: int,
    ps: Capacity,
    switches: tuple[Capacity, ...],
    worker: Capacity,
    accounting: Accounting,
    cap: Fraction,
) -> None:
    network = star(ps, switches, n)
    task = Task(n, 1, cap, worker, accounting)
    found = best_rate(network, task)
    assert isinstance(found, BestRate)
    assert found.rate == highest_of_all_trees(network, task)


def test_a_slow_server_bounds_whatever_the_switches_have() -> None:
    """Departure: counting all places alike, as the paper does, would allow 1 Gbit/s here."""
    network = star(Fraction(1, 2), (MANY,), 5)
    found = best_rate(network, Task(5, 1, Fraction(1)))
    assert isinstance(found, BestRate)
    assert found.rate == Fraction(1, 2)


def test_line_13_rates_are_not_rounded_down_to_whole_units() -> None:
    """As printed, r = floor(2 / 3) = 0, and the next step divides by it."""
    found = best_rate(fat_tree_network(4, "e0.0", capacity=Fraction(2)), Task(5, 1, MANY))
    assert isinstance(found, BestRate)
    assert found.rate == Fraction(2, 3)


def test_section_4_c_a_switch_without_bound_takes_all() -> None:
    """As printed, inf / inf; a P4 switch adds up whatever comes."""
    found = best_rate(fat_tree_network(4, "e0.0", capacity=None, server=Fraction(2)), Task(9, 1, MANY))
    assert isinstance(found, BestRate)
    assert found.rate == 2
    assert slots(None, Fraction(2), 9) == 9


def test_lines_14_and_15_workers_send_even_if_they_cannot_add_up() -> None:
    """As printed, workers leave V1 and with them the gradients that they send: 20 workers, no switch."""
    found = best_rate(fat_tree_network(6, "", capacity=TEN), Task(20, 1, MANY))
    assert isinstance(found, BestRate)
    assert found.rate == Fraction(1, 2)


def test_lines_10_and_11_the_own_gradient_of_a_worker_takes_a_place() -> None:
    """As printed, 4 + 4 places are enough for 4 gradients at once; a worker of 2 has one child at r = 1."""
    found = best_rate(star(Fraction(1), (), 4), Task(4, 1, MANY, Fraction(2)))
    assert isinstance(found, BestRate)
    assert found.rate == 1
    found = best_rate(star(Fraction(1), (), 4), Task(4, 1, MANY, Fraction(1)))
    assert isinstance(found, BestRate)
    assert found.rate == Fraction(1, 2)


def test_the_fastest_idle_server_is_the_ps() -> None:
    network = star(Fraction(8), (), 4)
    quicker = ProgrammableNetwork(network.topology, (F(8), F(4), F(4), F(0), F(0), F(0)))
    assert best_rate(quicker, Task(2, 1, MANY)) == BestRate(Fraction(4), Fraction(8), 2, 2)
    assert best_rate(quicker, Task(2, 1, MANY), [0]) == BestRate(Fraction(2), Fraction(4), 2, 2)


@pytest.mark.parametrize(
    ("server", "n", "busy", "words"),
    [
        (TEN, 16, [], "too few servers for the workers and a parameter server (needed: 17, idle: 16)"),
        (TEN, 9, range(7), "too few servers for the workers and a parameter server (needed: 10, idle: 9)"),
        (
            Fraction(0),
            3,
            [],
            "no idle server can add gradients up (server: h0, capacity: 0)",
        ),
    ],
    ids=["all", "busy", "capacity"],
)
def test_requests_without_an_answer(server: Fraction, n: int, busy: list[int], words: str) -> None:
    found = best_rate(fat_tree_network(4, "e*.*", capacity=TEN, server=server), Task(n, 1, MANY), busy)
    assert isinstance(found, Infeasible)
    assert str(found) == words
