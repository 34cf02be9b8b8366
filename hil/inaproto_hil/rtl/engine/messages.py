"""Which packet of which message a packet of a ring is, and its place in the memories (NetReduce 3.1, 3.2).

A region belongs to one message, its tenant; a slot's bits count only if they are of its tenant. The payload
that came first stays, headers are those of the packet that came last.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Mux, Signal, Value

from inaproto_adapters.fpga.register_map import Counter
from inaproto_hil.rtl.emitter import INA_WORDS, header_words
from inaproto_hil.rtl.engine.work import Work, before, behind

DTYPES = 4
"""f32, i32, f16 and bf16 are the first ones."""


def open_message(w: Work) -> None:
    """A first packet has an INA header: it opens its message, or agrees with the one that did."""
    m = w.m
    seen, ring, flow, region, entry, place = w.seen, w.ring, w.flow, w.region, w.entry, w.place
    with m.State("OPEN"):
        m.d.comb += w.entries.read.addr.eq(w.entry_row(w.low(place.serial)))
        with m.If(seen.ina_fault | seen.ina_result):
            w.refuse(Counter.DROP_NO_INA_HEADER, "STORED")
        with m.Elif(seen.ring_id != ring.ring_id):
            w.refuse(Counter.DROP_WRONG_RING, "STORED")
        with m.Elif(seen.key != ring.key):
            w.refuse(Counter.DROP_WRONG_KEY, "STORED")
        with m.Elif(~ring.pooled & (seen.epoch != ring.epoch)):
            w.refuse(Counter.DROP_WRONG_EPOCH, "STORED")
        with m.Elif(seen.rank != w.rank):
            w.refuse(Counter.DROP_WRONG_RANK, "STORED")
        with m.Elif(seen.ring_size != ring.size):
            w.refuse(Counter.DROP_WRONG_RING_SIZE, "STORED")
        with m.Elif(seen.msg_len > ring.message_packets):
            w.refuse(Counter.DROP_TOO_LONG, "STORED")
        with m.Elif(seen.dtype >= DTYPES):
            w.refuse(Counter.DROP_UNSUPPORTED_TYPE, "STORED")
        with m.Elif(ring.pooled & (~ring.has_turn | (seen.epoch != ring.epoch))):
            m.next = "TURN"
        with m.Else():
            m.next = "OPEN_REGION"
    with m.State("OPEN_REGION"):
        m.d.sync += [region.eq(w.regions.read.data), entry.eq(w.entries.read.data)]
        m.next = "TENANT"
    with m.State("TENANT"):
        ahead = Signal(32)
        m.d.comb += ahead.eq(place.serial - ring.next_serial)
        is_old, same = Signal(), Signal()
        m.d.comb += [
            same.eq(region.valid & (region.serial == place.serial)),
            is_old.eq(
                behind(place.serial, ring.first_serial) | (region.valid & behind(place.serial, region.serial))
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
            w.drop(Counter.DROP_OLDER_THAN_TENANT, "STORED")
        with m.Elif(~ahead[31] & (ahead >= ring.window)):
            w.refuse(Counter.DROP_WINDOW_PASSED, "STORED")
        with m.Elif(same & ~agrees):
            w.fail(Counter.DROP_OPERATIONS_DIFFER)
            w.drop(Counter.DROP_OPERATIONS_DIFFER, "STORED")
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
                if w.p.trees:
                    m.d.sync += [region.up_stands.eq(0), region.down_stands.eq(0)]
            m.next = "ENTRY"
    with m.State("ENTRY"):
        m.d.comb += w.regions.write.en.eq(1)
        present = entry.valid & (entry.serial == place.serial)
        with m.If(present & ((entry.psn0 != seen.psn) | (entry.packets != seen.msg_len))):
            w.refuse(Counter.DROP_ANOTHER_PSN, "STORED")
        with m.Else():
            low = w.low(place.serial)
            m.d.comb += [
                w.count(Counter.FIRST_PACKETS),
                w.entries.write.addr.eq(w.entry_row(low)),
                w.entries.write.data.valid.eq(1),
                w.entries.write.data.serial.eq(place.serial),
                w.entries.write.data.psn0.eq(seen.psn),
                w.entries.write.data.packets.eq(seen.msg_len),
                w.entries.write.en.eq(1),
            ]
            m.d.sync += [flow.latest.eq(low), place.offset.eq(0)]
            m.next = "SHOW"


def find(w: Work) -> None:
    """Any other packet is placed by PSN: in the latest message of its flow, else the first that fits."""
    m = w.m
    seen, flow, region, place = w.seen, w.flow, w.region, w.place
    inside, distance = Signal(), Signal(24)  # of the message that is looked at
    m.d.comb += [
        distance.eq(seen.psn - w.entries.read.data.psn0),
        inside.eq(w.entries.read.data.valid & (distance < w.entries.read.data.packets)),
    ]

    with m.State("LATEST"):
        m.d.comb += w.entries.read.addr.eq(w.entry_row(0))
        m.d.sync += [
            place.serial.eq(w.entries.read.data.serial),
            place.offset.eq(distance),
        ]
        with m.If(inside):
            m.next = "PLACE"
        with m.Else():
            m.next = "SEARCH"
    with m.State("SEARCH"):
        m.d.comb += w.entries.read.addr.eq(w.entry_row(Mux(w.scan + 1 == w.rows_of_ring, 0, w.scan + 1)))
        m.d.sync += [
            place.serial.eq(w.entries.read.data.serial),
            place.offset.eq(distance),
            w.scan.eq(w.scan + 1),
        ]
        with m.If(inside):
            m.d.sync += flow.latest.eq(w.scan)
            m.next = "PLACE"
        with m.Elif(w.scan + 1 == w.rows_of_ring):
            w.drop(Counter.DROP_FIRST_NOT_SEEN, "STORED")

    with m.State("PLACE"):
        m.next = "PLACED"
    with m.State("PLACED"):
        m.d.sync += [region.eq(w.regions.read.data), w.slot_at.eq(w.slot_row(place))]
        m.next = "LAYOUT"


def settle_final(w: Work, held: Value, is_repeat: Value, row: Value) -> None:
    """Whether the slot has the result, and whether its sum goes up again: of several senders that repeat, one
    is heeded. The first one is, and from then on the second of any."""
    known = w.slots.read.data
    asked = Mux(held, known.asked, 0)
    waits = is_repeat & ~known.final
    is_due = waits & (((asked & row) != 0) | (asked == 0))
    w.m.d.sync += [
        w.was_final.eq(held & known.final),
        w.is_due.eq(is_due),
        w.slot.final.eq(held & known.final),
        w.slot.asked.eq(Mux(is_due, 0, asked) | Mux(waits, row, 0)),
    ]


def check_layout(w: Work) -> None:
    """Whether opcode and length can stand at ``place`` of ``region``."""
    m, seen, place = w.m, w.seen, w.place
    is_first, is_last = place.offset == 0, place.offset + 1 == w.region.packets
    opcode, payload = seen.opcode, seen.payload_bytes
    right = Signal()
    with m.If(opcode == 0x07):
        m.d.comb += right.eq(~is_first & ~is_last)
    with m.Elif(opcode == 0x06):
        m.d.comb += right.eq(is_first & ~is_last)
    with m.Elif((opcode == 0x08) | (opcode == 0x09)):
        m.d.comb += right.eq(is_last & ~is_first)
    with m.Else():
        m.d.comb += right.eq(is_first & is_last)
    whole_mtu = Mux((opcode == 0x06) | (opcode == 0x07), payload == w.ring.mtu, 1)
    padded = seen.pad == (-payload[:2])[:2]
    some = (payload != 0) & (payload <= w.ring.mtu)
    m.d.comb += w.stands.eq(right & whole_mtu & padded & some)


def store(w: Work) -> None:
    """Whether it can stand at its place; into its slot, and into the payload memory of its child."""
    m, p = w.m, w.p
    seen, arrival, flow, region, place, slot = (
        w.seen,
        w.arrival,
        w.flow,
        w.region,
        w.place,
        w.slot,
    )
    is_first, is_last = place.offset == 0, place.offset + 1 == region.packets
    opcode, payload = seen.opcode, seen.payload_bytes
    with m.State("LAYOUT"):
        elements = Mux(region.dtype < 2, payload[:2] == 0, ~payload[0])
        with m.If(~region.valid | (region.serial != place.serial)):
            w.drop(Counter.DROP_OLDER_THAN_TENANT, "STORED")
        with m.Elif(~(w.stands & elements)):
            w.fail(Counter.DROP_LAYOUT)
            w.drop(Counter.DROP_LAYOUT, "STORED")
        with m.Elif(
            is_last & region.last_known & ((region.last_opcode != opcode) | (region.last_payload != payload))
        ):
            w.fail(Counter.DROP_OPERATIONS_DIFFER)
            w.drop(Counter.DROP_LAYOUT, "STORED")
        with m.Else():
            with m.If(is_last & ~region.last_known):
                m.d.sync += [
                    region.last_known.eq(1),
                    region.last_opcode.eq(opcode),
                    region.last_payload.eq(payload),
                ]
            if p.trees:
                with m.If(is_first & (w.child == 0)):
                    m.d.sync += region.dma_length.eq(arrival.more.dma_length)
            m.d.comb += w.count(Counter.AGGREGATED_IN)
            follows = (place.serial == flow.reached.serial) & (place.offset == flow.reached.offset + 1)
            m.d.sync += [flow.reached.eq(Cat(1, place.serial, place.offset)), w.dirty_flow.eq(1)]
            m.d.sync += w.passed.eq(~flow.reached.known | (before(flow.reached, place) & ~follows))
            m.next = "SLOT"
    with m.State("SLOT"):
        m.d.comb += w.regions.write.en.eq(1)
        held = w.slots.read.data.valid & (w.slots.read.data.serial == place.serial)
        bits = Signal(p.children)
        m.d.comb += bits.eq(Mux(held, w.slots.read.data.seen, 0))
        if p.trees:
            settle_final(w, held, (bits == w.everyone) & w.tree.has_parent, 1 << w.child)
        m.d.sync += [
            slot.valid.eq(1),
            slot.serial.eq(place.serial),
            slot.seen.eq(bits | (1 << w.child)),
            w.was_full.eq(bits == w.everyone),
            w.is_fresh.eq(~bits.bit_select(w.child, 1)),
            w.index.eq(0),
        ]
        m.next = "COPY"

    copied, headers, writing = Signal(range(p.foreign_beats + 1)), Signal(8), Signal()
    shift = p.words.bit_length() - 1
    bank = Mux(w.is_result, p.children, w.child) if p.trees else w.child
    m.d.comb += [
        copied.eq(w.index - 1),
        headers.eq(header_words(seen.opcode) + Mux(w.is_opening, INA_WORDS, 0)),
        w.kept_at.eq(w.slot_at * p.frame_beats + copied),
    ]
    with m.State("COPY"):  # beat ``index`` is asked for, the one before it is written
        # What lies behind the datagram is nobody's.
        m.d.comb += writing.eq((w.index != 0) & (copied < p.frame_beats))
        m.d.sync += w.index.eq(w.index + 1)
        with m.If(w.index == arrival.beats):
            m.d.comb += [w.slots.write.data.eq(slot), w.slots.write.en.eq(1)]
            m.next = "KEPT"
            if p.trees:
                with m.If(w.is_result):
                    m.next = "RESULT_KEPT"
        for at, enable in enumerate(w.kept_enable):
            with m.If(writing & (bank == at)):
                for lane in range(p.words):
                    m.d.comb += enable[lane].eq(w.is_fresh | (((copied << shift) + lane) < headers))
