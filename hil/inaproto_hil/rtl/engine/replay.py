"""Packets that come again: what has left already is answered once more (NetReduce section 3.1).

A packet whose slot is full is answered on its own flow alone, and a short hole in the resend before it is
filled from kept results. In a tree a switch below may ask again, too, and notes tell of what comes again
where results leave elsewhere.
"""

from __future__ import annotations

from amaranth.hdl import Mux, Signal

from inaproto_adapters.fpga.register_map import Counter
from inaproto_hil.rtl.engine.work import Back, Work, before
from inaproto_hil.rtl.tables import POSITION

FILL_PACKETS_MAX = 32
"""Longest hole in a resend that is filled from kept results."""


def replay(w: Work) -> None:
    """What comes again is answered on its own flow; a short hole before it is filled."""
    m, io = w.m, w.io
    ring, flow, region, place = w.ring, w.flow, w.region, w.place
    replay_at, replay_end = Signal(POSITION), Signal(POSITION)
    filled = Signal(range(2 * FILL_PACKETS_MAX + (1 << 17)))
    limit = Signal(POSITION)  # what is before it was sent
    m.d.comb += limit.eq(w.frontier)

    def begin() -> None:
        m.d.sync += [
            replay_at.eq(place),
            filled.eq(0),
            w.walk.eq(flow.replay),
            w.out_child.eq(w.child),
            w.is_one.eq(1),
        ]
        with m.If(flow.replay.known & before(flow.replay, place)):
            m.next = "HOLE"
        with m.Else():
            m.next = "REPLAY"

    with m.State("KEPT"):
        with m.If(w.was_full | flow.replay.known):
            begin()
        with m.Else():
            m.next = "RANK"
        if w.p.trees:
            m.d.sync += [w.last.eq(place), w.out_place.eq(place), w.out_region.eq(region)]
            with m.If(w.tree.valid & w.is_due):
                w.send(w.parent_row, Back.REPEATED)
            with m.Elif(w.tree.valid):
                m.next = "REPEATED"
    if w.p.trees:
        sent = Signal(POSITION)
        m.d.comb += [
            sent.eq(w.sent_on(flow)),
            limit.eq(Mux(w.out_learnt & before(sent, w.frontier), sent.as_value(), w.frontier.as_value())),
        ]
        with m.State("REPEATED"):
            m.next = "RANK"
            with m.If(w.owner.delivered & (w.was_full | flow.replay.known)):
                begin()
            with m.Elif(w.was_full & w.owner.below & (w.was_final | ~w.tree.has_parent)):
                w.send(w.child, Back.DOWN_AGAIN)
            with m.Elif(w.was_full & w.owner.told):
                w.tell(w.owner, place, Back.TELL_REPEATS)
        with m.State("REPEATS_TOLD"):
            m.next = "RANK"
            with m.If(place.offset == 0):
                w.tell(w.owner, place, Back.TELL_OPENS_AGAIN)
        with m.State("AGAIN_REPLAY"):
            with m.If(w.is_open(place) & before(place, sent)):
                w.dress(place, (w.last.offset + 1 == region.packets) & (sent.serial != place.serial))
            begin()

    with m.State("HOLE"):
        m.d.comb += w.regions.read.addr.eq(w.region_row(w.walk.serial))
        m.next = "HOLE_REGION"
    with m.State("HOLE_REGION"):
        row = w.regions.read.data
        high = Signal(17)
        ends_here = w.walk.serial == place.serial
        m.d.comb += high.eq(Mux(ends_here & (place.offset < row.packets), place.offset, row.packets))
        with m.If(row.valid & (row.serial == w.walk.serial) & (w.walk.offset < high)):
            m.d.sync += filled.eq(filled + (high - w.walk.offset)[:16])
        m.d.sync += [w.walk.serial.eq(w.walk.serial + 1), w.walk.offset.eq(0)]
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
        last = w.last
        ends = last.offset + 1 == region.packets
        m.d.sync += [
            replay_end.serial.eq(Mux(ends, last.serial + 1, last.serial)),
            replay_end.offset.eq(Mux(ends, 0, last.offset + 1)),
        ]
        m.next = "REPLAY_SET"
    with m.State("REPLAY_SET"):
        m.d.sync += [
            flow.replay.known.eq(~ring.selective & before(replay_end, limit)),
            flow.replay.serial.eq(replay_end.serial),
            flow.replay.offset.eq(replay_end.offset),
            w.dirty_flow.eq(1),
        ]
        m.next = "REPLAY_AT"
    with m.State("REPLAY_AT"):
        m.d.comb += w.regions.read.addr.eq(w.region_row(replay_at.serial))
        with m.If(before(w.last, replay_at) | ~before(replay_at, limit)):
            m.next = "RANK"
            if w.p.trees:
                with m.If(w.out_learnt):
                    m.next = "GAPS"
        with m.Else():
            m.next = "REPLAY_REGION"
    with m.State("REPLAY_REGION"):
        row = w.regions.read.data
        m.d.sync += [w.out_region.eq(row), w.out_place.eq(replay_at)]
        with m.If(~row.valid | (row.serial != replay_at.serial) | (replay_at.offset >= row.packets)):
            m.d.sync += [replay_at.serial.eq(replay_at.serial + 1), replay_at.offset.eq(0)]
            m.next = "REPLAY_AT"
        with m.Else():
            m.d.comb += [
                w.count(Counter.REPLAYED),
                io.count[Counter.REPLAY_FILLED].eq(before(replay_at, place)),
            ]
            m.d.sync += replay_at.offset.eq(replay_at.offset + 1)
            w.leave(Back.REPLAY)
