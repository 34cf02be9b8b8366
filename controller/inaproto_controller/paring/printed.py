"""The printed algorithm, mended: a degree-bounded Steiner tree that grows by minimum spiders.

PARING section IV-A, Algorithms 2 and 3. It is the paper's planner, to be compared with; ``fast`` and
``exact`` are ours. What is printed cannot be run, or not always, so it is mended where it must be, and
nowhere else:

| | printed | here |
|---|---|---|
| 1 | Alg. 2 L13 rounds r down to whole units, to 0 if need be | exact fractions (``rates``) |
| 2 | L13 over vertices without bound: inf / inf | those bound no rate |
| 3 | L14, 15 drop workers and with them their gradients | all n gradients count |
| 4 | L10, 11 count a leaf's own gradient as a place for another | a worker's places are one fewer |
| 5 | L8 takes all switches | those with a capacity |
| 6 | Alg. 3 L6 sets degrees to 0 in each pass, so they grow by 3/2 in each | the degree is that in the tree |
| 7 | a spider is attached to any vertex | to one whose bound allows it |
| 8 | L9 forgets the edge to the parent of a new centre | it counts |
| 9 | L1 begins with all servers in the tree | with the PS; feet are free servers |
| 10 | ratio by feet; ties open | by new workers; ties: more of them, then the lowest centre |
| 11 | L9 allows 3/2 of a bound, L18 removes from 6/5 on | both kept: nothing reaches 6/5 with ``beta`` 1 |
| 12 | L2 makes virtual vertices, that L8 may take as centres | there are none |
| 13 | Theorem 2: at least 2/3 of the best rate | not so: a bound has the parent's edge in it, a load not |
| 14 | no spider is left: unspecified | the next lower rate that a capacity allows |

Not the best rate, and not the least traffic at its own: see ``tests/paper/test_paring_4_a_printed.py`` for
how much. The first step cannot tell servers apart in an idle fat tree, as it does not look at switches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from inaproto.errors import Infeasible, InvariantBroken, LocalMisuse
from inaproto_controller.paring.flow_spiders import FlowSpiders
from inaproto_controller.paring.logical_graph import LogicalGraph
from inaproto_controller.paring.model import Capacity, Node, PlacedTree, ProgrammableNetwork, Task
from inaproto_controller.paring.rates import best_rate, next_lower, slots, switch_slots
from inaproto_controller.paring.spiders import Cost, Ground, Spider, SpiderFinder, StarSpiders

PRINTED_BETA: Final = Fraction(3, 2)
STRICT_DEGREES: Final = Fraction(1)
_REMOVED_FROM: Final = Fraction(6, 5)
_LAST: Final = 6
"""So few workers are brought in without removing anything."""
_NO_FEES: Final[Mapping[Node, Cost]] = MappingProxyType({})


class Spiders(Enum):
    """How minimum spiders are found; both find the same."""

    STAR = "star"
    FLOW = "flow"
    """As printed, a thousand times as slowly."""


def plan_printed(
    network: ProgrammableNetwork,
    task: Task,
    busy: Collection[Node] = (),
    *,
    beta: Fraction = PRINTED_BETA,
    spiders: Spiders = Spiders.STAR,
    ps: Node | None = None,
    fees: Mapping[Node, Cost] = _NO_FEES,
) -> PlacedTree | Infeasible:
    """``beta``: by how much degrees may exceed their bounds, 1 or more; ``ps``: an idle server that is the PS
    whatever step 1 would say; ``fees``: of switches, in links, each paid once (section IV-C)."""
    if beta < 1:
        raise LocalMisuse(f"beta {beta}: at least 1, or no tree is within the bounds")
    graph = LogicalGraph.of(network, busy)
    if ps is not None and ps not in graph.place_of:
        raise LocalMisuse(f"node {ps} is no idle server: it cannot be the parameter server")
    best = best_rate(network, task, graph=graph, ps=ps)
    if isinstance(best, Infeasible):
        return best
    root = parameter_server(network, task, graph, best.ps_capacity) if ps is None else ps
    rate = best.rate
    while True:
        growth = _Growth(network, task, graph, root, rate, beta, fees)
        finder: SpiderFinder
        finder = StarSpiders(growth.ground) if spiders is Spiders.STAR else FlowSpiders(growth.ground)
        if growth.grows(finder):
            return PlacedTree(root, growth.spliced())
        rate = next_lower(rate, _capacities(network, task, graph, root))


def parameter_server(
    network: ProgrammableNetwork, task: Task, graph: LogicalGraph, capacity: Capacity
) -> Node:
    """Step 1: of the idle servers of this capacity, the one nearest to the n servers nearest to it."""
    best: tuple[int, Node] | None = None
    for number, rack in enumerate(graph.racks):
        able = [server for server in rack if network.capacities[server] == capacity]
        if able:
            scored = _nearest_sum(graph, number, task.workers), able[0]
            best = scored if best is None else min(best, scored)
    if best is None:
        raise InvariantBroken(f"no idle server has the capacity {capacity} of the fastest one")
    return best[1]


def _nearest_sum(graph: LogicalGraph, rack: int, n: int) -> int:
    """Links to the n servers nearest to one of a rack."""
    counts = [len(members) - (number == rack) for number, members in enumerate(graph.racks)]
    total = 0
    for distance, count in sorted(zip(graph.distances[rack], counts, strict=False)):
        taken = min(count, n)
        total, n = total + taken * distance, n - taken
    return total


def _capacities(network: ProgrammableNetwork, task: Task, graph: LogicalGraph, ps: Node) -> set[Capacity]:
    return {network.capacities[node] for node in (ps, *graph.switches)} | {task.worker_capacity}


class _Growth:
    """Algorithm 3 at one rate: the tree as far as it has grown."""

    def __init__(
        self,
        network: ProgrammableNetwork,
        task: Task,
        graph: LogicalGraph,
        ps: Node,
        rate: Fraction,
        beta: Fraction,
        fees: Mapping[Node, Cost],
    ) -> None:
        n = task.workers
        self.ground = Ground(graph, ps, fees)
        self._n, self._beta, self._ps, self._graph = n, beta, ps, graph
        self._first_switch = network.topology.hosts
        self._server_bound = max(1, slots(task.worker_capacity, rate, n))
        self._bounds = {ps: slots(network.capacities[ps], rate, n)}
        for switch in graph.switches:
            inputs = switch_slots(network.capacities[switch], rate, task)
            self._bounds[switch] = inputs + 1 if inputs >= 2 else 1
        self._degrees: Counter[Node] = Counter()
        self._parents: dict[Node, Node] = {}
        self._workers = 0

    def grows(self, finder: SpiderFinder) -> bool:
        """To n workers; False: no spider is left before that."""
        while self._workers < self._n:
            waiting = self._n - self._workers
            while True:
                spider = self._best(finder)
                if spider is None:
                    return False
                self._merge(spider)
                left = self._n - self._workers
                if waiting <= _LAST or left * 8 < waiting * 7:
                    break
            if waiting > _LAST:
                for node, degree in sorted(self._degrees.items()):
                    if degree >= _REMOVED_FROM * self._bound(node):
                        self.ground.leaves(node)
        return True

    def _bound(self, node: Node) -> int:
        """d: edges that a vertex may have, that to its parent included."""
        return self._bounds.get(node, self._server_bound)

    def _relaxed(self, node: Node) -> int:
        return int(self._beta * self._bound(node))

    def _best(self, finder: SpiderFinder) -> Spider | None:
        """Line 11: that of the least cost for each new worker."""
        best: tuple[Cost, int, Node] | None = None
        for centre, feet_max in self._centres():
            for feet, cost in enumerate(finder.costs(centre, feet_max), start=1):
                if best is not None:
                    difference = cost * best[1] - best[0] * feet
                    if difference > 0 or (difference == 0 and feet <= best[1]):
                        continue
                best = cost, feet, centre
        return None if best is None else finder.spider(best[2], best[1])

    def _centres(self) -> Iterator[tuple[Node, int]]:
        """Lines 8 and 9: vertices that may join two edges, ascending, and how many workers each may bring.

        Of free servers of a rack the first stands for all.
        """
        ground, waiting = self.ground, self._n - self._workers
        for node in self._candidates():
            bound = self._bound(node)
            if bound < 2 or node in ground.gone:
                continue
            more = self._relaxed(node) - self._degrees[node]
            if node not in ground.component:
                more -= node not in ground.free  # its parent's edge; a free server is a foot itself
            most = min(more, bound, waiting)
            if most > 0:
                yield node, most

    def _candidates(self) -> list[Node]:
        ground, servers = self.ground, [self._ps]
        if self._server_bound >= 2:
            servers += [node for node in self._parents if node < self._first_switch]
            for rack in self._graph.racks:
                servers += [server for server in rack if server in ground.free][:1]
        return sorted(servers) + list(self._graph.switches)

    def _merge(self, spider: Spider) -> None:
        centre, degrees, touched = spider.centre, self._degrees, [spider.centre, *spider.feet]
        if spider.attached_to is not None:
            self._parents[centre] = spider.attached_to
            degrees.update((centre, spider.attached_to))
            touched.append(spider.attached_to)
        for foot in spider.feet:
            if foot != centre:
                self._parents[foot] = centre
                degrees.update((centre, foot))
        self._workers += len(spider.feet)
        self.ground.joins(spider)
        for node in touched:
            if node not in self.ground.gone and degrees[node] < self._relaxed(node):
                self.ground.opens(node)
            else:
                self.ground.closes(node)

    def spliced(self) -> dict[Node, Node]:
        """Step 4: parents without the switches that have one child, which only pass its gradient on."""
        children = Counter(self._parents.values())
        parents = dict(self._parents)
        for switch in [node for node in parents if node >= self._first_switch and children[node] == 1]:
            (child,) = (node for node, parent in parents.items() if parent == switch)
            parents[child] = parents.pop(switch)
        return dict(sorted(parents.items()))
