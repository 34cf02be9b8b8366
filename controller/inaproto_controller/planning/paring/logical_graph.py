"""The logical graph of a network: idle servers and programmable switches, and how far apart they are.

PARING section III-B, Algorithm 1: what cannot add up is left out, and between any two of the rest there is an
edge whose cost is the links of a shortest path of *all* the network.

The paper runs Floyd's algorithm over all nodes. Here:

- servers that are linked to the same switches are a *rack*: at equal distances from everything, so that one
  row serves them all, and planners may choose among racks instead of servers;
- distances come from the topology, which has them from every switch for its own checks, once for all plans.

The graph must be complete, or counting places says nothing. Servers pass nothing on, so where they are linked
to several switches those need not reach each other, as in a network of two planes. It is for ``planes`` to
tell them apart and for the entrance (``planner``) to have each planned alone. If asked for several at once,
``of`` keeps the switches of one plane, and of it those that all idle servers reach: that with the most of
them, the first of several. Two idle servers between which there is no path are named by ``apart``. ``across``
keeps all: no graph to plan on, but one to count on what any tree needs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import LocalMisuse
from inaproto_controller.cluster.graph_topology import UNREACHABLE
from inaproto_controller.planning.paring.model import Node, ProgrammableNetwork


@dataclass(frozen=True, eq=False)
class LogicalGraph:
    racks: tuple[tuple[Node, ...], ...]
    """Idle servers, ascending; racks in order of their first one, none empty."""
    switches: tuple[Node, ...]
    """Switches that add up, ascending."""
    rack_to_rack: NDArray[np.int16]
    """(racks, racks): links between two different servers; on the diagonal, of one rack."""
    rack_to_switch: NDArray[np.int16]
    """(racks, switches)"""
    between: NDArray[np.int16]
    """(switches, switches)"""

    @classmethod
    def of(cls, network: ProgrammableNetwork, busy: Collection[Node] = ()) -> LogicalGraph:
        """``busy``: servers that are taken. Raises ``LocalMisuse`` for a node that is no server."""
        graph = cls.across(network, busy)
        is_reached = (graph.rack_to_switch < UNREACHABLE).all(axis=0) & bool(graph.racks)
        reached = np.flatnonzero(is_reached)
        kept = reached[_most_of_one_plane(graph.between[np.ix_(reached, reached)])]
        if len(kept) == len(graph.switches):
            return graph
        return replace(
            graph,
            switches=tuple(graph.switches[number] for number in kept.tolist()),
            rack_to_switch=graph.rack_to_switch[:, kept],
            between=graph.between[np.ix_(kept, kept)],
        )

    @classmethod
    def across(cls, network: ProgrammableNetwork, busy: Collection[Node] = ()) -> LogicalGraph:
        """The graph with all switches that add up; what no path joins is ``UNREACHABLE``."""
        taken, hosts = taken_servers(network, busy), network.topology.hosts
        distances = network.topology.all_distances
        members: dict[tuple[int, ...], list[Node]] = {}
        for server, homes in enumerate(network.homes):
            if server not in taken:
                members.setdefault(homes, []).append(server)
        firsts = [rack[0] for rack in members.values()]
        racks = np.full((len(firsts), len(firsts)), UNREACHABLE, np.int16)
        for number, homes in enumerate(members):
            racks[number] = np.minimum(distances[list(homes)][:, firsts].min(axis=0) + 1, UNREACHABLE)
        switches = np.array(network.programmable, dtype=np.intp)
        return cls(
            tuple(tuple(rack) for rack in members.values()),
            network.programmable,
            racks,
            distances[switches - hosts][:, firsts].T,
            distances[switches - hosts][:, switches],
        )

    @cached_property
    def servers(self) -> int:
        """Idle ones."""
        return sum(len(rack) for rack in self.racks)

    @cached_property
    def place_of(self) -> dict[Node, int]:
        """Row and column of each vertex in ``distances``: racks first, then switches."""
        places = {server: number for number, rack in enumerate(self.racks) for server in rack}
        return places | {switch: len(self.racks) + number for number, switch in enumerate(self.switches)}

    @cached_property
    def distances(self) -> list[list[int]]:
        """(places, places): links between two vertices; on the diagonal of a rack, between two of it."""
        above = np.hstack([self.rack_to_rack, self.rack_to_switch])
        matrix: list[list[int]] = np.vstack(
            [above, np.hstack([self.rack_to_switch.T, self.between])]
        ).tolist()
        return matrix

    @cached_property
    def apart(self) -> tuple[Node, Node] | None:
        """Two idle servers between which no path leads; None: there are no such two."""
        away = np.argwhere(self.rack_to_rack >= UNREACHABLE)
        return (self.racks[away[0, 0]][0], self.racks[away[0, 1]][0]) if len(away) else None

    def cost(self, one: Node, other: Node) -> int:
        """Links between two vertices of the graph, ``UNREACHABLE`` where no path leads."""
        return 0 if one == other else self.distances[self.place_of[one]][self.place_of[other]]


def taken_servers(network: ProgrammableNetwork, busy: Collection[Node]) -> frozenset[Node]:
    """Raises ``LocalMisuse`` for a node that is no server."""
    for node in sorted(busy):
        if not 0 <= node < network.topology.hosts:
            raise LocalMisuse(f"node {node} is no server: only servers are busy")
    return frozenset(busy)


def _most_of_one_plane(between: NDArray[np.int16]) -> NDArray[np.bool_]:
    """Whether each switch is of the largest set that reach each other."""
    first_reached = (between < UNREACHABLE).argmax(axis=1) if len(between) else np.zeros(0, np.intp)
    planes, counts = np.unique(first_reached, return_counts=True)
    largest = planes[counts.argmax()] if len(planes) else -1
    is_of_it: NDArray[np.bool_] = first_reached == largest
    return is_of_it
