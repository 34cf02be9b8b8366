"""What PARING's planners are asked, drawn from a seed: any shape, capacities that differ, masks."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from inaproto_controller.planning.paring.fat_tree_names import fat_tree_network, switch_name
from inaproto_controller.planning.paring.model import Accounting, Capacity, ProgrammableNetwork, Task
from tests.controller.paring_networks import random_graph

CAPACITIES: tuple[Capacity, ...] = (
    *map(Fraction, (0, 0, 1, 2, 3, 10)),
    Fraction(1, 3),
    Fraction(5, 2),
    None,
)


def irregular_network(seed: int) -> ProgrammableNetwork:
    """8 to 24 servers, 4 to 9 switches; capacities of ``CAPACITIES``, but server 0 can always be a PS."""
    draw = np.random.default_rng(seed)
    hosts = int(draw.integers(8, 25))
    topology = random_graph(seed, switches=int(draw.integers(4, 10)), hosts=hosts)
    chosen = [CAPACITIES[int(number)] for number in draw.integers(len(CAPACITIES), size=topology.nodes)]
    return ProgrammableNetwork(topology, (Fraction(2), *chosen[1:]))


def drawn_task(seed: int, network: ProgrammableNetwork) -> tuple[Task, frozenset[int]]:
    """A task that fits, of leaf or interior workers in either accounting, and servers that are busy."""
    draw = np.random.default_rng([seed, 1])
    hosts = network.topology.hosts
    busy = frozenset(
        int(host) + 1 for host in draw.choice(hosts - 1, int(draw.integers(hosts // 2)), replace=False)
    )
    task = Task(
        int(draw.integers(1, hosts - len(busy))),
        1000,
        Fraction(int(draw.integers(1, 40)), 2),
        CAPACITIES[int(draw.integers(len(CAPACITIES)))] if draw.integers(2) else Fraction(0),
        Accounting.PAPER if draw.integers(3) == 0 else Accounting.STRICT,
    )
    return task, busy


def random_mask(draw: np.random.Generator, degree: int, count: int) -> str:
    """Names of so many switches of a fat tree, of all layers."""
    first = degree**3 // 4
    chosen = draw.choice(degree * degree * 5 // 4, count, replace=False)
    return " ".join(switch_name(degree, first + int(number)) for number in sorted(chosen))


def masked(degree: int, names: str) -> ProgrammableNetwork:
    """A fat tree with these programmable switches; all capacities 10 Gbit/s, as in section V."""
    return fat_tree_network(degree, names, capacity=Fraction(10))
