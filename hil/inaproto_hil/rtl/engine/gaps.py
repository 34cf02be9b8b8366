"""Packets that are missing while later ones are full: who is told (NetReduce section 3.2).

A walk over the bitmaps finds each input's first missing packet, and the first full one behind it. A flow
that has one and has not gone back gets that result, once: its receiver sees the gap. Where results leave
elsewhere, a note says the same.

Few packets change what a walk finds. One that passes over others of its own flow may leave a gap behind: that
flow is looked at, from where it was found complete the last time (``looked``). One whose slot is the highest
full one shows gaps of those flows that had none below (``gapped`` says which have): the walk begins where the
last one ended. Below another switch, where results come in any order, each of these and each result makes a
walk over all.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Const, Mux, Signal, Value

from inaproto_adapters.fpga.register_map import Counter
from inaproto_hil.rtl.engine.work import Back, Work, before
from inaproto_hil.rtl.tables import POSITION


def gaps(w: Work) -> None:
    """Results are full beyond the frontier: whose own packet is missing?"""
    m, p = w.m, w.p
    flow, walk = w.flow, w.walk
    holes = [Signal(POSITION, name=f"hole_{at}") for at in range(p.children)]
    targets = [Signal(POSITION, name=f"target_{at}") for at in range(p.children)]
    hole_of, target_of = Array(holes)[w.out_child], Array(targets)[w.out_child]
    hole_of_own, target_of_own = Array(holes)[w.child], Array(targets)[w.child]
    alone, is_through, is_looked_at = Signal(), Signal(), Signal()  # alone: of the packet's own flow
    own, others = Signal(POSITION), Signal(POSITION)  # where the walks begin
    anew = w.tree.valid & w.tree.has_parent if p.trees else Const(0)

    def told_all() -> None:
        m.next = "STORED"
        if p.trees:
            with m.If(w.tree.valid):
                m.next = "TOLD_GAPS"

    def is_told(flow: Any, hole: Any) -> Value:
        return flow.gap.known & (flow.gap.serial == hole.serial) & (flow.gap.offset == hole.offset)

    def has_gone_back(flow: Any, hole: Any) -> Value:
        return ~flow.reached.known | before(flow.reached, hole)

    settled = target_of_own.known | is_told(flow, hole_of_own) | has_gone_back(flow, hole_of_own)
    from_end = ~anew & w.high_before.known & ~before(w.high_before, w.frontier)
    from_looked = flow.looked.known & ~before(flow.looked, w.frontier)
    m.d.comb += [
        is_through.eq(before(w.high, walk) | (alone & hole_of_own.known & settled)),
        own.eq(Mux(from_looked, flow.looked.as_value(), w.frontier.as_value())),
        others.eq(Mux(from_end, w.high_before.as_value(), w.frontier.as_value())),
        is_looked_at.eq(anew | alone | (~w.out_flow.gapped & ~(w.passed & (w.out_child == w.child)))),
    ]
    with m.State("GAPS"):
        m.d.sync += [one.known.eq(0) for one in (*holes, *targets)]
        m.d.sync += [w.out_learnt.eq(0), w.is_one.eq(1), alone.eq(0), w.out_child.eq(0), walk.eq(others)]
        with m.If(~w.high.known | before(w.high, w.frontier)):
            with m.If(w.passed):
                m.d.sync += flow.gapped.eq(0)
            told_all()
        with m.Elif(w.passed & ~anew):
            m.d.sync += [alone.eq(1), w.out_child.eq(w.child), walk.eq(own)]
            m.next = "WALK_REGION"
        with m.Elif(w.rose | w.passed):
            m.next = "WALK_REGION"
        with m.Else():
            told_all()
    with m.State("GAPS_OF_OTHERS"):
        m.d.sync += [one.known.eq(0) for one in (*holes, *targets)]
        m.d.sync += [alone.eq(0), w.out_child.eq(0), walk.eq(others)]
        m.next = "WALK_REGION"
    with m.State("WALK_REGION"):
        m.d.comb += w.regions.read.addr.eq(w.region_row(walk.serial))
        with m.If(is_through):
            m.next = "TELL"
        with m.Else():
            m.next = "WALK_TENANT"
    with m.State("WALK_TENANT"):
        row = w.regions.read.data
        m.d.sync += [w.out_region.eq(row), w.slot_at.eq(w.slot_row(walk))]
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
        now = w.slots.read.data
        bits = Signal(p.children)
        m.d.comb += bits.eq(Mux(now.valid & (now.serial == walk.serial), now.seen, 0))
        for at in range(p.children):
            with m.If(~holes[at].known & ~bits[at]):
                m.d.sync += holes[at].eq(Cat(1, walk.serial, walk.offset))
            with m.If(holes[at].known & ~targets[at].known & w.is_final(now, walk)):
                m.d.sync += targets[at].eq(Cat(1, walk.serial, walk.offset))
        with m.If(walk.offset + 1 == w.out_region.packets):
            m.d.sync += [walk.serial.eq(walk.serial + 1), walk.offset.eq(0)]
            m.next = "WALK_REGION"
        with m.Else():
            m.d.sync += [walk.offset.eq(walk.offset + 1), w.slot_at.eq(w.slot_at + 1)]
            m.next = "WALK_NEXT"
    with m.State("WALK_NEXT"):
        with m.If(is_through):
            m.next = "TELL"
        with m.Else():
            m.next = "WALK"

    with m.State("TELL"):
        m.d.comb += [
            w.flows.read.addr.eq(w.out_number),
            w.regions.read.addr.eq(w.region_row(target_of.serial)),
            w.owners.read.addr.eq(w.out_number),
        ]
        m.next = "TELL_FLOW"
    with m.State("TELL_FLOW"):
        # The row of the packet's own flow is not written back yet.
        m.d.sync += [
            w.out_flow.eq(Mux(w.out_number == w.number, flow, w.flows.read.data)),
            w.out_region.eq(w.regions.read.data),
            w.out_place.eq(target_of),
            w.out_owner.eq(w.owners.read.data),
        ]
        m.next = "TELL_IT"
    with m.State("TELL_IT"):
        went_back, told = has_gone_back(w.out_flow, hole_of), is_told(w.out_flow, hole_of)
        complete = Mux(hole_of.known, hole_of.as_value(), w.high.as_value())
        is_here = (~w.tree.valid | w.out_owner.delivered) if p.trees else 1
        is_input = (w.out_child < w.inputs) & is_looked_at
        m.d.comb += [
            w.flows.write.addr.eq(w.out_number),
            w.flows.write.data.eq(w.out_flow),
            w.flows.write.data.gapped.eq(hole_of.known),
            w.flows.write.data.looked.eq(complete),
            w.flows.write.en.eq(is_input),
        ]
        with m.If(is_input & (w.out_number == w.number)):
            m.d.sync += [flow.gapped.eq(hole_of.known), flow.looked.eq(complete)]
        with m.If(is_input & target_of.known & ~went_back & ~told & is_here):
            m.d.comb += [w.count(Counter.GAPS_SIGNALLED), w.flows.write.data.gap.eq(hole_of)]
            with m.If(w.out_number == w.number):
                m.d.sync += flow.gap.eq(hole_of)
            w.leave(Back.GAP)
        with m.Else():
            m.next = "TOLD"
        if p.trees:
            hole = w.out_flow.hole
            is_known = hole.known & (hole.serial == hole_of.serial) & (hole.offset == hole_of.offset)
            came_past = w.out_flow.reached.known & before(hole_of, w.out_flow.reached)
            is_gap = hole_of.known & before(hole_of, w.high) & ~is_known & came_past
            with m.If(w.tree.valid & is_input & w.out_owner.told & is_gap):
                m.d.comb += w.flows.write.data.hole.eq(hole_of)
                with m.If(w.out_number == w.number):
                    m.d.sync += flow.hole.eq(hole_of)
                w.tell(w.out_owner, hole_of, Back.TELL_GAP)
    with m.State("TOLD"):
        m.d.sync += w.out_child.eq(w.out_child + 1)
        with m.If(alone & w.rose):
            m.next = "GAPS_OF_OTHERS"
        with m.Elif(alone | (w.out_child + 1 >= w.inputs)):
            told_all()
        with m.Else():
            m.next = "TELL"
