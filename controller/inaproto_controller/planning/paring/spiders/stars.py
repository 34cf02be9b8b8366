"""Minimum spiders by the star rule: a centre, its nearest free servers, and the nearest way to the tree.

PARING section IV-A, Algorithm 4. A spider brings new workers, its *feet*, to the component of the PS:
disjoint paths lead from its centre to each foot and, if the centre is not in the component, to a vertex of
it that may take one more child. The paper finds a cheapest one as a minimum-cost flow, for each centre and
each number of feet.

No flow is needed. The logical graph is complete and its costs are distances over switches: by the triangle
inequality every path over switches may be replaced by its direct edge, and direct edges to different feet
are disjoint; fees of switches on the way, which are not negative, only make the longer way dearer. So a
spider of i feet is its centre with the i nearest free servers and, from outside, the nearest vertex that is
open. A free server as centre is its own first foot.

``flow_spiders`` solves the flows and finds the same spiders; that is its only use.

Ties go to the lowest node, of feet and of the vertex that a centre is attached to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from inaproto_controller.planning.paring.logical_graph import LogicalGraph
from inaproto_controller.planning.paring.model import Node

Cost = int | Fraction
"""In links; fees of switches are in the same unit."""


@dataclass(frozen=True, slots=True)
class Spider:
    centre: Node
    feet: tuple[Node, ...]
    """New workers; one of them is the centre if that is a free server."""
    attached_to: Node | None
    """The vertex of the component that the centre sends to; None: it is in the component."""
    cost: Cost


class SpiderFinder(Protocol):
    """One way to find minimum spiders on a ``Ground``."""

    def costs(self, centre: Node, feet_max: int) -> list[Cost]:
        """Costs of spiders with 1, 2, ... feet; as many as there are."""
        ...

    def spider(self, centre: Node, feet: int) -> Spider:
        """One whose cost is in ``costs``."""
        ...


class Ground:
    """What spiders are made of: the free servers, the component, and which of its vertices are open."""

    def __init__(self, graph: LogicalGraph, ps: Node, fees: Mapping[Node, Cost]) -> None:
        self.graph = graph
        self.fees = fees
        """Fees of switches, paid once; 0 where there is none."""
        self.free = {server for rack in graph.racks for server in rack} - {ps}
        self.component = {ps}
        self.open = {ps}
        """Nodes that may take one more child."""
        self.gone: set[Node] = set()
        """Vertices that are part of no spider any more."""
        self._places, self._distances = graph.place_of, graph.distances
        self._opened = [ps]
        """In the order in which they were."""
        self._orders: dict[int, tuple[list[tuple[int, Node]], int]] = {}
        """All servers by place, nearest first, and the first of them that may be free."""
        self._nearest_open: dict[int, tuple[int, Node, int]] = {}
        """Distance and vertex by place, and how many were in ``_opened`` when it was looked for."""

    def opens(self, node: Node) -> None:
        if node not in self.open:
            self.open.add(node)
            self._opened.append(node)

    def closes(self, node: Node) -> None:
        """For good."""
        self.open.discard(node)

    def joins(self, spider: Spider) -> None:
        self.component.update((spider.centre, *spider.feet))
        self.free.difference_update(spider.feet)

    def leaves(self, node: Node) -> None:
        """Out of the graph, as in lines 17-19 of Algorithm 3; what it holds in the tree stays."""
        self.gone.add(node)
        self.closes(node)

    def nearest(self, centre: Node) -> Iterator[tuple[int, Node]]:
        """Free servers but the centre itself, with their distances, nearest first."""
        place = self._places[centre]
        if place not in self._orders:
            row = self._distances[place]
            around = sorted(
                (row[number], server) for number, rack in enumerate(self.graph.racks) for server in rack
            )
            self._orders[place] = around, 0
        around, first = self._orders[place]
        while first < len(around) and around[first][1] not in self.free:
            first += 1
        self._orders[place] = around, first
        for number in range(first, len(around)):
            server = around[number][1]
            if server in self.free and server != centre:
                yield around[number]

    def attachment(self, centre: Node) -> tuple[int, Node] | None:
        """The open vertex nearest to a centre outside the component, and its distance."""
        if not self.open:
            return None
        place = self._places[centre]
        row, places = self._distances[place], self._places
        seen = self._nearest_open.get(place)
        if seen is not None and seen[1] in self.open:
            later = [(row[places[node]], node) for node in self._opened[seen[2] :] if node in self.open]
            best = min([seen[:2], *later])
        else:
            best = min((row[places[node]], node) for node in self.open)
        self._nearest_open[place] = (*best, len(self._opened))
        return best


@dataclass(slots=True)
class StarSpiders:
    """Finds spiders by the star rule."""

    ground: Ground

    def costs(self, centre: Node, feet_max: int) -> list[Cost]:
        cost = self._without_feet(centre)
        if cost is None:
            return []
        found: list[Cost] = [cost] if centre in self.ground.free else []
        for distance, _ in self.ground.nearest(centre):
            if len(found) >= feet_max:
                break
            cost += distance
            found.append(cost)
        return found[:feet_max]

    def spider(self, centre: Node, feet: int) -> Spider:
        ground = self.ground
        chosen = [centre] if centre in ground.free else []
        for _, server in ground.nearest(centre):
            if len(chosen) >= feet:
                break
            chosen.append(server)
        attachment = None if centre in ground.component else ground.attachment(centre)
        attached_to = None if attachment is None else attachment[1]
        return Spider(centre, tuple(chosen), attached_to, self.costs(centre, feet)[feet - 1])

    def _without_feet(self, centre: Node) -> Cost | None:
        if centre in self.ground.component:
            return 0
        attachment = self.ground.attachment(centre)
        return None if attachment is None else attachment[0] + self.ground.fees.get(centre, 0)
