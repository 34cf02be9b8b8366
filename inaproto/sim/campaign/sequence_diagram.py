"""The last moments of a logged run as a message sequence diagram, in SVG that any browser shows.

Time runs down. Every line of text has a row of its own, so no two overlap; between rows time is not to
scale, and long silences are marked. An arrow leaves its sender where the frame was given to the link and
ends where it arrives, so a late frame slants, and frames that overtake one another cross.
"""

from __future__ import annotations

import textwrap
from typing import Final
from xml.etree import ElementTree

from inaproto.sim.campaign.log import Log
from inaproto.sim.campaign.sequence_scene import (
    COLOURS,
    INK,
    PALE,
    RED,
    Arrow,
    Kind,
    Point,
    Scene,
    fault_node,
    has_duration,
    nodes_by_name,
    order_nodes,
    scene_of,
)
from inaproto.sim.frames.draw.topology import SWITCH_NODE
from inaproto.sim.frames.recorder import say_time

_ROW: Final = 19.0
_STEP: Final = 4.0
_GUTTER: Final = 240.0
"""Left of the first column: times, and what the first lifeline has to say."""
_COLUMN: Final = 270.0
_MARGIN: Final = 24.0
_STUB: Final = 54.0
"""Length of an arrow whose beginning is not in the drawing."""
_RIGHT: Final = 170.0
_FONT: Final = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
_CHAR: Final = 6.7
"""Width of a character at 11 px, a little more than it is in any of these fonts."""
_SILENCE_NS: Final = 1_000_000
_FAULT: Final = "#f2b8b5"


def draw(log: Log, *, last: int = 60, first: int | None = None) -> str:
    """SVG text. ``last`` is how many lines of text are told, from event ``first`` on or at the end."""
    scene = scene_of(log, last, first)
    nodes = order_nodes(scene, log.config)
    return _Drawing(log, scene, nodes).text()


class _Drawing:
    def __init__(self, log: Log, scene: Scene, nodes: list[int]) -> None:
        self._log = log
        self._scene = scene
        self._x = {node: _GUTTER + _COLUMN * (index + 0.5) for index, node in enumerate(nodes)}
        self._width = max(_GUTTER + _COLUMN * len(nodes) + _RIGHT, 980.0)
        self._left_of_switch = set(nodes[: nodes.index(SWITCH_NODE)])
        self._root = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg"})
        self._silences: list[tuple[float, int]] = []
        self._top = 128.0
        self._bottom = self._lay_out()

    def _lay_out(self) -> float:
        """Give every point its height; returns where the lifelines end."""
        y, before, was_text = self._top, self._scene.begin, True
        if any(arrow.sent is None for arrow in self._scene.arrows):
            y += 1.5 * _ROW
        for point in self._scene.points:
            silence = point.at - before
            if silence >= _SILENCE_NS:
                y += 2 * _ROW
                self._silences.append((y - 0.35 * _ROW, silence))
                y += 0.4 * _ROW
            if point.text:
                y += _ROW
            elif silence or was_text:
                y += _STEP
            point.y = y
            before, was_text = point.at, bool(point.text)
        return y + 1.6 * _ROW

    def text(self) -> str:
        footer = self._footer_lines()
        height = self._bottom + 40 + 17 * len(footer)
        self._root.set("viewBox", f"0 0 {self._width:g} {height:g}")
        self._root.set("width", f"{self._width:g}")
        self._root.set("height", f"{height:g}")
        self._root.set("font-family", _FONT)
        self._root.set("font-size", "11")
        self._add("rect", x=0, y=0, width=self._width, height=height, fill="#ffffff")
        self._markers()
        self._heading()
        self._failing_band()
        self._lifelines()
        self._fault_bars()
        self._silent_times()
        for arrow in self._scene.arrows:
            self._arrow(arrow)
        for point in self._scene.points:
            self._point(point)
        self._footer(footer)
        ElementTree.indent(self._root)
        return ElementTree.tostring(self._root, encoding="unicode") + "\n"

    def _add(self, tag: str, text: str | None = None, **attributes: float | str) -> ElementTree.Element:
        named = {
            "class" if name == "klass" else name.replace("_", "-"): f"{value:.4g}"
            if isinstance(value, float) and abs(value) < 1
            else _number(value)
            for name, value in attributes.items()
        }
        element = ElementTree.SubElement(self._root, tag, named)
        element.text = text
        return element

    def _label(self, x: float, y: float, text: str, colour: str = INK, **more: float | str) -> None:
        """Text with a white halo, so that lines behind it do not hurt."""
        self._add("text", text, x=x, y=y, stroke="#ffffff", stroke_width=3, stroke_linejoin="round", **more)
        self._add("text", text, x=x, y=y, fill=colour, **more)

    def _markers(self) -> None:
        defs = self._add("defs")
        for name, colour in {**{kind.name: COLOURS[kind] for kind in Kind}, "HARMED": RED}.items():
            marker = ElementTree.SubElement(
                defs,
                "marker",
                {
                    "id": f"head-{name.lower()}",
                    "viewBox": "0 0 10 10",
                    "refX": "9",
                    "refY": "5",
                    "markerWidth": "7",
                    "markerHeight": "7",
                    "orient": "auto",
                },
            )
            ElementTree.SubElement(marker, "path", {"d": "M0,1 L10,5 L0,9 z", "fill": colour})

    def _heading(self) -> None:
        log = self._log
        title = f"seed {log.config.seed}: " + (
            f"broken rule: {log.violation.rule}" if log.violation else "every rule was kept"
        )
        self._add("title", title)
        self._add(
            "text",
            title,
            x=_MARGIN,
            y=30,
            font_size=16,
            font_weight="bold",
            fill=RED if log.violation else INK,
        )
        span = f"{say_time(self._scene.begin)} to {say_time(self._scene.end)} of virtual time"
        commit = f", commit {log.program.commit[:12]}" if log.program.commit else ""
        variant = f", with {log.program.variant}" if log.program.variant else ""
        self._add(
            "text",
            f"the last moments, {span}; inaproto {log.program.version}{commit}{variant}",
            x=_MARGIN,
            y=49,
            fill=PALE,
        )
        self._legend()

    def _legend(self) -> None:
        x, y = _MARGIN, 70.0
        for kind, words in (
            (Kind.DATA, "data"),
            (Kind.RESULT, "result"),
            (Kind.ACK, "ACK"),
            (Kind.NAK, "NAK"),
            (Kind.OTHER, "other"),
        ):
            self._add(
                "line", x1=x, y1=y, x2=x + 28, y2=y, stroke=COLOURS[kind], stroke_width=1.6,
                marker_end=f"url(#head-{kind.name.lower()})",
            )  # fmt: skip
            self._add("text", words, x=x + 34, y=y + 4, fill=INK)
            x += 34 + _CHAR * len(words) + 18
        self._cross(x + 26, y)
        self._add("line", x1=x, y1=y, x2=x + 26, y2=y, stroke=RED, stroke_width=1.6)
        self._add("text", "lost", x=x + 38, y=y + 4, fill=INK)
        x += 38 + _CHAR * 4 + 18
        self._add(
            "line", x1=x, y1=y, x2=x + 28, y2=y, stroke=RED, stroke_width=1.6, stroke_dasharray="5 3",
            marker_end="url(#head-harmed)",
        )  # fmt: skip
        self._add("text", "copy", x=x + 34, y=y + 4, fill=INK)
        x += 34 + _CHAR * 4 + 18
        self._add("text", "red: late, copied or damaged", x=x, y=y + 4, fill=RED)
        x += _CHAR * 28 + 18
        self._add("rect", x=x, y=y - 7, width=10, height=14, fill=_FAULT)
        self._add("text", "fault in force", x=x + 16, y=y + 4, fill=INK)

    def _failing_band(self) -> None:
        for point in self._scene.points:
            if point.failing:
                self._add(
                    "rect", x=8, y=point.y - 14, width=self._width - 16, height=_ROW + 2, fill="#fde7e7",
                    stroke=RED, stroke_width=1, rx=4,
                )  # fmt: skip

    def _lifelines(self) -> None:
        names = {node: name for name, node in nodes_by_name(self._log.config).items()}
        for node, x in self._x.items():
            self._add("line", x1=x, y1=self._top, x2=x, y2=self._bottom, stroke="#b9bec6", stroke_width=1.2)
            self._add(
                "rect", x=x - 44, y=self._top - 34, width=88, height=24, rx=5,
                fill="#eef1f5" if node < SWITCH_NODE else "#e3eefc", stroke="#8a93a0",
            )  # fmt: skip
            self._add(
                "text",
                names[node],
                x=x,
                y=self._top - 18,
                text_anchor="middle",
                font_weight="bold",
                fill=INK,
            )

    def _fault_bars(self) -> None:
        for fault in self._log.config.faults:
            node = fault_node(fault, self._log.config)
            end = fault.at_ns + fault.duration_ns
            if node not in self._x or not has_duration(fault) or end < self._scene.begin:
                continue
            if fault.at_ns > self._scene.end:
                continue
            top, bottom = self._height_at(fault.at_ns), self._height_at(end)
            bar = self._add(
                "rect", x=self._x[node] - 6, y=top, width=12, height=max(3.0, bottom - top), fill=_FAULT,
                fill_opacity=0.8,
            )  # fmt: skip
            said = f"{fault.kind}, {say_time(fault.at_ns)} to {say_time(end)}"
            ElementTree.SubElement(bar, "title").text = said

    def _height_at(self, at: int) -> float:
        """Height of a time, between the points around it."""
        before = [point.y for point in self._scene.points if point.at <= at]
        if not before:
            return self._top
        if at > self._scene.end:
            return self._bottom
        return max(before)

    def _silent_times(self) -> None:
        for y, silence in self._silences:
            self._add(
                "line",
                x1=_MARGIN,
                y1=y,
                x2=self._width - _MARGIN,
                y2=y,
                stroke="#c9ced6",
                stroke_dasharray="2 5",
            )
            self._label(_MARGIN + 90, y + 4, f"{say_time(silence)} pass", PALE, font_style="italic")

    def _arrow(self, arrow: Arrow) -> None:
        x1, x2 = self._x[arrow.source], self._x[arrow.target]
        side = 1 if x2 > x1 else -1
        y1 = arrow.sent.y if arrow.sent is not None else self._top
        if arrow.sent is None and arrow.end is not None:  # sent before the drawing begins: its end alone
            x1, y1 = x2 - side * _STUB, max(self._top, arrow.end.y - _STUB / 6)
        head = arrow.kind.name.lower()
        colour = COLOURS[arrow.kind]
        if arrow.harmed or arrow.lost:
            colour, head = RED, "harmed"
        dashes = {"stroke_dasharray": "5 3"} if arrow.copy else {}
        if arrow.end is not None:
            self._add(
                "line", x1=x1, y1=y1, x2=x2 - 2 * side, y2=arrow.end.y, stroke=colour, stroke_width=1.6,
                marker_end=f"url(#head-{head})", klass="frame", **dashes,
            )  # fmt: skip
            return
        reach = x1 + side * 0.78 * min(abs(x2 - x1), _COLUMN)
        y2 = y1 + 7
        self._add(
            "line", x1=x1, y1=y1, x2=reach, y2=y2, stroke=colour, stroke_width=1.6,
            klass="lost" if arrow.lost else "under-way", **dashes,
        )  # fmt: skip
        if arrow.lost:
            self._cross(reach, y2)
        else:
            self._add("circle", cx=reach, cy=y2, r=3, fill="#ffffff", stroke=colour, stroke_width=1.4)

    def _cross(self, x: float, y: float) -> None:
        self._add(
            "path", d=f"M{x - 5:g},{y - 5:g} L{x + 5:g},{y + 5:g} M{x - 5:g},{y + 5:g} L{x + 5:g},{y - 5:g}",
            stroke=RED, stroke_width=2, fill="none",
        )  # fmt: skip

    def _point(self, point: Point) -> None:
        if not point.text:
            return
        x = self._x[point.node]
        self._label(_MARGIN - 10, point.y, f"{point.at / 1e6:.6f} ms", PALE, font_size=10)
        left = point.toward is not None and self._x[point.toward] < x
        if point.toward is None:
            self._add("circle", cx=x, cy=point.y - 4, r=3, fill=point.colour)
            left = (point.node in self._left_of_switch) != point.failing  # bold and long: toward the middle
        colour = RED if point.failing else point.colour
        bold: dict[str, float | str] = {"font_weight": "bold"} if point.failing else {}
        self._label(
            x - 9 if left else x + 9, point.y - (1.5 if point.toward is not None else 0), point.text, colour,
            text_anchor="end" if left else "start", **bold,
        )  # fmt: skip

    def _footer_lines(self) -> list[str]:
        violation = self._log.violation
        if violation is None:
            return [f"The run ended with event {len(self._log.records)}; no rule was broken."]
        wide = int((self._width - 2 * _MARGIN) / _CHAR)
        where = f"event {violation.event} at {say_time(violation.at_ns)}, found by {violation.checker}"
        return [
            f"broken rule: {violation.rule}",
            *textwrap.wrap(violation.evidence, wide),
            where,
        ]

    def _footer(self, lines: list[str]) -> None:
        y = self._bottom + 34
        broken = self._log.violation is not None
        for index, line in enumerate(lines):
            bold: dict[str, float | str] = {"font_weight": "bold"} if index == 0 else {}
            self._add("text", line, x=_MARGIN, y=y, fill=RED if broken and index == 0 else INK, **bold)
            y += 17


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
