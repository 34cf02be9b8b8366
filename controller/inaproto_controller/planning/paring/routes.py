"""The links over which the gradients of a tree go: one shortest path for each of its edges.

PARING counts the links of an edge and does not say which they are. Of several shortest paths the one is taken
that goes through the fewest switches which add up for the same tree, since what passes there is not to be
summed; then by the lowest number of each next node. So all paths to one parent are a tree of their own, and
servers pass nothing on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise

from inaproto.errors import LocalMisuse
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.planning.paring.model import Node, PlacedTree

Hop = tuple[Node, Node]
"""A link, in the direction of the parameter server."""


class Routes:
    """Routes of one tree. Raises ``LocalMisuse`` where no path leads from a vertex to its parent."""

    def __init__(self, topology: GraphTopology, tree: PlacedTree) -> None:
        self._topology = topology
        self._tree = tree
        near: list[set[Node]] = [set() for _ in range(topology.nodes)]
        for link in topology.links:
            near[link.one].add(link.other)
            near[link.other].add(link.one)
        self._near = [sorted(one) for one in near]
        self._toward: dict[Node, dict[Node, Node]] = {}

    @cached_property
    def paths(self) -> Mapping[Node, tuple[Node, ...]]:
        """Paths of every vertex but the PS: from it to its parent, both included."""
        return {node: self._path(node, parent) for node, parent in sorted(self._tree.parents.items())}

    @cached_property
    def gradients(self) -> Mapping[Hop, int]:
        """Gradients that go over each link in one iteration."""
        found: Counter[Hop] = Counter()
        for path in self.paths.values():
            found.update(pairwise(path))
        return dict(sorted(found.items()))

    def _path(self, node: Node, parent: Node) -> tuple[Node, ...]:
        if parent not in self._toward:
            self._toward[parent] = self._next_hops(parent)
        toward, path = self._toward[parent], [node]
        while path[-1] != parent:
            if path[-1] not in toward:
                names = self._topology.name(node), self._topology.name(parent)
                raise LocalMisuse(f"no path leads from {names[0]} to {names[1]}")
            path.append(toward[path[-1]])
        return tuple(path)

    def _next_hops(self, target: Node) -> dict[Node, Node]:
        """Next hops of every node from which a path leads to ``target``."""
        hosts, adding = self._topology.hosts, set(self._tree.parents.values())
        through = {target: 0}
        """Switches that add up on the path of each node, less the ends."""
        toward: dict[Node, Node] = {}
        layer = [target]
        while layer:
            best: dict[Node, tuple[int, Node]] = {}
            for node in layer:
                if node < hosts and node != target:
                    continue
                cost = through[node] + (node in adding and node != target)
                for further in self._near[node]:
                    if further not in through:
                        best[further] = min(best.get(further, (cost, node)), (cost, node))
            for node, (cost, following) in best.items():
                through[node], toward[node] = cost, following
            layer = sorted(best)
        return toward
