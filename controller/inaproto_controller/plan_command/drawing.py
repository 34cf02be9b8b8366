"""A placed tree drawn on its topology, as SVG: who works where, who adds up, and which links its gradients
take.

Servers are the lowest layer, switches as many layers up as they are links away from them. Each vertex that
adds up has a colour, and what is sent to it goes in that colour, along the links of ``Routes``; the line is
the thicker the more gradients it is. A cluster of more nodes than can be read is shown by what the tree uses
of it.

The same tree gives the same bytes. Light and dark are the reader's: colours are those of the live page.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Final

from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.pictures.topology_picture import layers_of
from inaproto_controller.planning.paring.model import Measures, Node, PlacedTree, ProgrammableNetwork
from inaproto_controller.planning.paring.routes import Hop, Routes

NODES_MAX: Final = 72
"""Drawn in a layer that is not shown by what is used of it."""
_STEP: Final = 30.0
_WIDTHS: Final = (900.0, 1600.0)
_LAYER: Final = 120.0
_MARGIN: Final = 48.0
_HEAD: Final = 56.0
_FOOT: Final = 16.0
_COLOURS: Final = 8
_BESIDE: Final = 4.5
"""Between two lines on one link."""
_LABELLED: Final = 20.0
"""Room for the name of a node."""

_LEGEND: Final = (
    "numbers: gradients added up; square: parameter server; discs: workers, in the colour of whom they send "
    "to; dashed: could add up"
)

_STYLE: Final = """
:root { color-scheme: light dark; --ground: #fff; --ink: #20242b; --pale: #5c636d; --line: #d5d9df;
  --c0: #1f5fbf; --c1: #c62828; --c2: #2e7d32; --c3: #8a5a00; --c4: #6a3fa0; --c5: #0b7a7c; --c6: #5f666f;
  --c7: #b8356a; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171c; --ink: #e4e7ec; --pale: #a3abb7;
  --line: #333a45; --c0: #74a9ff; --c1: #ff8a8a; --c2: #7ed184; --c3: #dfb052; --c4: #c6a0f2; --c5: #52cacc;
  --c6: #aeb6c1; --c7: #ff94bb; } }
.ground { fill: var(--ground); }
text { font: 11px ui-monospace, monospace; fill: var(--ink); text-anchor: middle; }
.title { font-size: 15px; font-weight: 600; text-anchor: start; }
.facts { font-size: 12px; fill: var(--pale); text-anchor: start; }
.name { fill: var(--pale); font-size: 10px; paint-order: stroke; stroke: var(--ground); stroke-width: 3px; }
.load { fill: var(--ground); font-weight: 600; }
.link { stroke: var(--line); stroke-width: 1; }
.way { fill: none; stroke-linecap: round; }
.idle { fill: var(--ground); stroke: var(--line); }
.free { fill: var(--ground); stroke: var(--pale); stroke-dasharray: 3 2; }
"""


@dataclass(frozen=True, slots=True)
class _Mark:
    x: float
    y: float
    room: float
    """Between it and its neighbours."""


def drawn(
    network: ProgrammableNetwork,
    tree: PlacedTree,
    measures: Measures,
    *,
    title: str,
    facts: str,
) -> str:
    """An SVG document."""
    return _Picture(network, tree, measures).text(title, facts)


class _Picture:
    def __init__(
        self,
        network: ProgrammableNetwork,
        tree: PlacedTree,
        measures: Measures,
    ) -> None:
        self._network, self._tree, self._name = network, tree, network.topology.name
        self._loads = measures.loads
        self._paths = Routes(network.topology, tree).paths
        adders = [tree.ps, *sorted(set(tree.parents.values()) - {tree.ps})]
        self._colour = {node: f"var(--c{number % _COLOURS})" for number, node in enumerate(adders)}
        self._layers = self._shown(network.topology)
        widest = max(len(layer) for layer in self._layers)
        self._width = min(max(_WIDTHS[0], 2 * _MARGIN + _STEP * widest), _WIDTHS[1])
        self._height = _HEAD + 2 * _MARGIN + _FOOT + _LAYER * (len(self._layers) - 1)
        self._marks = self._placed()

    def _shown(self, topology: GraphTopology) -> list[list[Node]]:
        used = {node for path in self._paths.values() for node in path}
        layers = layers_of(topology)
        if max(len(layer) for layer in layers) <= NODES_MAX:
            return layers
        return [kept for layer in layers if (kept := [node for node in layer if node in used])]

    def _placed(self) -> dict[Node, _Mark]:
        marks = {}
        bottom = self._height - _MARGIN - _FOOT
        for number, layer in enumerate(self._layers):
            step = (self._width - 2 * _MARGIN) / len(layer)
            for place, node in enumerate(layer):
                x = _MARGIN + (place + 0.5) * step
                marks[node] = _Mark(round(x, 1), bottom - number * _LAYER, step)
        return marks

    def text(self, title: str, facts: str) -> str:
        width, height = f"{self._width:g}", f"{self._height:g}"
        hidden = self._network.topology.nodes - len(self._marks)
        if hidden:
            facts += f"; {hidden} nodes that it does not use are left out"
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        parts = [
            f'{head} height="{height}" role="img" aria-label="{escape(title)}">',
            f"<style>{_STYLE}</style>",
            f'<rect class="ground" width="{width}" height="{height}"/>',
            f'<text class="title" x="{_MARGIN / 2:g}" y="26">{escape(title)}</text>',
            f'<text class="facts" x="{_MARGIN / 2:g}" y="46">{escape(facts)}</text>',
            f'<text class="facts" x="{_MARGIN / 2:g}" y="{self._height - 8:g}">{_LEGEND}</text>',
            *self._links(),
            *self._ways(),
            *self._nodes(),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _links(self) -> list[str]:
        ends = {(link.one, link.other) for link in self._network.topology.links}
        return [
            f'<line class="link" {self._ends(self._marks[one], self._marks[other])}/>'
            for one, other in sorted(ends)
            if one in self._marks and other in self._marks
        ]

    def _ways(self) -> list[str]:
        """One line for all gradients to one parent over one link; those to several stand side by side."""
        counts: dict[Hop, Counter[Node]] = {}
        for child, path in self._paths.items():
            for hop in pairwise(path):
                counts.setdefault(hop, Counter())[self._tree.parents[child]] += 1
        lines = []
        for (one, other), by_parent in sorted(counts.items()):
            both = len(by_parent) + len(counts.get((other, one), ()))
            first = 0 if one < other else both - len(by_parent)
            for number, (parent, count) in enumerate(sorted(by_parent.items())):
                aside = (first + number - (both - 1) / 2) * _BESIDE * (1 if one < other else -1)
                about = f"{self._name(one)} to {self._name(other)}: {_gradients(count)}"
                lines.append(
                    f'<line class="way" stroke="{self._colour[parent]}" stroke-width="{_thickness(count):g}"'
                    f" {self._ends(self._marks[one], self._marks[other], aside)}>"
                    f"<title>{escape(about)} for {escape(self._name(parent))}</title></line>"
                )
        return lines

    def _ends(self, one: _Mark, other: _Mark, aside: float = 0.0) -> str:
        dx, dy = other.x - one.x, other.y - one.y
        length = math.hypot(dx, dy) or 1.0
        x, y = -dy / length * aside, dx / length * aside
        places = {"x1": one.x + x, "y1": one.y + y, "x2": other.x + x, "y2": other.y + y}
        return " ".join(f'{name}="{round(value, 1):g}"' for name, value in places.items())

    def _nodes(self) -> list[str]:
        parts = []
        for node, mark in sorted(self._marks.items()):
            is_server = node < self._network.topology.hosts
            shape = self._server(node, mark) if is_server else self._switch(node, mark)
            name = self._name(node)
            is_in = node in self._tree.parents or node == self._tree.ps
            parts.append(f"<g><title>{escape(self._about(node))}</title>{shape}</g>")
            if mark.room >= min(_LABELLED, 6.2 * len(name)) or is_in:
                y = mark.y + (24 if is_server else -19)
                y += 11 if is_server and mark.room < 6.2 * len(name) and self._is_odd(node) else 0
                parts.append(f'<text class="name" x="{mark.x:g}" y="{y:g}">{escape(name)}</text>')
        return parts

    def _is_odd(self, node: Node) -> bool:
        return self._layers[0].index(node) % 2 == 1

    def _server(self, node: Node, mark: _Mark) -> str:
        radius = min(9.0, mark.room / 2.2)
        circle = f'<circle cx="{mark.x:g}" cy="{mark.y:g}" r="{radius:g}"'
        if node == self._tree.ps:
            return f"<rect {_box(mark, radius + 2, radius + 2)} {self._filled(node)}/>{self._load(node)}"
        if node in self._loads:
            return f"{circle} {self._filled(node)}/>{self._load(node)}"
        if node in self._tree.parents:
            return f"{circle} {self._filled(self._tree.parents[node])}/>"
        return f'{circle} class="idle"/>'

    def _switch(self, node: Node, mark: _Mark) -> str:
        box = f'{_box(mark, min(15.0, mark.room / 2.2), 11.0)} rx="4"'
        if node in self._tree.parents:
            return f"<rect {box} {self._filled(node)}/>{self._load(node)}"
        return f'<rect {box} class="{"free" if self._network.capacities[node] != 0 else "idle"}"/>'

    def _filled(self, node: Node) -> str:
        return f'fill="{self._colour[node]}"'

    def _load(self, node: Node) -> str:
        mark = self._marks[node]
        return f'<text class="load" x="{mark.x:g}" y="{mark.y + 4:g}">{self._loads.get(node, "")}</text>'

    def _about(self, node: Node) -> str:
        name, capacity = self._name(node), self._network.capacities[node]
        limit = "unbounded" if capacity is None else f"{capacity} Gbit/s"
        if node == self._tree.ps:
            return f"{name}: parameter server, adds up {self._loads.get(node, 0)}"
        if node in self._tree.parents:
            to = self._name(self._tree.parents[node])
            if node in self._loads:
                return f"{name}: adds up {self._loads[node]}, of {limit}, and sends to {to}"
            return f"{name}: worker, sends to {to}"
        if node < self._network.topology.hosts:
            return f"{name}: not of this task"
        return f"{name}: passes on" + ("" if capacity == 0 else f"; could add up {limit}")


def _box(mark: _Mark, half: float, half_height: float) -> str:
    x, y = mark.x - half, mark.y - half_height
    return f'x="{x:g}" y="{y:g}" width="{2 * half:g}" height="{2 * half_height:g}"'


def _thickness(count: int) -> float:
    return round(1.4 + 1.1 * math.log2(count), 2) if count > 1 else 1.6


def _gradients(count: int) -> str:
    return "1 gradient" if count == 1 else f"{count} gradients"
