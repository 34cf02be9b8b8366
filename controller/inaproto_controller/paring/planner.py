"""The one entrance to PARING's planners: a network and a task in, a tree with all that it comes to out.

Three modes plan. ``printed`` is the paper's algorithm, mended (section IV-A). ``fast`` reaches the highest
rate, with little more traffic than need be. ``exact`` proves that none has less, or says how far it may be.
The last two plan workers as leaves: a task whose workers could add up has a highest rate that they need not
reach.

Whatever has no answer is a value, ``Infeasible``, with what proves it: too few servers, servers apart, none
that can add up, fees above the budget. Callers' mistakes raise.

Section IV-C.4, fees: ``printed`` has them in its spiders, as the paper says; of ``fast`` and of budgets see
``fees``.

Section IV-C.1, replanning: ``fixed`` says where a task is already. Then the tree alone is planned.

Section V-C.3, coarse routing: trees of any mode, adjusted (``coarse``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from functools import cached_property, partial
from typing import Final

from inaproto.errors import Infeasible, LocalMisuse
from inaproto_controller.paring.coarse import plan_coarse
from inaproto_controller.paring.exact import plan_exact
from inaproto_controller.paring.fast import plan_fast
from inaproto_controller.paring.fees import Fees, Thrift, fee_of
from inaproto_controller.paring.logical_graph import LogicalGraph
from inaproto_controller.paring.model import (
    ZERO,
    Measures,
    Node,
    PlacedTree,
    ProgrammableNetwork,
    Task,
    measure,
)
from inaproto_controller.paring.printed import PRINTED_BETA, plan_printed
from inaproto_controller.paring.rates import best_rate, slots, switch_slots, worker_slots

SECONDS: Final = 60.0
"""That exact mode may take, if nobody says otherwise."""


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
    """r*, that no tree of the task exceeds."""
    bound: int
    """Of hops: no tree at the plan's rate has fewer. By the program of exact mode, else by counting."""
    fees: Fees = field(default_factory=dict)
    is_coarse: bool = False
    """No gradient passes a switch that adds up others."""

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
        """To send them."""
        return self.measures.seconds(self.task)

    @property
    def fee(self) -> Fraction:
        """Of all its switches, in links."""
        return fee_of(self.network, self.tree, self.fees)

    @property
    def is_proved(self) -> bool:
        """Of all trees of leaf workers at this rate none has less traffic."""
        return self.hops == self.bound

    @cached_property
    def held(self) -> dict[Node, Fraction]:
        """By switch: what the task takes of its capacity, in Gbit/s."""
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
    network, busy = _confined(network, task, busy, ps, fixed)
    graph = LogicalGraph.of(network, busy)
    best = best_rate(network, task, busy, graph=graph)
    if isinstance(best, Infeasible):
        return best
    planner = partial(_planned, task=task, busy=busy, mode=mode, beta=beta, seconds=seconds, fees=fees)
    found = _coarse(network, task, planner) if is_coarse else planner(network)
    if isinstance(found, Infeasible):
        return found
    tree, bound = found
    if fees:
        own = task if mode is Mode.PRINTED else replace(task, worker_capacity=ZERO)
        reached = best_rate(network, own, busy, graph=graph)
        assert not isinstance(reached, Infeasible), "there is a tree"
        thrift = Thrift(network, own, graph, fees, partial(_tree, planner), reached.rate)
        cheap = thrift.within(budget, tree if mode is Mode.PRINTED else thrift.thinned(tree))
        if isinstance(cheap, Infeasible):
            return cheap
        tree, bound = cheap, 0
    if fixed is not None or ps is not None:
        tree = _at(tree, fixed.ps if fixed is not None else ps)
    measures = measure(asked, task, tree)
    bound = bound or fewest_hops(network, task, measures.rate, graph)
    return Plan(asked, task, mode, tree, measures, best.rate, bound, fees, is_coarse)


def fewest_hops(network: ProgrammableNetwork, task: Task, rate: Fraction, graph: LogicalGraph) -> int:
    """That any tree at this rate has at least: each gradient goes to the nearest that may add it up."""
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
    if fees and mode is Mode.EXACT:
        raise LocalMisuse("exact mode plans without fees; fast and printed with them")
    if budget is not None and not fees:
        raise LocalMisuse("a budget limits fees, and there are none")
    return {node: fee for node, fee in fees.items() if fee}


def _confined(
    network: ProgrammableNetwork,
    task: Task,
    busy: Collection[Node],
    ps: Node | None,
    fixed: Fixed | None,
) -> tuple[ProgrammableNetwork, Collection[Node]]:
    """All other servers than the right one cannot be the PS, and those that are not fixed are busy."""
    hosts = network.topology.hosts
    if fixed is not None:
        members = {fixed.ps, *fixed.workers}
        if len(members) != task.workers + 1 or not members <= set(range(hosts)) - set(busy):
            raise LocalMisuse(f"{fixed}: {task.workers} idle servers and a parameter server, each once")
        ps, busy = fixed.ps, sorted(set(range(hosts)) - members)
    if ps is None:
        return network, busy
    if not 0 <= ps < hosts or ps in set(busy):
        raise LocalMisuse(f"node {ps} is no idle server: it cannot be the parameter server")
    capacities = (
        capacity if node >= hosts or node == ps else ZERO for node, capacity in enumerate(network.capacities)
    )
    return replace(network, capacities=tuple(capacities)), busy


def _at(tree: PlacedTree, ps: Node | None) -> PlacedTree:
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
) -> tuple[PlacedTree, int] | Infeasible:
    if mode is Mode.EXACT:
        exact = plan_exact(network, task, busy, seconds=seconds)
        return exact if isinstance(exact, Infeasible) else (exact.tree, exact.bound)
    if mode is Mode.FAST:
        found = plan_fast(network, task, busy)
    else:
        found = plan_printed(network, task, busy, beta=beta, fees=fees)
    return found if isinstance(found, Infeasible) else (found, 0)


def _coarse(
    network: ProgrammableNetwork,
    task: Task,
    planner: Callable[..., tuple[PlacedTree, int] | Infeasible],
) -> tuple[PlacedTree, int] | Infeasible:
    """Section V-C.3. What is fewest where switches may add partly bounds nothing here."""
    found = plan_coarse(network, task, lambda asked: _tree(partial(planner, task=asked), network))
    return found if isinstance(found, Infeasible) else (found.tree, 0)


def _tree(
    planner: Callable[[ProgrammableNetwork], tuple[PlacedTree, int] | Infeasible],
    network: ProgrammableNetwork,
) -> PlacedTree | Infeasible:
    found = planner(network)
    return found if isinstance(found, Infeasible) else found[0]
