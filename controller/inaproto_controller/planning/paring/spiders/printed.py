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
| 15 | L8 wants a bound of 2, so one worker alone finds no centre | that of a single worker may be less |

Not the best rate, and not the least traffic at its own: see ``tests/paper/test_paring_4_a_printed.py`` for
how much. The first step cannot tell servers apart in an idle fat tree, as it does not look at switches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction
from itertools import chain
from types import MappingProxyType
from typing import Final

from inaproto.errors import Infeasible, InvariantBroken, LocalMisuse
from inaproto_controller.planning.paring.logical_graph import LogicalGraph
from inaproto_controller.planning.paring.model import Capacity, Node, PlacedTree, ProgrammableNetwork, Task
from inaproto_controller.planning.paring.rates import best_rate, next_lower, slots, switch_slots
from inaproto_controller.planning.paring.spiders.stars import Cost, Ground, Spider, SpiderFinder, StarSpiders

PRINTED_BETA: Final = Fraction(3, 2)
STRICT_DEGREES: Final = Fraction(1)
_REMOVED_FROM: Final = Fraction(6, 5)
_LAST: Final = 6
"""So few workers are brought in without removing anything."""
_NO_FEES: Final[Mapping[Node, Cost]] = MappingProxyType({})


def plan_printed(
    network: ProgrammableNetwork,
    task: Task,
    busy: Collection[Node] = (),
    *,
    beta: Fraction = PRINTED_BETA,
    spiders: Callable[[Ground], SpiderFinder] = StarSpiders,
    ps: Node | None = None,
    fees: Mapping[Node, Cost] = _NO_FEES,
) -> PlacedTree | Infeasible:
    """The tree of Algorithms 2 to 4, mended, on a network of one plane: ``measure`` says its rate and hops.

    ``beta``: by how much degrees may exceed their bounds, 1 or more; ``spiders``: or ``FlowSpiders``, with
    the same tree as answer; ``ps``: an idle server that is the PS whatever step 1 would say; ``fees``: of
    switches, in links, each paid once (section IV-C). Where capacities are many and different, and places
    few, it may try hundreds of rates.
    """
    graph = LogicalGraph.of(network, busy)
    if ps is not None and ps not in graph.place_of:
        raise LocalMisuse(f"node {ps} is no idle server: it cannot be the parameter server")
    best = best_rate(network, task, graph=graph, ps=ps)
    if isinstance(best, Infeasible):
        return best
    root = parameter_server(network, task, graph, best.ps_capacity) if ps is None else ps
    capacities = {network.capacities[node] for node in (root, *graph.switches)} | {task.worker_capacity}
    rate = best.rate
    while True:
        parents = steiner_tree(network, task, graph, root, rate, beta=beta, spiders=spiders, fees=fees)
        if parents is not None:
            return PlacedTree(root, _spliced(parents, network.topology.hosts))
        rate = next_lower(rate, capacities)


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


def steiner_tree(
    network: ProgrammableNetwork,
    task: Task,
    graph: LogicalGraph,
    ps: Node,
    rate: Fraction,
    *,
    beta: Fraction = PRINTED_BETA,
    spiders: Callable[[Ground], SpiderFinder] = StarSpiders,
    fees: Mapping[Node, Cost] = _NO_FEES,
) -> dict[Node, Node] | None:
    """Algorithm 3 with the bounds of ``rate``: parents; None: at some point no spider is left."""
    if beta < 1:
        raise LocalMisuse(f"beta {beta}: at least 1, or no tree is within the bounds")
    if any(fee < 0 for fee in fees.values()):
        raise LocalMisuse("a fee is negative: the nearest vertices need not be the cheapest then")
    growth = _Growth(task.workers, Ground(graph, ps, fees), bounds(network, task, graph, ps, rate), beta)
    return growth.parents if growth.grows(spiders(growth.ground)) else None


def bounds(
    network: ProgrammableNetwork, task: Task, graph: LogicalGraph, ps: Node, rate: Fraction
) -> dict[Node, int]:
    """d, lines 16 to 20: edges that each vertex may have, that to its parent included."""
    n = task.workers
    found = dict.fromkeys(sorted(chain(*graph.racks)), max(1, slots(task.worker_capacity, rate, n)))
    found[ps] = slots(network.capacities[ps], rate, n)
    for switch in graph.switches:
        inputs = switch_slots(network.capacities[switch], rate, task)
        found[switch] = inputs + 1 if inputs >= 2 else 1
    return found


class _Growth:
    """The tree as far as it has grown."""

    def __init__(self, n: int, ground: Ground, bounds: dict[Node, int], beta: Fraction) -> None:
        self.ground, self.parents = ground, dict[Node, Node]()
        self._n, self._bounds = n, bounds
        self._relaxed = {node: int(beta * bound) if bound > 1 else bound for node, bound in bounds.items()}
        self._degrees: Counter[Node] = Counter()
        self._workers = 0

    def grows(self, finder: SpiderFinder) -> bool:
        """Grow it to n workers; False: no spider is left before that."""
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
                    if degree >= _REMOVED_FROM * self._bounds[node]:
                        self.ground.leaves(node)
        return True

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

        Of the servers of a rack that may bring equally many, the first stands for all.
        """
        ground, waiting = self.ground, self._n - self._workers
        seen: set[tuple[int, bool, int]] = set()
        is_single = self._n == 1
        for node in self._candidates():
            bound = self._bounds[node]
            if (bound < 2 and not is_single) or node in ground.gone:
                continue
            more = self._relaxed[node] - self._degrees[node]
            if node not in ground.component:
                more -= node not in ground.free  # its parent's edge; a free server is a foot itself
            most = min(more, bound, waiting)
            alike = ground.graph.place_of[node], node in ground.free, most
            if most > 0 and alike not in seen:
                seen.add(alike)
                yield node, most

    def _candidates(self) -> list[Node]:
        """A free server cannot be a centre where an attached one cannot: their bound is the same."""
        ground = self.ground
        inside = ground.open.difference(ground.graph.switches)
        firsts = [[server for server in rack if server in ground.free][:1] for rack in ground.graph.racks]
        return sorted(chain(inside, *firsts)) + list(ground.graph.switches)

    def _merge(self, spider: Spider) -> None:
        centre, degrees, touched = spider.centre, self._degrees, [spider.centre, *spider.feet]
        if spider.attached_to is not None:
            self.parents[centre] = spider.attached_to
            degrees.update((centre, spider.attached_to))
            touched.append(spider.attached_to)
        for foot in spider.feet:
            if foot != centre:
                self.parents[foot] = centre
                degrees.update((centre, foot))
        self._workers += len(spider.feet)
        self.ground.joins(spider)
        for node in touched:
            if node not in self.ground.gone and degrees[node] < self._relaxed[node]:
                self.ground.opens(node)
            else:
                self.ground.closes(node)


def _spliced(parents: Mapping[Node, Node], first_switch: Node) -> dict[Node, Node]:
    """Step 4: without the switches that have one child, which only pass its gradient on."""
    above, children = dict(parents), Counter(parents.values())
    for switch in [node for node in parents if node >= first_switch and children[node] == 1]:
        (child,) = (node for node, parent in above.items() if parent == switch)
        above[child] = above.pop(switch)
    return dict(sorted(above.items()))
