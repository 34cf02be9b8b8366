"""A network with programmable switches from a file: a cluster as ``graph_file`` reads it, and ``capacity``.

``capacity`` is that of adding up, in Gbit/s: a number, a fraction as text ("10/3"), or "unbounded" for a P4
switch. A switch without one, or with 0, adds nothing up. In node-link JSON and GraphML hosts may have one
too: it counts where a host is the parameter server, and hosts without one have that which the caller names.

Hosts may be apart here, unlike in clusters for placement: a planner answers that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import networkx as nx

from inaproto.errors import ConfigError
from inaproto_controller.cluster import graph_file
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.cluster.input_file import read_bounded
from inaproto_controller.planning.paring.exact_numbers import UNBOUNDED, parse_capacity, plain
from inaproto_controller.planning.paring.model import Capacity, ProgrammableNetwork


def read_network(path: Path, *, server: Capacity) -> ProgrammableNetwork:
    """``server``: the capacity of hosts that have none. Raises ``ConfigError``, which names the node, or the
    line.
    """
    topology = graph_file.read(path, may_be_apart=True)
    try:
        given = _capacities(path)
        return network_of(topology, given, server=server)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def network_of(
    topology: GraphTopology, given: Mapping[str, object], *, server: Capacity
) -> ProgrammableNetwork:
    """``given``: the attribute ``capacity``, by name of the nodes that have it."""
    capacities: list[Capacity] = []
    for node in range(topology.nodes):
        name = topology.name(node)
        default = server if node < topology.hosts else Fraction(0)
        capacities.append(_parsed(f"node {name}", given[name]) if name in given else default)
    return ProgrammableNetwork(topology, tuple(capacities))


def _parsed(where: str, value: object) -> Capacity:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ConfigError(f"{where}: capacity {value!r}: a number, or text such as 10/3 or {UNBOUNDED}")
    try:
        return parse_capacity(value if isinstance(value, str) else plain(value))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _capacities(path: Path) -> dict[str, object]:
    data = read_bounded(path, graph_file.BYTES_MAX)
    if path.suffix != ".json":
        return _of_graph(nx.read_graphml(BytesIO(data)))
    fields: Any = json.loads(data)
    if "nodes" in fields:
        edges = "links" if "links" in fields else "edges"
        return _of_graph(nx.node_link_graph(fields, edges=edges))
    return {one["name"]: one["capacity"] for one in fields["switches"] if one.get("capacity") is not None}


def _of_graph(graph: nx.Graph) -> dict[str, object]:
    default = graph.graph.get("node_default", {})
    every = ((node, default | own) for node, own in graph.nodes(data=True))
    return {str(node): fields["capacity"] for node, fields in every if "capacity" in fields}
