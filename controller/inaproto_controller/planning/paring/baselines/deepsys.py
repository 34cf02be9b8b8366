"""DeepSys, as PARING describes it (section V-B): workers on the rack of the parameter server first, no INA.

Every worker sends straight to the server, along the shortest path: a star, whose rate is the server's
capacity by n. Of alike servers the nearest come first, racks in order, so a rack is filled before the next
one is begun, and a pod before the next one; on any other graph "nearest" says the same.

The paper does not say where the server is. Ours is the first idle one, unless it is told.
"""

from __future__ import annotations

from collections.abc import Collection

from inaproto.errors import Infeasible, LocalMisuse
from inaproto_controller.cluster.graph_topology import UNREACHABLE
from inaproto_controller.planning.paring.model import Node, PlacedTree, ProgrammableNetwork, Task


def plan_deepsys(
    network: ProgrammableNetwork, task: Task, busy: Collection[Node] = (), *, ps: Node | None = None
) -> PlacedTree | Infeasible:
    """``busy``: servers that are not to be had. Raises ``LocalMisuse`` for a ``ps`` that is no server."""
    topology = network.topology
    if ps is not None and not 0 <= ps < topology.hosts:
        raise LocalMisuse(f"node {ps} is no server: it cannot be the parameter server")
    taken = set(busy)
    idle = [host for host in range(topology.hosts) if host not in taken]
    if len(idle) < task.workers + 1:
        return Infeasible(
            "too few servers for the workers and a parameter server",
            {"needed": task.workers + 1, "idle": len(idle)},
        )
    root = idle[0] if ps is None else ps
    if root in taken:
        return Infeasible("the parameter server is busy", {"server": topology.name(root)})
    if network.capacities[root] == 0:
        return Infeasible("the parameter server cannot add gradients up", {"server": topology.name(root)})
    away = {host: _hops(network, host, root) for host in idle if host != root}
    near = sorted(
        (host for host in away if away[host] < UNREACHABLE),
        key=lambda host: (away[host], network.homes[host], host),
    )
    if len(near) < task.workers:
        return Infeasible(
            "too few idle servers that reach the parameter server",
            {"server": topology.name(root), "needed": task.workers, "reach it": len(near)},
        )
    return PlacedTree(root, dict.fromkeys(sorted(near[: task.workers]), root))


def _hops(network: ProgrammableNetwork, host: Node, root: Node) -> int:
    """``UNREACHABLE`` or more where none leads."""
    distances = network.topology.all_distances
    return 1 + min(int(distances[switch, root]) for switch in network.homes[host])
