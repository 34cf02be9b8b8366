"""Results on connections that begin elsewhere: their packets do not come by here (NetReduce section 3.3).

Headers are made from those of a message's first packet, which a note brings. So results wait for it, and each
connection has a place of its own up to which they were sent. ``inaproto.core.switch.tree.emission``.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Mux, Signal

from inaproto_adapters.fpga.register_map import Counter
from inaproto_hil.rtl.engine.work import Back, Work, before
from inaproto_hil.rtl.tables import POSITION


def catch_up(w: Work) -> None:
    """Each such connection gets what is in order, up to a message whose note is missing."""
    m = w.m
    ring, flow, sent = w.ring, w.flow, w.out_sent
    row = w.regions.read.data
    after = Signal(POSITION)
    is_end = sent.offset + 1 == row.packets
    m.d.comb += [
        after.known.eq(1),
        after.serial.eq(Mux(is_end, sent.serial + 1, sent.serial)),
        after.offset.eq(Mux(is_end, 0, sent.offset + 1)),
    ]
    with m.State("CATCH_ALL"):
        m.d.sync += [w.learnt_rank.eq(0), w.out_learnt.eq(1), w.is_one.eq(1)]
        m.next = "CATCH"
    with m.State("CATCH"):
        m.d.comb += [w.flows.read.addr.eq(w.out_number), w.owners.read.addr.eq(w.out_number)]
        m.next = "CATCH_FLOW"
    with m.State("CATCH_FLOW"):
        m.d.sync += w.out_flow.eq(Mux(w.out_number == w.number, flow, w.flows.read.data))
        m.next = "CATCH_NEXT"
        with m.If(w.owners.read.data.learnt):
            m.next = "CATCH_REGION"
    with m.State("CATCH_REGION"):
        m.d.comb += [
            w.regions.read.addr.eq(w.region_row(sent.serial)),
            w.opening_at.eq(w.opening_row(sent.serial)),
        ]
        m.next = "CATCH_IT"
    with m.State("CATCH_IT"):
        m.d.sync += [w.out_place.eq(sent), w.out_region.eq(row)]
        m.next = "CATCH_NEXT"
        with m.If(before(sent, w.frontier) & row.valid & (row.serial == sent.serial) & w.is_open(sent)):
            w.dress(sent, is_end)
            m.d.comb += [
                w.count(Counter.RESULTS_OUT),
                w.flows.write.addr.eq(w.out_number),
                w.flows.write.data.eq(w.out_flow),
                w.flows.write.data.sent.eq(after),
                w.flows.write.en.eq(1),
            ]
            with m.If(w.out_number == w.number):
                m.d.sync += flow.sent.eq(after)
            w.leave(Back.CATCH_UP)
    with m.State("CATCH_NEXT"):
        m.d.sync += w.learnt_rank.eq(w.learnt_rank + 1)
        m.next = "CATCH"
        with m.If(w.learnt_rank + 1 == ring.size):
            m.d.sync += w.out_learnt.eq(0)
            m.next = "GAPS"


def signal_gaps(w: Work) -> None:
    """One result past the gap that a note told of, once."""
    m = w.m
    ring, flow, walk = w.ring, w.flow, w.walk
    with m.State("TOLD_GAPS"):
        m.d.sync += [w.learnt_rank.eq(0), w.out_learnt.eq(1), w.is_one.eq(1)]
        m.next = "TOLD_GAP"
    with m.State("TOLD_GAP"):
        m.d.comb += [w.flows.read.addr.eq(w.out_number), w.owners.read.addr.eq(w.out_number)]
        m.next = "TOLD_GAP_FLOW"
    with m.State("TOLD_GAP_FLOW"):
        m.d.sync += w.out_flow.eq(Mux(w.out_number == w.number, flow, w.flows.read.data))
        m.next = "TOLD_GAP_NEXT"
        with m.If(w.owners.read.data.learnt):
            m.next = "TOLD_GAP_KNOWN"
    with m.State("TOLD_GAP_KNOWN"):
        hole, gap = w.out_flow.hole, w.out_flow.gap
        m.d.sync += walk.eq(Cat(1, hole.serial, (hole.offset + 1)[:16]))
        was_told = gap.known & (gap.serial == hole.serial) & (gap.offset == hole.offset)
        is_new = w.gap_now & (w.out_number == w.number)
        has_more = is_new | ~before(ring.done_high, w.frontier)
        m.next = "TOLD_GAP_NEXT"
        with m.If(
            hole.known
            & ~before(hole, w.out_sent)
            & ~was_told
            & ring.done_high.known
            & before(hole, ring.done_high)
            & has_more
        ):
            m.next = "TOLD_GAP_REGION"
    with m.State("TOLD_GAP_REGION"):
        m.d.comb += w.regions.read.addr.eq(w.region_row(walk.serial))
        m.next = "TOLD_GAP_TENANT"
        with m.If(before(ring.done_high, walk)):
            m.next = "TOLD_GAP_NEXT"
    with m.State("TOLD_GAP_TENANT"):
        row = w.regions.read.data
        m.d.sync += [w.out_region.eq(row), w.slot_at.eq(w.slot_row(walk))]
        m.d.comb += w.opening_at.eq(w.opening_row(walk.serial))
        m.next = "TOLD_GAP_SLOT"
        with m.If(~row.valid | (row.serial != walk.serial) | (walk.offset >= row.packets)):
            m.d.sync += [walk.serial.eq(walk.serial + 1), walk.offset.eq(0)]
            m.next = "TOLD_GAP_REGION"
    with m.State("TOLD_GAP_SLOT"):
        m.d.comb += w.opening_at.eq(w.opening_row(walk.serial))
        m.next = "TOLD_GAP_IT"
    with m.State("TOLD_GAP_IT"):
        m.d.sync += w.out_place.eq(walk)
        with m.If(~w.is_final(w.slots.read.data, walk)):
            m.d.sync += walk.offset.eq(walk.offset + 1)
            m.next = "TOLD_GAP_REGION"
        with m.Elif(w.is_open(walk)):
            w.dress(walk, walk.offset + 1 == w.out_region.packets)
            m.d.comb += [
                w.count(Counter.GAPS_SIGNALLED),
                w.flows.write.addr.eq(w.out_number),
                w.flows.write.data.eq(w.out_flow),
                w.flows.write.data.gap.eq(w.out_flow.hole),
                w.flows.write.en.eq(1),
            ]
            with m.If(w.out_number == w.number):
                m.d.sync += flow.gap.eq(w.out_flow.hole)
            w.leave(Back.TOLD_GAP)
        with m.Else():
            m.next = "TOLD_GAP_NEXT"
    with m.State("TOLD_GAP_NEXT"):
        m.d.sync += w.learnt_rank.eq(w.learnt_rank + 1)
        m.next = "TOLD_GAP"
        with m.If(w.learnt_rank + 1 == ring.size):
            m.d.sync += w.out_learnt.eq(0)
            m.next = "ASK"
