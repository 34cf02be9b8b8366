"""Clusters from files: JSON of our own, JSON as NetworkX writes it (node-link), and GraphML.

Our own form names hosts in order and gives the quotas of switches and links (``graph_topology``)::

    {"hosts": ["a", "b", "c"],
     "switches": [{"name": "leaf", "jobs": 1}, {"name": "spine", "jobs_per_port": 1}, {"name": "old"}],
     "links": [{"between": ["a", "leaf"]}, {"between": ["leaf", "spine"], "jobs": 1}, ...]}

A switch without a quota, or with one of 0, does not aggregate; ``generation`` of a switch, such as
"quantum-2", stands for the quota of its kind (``capacity``); a link without ``jobs`` has the quotas of its
ends; the attribute ``capacity`` of a switch is for others (``paring.network_file``). In node-link JSON and
GraphML a node has the attribute ``kind``, "host" or "switch", and nodes and edges have the same attributes
``jobs`` and ``jobs_per_port``, integers, or ``generation``; ids are the names. Other attributes are for
others. Directions of edges mean nothing: one edge each way is one link.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Final
from xml.etree import ElementTree
from xml.etree.ElementTree import ParseError

import networkx as nx
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from inaproto.errors import ConfigError
from inaproto_controller.cluster.capacity import generation_of, of_generation
from inaproto_controller.cluster.graph_topology import GraphLink, GraphSwitch, GraphTopology
from inaproto_controller.cluster.input_file import read_bounded

BYTES_MAX: Final = 1 << 26
_LIMITS: Final = ("jobs", "jobs_per_port")
_TWO_QUOTAS: Final = "generation says the quota; leave jobs and jobs_per_port out, or generation"

_Name = Annotated[str, StringConstraints(min_length=1, max_length=255)]
_Jobs = Annotated[int, Field(ge=0)] | None


class _Switch(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: _Name
    jobs: _Jobs = None
    jobs_per_port: _Jobs = None
    generation: _Name | None = None
    capacity: Any = None

    @model_validator(mode="after")
    def _has_one_quota(self) -> _Switch:
        if self.generation is not None and (self.jobs, self.jobs_per_port) != (None, None):
            raise ValueError(_TWO_QUOTAS)
        return self

    def made(self) -> GraphSwitch:
        if self.generation is not None:
            return of_generation(self.generation).limit(self.name)
        return GraphSwitch(self.name, self.jobs, self.jobs_per_port)


class _Link(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    between: Annotated[list[_Name], Field(min_length=2, max_length=2)]
    jobs: _Jobs = None


class _Cluster(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    hosts: list[_Name]
    switches: list[_Switch]
    links: list[_Link]


def read(path: Path, *, may_be_apart: bool = False) -> GraphTopology:
    """Reads a file by its ending: .json, .graphml or .xml. ``may_be_apart``: hosts, from one another. Raises
    ``ConfigError``, which names the node, or the line."""
    data = read_bounded(path, BYTES_MAX)
    readers = {".json": parse_json, ".graphml": parse_graphml, ".xml": parse_graphml}
    if path.suffix not in readers:
        endings = " or ".join(readers)
        raise ConfigError(f"{path}: is read by the ending of its name, {endings} (docs/cluster-files.md)")
    try:
        return readers[path.suffix](data, may_be_apart=may_be_apart)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_json(data: bytes, *, may_be_apart: bool = False) -> GraphTopology:
    """Either form. Raises ``ConfigError``."""
    try:
        fields = json.loads(data)
    except UnicodeDecodeError as error:
        raise ConfigError(f"no UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"line {error.lineno}: {error.msg}") from None
    except ValueError as error:
        raise ConfigError(f"no JSON that can be used: {error}") from None  # an integer of too many digits
    except RecursionError:
        raise ConfigError("brackets within brackets, too many") from None
    if isinstance(fields, dict) and "nodes" in fields:
        return _of_node_link(fields, may_be_apart=may_be_apart)
    try:
        cluster = _Cluster.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        said = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            tables: dict[object, type[BaseModel]] = {"switches": _Switch, "links": _Link}
            table = tables.get(first["loc"][0], _Cluster)
            said = f"no such key; keys are {', '.join(table.model_fields)}"
        raise ConfigError(f"{_place(fields, first['loc'])}: {said}") from None
    return _topology(
        cluster.hosts,
        [one.made() for one in cluster.switches],
        [(one.between[0], one.between[1], one.jobs) for one in cluster.links],
        may_be_apart=may_be_apart,
    )


def document(topology: GraphTopology) -> dict[str, Any]:
    """In our own form, for ``json.dump``."""
    return {
        "hosts": list(topology.host_names),
        "switches": [
            {"name": one.name}
            | (
                {"generation": generation_of(one)}
                if one.sharp
                else _given(jobs=one.jobs, jobs_per_port=one.jobs_per_port)
            )
            for one in topology.switches
        ],
        "links": [
            {"between": [topology.name(one.one), topology.name(one.other)]} | _given(jobs=one.jobs)
            for one in topology.links
        ],
    }


def parse_graphml(data: bytes, *, may_be_apart: bool = False) -> GraphTopology:
    """Raises ``ConfigError``."""
    try:
        named = {one.get("id") for one in ElementTree.fromstring(data).iterfind(".//{*}node")}
        graph = nx.read_graphml(BytesIO(data))
    except ParseError as error:
        raise ConfigError(f"line {error.position[0]}: no XML: {error}") from None
    except (nx.NetworkXError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"no GraphML: {error!r}") from None
    for node in graph:
        # NetworkX makes the nodes that its links name, and defaults would make switches of them.
        if node not in named:
            raise ConfigError(f"a link of {', '.join(map(str, graph.to_undirected()[node]))}: no node {node}")
    return of_networkx(graph, may_be_apart=may_be_apart)


def _of_node_link(fields: Mapping[str, Any], *, may_be_apart: bool) -> GraphTopology:
    edges = "links" if "links" in fields else "edges"
    if not isinstance(fields.get("graph", {}), dict):
        raise ConfigError("graph: an object")
    for number, node in enumerate(fields["nodes"] if isinstance(fields["nodes"], list) else ()):
        if not isinstance(node, dict) or not isinstance(node.get("id"), str | int):
            raise ConfigError(f"nodes[{number}]: needs an id")
    try:
        graph = nx.node_link_graph(fields, edges=edges)
    except (nx.NetworkXError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"no node-link graph (nodes, {edges}): {error!r}") from None
    return of_networkx(graph, may_be_apart=may_be_apart)


def of_networkx(graph: nx.Graph, *, may_be_apart: bool = False) -> GraphTopology:
    """Attributes as in the module's head; nodes keep their order. Raises ``ConfigError``."""
    hosts, switches = [], []
    # Where NetworkX puts the defaults of GraphML: it does not apply them.
    node_default, edge_default = (graph.graph.get(f"{part}_default", {}) for part in ("node", "edge"))
    if not isinstance(node_default, dict) or not isinstance(edge_default, dict):
        raise ConfigError("graph: node_default, edge_default: an object each")
    for node, own in graph.nodes(data=True):
        fields = node_default | own
        limits = _limits(f"node {node}", fields, _LIMITS)
        match fields.get("kind"):
            case "host":
                hosts.append(str(node))
            case "switch":
                switches.append(_switch(str(node), fields.get("generation"), limits))
            case None:
                raise ConfigError(
                    f"node {node}: needs kind, host or switch (links name nodes that there are)"
                )
            case other:
                raise ConfigError(f"node {node}: kind {other!r}: host or switch")
    links = []
    for one, other, own in graph.to_undirected().edges(data=True):
        limits = _limits(f"link {one} - {other}", edge_default | own, _LIMITS[:1])
        links.append((str(one), str(other), limits.get("jobs")))
    return _topology(hosts, switches, links, may_be_apart=may_be_apart)


def _switch(name: str, generation: object, limits: dict[str, int]) -> GraphSwitch:
    if generation is None:
        return GraphSwitch(name, limits.get("jobs"), limits.get("jobs_per_port"))
    if not isinstance(generation, str) or not generation:
        raise ConfigError(f"node {name}: generation {generation!r}: a name, such as quantum-2")
    if limits:
        raise ConfigError(f"node {name}: {_TWO_QUOTAS}")
    return of_generation(generation).limit(name)


def _topology(
    hosts: Iterable[str],
    switches: Iterable[GraphSwitch],
    links: Iterable[tuple[str, str, int | None]],
    *,
    may_be_apart: bool,
) -> GraphTopology:
    names = tuple(hosts)
    made = tuple(switches)
    numbers = {name: number for number, name in enumerate([*names, *(switch.name for switch in made)])}
    found = []
    for one, other, jobs in links:
        for name in (one, other):
            if name not in numbers:
                raise ConfigError(f"link {one} - {other}: no node {name}")
        found.append(GraphLink(numbers[one], numbers[other], jobs))
    return GraphTopology(names, made, tuple(found), may_be_apart)


def _limits(where: str, fields: Mapping[str, Any], known: Iterable[str]) -> dict[str, int]:
    limits = {}
    for field, value in fields.items():
        if field in known:
            if type(value) is not int or value < 0:
                raise ConfigError(f"{where}: {field} {value!r}: an integer, 0 or more")
            limits[field] = value
        elif str(field).startswith("jobs"):
            raise ConfigError(f"{where}: no attribute {field}; there are {', '.join(known)}")
    return limits


def _given(**limits: int | None) -> dict[str, int]:
    return {field: limit for field, limit in limits.items() if limit is not None}


def _place(fields: Any, path: tuple[int | str, ...]) -> str:
    """Such as "switches[2] (leaf2) jobs"."""
    said = ""
    for part in path:
        try:
            fields = fields[part]
        except (KeyError, IndexError, TypeError):
            fields = None
        said += f"[{part}]" if isinstance(part, int) else f" {part}"
        if isinstance(fields, dict):
            name = fields.get("name", fields.get("between"))
            if isinstance(name, list):
                name = " - ".join(map(str, name))
            said += f" ({name})" if name else ""
    return said.strip() or "cluster"
