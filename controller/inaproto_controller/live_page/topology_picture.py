"""Where hosts, switches, links and the trees of jobs go in a picture of the cluster; the template draws it.

Hosts are the lowest layer, in the order of the cluster file; a switch is as many layers up as it is links
away from the nearest host, and in its layer ordered by what hangs below it. A cluster of more nodes than can
be read is shown by what jobs use of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from inaproto_controller.desired import Job
from inaproto_controller.graph_topology import GraphTopology
from inaproto_controller.looks import COLOURS

WIDTH: Final = 1160
LAYER_HEIGHT: Final = 96
MARGIN: Final = 34
NODES_DRAWN_MAX: Final = 96
"""In a layer."""
LINKS_DRAWN_MAX: Final = 4096
TREES_DRAWN_MAX: Final = 32
_CHARACTER: Final = 6.7
"""Width of one in a label, which is in a font that has one width."""
_LABEL_MIN: Final = 3
_APART: Final = 4.0
"""Two trees on one link."""


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    label: str
    """As much of it as there is room for; may be empty."""
    is_host: bool
    sums: bool
    presence: str
    """As in ``Presence``; of a switch that does not sum, and so is not asked: empty."""
    x: float
    y: float
    colour: str
    """Of the job that has the host, or the tree's root; else empty."""


@dataclass(frozen=True, slots=True)
class Line:
    x1: float
    y1: float
    x2: float
    y2: float
    name: str
    job: str = ""
    colour: str = ""


@dataclass(frozen=True, slots=True)
class TopologyPicture:
    width: int
    height: int
    nodes: Sequence[Node]
    links: Sequence[Line]
    trees: Sequence[Line]
    left_out: Sequence[str]
    """In words, what is not drawn."""


def colour_of(job: int) -> str:
    """The same as long as the job lives."""
    return COLOURS[job % len(COLOURS)]


class ClusterLayout:
    """What does not change while the controller runs."""

    def __init__(self, topology: GraphTopology) -> None:
        self._topology = topology
        self._layers = _layers(topology)
        self._ends = {
            name: (link.one, link.other)
            for name, link in zip(topology.link_names, topology.links, strict=True)
        }

    def picture(self, jobs: Sequence[Job], presences: Mapping[str, str]) -> TopologyPicture:
        """``jobs``: those that are not over; ``presences``: of hosts and switches that report, by name."""
        with_trees = [job for job in jobs if job.tree is not None]
        drawn = with_trees[:TREES_DRAWN_MAX]
        shown, left_out = self._shown(jobs)
        if len(with_trees) > len(drawn):
            left_out.append(f"the trees of {len(with_trees) - len(drawn)} further jobs")
        places = self._places(shown)
        links = [
            _line(places[one], places[other], name)
            for name, (one, other) in self._ends.items()
            if one in places and other in places
        ]
        if len(links) > LINKS_DRAWN_MAX:
            left_out.append(f"{len(links) - LINKS_DRAWN_MAX} of {len(links)} links")
        colours = {host: colour_of(job.number) for job in jobs for host in job.hosts}
        colours |= {job.tree.root: colour_of(job.number) for job in drawn if job.tree is not None}
        height = MARGIN * 2 + LAYER_HEIGHT * (len(self._layers) - 1)
        return TopologyPicture(
            WIDTH,
            height,
            [self._node(node, place, presences, colours, shown) for node, place in places.items()],
            links[:LINKS_DRAWN_MAX],
            self._trees(drawn, places),
            left_out,
        )

    def _shown(self, jobs: Sequence[Job]) -> tuple[list[list[int]], list[str]]:
        """Nodes by layer."""
        used = {host for job in jobs for host in job.hosts}
        used |= {name for job in jobs if job.tree is not None for name in job.tree.switches}
        shown, left_out = [], []
        for number, layer in enumerate(self._layers):
            chosen = layer
            if len(layer) > NODES_DRAWN_MAX:
                chosen = [node for node in layer if self._topology.name(node) in used][:NODES_DRAWN_MAX]
                what = "hosts" if number == 0 else "switches"
                left_out.append(f"{len(layer) - len(chosen)} of {len(layer)} {what}")
            shown.append(chosen)
        return shown, left_out

    def _places(self, shown: Sequence[Collection[int]]) -> dict[int, tuple[float, float]]:
        places = {}
        bottom = MARGIN + LAYER_HEIGHT * (len(shown) - 1)
        for number, layer in enumerate(shown):
            step = WIDTH / max(1, len(layer))
            for place, node in enumerate(layer):
                places[node] = (round((place + 0.5) * step, 1), float(bottom - number * LAYER_HEIGHT))
        return places

    def _node(
        self,
        node: int,
        place: tuple[float, float],
        presences: Mapping[str, str],
        colours: Mapping[str, str],
        shown: Sequence[Collection[int]],
    ) -> Node:
        topology = self._topology
        name, is_host = topology.name(node), node < topology.hosts
        siblings = next(len(layer) for layer in shown if node in layer)
        return Node(
            name,
            _label(name, WIDTH / siblings),
            is_host,
            not is_host and topology.switches[node - topology.hosts].aggregates,
            presences.get(name, ""),
            *place,
            colours.get(name, ""),
        )

    def _trees(self, jobs: Sequence[Job], places: Mapping[int, tuple[float, float]]) -> list[Line]:
        over: dict[str, list[Job]] = {}
        for job in jobs:
            for link in () if job.tree is None else job.tree.links:
                over.setdefault(link, []).append(job)
        lines = []
        for link, those in over.items():
            ends = self._ends.get(link)
            if ends is None or not all(end in places for end in ends):
                continue
            for number, job in enumerate(those):
                aside = (number - (len(those) - 1) / 2) * _APART
                line = _line(places[ends[0]], places[ends[1]], link, aside)
                lines.append(
                    Line(line.x1, line.y1, line.x2, line.y2, link, job.spec.name, colour_of(job.number))
                )
        return lines


def _layers(topology: GraphTopology) -> list[list[int]]:
    """Nodes, hosts first. Switches that no host reaches are left out; there are no jobs on them."""
    neighbours: dict[int, list[int]] = {node: [] for node in range(topology.nodes)}
    for link in topology.links:
        neighbours[link.one].append(link.other)
        neighbours[link.other].append(link.one)
    layers = [list(range(topology.hosts))]
    where = {node: float(node) for node in layers[0]}
    while True:
        above = dict.fromkeys(node for below in layers[-1] for node in neighbours[below] if node not in where)
        if not above:
            return layers
        middle = {}
        for node in above:
            hangs = [where[one] for one in neighbours[node] if one in where]
            middle[node] = sum(hangs) / len(hangs)
        layers.append(sorted(above, key=lambda node: (middle[node], node)))
        where |= middle


def _line(one: tuple[float, float], other: tuple[float, float], name: str, aside: float = 0.0) -> Line:
    dx, dy = other[0] - one[0], other[1] - one[1]
    length = math.hypot(dx, dy) or 1.0
    x, y = -dy / length * aside, dx / length * aside
    return Line(
        round(one[0] + x, 1), round(one[1] + y, 1), round(other[0] + x, 1), round(other[1] + y, 1), name
    )


def _label(name: str, width: float) -> str:
    room = int(width / _CHARACTER) - 1
    if len(name) <= room:
        return name
    return "" if room < _LABEL_MIN else f"{name[: room - 1]}…"
