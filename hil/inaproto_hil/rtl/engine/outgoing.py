"""What leaves because of a packet: results again, new ones in order, one past a gap (NetReduce 3.1, 3.2).

One frontier a ring decides what leaves; a slot that is full beyond it waits. Results are not kept: what
leaves again is summed again from the same payloads.
"""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Mux, Signal

from inaproto_adapters.fpga.register_map import Counter
from inaproto_hil.rtl.engine.work import BACK_ADVANCE, BACK_GAP, BACK_REPLAY, Work, before
from inaproto_hil.rtl.tables import POSITION

FILL_PACKETS_MAX = 32
"""Longest hole in a resend that is filled from kept results."""


def replay(w: Work) -> None:
    """What comes again is answered on its own flow; a short hole before it is filled."""
    m, io = w.m, w.io
    ring, flow, region, place = w.ring, w.flow, w.region, w.place
    replay_at, replay_end = Signal(POSITION), Signal(POSITION)
    filled = Signal(range(2 * FILL_PACKETS_MAX + (1 << 17)))
    with m.State("KEPT"):
        with m.If(w.was_full | flow.replay.known):
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
        with m.Else():
            m.next = "RANK"

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
        ends = place.offset + 1 == region.packets
        m.d.sync += [
            replay_end.serial.eq(Mux(ends, place.serial + 1, place.serial)),
            replay_end.offset.eq(Mux(ends, 0, place.offset + 1)),
        ]
        m.next = "REPLAY_SET"
    with m.State("REPLAY_SET"):
        m.d.sync += [
            flow.replay.known.eq(~ring.selective & before(replay_end, w.frontier)),
            flow.replay.serial.eq(replay_end.serial),
            flow.replay.offset.eq(replay_end.offset),
            w.dirty_flow.eq(1),
        ]
        m.next = "REPLAY_AT"
    with m.State("REPLAY_AT"):
        m.d.comb += w.regions.read.addr.eq(w.region_row(replay_at.serial))
        with m.If(before(place, replay_at) | ~before(replay_at, w.frontier)):
            m.next = "RANK"
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
            w.leave(BACK_REPLAY)


def results(w: Work) -> None:
    """A slot became full: all that is in order now leaves."""
    m = w.m
    ring, place, slot = w.ring, w.place, w.slot
    with m.State("FULL"):
        with m.If(w.is_fresh & (slot.seen == w.everyone)):
            with m.If(~ring.done_high.known | before(ring.done_high, place)):
                m.d.sync += ring.done_high.eq(Cat(1, place.serial, place.offset))
            m.d.sync += [w.dirty_ring.eq(1), w.is_one.eq(0)]
            m.next = "ADVANCE"
        with m.Else():
            m.next = "GAPS"
    with m.State("ADVANCE"):
        m.d.comb += w.regions.read.addr.eq(w.region_row(ring.next_serial))
        m.d.sync += w.slot_at.eq(w.slot_row(w.frontier))
        m.next = "FRONTIER"
    with m.State("FRONTIER"):
        m.d.sync += w.out_region.eq(w.regions.read.data)
        m.next = "FRONTIER_SLOT"
    with m.State("FRONTIER_SLOT"):
        now = w.slots.read.data
        m.d.sync += [
            w.out_place.serial.eq(ring.next_serial),
            w.out_place.offset.eq(ring.next_offset),
            w.out_child.eq(0),
        ]
        with m.If(
            w.out_region.valid
            & (w.out_region.serial == ring.next_serial)
            & now.valid
            & (now.serial == ring.next_serial)
            & (now.seen == w.everyone)
        ):
            with m.If(ring.next_offset + 1 == w.out_region.packets):
                m.d.sync += [ring.next_serial.eq(ring.next_serial + 1), ring.next_offset.eq(0)]
            with m.Else():
                m.d.sync += ring.next_offset.eq(ring.next_offset + 1)
            w.leave(BACK_ADVANCE)
        with m.Else():
            m.next = "GAPS"


def gaps(w: Work) -> None:
    """Results are full beyond the frontier: whose own packet is missing?"""
    m, p = w.m, w.p
    ring, flow, walk = w.ring, w.flow, w.walk
    holes = [Signal(POSITION, name=f"hole_{at}") for at in range(p.children)]
    targets = [Signal(POSITION, name=f"target_{at}") for at in range(p.children)]
    hole_of, target_of = Array(holes)[w.out_child], Array(targets)[w.out_child]
    past_high = Signal()
    m.d.comb += past_high.eq(before(ring.done_high, walk))
    with m.State("GAPS"):
        m.d.sync += [
            walk.serial.eq(ring.next_serial),
            walk.offset.eq(ring.next_offset),
            w.out_child.eq(0),
            w.is_one.eq(1),
        ]
        m.d.sync += [one.known.eq(0) for one in (*holes, *targets)]
        with m.If(ring.done_high.known & ~before(ring.done_high, w.frontier)):
            m.next = "WALK_REGION"
        with m.Else():
            m.next = "STORED"
    with m.State("WALK_REGION"):
        m.d.comb += w.regions.read.addr.eq(w.region_row(walk.serial))
        with m.If(past_high):
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
            with m.If(holes[at].known & ~targets[at].known & (bits == w.everyone)):
                m.d.sync += targets[at].eq(Cat(1, walk.serial, walk.offset))
        with m.If(walk.offset + 1 == w.out_region.packets):
            m.d.sync += [walk.serial.eq(walk.serial + 1), walk.offset.eq(0)]
            m.next = "WALK_REGION"
        with m.Else():
            m.d.sync += [walk.offset.eq(walk.offset + 1), w.slot_at.eq(w.slot_at + 1)]
            m.next = "WALK_NEXT"
    with m.State("WALK_NEXT"):
        with m.If(past_high):
            m.next = "TELL"
        with m.Else():
            m.next = "WALK"

    with m.State("TELL"):
        m.d.comb += [
            w.flows.read.addr.eq(w.out_number),
            w.regions.read.addr.eq(w.region_row(target_of.serial)),
        ]
        m.next = "TELL_FLOW"
    with m.State("TELL_FLOW"):
        # The row of the packet's own flow is not written back yet.
        m.d.sync += [
            w.out_flow.eq(Mux(w.out_number == w.number, flow, w.flows.read.data)),
            w.out_region.eq(w.regions.read.data),
            w.out_place.eq(target_of),
        ]
        m.next = "TELL_IT"
    with m.State("TELL_IT"):
        went_back = ~w.out_flow.reached.known | before(w.out_flow.reached, hole_of)
        told = (
            w.out_flow.gap.known
            & (w.out_flow.gap.serial == hole_of.serial)
            & (w.out_flow.gap.offset == hole_of.offset)
        )
        with m.If((w.out_child < ring.size) & target_of.known & ~went_back & ~told):
            m.d.comb += [
                w.count(Counter.GAPS_SIGNALLED),
                w.flows.write.addr.eq(w.out_number),
                w.flows.write.data.eq(w.out_flow),
                w.flows.write.data.gap.eq(hole_of),
                w.flows.write.en.eq(1),
            ]
            with m.If(w.out_number == w.number):
                m.d.sync += flow.gap.eq(hole_of)
            w.leave(BACK_GAP)
        with m.Else():
            m.next = "TOLD"
    with m.State("TOLD"):
        m.d.sync += w.out_child.eq(w.out_child + 1)
        with m.If(w.out_child + 1 >= ring.size):
            m.next = "STORED"
        with m.Else():
            m.next = "TELL"


def leave(w: Work) -> None:
    """One result leaves."""
    m, p, io = w.m, w.p, w.io
    ring, flow, arrival, place = w.ring, w.flow, w.arrival, w.out_place
    is_last = Signal()
    m.d.comb += [
        is_last.eq(place.offset + 1 == w.out_region.packets),
        io.order.slot.eq(w.slot_row(place)),
        io.order.child.eq(w.out_child),
        io.order.members.eq(ring.size),
        io.order.dtype.eq(w.out_region.dtype),
        io.order.op.eq(w.out_region.op),
        io.order.opening.eq(place.offset == 0),
        io.order.opcode.eq(Mux(is_last, w.out_region.last_opcode, Mux(place.offset == 0, 0x06, 0x07))),
        io.order.payload.eq(Mux(is_last, w.out_region.last_payload, ring.mtu)),
        io.order.beats.eq(arrival.beats),
        io.order.last_bytes.eq(arrival.last_bytes),
        io.order.mask.eq(io.result_mask),
    ]
    with m.State("LEAVE"):
        m.d.comb += w.flows.read.addr.eq(w.out_number)
        m.next = "LEAVE_FLOW"
    with m.State("LEAVE_FLOW"):
        m.d.sync += w.out_flow.eq(Mux(w.out_number == w.number, flow, w.flows.read.data))
        m.next = "LEAVE_BY"
    with m.State("LEAVE_BY"):
        m.d.comb += [io.query_mac.eq(w.out_flow.dst_mac), io.query_ingress.eq(p.ports)]
        for port in range(p.ports):
            with m.If(w.rank_ports[w.out_number][port]):
                m.d.comb += io.query_ingress.eq(port)
        with m.If(io.bridge_idle & ~io.emitting):
            m.next = "LEAVE_BEGIN"
    with m.State("LEAVE_BEGIN"):  # the bridge has answered
        m.d.comb += io.begin.eq(1)
        m.next = "LEAVE_WAIT"
    with m.State("LEAVE_WAIT"), m.If(~io.emitting):
        with m.If(w.is_one):
            with m.If(w.back == BACK_REPLAY):
                m.next = "REPLAY_AT"
            with m.Else():
                m.next = "TOLD"
        with m.Else():
            m.d.comb += w.count(Counter.RESULTS_OUT)
            m.d.sync += w.out_child.eq(w.out_child + 1)
            with m.If(w.out_child + 1 == ring.size):
                m.next = "ADVANCE"
            with m.Else():
                m.next = "LEAVE"


def finish(w: Work) -> None:
    """The bridge learns where the rank is, before results leave; at the end the tables have it all."""
    m, io = w.m, w.io
    seen, arrival, flow = w.seen, w.arrival, w.flow
    is_where_it_learns = Signal()
    m.d.comb += is_where_it_learns.eq(w.rank_ports[w.number].bit_select(arrival.port, 1) & ~flow.routed)
    with m.State("RANK"):
        m.d.sync += w.learn_after.eq(0)
        with m.If(is_where_it_learns):
            m.next = "LEARN_RANK_FIRST"
        with m.Else():
            m.next = "FULL"
    with m.State("STORED"):
        m.d.comb += [w.flows.write.en.eq(w.dirty_flow), w.rings.write.en.eq(w.dirty_ring)]
        with m.If(w.learn_after & is_where_it_learns):
            m.next = "LEARN_RANK"
        with m.Else():
            m.next = "DONE"
    for state, then in (("LEARN_RANK_FIRST", "FULL"), ("LEARN_RANK", "DONE")):
        with m.State(state):
            m.d.comb += [
                io.learn.valid.eq(1),
                io.learn.payload.mac.eq(flow.src_mac),
                io.learn.payload.port.eq(arrival.port),
                io.learn.payload.ip.eq(seen.src_ip),
                io.learn.payload.has_ip.eq(1),
            ]
            with m.If(io.learn.ready):
                m.next = then
    with m.State("DONE"):
        m.d.comb += io.taken.eq(1)
        m.next = "TAKEN"
    with m.State("TAKEN"), m.If(io.bridge_idle):
        m.next = "IDLE"
