"""MARINA, as PARING describes it (section V-B): a Steiner tree over free switches, their load evened.

The paper says three things, which leave most of it open: switch resources are asked for, the tree is a
vertex-weighted Steiner tree, and it is reshaped to balance the load of switches. Ours:

- workers are where DeepSys puts them;
- the tree is Klein and Ravi's (``node_steiner``); a switch costs what its capacity is the inverse of, one
  that cannot add up more than all that can;
- every programmable switch of it that two or more inputs meet at adds them up;
- while that helps, the most loaded switch gives one of those who send to it to another switch of the tree,
  the one that this adds the fewest links to. The parameter server is no switch: its load stays.

Where a gradient goes from one that adds to the next is a shortest path, as for all planners here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from fractions import Fraction
from math import lcm

from inaproto.errors import Infeasible
from inaproto_controller.planning.paring.baselines.deepsys import plan_deepsys
from inaproto_controller.planning.paring.baselines.delivery_tree import DeliveryTree
from inaproto_controller.planning.paring.baselines.node_steiner import steiner_tree
from inaproto_controller.planning.paring.model import Node, PlacedTree, ProgrammableNetwork, Task
from inaproto_controller.planning.paring.tree_edits import is_below, without_idle_switches


def plan_marina(
    network: ProgrammableNetwork, task: Task, busy: Collection[Node] = (), *, ps: Node | None = None
) -> PlacedTree | Infeasible:
    """Capacities are what running tasks leave."""
    placed = plan_deepsys(network, task, busy, ps=ps)
    if isinstance(placed, Infeasible):
        return placed
    workers = placed.workers(network)
    links = steiner_tree(network.topology, _costs(network), {placed.ps, *workers}, placed.ps)
    parents = DeliveryTree(placed.ps, workers, links).contracted(links.keys() & set(network.programmable))
    while (move := _relief(network, parents)) is not None:
        child, taker = move
        parents[child] = taker
    return PlacedTree(placed.ps, without_idle_switches(network.topology.hosts, parents))


def _costs(network: ProgrammableNetwork) -> dict[Node, int]:
    """Costs of all switches, in whole numbers."""
    capacities = [network.capacities[switch] for switch in network.programmable]
    bounded = [capacity for capacity in capacities if capacity]
    unit = lcm(*(capacity.numerator for capacity in bounded))
    found = {
        switch: int(unit / capacity) if (capacity := network.capacities[switch]) else 0
        for switch in network.programmable
    }
    dearer = sum(found.values()) + 1
    hosts = network.topology.hosts
    return {switch: found.get(switch, dearer) for switch in range(hosts, network.topology.nodes)}


def _relief(network: ProgrammableNetwork, parents: Mapping[Node, Node]) -> tuple[Node, Node] | None:
    """A child of the most loaded switch, and who is to have it; None where no move helps.

    A move leaves the taker less loaded than the giver was, so the sorted loads fall with each.
    """
    loads = Counter(parents.values())
    hosts = network.topology.hosts

    def burden(switch: Node, more: int = 0) -> Fraction:
        capacity = network.capacities[switch]
        return Fraction(0) if capacity is None else (loads[switch] + more) / capacity

    switches = sorted(node for node in loads if node >= hosts)
    most = max(map(burden, switches), default=Fraction(0))
    givers = {switch for switch in switches if burden(switch) == most > 0}
    takers = [switch for switch in switches if burden(switch, 1) < most]
    moves = [
        (network.hops(child, taker) - network.hops(child, giver), giver, child, taker)
        for child, giver in parents.items()
        if giver in givers
        for taker in takers
        if child < hosts or not is_below(parents, taker, child)
    ]
    if not moves:
        return None
    _, _, child, taker = min(moves)
    return child, taker
