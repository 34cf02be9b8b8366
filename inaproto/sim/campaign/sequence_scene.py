"""What a message sequence diagram of a logged run shows: points on lifelines, and arrows between them.

Every point that has words takes a row of its own in the drawing. A frame that was sent before the drawing
begins is told where it arrives.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from inaproto.sim.campaign.failure import folded, last_turn
from inaproto.sim.campaign.log import Log
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, WorldConfig
from inaproto.sim.frames.draw.topology import SWITCH_NODE, node_names
from inaproto.sim.frames.recorder import Record, end_of, say_time
from inaproto.sim.kernel.violated import Violation

RED: Final = "#c62828"
INK: Final = "#20242b"
PALE: Final = "#6a7078"
FAULT_ORDER: Final = 1 << 40
"""Where faults stand among what happens at the same time: behind all events."""


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
    nodes: dict[str, int]
    """Nodes by name."""
    points: list[Point] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    begin: int = 0
    end: int = 0


def scene_of(log: Log, last: int, first: int | None = None) -> Scene:
    """``last`` rows: those from event ``first`` on, or the last ones of all.

    Where these do not reach back to the last turn that things took (see ``last_turn``), the first two
    thirds of them begin there. What is left out shows as time that passes.
    """
    records = log.records
    end = max((record["at"] for record in records), default=0)
    if log.violation is not None:
        end = max(end, log.violation.at_ns)
    scene = Scene(nodes_by_name(log.config), end=end)
    for group in folded(records):
        for number, record in enumerate(group):
            failing = log.violation is not None and record["n"] == log.violation.event
            if number == 0 or failing:
                _add_record(scene, record, failing, times=0 if failing else len(group))
    if log.violation is not None:
        _mark_failing(scene, log.violation, log.config)
    _add_faults(scene, log)
    told = sorted((point for point in scene.points if point.text), key=lambda point: (point.at, point.order))
    windows = _windows(told, last, first, last_turn(log))
    scene.begin = windows[0][0].at if told else 0
    _trim(scene, windows)
    return scene


def _windows(told: list[Point], last: int, first: int | None, turn: int | None) -> list[list[Point]]:
    """The rows that are drawn, in one piece or two."""
    final = told[-last:]
    if first is not None:
        begin = next((point.at for point in told if first <= point.order[0] < FAULT_ORDER), None)
    elif turn is not None and final and turn < min(point.order[0] for point in final):
        begin = next((point.at for point in told if turn == point.order[0]), None)
    else:
        begin = None
    if begin is None:
        return [final]
    head = [point for point in told if point.at >= begin]
    if len(head) <= last:
        return [head]
    tail = last // 3
    return [head[: last - tail], head[len(head) - tail :]] if tail else [head[:last]]


def _mark_failing(scene: Scene, violation: Violation, config: WorldConfig) -> None:
    """The row nearest to the violation, at the node that its evidence names if it names one."""
    nodes = {"accelerator": SWITCH_NODE} | nodes_by_name(config)
    named = re.search(rf"\b({'|'.join(map(re.escape, nodes))})\b", violation.evidence)
    node = None if named is None else nodes[named[1]]
    last = [point for point in scene.points if point.order[0] == violation.event and point.text]
    there = [point for point in last if node is None or point.node == node]
    event = next((point for point in last if point.order[1] == 0), None)
    if event is not None and event.at == violation.at_ns and (node in (None, event.node) or not there):
        event.failing = True
        event.text = f"event {violation.event}: {event.text}"
        return
    nearest = min(there, key=lambda point: (abs(point.at - violation.at_ns), -point.order[1]), default=None)
    if nearest is None or nearest.at != violation.at_ns:
        where = node if node is not None else (event.node if event is not None else SWITCH_NODE)
        nearest = Point(violation.at_ns, (violation.event, 1 << 20), where, f"broken: {violation.rule}")
        scene.points.append(nearest)
    nearest.failing = True


def _add_record(scene: Scene, record: Record, failing: bool, *, times: int) -> None:
    """``times``: how many such events, in which nothing moves, this one stands for."""
    number, at, node = record["n"], record["at"], record["node"]
    if "frames" not in record:
        detail = f" {record['detail']}" if record["kind"] in ("done", "failed") else ""
        more = f" (first of {times} events in which nothing moves)" if times > 1 else ""
        scene.points.append(Point(at, (number, 0), node, f"{_say_kind(record['kind'])}{detail}{more}"))
    elif failing:
        what = record["frames"][-1]
        label = frame_label(what, kind_of_frame(what, is_downward=node < SWITCH_NODE))
        scene.points.append(Point(at, (number, 0), node, f"takes in {label}"))
    for index, said in enumerate(record.get("said", [])):
        if "node" in said:
            point = Point(said["at"], (number, 1 + index), said["node"], said["short"], PALE)
            scene.points.append(point)
    for index, send in enumerate(record.get("sends", [])):
        _add_send(scene, send, (number, 1000 + index))


def _say_kind(kind: str) -> str:
    return {"done": "has the result of all-reduce", "failed": "all-reduce failed:"}.get(kind, kind)


def _add_send(scene: Scene, send: Record, order: tuple[int, int]) -> None:
    source, target = (scene.nodes[name] for name in send["link"].split(">"))
    what, lost, fate = send["what"], send.get("lost", ""), send.get("fate", "")
    kind = kind_of_frame(
        what, is_downward=source >= SWITCH_NODE and (target < SWITCH_NODE or source < target)
    )
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
        node = fault_node(fault, log.config)
        for at, text in ((fault.at_ns, "begins"), (fault.at_ns + fault.duration_ns, "ends")):
            if at <= scene.end and (text == "begins" or has_duration(fault)):
                said = f"{fault.kind} {text}" if has_duration(fault) else str(fault.kind)
                if fault.kind is FaultKind.CLOCK_JUMP:
                    said += f" by {say_time(fault.duration_ns)}"
                scene.points.append(Point(at, (FAULT_ORDER, index), node, said, RED))


def _trim(scene: Scene, windows: list[list[Point]]) -> None:
    """Leave out what is in none of the windows."""
    kept = {id(point) for window in windows for point in window}
    spans = [(window[0].at, window[-1].at) for window in windows if window]
    arrows = []
    for arrow in scene.arrows:
        if arrow.sent is not None and id(arrow.sent) not in kept:
            if arrow.end is None or not any(begin <= arrow.end.at <= end for begin, end in spans):
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


def fault_node(fault: Fault, config: WorldConfig) -> int:
    """The lifeline on which it is shown; of a trunk the lower end."""
    if fault.trunk >= 0:
        return SWITCH_NODE + fault.trunk
    if fault.kind is FaultKind.SWITCH_REBOOT:
        return SWITCH_NODE + fault.target % len(node_names(config.topology))
    if fault.kind is FaultKind.SHARD_DEATH:
        return SWITCH_NODE
    return fault.target % len(config.links)


def has_duration(fault: Fault) -> bool:
    return fault.kind not in (FaultKind.NIC_RESET, FaultKind.SESSION_LOSS, FaultKind.CLOCK_JUMP)


def nodes_by_name(config: WorldConfig) -> dict[str, int]:
    names = node_names(config.topology)
    hosts = {f"host{number}": number for number in range(len(config.links))}
    return hosts | {name: SWITCH_NODE + number for number, name in enumerate(names)}


def order_nodes(scene: Scene, config: WorldConfig) -> list[int]:
    """Hosts that are met and lower switches on both sides of each switch."""
    seen = {point.node for point in scene.points}
    seen |= {node for arrow in scene.arrows for node in (arrow.source, arrow.target)}
    return _around(0, sorted(node for node in seen if node < SWITCH_NODE), config)


def _around(switch: int, hosts: list[int], config: WorldConfig) -> list[int]:
    if config.topology is None:
        below = [[host] for host in hosts]
    else:
        below = [[host] for host in hosts if config.topology.attached[host] == switch]
        for number, other in enumerate(config.topology.switches):
            if other.above == switch:
                below.append(_around(number, hosts, config))
    middle = (len(below) + 1) // 2
    left = [node for part in below[:middle] for node in part]
    return [*left, SWITCH_NODE + switch, *(node for part in below[middle:] for node in part)]


# --- words


def kind_of_frame(what: Record, *, is_downward: bool) -> Kind:
    """Kind of what a link was given. Middle and last packets have no INA header: the direction tells."""
    if "nak" in what:
        return Kind.NAK if what["nak"] else Kind.ACK
    if "error" in what or "WRITE" not in what["what"]:
        return Kind.OTHER
    is_result = what.get("result", is_downward)
    return Kind.RESULT if is_result else Kind.DATA


def frame_label(what: Record, kind: Kind) -> str:
    """``FIRST psn 7 msg 3 >h1``; the host at its end is named, since every frame passes the switch."""
    if "error" in what:
        return str(what["what"])
    target = f"to {end_of(what['to']).replace('host', 'h')}"
    match kind:
        case Kind.ACK | Kind.NAK:
            return f"{kind.name} psn {what['psn']} {target}"
        case Kind.OTHER if "msg" in what:
            return f"{what['what']} msg {what['msg']} {target}"
        case Kind.OTHER:
            return f"{what['what']} psn {what['psn']} {target}"
        case Kind.DATA | Kind.RESULT:
            place = what["what"].replace("WRITE_", "").replace("_IMM", "").lower()
            head = "RESULT " if kind is Kind.RESULT else ""
            message = f" msg {what['msg']}" if "msg" in what else ""
            return f"{head}{place} psn {what['psn']}{message} {target}"
