"""Results that leave, in order, each on its own connection; and the end of a frame (NetReduce 3.1, 3.2).

One frontier a ring decides what leaves; a slot that is full beyond it waits. Results are not kept: what
leaves again is summed again from the same payloads. Below another switch sums go up instead, and what came
down leaves (``above``).
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Mux, Signal

from inaproto_adapters.fpga.register_map import Counter
from inaproto_hil.rtl.engine.work import Back, Work, before


def results(w: Work) -> None:
    """A slot became full: all that is in order now leaves."""
    m = w.m
    ring, place, slot = w.ring, w.place, w.slot
    is_full = w.is_fresh & (slot.seen == w.everyone)
    if w.p.trees:
        with m.State("OPENED"):
            m.d.sync += [w.out_place.eq(place), w.out_region.eq(w.region)]
            m.next = "SUM"
            with m.If(w.tree.valid & w.owner.told & w.is_fresh & (place.offset == 0)):
                w.tell(w.owner, place, Back.TELL_OPENS)
        with m.State("SUM"):
            m.next = "GAPS"
            with m.If(is_full & w.tree.has_parent):
                sum_high = w.tree.sum_high
                with m.If(~sum_high.known | before(sum_high, place)):
                    m.d.sync += [sum_high.eq(Cat(1, place.serial, place.offset)), w.dirty_tree.eq(1)]
                m.d.sync += w.rose.eq(1)
                w.fix_length("up")
                w.send(w.parent_row, Back.UP)
            with m.Elif(is_full):
                m.next = "FULL"
    with m.State("FULL"):
        with m.If(is_full):
            with m.If(~ring.done_high.known | before(ring.done_high, place)):
                m.d.sync += [ring.done_high.eq(Cat(1, place.serial, place.offset)), w.rose.eq(1)]
            m.d.sync += [
                w.high_before.eq(ring.done_high),
                w.dirty_ring.eq(1),
                w.is_one.eq(0),
                w.out_child.eq(0),
            ]
            m.next = "ADVANCE"
            if w.p.trees:
                with m.If(w.tree.valid):
                    w.fix_length("down")
                    m.next = "DOWN"
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
            w.out_region.valid & (w.out_region.serial == ring.next_serial) & w.is_final(now, w.frontier)
        ):
            with m.If(ring.next_offset + 1 == w.out_region.packets):
                m.d.sync += [ring.next_serial.eq(ring.next_serial + 1), ring.next_offset.eq(0)]
            with m.Else():
                m.d.sync += ring.next_offset.eq(ring.next_offset + 1)
            w.leave(Back.ADVANCE)
        with m.Else():
            m.next = "GAPS"
            if w.p.trees:
                with m.If(w.tree.valid):
                    m.next = "CATCH_ALL"


def leave(w: Work) -> None:
    """One result leaves."""
    m, p, io = w.m, w.p, w.io
    ring, flow, arrival, place = w.ring, w.flow, w.arrival, w.out_place
    is_last = Signal()
    m.d.comb += [
        is_last.eq(place.offset + 1 == w.out_region.packets),
        io.order.slot.eq(w.slot_row(place)),
        io.order.child.eq(w.out_child),
        io.order.members.eq(w.inputs),
        io.order.dtype.eq(w.out_region.dtype),
        io.order.op.eq(w.out_region.op),
        io.order.opening.eq(place.offset == 0),
        io.order.opcode.eq(Mux(is_last, w.out_region.last_opcode, Mux(place.offset == 0, 0x06, 0x07))),
        io.order.payload.eq(Mux(is_last, w.out_region.last_payload, ring.mtu)),
        io.order.beats.eq(arrival.beats),
        io.order.last_bytes.eq(arrival.last_bytes),
        io.order.mask.eq(io.result_mask),
    ]

    def following() -> None:
        m.d.sync += w.out_child.eq(w.out_child + 1)
        with m.If(w.out_child + 1 == w.inputs):
            m.next = "ADVANCE"
        with m.Else():
            m.next = "LEAVE"

    receiver = Signal(p.ports)
    if p.trees:  # it leaves where its receiver's own packets come from
        m.d.comb += receiver.eq(w.rank_ports[w.connection_of(w.out_owner.successor)])
        with m.State("LEAVE_TO"):
            m.next = "LEAVE_BY"
            with m.If(~w.is_one & ~w.out_owner.delivered):
                following()
    with m.State("LEAVE"):
        m.d.comb += [w.flows.read.addr.eq(w.out_number), w.owners.read.addr.eq(w.out_number)]
        if p.trees:
            m.d.comb += w.opening_at.eq(w.opening_row(place.serial))
        m.next = "LEAVE_FLOW"
    with m.State("LEAVE_FLOW"):
        m.d.sync += w.out_flow.eq(Mux(w.out_number == w.number, flow, w.flows.read.data))
        m.next = "LEAVE_BY"
        if p.trees:
            m.d.sync += [
                w.out_owner.eq(w.owners.read.data),
                w.out_worn.eq(Mux(is_last, w.worn_last.read.data.header, w.worn.read.data.header)),
            ]
            with m.If(w.tree.valid):
                m.next = "LEAVE_TO"
    with m.State("LEAVE_BY"):
        m.d.comb += [io.query_mac.eq(w.out_flow.dst_mac), io.query_ingress.eq(p.ports)]
        with m.If(~w.tree.valid):
            for port in range(p.ports):
                with m.If(w.rank_ports[w.out_number][port]):
                    m.d.comb += io.query_ingress.eq(port)
        with m.If(io.bridge_idle & ~io.emitting):
            m.next = "LEAVE_BEGIN"
    with m.State("LEAVE_BEGIN"):  # the bridge has answered
        m.d.comb += io.begin.eq(1)
        if p.trees:
            _as_in_tree(w, receiver)
        m.next = "LEAVE_WAIT"
    with m.State("LEAVE_WAIT"), m.If(~io.emitting):
        with m.If(w.is_one):
            with m.If(w.back == Back.REPLAY):
                m.next = "REPLAY_AT"
            with m.Else():
                m.next = "TOLD"
            if p.trees:
                with m.If(w.back == Back.CATCH_UP):
                    m.next = "CATCH"
                with m.Elif(w.back == Back.TOLD_GAP):
                    m.next = "TOLD_GAP_NEXT"
        with m.Else():
            m.d.comb += w.count(Counter.RESULTS_OUT)
            following()


def _as_in_tree(w: Work, receiver: Any) -> None:
    """By the port of its receiver, if that is known, never towards switches above; and under headers that are
    made here, if its connection begins elsewhere."""
    m, io = w.m, w.io
    order, owner, told = io.order, w.out_owner, w.out_worn
    header = order.header
    barred = Mux(w.tree.has_parent, 1 << w.tree.parent_port[:5], 0)
    with m.If(w.tree.valid):
        m.d.comb += [
            order.kept.eq(w.tree.has_parent),
            order.mask.eq(Mux(receiver.any(), receiver, io.result_mask & ~barred)),
        ]
    with m.If(w.out_learnt):
        m.d.comb += [
            order.made.eq(1),
            order.child.eq(0),
            header.dst_mac.eq(owner.dst_mac),
            header.src_mac.eq(owner.src_mac),
            header.src_ip.eq(owner.src_ip),
            header.dst_ip.eq(owner.dst_ip),
            header.dst_qp.eq(owner.dst_qp),
            *(header[name].eq(told[name]) for name in ("tos", "ip_id", "fragment", "ttl", "source_port")),
            *(header[name].eq(told[name]) for name in ("flags", "partition", "reth")),
            header.ack.eq(1),
            header.psn.eq(told.psn + w.out_place.offset),
            header.imm.eq(Mux(told.with_imm, told.imm, w.out_region.serial)),
            header.rank.eq(owner.rank),
            header.is_result.eq(1),
        ]


def finish(w: Work) -> None:
    """The bridge learns where the rank is, before results leave; at the end the tables have it all."""
    m, io = w.m, w.io
    seen, arrival, flow = w.seen, w.arrival, w.flow
    is_where_it_learns = w.is_where_it_learns
    stored = "OPENED" if w.p.trees else "FULL"
    with m.State("RANK"):
        m.d.sync += w.learn_after.eq(0)
        with m.If(is_where_it_learns):
            m.next = "LEARN_RANK_FIRST"
        with m.Else():
            m.next = stored
    with m.State("STORED"):
        m.d.comb += [w.flows.write.en.eq(w.dirty_flow), w.rings.write.en.eq(w.dirty_ring)]
        if w.p.trees:
            m.d.comb += w.trees.write.en.eq(w.dirty_tree)
        with m.If(w.learn_after & is_where_it_learns):
            m.next = "LEARN_RANK"
        with m.Else():
            m.next = "DONE"
    for state, then in (("LEARN_RANK_FIRST", stored), ("LEARN_RANK", "DONE")):
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
