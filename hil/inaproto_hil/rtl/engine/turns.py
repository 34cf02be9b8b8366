"""Rings of a pool have slots by turns (MINA III-C and IV-B; docs/protocol.md 6.10).

A first packet says by its epoch which turn it is of. One of a turn that has not been yet takes the place
that the turn is for, and everything in it is forgotten: messages and regions of the ring that had it, and
the slots' bits. A ring that loses its place amid a message fails; one that takes its own place away fails as
well.
"""

from __future__ import annotations

from amaranth.hdl import Mux, Signal

from inaproto_adapters.fpga.register_map import Counter
from inaproto_hil.rtl.engine.work import Work, behind
from inaproto_hil.rtl.tables import PLACE, RING


def take_turn(w: Work) -> None:
    """A first packet of another turn than its ring has (``TURN``) may begin that turn (``OPEN_AGAIN``)."""
    m = w.m
    seen, ring, place = w.seen, w.ring, w.place
    wanted = Signal(3)  # which of the pool's places the turn is for
    had = Signal(PLACE)
    """The place, as it was before."""
    at = Signal(4)  # place of the pool that is looked at
    m.d.comb += wanted.eq(seen.epoch & ((1 << ring.log2_places) - 1))

    # ---- whether it is one
    with m.State("TURN"):
        m.d.comb += w.places.read.addr.eq(ring.place + wanted)
        m.next = "TURN_PLACE"
    with m.State("TURN_PLACE"):
        m.d.sync += [had.eq(w.places.read.data), w.region.eq(w.regions.read.data), at.eq(0)]
        m.next = "TURN_CHECK"
    with m.State("TURN_CHECK"):
        ahead = Signal(32)
        m.d.comb += ahead.eq(place.serial - ring.next_serial)
        is_over = (ring.has_turn & (seen.epoch < ring.epoch)) | (had.seen & (seen.epoch < had.epoch))
        with m.If(w.region.valid & (w.region.serial == place.serial)):
            w.refuse(Counter.DROP_WRONG_EPOCH, "STORED")  # others sent this message in the turn that it has
        with m.Elif(is_over):
            m.d.comb += w.count(Counter.STALE_TURNS)
            w.drop(Counter.DROP_STALE_TURN, "STORED")
        with m.Elif(ahead[31]):
            w.drop(Counter.DROP_OLDER_THAN_TENANT, "STORED")
        with m.Elif(had.seen & (seen.epoch == had.epoch)):
            w.refuse(Counter.DROP_WRONG_EPOCH, "STORED")  # it is another ring's turn
        with m.Elif(ahead >= ring.window):
            w.refuse(Counter.DROP_WINDOW_PASSED, "STORED")
        with m.Else():
            m.d.comb += w.count(Counter.POOL_TAKEOVERS)
            m.next = "TURN_NEXT"

    # ---- who has that place, or the ring itself another one, gives it up
    holder = Signal.like(w.ring_number)
    loser = Signal(RING)
    is_own = Signal()
    m.d.comb += is_own.eq(holder == w.ring_number)
    with m.State("TURN_NEXT"):
        m.d.comb += w.places.read.addr.eq(ring.place + at)
        m.next = "TURN_LOOK"
    with m.State("TURN_LOOK"):
        row = w.places.read.data
        m.d.sync += [holder.eq(row.holder), w.scan.eq(0), at.eq(at + 1)]
        with m.If(row.held & ((at == wanted) | (row.holder == w.ring_number))):
            m.d.comb += [
                w.places.write.addr.eq(ring.place + at),
                w.places.write.data.eq(row),
                w.places.write.data.held.eq(0),
                w.places.write.en.eq(1),
                w.rings.read.addr.eq(row.holder),
            ]
            m.next = "LOSE"
        with m.Elif((at + 1)[:4] == 1 << ring.log2_places):
            m.next = "TURN_TAKE"
        with m.Else():
            m.next = "TURN_NEXT"
    _lose(w, holder, loser, is_own)
    with m.State("LOST_PLACE"):
        with m.If(at == 1 << ring.log2_places):
            m.next = "TURN_TAKE"
        with m.Else():
            m.next = "TURN_NEXT"

    # ---- the place is the ring's, and empty
    with m.State("TURN_TAKE"):
        m.d.comb += [
            w.places.write.addr.eq(ring.place + wanted),
            w.places.write.data.eq(had),
            w.places.write.data.epoch.eq(seen.epoch),
            w.places.write.data.seen.eq(1),
            w.places.write.data.held.eq(~ring.failed),
            w.places.write.data.holder.eq(w.ring_number),
            w.places.write.en.eq(1),
        ]
        m.d.sync += w.dirty_ring.eq(1)
        with m.If(ring.failed):
            w.drop(Counter.DROP_RING_FAILED, "STORED")
        with m.Else():
            m.d.sync += [
                ring.has_turn.eq(1),
                ring.epoch.eq(seen.epoch),
                ring.first_serial.eq(ring.next_serial),  # nothing is kept of messages before
                ring.base.eq(had.base),
                w.clear_at.eq(had.base),
                w.clear_end.eq(had.base + had.slots),
            ]
            m.next = "TURN_CLEAR"
    with m.State("TURN_CLEAR"):
        m.d.comb += [
            w.slots.write.addr.eq(w.clear_at),
            w.slots.write.data.eq(0),
            w.slots.write.en.eq(1),
        ]
        m.d.sync += w.clear_at.eq(w.clear_at + 1)
        with m.If(w.clear_at + 1 == w.clear_end):
            m.next = "OPEN_AGAIN"
    with m.State("OPEN_AGAIN"):
        m.d.comb += w.entries.read.addr.eq(w.entry_row(w.low(place.serial)))
        m.next = "OPEN_REGION"


def _lose(w: Work, holder: Signal, loser: Signal, is_own: Signal) -> None:
    """A ring's turn is over: its messages are forgotten. If some are unfinished, it fails."""
    m, p = w.m, w.p
    unfinished = Signal()
    child, row = Signal(range(p.children + 1)), Signal(range(p.connections * p.regions))
    connection = Signal.like(w.number)
    m.d.comb += connection.eq(holder * p.rows + child)
    with m.State("LOSE"):
        m.d.sync += loser.eq(Mux(is_own, w.ring, w.rings.read.data))
        m.next = "LOSE_REGIONS"
    with m.State("LOSE_REGIONS"):
        m.d.comb += w.regions.read.addr.eq(holder * p.regions + w.scan)
        with m.If(w.scan == 0):
            m.d.sync += unfinished.eq(loser.next_offset != 0)
        m.next = "LOSE_REGION"
    with m.State("LOSE_REGION"):
        tenant = w.regions.read.data
        with m.If(tenant.valid & ~behind(tenant.serial, loser.next_serial)):
            m.d.sync += unfinished.eq(1)
        m.d.comb += [
            w.regions.write.addr.eq(holder * p.regions + w.scan),
            w.regions.write.data.eq(0),
            w.regions.write.en.eq(1),
        ]
        m.d.sync += [w.scan.eq(w.scan + 1), child.eq(0)]
        with m.If(w.scan + 1 == p.regions):
            m.next = "LOSE_FLOW"
        with m.Else():
            m.next = "LOSE_REGIONS"
    with m.State("LOSE_FLOW"):
        m.d.comb += w.flows.read.addr.eq(connection)
        m.d.sync += [w.scan.eq(0), row.eq(connection * p.regions)]
        m.next = "LOSE_REPLAY"
    with m.State("LOSE_REPLAY"):
        m.d.comb += [
            w.flows.write.addr.eq(connection),
            w.flows.write.data.eq(w.flows.read.data),
            w.flows.write.data.replay.known.eq(0),
            w.flows.write.data.looked.known.eq(0),
            w.flows.write.en.eq(1),
        ]
        with m.If(connection == w.number):
            m.d.sync += [w.flow.replay.known.eq(0), w.flow.looked.known.eq(0)]
        m.next = "LOSE_ENTRIES"
    with m.State("LOSE_ENTRIES"):
        m.d.comb += [
            w.entries.write.addr.eq(row),
            w.entries.write.data.eq(0),
            w.entries.write.en.eq(1),
        ]
        m.d.sync += [w.scan.eq(w.scan + 1), row.eq(row + 1)]
        with m.If(w.scan + 1 == p.regions):
            m.d.sync += child.eq(child + 1)
            with m.If(child + 1 == p.children):
                m.next = "LOSE_RING"
            with m.Else():
                m.next = "LOSE_FLOW"
    with m.State("LOSE_RING"):
        fails = unfinished & ~loser.failed
        m.d.comb += [
            w.rings.write.addr.eq(holder),
            w.rings.write.data.eq(loser),
            w.rings.write.data.has_turn.eq(0),
            w.rings.write.en.eq(1),
        ]
        with m.If(is_own):
            m.d.sync += w.ring.has_turn.eq(0)
        with m.If(fails):
            m.d.comb += [
                w.count(Counter.POOL_CONFLICTS),
                w.rings.write.data.failed.eq(1),
                w.rings.write.data.fault_rule.eq(Counter.POOL_CONFLICTS),
                w.rings.write.data.fault_child.eq(0),
                w.io.fault.valid.eq(1),
                w.io.fault.rule.eq(Counter.POOL_CONFLICTS),
                w.io.fault.ring.eq(holder),
                w.io.fault.child.eq(0),
            ]
            with m.If(is_own):
                m.d.sync += [
                    w.ring.failed.eq(1),
                    w.ring.fault_rule.eq(Counter.POOL_CONFLICTS),
                    w.ring.fault_child.eq(0),
                ]
        m.next = "LOST_PLACE"
