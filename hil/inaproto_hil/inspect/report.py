"""What an inspection shows: connections, notes, rules applied, and the packets that break one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from rich.table import Table

from inaproto.errors import DecodeError
from inaproto.plain_cells import plain
from inaproto.units import PSN_MASK, S
from inaproto.wire.ethernet import mac_text
from inaproto.wire.files.pcapng import CapturedFrame, Direction
from inaproto.wire.roce import RocePacket
from inaproto_hil.inspect.findings import RULES, Books, Broken
from inaproto_hil.inspect.flows import Flow
from inaproto_hil.inspect.inspector import Inspector
from inaproto_hil.inspect.packets import Seen, connection_text, look

VERSION: Final = 1
_ROW: Final = 16
_ROWS_MAX: Final = 12
_ARROWS: Final = {Direction.INBOUND: "in", Direction.OUTBOUND: "out", Direction.UNKNOWN: "-"}


def connections_table(inspector: Inspector) -> Table:
    """One row a connection."""
    table = Table(box=None, pad_edge=False)
    for name in ("connection", "ring", "rank", "ports", "packets", "again", "PSNs", "ACKs", "NAKs"):
        table.add_column(name, no_wrap=True)
    for flow in flows_of(inspector):
        row = flow_row(flow)
        table.add_row(*plain(*row.values()))
    return table


def flows_of(inspector: Inspector) -> list[Flow]:
    return sorted([*inspector.ended, *inspector.flows.values()], key=lambda flow: flow.since)


def flow_row(flow: Flow) -> dict[str, Any]:
    low = None if flow.first is None else flow.first[0] & PSN_MASK
    high = None if flow.high is None else flow.high & PSN_MASK
    ports = [f"{one.port or '?'} {_ARROWS[one.direction]}" for one in flow.streams.values()]
    return {
        "connection": connection_text(flow.connection),
        "ring": "" if flow.ring_id is None else flow.ring_id,
        "rank": "" if flow.rank is None else flow.rank,
        "ports": ", ".join(ports),
        "packets": flow.packets,
        "again": flow.again,
        "psns": f"{low}..{high}",
        "acks": flow.acks,
        "naks": flow.naks,
    }


def rules_lines(inspector: Inspector) -> Iterator[str]:
    """How many rules were applied; which were not, and what they need."""
    checked = inspector.books.checked
    never = [rule for rule in RULES if not checked[rule.name]]
    yield f"{len(RULES) - len(never)} of {len(RULES)} rules applied"
    for needs in dict.fromkeys(rule.needs for rule in never):
        names = ", ".join(rule.name for rule in never if rule.needs is needs)
        yield f"  nothing to apply to: {names} (needs {needs})"


def broken_lines(broken: Broken) -> Iterator[str]:
    """The rule, why, and the packet."""
    frame = broken.frame
    port = f", port {frame.interface.name}" if frame.interface.name else ""
    way = {Direction.INBOUND: " into the switch", Direction.OUTBOUND: " out of the switch"}
    yield f"frame {frame.number} breaks a rule: {broken.rule.name}"
    yield f"  time        {time_text(frame)}{port}{way.get(frame.direction, '')}"
    yield f"  connection  {broken.connection}" + ("" if broken.psn is None else f", PSN {broken.psn}")
    yield f"  rule        {broken.rule.states}  [{broken.rule.source}]"
    yield f"  expected    {broken.expected}"
    yield f"  got         {broken.got}"
    if broken.shown_by != frame.number:
        yield f"  shown by    frame {broken.shown_by}"
    yield from packet_lines(frame, broken.wrong)


def packet_lines(frame: CapturedFrame, wrong: range = range(0)) -> Iterator[str]:
    """A frame's headers, a line each, and its bytes; those in ``wrong`` are marked."""
    macs = f"{mac_text(frame.data[6:12])} -> {mac_text(frame.data[:6])}"
    yield f"  ethernet    {macs}, {frame.wire_bytes} bytes"
    try:
        packet = RocePacket.decode_frame(frame.data)
    except DecodeError as error:
        yield f"  not RoCEv2  {error}"
    else:
        yield f"  ip          {packet.ip}"
        for name in ("bth", "reth", "imm", "aeth"):
            header = getattr(packet, name)
            if header is not None:
                yield f"  {name:<10}  {header}"
        seen = look(frame, Books())
        if isinstance(seen, Seen) and seen.ina is not None:
            yield f"  ina         {seen.ina}{' result' * seen.is_result}"
        yield f"  payload     {len(packet.payload)} bytes"
    yield from _hexdump(frame.data, wrong)


def _hexdump(data: bytes, wrong: range) -> Iterator[str]:
    rows = range(0, len(data), _ROW)
    around = wrong.start // _ROW if wrong else 0
    shown = [row for row in rows if row // _ROW < 5 or abs(row // _ROW - around) <= 2][:_ROWS_MAX]
    before = -_ROW
    for row in shown:
        if row != before + _ROW:
            yield "    ...."
        before = row
        cells = [f"{byte:02x}" for byte in data[row : row + _ROW]]
        marks = ["^^" if row + at in wrong else "  " for at in range(len(cells))]
        yield f"    {row:04x}  " + " ".join(cells)
        if "^^" in marks:
            yield "          " + " ".join(marks).rstrip()
    if before + _ROW < len(data):
        yield "    ...."


def time_text(frame: CapturedFrame) -> str:
    if frame.when_ns is None:
        return "no time"
    seconds, rest = divmod(frame.when_ns, S)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{seconds}.{rest:09d} s"


def document(inspector: Inspector, found: Iterable[Broken], *, problem: str | None) -> dict[str, Any]:
    """For ``json.dump``."""
    counts = inspector.counts()
    return {
        "version": VERSION,
        "frames": counts.frames,
        "roce_packets": counts.roce,
        "lost_by_capture": inspector.captures_lost,
        "unreadable": problem,
        "broken": counts.broken,
        "first": [broken.as_dict() for broken in found],
        "notes": dict(sorted(inspector.books.notes.items())),
        "rules": {rule.name: inspector.books.checked[rule.name] for rule in RULES},
        "connections": [flow_row(flow) for flow in flows_of(inspector)],
    }
