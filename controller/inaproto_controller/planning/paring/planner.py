"""The one entrance to PARING's planners: a network and a task in, a tree with all that it comes to out.

Three modes plan. ``printed`` is the paper's algorithm, mended (section IV-A). ``fast`` reaches the highest
rate, with little more traffic than need be. ``exact`` proves that none has less, or says how far it may be.
The last two plan workers as leaves: a task whose workers could add up has a highest rate that they need not
reach.

Whatever has no answer is a value, ``Infeasible``, with what proves it: too few servers, or too few of any
plane, none that can add up, fees above the budget. Callers' mistakes raise.

Where not all switches reach each other (``planes``), each plane that has room is planned, and the best tree
is the answer. Trees across planes that share servers are not looked for, and where they are possible nothing
is said to be proved.

Section IV-C.4, fees: ``printed`` has them in its spiders, as the paper says, ``fast`` in its changes, and
``exact`` in its program; of budgets see ``fees``.

Section IV-C.1, replanning: ``fixed`` says where a task is already. Then the tree alone is planned.

Section V-C.3, coarse routing: trees of any mode, adjusted (``coarse``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from functools import cached_property, partial
from typing import Final

from inaproto.errors import Infeasible, InvariantBroken, LocalMisuse
from inaproto_controller.planning.paring.coarse import plan_coarse
from inaproto_controller.planning.paring.fees import Fees, Thrift, above_budget, fee_of
from inaproto_controller.planning.paring.logical_graph import LogicalGraph
from inaproto_controller.planning.paring.model import (
    ZERO,
    Measures,
    Node,
    PlacedTree,
    ProgrammableNetwork,
    Task,
    measure,
)
from inaproto_controller.planning.paring.planes import (
    Plane,
    are_joined,
    confined_to,
    planes_of,
    star_across,
    with_room,
)
from inaproto_controller.planning.paring.rates import best_rate, slots, switch_slots, worker_slots
from inaproto_controller.planning.paring.slots.exact import plan_cheapest, plan_exact
from inaproto_controller.planning.paring.slots.fast import plan_fast
from inaproto_controller.planning.paring.spiders.printed import PRINTED_BETA, plan_printed

SECONDS: Final = 60.0
"""Time that exact mode may take, if nobody says otherwise."""


class Mode(StrEnum):
    PRINTED = "printed"
    FAST = "fast"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class Fixed:
    """Where a task is that is planned anew."""

    ps: Node
    workers: tuple[Node, ...]


@dataclass(frozen=True)
class Plan:
    network: ProgrammableNetwork
    """As the task found it: with what is left of capacities."""
    task: Task
    mode: Mode
    tree: PlacedTree
    measures: Measures
    best_rate: Fraction
    """r*, that no tree of the task exceeds; but see ``is_one_plane_of_several``."""
    bound: int
    """Bound of hops: no tree at the plan's rate has fewer. By the program of exact mode, else by counting."""
    cost_bound: Fraction
    """Bound of hops and fees together: no tree at the plan's rate, within the budget, has less."""
    fees: Fees = field(default_factory=dict)
    is_coarse: bool = False
    """No gradient passes a switch that adds up others."""
    is_one_plane_of_several: bool = False
    """Trees with branches in several planes, which meet at a server, are possible and not looked for: the
    highest rate is that of trees in one plane, and nothing is proved."""

    @property
    def rate(self) -> Fraction:
        return self.measures.rate

    @property
    def hops(self) -> int:
        return self.measures.hops

    @property
    def traffic_bytes(self) -> int:
        """Over all links, for the gradients of one iteration."""
        return self.measures.traffic_bytes(self.task)

    @property
    def seconds(self) -> Fraction:
        """Time to send them."""
        return self.measures.seconds(self.task)

    @property
    def fee(self) -> Fraction:
        """Fee of all its switches, in links."""
        return fee_of(self.network, self.tree, self.fees)

    @property
    def cost(self) -> Fraction:
        """Hops and fees together: what is least, of trees of one rate."""
        return self.hops + self.fee

    @property
    def is_proved(self) -> bool:
        """Whether none of all trees of leaf workers at this rate and within the budget has less traffic and
        fees."""
        return self.cost == self.cost_bound and not self.is_one_plane_of_several

    @cached_property
    def held(self) -> dict[Node, Fraction]:
        """What the task takes of each switch's capacity, in Gbit/s."""
        hosts = self.network.topology.hosts
        return {node: self.rate * load for node, load in self.measures.loads.items() if node >= hosts}


def plan(
    network: ProgrammableNetwork,
    task: Task,
    *,
    busy: Collection[Node] = (),
    mode: Mode = Mode.FAST,
    beta: Fraction = PRINTED_BETA,
    seconds: float = SECONDS,
    fees: Fees | None = None,
    budget: Fraction | None = None,
    ps: Node | None = None,
    fixed: Fixed | None = None,
    is_coarse: bool = False,
) -> Plan | Infeasible:
    """``busy``: servers that are taken; ``ps``: the server that has to be the parameter server; ``beta``: of
    printed mode; ``seconds``: of exact mode, for each tree that it plans; ``is_coarse``: a switch adds up all
    that passes it, or nothing. Raises ``LocalMisuse`` for nodes that are none."""
    fees = _checked(network, fees or {}, mode, budget)
    if fees and is_coarse:
        raise LocalMisuse("coarse routing is planned without fees")
    asked = network
    network, busy, ps = _confined(network, task, busy, ps, fixed)
    planes = planes_of(network, busy)
    fitting = with_room(network, task, planes, ps)
    if isinstance(fitting, Infeasible):
        star = star_across(network, task, busy, ps) if are_joined(network, task, planes) else None
        if star is None:
            return fitting
        measures = measure(asked, task, star)
        fewest = fewest_hops(network, task, measures.rate, LogicalGraph.across(network, busy))
        bounds = fewest, Fraction(fewest)
        return Plan(asked, task, mode, star, measures, measures.rate, *bounds, fees, is_coarse, True)
    request = _Request(task, mode, beta, seconds, fees, budget, ps, is_coarse)
    found = _best(request, [_Ground.of(network, [plane]) for plane in fitting])
    if isinstance(found, Infeasible):
        return found
    rate, tree, bound = found
    if ps is not None:
        tree = _at(tree, ps)
    measures = measure(asked, task, tree)
    is_one_of_several = are_joined(network, task, planes)
    fewest = int(bound)
    if is_one_of_several or fees or not bound:
        counted = _Ground.of(network, planes if is_one_of_several else fitting)
        fewest = fewest_hops(network, task, measures.rate, counted.across)
    least = Fraction(fewest) if is_one_of_several else max(bound, Fraction(fewest))
    return Plan(asked, task, mode, tree, measures, rate, fewest, least, fees, is_coarse, is_one_of_several)


@dataclass(frozen=True)
class _Ground:
    """A network with some of its planes alone."""

    network: ProgrammableNetwork
    busy: Collection[Node]

    @classmethod
    def of(cls, network: ProgrammableNetwork, planes: Collection[Plane]) -> _Ground:
        return cls(*confined_to(network, planes))

    @cached_property
    def graph(self) -> LogicalGraph:
        """Graph of one plane."""
        return LogicalGraph.of(self.network, self.busy)

    @property
    def across(self) -> LogicalGraph:
        """Graph of all of them, with distances that are none."""
        return LogicalGraph.across(self.network, self.busy)

    def best_rate(self, task: Task, ps: Node | None) -> Fraction:
        """r*; the plane has room for the task."""
        best = best_rate(self.network, task, graph=self.graph, ps=ps)
        if isinstance(best, Infeasible):
            raise InvariantBroken(f"a plane with room for a task has no rate for it: {best}")
        return best.rate


@dataclass(frozen=True)
class _Request:
    """What is to be planned, wherever."""

    task: Task
    mode: Mode
    beta: Fraction
    seconds: float
    fees: Fees
    budget: Fraction | None
    ps: Node | None
    is_coarse: bool

    def on(self, ground: _Ground) -> tuple[PlacedTree, Fraction] | Infeasible:
        """Tree, and of exact mode a bound of hops and fees."""
        network, task, graph, fees = ground.network, self.task, ground.graph, self.fees
        planner = partial(
            _planned,
            task=task,
            busy=ground.busy,
            mode=Mode.FAST if fees and self.mode is Mode.EXACT else self.mode,
            beta=self.beta,
            seconds=self.seconds,
        )
        paid = partial(planner, fees=fees)
        found = _coarse(network, task, ground.busy, paid) if self.is_coarse else paid(network)
        if isinstance(found, Infeasible) or not fees:
            return found
        own = task if self.mode is Mode.PRINTED else self.of_leaves

        def tree_with(network: ProgrammableNetwork, fees: Fees) -> PlacedTree | Infeasible:
            return _tree(partial(planner, fees=fees), network)

        thrift = Thrift(network, own, graph, fees, tree_with, ground.best_rate(own, self.ps))
        cheap = thrift.within(self.budget, found[0])
        if isinstance(cheap, Infeasible):
            return cheap
        if self.mode is not Mode.EXACT:
            return cheap, ZERO
        return plan_cheapest(
            network, task, ground.busy, start=cheap, fees=fees, budget=self.budget, seconds=self.seconds
        )

    @property
    def of_leaves(self) -> Task:
        return replace(self.task, worker_capacity=ZERO)

    def rank(self, network: ProgrammableNetwork, tree: PlacedTree) -> tuple[Fraction, Fraction]:
        """The higher the better: of rate, then of links and fees."""
        told = measure(network, self.task, tree)
        return told.rate, -(told.hops + fee_of(network, tree, self.fees))


def _best(
    request: _Request, grounds: Sequence[_Ground]
) -> tuple[Fraction, PlacedTree, Fraction] | Infeasible:
    """The highest rate of any tree of a plane, the best tree, and a bound of its hops and fees, 0 for none.

    Where the tree of a plane costs more than the budget, that of another is an answer if it is no slower;
    in printed mode, which need not reach the highest rate, if there is one.
    """
    highest = max(ground.best_rate(request.task, request.ps) for ground in grounds)
    if request.mode is Mode.EXACT and not request.is_coarse and len(grounds) > 1:
        reached = [ground.best_rate(request.of_leaves, request.ps) for ground in grounds]
        grounds = [ground for ground, rate in zip(grounds, reached, strict=True) if rate == max(reached)]
    answers = [request.on(ground) for ground in grounds]
    ranked = [
        (request.rank(ground.network, answer[0]), answer)
        for ground, answer in zip(grounds, answers, strict=True)
        if not isinstance(answer, Infeasible)
    ]
    best = max(ranked, key=lambda one: one[0], default=None)
    dear = [answer for answer in answers if isinstance(answer, Infeasible)]
    above = above_budget(dear, ZERO if best is None else best[0][0])
    if best is None or (above is not None and request.mode is not Mode.PRINTED):
        return above or dear[0]
    (rate, _), (tree, _) = best
    return highest, tree, min(bound for (reached_rate, _), (_, bound) in ranked if reached_rate == rate)


def fewest_hops(network: ProgrammableNetwork, task: Task, rate: Fraction, graph: LogicalGraph) -> int:
    """Hops that any tree at this rate has at least: each gradient goes to the nearest that may add it up."""
    n = task.workers
    rooms = {switch: switch_slots(network.capacities[switch], rate, task) for switch in graph.switches}
    useful = [number for number, switch in enumerate(graph.switches) if rooms[switch] >= 2]
    nearest: list[int] = []
    for number, rack in enumerate(graph.racks):
        to_racks = [
            int(graph.rack_to_rack[number, other])
            for other, servers in enumerate(graph.racks)
            if other != number or len(servers) > 1
        ]
        to_switches = [int(graph.rack_to_switch[number, switch]) for switch in useful]
        nearest += [min(to_racks + to_switches)] * len(rack)
    hops = sum(sorted(nearest)[:n])
    able = [network.capacities[server] for rack in graph.racks for server in rack]
    places = max(slots(capacity, rate, n) for capacity in able) + n * worker_slots(rate, task)
    between: list[int] = []
    for number in useful:
        others = [int(graph.between[number, other]) for other in useful if other != number]
        between.append(min([*others, int(graph.rack_to_switch[:, number].min())]))
    rooms_left = sorted((rooms[graph.switches[one]] for one in useful), reverse=True)
    for room, step in zip(rooms_left, sorted(between), strict=True):
        if places >= n:
            break
        places, hops = places + room - 1, hops + step
    return hops


def _checked(network: ProgrammableNetwork, fees: Fees, mode: Mode, budget: Fraction | None) -> Fees:
    hosts = network.topology.hosts
    for node, fee in sorted(fees.items()):
        if not hosts <= node < network.topology.nodes:
            raise LocalMisuse(f"node {node} is no switch: only switches have fees")
        if fee < 0:
            raise LocalMisuse(f"{network.topology.name(node)}: a fee of {fee}: 0 or more links")
    if budget is not None and not fees:
        raise LocalMisuse("a budget limits fees, and there are none")
    return {node: fee for node, fee in fees.items() if fee}


def _confined(
    network: ProgrammableNetwork,
    task: Task,
    busy: Collection[Node],
    ps: Node | None,
    fixed: Fixed | None,
) -> tuple[ProgrammableNetwork, Collection[Node], Node | None]:
    """All other servers than the right one cannot be the PS, and those that are not fixed are busy."""
    hosts = network.topology.hosts
    if fixed is not None:
        members = {fixed.ps, *fixed.workers}
        if len(members) != task.workers + 1 or not members <= set(range(hosts)) - set(busy):
            raise LocalMisuse(f"{fixed}: {task.workers} idle servers and a parameter server, each once")
        ps, busy = fixed.ps, sorted(set(range(hosts)) - members)
    if ps is None:
        return network, busy, None
    if not 0 <= ps < hosts or ps in set(busy):
        raise LocalMisuse(f"node {ps} is no idle server: it cannot be the parameter server")
    capacities = (
        capacity if node >= hosts or node == ps else ZERO for node, capacity in enumerate(network.capacities)
    )
    return replace(network, capacities=tuple(capacities)), busy, ps


def _at(tree: PlacedTree, ps: Node) -> PlacedTree:
    """Planners choose the only server that is able; none other can be it."""
    if tree.ps != ps:
        raise LocalMisuse(f"server {ps} was to be the parameter server, and {tree.ps} is")
    return tree


def _planned(
    network: ProgrammableNetwork,
    task: Task,
    busy: Collection[Node],
    mode: Mode,
    beta: Fraction,
    seconds: float,
    fees: Fees,
) -> tuple[PlacedTree, Fraction] | Infeasible:
    if mode is Mode.EXACT:
        exact = plan_exact(network, task, busy, seconds=seconds)
        return exact if isinstance(exact, Infeasible) else (exact.tree, Fraction(exact.bound))
    if mode is Mode.FAST:
        found = plan_fast(network, task, busy, fees=fees)
    else:
        found = plan_printed(network, task, busy, beta=beta, fees=fees)
    return found if isinstance(found, Infeasible) else (found, ZERO)


def _coarse(
    network: ProgrammableNetwork,
    task: Task,
    busy: Collection[Node],
    planner: Callable[..., tuple[PlacedTree, Fraction] | Infeasible],
) -> tuple[PlacedTree, Fraction] | Infeasible:
    """Section V-C.3. What is fewest where switches may add partly bounds nothing here."""
    found = plan_coarse(network, task, lambda asked: _tree(partial(planner, task=asked), network), busy)
    return found if isinstance(found, Infeasible) else (found.tree, ZERO)


def _tree(
    planner: Callable[[ProgrammableNetwork], tuple[PlacedTree, Fraction] | Infeasible],
    network: ProgrammableNetwork,
) -> PlacedTree | Infeasible:
    found = planner(network)
    return found if isinstance(found, Infeasible) else found[0]
