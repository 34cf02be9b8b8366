"""All trees of a small task of PARING, one by one: what planners are held against.

Nothing of the planners' own is used: paths are networkx's, loads are counted from section III-C, and who
sends to whom is tried in every way. Workers as leaves: each forest of switches under each parameter server
(PS), and below it the cheapest workers by dynamic programming over servers. Workers that add up: all parents
of all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property
from itertools import combinations, product
from math import inf
from random import Random

import networkx as nx

from inaproto_controller.cluster.graph_topology import GraphLink, GraphSwitch, GraphTopology
from inaproto_controller.planning.paring.model import Accounting, Capacity, Node, ProgrammableNetwork, Task

Forest = Mapping[Node, Node]
"""Parents of switches."""


@dataclass(frozen=True, eq=False)
class AllTrees:
    network: ProgrammableNetwork
    task: Task
    busy: Collection[Node] = ()
    fees: Mapping[Node, Fraction] = field(default_factory=dict)

    @cached_property
    def idle(self) -> list[Node]:
        return [server for server in range(self.network.topology.hosts) if server not in set(self.busy)]

    @cached_property
    def adding(self) -> list[Node]:
        """Switches."""
        hosts, nodes = self.network.topology.hosts, self.network.topology.nodes
        return [switch for switch in range(hosts, nodes) if self.network.capacities[switch] != 0]

    @cached_property
    def away(self) -> dict[tuple[Node, Node], float]:
        """Links of a shortest path over switches."""
        topology = self.network.topology
        graph = nx.Graph((link.one, link.other) for link in topology.links)
        graph.add_nodes_from(range(topology.nodes))
        found: dict[tuple[Node, Node], float] = {}
        for one, other in product(range(topology.nodes), repeat=2):
            way = graph.subgraph({one, other, *range(topology.hosts, topology.nodes)})
            is_joined = nx.has_path(way, one, other)
            found[one, other] = nx.shortest_path_length(way, one, other) if is_joined else inf
        return found

    def room(self, node: Node, rate: Fraction) -> int:
        """Children that a switch or the PS may have."""
        most = self.task.workers + len(self.network.topology.switches)
        capacity = self.network.capacities[node]
        if capacity is None:
            return most
        is_spared = node >= self.network.topology.hosts and self.task.accounting is Accounting.PAPER
        return min(most, int(capacity / rate) + is_spared) if capacity else 0

    def rates(self) -> list[Fraction]:
        """That a tree may have, falling."""
        most = self.task.workers + len(self.network.topology.switches) + 1
        finite = {one for one in (*self.network.capacities, self.task.worker_capacity) if one}
        every = {one / share for one in finite for share in range(1, most)}
        return sorted(
            {rate for rate in every if rate < self.task.rate_cap} | {self.task.rate_cap}, reverse=True
        )

    def forests(self, ps: Node) -> Iterator[Forest]:
        for count in range(len(self.adding) + 1):
            for chosen in combinations(self.adding, count):
                for parents in product((ps, *chosen), repeat=count):
                    forest = dict(zip(chosen, parents, strict=True))
                    if all(_ends_at(forest, one, ps) for one in chosen):
                        yield forest

    def costs(self, rate: Fraction) -> Iterator[tuple[float, Fraction]]:
        """Links, and fees, of the cheapest workers below each forest; workers are leaves."""
        for ps in self.idle:
            if not self.room(ps, rate):
                continue
            for forest in self.forests(ps):
                hops = sum(self.away[one, parent] for one, parent in forest.items())
                adders = (ps, *forest)
                rooms = [self.room(one, rate) - list(forest.values()).count(one) for one in adders]
                if hops == inf or min(rooms) < 0:
                    continue
                workers = self._workers(ps, adders, tuple(min(room, self.task.workers) for room in rooms))
                if workers < inf:
                    fee = sum((self.fees.get(one, Fraction(0)) for one in forest), Fraction(0))
                    yield hops + workers, fee

    def _workers(self, ps: Node, adders: tuple[Node, ...], rooms: tuple[int, ...]) -> float:
        """Links of the cheapest; infinite: there is no place for all."""
        servers = [one for one in self.idle if one != ps]

        @cache
        def rest(number: int, left: tuple[int, ...], workers: int) -> float:
            if not workers:
                return 0
            if number == len(servers):
                return inf
            best = rest(number + 1, left, workers)
            for at, room in enumerate(left):
                hops = self.away[servers[number], adders[at]]
                if room and hops < inf:
                    fewer = (*left[:at], room - 1, *left[at + 1 :])
                    best = min(best, hops + rest(number + 1, fewer, workers - 1))
            return best

        return rest(0, rooms, self.task.workers)

    @cached_property
    def highest(self) -> Fraction | None:
        """Rate of any tree of leaves; None: there is no tree."""
        return next((rate for rate in self.rates() if any(True for _ in self.costs(rate))), None)

    def fewest(self, rate: Fraction) -> float:
        """Links of any tree of leaves at a rate."""
        return min((hops for hops, _ in self.costs(rate)), default=inf)

    def cheapest(self, rate: Fraction, budget: Fraction | None = None) -> float | Fraction:
        """Links and fees together, of trees of leaves whose fees are within the budget."""
        within = (hops + fee for hops, fee in self.costs(rate) if budget is None or fee <= budget)
        return min(within, default=inf)

    def least_fees(self, rate: Fraction) -> float | Fraction:
        return min((fee for _, fee in self.costs(rate)), default=inf)

    def highest_within(self, budget: Fraction) -> Fraction | None:
        return next((rate for rate in self.rates() if self.least_fees(rate) <= budget), None)

    def highest_of_inner(self) -> Fraction | None:
        """Rate of any tree, of workers that add up, too."""
        return max((rate for rate, _ in self._inner()), default=None)

    def fewest_of_inner(self, rate: Fraction) -> float:
        return min((hops for other, hops in self._inner() if other >= rate), default=inf)

    def _inner(self) -> Iterator[tuple[Fraction, float]]:
        for ps in self.idle:
            others = [one for one in self.idle if one != ps]
            for workers in combinations(others, self.task.workers):
                for count in range(len(self.adding) + 1):
                    for chosen in combinations(self.adding, count):
                        vertices = (*workers, *chosen)
                        for parents in product((ps, *vertices), repeat=len(vertices)):
                            told = self._told(ps, dict(zip(vertices, parents, strict=True)))
                            if told is not None:
                                yield told

    def _told(self, ps: Node, parents: Forest) -> tuple[Fraction, float] | None:
        hosts = self.network.topology.hosts
        children = list(parents.values())
        rate, hops = self.task.rate_cap, sum(self.away[pair] for pair in parents.items())
        if hops == inf or any(one >= hosts and one not in children for one in parents):
            return None
        if not all(_ends_at(parents, one, ps) for one in parents):
            return None
        for one in set(children):
            capacity, load = self.network.capacities[one], children.count(one)
            if one < hosts and one != ps:
                capacity, load = self.task.worker_capacity, load + 1
            elif one >= hosts and self.task.accounting is Accounting.PAPER:
                load -= 1
            if capacity == 0:
                return None
            if capacity is not None and load:
                rate = min(rate, capacity / load)
        return rate, hops


def _ends_at(parents: Forest, node: Node, ps: Node) -> bool:
    steps = 0
    while node in parents and steps <= len(parents):
        node, steps = parents[node], steps + 1
    return node == ps


_SERVER: tuple[Capacity, ...] = (Fraction(10), Fraction(10), Fraction(4), Fraction(7, 2), Fraction(0), None)
_SWITCH: tuple[Capacity, ...] = (Fraction(10), Fraction(6), Fraction(3), Fraction(1), Fraction(8, 3), None)


def small_network(draw: Random, *, joined: float = 1.0, hosts: int = 6) -> ProgrammableNetwork:
    """4 or so switches, of which 3 add up at most; ``joined``: how likely all are of one plane."""
    switches = draw.randint(2, 4)
    is_joined = draw.random() < joined
    links = set[tuple[int, int]]()
    for number in range(1, switches):
        if is_joined or draw.random() < 0.5:
            links.add((hosts + draw.randrange(number), hosts + number))
    for _ in range(draw.randint(0, 1) if is_joined else 0):
        one, other = sorted(draw.sample(range(switches), 2))
        links.add((hosts + one, hosts + other))
    for host in range(hosts):
        for home in draw.sample(range(switches), min(switches, draw.choice((1, 1, 2)))):
            links.add((host, hosts + home))
    topology = GraphTopology(
        tuple(f"h{number}" for number in range(hosts)),
        tuple(GraphSwitch(f"s{number}") for number in range(switches)),
        tuple(GraphLink(*ends) for ends in sorted(links)),
        may_be_apart=True,
    )
    able = set(draw.sample(range(switches), min(switches, draw.randint(1, 3))))
    uniform = draw.choice((None, Fraction(10), Fraction(2)))
    servers = [uniform or draw.choice(_SERVER) for _ in range(hosts)]
    adding = [draw.choice(_SWITCH) if number in able else Fraction(0) for number in range(switches)]
    return ProgrammableNetwork(topology, (*servers, *adding))


def small_task(
    draw: Random, network: ProgrammableNetwork, *, workers: int = 4
) -> tuple[Task, frozenset[Node]]:
    """And which servers are busy."""
    hosts = network.topology.hosts
    busy = frozenset(draw.sample(range(hosts), draw.choice((0, 0, 1))))
    cap = Fraction(draw.choice((1, 2, 5, 100)), draw.choice((1, 1, 3)))
    count = draw.randint(1, min(workers, hosts - 1 - len(busy)))
    return Task(count, 1000, cap, accounting=draw.choice(list(Accounting))), busy
