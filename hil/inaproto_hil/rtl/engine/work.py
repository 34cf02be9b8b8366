"""What the states of the engine share: tables, signals, and what several of them do.

A signal that one file alone has is declared there. Rows that are worked on (``ring``, ``flow``, ``region``,
``slot``) are copies of those in the tables; who changes one writes it back, or says that it is dirty.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, memory

from inaproto_adapters.fpga.register_map import Counter
from inaproto_hil.rtl.parameters import Parameters
from inaproto_hil.rtl.tables import (
    CONNECTION,
    ENTRY,
    OFFSET,
    OPENING,
    PLACE,
    POSITION,
    RING,
    TREE,
    WORN,
    flow_layout,
    owner_layout,
    region_layout,
    slot_layout,
)
from inaproto_hil.rtl.tree_parser import OPENS

ROW_BITS = 256
COMMAND = data.StructLayout({"table": 4, "index": 16, "put": 1, "row": ROW_BITS})
ANSWER = data.StructLayout({"row": ROW_BITS, "error": 1})
FAULT = data.StructLayout({"valid": 1, "rule": 8, "ring": 8, "child": 8})


class Back(IntEnum):
    """Why something leaves, so where to go on when it has left."""

    ADVANCE = 0
    """A result, to all hosts."""
    REPLAY = 1
    GAP = 2
    CATCH_UP = 3
    """A result, on a connection that begins elsewhere."""
    TOLD_GAP = 4
    """The same, past a gap that a note told of."""
    NOTE = 5
    """From here on to another switch. This one goes on as it came."""
    DOWN = 6
    DOWN_AGAIN = 7
    UP = 8
    REPEATED = 9
    """A sum goes up again because an input came again."""
    REPEATED_ELSEWHERE = 10
    """The same, as a note says."""
    ASK = 11
    """The same, because later results came before its result."""
    TELL_REPEATS = 12
    TELL_OPENS_AGAIN = 13
    TELL_OPENS = 14
    TELL_GAP = 15


def behind(a: Value, b: Value) -> Value:
    """Whether serial number ``a`` is older than ``b``: the sign of their difference, as they wrap."""
    difference = (a - b)[:32]
    return difference[31]


def before(a: Any, b: Any) -> Value:
    """Whether position ``a`` is before ``b``."""
    return ((a.serial == b.serial) & (a.offset < b.offset)) | behind(a.serial, b.serial)


class Table:
    """A memory with a port to write and one to read, which answers a cycle after its address."""

    def __init__(self, m: Module, name: str, shape: Any, depth: int) -> None:
        m.submodules[name] = made = memory.Memory(shape=shape, depth=depth, init=[])
        self.write = made.write_port()
        self.read = made.read_port(domain="sync")


class Work:
    """Built once, before the states are. ``io``: the ports of the engine."""

    def __init__(self, m: Module, p: Parameters, io: Any) -> None:
        self.m, self.p, self.io = m, p, io
        self._declare_tables()
        self._declare_packet()
        self._declare_result()
        self._set_defaults()

    def _declare_tables(self) -> None:
        m, p = self.m, self.p
        self.flows = Table(m, "flows", flow_layout(p), p.connections)
        self.owners = Table(m, "owners", owner_layout(p), p.connections)
        self.entries = Table(m, "entries", ENTRY, p.connections * p.regions)
        self.regions = Table(m, "regions", region_layout(p), p.rings * p.regions)
        self.rings = Table(m, "rings", RING, p.rings)
        self.slots = Table(m, "slots", slot_layout(p), p.slots)
        self.places = Table(m, "places", PLACE, p.rings)
        if p.trees:
            self.trees = Table(m, "trees", TREE, p.rings)
            messages = p.rings * p.trees * p.regions
            self.openings = Table(m, "openings", OPENING, messages)
            self.worn = Table(m, "worn", WORN, messages)
            self.worn_last = Table(m, "worn_last", WORN, messages)
            """By the last packet of a message, whose layout is known late."""
            self.opening_at = Signal(range(messages))
            """Row of the three that is read."""
            m.d.comb += [
                table.read.addr.eq(self.opening_at) for table in (self.openings, self.worn, self.worn_last)
            ]
        self.known = [Signal(CONNECTION, name=f"connection_{number}") for number in range(p.connections)]
        """Rows of the connection lookup table, which are compared all at once."""
        self.rank_ports = Array(
            Signal(p.ports, name=f"rank_port_{number}") for number in range(p.connections)
        )
        """The port at which the rank of each connection is, as a mask: none if it went down since."""
        m.d.sync += [one.eq(one & ~self.io.went_down) for one in self.rank_ports]
        self.ring_ids = [Signal(32, name=f"ring_id_{number}") for number in range(p.rings)]
        self.ring_valid = Signal(p.rings)
        self.command = Signal(COMMAND)
        """Of the control plane, while it is done."""
        self.answer_row = Signal(ROW_BITS)
        self.answer_error = Signal()
        self.clear_at = Signal(32)
        self.clear_end = Signal(32)
        """Rows that a command clears, or looks at."""
        self.kept_at = Signal(range(p.slots * p.frame_beats))
        self.kept_enable = [Signal(p.words, name=f"kept_{at}") for at in range(p.banks)]
        """Beat of the payload memories that is written, and which words of each child's."""

    def _declare_packet(self) -> None:
        m, p = self.m, self.p
        self.arrival = self.io.arrival
        self.seen = self.io.arrival.seen
        """Headers of the frame that is worked on."""
        self.number = Signal(range(max(2, p.connections)))
        """Index of its connection."""
        self.ring_number = Signal(range(max(2, p.rings)))
        self.child = Signal(range(p.children))
        self.ring = Signal(RING)
        self.flow = Signal(flow_layout(p))
        self.owner = Signal(owner_layout(p))
        self.region = Signal(region_layout(p))
        self.entry = Signal(ENTRY)
        self.place = Signal(POSITION)
        """Of the packet."""
        self.rank: Any = self.owner.rank if p.trees else self.child
        """That INA headers of the connection have."""
        self.slot = Signal(slot_layout(p))
        """As it is with the packet."""
        self.slot_at = Signal(range(p.slots))
        """Slot that is read and written."""
        self.stands = Signal()
        """Its opcode and length are right for its place."""
        self.was_full = Signal()
        self.is_fresh = Signal()
        """Whether the slot had all packets before this one, and whether it did not have this one."""
        self.passed = Signal()
        """It came before another one of its connection that is missing, or may have."""
        self.rose = Signal()
        """The highest full packet is a later one now; below another switch: one more is full or final."""
        self.high_before = Signal(POSITION)
        """What it was before."""
        self.dirty_flow = Signal()
        self.dirty_ring = Signal()
        self.dirty_tree = Signal()
        """Whether ``flow``, ``ring`` and ``tree`` are to be written back."""
        self.is_result = Signal()
        """The packet is a result from the switch above."""
        self.was_final = Signal()
        self.is_due = Signal()
        """Whether its slot had the result, and whether its sum is to go up again."""
        self.learn_after = Signal()
        """Whether the bridge has still to learn from a packet of a ring."""
        self.is_where_it_learns = Signal()
        m.d.comb += self.is_where_it_learns.eq(
            self.rank_ports[self.number].bit_select(self.arrival.port, 1)
            & ~self.flow.routed
            & (~self.flow.shown_known | (self.flow.shown_src == self.flow.src_mac))
        )
        self.index = Signal(range(p.foreign_beats + 1))
        """Beat of the staging buffer that is asked for."""
        self.scan = Signal(range(p.regions + 1))
        """Counts rows of a ring or a connection."""

        self.rows_of_ring = Signal(8)
        """Regions of this ring: twice its window."""
        self.everyone = Signal(p.children)
        """Bitmap of a slot that is full."""
        self.frontier = Signal(POSITION)
        """The first packet of the ring whose result has not left yet."""
        m.d.comb += [
            self.rows_of_ring.eq(self.ring.window << 1),
            self.frontier.eq(Cat(1, self.ring.next_serial, self.ring.next_offset)),
        ]
        self.tree = Signal(TREE)
        """What of the ring spans several switches."""
        self.inputs = Signal(8)
        """What is added up: all ranks of a ring of one switch."""
        m.d.comb += self.inputs.eq(Mux(self.tree.valid, self.tree.inputs, self.ring.size))
        with m.Switch(self.inputs):
            for size in range(1 if p.trees else 2, p.children + 1):
                with m.Case(size):
                    m.d.comb += self.everyone.eq((1 << size) - 1)
        opcode = self.seen.opcode
        self.is_opening = Signal()
        self.is_write = Signal()
        m.d.comb += [
            self.is_opening.eq((opcode == 0x06) | (opcode == 0x0A) | (opcode == 0x0B)),
            self.is_write.eq((opcode >= 0x06) & (opcode <= 0x0B)),
        ]

    def _declare_result(self) -> None:
        p = self.p
        self.out_child = Signal.like(self.child)
        self.out_place = Signal(POSITION)
        self.out_region = Signal(region_layout(p))
        self.out_flow = Signal(flow_layout(p))
        """Of the result that leaves."""
        self.out_owner = Signal(owner_layout(p))
        self.out_worn = Signal(OPENS)
        """What its header is made of, where its connection begins elsewhere."""
        self.is_one = Signal()
        """It leaves to ``out_child`` alone; else to all children of the ring, one after the other."""
        self.back = Signal(Back)
        self.out_number = Signal.like(self.number)
        """Index of the connection of ``out_child``."""
        self.walk = Signal(POSITION)
        """Runs over packets of the ring."""
        self.out_learnt = Signal()
        """The result is of rank ``learnt_rank``, whose connection begins elsewhere."""
        self.learnt_rank = Signal(8)
        learnt_row = p.children + self.learnt_rank
        self.m.d.comb += self.out_number.eq(
            self.connection_of(
                Mux(self.out_learnt, learnt_row, self.out_child) if p.trees else self.out_child
            )
        )
        self.out_sent, self.high = Signal(POSITION), Signal(POSITION)
        """Up to where results were sent on a connection that begins elsewhere; the highest full packet."""
        self.m.d.comb += self.high.eq(self.ring.done_high)
        if p.trees:
            self.m.d.comb += self.out_sent.eq(self.sent_on(self.out_flow))
            with self.m.If(self.tree.has_parent):
                self.m.d.comb += self.high.eq(self.tree.sum_high)
        self.link_row = Signal(range(p.rows))
        """Row of the connection to another switch, when something leaves to one."""
        self.told_rank, self.told_place = Signal(16), Signal(POSITION)
        """What a note is about that is made here."""
        self.gap_now = Signal()
        """The connection of the note has a gap that was not known."""
        self.last = Signal(POSITION) if p.trees else self.place
        """Of the packets that came again."""

    def _set_defaults(self) -> None:
        """What ports of tables and of the engine have where no state says otherwise."""
        place_row = self.region_row(self.place.serial)
        self.m.d.comb += [
            self.flows.write.addr.eq(self.number),
            self.owners.write.addr.eq(self.number),
            self.rings.write.addr.eq(self.ring_number),
            self.rings.write.data.eq(self.ring),
            self.flows.write.data.eq(self.flow),
            self.flows.read.addr.eq(self.number),
            self.owners.read.addr.eq(self.number),
            self.rings.read.addr.eq(self.ring_number),
            self.regions.read.addr.eq(place_row),
            self.regions.write.addr.eq(place_row),
            self.regions.write.data.eq(self.region),
            self.slots.read.addr.eq(self.slot_at),
            self.slots.write.addr.eq(self.slot_at),
            self.io.stage_address.eq(self.index),
            self.io.query_mac.eq(self.seen.dst_mac),
            self.io.query_ingress.eq(self.arrival.port),
            self.io.answer.payload.row.eq(self.answer_row),
            self.io.answer.payload.error.eq(self.answer_error),
        ]

        if self.p.trees:
            self.m.d.comb += [
                self.trees.read.addr.eq(self.ring_number),
                self.trees.write.addr.eq(self.ring_number),
                self.trees.write.data.eq(self.tree),
            ]

    # -- rows of tables ------------------------------------------------------------------------

    def connection_of(self, row: Value) -> Value:
        """Index of a connection of the ring."""
        return self.ring_number * self.p.rows + row

    def low(self, serial: Value) -> Value:
        """Which of its ring's regions a message has."""
        return (serial & (self.rows_of_ring - 1))[: self.p.regions.bit_length()]

    def region_row(self, serial: Value) -> Value:
        return self.ring_number * self.p.regions + self.low(serial)

    def entry_row(self, low: Value) -> Value:
        return self.number * self.p.regions + low

    def slot_row(self, place: Any) -> Value:
        return self.ring.base + self.low(place.serial) * self.ring.message_packets + place.offset

    def word(self, at: int) -> Value:
        """Of the row that comes with a command."""
        return self.command.row.word_select(at, 32)

    # -- what several states do ----------------------------------------------------------------

    def count(self, which: Counter) -> Any:
        return self.io.count[which].eq(1)

    def drop(self, which: Counter, then: str) -> None:
        self.m.d.comb += self.count(which)
        self.m.next = then

    def refuse(self, which: Counter, then: str) -> None:
        """Drop the packet and say whose fault it is."""
        self._blame(which)
        self.drop(which, then)

    def fail(self, which: Counter) -> None:
        """The ranks of the ring disagree: nothing of it leaves any more."""
        self._blame(which)
        self.m.d.sync += [
            self.ring.failed.eq(1),
            self.ring.fault_rule.eq(which),
            self.ring.fault_child.eq(self.rank),
            self.dirty_ring.eq(1),
        ]

    def _blame(self, which: Counter) -> None:
        self.m.d.comb += [
            self.io.fault.valid.eq(1),
            self.io.fault.rule.eq(which),
            self.io.fault.ring.eq(self.ring_number),
            self.io.fault.child.eq(self.rank),
        ]

    def leave(self, back: Back) -> None:
        """Send ``out_place``, whose region is ``out_region``, and come back."""
        self.m.d.sync += self.back.eq(back)
        self.m.next = "LEAVE"

    def send(self, row: Any, back: Back) -> None:
        """Send ``out_place``, or the note that came, to a switch, and come back."""
        self.m.d.sync += [self.link_row.eq(row), self.back.eq(back)]
        self.m.next = "LINK"

    def tell(self, owner: Any, place: Any, back: Back) -> None:
        """Send a note about a packet of a connection to where its notes go, and come back."""
        self.m.d.sync += [self.told_rank.eq(owner.rank), self.told_place.eq(place)]
        self.send(owner.link, back)

    @property
    def parent_row(self) -> int:
        return self.p.rows - 1

    def is_full(self, slot: Any, place: Any) -> Value:
        """Whether a slot has all that is added up."""
        return slot.valid & (slot.serial == place.serial) & (slot.seen == self.everyone)

    def is_final(self, slot: Any, place: Any) -> Value:
        """Whether a slot has the ring's result."""
        if not self.p.trees:
            return self.is_full(slot, place)
        return self.is_full(slot, place) & (~self.tree.has_parent | slot.final)

    def sent_on(self, flow: Any) -> Value:
        """Up to where results were sent on a connection that begins elsewhere."""
        begin = Cat(1, self.ring.first_serial, Const(0, OFFSET))
        return Mux(flow.sent.known, flow.sent.as_value(), begin)

    def fix_length(self, way: str) -> None:
        """The message has on links ``up``, or ``down``, the length that it has now, if none stands there."""
        stands, length = self.region[f"{way}_stands"], self.region[f"{way}_length"]
        fixed = Mux(stands, length, self.region.dma_length)
        row = self.regions.write
        self.m.d.comb += [row.data[f"{way}_stands"].eq(1), row.data[f"{way}_length"].eq(fixed), row.en.eq(1)]
        self.m.d.sync += self.out_region[f"{way}_length"].eq(fixed)

    def dress(self, place: Any, with_last: Value) -> None:
        """Let results of a message leave under what its note told, if they do not; its rows are read."""
        serial = place.serial
        for table, is_wanted in ((self.worn, 1), (self.worn_last, with_last)):
            row, write = table.read.data, table.write
            self.m.d.comb += [
                write.addr.eq(self.opening_row(serial)),
                write.data.stands.eq(1),
                write.data.serial.eq(serial),
                write.data.header.eq(self.openings.read.data.header),
                write.en.eq(is_wanted & ~(row.stands & (row.serial == serial))),
            ]

    def is_open(self, place: Any) -> Value:
        """Whether a note told of the message; its rows are read."""
        known = self.openings.read.data
        return known.valid & (known.serial == place.serial)

    def opening_row(self, serial: Value) -> Value:
        return (self.ring_number * self.p.trees + self.learnt_rank) * self.p.regions + self.low(serial)
