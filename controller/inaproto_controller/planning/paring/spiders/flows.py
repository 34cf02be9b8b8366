"""Minimum spiders as the paper finds them: by minimum-cost flows.

PARING section IV-A, Algorithm 4. It is here to be compared with ``spiders``: the same spiders, found as
printed.

From the centre flow as many units as the spider has legs. A switch passes on one unit, along edges of the
logical graph at their distance; a unit ends at a free server, which becomes a foot, or, from a centre
outside the component, one unit ends at an open vertex of it. So legs are disjoint, and may lead over
switches.

Departures:

- Free servers pass nothing on. As printed they do, and would be in the tree without being workers, which
  section III-C does not allow. It makes a difference only where a server with several links is a short cut.
- Costs are on the edges. The paper puts a virtual vertex on each edge, because the algorithm it builds on has
  costs on vertices; that is the same flow in a network of two thousand vertices more at k = 6.
  ``is_as_printed`` has this and the one before as the paper does, for its time.
- A free server as centre is its own foot, so it sends one unit less (as printed it would have none).
- Component vertices without a place for a child are no ends of a leg (as printed all are).
- Costs are scaled and node numbers added, so that of equal spiders the same is found as by the star rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm

import networkx as nx

from inaproto_controller.planning.paring.model import Node
from inaproto_controller.planning.paring.spiders.stars import Cost, Ground, Spider

_FEET, _TREE = "feet", "tree"


@dataclass(slots=True)
class FlowSpiders:
    """Finds spiders by one flow for each centre and each number of feet."""

    ground: Ground
    is_as_printed: bool = False
    """A virtual vertex on each edge, as in line 2 of Algorithm 3, and legs over servers."""
    flows: int = 0
    """Solved so far."""
    _found: dict[tuple[Node, int], Spider] = field(default_factory=dict)

    def costs(self, centre: Node, feet_max: int) -> list[Cost]:
        ground = self.ground
        if centre not in ground.component and not ground.open:
            return []
        for feet in range(1, min(feet_max, len(ground.free)) + 1):
            self._found[centre, feet] = self._solved(centre, feet)
        return [self._found[centre, feet].cost for feet in range(1, min(feet_max, len(ground.free)) + 1)]

    def spider(self, centre: Node, feet: int) -> Spider:
        return self._found[centre, feet]

    def _solved(self, centre: Node, feet: int) -> Spider:
        ground = self.ground
        own, outside = int(centre in ground.free), int(centre not in ground.component)
        passing = sorted(
            (ground.free | set(ground.graph.switches)) - ground.component - ground.gone - {centre}
        )
        ends = sorted(ground.open) if outside else []
        parts = lcm(*(Fraction(ground.fees.get(node, 0)).denominator for node in (centre, *passing)))
        scale = parts * (sum(passing) + max(ends, default=0) + 1)  # all node numbers are less than one part
        network = self._network(centre, passing, ends, scale)
        network.add_node(centre, demand=own - feet - outside)
        network.add_node(_FEET, demand=feet - own)
        network.add_node(_TREE, demand=outside)
        weight, flow = nx.network_simplex(network)
        self.flows += 1
        chosen = [node for node in passing if flow[_out(node)].get(_FEET)]
        attached = [node for node in ends if flow[_end(node)][_TREE]]
        links = Fraction(weight - sum(chosen) - sum(attached), scale)
        nearest_first = sorted(chosen, key=lambda node: (ground.graph.cost(centre, node), node))
        return Spider(
            centre,
            (*[centre] * own, *nearest_first),
            attached[0] if attached else None,
            links + (ground.fees.get(centre, 0) if outside else 0),
        )

    def _network(self, centre: Node, passing: list[Node], ends: list[Node], scale: int) -> nx.DiGraph:
        """The directed graph of Algorithm 4: vertices pass one unit, so each is two nodes and an edge."""
        ground, network = self.ground, nx.DiGraph()
        places, distances, passed = ground.graph.place_of, ground.graph.distances, frozenset(passing)
        for node in passing:
            fee = int(ground.fees.get(node, 0) * scale)
            network.add_edge(_in(node), _out(node), capacity=1, weight=fee)
            if node in ground.free:
                network.add_edge(_out(node), _FEET, capacity=1, weight=node)
        for end in ends:
            network.add_edge(_end(end), _TREE, capacity=1, weight=end)
        sources = passing if self.is_as_printed else [node for node in passing if node not in ground.free]
        for start in (centre, *sources):
            source, row = centre if start == centre else _out(start), distances[places[start]]
            for end in (*passing, *ends):
                if end != start:
                    target = _in(end) if end in passed else _end(end)
                    weight = row[places[end]] * scale
                    if not self.is_as_printed:
                        network.add_edge(source, target, capacity=1, weight=weight)
                    else:
                        virtual = "on", min(start, end), max(start, end)
                        network.add_edge(source, virtual, capacity=1, weight=weight)
                        network.add_edge(virtual, target, capacity=1, weight=0)
        return network


def _in(node: Node) -> tuple[str, Node]:
    return "in", node


def _out(node: Node) -> tuple[str, Node]:
    return "out", node


def _end(node: Node) -> tuple[str, Node]:
    return "end", node
