"""Switches of a three-layer fat tree by name: ``e0.1 a*.0 c2``; servers are ``h0``, ``h1``, ...

``e{pod}.{i}`` is an edge switch, ``a{pod}.{j}`` an aggregation switch, ``c{i}`` a core switch; ``*`` stands
for all of a kind. Names are those of the evaluation in PARING, section V: core switch i joins column ``i //
(k / 2)``, that is the aggregation switches of this number of all pods. The topology numbers core switches
the other way round (column ``number % (k / 2)``), so names are translated here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from inaproto.errors import ConfigError
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.cluster.topology import FatTree, Quota
from inaproto_controller.planning.paring.model import Capacity, Node, ProgrammableNetwork


def switches_named(degree: int, names: str) -> tuple[Node, ...]:
    """Nodes of ``GraphTopology.of_fat_tree(FatTree.of_degree(degree), ...)``, ascending, each once.

    Raises ``ConfigError`` for a name that is none of the tree.
    """
    return tuple(sorted({node for name in names.split() for node in _named(degree, name)}))


def switch_name(degree: int, node: Node) -> str:
    """The name of a switch; raises ``ConfigError`` for a node that is none."""
    half, edges = degree // 2, _first_edge(degree)
    number = node - edges
    if 0 <= number < degree * half:
        return f"e{number // half}.{number % half}"
    number -= degree * half
    if 0 <= number < degree * half:
        return f"a{number // half}.{number % half}"
    number -= degree * half
    if 0 <= number < half * half:
        return f"c{number % half * half + number // half}"
    raise ConfigError(f"node {node}: no switch of a fat tree of degree {degree}")


def fat_tree_network(
    degree: int,
    programmable: str | Mapping[str, Capacity],
    *,
    capacity: Capacity,
    server: Capacity | None = None,
) -> ProgrammableNetwork:
    """A fat tree with these programmable switches, all of one ``capacity`` in Gbit/s or each of its own.

    ``server``: capacity of every server as a parameter server; None: as ``capacity``.
    """
    groups = dict.fromkeys([programmable], capacity) if isinstance(programmable, str) else programmable
    capacities = {node: value for names, value in groups.items() for node in switches_named(degree, names)}
    topology = _as_called(degree, GraphTopology.of_fat_tree(FatTree.of_degree(degree), Quota.SWITCH))
    return ProgrammableNetwork.uniform(topology, capacities, capacity if server is None else server)


def _as_called(degree: int, topology: GraphTopology) -> GraphTopology:
    """The network with names as above; servers are h0, h1, ..."""
    hosts = topology.hosts
    switches = [
        replace(switch, name=switch_name(degree, hosts + number))
        for number, switch in enumerate(topology.switches)
    ]
    return replace(topology, host_names=tuple(f"h{host}" for host in range(hosts)), switches=tuple(switches))


def _first_edge(degree: int) -> int:
    return degree**3 // 4


def _named(degree: int, name: str) -> list[Node]:
    half, edges = degree // 2, _first_edge(degree)
    if found := re.fullmatch(r"([ea])(\d+|\*)\.(\d+|\*)", name):
        first = edges if found[1] == "e" else edges + degree * half
        pods, places = _all_of(found[2], degree, name), _all_of(found[3], half, name)
        return [first + pod * half + place for pod in pods for place in places]
    if found := re.fullmatch(r"c(\d+|\*)", name):
        first = edges + 2 * degree * half
        return [first + core % half * half + core // half for core in _all_of(found[1], half * half, name)]
    raise ConfigError(f"switch {name}: write e{{pod}}.{{i}}, a{{pod}}.{{j}} or c{{i}}; * stands for all")


def _all_of(number: str, count: int, name: str) -> range:
    if number == "*":
        return range(count)
    if int(number) >= count:
        raise ConfigError(f"switch {name}: {number} is not below {count}")
    return range(int(number), int(number) + 1)
