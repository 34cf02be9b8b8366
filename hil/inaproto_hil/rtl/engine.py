"""The rules of the accelerator: what becomes of each frame (NetReduce sections 3.1, 3.2, 4).

It does with one frame after the other what the software core does with one in a step, rule by rule and in the
same order (``inaproto.core.switch``: ``accelerator``, ``ingest``, ``emission``, ``lookup_table``):

- *lookup*: the connection, then the message by PSN: latest first, then the others in order;
- *tenants*: a region belongs to one message; the bits of a slot count only if they are of its message;
- *order*: results leave at the frontier, which is one for all flows of a ring;
- *replay*: what comes again for a slot that is full is answered on its own flow; short holes before
  it are filled, but on selective rings;
- *gap*: a flow whose own packet is missing gets one later result, once per gap, unless its sender went back;
- *refusal*: ranks that disagree fault the ring, and nothing of it leaves any more.

A frame is worked off whole, with all that leaves because of it, before the next one is looked at. What a host
sees is therefore the same whatever the bus width, and whatever the FIFOs do.

Departures from the core: no trees, pools, selective repairs or early packets; tagged frames are bridged; a
packet whose payload and pad are no whole words counts as one with a wrong ICRC; f64 and i64 are refused.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, ClockSignal, Const, Instance, Module, Mux, Signal, Value
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from inaproto.wire.roce import Opcode
from inaproto_adapters.fpga.register_map import Counter
from inaproto_hil.rtl.emitter import INA_WORDS, header_words, order_layout
from inaproto_hil.rtl.parameters import Parameters
from inaproto_hil.rtl.receiver import arrival_layout
from inaproto_hil.rtl.tables import (
    CONNECTION,
    ENTRY,
    OWNER,
    POSITION,
    REGION,
    RING,
    SOURCES,
    flow_layout,
    slot_layout,
)

TABLE_CONNECTION = 0
TABLE_RING = 1
TABLE_STATE = 2
COMMAND = data.StructLayout({"table": 4, "index": 16, "put": 1, "row": 256})
ANSWER = data.StructLayout({"row": 256, "error": 1})
FAULT = data.StructLayout({"valid": 1, "rule": 8, "ring": 8, "child": 8})
FILL_PACKETS_MAX = 32
"""Longest hole in a resend that is filled from kept results."""
ROW_BITS = 256
DTYPES = 4
"""f32, i32, f16 and bf16 are the first ones."""


def _behind(a: Value, b: Value) -> Value:
    """Whether serial number ``a`` is older than ``b``: the sign of their difference, as they wrap."""
    difference = (a - b)[:32]
    return difference[31]


def _before(serial: Value, offset: Value, other_serial: Value, other_offset: Value) -> Value:
    """Whether a position is before another one."""
    return Mux(serial == other_serial, offset < other_offset, _behind(serial, other_serial))


class Engine(wiring.Component):
    """See the module. The blocks beside it are joined in :mod:`inaproto_hil.rtl.top`."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = p = parameters
        learn = data.StructLayout({"mac": 48, "port": range(p.ports), "ip": 32, "has_ip": 1})
        super().__init__(
            {
                "arrival": In(arrival_layout(p)),
                "there": In(1),
                "taken": Out(1),
                "stage_address": Out(range(p.foreign_beats)),
                "stage_data": In(32 * p.words),
                "learn": Out(stream.Signature(learn)),
                "bridge_idle": In(1),
                "query_mac": Out(48),
                "query_ingress": Out(range(p.ports + 1)),
                "result_mask": In(p.ports),
                "order": Out(order_layout(p)),
                "begin": Out(1),
                "emitting": In(1),
                "bank_address": In(range(p.slots * p.frame_beats)),
                "banks": Out(data.ArrayLayout(32 * p.words, p.children)),
                "command": In(stream.Signature(COMMAND)),
                "answer": Out(stream.Signature(ANSWER)),
                "count": Out(len(Counter)),
                "fault": Out(FAULT),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        p = self.parameters
        words, children, regions = p.words, p.children, p.regions
        shift = words.bit_length() - 1
        flow_shape, slot_shape = flow_layout(p), slot_layout(p)
        m = Module()

        # ---- tables --------------------------------------------------------------------------------
        def table(name: str, shape: Any, depth: int) -> tuple[Any, Any]:
            made = memory.Memory(shape=shape, depth=depth, init=[])
            m.submodules[name] = made
            return made.write_port(), made.read_port(domain="sync")

        flow_write, flow_read = table("flows", flow_shape, p.connections)
        owner_write, owner_read = table("owners", OWNER, p.connections)
        entry_write, entry_read = table("entries", ENTRY, p.connections * regions)
        region_write, region_read = table("regions", REGION, p.rings * regions)
        ring_write, ring_read = table("rings", RING, p.rings)
        slot_write, slot_read = table("slots", slot_shape, p.slots)

        depth = p.slots * p.frame_beats
        kept_at, kept_enable = (
            Signal(range(depth)),
            [Signal(words, name=f"kept_{at}") for at in range(children)],
        )
        for number_of, enable in enumerate(kept_enable):
            m.submodules[f"bank_{number_of}"] = Instance(
                "payload_bank",
                p_WORDS=words,
                p_DEPTH=depth,
                p_ADDRESS=len(kept_at),
                i_clk=ClockSignal("sync"),
                i_write_address=kept_at,
                i_write_data=self.stage_data,
                i_write_enable=enable,
                i_read_address=self.bank_address,
                o_read_data=self.banks[number_of],
            )

        known = [Signal(CONNECTION, name=f"connection_{number}") for number in range(p.connections)]
        ring_ids = [Signal(32, name=f"ring_id_{number}") for number in range(p.rings)]
        ring_valid = Signal(p.rings)

        # ---- what is worked on ---------------------------------------------------------------------
        seen, arrival = self.arrival.seen, self.arrival
        number = Signal(range(max(2, p.connections)))
        ring_number, child = Signal(range(max(2, p.rings))), Signal(range(children))
        ring, flow, owner = Signal(RING), Signal(flow_shape), Signal(OWNER)
        region, entry = Signal(REGION), Signal(ENTRY)
        place = Signal(POSITION)  # of the packet
        slot = Signal(slot_shape)
        slot_at = Signal(range(p.slots))
        was_full, is_fresh, dirty_flow, dirty_ring = Signal(), Signal(), Signal(), Signal()
        learn_after = Signal()
        index = Signal(range(p.foreign_beats + 1))
        scan = Signal(range(regions + 1))

        rows_of_ring = Signal(8)  # regions of this ring: twice its window
        m.d.comb += rows_of_ring.eq(ring.window << 1)
        everyone = Signal(children)
        with m.Switch(ring.size):
            for size in range(2, children + 1):
                with m.Case(size):
                    m.d.comb += everyone.eq((1 << size) - 1)

        def region_row(serial: Value) -> Value:
            return ring_number * regions + (serial & (rows_of_ring - 1))[: regions.bit_length()]

        def entry_row(low: Value) -> Value:
            return number * regions + low

        def slot_row(serial: Value, offset: Value) -> Value:
            return (
                ring.base
                + (serial & (rows_of_ring - 1))[: regions.bit_length()] * ring.message_packets
                + offset
            )

        def count(which: Counter) -> Any:
            return self.count[which].eq(1)

        # ---- lookup of connections: all rows at once -----------------------------------------------
        hit, lenient_hit = Signal(p.connections), Signal(p.connections)
        for at, row in enumerate(known):
            m.d.comb += [
                hit[at].eq(
                    row.valid
                    & (row.src_ip == seen.src_ip)
                    & (row.dst_ip == seen.dst_ip)
                    & (row.dst_qp == seen.dest_qp)
                ),
                lenient_hit[at].eq(
                    row.valid
                    & (row.src_ip == seen.lenient_src_ip)
                    & (row.dst_ip == seen.lenient_dst_ip)
                    & (row.dst_qp == seen.lenient_qp)
                ),
            ]
        hit_number, hit_ring, hit_child = Signal.like(number), Signal.like(ring_number), Signal.like(child)
        for at in range(p.connections):
            with m.If(hit[at]):
                m.d.comb += [
                    hit_number.eq(at),
                    hit_ring.eq(at // children),
                    hit_child.eq(at % children),
                ]
        ring_known = Signal()
        m.d.comb += ring_known.eq(
            Cat(ring_valid[at] & (one == seen.ring_id) for at, one in enumerate(ring_ids)).any()
        )
        is_opening, is_write = Signal(), Signal()
        m.d.comb += [
            is_opening.eq((seen.opcode == 0x06) | (seen.opcode == 0x0A) | (seen.opcode == 0x0B)),
            is_write.eq((seen.opcode >= 0x06) & (seen.opcode <= 0x0B)),
        ]

        # ---- defaults ------------------------------------------------------------------------------
        m.d.comb += [
            flow_write.addr.eq(number),
            owner_write.addr.eq(number),
            ring_write.addr.eq(ring_number),
            ring_write.data.eq(ring),
            flow_write.data.eq(flow),
            flow_read.addr.eq(number),
            owner_read.addr.eq(number),
            ring_read.addr.eq(ring_number),
            region_read.addr.eq(region_row(place.serial)),
            region_write.addr.eq(region_row(place.serial)),
            region_write.data.eq(region),
            slot_read.addr.eq(slot_at),
            slot_write.addr.eq(slot_at),
            self.stage_address.eq(index),
            self.query_mac.eq(seen.dst_mac),
            self.query_ingress.eq(arrival.port),
        ]

        def drop(which: Counter, then: str) -> None:
            m.d.comb += count(which)
            m.next = then

        def refuse(which: Counter, then: str) -> None:
            """Drop the packet and say whose fault it is."""
            blame(which)
            drop(which, then)

        def blame(which: Counter) -> None:
            m.d.comb += [
                self.fault.valid.eq(1),
                self.fault.rule.eq(which),
                self.fault.ring.eq(ring_number),
                self.fault.child.eq(child),
            ]

        def fail(which: Counter) -> None:
            """The ranks of the ring disagree: nothing of it leaves any more."""
            blame(which)
            m.d.sync += [
                ring.failed.eq(1),
                ring.fault_rule.eq(which),
                ring.fault_child.eq(child),
                dirty_ring.eq(1),
            ]

        # ---- a packet of a ring that leaves: its own sub-sequence ------------------------------------
        out_child, out_place = Signal.like(child), Signal(POSITION)
        out_region, out_flow = Signal(REGION), Signal(flow_shape)
        is_one = Signal()  # only ``out_child``, else all children of the ring
        back = Signal(4)
        BACK_ADVANCE, BACK_REPLAY, BACK_GAP = range(3)  # noqa: N806

        def leave(to: int) -> None:
            """Send ``out_place``, whose region is ``out_region``, and come back."""
            m.d.sync += back.eq(to)
            m.next = "LEAVE"

        out_number = Signal.like(number)
        m.d.comb += out_number.eq(ring_number * children + out_child)
        out_last = Signal()
        m.d.comb += [
            out_last.eq(out_place.offset + 1 == out_region.packets),
            self.order.slot.eq(slot_row(out_place.serial, out_place.offset)),
            self.order.child.eq(out_child),
            self.order.members.eq(ring.size),
            self.order.dtype.eq(out_region.dtype),
            self.order.op.eq(out_region.op),
            self.order.opening.eq(out_place.offset == 0),
            self.order.opcode.eq(
                Mux(out_last, out_region.last_opcode, Mux(out_place.offset == 0, 0x06, 0x07))
            ),
            self.order.payload.eq(Mux(out_last, out_region.last_payload, ring.mtu)),
            self.order.beats.eq(arrival.beats),
            self.order.last_bytes.eq(arrival.last_bytes),
            self.order.mask.eq(self.result_mask),
        ]

        # ---- gaps ----------------------------------------------------------------------------------
        walk = Signal(POSITION)
        holes = [Signal(POSITION, name=f"hole_{at}") for at in range(children)]
        targets = [Signal(POSITION, name=f"target_{at}") for at in range(children)]
        hole_of, target_of = Array(holes)[out_child], Array(targets)[out_child]
        replay_at, replay_end = Signal(POSITION), Signal(POSITION)
        filled = Signal(range(2 * FILL_PACKETS_MAX + (1 << 17)))
        past_high = Signal()
        m.d.comb += past_high.eq(
            _before(ring.done_high.serial, ring.done_high.offset, walk.serial, walk.offset)
        )

        # ---- commands ------------------------------------------------------------------------------
        command = Signal(COMMAND)
        answer_row, answer_error = Signal(ROW_BITS), Signal()
        clear_at, clear_end = Signal(32), Signal(32)
        in_flight = Signal(16)
        m.d.comb += [self.answer.payload.row.eq(answer_row), self.answer.payload.error.eq(answer_error)]

        def word(at: int) -> Value:
            return command.row.word_select(at, 32)

        is_where_it_learns = Signal()
        m.d.comb += is_where_it_learns.eq(flow.ingress_known & (flow.ingress == arrival.port) & ~flow.routed)
        inside, distance = Signal(), Signal(24)  # of the message that is looked at
        m.d.comb += [
            distance.eq(seen.psn - entry_read.data.psn0),
            inside.eq(entry_read.data.valid & (distance < entry_read.data.packets)),
        ]

        with m.FSM() as fsm:
            with m.State("IDLE"):
                m.d.sync += [dirty_flow.eq(0), dirty_ring.eq(0), learn_after.eq(0), index.eq(0)]
                with m.If(self.command.valid):
                    m.d.comb += self.command.ready.eq(1)
                    m.d.sync += [command.eq(self.command.payload), answer_row.eq(0), answer_error.eq(0)]
                    m.next = "COMMAND"
                with m.Elif(self.there):
                    m.d.comb += count(Counter.RX)
                    m.d.sync += [number.eq(hit_number), ring_number.eq(hit_ring), child.eq(hit_child)]
                    m.next = "CLASSIFY"

            # ---- what it is --------------------------------------------------------------------
            with m.State("CLASSIFY"):
                with m.If(~seen.roce):
                    with m.If(seen.too_short | seen.contradicts):
                        m.next = "PLAIN"
                    with m.Else():
                        m.next = "LEARN_PLAIN"
                with m.Elif(seen.opcode == Opcode.RC_ACK):
                    m.next = "LEARN_ACK"
                with m.Elif(hit.any()):
                    m.next = "LOAD"
                with m.Else():
                    m.next = "LEARN_OTHER"

            for state, has_ip, then in (
                ("LEARN_PLAIN", 0, "PLAIN"),
                ("LEARN_ACK", 1, "BRIDGE"),
                ("LEARN_OTHER", 1, "UNREGISTERED"),
            ):
                with m.State(state):
                    m.d.comb += [
                        self.learn.valid.eq(1),
                        self.learn.payload.mac.eq(seen.src_mac),
                        self.learn.payload.port.eq(arrival.port),
                        self.learn.payload.ip.eq(seen.src_ip),
                        self.learn.payload.has_ip.eq(has_ip),
                    ]
                    with m.If(self.learn.ready):
                        m.next = then

            with m.State("PLAIN"):
                with m.If(seen.lenient & (seen.lenient_opcode != Opcode.RC_ACK) & lenient_hit.any()):
                    drop(Counter.DROP_MALFORMED, "DONE")
                with m.Elif(seen.too_short):
                    drop(Counter.DROP_SHORT_FRAME, "DONE")
                with m.Else():
                    m.next = "BRIDGE"

            with m.State("UNREGISTERED"):
                with m.If(is_opening & seen.magic & ~seen.ina_fault & ~seen.ina_result):
                    with m.If(~seen.whole | ~arrival.intact):
                        drop(Counter.DROP_WRONG_ICRC, "DONE")
                    with m.Elif(ring_known):
                        refuse(Counter.DROP_NOT_REGISTERED, "DONE")
                    with m.Else():
                        refuse(Counter.DROP_UNKNOWN_RING, "DONE")
                with m.Else():
                    m.next = "BRIDGE"

            with m.State("BRIDGE"), m.If(self.bridge_idle):
                m.next = "BRIDGE_OUT"
            with m.State("BRIDGE_OUT"):
                m.d.comb += [count(Counter.BRIDGED), self.order.raw.eq(1), self.begin.eq(1)]
                m.next = "BRIDGE_WAIT"
            with m.State("BRIDGE_WAIT"), m.If(~self.emitting):
                m.next = "DONE"

            # ---- a packet of a ring --------------------------------------------------------------
            with m.State("LOAD"):
                m.next = "LOADED"
            with m.State("LOADED"):
                m.d.sync += [
                    ring.eq(ring_read.data),
                    flow.eq(flow_read.data),
                    owner.eq(owner_read.data),
                    learn_after.eq(1),
                ]
                m.next = "CHECK"
            with m.State("CHECK"):
                with m.If(~ring.valid):
                    m.d.sync += learn_after.eq(0)
                    drop(Counter.DROP_RING_REMOVED, "DONE")
                with m.Elif(ring.failed):
                    drop(Counter.DROP_RING_FAILED, "STORED")
                with m.Elif(~seen.whole | ~arrival.intact):
                    drop(Counter.DROP_WRONG_ICRC, "STORED")
                with m.Elif(~is_write):
                    refuse(Counter.DROP_NOT_A_WRITE, "STORED")
                with m.Elif(is_opening):
                    m.d.sync += place.serial.eq(seen.msg_id)
                    m.next = "OPEN"
                with m.Else():
                    m.next = "WHERE"

            with m.State("OPEN"):
                m.d.comb += entry_read.addr.eq(
                    entry_row((place.serial & (rows_of_ring - 1))[: regions.bit_length()])
                )
                with m.If(seen.ina_fault | seen.ina_result):
                    refuse(Counter.DROP_NO_INA_HEADER, "STORED")
                with m.Elif(seen.ring_id != ring.ring_id):
                    refuse(Counter.DROP_WRONG_RING, "STORED")
                with m.Elif(seen.key != ring.key):
                    refuse(Counter.DROP_WRONG_KEY, "STORED")
                with m.Elif(seen.epoch != ring.epoch):
                    refuse(Counter.DROP_WRONG_EPOCH, "STORED")
                with m.Elif(seen.rank != child):
                    refuse(Counter.DROP_WRONG_RANK, "STORED")
                with m.Elif(seen.ring_size != ring.size):
                    refuse(Counter.DROP_WRONG_RING_SIZE, "STORED")
                with m.Elif(seen.msg_len > ring.message_packets):
                    refuse(Counter.DROP_TOO_LONG, "STORED")
                with m.Elif(seen.dtype >= DTYPES):
                    refuse(Counter.DROP_UNSUPPORTED_TYPE, "STORED")
                with m.Else():
                    m.next = "OPEN_REGION"
            with m.State("OPEN_REGION"):
                m.d.sync += [region.eq(region_read.data), entry.eq(entry_read.data)]
                m.next = "TENANT"
            with m.State("TENANT"):
                ahead = Signal(32)
                m.d.comb += ahead.eq(place.serial - ring.next_serial)
                is_old, same = Signal(), Signal()
                m.d.comb += [
                    same.eq(region.valid & (region.serial == place.serial)),
                    is_old.eq(
                        _behind(place.serial, ring.first_serial)
                        | (region.valid & _behind(place.serial, region.serial))
                    ),
                ]
                agrees = Signal()
                m.d.comb += agrees.eq(
                    (region.op_index == seen.op_index)
                    & (region.dtype == seen.dtype)
                    & (region.op == seen.op)
                    & (region.packets == seen.msg_len)
                    & (region.flags == seen.flags)
                    & (region.signature == seen.signature)
                )
                with m.If(is_old):
                    drop(Counter.DROP_OLDER_THAN_TENANT, "STORED")
                with m.Elif(~ahead[31] & (ahead >= ring.window)):
                    refuse(Counter.DROP_WINDOW_PASSED, "STORED")
                with m.Elif(same & ~agrees):
                    fail(Counter.DROP_OPERATIONS_DIFFER)
                    drop(Counter.DROP_OPERATIONS_DIFFER, "STORED")
                with m.Else():
                    with m.If(~same):
                        m.d.sync += [
                            region.valid.eq(1),
                            region.serial.eq(place.serial),
                            region.packets.eq(seen.msg_len),
                            region.dtype.eq(seen.dtype),
                            region.op.eq(seen.op),
                            region.flags.eq(seen.flags),
                            region.op_index.eq(seen.op_index),
                            region.signature.eq(seen.signature),
                            region.last_known.eq(0),
                        ]
                    m.next = "ENTRY"
            with m.State("ENTRY"):
                m.d.comb += region_write.en.eq(1)
                present = entry.valid & (entry.serial == place.serial)
                with m.If(present & ((entry.psn0 != seen.psn) | (entry.packets != seen.msg_len))):
                    refuse(Counter.DROP_ANOTHER_PSN, "STORED")
                with m.Else():
                    low = (place.serial & (rows_of_ring - 1))[: regions.bit_length()]
                    m.d.comb += [
                        count(Counter.FIRST_PACKETS),
                        entry_write.addr.eq(entry_row(low)),
                        entry_write.data.valid.eq(1),
                        entry_write.data.serial.eq(place.serial),
                        entry_write.data.psn0.eq(seen.psn),
                        entry_write.data.packets.eq(seen.msg_len),
                        entry_write.en.eq(1),
                    ]
                    m.d.sync += [flow.latest.eq(low), place.offset.eq(0)]
                    m.next = "SHOW"

            # A first packet has the ring's key: it says where its rank is, and who its router is.
            with m.State("SHOW"):
                in_sources = Signal()
                m.d.comb += in_sources.eq(
                    Cat(
                        (flow.sources_count > at) & (flow.sources[at] == seen.src_mac)
                        for at in range(SOURCES)
                    ).any()
                )
                as_ever = flow.shown_known & (flow.src_mac == seen.src_mac) & (flow.dst_mac == seen.dst_mac)
                with m.If(~in_sources & ~as_ever):
                    with m.If(flow.sources_count == SOURCES):
                        m.d.sync += [flow.sources[at].eq(flow.sources[at + 1]) for at in range(SOURCES - 1)]
                        m.d.sync += flow.sources[SOURCES - 1].eq(seen.src_mac)
                    with m.Else():
                        for at in range(SOURCES):
                            with m.If(flow.sources_count == at):
                                m.d.sync += flow.sources[at].eq(seen.src_mac)
                        m.d.sync += flow.sources_count.eq(flow.sources_count + 1)
                with m.If(
                    flow.shown_known
                    & (flow.shown_src == seen.src_mac)
                    & (flow.shown_dst == seen.dst_mac)
                    & (flow.shown_psn != seen.psn)
                ):
                    m.d.sync += [
                        flow.src_mac.eq(seen.src_mac),
                        flow.dst_mac.eq(seen.dst_mac),
                        flow.routed.eq(owner.macs_known & (seen.src_mac != owner.src_mac)),
                    ]
                m.d.sync += [
                    flow.shown_known.eq(1),
                    flow.shown_src.eq(seen.src_mac),
                    flow.shown_dst.eq(seen.dst_mac),
                    flow.shown_psn.eq(seen.psn),
                    dirty_flow.eq(1),
                ]
                m.next = "SETTLE"
            with m.State("SETTLE"):
                m.d.sync += [flow.ingress_known.eq(1), flow.ingress.eq(arrival.port), dirty_flow.eq(1)]
                with m.If(~owner.macs_known):
                    m.d.sync += [flow.src_mac.eq(seen.src_mac), flow.dst_mac.eq(seen.dst_mac)]
                with m.If(is_opening):
                    with m.If(owner.macs_known & (flow.src_mac != seen.src_mac)):
                        m.d.comb += count(Counter.STRANGE_ADDRESSES)
                    m.next = "PLACE"
                with m.Else():
                    m.d.comb += entry_read.addr.eq(entry_row(flow.latest))
                    m.d.sync += scan.eq(0)
                    m.next = "LATEST"

            with m.State("WHERE"):
                is_there = Signal()
                m.d.comb += is_there.eq(
                    ~owner.macs_known
                    | (owner.src_mac == seen.src_mac)
                    | (flow.src_mac == seen.src_mac)
                    | Cat(
                        (flow.sources_count > at) & (flow.sources[at] == seen.src_mac)
                        for at in range(SOURCES)
                    ).any()
                )
                with m.If((flow.ingress_known & (flow.ingress != arrival.port)) | ~is_there):
                    refuse(Counter.DROP_WRONG_PLACE, "STORED")
                with m.Else():
                    m.next = "SETTLE"

            # ---- which message it is of: the latest one first, then all in order ----------------------
            with m.State("LATEST"):
                m.d.comb += entry_read.addr.eq(entry_row(0))
                m.d.sync += [
                    place.serial.eq(entry_read.data.serial),
                    place.offset.eq(distance),
                ]
                with m.If(inside):
                    m.next = "PLACE"
                with m.Else():
                    m.next = "SEARCH"
            with m.State("SEARCH"):
                m.d.comb += entry_read.addr.eq(entry_row(Mux(scan + 1 == rows_of_ring, 0, scan + 1)))
                m.d.sync += [
                    place.serial.eq(entry_read.data.serial),
                    place.offset.eq(distance),
                    scan.eq(scan + 1),
                ]
                with m.If(inside):
                    m.d.sync += flow.latest.eq(scan)
                    m.next = "PLACE"
                with m.Elif(scan + 1 == rows_of_ring):
                    drop(Counter.DROP_FIRST_NOT_SEEN, "STORED")

            with m.State("PLACE"):
                m.next = "PLACED"
            with m.State("PLACED"):
                m.d.sync += [region.eq(region_read.data), slot_at.eq(slot_row(place.serial, place.offset))]
                m.next = "LAYOUT"
            with m.State("LAYOUT"):
                is_first, is_last = place.offset == 0, place.offset + 1 == region.packets
                opcode, payload = seen.opcode, seen.payload_bytes
                stands = Signal()
                with m.If(opcode == 0x07):
                    m.d.comb += stands.eq(~is_first & ~is_last)
                with m.Elif(opcode == 0x06):
                    m.d.comb += stands.eq(is_first & ~is_last)
                with m.Elif((opcode == 0x08) | (opcode == 0x09)):
                    m.d.comb += stands.eq(is_last & ~is_first)
                with m.Else():
                    m.d.comb += stands.eq(is_first & is_last)
                whole_mtu = Mux((opcode == 0x06) | (opcode == 0x07), payload == ring.mtu, 1)
                padded = seen.pad == (-payload[:2])[:2]
                some = (payload != 0) & (payload <= ring.mtu)
                elements = Mux(region.dtype < 2, payload[:2] == 0, ~payload[0])
                with m.If(~region.valid | (region.serial != place.serial)):
                    drop(Counter.DROP_OLDER_THAN_TENANT, "STORED")
                with m.Elif(~(stands & whole_mtu & padded & some & elements)):
                    fail(Counter.DROP_LAYOUT)
                    drop(Counter.DROP_LAYOUT, "STORED")
                with m.Elif(
                    is_last
                    & region.last_known
                    & ((region.last_opcode != opcode) | (region.last_payload != payload))
                ):
                    fail(Counter.DROP_OPERATIONS_DIFFER)
                    drop(Counter.DROP_LAYOUT, "STORED")
                with m.Else():
                    with m.If(is_last & ~region.last_known):
                        m.d.sync += [
                            region.last_known.eq(1),
                            region.last_opcode.eq(opcode),
                            region.last_payload.eq(payload),
                        ]
                    m.d.comb += count(Counter.AGGREGATED_IN)
                    m.d.sync += [flow.reached.eq(Cat(1, place.serial, place.offset)), dirty_flow.eq(1)]
                    m.next = "SLOT"
            with m.State("SLOT"):
                m.d.comb += region_write.en.eq(1)
                held = slot_read.data.valid & (slot_read.data.serial == place.serial)
                bits = Signal(children)
                m.d.comb += bits.eq(Mux(held, slot_read.data.seen, 0))
                m.d.sync += [
                    slot.valid.eq(1),
                    slot.serial.eq(place.serial),
                    slot.seen.eq(bits | (1 << child)),
                    was_full.eq(bits == everyone),
                    is_fresh.eq(~bits.bit_select(child, 1)),
                    index.eq(0),
                ]
                m.next = "COPY"

            # ---- into the payload memory: headers always, payload if it was not there ------------------
            with m.State("COPY"):  # beat ``index`` is asked for, the one before it is written
                m.d.sync += index.eq(index + 1)
                with m.If(index == arrival.beats):
                    m.d.comb += [slot_write.data.eq(slot), slot_write.en.eq(1)]
                    m.next = "KEPT"

            with m.State("KEPT"):
                with m.If(was_full | flow.replay.known):
                    m.d.sync += [
                        replay_at.eq(place),
                        filled.eq(0),
                        walk.eq(flow.replay),
                        out_child.eq(child),
                        is_one.eq(1),
                    ]
                    with m.If(
                        flow.replay.known
                        & _before(flow.replay.serial, flow.replay.offset, place.serial, place.offset)
                    ):
                        m.next = "HOLE"
                    with m.Else():
                        m.next = "REPLAY"
                with m.Else():
                    m.next = "RANK"

            # ---- replay: a hole before it that is short is filled ----------------------------------------
            with m.State("HOLE"):
                m.d.comb += region_read.addr.eq(region_row(walk.serial))
                m.next = "HOLE_REGION"
            with m.State("HOLE_REGION"):
                row = region_read.data
                high = Signal(17)
                ends_here = walk.serial == place.serial
                m.d.comb += high.eq(Mux(ends_here & (place.offset < row.packets), place.offset, row.packets))
                with m.If(row.valid & (row.serial == walk.serial) & (walk.offset < high)):
                    m.d.sync += filled.eq(filled + (high - walk.offset)[:16])
                m.d.sync += [walk.serial.eq(walk.serial + 1), walk.offset.eq(0)]
                with m.If(ends_here):
                    m.next = "HOLE_KNOWN"
                with m.Else():
                    m.next = "HOLE"
            with m.State("HOLE_KNOWN"):
                with m.If(filled <= FILL_PACKETS_MAX):
                    m.d.sync += replay_at.eq(flow.replay)
                m.next = "REPLAY"
            with m.State("REPLAY"):
                # What follows the packet continues the replay, as long as it has left already.
                ends = place.offset + 1 == region.packets
                m.d.sync += [
                    replay_end.serial.eq(Mux(ends, place.serial + 1, place.serial)),
                    replay_end.offset.eq(Mux(ends, 0, place.offset + 1)),
                ]
                m.next = "REPLAY_SET"
            with m.State("REPLAY_SET"):
                m.d.sync += [
                    flow.replay.known.eq(
                        ~ring.selective
                        & _before(replay_end.serial, replay_end.offset, ring.next_serial, ring.next_offset)
                    ),
                    flow.replay.serial.eq(replay_end.serial),
                    flow.replay.offset.eq(replay_end.offset),
                    dirty_flow.eq(1),
                ]
                m.next = "REPLAY_AT"
            with m.State("REPLAY_AT"):
                m.d.comb += region_read.addr.eq(region_row(replay_at.serial))
                with m.If(
                    _before(place.serial, place.offset, replay_at.serial, replay_at.offset)
                    | ~_before(replay_at.serial, replay_at.offset, ring.next_serial, ring.next_offset)
                ):
                    m.next = "RANK"
                with m.Else():
                    m.next = "REPLAY_REGION"
            with m.State("REPLAY_REGION"):
                row = region_read.data
                m.d.sync += [out_region.eq(row), out_place.eq(replay_at)]
                with m.If(~row.valid | (row.serial != replay_at.serial) | (replay_at.offset >= row.packets)):
                    m.d.sync += [replay_at.serial.eq(replay_at.serial + 1), replay_at.offset.eq(0)]
                    m.next = "REPLAY_AT"
                with m.Else():
                    m.d.comb += [
                        count(Counter.REPLAYED),
                        self.count[Counter.REPLAY_FILLED].eq(
                            _before(replay_at.serial, replay_at.offset, place.serial, place.offset)
                        ),
                    ]
                    m.d.sync += replay_at.offset.eq(replay_at.offset + 1)
                    leave(BACK_REPLAY)

            # ---- the bridge learns where the rank is, before results leave ---------------------------------
            with m.State("RANK"):
                m.d.sync += learn_after.eq(0)
                with m.If(is_where_it_learns):
                    m.next = "LEARN_RANK_FIRST"
                with m.Else():
                    m.next = "FULL"

            # ---- a slot became full: all that is in order now leaves ------------------------------------
            with m.State("FULL"):
                with m.If(is_fresh & (slot.seen == everyone)):
                    with m.If(
                        ~ring.done_high.known
                        | _before(ring.done_high.serial, ring.done_high.offset, place.serial, place.offset)
                    ):
                        m.d.sync += ring.done_high.eq(Cat(1, place.serial, place.offset))
                    m.d.sync += [dirty_ring.eq(1), is_one.eq(0)]
                    m.next = "ADVANCE"
                with m.Else():
                    m.next = "GAPS"
            with m.State("ADVANCE"):
                m.d.comb += region_read.addr.eq(region_row(ring.next_serial))
                m.d.sync += slot_at.eq(slot_row(ring.next_serial, ring.next_offset))
                m.next = "FRONTIER"
            with m.State("FRONTIER"):
                m.d.sync += out_region.eq(region_read.data)
                m.next = "FRONTIER_SLOT"
            with m.State("FRONTIER_SLOT"):
                now = slot_read.data
                m.d.sync += [
                    out_place.serial.eq(ring.next_serial),
                    out_place.offset.eq(ring.next_offset),
                    out_child.eq(0),
                ]
                with m.If(
                    out_region.valid
                    & (out_region.serial == ring.next_serial)
                    & now.valid
                    & (now.serial == ring.next_serial)
                    & (now.seen == everyone)
                ):
                    with m.If(ring.next_offset + 1 == out_region.packets):
                        m.d.sync += [ring.next_serial.eq(ring.next_serial + 1), ring.next_offset.eq(0)]
                    with m.Else():
                        m.d.sync += ring.next_offset.eq(ring.next_offset + 1)
                    leave(BACK_ADVANCE)
                with m.Else():
                    m.next = "GAPS"

            # ---- results beyond the frontier: whose own packet is missing? --------------------------------
            with m.State("GAPS"):
                m.d.sync += [
                    walk.serial.eq(ring.next_serial),
                    walk.offset.eq(ring.next_offset),
                    out_child.eq(0),
                    is_one.eq(1),
                ]
                m.d.sync += [one.known.eq(0) for one in (*holes, *targets)]
                with m.If(
                    ring.done_high.known
                    & ~_before(
                        ring.done_high.serial, ring.done_high.offset, ring.next_serial, ring.next_offset
                    )
                ):
                    m.next = "WALK_REGION"
                with m.Else():
                    m.next = "STORED"
            with m.State("WALK_REGION"):
                m.d.comb += region_read.addr.eq(region_row(walk.serial))
                with m.If(past_high):
                    m.next = "TELL"
                with m.Else():
                    m.next = "WALK_TENANT"
            with m.State("WALK_TENANT"):
                row = region_read.data
                m.d.sync += [out_region.eq(row), slot_at.eq(slot_row(walk.serial, walk.offset))]
                with m.If(~row.valid | (row.serial != walk.serial)):  # nobody's first packet came
                    for hole in holes:
                        with m.If(~hole.known):
                            m.d.sync += hole.eq(Cat(1, walk.serial, Const(0, 16)))
                    m.d.sync += [walk.serial.eq(walk.serial + 1), walk.offset.eq(0)]
                    m.next = "WALK_REGION"
                with m.Else():
                    m.next = "WALK_SLOT"
            with m.State("WALK_SLOT"):
                m.next = "WALK"
            with m.State("WALK"):
                now = slot_read.data
                bits = Signal(children)
                m.d.comb += bits.eq(Mux(now.valid & (now.serial == walk.serial), now.seen, 0))
                for at in range(children):
                    with m.If(~holes[at].known & ~bits[at]):
                        m.d.sync += holes[at].eq(Cat(1, walk.serial, walk.offset))
                    with m.If(holes[at].known & ~targets[at].known & (bits == everyone)):
                        m.d.sync += targets[at].eq(Cat(1, walk.serial, walk.offset))
                with m.If(walk.offset + 1 == out_region.packets):
                    m.d.sync += [walk.serial.eq(walk.serial + 1), walk.offset.eq(0)]
                    m.next = "WALK_REGION"
                with m.Else():
                    m.d.sync += [walk.offset.eq(walk.offset + 1), slot_at.eq(slot_at + 1)]
                    m.next = "WALK_NEXT"
            with m.State("WALK_NEXT"):
                with m.If(past_high):
                    m.next = "TELL"
                with m.Else():
                    m.next = "WALK"

            with m.State("TELL"):
                m.d.comb += [
                    flow_read.addr.eq(out_number),
                    region_read.addr.eq(region_row(target_of.serial)),
                ]
                m.next = "TELL_FLOW"
            with m.State("TELL_FLOW"):
                # The row of the packet's own flow is not written back yet.
                m.d.sync += [
                    out_flow.eq(Mux(out_number == number, flow, flow_read.data)),
                    out_region.eq(region_read.data),
                    out_place.eq(target_of),
                ]
                m.next = "TELL_IT"
            with m.State("TELL_IT"):
                went_back = ~out_flow.reached.known | _before(
                    out_flow.reached.serial, out_flow.reached.offset, hole_of.serial, hole_of.offset
                )
                told = (
                    out_flow.gap.known
                    & (out_flow.gap.serial == hole_of.serial)
                    & (out_flow.gap.offset == hole_of.offset)
                )
                with m.If((out_child < ring.size) & target_of.known & ~went_back & ~told):
                    m.d.comb += [
                        count(Counter.GAPS_SIGNALLED),
                        flow_write.addr.eq(out_number),
                        flow_write.data.eq(out_flow),
                        flow_write.data.gap.eq(hole_of),
                        flow_write.en.eq(1),
                    ]
                    with m.If(out_number == number):
                        m.d.sync += flow.gap.eq(hole_of)
                    leave(BACK_GAP)
                with m.Else():
                    m.next = "TOLD"
            with m.State("TOLD"):
                m.d.sync += out_child.eq(out_child + 1)
                with m.If(out_child + 1 >= ring.size):
                    m.next = "STORED"
                with m.Else():
                    m.next = "TELL"

            # ---- one result leaves -------------------------------------------------------------------------
            with m.State("LEAVE"):
                m.d.comb += flow_read.addr.eq(out_number)
                m.next = "LEAVE_FLOW"
            with m.State("LEAVE_FLOW"):
                m.d.sync += out_flow.eq(Mux(out_number == number, flow, flow_read.data))
                m.next = "LEAVE_BY"
            with m.State("LEAVE_BY"):
                m.d.comb += [
                    self.query_mac.eq(out_flow.dst_mac),
                    self.query_ingress.eq(Mux(out_flow.ingress_known, out_flow.ingress, p.ports)),
                ]
                with m.If(self.bridge_idle & ~self.emitting):
                    m.next = "LEAVE_BEGIN"
            with m.State("LEAVE_BEGIN"):  # the bridge has answered
                m.d.comb += self.begin.eq(1)
                m.next = "LEAVE_WAIT"
            with m.State("LEAVE_WAIT"), m.If(~self.emitting):
                with m.If(is_one):
                    with m.If(back == BACK_REPLAY):
                        m.next = "REPLAY_AT"
                    with m.Else():
                        m.next = "TOLD"
                with m.Else():
                    m.d.comb += count(Counter.RESULTS_OUT)
                    m.d.sync += out_child.eq(out_child + 1)
                    with m.If(out_child + 1 == ring.size):
                        m.next = "ADVANCE"
                    with m.Else():
                        m.next = "LEAVE"

            # ---- the tables have it, the bridge learns
            # -------------------------------------------------------
            with m.State("STORED"):
                m.d.comb += [flow_write.en.eq(dirty_flow), ring_write.en.eq(dirty_ring)]
                with m.If(learn_after & is_where_it_learns):
                    m.next = "LEARN_RANK"
                with m.Else():
                    m.next = "DONE"
            for state, then in (("LEARN_RANK_FIRST", "FULL"), ("LEARN_RANK", "DONE")):
                with m.State(state):
                    m.d.comb += [
                        self.learn.valid.eq(1),
                        self.learn.payload.mac.eq(flow.src_mac),
                        self.learn.payload.port.eq(arrival.port),
                        self.learn.payload.ip.eq(seen.src_ip),
                        self.learn.payload.has_ip.eq(1),
                    ]
                    with m.If(self.learn.ready):
                        m.next = then
            with m.State("DONE"):
                m.d.comb += self.taken.eq(1)
                m.next = "TAKEN"
            with m.State("TAKEN"), m.If(self.bridge_idle):
                m.next = "IDLE"

            # ---- tables of the control plane
            # ------------------------------------------------------------------
            with m.State("COMMAND"):
                m.d.sync += [number.eq(command.index), ring_number.eq(command.index)]
                with m.Switch(command.table):
                    with m.Case(TABLE_CONNECTION):
                        with m.If(command.index >= p.connections):
                            m.next = "WRONG"
                        with m.Else():
                            m.next = "CONNECTION"
                    with m.Case(TABLE_RING, TABLE_STATE):
                        with m.If(command.index >= p.rings):
                            m.next = "WRONG"
                        with m.Else():
                            m.next = "RING"
                    with m.Default():
                        m.next = "WRONG"
            with m.State("WRONG"):
                m.d.sync += answer_error.eq(1)
                m.next = "ANSWER"

            with m.State("CONNECTION"):
                m.d.sync += clear_at.eq(0)
                with m.If(~command.put):
                    m.next = "CONNECTION_ROW"
                with m.Else():
                    for at, row in enumerate(known):
                        with m.If(number == at):
                            m.d.sync += [
                                row.valid.eq(word(2)[31]),
                                row.src_ip.eq(word(0)),
                                row.dst_ip.eq(word(1)),
                                row.dst_qp.eq(word(2)[:24]),
                            ]
                    source, target = Cat(word(3), word(4)[:16]), Cat(word(4)[16:], word(5))
                    m.d.comb += [
                        owner_write.data.src_mac.eq(source),
                        owner_write.data.dst_mac.eq(target),
                        owner_write.data.macs_known.eq(word(6)[0]),
                        owner_write.en.eq(1),
                        flow_write.data.eq(0),
                        flow_write.data.src_mac.eq(Mux(word(6)[0], source, 0)),
                        flow_write.data.dst_mac.eq(Mux(word(6)[0], target, 0)),
                        flow_write.en.eq(1),
                    ]
                    m.next = "CLEAR_ENTRIES"
            with m.State("CLEAR_ENTRIES"):
                m.d.comb += [
                    entry_write.addr.eq(entry_row(clear_at)),
                    entry_write.data.eq(0),
                    entry_write.en.eq(1),
                ]
                m.d.sync += clear_at.eq(clear_at + 1)
                with m.If(clear_at + 1 == regions):
                    m.next = "ANSWER"
            with m.State("CONNECTION_ROW"):
                held = owner_read.data
                for at, row in enumerate(known):
                    with m.If(number == at):
                        m.d.sync += answer_row.eq(
                            Cat(
                                row.src_ip,
                                row.dst_ip,
                                Cat(row.dst_qp, Const(0, 7), row.valid),
                                held.src_mac,
                                held.dst_mac,
                                held.macs_known,
                            )
                        )
                m.next = "ANSWER"

            with m.State("RING"):
                m.next = "RING_READ"
            with m.State("RING_READ"):
                m.d.sync += ring.eq(ring_read.data)
                with m.If(~command.put):
                    m.next = "RING_ROW"
                with m.Elif(command.table == TABLE_STATE):
                    m.next = "WRONG"
                with m.Else():
                    m.next = "RING_PUT"
            with m.State("RING_PUT"):
                size, window = word(4)[:8], word(4)[8:16]
                length, mtu = word(4)[16:], word(5)[:16]
                need = Signal(32)
                m.d.comb += need.eq((window * length) << 1)
                m.d.sync += [
                    ring.eq(0),
                    ring.valid.eq(word(5)[31]),
                    ring.ring_id.eq(word(0)),
                    ring.key.eq(Cat(word(2), word(1))),
                    ring.epoch.eq(word(3)),
                    ring.size.eq(size),
                    ring.window.eq(window),
                    ring.message_packets.eq(length),
                    ring.mtu.eq(mtu),
                    ring.selective.eq(word(5)[30]),
                    ring.base.eq(word(6)),
                    ring.first_serial.eq(word(7)),
                    ring.next_serial.eq(word(7)),
                    clear_at.eq(word(6)),
                    clear_end.eq(word(6) + need),
                    scan.eq(0),
                ]
                wrong = (
                    (size < 2)
                    | (size > children)
                    | (window < 1)
                    | (window > p.window)
                    | (length < 1)
                    | (mtu > p.mtu)
                    | (mtu < 64)
                    | (word(6) >= p.slots)
                    | (word(6) + need > p.slots)
                )
                with m.If(word(5)[31] & wrong):
                    m.next = "WRONG"
                with m.Else():
                    for at, one in enumerate(ring_ids):
                        with m.If(ring_number == at):
                            m.d.sync += [one.eq(word(0)), ring_valid[at].eq(word(5)[31])]
                    with m.If(word(5)[31]):
                        m.next = "CLEAR_REGIONS"
                    with m.Else():
                        m.next = "RING_WRITE"
            with m.State("CLEAR_REGIONS"):
                m.d.comb += [
                    region_write.addr.eq(ring_number * regions + scan),
                    region_write.data.eq(0),
                    region_write.en.eq(1),
                ]
                m.d.sync += scan.eq(scan + 1)
                with m.If(scan + 1 == regions):
                    m.next = "CLEAR_SLOTS"
            with m.State("CLEAR_SLOTS"):
                m.d.comb += [
                    slot_write.addr.eq(clear_at),
                    slot_write.data.eq(0),
                    slot_write.en.eq(1),
                ]
                m.d.sync += clear_at.eq(clear_at + 1)
                with m.If(clear_at + 1 == clear_end):
                    m.next = "RING_WRITE"
            with m.State("RING_WRITE"):
                m.d.comb += ring_write.en.eq(1)
                m.next = "ANSWER"

            with m.State("RING_ROW"):
                m.d.sync += [
                    slot_at.eq(ring.base),
                    clear_at.eq(0),
                    clear_end.eq((ring.window * ring.message_packets) << 1),
                    in_flight.eq(0),
                    answer_row.eq(
                        Cat(
                            ring.ring_id,
                            ring.key[32:],
                            ring.key[:32],
                            ring.epoch,
                            Cat(ring.size, ring.window, ring.message_packets),
                            Cat(ring.mtu, Const(0, 14), ring.selective, ring.valid),
                            ring.base,
                            ring.first_serial,
                        )
                    ),
                ]
                with m.If((command.table == TABLE_STATE) & ring.valid):
                    m.next = "IN_FLIGHT"
                with m.Elif(command.table == TABLE_STATE):
                    m.d.sync += answer_row.eq(0)
                    m.next = "ANSWER"
                with m.Else():
                    m.next = "ANSWER"
            with m.State("IN_FLIGHT"):
                m.next = "IN_FLIGHT_SLOT"
            with m.State("IN_FLIGHT_SLOT"):
                now = slot_read.data
                # What an older message left behind in a slot is full, or nobody's any more.
                partly = now.valid & (now.seen != everyone) & ~_behind(now.serial, ring.next_serial)
                total = Signal(16)
                m.d.comb += total.eq(in_flight + partly)
                m.d.sync += [slot_at.eq(slot_at + 1), clear_at.eq(clear_at + 1), in_flight.eq(total)]
                with m.If(clear_at + 1 == clear_end):
                    m.d.sync += answer_row.eq(
                        Cat(
                            ring.next_serial,
                            Cat(ring.next_offset, Const(0, 15), ring.failed),
                            Cat(total, Const(0, 16)),
                            Cat(ring.fault_rule, ring.fault_child, Const(0, 16)),
                        )
                    )
                    m.next = "ANSWER"
                with m.Else():
                    m.next = "IN_FLIGHT"
            with m.State("ANSWER"):
                m.d.comb += self.answer.valid.eq(1)
                with m.If(self.answer.ready):
                    m.next = "IDLE"

        m.d.comb += self.busy.eq(~fsm.ongoing("IDLE") | self.there | self.command.valid)
        copied, headers = Signal(range(p.foreign_beats + 1)), Signal(8)
        m.d.comb += [
            copied.eq(index - 1),
            headers.eq(header_words(seen.opcode) + Mux(is_opening, INA_WORDS, 0)),
        ]
        writing = Signal()  # what lies behind the datagram is nobody's
        m.d.comb += writing.eq(fsm.ongoing("COPY") & (index != 0) & (copied < p.frame_beats))
        m.d.comb += kept_at.eq(slot_at * p.frame_beats + copied)
        for at, enable in enumerate(kept_enable):
            with m.If(writing & (child == at)):
                for lane in range(words):
                    m.d.comb += enable[lane].eq(is_fresh | (((copied << shift) + lane) < headers))
        return m
