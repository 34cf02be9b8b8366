"""What is left of PARING's problem once the rate is fixed: slots, and hops to fill them at.

The highest rate r* follows from counting alone (``rates``), and with it how many children each switch, and a
parameter server (PS), can have: its slots. What remains is a tree of least hops that respects them. Servers
of one rack are interchangeable, so a tree is the rack of the PS, a parent of each switch in use, and how many
workers of each rack send to each switch or to the PS (``RackTree``): small arrays, whatever the number of
servers. Both modes that reach r* (``fast``, ``exact``) work on these, with workers as leaves.

The PS of a rack is its idle server of the greatest capacity. Switches that take fewer than two children are
left out: they cannot help. So are, as racks of the PS, those whose best server has too few slots for r*.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import Infeasible
from inaproto_controller.planning.paring.logical_graph import LogicalGraph
from inaproto_controller.planning.paring.model import ZERO, Node, PlacedTree, ProgrammableNetwork, Task
from inaproto_controller.planning.paring.rates import best_rate, ps_of_rack, slots, switch_slots

Counts = NDArray[np.int64]

_UNIT_MAX: Final = 1024
UNUSED: Final = -1
"""As the parent of a switch: it is not in the tree. The PS as a parent is the number of switches."""


@dataclass(frozen=True)
class SlotProblem:
    """R racks, S switches. All counts are int64, so that hot loops are compiled once."""

    rate: Fraction
    """r*."""
    workers: int
    """n."""
    free: Counts
    """(R,) idle servers."""
    ps_slots: Counts
    """(R,) of the best server of the rack; 0: the PS cannot be there."""
    switch_slots: Counts
    """(S,), at least 2, at most n."""
    rack_to_rack: Counts
    """(R, R) hops between two servers."""
    rack_to_switch: Counts
    """(R, S)."""
    between: Counts
    """(S, S)."""
    racks: tuple[tuple[Node, ...], ...]
    """Idle servers, ascending."""
    ps_servers: tuple[Node, ...]
    """(R,) the best PS of each."""
    switches: tuple[Node, ...]
    fees: Counts
    """(S,) of using a switch, in the unit of hops."""
    unit: int = 1
    """Unit that all hops are multiplied by, so that fees are whole."""

    @classmethod
    def of(
        cls, network: ProgrammableNetwork, task: Task, busy: Collection[Node] = ()
    ) -> SlotProblem | Infeasible:
        """At the highest rate that leaf workers reach."""
        graph = LogicalGraph.of(network, busy)
        best = best_rate(network, replace(task, worker_capacity=ZERO), busy, graph=graph)
        if isinstance(best, Infeasible):
            return best
        rate, workers, capacities = best.rate, task.workers, network.capacities
        rooms = [switch_slots(capacities[switch], rate, task) for switch in graph.switches]
        kept = [number for number, room in enumerate(rooms) if room >= 2]
        gained = sum(rooms[number] - 1 for number in kept)
        servers = tuple(ps_of_rack(network, rack) for rack in graph.racks)
        ps_rooms = [slots(capacities[server], rate, workers) for server in servers]
        return cls(
            rate,
            workers,
            np.array([len(rack) for rack in graph.racks], np.int64),
            np.array([room if room + gained >= workers else 0 for room in ps_rooms], np.int64),
            np.array([rooms[number] for number in kept], np.int64),
            graph.rack_to_rack.astype(np.int64),
            np.ascontiguousarray(graph.rack_to_switch[:, kept].astype(np.int64)),
            np.ascontiguousarray(graph.between[np.ix_(kept, kept)].astype(np.int64)),
            graph.racks,
            servers,
            tuple(graph.switches[number] for number in kept),
            np.zeros(len(kept), np.int64),
        )

    def with_fees(self, fees: Mapping[Node, Fraction]) -> SlotProblem:
        """Whole numbers: of fees that have no small denominator together, the nearest 1024th of a hop."""
        own = [fees.get(switch, ZERO) for switch in self.switches]
        unit = min(_UNIT_MAX, lcm(*(fee.denominator for fee in own)))
        return replace(
            self,
            rack_to_rack=self.rack_to_rack * unit,
            rack_to_switch=self.rack_to_switch * unit,
            between=self.between * unit,
            fees=np.array([round(fee * unit) for fee in own], np.int64),
            unit=unit,
        )

    @cached_property
    def most_slots(self) -> int:
        """Most slots of any switch or PS."""
        return int(max(self.ps_slots.max(), self.switch_slots.max(initial=0)))

    @property
    def ps_racks(self) -> tuple[int, ...]:
        """Where the PS can be."""
        return tuple(np.flatnonzero(self.ps_slots).tolist())

    def within(self, ps_racks: Collection[int]) -> SlotProblem:
        """The problem with the PS in one of these racks."""
        may = np.isin(np.arange(len(self.free)), list(ps_racks))
        return replace(self, ps_slots=np.where(may, self.ps_slots, 0))

    @cached_property
    def ps_rack_classes(self) -> tuple[tuple[int, ...], ...]:
        """Racks that change places without a change of any distance, capacity or count: a PS costs the same
        in each of a class, so one stands for all."""
        classes: list[list[int]] = []
        for rack in self.ps_racks:
            alike = (members for members in classes if self._is_alike(members[0], rack))
            found = next(alike, None)
            if found is None:
                classes.append([rack])
            else:
                found.append(rack)
        return tuple(tuple(members) for members in classes)

    def _is_alike(self, one: int, other: int) -> bool:
        if (self.free[one], self.ps_slots[one]) != (self.free[other], self.ps_slots[other]):
            return False
        if not np.array_equal(self.rack_to_switch[one], self.rack_to_switch[other]):
            return False
        same = self.rack_to_rack[one] == self.rack_to_rack[other]
        same[[one, other]] = True
        return bool(same.all() and self.rack_to_rack[one, one] == self.rack_to_rack[other, other])


@dataclass(frozen=True)
class RackTree:
    """A tree on racks and switches; rows and columns are those of its ``SlotProblem``."""

    ps_rack: int
    parents: Counts
    """(S,) of switches; S for the PS, ``UNUSED`` for a switch that is not in the tree."""
    senders: Counts
    """(R, S + 1) workers of each rack that send to each switch, or in the last column to the PS."""

    def hops(self, problem: SlotProblem) -> int:
        """Hops and fees, in the unit of the problem."""
        switches = np.flatnonzero(self.parents != UNUSED)
        above = np.hstack([problem.between, problem.rack_to_switch[self.ps_rack][:, None]])
        to_all = np.hstack([problem.rack_to_switch, problem.rack_to_rack[:, [self.ps_rack]]])
        hops = above[switches, self.parents[switches]].sum() + (self.senders * to_all).sum()
        return int(hops + problem.fees[switches].sum())

    def placed(self, problem: SlotProblem) -> PlacedTree:
        """On servers: the first of each rack."""
        ps = problem.ps_servers[self.ps_rack]
        above = (*problem.switches, ps)
        parents: dict[Node, Node] = {}
        for rack, servers in enumerate(problem.racks):
            idle = iter(server for server in servers if server != ps)
            for parent, count in enumerate(self.senders[rack].tolist()):
                parents |= {next(idle): above[parent] for _ in range(count)}
        for switch, parent in enumerate(self.parents.tolist()):
            if parent != UNUSED:
                parents[problem.switches[switch]] = above[parent]
        return PlacedTree(ps, parents)
