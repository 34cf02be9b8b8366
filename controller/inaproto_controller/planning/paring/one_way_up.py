"""A tree of PARING as the switches of a fabric can have it: each has one part in it, and sends one way.

PARING's tree says who sends to whom, and any two edges of it may pass one switch on their ways to two
parents; or pass one that adds up others. For a ring, a switch of a fabric adds up what comes to it, or passes
all of it on to one other switch. So a tree is *folded*: each edge takes a shortest path on which nobody adds
up, and that agrees with what the switches on it do for the edges before. Where there is none, the edge ends
at the first place that is in its way: at the switch that adds up there, or at the one to which goes what
passes there. That is how coarse routing is adjusted (section V-C.3), with one more rule; loads grow by it, so
the rate may be lower than that of the tree as it was planned. Whoever plans looks at several trees
(``live_trees``).

Where that goes in circles, the switch goes that is missed least. So there is an end: without any, all send to
the PS, which can always be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from inaproto_controller.planning.paring.baselines.delivery_tree import neighbours
from inaproto_controller.planning.paring.model import (
    Measures,
    Node,
    PlacedTree,
    ProgrammableNetwork,
    Task,
    measure,
)
from inaproto_controller.planning.paring.tree_edits import is_below, without_idle_switches


@dataclass(frozen=True)
class Folded:
    tree: PlacedTree
    measures: Measures
    above: Mapping[Node, Node]
    """Whom each switch that adds up or passes on sends to next. The last one sends to the PS."""

    @property
    def passing(self) -> tuple[Node, ...]:
        """Switches that only pass on."""
        return tuple(node for node in self.above if node not in self.tree.parents)


def folded(network: ProgrammableNetwork, task: Task, tree: PlacedTree) -> Folded:
    """``tree``: one of the task, whose PS has one link and whose workers are leaves, at one switch each. It
    stays as it is where it can be executed so."""
    return _Folding(network, task, tree).result()


class _Folding:
    def __init__(self, network: ProgrammableNetwork, task: Task, tree: PlacedTree) -> None:
        self._network, self._task, self._tree = network, task, tree
        self._hosts = network.topology.hosts
        self._near = neighbours(network.topology)

    def result(self) -> Folded:
        parents, seen = dict(self._tree.parents), set[tuple[tuple[Node, Node], ...]]()
        while True:
            parents = without_idle_switches(self._hosts, parents)
            state = tuple(sorted(parents.items()))
            if state in seen:
                parents = self._with_one_less(parents)
                continue
            seen.add(state)
            above = self._ways(parents)
            if above is not None:
                tree = PlacedTree(self._tree.ps, dict(state))
                return Folded(tree, self._measures(parents), dict(sorted(above.items())))

    def _measures(self, parents: Mapping[Node, Node]) -> Measures:
        return measure(self._network, self._task, PlacedTree(self._tree.ps, parents))

    def _with_one_less(self, parents: Mapping[Node, Node]) -> dict[Node, Node]:
        """The tree with one less of the switches that add up; it passes on what it added."""
        tried = [
            {
                node: parents[switch] if parent == switch else parent
                for node, parent in parents.items()
                if node != switch
            }
            for switch in sorted(parents)
            if switch >= self._hosts
        ]

        def worth(one: Mapping[Node, Node]) -> tuple[Fraction, int]:
            found = self._measures(one)
            return found.rate, -found.hops

        return max(tried, key=worth)

    def _ways(self, parents: dict[Node, Node]) -> dict[Node, Node] | None:
        """Whom each switch sends to; None: an edge had none, and another parent has been given to it."""
        ps = self._tree.ps
        (door,) = self._near[ps]
        above = {door: ps}
        adds = {node for node in parents.values() if node != ps}
        for node in sorted(parents, key=lambda one: (self._network.hops(one, parents[one]), one)):
            way = self._way(node, parents[node], above, adds)
            if way is None:
                self._give_elsewhere(node, parents, above, adds)
                return None
            above |= {one: after for one, after in pairwise(way) if one >= self._hosts}
        return above

    def _way(
        self, start: Node, end: Node, above: Mapping[Node, Node], adds: set[Node]
    ) -> tuple[Node, ...] | None:
        """The shortest one over the lowest numbers that passes no switch of ``adds``, nor leaves another one
        otherwise than ``above`` says."""
        away = self._network.distance
        way, dead = [start], set[Node]()
        while way[-1] != end:
            last = way[-1]
            left, bound = away(last, end) - 1, above.get(last)
            step = next(
                (
                    node
                    for node in self._near[last]
                    if bound in (None, node)
                    and (
                        node == end
                        or (node >= self._hosts and node not in dead | adds and away(node, end) == left)
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

    def _give_elsewhere(
        self, node: Node, parents: dict[Node, Node], above: Mapping[Node, Node], adds: set[Node]
    ) -> None:
        way = self._way(node, parents[node], {}, set())
        assert way is not None, "a shortest path is there if nothing is to be avoided"
        met = parents[node]
        for one, after in pairwise(way[1:]):
            if one in adds:
                met = one
                break
            if above.get(one, after) != after:
                met = above[one]
                while met not in adds and met != self._tree.ps:
                    met = above[met]
                break
        if met == node:  # it would come back to itself: nothing but its own sum passes there
            met = self._tree.ps
        elif is_below(parents, met, node):
            parents[met] = parents[node]
        parents[node] = met
