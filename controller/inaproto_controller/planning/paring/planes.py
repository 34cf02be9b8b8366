"""Planes of a network: switches that reach each other, and the idle servers that are linked to them.

PARING section III-B takes any two vertices of the logical graph to have a path between them. Servers pass
nothing on, so in a network of several planes, or with a part that is cut off, that holds within each plane
alone: any two of its servers and switches reach each other. Planners plan on one plane; the entrance
(``planner``) has them plan on each that has servers enough, and takes the best.

Where planes share a server that may be a parameter server, some trees have branches in several planes, and
meet at it. Those are not looked for, so that nothing is proved there (``are_joined``): but if no plane has
room, the tree without switches is (``star_across``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import Final

from inaproto.errors import Infeasible
from inaproto_controller.cluster.graph_topology import UNREACHABLE
from inaproto_controller.planning.paring.logical_graph import taken_servers
from inaproto_controller.planning.paring.model import (
    ZERO,
    Node,
    PlacedTree,
    ProgrammableNetwork,
    Task,
    measure,
)

TOO_FEW: Final = "too few servers for the workers and a parameter server"
TOO_FEW_OF_A_PLANE: Final = "too few idle servers are linked by one plane of switches"
NOBODY_ABLE: Final = "no idle server can add gradients up"
UNABLE_PS: Final = "the PS cannot add gradients up"
NOBODY_ABLE_NEAR: Final = "no idle server that can add gradients up is linked to enough others by one plane"


@dataclass(frozen=True, slots=True)
class Plane:
    servers: frozenset[Node]
    """Idle ones."""
    switches: frozenset[Node]
    """Switches that add up."""


def planes_of(network: ProgrammableNetwork, busy: Collection[Node] = ()) -> tuple[Plane, ...]:
    """In order of their first switch, none without a server. A plane that adds nothing up, and has no server
    that another lacks, is left out: distances there count its ways already.

    Raises ``LocalMisuse`` for a busy node that is no server.
    """
    hosts, taken = network.topology.hosts, taken_servers(network, busy)
    reached = network.topology.all_distances[:, hosts:] < UNREACHABLE
    plane_of = reached.argmax(axis=1).tolist() if reached.size else []
    servers: dict[int, set[Node]] = {first: set() for first in sorted(set(plane_of))}
    switches: dict[int, set[Node]] = {first: set() for first in servers}
    for server, homes in enumerate(network.homes):
        if server not in taken:
            for home in homes:
                servers[plane_of[home]].add(server)
    for switch in network.programmable:
        switches[plane_of[switch - hosts]].add(switch)
    kept = [Plane(frozenset(own), frozenset(switches[first])) for first, own in servers.items() if own]
    for plane in [plane for plane in kept if not plane.switches]:
        others = [other for other in kept if other is not plane]
        if any(plane.servers <= other.servers for other in others):
            kept = others
    return tuple(kept)


def are_joined(network: ProgrammableNetwork, task: Task, planes: Sequence[Plane]) -> bool:
    """Whether two of them share a server that may have children, and so a tree may be of both."""
    is_able = [task.worker_capacity != 0 or capacity != 0 for capacity in network.capacities]
    return any(
        any(is_able[server] for server in one.servers & other.servers)
        for one, other in combinations(planes, 2)
    )


def with_room(
    network: ProgrammableNetwork, task: Task, planes: Sequence[Plane], ps: Node | None
) -> tuple[Plane, ...] | Infeasible:
    """Those that have servers enough, and one that can be the PS. ``ps``: the one that has to be it."""
    needed, name = task.workers + 1, network.topology.name
    idle = sorted(frozenset[Node]().union(*(plane.servers for plane in planes)))
    if len(idle) < needed:
        return Infeasible(TOO_FEW, {"needed": needed, "idle": len(idle)})
    if ps is not None and network.capacities[ps] == 0:
        return Infeasible(UNABLE_PS, {"server": name(ps), "capacity": 0})
    able = [server for server in idle if network.capacities[server] != 0]
    if not able:
        return Infeasible(NOBODY_ABLE, {"server": name(idle[0]), "capacity": 0})
    possible = [plane for plane in planes if ps is None or ps in plane.servers]
    largest = max(len(plane.servers) for plane in possible)
    if largest < needed:
        return Infeasible(TOO_FEW_OF_A_PLANE, {"needed": needed, "idle": len(idle), "of one plane": largest})
    fitting = [
        plane for plane in possible if len(plane.servers) >= needed and not plane.servers.isdisjoint(able)
    ]
    if not fitting:
        size, first = min(
            (-len(plane.servers), one) for plane in possible for one in able if one in plane.servers
        )
        return Infeasible(NOBODY_ABLE_NEAR, {"needed": needed, "server": name(first), "of its plane": -size})
    return tuple(fitting)


def star_across(
    network: ProgrammableNetwork, task: Task, busy: Collection[Node], ps: Node | None
) -> PlacedTree | None:
    """All workers straight to a parameter server that reaches enough by any plane: the fastest, then nearest.

    If workers are leaves and there is no such tree, there is none at all: whoever sends reaches the PS.
    """
    taken = taken_servers(network, busy)
    idle = [server for server in range(network.topology.hosts) if server not in taken]
    best: tuple[tuple[Fraction, int], PlacedTree] | None = None
    for root in idle if ps is None else [ps]:
        away = sorted((network.distance(one, root), one) for one in idle if one != root)[: task.workers]
        if network.capacities[root] == 0 or len(away) < task.workers or away[-1][0] >= UNREACHABLE:
            continue
        tree = PlacedTree(root, {one: root for _, one in away})
        told = measure(network, task, tree)
        if best is None or (told.rate, -told.hops) > best[0]:
            best = (told.rate, -told.hops), tree
    return None if best is None else best[1]


def confined_to(
    network: ProgrammableNetwork, planes: Collection[Plane]
) -> tuple[ProgrammableNetwork, frozenset[Node]]:
    """The network where only these add up, and the servers that are busy then: all that are not theirs."""
    hosts = network.topology.hosts
    servers = frozenset[Node]().union(*(plane.servers for plane in planes))
    switches = frozenset[Node]().union(*(plane.switches for plane in planes))
    capacities = (
        capacity if node < hosts or node in switches else ZERO
        for node, capacity in enumerate(network.capacities)
    )
    return replace(network, capacities=tuple(capacities)), frozenset(range(hosts)) - servers
