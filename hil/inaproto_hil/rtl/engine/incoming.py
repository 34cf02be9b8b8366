"""A frame that came in: what it is, and whether it is from where its rank is (NetReduce 3.2).

What is of no ring is bridged. The first packet of a message has the ring's key: it teaches where its rank is;
all others must come from there.
"""

from __future__ import annotations

from typing import NamedTuple

from amaranth.hdl import Cat, Const, Mux, Signal

from inaproto.core.switch.lookup_table import FIRST_SIGHTINGS
from inaproto.core.switch.tree.translation import VIRTUAL_UDP_PORT
from inaproto.wire.roce import Opcode
from inaproto_adapters.fpga.register_map import Counter
from inaproto_hil.rtl.bridge import OF_A_LINK
from inaproto_hil.rtl.engine.work import Work
from inaproto_hil.rtl.tables import SOURCES


class Lookup(NamedTuple):
    """What the connection lookup table says of a frame; its rows are compared all at once."""

    hit: Signal
    """A bit for each connection: whether the frame is of it."""
    malformed: Signal
    """The same for what a lenient receiver would take it for."""
    number: Signal
    """The connection, its ring, and which of the ring's children it is."""
    ring: Signal
    child: Signal
    ring_known: Signal
    """Whether the ring that the INA header names is here."""


def look_up(w: Work) -> Lookup:
    m, p, seen = w.m, w.p, w.seen
    found = Lookup(
        hit=Signal(p.connections),
        malformed=Signal(p.connections),
        number=Signal.like(w.number),
        ring=Signal.like(w.ring_number),
        child=Signal.like(w.child),
        ring_known=Signal(),
    )
    for at, row in enumerate(w.known):
        m.d.comb += [
            found.hit[at].eq(
                row.valid
                & (row.src_ip == seen.src_ip)
                & (row.dst_ip == seen.dst_ip)
                & (row.dst_qp == seen.dest_qp)
            ),
            found.malformed[at].eq(
                row.valid
                & (row.src_ip == seen.lenient_src_ip)
                & (row.dst_ip == seen.lenient_dst_ip)
                & (row.dst_qp == seen.lenient_qp)
            ),
        ]
    for at in range(p.connections):
        with m.If(found.hit[at]):
            m.d.comb += [
                found.number.eq(at),
                found.ring.eq(at // p.rows),
                found.child.eq(at % p.rows),
            ]
    m.d.comb += found.ring_known.eq(
        Cat(w.ring_valid[at] & (one == seen.ring_id) for at, one in enumerate(w.ring_ids)).any()
    )
    return found


def take(w: Work, found: Lookup) -> None:
    """What a frame is: foreign, of a ring, or of nobody that a ring knows. Commands come between frames."""
    m, io = w.m, w.io
    seen, arrival = w.seen, w.arrival
    with m.State("IDLE"):
        m.d.sync += [w.dirty_flow.eq(0), w.dirty_ring.eq(0), w.learn_after.eq(0), w.index.eq(0)]
        m.d.sync += [w.passed.eq(0), w.rose.eq(0)]
        m.d.sync += [w.dirty_tree.eq(0), w.is_result.eq(0), w.out_learnt.eq(0), w.gap_now.eq(0)]
        with m.If(io.command.valid):
            m.d.comb += io.command.ready.eq(1)
            m.d.sync += [w.command.eq(io.command.payload), w.answer_row.eq(0), w.answer_error.eq(0)]
            m.next = "COMMAND"
        with m.Elif(io.there):
            m.d.comb += w.count(Counter.RX)
            m.d.sync += [w.number.eq(found.number), w.ring_number.eq(found.ring), w.child.eq(found.child)]
            m.next = "CLASSIFY"

    with m.State("CLASSIFY"):
        with m.If(~seen.roce):
            with m.If(seen.too_short | seen.contradicts):
                m.next = "PLAIN"
            with m.Else():
                m.next = "LEARN_PLAIN"
        with m.Elif(seen.opcode == Opcode.RC_ACK):
            m.next = "LEARN_ACK"
        with m.Elif(found.hit.any()):
            m.next = "LOAD"
        if w.p.trees:
            is_virtual = seen.dest_qp[-1] & (arrival.more.source_port == VIRTUAL_UDP_PORT)
            with m.Elif(is_virtual):
                w.drop(Counter.DROP_NO_RING, "DONE")
        with m.Else():
            m.next = "LEARN_OTHER"

    for state, has_ip, then in (
        ("LEARN_PLAIN", 0, "PLAIN"),
        ("LEARN_ACK", 1, "BRIDGE"),
        ("LEARN_OTHER", 1, "UNREGISTERED"),
    ):
        with m.State(state):
            m.d.comb += [
                io.learn.valid.eq(1),
                io.learn.payload.mac.eq(seen.src_mac),
                io.learn.payload.port.eq(arrival.port),
                io.learn.payload.ip.eq(seen.src_ip),
                io.learn.payload.has_ip.eq(has_ip),
            ]
            with m.If(io.learn.ready):
                m.next = then

    with m.State("PLAIN"):
        with m.If(seen.lenient & (seen.lenient_opcode != Opcode.RC_ACK) & found.malformed.any()):
            w.drop(Counter.DROP_MALFORMED, "DONE")
        with m.Elif(seen.too_short):
            w.drop(Counter.DROP_SHORT_FRAME, "DONE")
        with m.Else():
            m.next = "BRIDGE"

    with m.State("UNREGISTERED"):
        with m.If(w.is_opening & seen.magic & ~seen.ina_fault & ~seen.ina_result):
            with m.If(~seen.whole | ~arrival.intact):
                w.drop(Counter.DROP_WRONG_ICRC, "DONE")
            with m.Elif(found.ring_known):
                w.refuse(Counter.DROP_NOT_REGISTERED, "DONE")
            with m.Else():
                w.refuse(Counter.DROP_UNKNOWN_RING, "DONE")
        with m.Else():
            m.next = "BRIDGE"


def bridge(w: Work) -> None:
    """A frame leaves as it came."""
    m, io = w.m, w.io
    with m.State("BRIDGE"), m.If(io.bridge_idle):
        m.next = "BRIDGE_OUT"
    with m.State("BRIDGE_OUT"):
        m.d.comb += [w.count(Counter.BRIDGED), io.order.raw.eq(1), io.begin.eq(1)]
        with m.If(w.seen.dst_mac[4:] == OF_A_LINK):
            m.d.comb += w.count(Counter.FOR_LINKS)
        m.next = "BRIDGE_WAIT"
    with m.State("BRIDGE_WAIT"), m.If(~io.emitting):
        m.next = "DONE"


def check(w: Work) -> None:
    """Of a connection of a ring: whether the ring may take it."""
    m = w.m
    seen, arrival, ring, flow, owner, place = w.seen, w.arrival, w.ring, w.flow, w.owner, w.place
    with m.State("LOAD"):
        m.next = "LOADED"
    with m.State("LOADED"):
        m.d.sync += [
            ring.eq(w.rings.read.data),
            flow.eq(w.flows.read.data),
            owner.eq(w.owners.read.data),
            w.learn_after.eq(1),
        ]
        if w.p.trees:
            m.d.sync += w.tree.eq(w.trees.read.data)
        m.next = "CHECK"
    with m.State("CHECK"):
        is_no_input = Const(0)
        if w.p.trees:
            # Where a rank is, its results say nothing of, nor what comes of another switch's inputs.
            from_above = w.tree.has_parent & (arrival.port == w.tree.parent_port)
            is_no_input = owner.elsewhere | (~owner.above & ~owner.below & from_above)
            with m.If(owner.above):
                m.d.sync += w.learn_after.eq(0)
        with m.If(~ring.valid):
            m.d.sync += w.learn_after.eq(0)
            w.drop(Counter.DROP_RING_REMOVED, "DONE")
        if w.p.trees:
            with m.Elif(is_no_input):
                m.d.sync += w.learn_after.eq(0)
                w.drop(Counter.DROP_NOT_AN_INPUT, "DONE")
        with m.Elif(ring.failed):
            w.drop(Counter.DROP_RING_FAILED, "STORED")
        with m.Elif(~seen.whole | ~arrival.intact):
            w.drop(Counter.DROP_WRONG_ICRC, "STORED")
        if w.p.trees:
            is_switch = owner.below | owner.above
            with m.Elif(is_switch & (arrival.port != owner.port)):
                w.refuse(Counter.DROP_ELSEWHERE, "STORED")
            with m.Elif(is_switch & (seen.opcode == Opcode.RC_SEND_ONLY)):
                m.next = "NOTE"
        with m.Elif(~w.is_write):
            w.refuse(Counter.DROP_NOT_A_WRITE, "STORED")
        if w.p.trees:
            with m.Elif(owner.above):
                m.d.sync += w.scan.eq(0)
                m.next = "RESULT"
        with m.Elif(w.is_opening):
            m.d.sync += place.serial.eq(seen.msg_id)
            m.next = "OPEN"
        with m.Else():
            m.next = "WHERE"


def locate(w: Work) -> None:
    """Where its rank is: a first packet says so, others must come from there."""
    m = w.m
    seen, arrival, flow, owner = w.seen, w.arrival, w.flow, w.owner
    in_sources = Signal()
    m.d.comb += in_sources.eq(
        Cat((flow.sources_count > at) & (flow.sources[at] == seen.src_mac) for at in range(SOURCES)).any()
    )
    is_as_shown = Signal()
    is_another = Signal()
    m.d.comb += [
        is_as_shown.eq(
            flow.shown_known & (flow.shown_src == seen.src_mac) & (flow.shown_dst == seen.dst_mac)
        ),
        is_another.eq(flow.shown_psn != seen.psn),
    ]
    move = [
        flow.src_mac.eq(seen.src_mac),
        flow.dst_mac.eq(seen.dst_mac),
        flow.routed.eq(owner.macs_known & (seen.src_mac != owner.src_mac)),
    ]

    # A first packet has the ring's key: it says where its rank is, and who its router is.
    with m.State("SHOW"):
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
        is_last = flow.sightings == FIRST_SIGHTINGS - 1
        with m.If(is_as_shown & (is_another | is_last)):
            m.d.sync += move
        m.d.sync += flow.sightings.eq(Mux(is_as_shown, Mux(is_last, flow.sightings, flow.sightings + 1), 1))
        m.d.sync += [
            flow.shown_known.eq(1),
            flow.shown_src.eq(seen.src_mac),
            flow.shown_dst.eq(seen.dst_mac),
            flow.shown_psn.eq(seen.psn),
            w.dirty_flow.eq(1),
        ]
        m.next = "SETTLE"
    with m.State("SETTLE"):
        m.d.sync += [w.rank_ports[w.number].eq(1 << arrival.port), w.dirty_flow.eq(1)]
        with m.If(~owner.macs_known):
            m.d.sync += [flow.src_mac.eq(seen.src_mac), flow.dst_mac.eq(seen.dst_mac)]
        with m.If(w.is_opening):
            with m.If(owner.macs_known & (flow.src_mac != seen.src_mac)):
                m.d.comb += w.count(Counter.STRANGE_ADDRESSES)
            m.next = "PLACE"
        with m.Else():
            m.d.comb += w.entries.read.addr.eq(w.entry_row(flow.latest))
            m.d.sync += w.scan.eq(0)
            m.next = "LATEST"

    with m.State("WHERE"):
        is_there = Signal()
        m.d.comb += is_there.eq(
            ~owner.macs_known | (owner.src_mac == seen.src_mac) | (flow.src_mac == seen.src_mac) | in_sources
        )
        with m.If((w.rank_ports[w.number] & ~(1 << arrival.port)).any() | ~is_there):
            w.refuse(Counter.DROP_WRONG_PLACE, "STORED")
        with m.Else():
            with m.If(is_as_shown & is_another):
                m.d.sync += move
            m.next = "SETTLE"
