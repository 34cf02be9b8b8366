"""A cheap tree of a network that joins given nodes, where nodes cost and links do not (Klein and Ravi).

Each terminal begins as a tree of its own. As long as there are several, the cheapest spider joins some: a
centre and the cheapest ways from it to two or more trees, by cost for each tree joined. What it costs is at
most 2 ln(terminals) of the least. Servers pass nothing on, so a way ends at one only if that is its tree.

Costs are whole numbers; equal ones are told apart by links, then by how many trees are joined (more), then by
the lowest centre.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction

from inaproto.errors import LocalMisuse
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.planning.paring.baselines.delivery_tree import neighbours
from inaproto_controller.planning.paring.model import Node

_Cost = tuple[int, int]
"""Cost of the nodes of a way, ends left out, and its links."""


def steiner_tree(
    topology: GraphTopology, costs: Mapping[Node, int], terminals: Collection[Node], root: Node
) -> dict[Node, Node]:
    """Parents of all nodes of a tree that leads to ``root``, one of the terminals, which are servers.

    ``costs``: of switches. Raises ``LocalMisuse`` where no path joins the terminals.
    """
    near = neighbours(topology)
    alone = [frozenset({terminal}) for terminal in sorted(terminals)]
    ways = {tree: _Ways(topology, near, costs, tree) for tree in alone}
    while len(ways) > 1:
        spider = _cheapest_spider(topology, costs, ways)
        met = [tree for tree in ways if tree & spider]
        joined = frozenset(spider).union(*met)
        ways = {tree: way for tree, way in ways.items() if tree not in met}
        ways[joined] = _Ways(topology, near, costs, joined)
    return _rooted(topology, near, next(iter(ways)), root)


class _Ways:
    """The cheapest from each switch to one tree."""

    def __init__(
        self,
        topology: GraphTopology,
        near: Sequence[Sequence[Node]],
        costs: Mapping[Node, int],
        tree: frozenset[Node],
    ) -> None:
        self.cost: dict[Node, _Cost] = {}
        """The switch itself left out."""
        self._next: dict[Node, Node] = {}
        hosts = topology.hosts
        sources = sorted(node for node in tree if node >= hosts or len(tree) == 1)
        waiting: list[tuple[_Cost, Node, Node]] = [((0, 0), node, node) for node in sources]
        while waiting:
            cost, node, toward = heapq.heappop(waiting)
            if node in self.cost:
                continue
            self.cost[node], self._next[node] = cost, toward
            own = 0 if node in tree else costs[node]
            for other in near[node]:
                if other >= hosts and other not in self.cost:
                    heapq.heappush(waiting, ((cost[0] + own, cost[1] + 1), other, node))

    def path(self, node: Node) -> set[Node]:
        found = {node}
        while self._next[node] != node:
            node = self._next[node]
            found.add(node)
        return found


def _cheapest_spider(
    topology: GraphTopology, costs: Mapping[Node, int], ways_of: Mapping[frozenset[Node], _Ways]
) -> set[Node]:
    ways = list(ways_of.values())
    members = frozenset[Node]().union(*ways_of)
    best: tuple[tuple[Fraction, Fraction, int, Node], list[_Ways], Node] | None = None
    for centre in range(topology.hosts, topology.nodes):
        legs = sorted((way.cost[centre], place) for place, way in enumerate(ways) if centre in way.cost)
        cost, links = 0 if centre in members else costs[centre], 0
        for count, (leg, _) in enumerate(legs, start=1):
            if count > 2 and leg[0] * (count - 1) > cost:
                break  # dearer than those before it are on average, as all that follow are
            cost, links = cost + leg[0], links + leg[1]
            if count == 1:
                continue
            rank = (Fraction(cost, count), Fraction(links, count), -count, centre)
            if best is None or rank < best[0]:
                best = rank, [ways[place] for _, place in legs[:count]], centre
    if best is None:
        raise LocalMisuse(f"no path joins {len(ways)} parts of the nodes that are to be joined")
    _, legs_of, centre = best
    return set().union(*(way.path(centre) for way in legs_of))


def _rooted(
    topology: GraphTopology, near: Sequence[Sequence[Node]], tree: frozenset[Node], root: Node
) -> dict[Node, Node]:
    parents: dict[Node, Node] = {}
    queue = deque([root])
    while queue:
        node = queue.popleft()
        if node < topology.hosts and node != root:
            continue
        for other in near[node]:
            if other in tree and other != root and other not in parents:
                parents[other] = node
                queue.append(other)
    return parents
