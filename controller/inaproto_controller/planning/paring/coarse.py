"""Coarse routing (PARING section V-C.3): a switch adds up all gradients of a task that pass it, or none.

The paper finds a tree that ignores this and then "makes adjustments according to the obtained INA routing";
of which kind it does not say. Ours:

1. Each edge of the tree takes a shortest path around all other switches that add up, if there is one. 2. If
there is none (the switch of the worker's own rack, or of the server's, is in the way), the gradient is added
at the first such switch on its way: that is its parent from then on. Is that a switch below the sender
itself, the two change places: it sends to where the sender sent, and the sender to it. 3. What is added at
more places than before may be more than a switch can take at the tree's rate. Then either the rate falls, or
the switch passes on and adds nothing: whichever leaves the higher rate, then fewer links.

Each adjustment leaves fewer links, or as many and a switch less, so there is an end.

A tree of the highest rate has no place to spare, so adjusting may cost it more than one of a lower rate:
``plan_coarse`` tries those, too, as long as they can be better.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from inaproto.errors import Infeasible
from inaproto_controller.planning.paring.baselines.delivery_tree import neighbours
from inaproto_controller.planning.paring.model import Node, PlacedTree, ProgrammableNetwork, Task, measure
from inaproto_controller.planning.paring.rates import best_rate
from inaproto_controller.planning.paring.tree_edits import is_below, without_idle_switches


@dataclass(frozen=True)
class CoarsePlan:
    tree: PlacedTree
    routes: Mapping[Node, tuple[Node, ...]]
    """Route of each sender: all nodes from it to its parent, both included. None between them adds up."""


def made_coarse(network: ProgrammableNetwork, task: Task, tree: PlacedTree) -> CoarsePlan:
    """``tree``: one of the task; it stays as it is where nothing is in the way."""
    return _Adjusted(network, task, tree).plan()


def plan_coarse(
    network: ProgrammableNetwork,
    task: Task,
    plan: Callable[[Task], PlacedTree | Infeasible],
    busy: Collection[Node] = (),
) -> CoarsePlan | Infeasible:
    """The best, when adjusted, of the trees of ``plan`` at the highest rate of any tree and at lower caps: of
    highest rate, then of fewest links. A cap that is no higher than what was reached ends it."""
    highest = best_rate(network, task, busy)
    if isinstance(highest, Infeasible):
        return highest
    cap: Fraction | None = highest.rate
    best: tuple[tuple[Fraction, int], CoarsePlan] | None = None
    while cap is not None and (best is None or cap > best[0][0]):
        capped = replace(task, rate_cap=cap)
        tree = plan(capped)
        if isinstance(tree, Infeasible):
            return tree if best is None else best[1]
        found = made_coarse(network, capped, tree)
        told = measure(network, capped, found.tree)
        if best is None or (told.rate, -told.hops) > best[0]:
            best = (told.rate, -told.hops), found
        cap = _next_rate(network, task, cap)
    assert best is not None, "the first cap was tried"
    return best[1]


def _next_rate(network: ProgrammableNetwork, task: Task, rate: Fraction) -> Fraction | None:
    """The highest one below at which a capacity is shared by a whole number of gradients, n at most."""
    capacities = {*network.capacities, task.worker_capacity} - {None, Fraction(0)}
    lower = (
        capacity / count
        for capacity in capacities
        if capacity is not None and (count := max(1, capacity // rate + 1)) <= task.workers
    )
    return max((one for one in lower if one < rate), default=None)


class _Adjusted:
    def __init__(self, network: ProgrammableNetwork, task: Task, tree: PlacedTree) -> None:
        self._network = network
        self._task = task
        self._ps = tree.ps
        self._first = tree.parents
        self._near = neighbours(network.topology)
        self._target = measure(network, task, tree).rate

    def plan(self) -> CoarsePlan:
        parents = self._settled(self._first)
        while (better := self._demoted(parents)) is not None:
            parents = better
        tree = PlacedTree(self._ps, dict(sorted(parents.items())))
        return CoarsePlan(tree, {node: self._route(node, tree.parents) for node in tree.parents})

    def _worth(self, parents: Mapping[Node, Node]) -> tuple[Fraction, int]:
        found = measure(self._network, self._task, PlacedTree(self._ps, parents))
        return found.rate, -found.hops

    def _demoted(self, parents: Mapping[Node, Node]) -> dict[Node, Node] | None:
        """The plan with one less of the switches that hold the rate down; None where that is no better."""
        hosts, capacities = self._network.topology.hosts, self._network.capacities
        loads = measure(self._network, self._task, PlacedTree(self._ps, parents)).loads
        best, found = self._worth(parents), None
        for switch, load in loads.items():
            capacity = capacities[switch]
            if switch < hosts or capacity is None or not load or capacity / load >= self._target:
                continue
            without = {
                node: parents[switch] if parent == switch else parent
                for node, parent in parents.items()
                if node != switch
            }
            tried = self._settled(without)
            if self._worth(tried) > best:
                best, found = self._worth(tried), tried
        return found

    def _settled(self, tree: Mapping[Node, Node]) -> dict[Node, Node]:
        """Nobody's way leads through a switch that adds up what is not its."""
        hosts = self._network.topology.hosts
        parents = without_idle_switches(hosts, tree)
        while True:
            adds = {node for node in parents.values() if node >= hosts}
            for node in sorted(parents):
                if self._path(node, parents[node], adds) is None:
                    self._give_to_first_met(node, parents, adds)
                    parents = without_idle_switches(hosts, parents)
                    break
            else:
                return parents

    def _give_to_first_met(self, node: Node, parents: dict[Node, Node], adds: Collection[Node]) -> None:
        way = self._path(node, parents[node], ())
        assert way is not None, "a shortest path is there if nothing is to be avoided"
        met = next(other for other in way[1:] if other in adds)
        if is_below(parents, met, node):
            parents[met] = parents[node]
        parents[node] = met

    def _route(self, node: Node, parents: Mapping[Node, Node]) -> tuple[Node, ...]:
        way = self._path(node, parents[node], {one for one in parents if one >= self._network.topology.hosts})
        assert way is not None, "the tree is settled"
        return way

    def _path(self, start: Node, end: Node, avoided: Collection[Node]) -> tuple[Node, ...] | None:
        """The shortest one over the lowest numbers, with none of ``avoided`` between its ends."""
        hosts, away = self._network.topology.hosts, self._network.distance
        way, dead = [start], set[Node]()
        while way[-1] != end:
            left = away(way[-1], end) - 1  # never so for a neighbour in another plane: it is ``UNREACHABLE``
            step = next(
                (
                    node
                    for node in self._near[way[-1]]
                    if node == end
                    or (
                        node >= hosts and node not in dead and node not in avoided and away(node, end) == left
                    )
                ),
                None,
            )
            if step is not None:
                way.append(step)
                continue
            dead.add(way.pop())
            if not way:
                return None
        return tuple(way)
