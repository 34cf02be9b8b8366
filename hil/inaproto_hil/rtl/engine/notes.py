"""Notes of other switches: what results need on connections that begin elsewhere (NetReduce section 3.3).

Notes of ranks whose results leave elsewhere go on, under other headers. Of the others: a message opens, its
host sent packets again, one of its packets is missing. ``inaproto.core.switch.tree.traffic``.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Mux, Signal

from inaproto.wire.tree_note import NoteKind
from inaproto_adapters.fpga.register_map import Counter
from inaproto_hil.rtl.engine.messages import settle_final
from inaproto_hil.rtl.engine.work import Back, Work, before, behind
from inaproto_hil.rtl.tables import POSITION


def heed(w: Work) -> None:
    """A note came: whether it is one of this ring, and whose it is."""
    m, p, io = w.m, w.p, w.io
    note, opens, ring, flow = w.arrival.more.note, w.arrival.more.opens, w.ring, w.flow
    row = w.owners.read.data
    about = Signal(POSITION)
    m.d.comb += about.eq(Cat(1, note.msg_id, note.offset))
    with m.State("NOTE"):
        m.d.comb += w.owners.read.addr.eq(w.connection_of(p.children + note.rank[:8]))
        m.d.sync += w.learnt_rank.eq(note.rank)
        with m.If(note.fault):
            w.refuse(Counter.DROP_NO_NOTE, "STORED")
        with m.Elif((note.ring_id != ring.ring_id) | (note.epoch != ring.epoch) | (note.key != ring.key)):
            w.refuse(Counter.DROP_OTHER_RING, "STORED")
        with m.Elif(note.rank >= ring.size):
            w.refuse(Counter.DROP_NOBODY, "STORED")
        with m.Else():
            m.next = "NOTE_OF"
    with m.State("NOTE_OF"):
        ahead = Signal(32)
        m.d.comb += ahead.eq(note.msg_id - ring.next_serial + w.rows_of_ring)
        # Numbers from before the first message of all are none.
        is_none = ~ring.first_serial[-1] & ~ring.next_serial[-1] & note.msg_id[-1]
        is_current = (ahead < (w.rows_of_ring << 1)) & ~is_none
        same = (opens.src_ip == row.src_ip) & (opens.dst_ip == row.dst_ip) & (opens.dst_qp == row.dst_qp)
        is_about = Mux(note.kind == NoteKind.OPENS.value, same, note.offset < ring.message_packets)
        with m.If(row.learnt & ~is_current):
            w.drop(Counter.DROP_OTHER_MESSAGE, "STORED")
        with m.Elif(row.learnt & is_about):
            m.d.comb += w.count(Counter.NOTES_IN)
            m.next = "HEED"
        with m.Elif(row.link_known & ~row.learnt):
            m.d.comb += w.count(Counter.NOTES_IN)
            w.send(row.link, Back.NOTE)
        with m.Else():
            w.refuse(Counter.DROP_NOBODY, "STORED")

    # The bridge learns of the switch that sent it. From here on ``flow`` is what the note is about.
    with m.State("HEED"):
        m.d.sync += w.out_learnt.eq(1)
        with m.If(w.learn_after & w.is_where_it_learns):
            m.next = "LEARN_NOTE"
        with m.Else():
            m.next = "HEED_LOAD"
    with m.State("HEED_LOAD"):
        m.d.comb += [
            w.flows.read.addr.eq(w.out_number),
            w.opening_at.eq(w.opening_row(note.msg_id)),
            w.regions.read.addr.eq(w.region_row(note.msg_id)),
        ]
        m.d.sync += [w.learn_after.eq(0), w.number.eq(w.out_number)]
        m.next = "HEED_IT"
    with m.State("HEED_IT"):
        known, region = w.openings.read.data, w.regions.read.data
        m.d.sync += [
            flow.eq(w.flows.read.data),
            w.region.eq(region),
            w.place.eq(about),
            w.walk.eq(about),
            w.out_region.eq(region),
        ]
        m.d.comb += [
            w.openings.write.addr.eq(w.opening_row(note.msg_id)),
            w.openings.write.data.valid.eq(1),
            w.openings.write.data.serial.eq(note.msg_id),
            w.openings.write.data.header.eq(opens),
        ]
        with m.Switch(note.kind):
            with m.Case(NoteKind.OPENS):
                is_news = ~known.valid | ~behind(note.msg_id, known.serial)
                m.d.comb += w.openings.write.en.eq(is_news)
                for table in (w.worn, w.worn_last):
                    m.d.comb += [
                        table.write.addr.eq(w.opening_row(note.msg_id)),
                        table.write.data.eq(table.read.data),
                        table.write.data.stands.eq(0),
                        table.write.en.eq(is_news & region.valid & (region.serial == note.msg_id)),
                    ]
                m.next = "CATCH_ALL"
            with m.Case(NoteKind.GAP):
                m.next = "HEED_GAP"
            with m.Default():
                m.next = "AGAIN"
                is_there = region.valid & (region.serial == note.msg_id) & (note.offset < region.packets)
                with m.If(~is_there):
                    m.next = "GAPS"
    with m.State("HEED_GAP"):
        with m.If(~flow.hole.known | before(flow.hole, about)):
            m.d.sync += [flow.hole.eq(about), w.dirty_flow.eq(1), w.gap_now.eq(1)]
        m.next = "GAPS"
    with m.State("LEARN_NOTE"):
        m.d.comb += [
            io.learn.valid.eq(1),
            io.learn.payload.mac.eq(flow.src_mac),
            io.learn.payload.port.eq(w.arrival.port),
            io.learn.payload.ip.eq(w.seen.src_ip),
            io.learn.payload.has_ip.eq(1),
        ]
        with m.If(io.learn.ready):
            m.next = "HEED_LOAD"


def repeats(w: Work) -> None:
    """A host whose results leave here sent packets again: sums that wait go up again, results again to it."""
    m = w.m
    note, region, walk = w.arrival.more.note, w.region, w.walk
    end = Signal(17)
    m.d.comb += end.eq(note.offset + note.count)
    with m.State("AGAIN"):
        m.d.sync += w.slot_at.eq(w.slot_row(walk))
        m.next = "AGAIN_SLOT"
    with m.State("AGAIN_SLOT"):
        m.next = "AGAIN_IT"
    with m.State("AGAIN_IT"):
        now = w.slots.read.data
        m.d.sync += [w.slot.eq(now), w.out_place.eq(walk)]
        row = 1 << (w.p.children + w.learnt_rank)[: (w.p.rows - 1).bit_length()]
        settle_final(w, 1, w.is_full(now, walk) & w.tree.has_parent, row)
        m.next = "AGAIN_ASK"
    with m.State("AGAIN_ASK"):
        m.d.comb += [w.slots.write.data.eq(w.slot), w.slots.write.en.eq(1)]
        with m.If(w.is_due):
            w.send(w.parent_row, Back.REPEATED_ELSEWHERE)
        with m.Else():
            m.next = "AGAIN_NEXT"
    with m.State("AGAIN_NEXT"):
        m.d.sync += [walk.offset.eq(walk.offset + 1), w.last.eq(walk)]
        with m.If((walk.offset + 1 == end) | (walk.offset + 1 == region.packets)):
            m.d.comb += w.opening_at.eq(w.opening_row(note.msg_id))
            m.next = "AGAIN_REPLAY"
        with m.Else():
            m.next = "AGAIN"
