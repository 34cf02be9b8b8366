"""What comes from the switch above, and what is asked of it (NetReduce section 3.3).

A result is placed by PSN alone and takes the place of the sum that went up. It goes to the switches below at
once, to hosts in order. Results that come before one whose sum is complete here are a sign of loss: that sum
goes up again at once, once for each hole. ``inaproto.core.switch.tree``: ``traffic``, ``emission``.

Invariant: a slot that is final has all that is added up; a result never enters a sum.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Mux, Signal

from inaproto_adapters.fpga.register_map import Counter
from inaproto_hil.rtl.engine.work import Back, Work, before
from inaproto_hil.rtl.tables import POSITION


def take(w: Work) -> None:
    """A result: of which packet, and whether it can be that."""
    m, p = w.m, w.p
    seen, ring, region, place, slot = w.seen, w.ring, w.region, w.place, w.slot
    row = w.regions.read.data
    distance = Signal(24)
    m.d.comb += distance.eq(seen.psn - w.tree.start_psn - row.serial * ring.message_packets)
    next_row = w.ring_number * p.regions + w.scan
    with m.State("RESULT"):
        m.d.comb += w.regions.read.addr.eq(next_row)
        m.next = "RESULT_REGION"
    with m.State("RESULT_REGION"):
        m.d.sync += [
            region.eq(row),
            place.serial.eq(row.serial),
            place.offset.eq(distance),
            w.scan.eq(w.scan + 1),
        ]
        with m.If(row.valid & (distance < ring.message_packets)):
            m.next = "RESULT_PLACE"
        with m.Elif(w.scan + 1 == w.rows_of_ring):
            w.drop(Counter.DROP_NO_MESSAGE, "STORED")
        with m.Else():
            m.next = "RESULT"
    with m.State("RESULT_PLACE"):
        m.d.sync += w.slot_at.eq(w.slot_row(place))
        m.next = "RESULT_SLOT"
    with m.State("RESULT_SLOT"):
        m.next = "RESULT_FITS"
    with m.State("RESULT_FITS"):
        now = w.slots.read.data
        opcode = seen.opcode
        is_last = (opcode != 0x06) & (opcode != 0x07)
        as_inputs = (
            region.last_known & (region.last_opcode == opcode) & (region.last_payload == seen.payload_bytes)
        )
        agrees = (
            ~seen.ina_fault
            & seen.ina_result
            & (seen.dtype == region.dtype)
            & (seen.op == region.op)
            & (seen.ina_last == region.flags[0])
            & (seen.ring_id == ring.ring_id)
            & (seen.epoch == ring.epoch)
            & (seen.op_index == region.op_index)
            & (seen.msg_id == region.serial)
            & (seen.rank == w.owner.rank)
            & (seen.ring_size == ring.size)
            & (seen.msg_len == region.packets)
            & (seen.signature == region.signature)
            & (seen.key == ring.key)
        )
        m.d.sync += [slot.eq(now), slot.final.eq(1), w.is_result.eq(1), w.is_fresh.eq(1), w.index.eq(0)]
        is_beyond = place.offset >= region.packets
        with m.If(~w.stands | is_beyond | (is_last & ~as_inputs)):
            w.refuse(Counter.DROP_LAYOUT, "STORED")
        with m.Elif(~w.is_full(now, place)):
            w.drop(Counter.DROP_BEFORE_SUM, "STORED")
        with m.Elif(w.is_opening & ~agrees):
            w.refuse(Counter.DROP_NO_RESULT, "STORED")
        with m.Else():
            m.d.comb += w.count(Counter.RESULTS_IN)
            m.next = "COPY"
            with m.If(now.final):
                m.next = "GAPS"
    with m.State("RESULT_KEPT"):
        with m.If(~ring.done_high.known | before(ring.done_high, place)):
            m.d.sync += ring.done_high.eq(Cat(1, place.serial, place.offset))
        m.d.sync += [
            w.rose.eq(1),
            w.dirty_ring.eq(1),
            w.is_one.eq(0),
            w.out_child.eq(0),
            w.out_place.eq(place),
            w.out_region.eq(region),
        ]
        w.fix_length("down")
        m.next = "DOWN"


def ask_again(w: Work) -> None:
    """Sums before the highest result whose own results have not come go up again."""
    m = w.m
    ring, walk = w.ring, w.walk
    begin = Signal(POSITION)
    asked_to = w.tree.asked_to
    is_asked = asked_to.known & before(w.frontier, asked_to)
    m.d.comb += begin.eq(Mux(is_asked, asked_to.as_value(), w.frontier.as_value()))
    after = Signal(POSITION)
    is_end = walk.offset + 1 == w.out_region.packets
    m.d.comb += [
        after.serial.eq(Mux(is_end, walk.serial + 1, walk.serial)),
        after.offset.eq(Mux(is_end, 0, walk.offset + 1)),
    ]
    with m.State("ASK"):
        m.d.sync += walk.eq(begin)
        with m.If(w.tree.has_parent & ring.done_high.known & before(begin, ring.done_high)):
            m.d.sync += [asked_to.eq(ring.done_high), w.dirty_tree.eq(1)]
            m.next = "ASK_REGION"
        with m.Else():
            m.next = "STORED"
    with m.State("ASK_REGION"):
        m.d.comb += w.regions.read.addr.eq(w.region_row(walk.serial))
        with m.If(before(walk, ring.done_high)):
            m.next = "ASK_TENANT"
        with m.Else():
            m.next = "STORED"
    with m.State("ASK_TENANT"):
        row = w.regions.read.data
        m.d.sync += [w.out_region.eq(row), w.slot_at.eq(w.slot_row(walk))]
        with m.If(~row.valid | (row.serial != walk.serial) | (walk.offset >= row.packets)):
            m.d.sync += [walk.serial.eq(walk.serial + 1), walk.offset.eq(0)]
            m.next = "ASK_REGION"
        with m.Else():
            m.next = "ASK_SLOT"
    with m.State("ASK_SLOT"):
        m.next = "ASK_IT"
    with m.State("ASK_IT"):
        now = w.slots.read.data
        m.d.sync += w.out_place.eq(walk)
        with m.If(w.is_full(now, walk) & ~now.final):
            w.send(w.parent_row, Back.ASK)
        with m.Else():
            m.next = "ASK_NEXT"
    with m.State("ASK_NEXT"):
        m.d.sync += walk.eq(Cat(1, after.serial, after.offset))
        m.next = "ASK_REGION"
