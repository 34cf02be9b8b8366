"""Faults planted in the RTL, each by one change of its source: the judge must find and name every one.

They are what hardware engineers get wrong: a mask, a bound, an order, a tenant, a pad.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple


class Planted(NamedTuple):
    name: str
    module: str
    old: str
    new: str


FAULTS: Final = (
    Planted(
        "a bit of the ICRC's mask is missing",
        "icrc",
        "for offset in MASKED_OFFSETS)",
        "for offset in sorted(MASKED_OFFSETS)[:-1])",
    ),
    Planted(
        "a slot's bits are cleared a window early",
        "engine.messages",
        "held = w.slots.read.data.valid & (w.slots.read.data.serial == place.serial)",
        "held = w.slots.read.data.valid & (w.slots.read.data.serial == place.serial)"
        "& (place.serial == w.ring.next_serial)",
    ),
    Planted(
        "bits of the slot's last tenant count",
        "engine.messages",
        "held = w.slots.read.data.valid & (w.slots.read.data.serial == place.serial)",
        "held = w.slots.read.data.valid",
    ),
    Planted(
        "lookup: a message ends one packet early",
        "engine.messages",
        "inside.eq(w.entries.read.data.valid & (distance < w.entries.read.data.packets))",
        "inside.eq(w.entries.read.data.valid & (distance + 1 < w.entries.read.data.packets))",
    ),
    Planted(
        "lookup: the last of the remembered messages is not looked at",
        "engine.messages",
        "with m.Elif(w.scan + 1 == w.rows_of_ring):\n            w.drop(Counter.DROP_FIRST_NOT_SEEN",
        "with m.Elif(w.scan + 2 == w.rows_of_ring):\n            w.drop(Counter.DROP_FIRST_NOT_SEEN",
    ),
    Planted(
        "results leave before those before them",
        "engine.outgoing",
        "m.d.sync += w.slot_at.eq(w.slot_row(w.frontier))\n        m.next = ",
        "m.d.sync += w.slot_at.eq(w.slot_row(place))\n        m.next = ",
    ),
    Planted(
        "a gap is told each time",
        "engine.gaps",
        "return flow.gap.known & (flow.gap.serial == hole.serial)",
        "return Const(0) & flow.gap.known & (flow.gap.serial == hole.serial)",
    ),
    Planted(
        "who passes over a packet is not looked at",
        "engine.messages",
        "w.passed.eq(~flow.reached.known | (before(flow.reached, place) & ~follows))",
        "w.passed.eq(0)",
    ),
    Planted(
        "who has a gap is looked at for a later one",
        "engine.gaps",
        "(~w.out_flow.gapped & ~(w.passed",
        "(~(w.passed",
    ),
    Planted(
        "a sender that went back is told of the gap, too",
        "engine.gaps",
        "with m.If(is_input & target_of.known & ~went_back & ~told & is_here):",
        "with m.If(is_input & target_of.known & ~told & is_here):",
    ),
    Planted(
        "a repeat is answered on all flows",
        "engine.replay",
        "w.out_child.eq(w.child),\n            w.is_one.eq(1),",
        "w.out_child.eq(0),\n            w.is_one.eq(0),",
    ),
    Planted(
        "a repeat replaces the payload",
        "engine.messages",
        "enable[lane].eq(w.is_fresh | (((copied << shift) + lane) < headers))",
        "enable[lane].eq(1)",
    ),
    Planted(
        "a repeat keeps the headers of the first packet",
        "engine.messages",
        "enable[lane].eq(w.is_fresh | (((copied << shift) + lane) < headers))",
        "enable[lane].eq(w.is_fresh)",
    ),
    Planted(
        "holes in a resend are not filled",
        "engine.replay",
        "with m.If(filled <= FILL_PACKETS_MAX):",
        "with m.If(filled < 0):",
    ),
    Planted(
        "a wrong ICRC is let in",
        "engine.incoming",
        "with m.Elif(~seen.whole | ~arrival.intact):\n            w.drop(",
        "with m.Elif(~seen.whole):\n            w.drop(",
    ),
    Planted(
        "half of the key is not looked at",
        "engine.messages",
        "with m.Elif(seen.key != ring.key):",
        "with m.Elif(seen.key[:32] != ring.key[:32]):",
    ),
    Planted(
        "the window is one message longer",
        "engine.messages",
        "with m.Elif(~ahead[31] & (ahead >= ring.window)):",
        "with m.Elif(~ahead[31] & (ahead > ring.window)):",
    ),
    Planted(
        "packets come from anywhere",
        "engine.incoming",
        "with m.If((w.rank_ports[w.number] & ~(1 << arrival.port)).any() | ~is_there):",
        "with m.If((w.rank_ports[w.number] & ~(1 << arrival.port)).any()):",
    ),
    Planted(
        "ranks may disagree about the operation",
        "engine.messages",
        "(region.op_index == seen.op_index)\n            & (region.dtype",
        "(region.dtype == region.dtype)\n            & (region.dtype",
    ),
    Planted(
        "a raw gradient passes where a malformed packet is of a ring",
        "engine.incoming",
        "with m.If(seen.lenient & (seen.lenient_opcode != Opcode.RC_ACK) & found.malformed.any()):",
        "with m.If(seen.lenient & (seen.lenient_opcode == Opcode.RC_ACK) & found.malformed.any()):",
    ),
    Planted(
        "results are learnt late by the bridge",
        "engine.outgoing",
        'with m.If(is_where_it_learns):\n            m.next = "LEARN_RANK_FIRST"',
        'with m.If(is_where_it_learns & flow.routed):\n            m.next = "LEARN_RANK_FIRST"',
    ),
    Planted(
        "a new ring has the bits of the one before in its slots",
        "engine.control",
        'm.next = "CLEAR_SLOTS"',
        'm.next = "RING_WRITE"',
    ),
    Planted(
        "a new ring has the tenants of the one before",
        "engine.control",
        'm.next = "CLEAR_REGIONS"',
        'm.next = "CLEAR_SLOTS"',
    ),
    Planted(
        "a new ring's ranks have sent the messages of those before",
        "engine.control",
        'm.next = "FORGET_MESSAGES"',
        'm.next = "CLEAR_REGIONS"',
    ),
    Planted(
        "packets of a removed ring pass",
        "engine.incoming",
        'w.drop(Counter.DROP_RING_REMOVED, "DONE")',
        'w.drop(Counter.DROP_RING_REMOVED, "BRIDGE")',
    ),
    Planted(
        "a rank stays at its port when that goes down",
        "engine.work",
        "one.eq(one & ~self.io.went_down)",
        "one.eq(one)",
    ),
    Planted(
        "a sender's UDP checksum stays",
        "emitter",
        "UDP_CHECKSUM_WORD = 10",
        "UDP_CHECKSUM_WORD = 1000",
    ),
    Planted(
        "results have no RESULT flag",
        "emitter",
        "word | FLAG_RESULT << 8 * flags_byte",
        "word",
    ),
    Planted(
        "the pad is not zero",
        "emitter",
        "Mux(meta.pads[lane], whole & kept, whole)",
        "whole",
    ),
    Planted(
        "the INA header is summed",
        "emitter",
        "summed_from.eq(header + Mux(order.opening, INA_WORDS, 0))",
        "summed_from.eq(header)",
    ),
    Planted(
        "the sum lacks the last rank",
        "emitter",
        "fold.members.eq(order.members)",
        "fold.members.eq(order.members - 1)",
    ),
    Planted(
        "frames go back out of the port they came in by",
        "engine.work",
        "self.io.query_ingress.eq(self.arrival.port)",
        "self.io.query_ingress.eq(self.p.ports)",
    ),
)

TREE_FAULTS: Final = (
    Planted(
        "a result comes before its sum",
        "engine.above",
        "with m.Elif(~w.is_full(now, place)):",
        "with m.Elif(~now.valid):",
    ),
    Planted(
        "the INA header of a result is not looked at",
        "engine.above",
        "with m.Elif(w.is_opening & ~agrees):",
        "with m.Elif(w.is_opening & seen.ina_fault):",
    ),
    Planted(
        "sums go up as results",
        "engine.tree",
        "header.is_result.eq(~is_any(SUMS)),",
        "header.is_result.eq(1),",
    ),
    Planted(
        "every repeat of a sum goes up",
        "engine.messages",
        "is_due = waits & (((asked & row) != 0) | (asked == 0))",
        "is_due = waits",
    ),
    Planted(
        "sums before later results go up again each time",
        "engine.above",
        "m.d.comb += begin.eq(Mux(is_asked, asked_to.as_value(), w.frontier.as_value()))",
        "m.d.comb += begin.eq(w.frontier)",
    ),
    Planted(
        "notes go on as they came",
        "engine.tree",
        "order.copied.eq(w.back == Back.NOTE),",
        "order.raw.eq(w.back == Back.NOTE),",
    ),
    Planted(
        "a note that comes late is heeded",
        "engine.notes",
        "is_current = (ahead < (w.rows_of_ring << 1)) & ~is_none",
        "is_current = ~is_none",
    ),
    Planted(
        "results on a connection that begins elsewhere do not wait",
        "engine.learnt",
        "& (row.serial == sent.serial) & w.is_open(sent)):",
        "& (row.serial == sent.serial)):",
    ),
    Planted(
        "the header of an earlier note is worn",
        "engine.notes",
        "table.write.data.stands.eq(0)",
        "table.write.data.stands.eq(1)",
    ),
    Planted(
        "hosts get their results by address",
        "engine.outgoing",
        "order.mask.eq(Mux(receiver.any(), receiver, io.result_mask & ~barred)),",
        "order.mask.eq(io.result_mask & ~barred),",
    ),
    Planted(
        "the IP checksum is of the first packet",
        "header",
        "del halves[5]",
        "del halves[1]",
    ),
)

_PACKAGE: Final = "inaproto_hil.rtl"
_BY = (
    *("align", "crc", "icrc", "fold", "bridge", "receiver", "header", "emitter", "egress"),
    *("engine.work", "engine.incoming", "engine.messages", "engine.turns", "engine.replay"),
    *("engine.outgoing", "engine.gaps", "engine.tree", "engine.above", "engine.notes", "engine.learnt"),
    "engine.control",
    *("engine.engine", "engine", "top"),
)
"""Modules in the order in which they build on each other."""


@contextmanager
def planted(fault: Planted) -> Iterator[None]:
    """The RTL has the fault. Its modules are loaded anew, and again without the fault at the end."""
    module = importlib.import_module(f"{_PACKAGE}.{fault.module}")
    assert module.__file__ is not None
    source = Path(module.__file__).read_text()
    if source.count(fault.old) != 1:
        raise AssertionError(
            f"{fault.name}: its place occurs {source.count(fault.old)} times in {module.__file__}"
        )
    try:
        exec(compile(source.replace(fault.old, fault.new), module.__file__, "exec"), module.__dict__)
        _load_again(after=fault.module)
        yield
    finally:
        exec(compile(source, module.__file__, "exec"), module.__dict__)
        _load_again(after=fault.module)


def _load_again(after: str) -> None:
    for name in _BY[_BY.index(after) + 1 :]:
        module = sys.modules.get(f"{_PACKAGE}.{name}")
        if module is not None and module.__file__ is not None:
            exec(compile(Path(module.__file__).read_text(), module.__file__, "exec"), module.__dict__)
