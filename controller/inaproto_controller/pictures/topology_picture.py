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

from inaproto_controller.cluster.desired import Job
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.pictures.job_colours import colour_of
from inaproto_controller.pictures.labels import CHARACTER, shortened

WIDTH: Final = 1160
LAYER_HEIGHT: Final = 100
MARGIN: Final = 36
NODES_DRAWN_MAX: Final = 96
"""In a layer."""
LINKS_DRAWN_MAX: Final = 4096
TREES_DRAWN_MAX: Final = 32
_NUMBERED_MAX: Final = 40
"""Most nodes of a layer in which there is room to write."""
_HALF_HOST: Final = 11.0
_HALF_SWITCH: Final = 17.0
_BESIDE: Final = 26
"""From the middle of a switch to its label."""
_NAMED_MAX: Final = 8
_APART: Final = 5.0
"""Two trees on one link."""


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    label: str
    """As much of it as there is room for; may be empty."""
    is_beside: bool
    """Its label: where there is room, and links are above and below."""
    is_host: bool
    sums: bool
    presence: str
    """As in ``Presence``; of a switch that does not sum, and so is not asked: empty."""
    x: float
    y: float
    half: float
    """Half of its width."""
    colour: int | None
    """Colour of the job that has the host, or the tree's root."""
    inside: str
    """What is written inside: of a host its job's number; of a switch that sums, trees that it is in."""
    about: str


@dataclass(frozen=True, slots=True)
class Line:
    x1: float
    y1: float
    x2: float
    y2: float
    name: str
    job: str = ""
    colour: int = 0


@dataclass(frozen=True, slots=True)
class TopologyPicture:
    width: int
    height: int
    nodes: Sequence[Node]
    links: Sequence[Line]
    trees: Sequence[Line]
    left_out: Sequence[str]
    """In words, what is not drawn."""


class ClusterLayout:
    """What does not change while the controller runs."""

    def __init__(self, topology: GraphTopology) -> None:
        self._topology = topology
        self._layers = layers_of(topology)
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
        at = _jobs_at(jobs)
        height = MARGIN * 2 + LAYER_HEIGHT * (len(self._layers) - 1)
        return TopologyPicture(
            WIDTH,
            height,
            [self._node(node, place, presences, at, shown) for node, place in places.items()],
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
        at: Mapping[str, Sequence[Job]],
        shown: Sequence[Collection[int]],
    ) -> Node:
        topology = self._topology
        name, is_host = topology.name(node), node < topology.hosts
        switch = None if is_host else topology.switches[node - topology.hosts]
        jobs, presence = at.get(name, ()), presences.get(name, "")
        number = next(number for number, layer in enumerate(shown) if node in layer)
        siblings, is_between = len(shown[number]), 0 < number < len(shown) - 1
        roots = [job for job in jobs if is_host or (job.tree is not None and job.tree.root == name)]
        inside, about = "", [f"{name}: {presence}" if presence else name]
        if switch is None:
            inside = str(jobs[-1].number) if jobs else ""
        elif switch.aggregates:
            limit = "" if switch.jobs is None else f"/{switch.jobs}"
            inside = f"{len(jobs)}{limit}"
            about.append(f"{len(jobs)} trees, {len(roots)} with their root here")
        else:
            about.append("passes packets on")
        label = shortened(name, WIDTH / siblings - 8)
        about += [job.spec.name for job in jobs[:_NAMED_MAX]]
        return Node(
            name,
            label,
            is_between and WIDTH / siblings / 2 - _BESIDE >= len(name) * CHARACTER,
            is_host,
            switch is not None and switch.aggregates,
            presence,
            *place,
            round(min(_HALF_HOST if is_host else _HALF_SWITCH, WIDTH / siblings / 2 - 1), 2),
            colour_of(roots[-1].number) if roots else None,
            inside if siblings <= _NUMBERED_MAX else "",
            "; ".join(about),
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


def _jobs_at(jobs: Sequence[Job]) -> dict[str, list[Job]]:
    """Jobs by host, and by switch of their trees."""
    at: dict[str, list[Job]] = {}
    for job in jobs:
        for name in (*job.hosts, *(() if job.tree is None else job.tree.switches)):
            at.setdefault(name, []).append(job)
    return at


def layers_of(topology: GraphTopology) -> list[list[int]]:
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
