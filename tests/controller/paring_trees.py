"""Trees of PARING drawn from a seed: any tree of any task, on networks whose capacities differ."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.planning.paring.model import Accounting, PlacedTree, ProgrammableNetwork, Task


def draw_network(draw: Random, topology: GraphTopology) -> ProgrammableNetwork:
    switches = range(topology.hosts, topology.nodes)
    capacities = {node: _capacity(draw) for node in switches if draw.random() < 0.6}
    return ProgrammableNetwork.uniform(topology, capacities, Fraction(draw.choice((1, 2, 3, 10))))


def draw_tree(draw: Random, network: ProgrammableNetwork) -> tuple[Task, PlacedTree]:
    """A task, and a tree of it: who has whom as parent is drawn."""
    hosts = network.topology.hosts
    ps, *workers = draw.sample(range(hosts), draw.randint(3, min(hosts, 12)))
    is_inner = draw.random() < 0.4
    adding, parents = [ps], {}
    for switch in network.programmable:
        if draw.random() < 0.6:
            parents[switch] = draw.choice(adding)
            adding.append(switch)
    for worker in workers:
        parents[worker] = draw.choice(adding)
        if is_inner and draw.random() < 0.4:
            adding.append(worker)
    while idle := [node for node in parents if node >= hosts and node not in parents.values()]:
        for node in idle:
            del parents[node]
    task = Task(
        len(workers),
        10**6,
        Fraction(draw.choice((1, 3, 20)), draw.choice((1, 2))),
        worker_capacity=Fraction(2) if is_inner else Fraction(0),
        accounting=draw.choice(list(Accounting)),
    )
    return task, PlacedTree(ps, parents)


def _capacity(draw: Random) -> Fraction | None:
    if draw.random() < 0.1:
        return None
    return Fraction(draw.choice((1, 2, 3, 5, 7, 10)), draw.choice((1, 1, 2, 3)))
