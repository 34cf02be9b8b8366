"""The highest sending rate that any tree of a task can have, by counting.

PARING section III-C, and step 2 of Algorithm 2 as it should be. The logical graph is complete, so at a rate
r a tree exists if and only if there are as many places for a child as there are edges, and the PS has one.
Let a vertex take ``slots`` children at r:

    slots(PS) + sum over switches of (slots - 1) + sum over workers of slots  >=  n,   slots(PS) >= 1

where a switch that takes fewer than two children gains nothing and is left out. A chain of switches attains
it. The left side only grows as r falls, and changes only where some capacity is shared by one more, so r is
the cap R or a capacity over a whole number: each is found by bisection.

Departures from the paper and its pseudo-code:

- Line 10-13 count the slot that a worker's own gradient takes as one for others, let V1 shrink on both
  sides of the comparison, and round r down to a whole number (0, if capacities are below its unit). None of
  it here.
- The PS needs a place of its own however much the switches have: without that, a slow server seems to do.
- With the accounting of the evaluation (``PAPER``) a switch takes an input more, so that it gains from r =
  B on.
- A capacity without bound (a P4 switch) takes n children; no tree needs more anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from inaproto.errors import Infeasible, LocalMisuse
from inaproto_controller.planning.paring.logical_graph import LogicalGraph
from inaproto_controller.planning.paring.model import Accounting, Capacity, Node, ProgrammableNetwork, Task
from inaproto_controller.planning.paring.planes import NOBODY_ABLE, TOO_FEW, UNABLE_PS


@dataclass(frozen=True, slots=True)
class BestRate:
    rate: Fraction
    """r*, in Gbit/s."""
    ps_capacity: Capacity
    """Capacity of the servers that it takes as PS: the greatest of all that are idle."""
    slots: int
    """Places for children in a tree that uses all switches that gain anything at r*."""
    edges: int
    """Gradients in that tree: of n workers and those switches."""


def slots(capacity: Capacity, rate: Fraction, n: int) -> int:
    """Inputs of ``rate`` that a capacity adds up, at most n: no tree of n workers needs more at one place."""
    return n if capacity is None else min(n, capacity // rate)


def switch_slots(capacity: Capacity, rate: Fraction, task: Task) -> int:
    """Children that a switch may have in a tree of this rate; with fewer than 2 it is of no use."""
    inputs = slots(capacity, rate, task.workers)
    return min(task.workers, inputs + (task.accounting is Accounting.PAPER)) if capacity != 0 else 0


def worker_slots(rate: Fraction, task: Task) -> int:
    """Children that each worker may have: its own gradient takes the first place."""
    return max(1, slots(task.worker_capacity, rate, task.workers)) - 1


def ps_of_rack(network: ProgrammableNetwork, rack: Sequence[Node]) -> Node:
    """The server of the greatest capacity, the first of several: which of a rack should be the PS."""
    return min(rack, key=lambda server: (*_order(network.capacities[server]), server))


def next_lower(rate: Fraction, capacities: Iterable[Capacity]) -> Fraction:
    """The greatest rate below ``rate`` at which one of them is shared by one more: line 13 of Algorithm 2.

    Raises ``LocalMisuse`` where none of them bounds any rate.
    """
    lower = (capacity / (capacity // rate + 1) for capacity in capacities if capacity)
    found = max(lower, default=None)
    if found is None:
        raise LocalMisuse("no capacity bounds any rate: there is no next one")
    return found


def best_rate(
    network: ProgrammableNetwork,
    task: Task,
    busy: Collection[Node] = (),
    *,
    graph: LogicalGraph | None = None,
    ps: Node | None = None,
) -> BestRate | Infeasible:
    """r* of a task where the servers ``busy`` are taken, on a network of one plane (``planes``).

    ``graph``: that without them, if it is there already; ``ps``: an idle server that has to be the PS.
    """
    graph = LogicalGraph.of(network, busy) if graph is None else graph
    if graph.servers < task.workers + 1:
        return Infeasible(
            TOO_FEW,
            {"needed": task.workers + 1, "idle": graph.servers},
        )
    if graph.apart is not None:
        one, other = (network.topology.name(node) for node in graph.apart)
        return Infeasible("no path leads from an idle server to another", {"from": one, "to": other})
    root = ps_of_rack(network, [ps_of_rack(network, rack) for rack in graph.racks]) if ps is None else ps
    counting = _Counting(
        task, network.capacities[root], Counter(network.capacities[s] for s in graph.switches)
    )
    if counting.ps == 0:
        return Infeasible(
            NOBODY_ABLE if ps is None else UNABLE_PS,
            {"server": network.topology.name(root), "capacity": 0},
        )
    rate = counting.highest()
    return BestRate(rate, counting.ps, *counting.at(rate))


@dataclass(frozen=True, slots=True)
class _Counting:
    task: Task
    ps: Capacity
    switches: Counter[Capacity]
    """How many there are of each capacity."""

    def at(self, rate: Fraction) -> tuple[int, int]:
        """Places for children, and edges, in a tree of this rate with every switch that gains anything."""
        n = self.task.workers
        places, edges = slots(self.ps, rate, n) + n * worker_slots(rate, self.task), n
        for capacity, count in self.switches.items():
            taken = switch_slots(capacity, rate, self.task)
            if taken >= 2:
                places, edges = places + count * taken, edges + count
        return places, edges

    def admits(self, rate: Fraction) -> bool:
        places, edges = self.at(rate)
        return places >= edges and slots(self.ps, rate, self.task.workers) >= 1

    def highest(self) -> Fraction:
        """The PS alone attains its capacity over n, so there is always one."""
        if self.admits(self.task.rate_cap):
            return self.task.rate_cap
        finite = {value for value in (self.ps, self.task.worker_capacity, *self.switches) if value}
        best = Fraction(0)
        for capacity in sorted(finite, reverse=True):
            below, least = 0, self.task.workers + 1  # the first is refused, the second of no interest
            while least - below > 1:
                middle = (below + least) // 2
                if capacity / middle <= best or self.admits(capacity / middle):
                    least = middle
                else:
                    below = middle
            if self.admits(capacity / least):
                best = max(best, capacity / least)
        return best


def _order(capacity: Capacity) -> tuple[bool, Fraction]:
    """Ascending from the greatest; no bound is the greatest."""
    return capacity is not None, -capacity if capacity is not None else Fraction(0)
