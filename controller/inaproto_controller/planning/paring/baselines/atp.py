"""DeepSys+ATP (PARING section V-B): best-effort adding at the switches that gradients pass anyway.

Workers are where DeepSys puts them and send along the tree of shortest paths. The paper says two things of
what happens then, and both are here:

- ``MULTI``: what a switch has added up is an input of the next programmable switch on its way, as figure 1(b)
  draws it (18 GB, 12 s).
- ``FIRST``: a gradient is added only at the first programmable switch that it meets, and the sum goes
  straight to the parameter server, as the text says (22 GB, 16 s).

With partial adding (figures 2 to 10), a switch adds as many inputs as its capacity allows at the sending
rate, and each of the others goes straight to the parameter server, where it counts. Without it (figures 11 to
19), a switch that cannot add all of them adds none and passes them on. The rate is the highest at which the
server keeps up, so it is the cap, or the capacity of somebody shared by a whole number of inputs.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from fractions import Fraction

from inaproto.errors import Infeasible
from inaproto_controller.planning.paring.baselines.deepsys import plan_deepsys
from inaproto_controller.planning.paring.baselines.delivery_tree import DeliveryTree
from inaproto_controller.planning.paring.model import Node, PlacedTree, ProgrammableNetwork, Task
from inaproto_controller.planning.paring.rates import slots, switch_slots


class AtpRule(Enum):
    """What becomes of a sum."""

    MULTI = "multi"
    """It is an input of the next programmable switch."""
    FIRST = "first"
    """It goes straight to the parameter server."""


def plan_atp(
    network: ProgrammableNetwork,
    task: Task,
    busy: Collection[Node] = (),
    *,
    ps: Node | None = None,
    rule: AtpRule = AtpRule.MULTI,
    is_partial: bool = True,
) -> PlacedTree | Infeasible:
    placed = plan_deepsys(network, task, busy, ps=ps)
    if isinstance(placed, Infeasible):
        return placed
    paths = DeliveryTree.shortest(network.topology, placed.ps, placed.workers(network))
    for rate in _candidates(network, task, paths):
        parents = _sent(network, task, paths, rate, rule, is_partial)
        received = sum(parent == placed.ps for parent in parents.values())
        if received <= slots(network.capacities[placed.ps], rate, task.workers):
            return PlacedTree(placed.ps, parents)
    return placed


def _candidates(network: ProgrammableNetwork, task: Task, paths: DeliveryTree) -> list[Fraction]:
    """Rates at which what somebody can add changes, from the highest."""
    found = {task.rate_cap}
    for capacity in {network.capacities[node] for node in [*paths.parents, paths.root]}:
        if capacity:
            found |= {capacity / inputs for inputs in range(1, task.workers + 1)}
    return sorted((rate for rate in found if rate <= task.rate_cap), reverse=True)


def _sent(
    network: ProgrammableNetwork,
    task: Task,
    paths: DeliveryTree,
    rate: Fraction,
    rule: AtpRule,
    is_partial: bool,
) -> dict[Node, Node]:
    """Whom each worker, and each switch that adds, sends to at this rate."""
    hosts, root = network.topology.hosts, paths.root
    arriving: dict[Node, list[Node]] = {}
    parents: dict[Node, Node] = {}
    for node in paths.upwards():
        inputs = [node] if node < hosts and node != root else sorted(arriving.pop(node, []))
        if node >= hosts and network.capacities[node] != 0:
            room = switch_slots(network.capacities[node], rate, task)
            taken = inputs[:room] if is_partial or len(inputs) <= room else []
            if len(taken) > 1:
                parents |= dict.fromkeys(taken, node)
                parents |= dict.fromkeys(inputs[len(taken) :], root)
                inputs = [node]
                if rule is AtpRule.FIRST:
                    parents[node] = root
                    inputs = []
            elif rule is AtpRule.FIRST or (is_partial and len(inputs) > 1):
                parents |= dict.fromkeys(inputs, root)  # met, and not added: no other switch adds them
                inputs = []
        if node == root:
            parents |= dict.fromkeys(inputs, root)
        else:
            arriving.setdefault(paths.parents[node], []).extend(inputs)
    return dict(sorted(parents.items()))
