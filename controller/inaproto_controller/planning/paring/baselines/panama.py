"""PANAMA, as PARING describes it (section V-B): several trees, a share of the gradient each, no PS.

Every programmable switch on the way adds up all that it receives, so no gradient is added partly (figures 11
to 19). Each of T trees is rooted at a switch that has the sum in the end, and carries 1/T of the gradient;
workers are where DeepSys puts them, and send along shortest paths.

The paper does not say where the roots are. Ours are all programmable switches farthest from the servers: the
core where that adds up, else the aggregation switches, in a fat tree. ``roots`` may say otherwise, a server
included: to a parameter server, the same rule is all of INA on fixed paths, which gives the 60.4 GB that the
paper prints for twelve switches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from inaproto.errors import Infeasible, LocalMisuse
from inaproto_controller.cluster.graph_topology import UNREACHABLE
from inaproto_controller.planning.paring.baselines.deepsys import plan_deepsys
from inaproto_controller.planning.paring.baselines.delivery_tree import DeliveryTree
from inaproto_controller.planning.paring.model import Node, ProgrammableNetwork, Task


@dataclass(frozen=True)
class SpreadTrees:
    """Trees of one task; each carries as much of a gradient as any other."""

    workers: tuple[Node, ...]
    trees: tuple[tuple[Node, Mapping[Node, Node]], ...]
    """Root, and whom each worker and each switch that adds sends to."""

    def hops(self, network: ProgrammableNetwork) -> Fraction:
        """Links that carry a gradient, those that carry a part by that part."""
        total = sum(
            network.hops(node, parent) for _, parents in self.trees for node, parent in parents.items()
        )
        return Fraction(total, len(self.trees))

    def loads(self) -> dict[Node, Fraction]:
        """Gradients that each root and switch adds up."""
        inputs = Counter(parent for _, parents in self.trees for parent in parents.values())
        return {node: Fraction(count, len(self.trees)) for node, count in sorted(inputs.items())}

    def rate(self, network: ProgrammableNetwork, task: Task) -> Fraction:
        """Rate of the most loaded, which may be a switch of several trees."""
        rates = [
            capacity / load
            for node, load in self.loads().items()
            if (capacity := network.capacities[node]) is not None
        ]
        return min([task.rate_cap, *rates])


def plan_panama(
    network: ProgrammableNetwork,
    task: Task,
    busy: Collection[Node] = (),
    *,
    ps: Node | None = None,
    roots: Sequence[Node] | None = None,
) -> SpreadTrees | Infeasible:
    """``ps``: only says where DeepSys begins, so that all benchmarks have the same workers.

    Raises ``LocalMisuse`` for roots that are no nodes, or that no path leads to.
    """
    placed = plan_deepsys(network, task, busy, ps=ps)
    if isinstance(placed, Infeasible):
        return placed
    found = tuple(roots) if roots is not None else _farthest(network, placed.ps)
    for root in found:
        if not 0 <= root < network.topology.nodes:
            raise LocalMisuse(f"node {root} is none of the network: it cannot be a root")
    if not found:
        return Infeasible("no switch adds gradients up, so nobody has the sum", {"programmable": 0})
    unable = [network.topology.name(root) for root in found if network.capacities[root] == 0]
    if unable:
        return Infeasible("a root cannot add gradients up", {"root": unable[0]})
    workers = placed.workers(network)
    adds = network.programmable
    trees = tuple(
        (root, DeliveryTree.shortest(network.topology, root, workers).contracted(set(adds) - {root}))
        for root in found
    )
    return SpreadTrees(workers, trees)


def _farthest(network: ProgrammableNetwork, server: Node) -> tuple[Node, ...]:
    """The programmable switches that are as far from their nearest server as any; others are out of reach."""
    hosts = network.topology.hosts
    distances = network.topology.all_distances
    away = {
        switch: int(distances[switch - hosts, :hosts].min())
        for switch in network.programmable
        if distances[switch - hosts, server] < UNREACHABLE
    }
    return tuple(switch for switch in away if away[switch] == max(away.values()))
