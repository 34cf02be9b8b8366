"""Shortest ways to one node, as one tree of links, and what is left of it where only some switches add up.

PARING section V-B: the benchmarks send along the shortest paths of a fixed placement. Of several shortest
ways the one over the lowest numbers is taken, so that in a fat tree all go by the first aggregation switch of
a pod and the first core switch, as in the paper's figure 1.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from inaproto.errors import LocalMisuse
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.planning.paring.model import Node


@dataclass(frozen=True)
class DeliveryTree:
    root: Node
    members: tuple[Node, ...]
    """Who sends, ascending."""
    parents: Mapping[Node, Node]
    """The next node of every node on the way of a member."""

    @classmethod
    def shortest(cls, topology: GraphTopology, root: Node, members: Collection[Node]) -> DeliveryTree:
        """Raises ``LocalMisuse`` where no path leads to the root. Servers pass nothing on."""
        found = nearest_parents(topology, root)
        parents: dict[Node, Node] = {}
        for member in sorted(members):
            node = member
            while node != root and node not in parents:
                if node not in found:
                    names = topology.name(member), topology.name(root)
                    raise LocalMisuse(f"no path leads from {names[0]} to {names[1]}")
                parents[node] = found[node]
                node = found[node]
        return cls(root, tuple(sorted(members)), parents)

    def upwards(self) -> Iterator[Node]:
        """All nodes, whoever sends to a node before it; the root last."""
        children = self.children
        order = [self.root]
        for node in order:
            order += children.get(node, ())
        return reversed(order)

    @property
    def children(self) -> dict[Node, list[Node]]:
        """Ascending, of those that have any."""
        found: dict[Node, list[Node]] = {}
        for node, parent in sorted(self.parents.items()):
            found.setdefault(parent, []).append(node)
        return found

    def contracted(self, adds: Collection[Node]) -> dict[Node, Node]:
        """Whom each member, and each of ``adds`` that two or more send to, sends to: the next of them, or the
        root. A switch that one alone sends to has nothing to add, and passes on."""
        stops = set(adds)
        while True:
            senders = [*self.members, *sorted(stops & self.parents.keys())]
            above = {node: self._stop_above(node, stops) for node in senders}
            inputs = Counter(above.values())
            useful = {node for node in stops if inputs[node] > 1}
            if useful == stops:
                return above
            stops = useful

    def _stop_above(self, node: Node, stops: Collection[Node]) -> Node:
        node = self.parents[node]
        while node != self.root and node not in stops:
            node = self.parents[node]
        return node


def nearest_parents(topology: GraphTopology, root: Node) -> dict[Node, Node]:
    """The next node of a shortest way to ``root``, the lowest of them, for every node that a path leads
    from."""
    near = neighbours(topology)
    hops = {root: 0}
    queue = deque([root])
    parents: dict[Node, Node] = {}
    while queue:
        node = queue.popleft()
        if node < topology.hosts and node != root:
            continue
        for other in near[node]:
            if other not in hops:
                hops[other] = hops[node] + 1
                parents[other] = node
                queue.append(other)
            elif other != root and hops[other] == hops[node] + 1:
                parents[other] = min(parents[other], node)
    return parents


def neighbours(topology: GraphTopology) -> Sequence[Sequence[Node]]:
    """Neighbours by node, ascending."""
    found: list[set[Node]] = [set() for _ in range(topology.nodes)]
    for link in topology.links:
        found[link.one].add(link.other)
        found[link.other].add(link.one)
    return [sorted(nodes) for nodes in found]
