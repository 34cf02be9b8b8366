"""What PARING is given, and what it returns: a network with programmable switches, a task, a tree.

PARING section III. A task has n workers and one parameter server (PS). Its tree is rooted at the PS; each
edge, from a vertex to its parent, carries one gradient along a shortest path of the network. A switch of the
tree adds up what its children send, and so does the PS. Whoever adds up has a load: the gradients that its
capacity is shared by. The sending rate of the task is the least of its cap and all capacities by load, so it
is a fraction, exactly.

Where the paper is silent, or says two things:

- A gradient that a switch sends up counts in no load of that switch, but in its parent's (``STRICT``). The
  printed rates of the paper fit another rule: a switch has one input free (``PAPER``).
- A worker with children adds its own gradient to theirs, which counts. By default a worker has no capacity
  and is a leaf.
- The multicast of the result back down counts in no traffic, as in the paper's figure 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Final, NamedTuple

from inaproto.errors import ConfigError, LocalMisuse
from inaproto_controller.cluster.graph_topology import UNREACHABLE, GraphTopology

Node = int
"""As ``GraphTopology`` numbers them: hosts first, then switches. Hosts are the paper's servers."""

Capacity = Fraction | None
"""Capacity of adding up, in Gbit/s; None: no bound (a P4 switch adds at line rate), 0: it adds nothing up."""

ZERO: Final = Fraction(0)


class Accounting(Enum):
    """How many gradients the capacity of a switch is shared by."""

    STRICT = "strict"
    """As many as it has children."""
    PAPER = "paper"
    """One fewer: what the printed rates of the evaluation fit."""


@dataclass(frozen=True)
class ProgrammableNetwork:
    """Raises ``ConfigError`` for capacities that do not fit the topology or are negative."""

    topology: GraphTopology
    capacities: tuple[Capacity, ...]
    """Capacity of each node."""

    def __post_init__(self) -> None:
        if len(self.capacities) != self.topology.nodes:
            raise ConfigError(f"{len(self.capacities)} capacities for {self.topology.nodes} nodes")
        for node, capacity in enumerate(self.capacities):
            if capacity is not None and capacity < 0:
                raise ConfigError(f"{self.topology.name(node)}: capacity {capacity}: 0 or more Gbit/s")

    @classmethod
    def uniform(
        cls, topology: GraphTopology, programmable: Mapping[Node, Capacity], server: Capacity
    ) -> ProgrammableNetwork:
        """Servers alike; switches that are not in ``programmable`` add nothing up."""
        hosts = topology.hosts
        return cls(
            topology,
            tuple(server if node < hosts else programmable.get(node, ZERO) for node in range(topology.nodes)),
        )

    @property
    def programmable(self) -> tuple[Node, ...]:
        """The switches that add anything up, in order."""
        hosts = self.topology.hosts
        return tuple(node for node in range(hosts, self.topology.nodes) if self.capacities[node] != 0)

    def hops(self, one: Node, other: Node) -> int:
        """Links on a shortest path; servers pass nothing on. Raises ``LocalMisuse`` where none leads."""
        distance = self.distance(one, other)
        if distance >= UNREACHABLE:
            names = self.topology.name(one), self.topology.name(other)
            raise LocalMisuse(f"no path leads from {names[0]} to {names[1]}")
        return distance

    def distance(self, one: Node, other: Node) -> int:
        """As ``hops``; ``UNREACHABLE`` or more where no path leads."""
        hosts, distances = self.topology.hosts, self.topology.all_distances
        if one == other:
            return 0
        if one >= hosts:
            return int(distances[one - hosts, other])
        if other >= hosts:
            return int(distances[other - hosts, one])
        return 1 + min(int(distances[switch, other]) for switch in self.homes[one])

    @property
    def homes(self) -> tuple[tuple[int, ...], ...]:
        """Switches (numbered from 0) that each server is linked to."""
        return self.topology.homes


@dataclass(frozen=True, slots=True)
class Task:
    """Raises ``ConfigError`` for what is none."""

    workers: int
    """n; the parameter server is a server more."""
    gradient_bytes: int
    """b, that each worker sends in one iteration."""
    rate_cap: Fraction
    """R, in Gbit/s, that a worker sends at most."""
    worker_capacity: Capacity = ZERO
    """B of a worker as an aggregator; 0: workers are leaves. The PS has that of its server."""
    accounting: Accounting = Accounting.STRICT

    def __post_init__(self) -> None:
        for name, value in (("workers", self.workers), ("gradient bytes", self.gradient_bytes)):
            if value < 1:
                raise ConfigError(f"{name} {value}: at least 1")
        if self.rate_cap <= 0:
            raise ConfigError(f"rate cap {self.rate_cap} Gbit/s: more than 0")
        if self.worker_capacity is not None and self.worker_capacity < 0:
            raise ConfigError(f"worker capacity {self.worker_capacity} Gbit/s: 0 or more")


@dataclass(frozen=True, slots=True)
class PlacedTree:
    """Where a task is, and whom everyone sends to."""

    ps: Node
    parents: Mapping[Node, Node]
    """Parents of every worker and every switch of the tree."""

    def workers(self, network: ProgrammableNetwork) -> tuple[Node, ...]:
        return tuple(sorted(node for node in self.parents if node < network.topology.hosts))

    def switches(self, network: ProgrammableNetwork) -> tuple[Node, ...]:
        return tuple(sorted(node for node in self.parents if node >= network.topology.hosts))


class Measures(NamedTuple):
    """What a tree comes to."""

    rate: Fraction
    """r, in Gbit/s."""
    hops: int
    """Links that carry the gradients of one iteration, each counted as often as it does."""
    loads: dict[Node, int]
    """Loads of all that add anything up."""

    def traffic_bytes(self, task: Task) -> int:
        return self.hops * task.gradient_bytes

    def seconds(self, task: Task) -> Fraction:
        """Time to send the gradients of one iteration."""
        return task.gradient_bytes * 8 / (self.rate * 10**9)


def measure(network: ProgrammableNetwork, task: Task, tree: PlacedTree) -> Measures:
    """Rate, hops and loads, from the definition; raises ``LocalMisuse``, which says why, for what is no tree
    of the task. All planners are judged by it."""
    _check(network, task, tree)
    children = Counter(tree.parents.values())
    hosts = network.topology.hosts
    rate, loads = task.rate_cap, {}
    for node, count in sorted(children.items()):
        is_worker = node < hosts and node != tree.ps
        is_spared = node >= hosts and task.accounting is Accounting.PAPER
        loads[node] = load = count + is_worker - is_spared
        capacity = task.worker_capacity if is_worker else network.capacities[node]
        if capacity is not None and load:
            rate = min(rate, capacity / load)
    return Measures(rate, sum(network.hops(node, parent) for node, parent in tree.parents.items()), loads)


def _check(network: ProgrammableNetwork, task: Task, tree: PlacedTree) -> None:
    topology, parents = network.topology, tree.parents
    if not 0 <= tree.ps < topology.hosts or tree.ps in parents:
        raise LocalMisuse(f"node {tree.ps} is no server, or no root: it cannot be the parameter server")
    count = len(tree.workers(network))
    if count != task.workers:
        raise LocalMisuse(f"a tree of {count} workers for a task of {task.workers}")
    adding = set(parents.values())
    for node in sorted(adding | parents.keys()):
        if not 0 <= node < topology.nodes:
            raise LocalMisuse(f"node {node} is none of the network")
        if node >= topology.hosts and node not in adding:
            raise LocalMisuse(f"switch {topology.name(node)} is in the tree and adds nothing up")
        capacity = (
            task.worker_capacity if node < topology.hosts and node != tree.ps else network.capacities[node]
        )
        if node in adding and capacity == 0:
            raise LocalMisuse(f"{topology.name(node)} is to add up, but has no capacity for it")
        top, steps = node, 0
        while top in parents and steps <= len(parents):
            top, steps = parents[top], steps + 1
        if top != tree.ps:
            raise LocalMisuse(f"{topology.name(node)} does not lead to the parameter server")
