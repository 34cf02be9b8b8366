"""What a message sequence diagram of a logged run shows: points on lifelines, and arrows between them.

Every point that has words takes a row of its own in the drawing. A frame that was sent before the drawing
begins is told where it arrives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from inaproto.sim.log import SWITCH_NODE, Log
from inaproto.sim.recorder import Record, say_time
from inaproto.sim.swarm import Fault, FaultKind

RED: Final = "#c62828"
INK: Final = "#20242b"
PALE: Final = "#6a7078"


class Kind(Enum):
    DATA = "data"
    RESULT = "result"
    ACK = "ack"
    NAK = "nak"
    OTHER = "other"


COLOURS: Final = {
    Kind.DATA: "#1f5fbf",
    Kind.RESULT: "#1a8a3c",
    Kind.ACK: "#8a8f98",
    Kind.NAK: "#c76b00",
    Kind.OTHER: "#7a4fa3",
}


@dataclass(slots=True)
class Arrow:
    """A frame, or a copy of it, on its way along one link."""

    source: int
    target: int
    sent: Point | None
    """None: before the drawing begins."""
    end: Point | None
    """None: still under way when the drawing ends, or lost."""
    kind: Kind
    lost: str = ""
    harmed: bool = False
    copy: bool = False


@dataclass(slots=True, eq=False)
class Point:
    """Something at a time on a lifeline. Points with text take a row."""

    at: int
    order: tuple[int, int]
    node: int
    text: str = ""
    colour: str = INK
    toward: int | None = None
    """The text stands on this side."""
    failing: bool = False
    y: float = 0.0


@dataclass(slots=True)
class Scene:
    points: list[Point] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    begin: int = 0
    end: int = 0


def scene_of(log: Log, last: int) -> Scene:
    records = log.records
    end = max((record["at"] for record in records), default=0)
    if log.violation is not None:
        end = max(end, log.violation.at_ns)
    scene = Scene(end=end)
    for record in records:
        _add_record(scene, record, log.violation is not None and record["n"] == log.violation.event)
    _add_faults(scene, log)
    told = sorted((point for point in scene.points if point.text), key=lambda point: (point.at, point.order))
    scene.begin = told[-last:][0].at if told else 0
    kept = {id(point) for point in told[-last:]}
    _trim(scene, kept)
    return scene


def _add_record(scene: Scene, record: Record, failing: bool) -> None:
    number, at, node = record["n"], record["at"], record["node"]
    if "frames" not in record:
        detail = f" {record['detail']}" if record["kind"] in ("done", "failed") else ""
        scene.points.append(Point(at, (number, 0), node, f"{_say_kind(record['kind'])}{detail}"))
    elif failing:
        what = record["frames"][-1]
        label = frame_label(what, kind_of_frame(what, from_switch=node != SWITCH_NODE))
        scene.points.append(Point(at, (number, 0), node, f"takes in {label}"))
    if failing:
        scene.points[-1].failing = True
        scene.points[-1].text = f"event {number}: {scene.points[-1].text}"
    for index, said in enumerate(record.get("said", [])):
        if "node" in said:
            point = Point(said["at"], (number, 1 + index), said["node"], said["short"], PALE)
            scene.points.append(point)
    for index, send in enumerate(record.get("sends", [])):
        _add_send(scene, send, (number, 1000 + index))


def _say_kind(kind: str) -> str:
    return {"done": "has the result of all-reduce", "failed": "all-reduce failed:"}.get(kind, kind)


def _add_send(scene: Scene, send: Record, order: tuple[int, int]) -> None:
    source, target = (_node(name) for name in send["link"].split(">"))
    what, lost, fate = send["what"], send.get("lost", ""), send.get("fate", "")
    kind = kind_of_frame(what, from_switch=source == SWITCH_NODE)
    label = frame_label(what, kind)
    if lost:
        label += f" ✗ lost: {lost}"
    elif fate:
        label += f" ({fate})"
    colour = RED if lost or fate else COLOURS[kind]
    sent = Point(send["at"], order, source, label, colour, toward=target)
    scene.points.append(sent)
    dues = send.get("due", [])
    if lost and not dues:
        scene.arrows.append(Arrow(source, target, sent, None, kind, lost))
    for index, due in enumerate(dues):
        arrow = Arrow(source, target, sent, None, kind, lost, bool(fate), copy=index > 0)
        if due <= scene.end and not lost:
            arrow.end = Point(due, (order[0], 2000 + index), target)
            scene.points.append(arrow.end)
        scene.arrows.append(arrow)


def _add_faults(scene: Scene, log: Log) -> None:
    for index, fault in enumerate(log.config.faults):
        node = fault_node(fault, len(log.config.links))
        for at, text in ((fault.at_ns, "begins"), (fault.at_ns + fault.duration_ns, "ends")):
            if at <= scene.end and (text == "begins" or has_duration(fault)):
                said = f"{fault.kind} {text}" if has_duration(fault) else str(fault.kind)
                if fault.kind is FaultKind.CLOCK_JUMP:
                    said += f" by {say_time(fault.duration_ns)}"
                scene.points.append(Point(at, (1 << 40, index), node, said, RED))


def _trim(scene: Scene, kept: set[int]) -> None:
    """Leave out what was before the drawing begins."""
    begin = scene.begin
    arrows = []
    for arrow in scene.arrows:
        if arrow.sent is not None and id(arrow.sent) not in kept:
            if arrow.end is None or arrow.end.at < begin:
                continue
            arrow.end.text = f"{arrow.sent.text} (sent {say_time(arrow.end.at - arrow.sent.at)} ago)"
            arrow.end.colour = arrow.sent.colour
            arrow.end.toward = arrow.source
            kept.add(id(arrow.end))
            arrow.sent = None
        arrows.append(arrow)
    ends = {id(arrow.end) for arrow in arrows if arrow.end is not None}
    scene.arrows = arrows
    # A fault's record says the same as its scheduled beginning, in fewer words.
    scene.points = [
        point
        for point in scene.points
        if (id(point) in kept or id(point) in ends)
        and not (point.text in set(FaultKind) and point.colour == INK and not point.failing)
    ]
    scene.points.sort(key=lambda point: (point.at, point.order))


def fault_node(fault: Fault, hosts: int) -> int:
    return SWITCH_NODE if fault.kind is FaultKind.SWITCH_REBOOT else fault.target % hosts


def has_duration(fault: Fault) -> bool:
    return fault.kind not in (FaultKind.NIC_RESET, FaultKind.CLOCK_JUMP)


def _node(name: str) -> int:
    return SWITCH_NODE if name == "switch" else int(name.removeprefix("host"))


def order_nodes(scene: Scene) -> list[int]:
    """Hosts on both sides of the switch."""
    seen = {point.node for point in scene.points} - {SWITCH_NODE}
    seen |= {node for arrow in scene.arrows for node in (arrow.source, arrow.target)} - {SWITCH_NODE}
    hosts = sorted(seen)
    middle = (len(hosts) + 1) // 2
    return [*hosts[:middle], SWITCH_NODE, *hosts[middle:]]


# --- words


def kind_of_frame(what: Record, *, from_switch: bool) -> Kind:
    """Of what a link was given. Middle and last packets have no INA header: the direction tells."""
    if "nak" in what:
        return Kind.NAK if what["nak"] else Kind.ACK
    if "error" in what or "WRITE" not in what["what"]:
        return Kind.OTHER
    is_result = what.get("result", from_switch)
    return Kind.RESULT if is_result else Kind.DATA


def frame_label(what: Record, kind: Kind) -> str:
    """``FIRST psn 7 msg 3 >h1``; the host at its end is named, since every frame passes the switch."""
    if "error" in what:
        return str(what["what"])
    target = f"to h{what['to'] - 1}"
    match kind:
        case Kind.ACK | Kind.NAK:
            return f"{kind.name} psn {what['psn']} {target}"
        case Kind.OTHER:
            return f"{what['what']} psn {what['psn']} {target}"
        case Kind.DATA | Kind.RESULT:
            place = what["what"].replace("WRITE_", "").replace("_IMM", "").lower()
            head = "RESULT " if kind is Kind.RESULT else ""
            message = f" msg {what['msg']}" if "msg" in what else ""
            return f"{head}{place} psn {what['psn']}{message} {target}"
