"""Small networks without order, for PARING's planners and benchmarks."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations

from inaproto_controller.cluster.graph_topology import GraphLink, GraphSwitch, GraphTopology
from inaproto_controller.planning.paring.model import ProgrammableNetwork

TEN = Fraction(10)


def random_graph(seed: int, *, switches: int = 6, hosts: int = 8) -> GraphTopology:
    """Switches joined at random, hosts of which some are linked twice."""
    draw = random.Random(f"{seed}/graph")
    links = {(hosts + draw.randrange(number), hosts + number) for number in range(1, switches)}
    links |= {
        (hosts + one, hosts + other) for one, other in combinations(range(switches), 2) if draw.random() < 0.2
    }
    for host in range(hosts):
        links |= {(host, hosts + draw.randrange(switches)) for _ in range(draw.choice([1, 1, 2]))}
    return GraphTopology(
        tuple(f"h{number}" for number in range(hosts)),
        tuple(GraphSwitch(f"s{number}") for number in range(switches)),
        tuple(GraphLink(*ends) for ends in sorted(links)),
    )


def random_network(seed: int) -> ProgrammableNetwork:
    topology = random_graph(seed)
    draw = random.Random(f"{seed}/capacities")
    capacities = [None, Fraction(0), Fraction(2), Fraction(5), Fraction(7, 2), TEN]
    switches = {node: draw.choice(capacities) for node in range(topology.hosts, topology.nodes)}
    return ProgrammableNetwork.uniform(topology, switches, TEN)
