"""Two devices in lock step: the first frame at which they differ, told so that a person can find the reason.

What must be equal: what leaves because of each frame, as a multiset for each port and in order for each flow
of a port; the counters; the rings that failed, with rank and rule. Orders about rings and ports are steps
like frames. ``compare`` stops at the first difference. ``shrink`` leaves out steps of a report as long as a
difference of that kind stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from inaproto.core.switch.message_packets import OPENING_OPCODES
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.errors import DecodeError
from inaproto.wire import ina_header
from inaproto.wire.files.pcapng import CapturedFrame, Direction, Interface
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto.wire.packet import Packet, decode_packet
from inaproto.wire.roce import Opcode, RocePacket
from inaproto_hil.inspect.findings import Books, Broken
from inaproto_hil.inspect.inspector import Inspector
from inaproto_hil.inspect.packets import Seen, look
from inaproto_hil.inspect.report import broken_lines, packet_lines
from inaproto_hil.rtl.equivalence.device import Device, Fault, Maker, Output
from inaproto_hil.rtl.equivalence.steps import (
    Forget,
    Install,
    Order,
    Ports,
    Remove,
    Script,
    Step,
    Traffic,
    carry_out,
)

COUNTED_EVERY: Final = 200
"""Steps between two looks at counters and faults: a device may take long to read them."""
LATEST: Final = 6
"""Steps before the one in question that a report shows."""

INSTALL: Final = "install"
MISSING: Final = "missing"
EXTRA: Final = "extra"
BYTES: Final = "bytes"
ORDER: Final = "order"
COUNTERS: Final = "counters"
FAULTS: Final = "faults"

_ETHERNET_BYTES: Final = 14
_HEADERS: Final = (
    (0, "Ethernet destination"),
    (6, "Ethernet source"),
    (12, "Ethernet type"),
    (14, "IP header"),
    (15, "IP type of service"),
    (16, "IP length"),
    (18, "IP id"),
    (20, "IP fragment"),
    (22, "IP time to live"),
    (23, "IP protocol"),
    (24, "IP checksum"),
    (26, "IP source"),
    (30, "IP destination"),
    (34, "UDP source port"),
    (36, "UDP destination port"),
    (38, "UDP length"),
    (40, "UDP checksum"),
    (42, "BTH opcode"),
    (43, "BTH flags"),
    (44, "BTH partition"),
    (46, "BTH congestion byte"),
    (47, "BTH queue pair"),
    (50, "BTH AckReq byte"),
    (51, "BTH PSN"),
)
_WITH_RETH: Final = ((54, "RETH address"), (62, "RETH key"), (66, "RETH length"), (70, "immediate"))
_WITH_AETH: Final = ((54, "AETH syndrome"), (55, "AETH MSN"))
_WITH_IMMEDIATE: Final = ((54, "immediate"),)


@dataclass(frozen=True)
class Difference:
    """``step`` counts frames and orders from 0; -1: before the first one."""

    kind: str
    step: int
    says: str
    """In one line."""
    port: int = -1
    golden: bytes = b""
    """The frame that should have left there, if one is missing or has other bytes."""
    other: bytes = b""
    """The frame that left instead, or too much."""
    other_port: int = -1
    """Where that left, if not there."""


@dataclass(frozen=True)
class Report:
    """What a comparison found: ``difference`` is None if both did the same."""

    specs: tuple[RingSpec, ...]
    steps: tuple[Step, ...]
    """All that went in, up to the one at which the two differ."""
    difference: Difference | None = None
    seed: int | None = None
    counters: dict[str, int] = field(default_factory=dict)
    """Those of the golden device."""
    faults: tuple[Fault, ...] = ()
    golden_out: tuple[Output, ...] = field(default=(), repr=False)
    """What left the golden device, by step."""
    other_out: Output = field(default_factory=list, repr=False)
    """What left the other one because of the latest step."""

    @property
    def script(self) -> Script:
        """The steps again."""
        return Script(self.specs, self.steps, self.seed)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        found = self.difference
        origin = "" if self.seed is None else f"seed {self.seed}: "
        if found is None:
            yield f"{origin}{len(self.steps)} steps, no difference"
            return
        noticed = "noticed " if found.kind in (COUNTERS, FAULTS) else ""
        yield f"{origin}{found.says}, {noticed}at step {found.step + 1} of {len(self.steps)}"
        for spec in self.specs:
            yield f"  {_ring_text(spec)}"
        wrong = first_difference(found.golden, found.other) if found.golden and found.other else None
        if wrong is not None:
            yield f"  first byte that differs: {_byte_text(found.golden, found.other, wrong)}"
        arrival = self.steps[found.step] if 0 <= found.step < len(self.steps) else None
        if isinstance(arrival, tuple):
            yield from _frame_lines("what came in", *arrival)
        marked = range(0) if wrong is None else range(wrong, wrong + 1)
        if found.golden:
            yield from _frame_lines("what should leave", found.port, found.golden, marked)
        if found.other:
            left_by = found.port if found.other_port < 0 else found.other_port
            yield from _frame_lines("what left", left_by, found.other, marked)
        yield from self._inspected()
        orders = [step for step in range(found.step - LATEST) if not isinstance(self.steps[step], tuple)]
        if orders:
            yield "orders before:"
            yield from (self._step_line(step) for step in orders)
        yield "the steps before, and it:"
        for step in range(max(0, found.step - LATEST), min(found.step + 1, len(self.steps))):
            yield self._step_line(step)

    def _step_line(self, step: int) -> str:
        match self.steps[step]:
            case Install(spec):
                return f"  {step + 1:5} comes {_ring_text(spec)}"
            case Remove(ring_id):
                return f"  {step + 1:5} ring {ring_id} is removed"
            case Forget():
                return f"  {step + 1:5} rings that were removed are forgotten"
            case Ports(up):
                return f"  {step + 1:5} ports that are up: {', '.join(map(str, sorted(up)))}"
            case port, frame:
                left = self.golden_out[step] if step < len(self.golden_out) else []
                ports = ", ".join(str(out) for out, _ in left) or "none"
                return f"  {step + 1:5} at port {port}: {line_of(frame)}; must leave by {ports}"

    def _inspected(self) -> Iterator[str]:
        """Rules of ``inaproto inspect`` that the other device's frames break, and the golden one's do not."""
        found = self.difference
        if found is None or not self.other_out or not 0 <= found.step < len(self.golden_out):
            return
        right = {_what(broken) for broken in self._inspect(self.golden_out[found.step])}
        wrong = [broken for broken in self._inspect(self.other_out) if _what(broken) not in right]
        if wrong:
            yield f"inaproto inspect objects to {len(wrong)} of {len(self.other_out)} frames that left:"
            yield from (f"  {line}" for line in broken_lines(wrong[0]))

    def _inspect(self, latest: Output) -> list[Broken]:
        """What the inspection says of frames that leave at the end."""
        inspector, number = Inspector(), 0

        def feed(port: int, frame: bytes, direction: Direction) -> Broken | None:
            nonlocal number
            number += 1
            return inspector.feed(captured(port, frame, direction, number))

        steps = len(self.golden_out)
        for step, arrival in enumerate(self.steps[:steps]):
            if isinstance(arrival, tuple):
                feed(*arrival, Direction.INBOUND)
            if step < steps - 1:
                for out, left in self.golden_out[step]:
                    feed(out, left, Direction.OUTBOUND)
        found = [feed(out, left, Direction.OUTBOUND) for out, left in latest]
        return [broken for broken in found if broken is not None]


def compare(golden: Device, other: Device, traffic: Traffic, *, every: int = COUNTED_EVERY) -> Report:
    """Feed both with the same frames and orders, up to the first difference. Both must be new. They stay
    open.

    Counters and faults are compared each ``every`` steps, and at the end.
    """
    steps: list[Step] = []
    outputs: list[Output] = []
    theirs: Output = []

    def report(difference: Difference | None) -> Report:
        return Report(
            tuple(traffic.specs),
            tuple(steps),
            difference,
            traffic.seed,
            golden.counters(),
            tuple(golden.faults()),
            tuple(outputs),
            theirs,
        )

    for spec in traffic.specs:
        difference = _order(-1, golden, other, Install(spec))
        if difference is not None:
            return report(difference)
    for step, what in enumerate(traffic):
        steps.append(what)
        ours: Output = []
        theirs = []
        difference = None
        if isinstance(what, tuple):
            ours, theirs = golden.frame(*what), other.frame(*what)
            if ours != theirs:
                difference = output_difference(step, ours, theirs)
        else:
            difference = _order(step, golden, other, what)
        outputs.append(ours)
        if difference is None and (step + 1) % every == 0:
            difference = _count_difference(step, golden, other)
        if difference is not None:
            return report(difference)
        traffic.heard(ours)
    return report(_count_difference(len(steps) - 1, golden, other))


def _order(step: int, golden: Device, other: Device, order: Order) -> Difference | None:
    """Both do what the order says; a ring must come to both or to none."""
    refusals = carry_out(golden, order), carry_out(other, order)
    if (refusals[0] is None) == (refusals[1] is None):
        return None
    return Difference(INSTALL, step, f"a ring is answered {refusals[0]!r} and {refusals[1]!r}")


def shrink(golden: Maker, other: Maker, report: Report, *, runs: int = 300) -> Report:
    """Leave steps out as long as a difference of that kind stays, and rings in the end. ``runs`` is how
    often that may be tried with steps.

    First halves of what is left, then ever smaller parts. Counters are looked at after each step, so the
    answer ends with the step that makes the difference. A report of no difference is returned as it is.
    """
    if report.difference is None:
        return report
    kind = report.difference.kind

    def tried(specs: tuple[RingSpec, ...], steps: Sequence[Step]) -> Report | None:
        ours, theirs = golden(), other()
        try:
            found = compare(ours, theirs, Script(specs, steps, report.seed), every=1)
        finally:
            ours.close()
            theirs.close()
        return found if found.difference is not None and found.difference.kind == kind else None

    best = tried(report.specs, report.steps)
    if best is None:
        return report
    size = max(1, len(best.steps) // 2)
    while runs > 0:
        before = end = len(best.steps)
        while end > 0 and runs > 0:  # the latest ones first: they need what came before
            begin = max(0, end - size)
            runs -= 1
            best = tried(best.specs, best.steps[:begin] + best.steps[end:]) or best
            end = begin
        if size == 1 and len(best.steps) == before:
            break
        size = max(1, size // 2)
    for spec in best.specs:
        best = tried(tuple(other for other in best.specs if other is not spec), best.steps) or best
    return best


# ---- differences ---------------------------------------------------------------------------------------


def flow_of(frame: bytes) -> bytes:
    """What frames must keep their order with: both Ethernet and both IP addresses and the destination queue
    pair of a RoCE packet; of all else the frame itself."""
    if len(frame) < 58 or frame[12:15] != b"\x08\x00\x45" or frame[23] != 17 or frame[36:38] != b"\x12\xb7":
        return frame
    return frame[:12] + frame[26:34] + frame[47:50]


def output_difference(step: int, ours: Output, theirs: Output) -> Difference | None:
    """How two outputs differ; None if they are equal but for the order of flows."""
    golden, other = _by_flow(ours), _by_flow(theirs)
    if golden == other:
        return None
    missing, extra = Counter(ours) - Counter(theirs), Counter(theirs) - Counter(ours)
    if not missing and not extra:
        at = next(key for key in golden if golden[key] != other[key])
        right, wrong = next((a, b) for a, b in zip(golden[at], other[at], strict=True) if a != b)
        says = f"frames of a flow leave by port {at[0]} in another order"
        return Difference(ORDER, step, says, at[0], right, wrong)
    lacks = [each for each in ours if missing[each]]
    if not extra:
        port, frame = lacks[0]
        says = f"{len(lacks)} missing, the first at port {port}"
        return Difference(MISSING, step, says, port, frame)
    much = [each for each in theirs if extra[each]]
    if not missing:
        port, frame = much[0]
        says = f"{len(much)} too many, the first at port {port}"
        return Difference(EXTRA, step, says, port, b"", frame)
    for port, frame in lacks:
        other_port = next((out for out, got in much if got == frame), port)
        if other_port != port:
            return _by_other_port(step, port, frame, other_port, frame)
    port, frame = lacks[0]
    there = [got for out, got in much if out == port]
    if not there:
        return _by_other_port(step, port, frame, *much[0])
    nearest = min(there, key=lambda got: _distance(frame, got))
    return Difference(BYTES, step, f"a frame at port {port} has other bytes", port, frame, nearest)


def _by_other_port(step: int, port: int, frame: bytes, other_port: int, other: bytes) -> Difference:
    says = f"a frame leaves by port {other_port} instead of port {port}"
    return Difference(EXTRA, step, says, port, frame, other, other_port)


def _by_flow(out: Output) -> dict[tuple[int, bytes], list[bytes]]:
    found: dict[tuple[int, bytes], list[bytes]] = {}
    for port, frame in out:
        found.setdefault((port, flow_of(frame)), []).append(frame)
    return found


def _distance(frame: bytes, other: bytes) -> int:
    differ = sum(a != b for a, b in zip(frame, other, strict=False))
    return differ + abs(len(frame) - len(other))


def _count_difference(step: int, golden: Device, other: Device) -> Difference | None:
    ours, theirs = golden.counters(), other.counters()
    if ours != theirs:
        names = [name for name in sorted({*ours, *theirs}) if ours.get(name, 0) != theirs.get(name, 0)]
        says = ", ".join(f"{name} is {theirs.get(name, 0)}, not {ours.get(name, 0)}" for name in names)
        return Difference(COUNTERS, step, f"counters differ: {says}")
    right, wrong = sorted(golden.faults()), sorted(other.faults())
    if right != wrong:
        return Difference(FAULTS, step, f"faults are {wrong}, not {right}")
    return None


# ---- words ---------------------------------------------------------------------------------------------


def first_difference(frame: bytes, other: bytes) -> int | None:
    """The first byte that differs; the shorter length if that is all; None for equal frames."""
    if frame == other:
        return None
    pairs = zip(frame, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(frame), len(other)))


def field_at(frame: bytes, at: int) -> str:
    """What a byte of a frame is part of."""
    packet = decode_packet(frame)
    if packet is not None and at >= 54:
        return _behind_headers(packet, at)
    if frame[12:14] != b"\x08\x00" and at >= _ETHERNET_BYTES:
        return "what is behind the Ethernet header"
    return _name_in(_HEADERS, at) if at < 54 else "what is behind the headers"


def _name_in(headers: Sequence[tuple[int, str]], at: int) -> str:
    return next(name for begin, name in reversed(headers) if begin <= at)


def _behind_headers(packet: Packet, at: int) -> str:
    payload_at = at - packet.header_bytes
    if payload_at < 0:
        if packet.opcode == Opcode.RC_ACK:
            return _name_in(_WITH_AETH, at)
        return _name_in(_WITH_RETH if packet.opcode in OPENING_OPCODES else _WITH_IMMEDIATE, at)
    if payload_at >= packet.payload_bytes + packet.pad:
        return "ICRC"
    if payload_at >= packet.payload_bytes:
        return "pad"
    seen = look(captured(0, packet.data, Direction.UNKNOWN, 0), Books())
    opens = isinstance(seen, Seen) and seen.ina is not None
    if opens and payload_at < INA_HEADER_BYTES:
        return f"INA {ina_header.field_at(payload_at)}"
    return f"payload, byte {payload_at - INA_HEADER_BYTES * opens}" + " behind the INA header" * opens


def line_of(frame: bytes) -> str:
    """A frame in one line."""
    if len(frame) < _ETHERNET_BYTES:
        return f"{len(frame)} bytes: {frame.hex()}"
    try:
        text = str(RocePacket.decode_frame(frame))
    except DecodeError as error:
        return f"{len(frame)} bytes, type 0x{frame[12:14].hex()}; {error}"
    seen = look(captured(0, frame, Direction.UNKNOWN, 0), Books())
    if isinstance(seen, Broken):
        return f"{text}; {seen.rule.name}: expected {seen.expected}, got {seen.got}"
    return text if seen is None or seen.ina is None else f"{text}; {seen.ina}{' result' * seen.is_result}"


def captured(port: int, frame: bytes, direction: Direction, number: int) -> CapturedFrame:
    """A frame as ``inaproto inspect`` takes it."""
    return CapturedFrame(number, Interface(f"port{port}"), None, direction, frame, len(frame), 0, 0)


def _frame_lines(what: str, port: int, frame: bytes, wrong: range = range(0)) -> Iterator[str]:
    yield f"{what} (port {port}):"
    if len(frame) < _ETHERNET_BYTES:
        yield f"  {line_of(frame)}"
    else:
        yield from packet_lines(captured(port, frame, Direction.UNKNOWN, 0), wrong)


def _byte_text(golden: bytes, other: bytes, at: int) -> str:
    if at >= min(len(golden), len(other)):
        return f"{at}, where one ends: {len(other)} bytes, not {len(golden)}"
    return f"{at} ({field_at(golden, at)}): 0x{other[at]:02x}, not 0x{golden[at]:02x}"


def _what(broken: Broken) -> tuple[str, str, str]:
    return broken.rule.name, broken.expected, broken.got


def _ring_text(spec: RingSpec) -> str:
    sizes = f"window {spec.window_messages}, {spec.message_packets} packets a message, MTU {spec.mtu}"
    return f"ring {spec.ring_id}: {spec.size} ranks, {sizes}, begins with message {spec.first_message}"
