"""Tables of the control plane: rows of connections and rings, and what has become of a ring.

A command is done between two frames, so no packet sees half of it.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Mux, Signal, Value

from inaproto_hil.rtl.engine.work import Work, behind

TABLE_CONNECTION = 0
TABLE_RING = 1
TABLE_STATE = 2
TABLE_PLACE = 3
TABLE_TREE = 4


def choose(w: Work) -> None:
    """Which table, and whether it has the row."""
    m, p = w.m, w.p
    with m.State("COMMAND"):
        m.d.sync += [w.number.eq(w.command.index), w.ring_number.eq(w.command.index)]
        with m.Switch(w.command.table):
            with m.Case(TABLE_CONNECTION):
                with m.If(w.command.index >= p.connections):
                    m.next = "WRONG"
                with m.Else():
                    m.next = "CONNECTION"
            with m.Case(TABLE_RING, TABLE_STATE):
                with m.If(w.command.index >= p.rings):
                    m.next = "WRONG"
                with m.Else():
                    m.next = "RING"
            with m.Case(TABLE_PLACE):
                with m.If(w.command.index >= p.rings):
                    m.next = "WRONG"
                with m.Else():
                    m.next = "PLACE_ROW_READ"
            if p.trees:
                with m.Case(TABLE_TREE):
                    with m.If(w.command.index >= p.rings):
                        m.next = "WRONG"
                    with m.Else():
                        m.next = "TREE"
            with m.Default():
                m.next = "WRONG"
    with m.State("WRONG"):
        m.d.sync += w.answer_error.eq(1)
        m.next = "ANSWER"


def connections(w: Work) -> None:
    """A row of the connections: put, or got. Its ring, which is put after it, forgets its messages."""
    m = w.m
    with m.State("CONNECTION"):
        with m.If(~w.command.put):
            m.next = "CONNECTION_ROW"
        with m.Else():
            for at, row in enumerate(w.known):
                with m.If(w.number == at):
                    m.d.sync += [
                        w.rank_ports[at].eq(0),
                        row.valid.eq(w.word(2)[31]),
                        row.src_ip.eq(w.word(0)),
                        row.dst_ip.eq(w.word(1)),
                        row.dst_qp.eq(w.word(2)[:24]),
                    ]
            source, target = Cat(w.word(3), w.word(4)[:16]), Cat(w.word(4)[16:], w.word(5))
            m.d.comb += [
                w.owners.write.data.src_mac.eq(source),
                w.owners.write.data.dst_mac.eq(target),
                w.owners.write.data.macs_known.eq(w.word(6)[0]),
                w.owners.write.en.eq(1),
                *(value.eq(said) for value, said in _of_tree(w, w.owners.write.data)),
                w.flows.write.data.eq(0),
                w.flows.write.data.src_mac.eq(Mux(w.word(6)[0], source, 0)),
                w.flows.write.data.dst_mac.eq(Mux(w.word(6)[0], target, 0)),
                w.flows.write.en.eq(1),
            ]
            m.next = "ANSWER"
    with m.State("CONNECTION_ROW"):
        held = w.owners.read.data
        for at, row in enumerate(w.known):
            with m.If(w.number == at):
                m.d.sync += w.answer_row.eq(
                    Cat(
                        row.src_ip,
                        row.dst_ip,
                        Cat(row.dst_qp, Const(0, 7), row.valid),
                        held.src_mac,
                        held.dst_mac,
                        held.macs_known,
                        *_tail_of(w),
                    )
                )
        m.next = "ANSWER"


def _of_tree(w: Work, owner: Any) -> list[tuple[Any, Value]]:
    """Values of a connection of a ring that spans several switches, and where the command has them."""
    if not w.p.trees:
        return []
    return [
        *((value, w.word(at)) for at, value in enumerate((owner.src_ip, owner.dst_ip))),
        (owner.dst_qp, w.word(2)[:24]),
        *((value, w.word(6)[at]) for at, value in enumerate(_flags_of(owner), 1)),
        (owner.port, w.word(6)[8:16]),
        (owner.link, w.word(6)[16:24]),
        (owner.link_known, w.word(6)[24]),
        (owner.rank, w.word(7)[:16]),
        (owner.successor, w.word(7)[16:24]),
    ]


def _flags_of(owner: Any) -> tuple[Value, ...]:
    return (owner.below, owner.above, owner.elsewhere, owner.told, owner.learnt, owner.delivered)


def _tail_of(w: Work) -> list[Value]:
    """The same, in the order in which a row ends with them."""
    if not w.p.trees:
        return []
    held = w.owners.read.data
    last = (held.port, held.link, held.link_known, Const(0, 7), held.rank, held.successor)
    return [*_flags_of(held), Const(0, 1), *last]


def trees(w: Work) -> None:
    """A row of what spans several switches: put, or got."""
    m, p = w.m, w.p
    with m.State("TREE"):
        inputs = w.word(0)[8:16]
        m.d.comb += [
            w.trees.write.data.eq(0),
            w.trees.write.data.valid.eq(w.word(0)[0]),
            w.trees.write.data.has_parent.eq(w.word(0)[1]),
            w.trees.write.data.inputs.eq(inputs),
            w.trees.write.data.parent_port.eq(w.word(0)[16:24]),
            w.trees.write.data.start_psn.eq(w.word(1)[:24]),
        ]
        with m.If(~w.command.put):
            m.next = "TREE_ROW"
        with m.Elif(w.word(0)[0] & ((inputs < 1) | (inputs > p.children))):
            m.next = "WRONG"
        with m.Else():
            m.d.comb += w.trees.write.en.eq(1)
            m.next = "ANSWER"
    with m.State("TREE_ROW"):
        row = w.trees.read.data
        m.d.sync += w.answer_row.eq(
            Cat(
                row.valid,
                row.has_parent,
                Const(0, 6),
                row.inputs,
                row.parent_port,
                Const(0, 8),
                row.start_psn,
            )
        )
        m.next = "ANSWER"


def rings(w: Work) -> None:
    """A row of the rings: put, its regions and slots are as new, or refused."""
    m, p = w.m, w.p
    ring = w.ring
    with m.State("RING"):
        m.next = "RING_READ"
    with m.State("RING_READ"):
        m.d.sync += ring.eq(w.rings.read.data)
        if w.p.trees:
            m.d.sync += w.tree.eq(w.trees.read.data)
        with m.If(~w.command.put):
            m.next = "RING_ROW"
        with m.Elif(w.command.table == TABLE_STATE):
            m.next = "WRONG"
        with m.Else():
            m.next = "RING_PUT"
    with m.State("RING_PUT"):
        size, window = w.word(4)[:8], w.word(4)[8:16]
        length, mtu = w.word(4)[16:], w.word(5)[:16]
        need = Signal(32)
        m.d.comb += need.eq((window * length) << 1)
        m.d.sync += [
            ring.eq(0),
            ring.valid.eq(w.word(5)[31]),
            ring.ring_id.eq(w.word(0)),
            ring.key.eq(Cat(w.word(2), w.word(1))),
            ring.epoch.eq(w.word(3)),
            ring.size.eq(size),
            ring.window.eq(window),
            ring.message_packets.eq(length),
            ring.mtu.eq(mtu),
            ring.pooled.eq(w.word(5)[16]),
            ring.place.eq(w.word(5)[17:25]),
            ring.log2_places.eq(w.word(5)[25:27]),
            ring.selective.eq(w.word(5)[30]),
            ring.base.eq(w.word(6)),
            ring.first_serial.eq(w.word(7)),
            ring.next_serial.eq(w.word(7)),
            w.clear_at.eq(w.word(6)),
            w.clear_end.eq(w.word(6) + need),
            w.scan.eq(0),
        ]
        wrong = (
            (size < 2)
            | (size > Mux(w.tree.valid, p.trees, p.children))
            | (window < 1)
            | (window > p.window)
            | (length < 1)
            | (mtu > p.mtu)
            | (mtu < 64)
            | Mux(
                w.word(5)[16],
                w.word(5)[17:25] + (1 << w.word(5)[25:27]) > p.rings,
                (w.word(6) >= p.slots) | (w.word(6) + need > p.slots),
            )
        )
        with m.If(w.word(5)[31] & wrong):
            m.next = "WRONG"
        with m.Else():
            for at, one in enumerate(w.ring_ids):
                with m.If(w.ring_number == at):
                    m.d.sync += [one.eq(w.word(0)), w.ring_valid[at].eq(w.word(5)[31])]
            with m.If(w.word(5)[31]):
                m.next = "FORGET_MESSAGES"
            with m.Else():
                m.next = "RING_LEAVES"
    # Messages of another ring, which had the place before, are none of this one's.
    messages = p.rows * p.regions
    forgotten = Signal(range(messages))
    with m.State("FORGET_MESSAGES"):
        m.d.comb += [
            w.entries.write.addr.eq(w.ring_number * messages + forgotten),
            w.entries.write.data.eq(0),
            w.entries.write.en.eq(1),
        ]
        m.d.sync += forgotten.eq(forgotten + 1)
        with m.If(forgotten == messages - 1):
            m.d.sync += forgotten.eq(0)
            m.next = "CLEAR_REGIONS"
    # A ring that is removed has no place of a pool any more.
    left = Signal(range(p.rings + 1))
    with m.State("RING_LEAVES"):
        m.d.comb += w.places.read.addr.eq(left)
        m.next = "RING_LEAVES_PLACE"
    with m.State("RING_LEAVES_PLACE"):
        row = w.places.read.data
        m.d.comb += [
            w.places.write.addr.eq(left),
            w.places.write.data.eq(row),
            w.places.write.data.held.eq(0),
            w.places.write.en.eq(row.held & (row.holder == w.ring_number)),
        ]
        m.d.sync += left.eq(left + 1)
        with m.If(left + 1 == p.rings):
            m.d.sync += left.eq(0)
            m.next = "RING_WRITE"
        with m.Else():
            m.next = "RING_LEAVES"
    with m.State("CLEAR_REGIONS"):
        m.d.comb += [
            w.regions.write.addr.eq(w.ring_number * p.regions + w.scan),
            w.regions.write.data.eq(0),
            w.regions.write.en.eq(1),
        ]
        m.d.sync += w.scan.eq(w.scan + 1)
        with m.If((w.scan + 1 == p.regions) & ring.pooled):
            m.next = "RING_WRITE"  # it has slots when it has its turn
        with m.Elif(w.scan + 1 == p.regions):
            m.next = "CLEAR_SLOTS"
    with m.State("CLEAR_SLOTS"):
        m.d.comb += [
            w.slots.write.addr.eq(w.clear_at),
            w.slots.write.data.eq(0),
            w.slots.write.en.eq(1),
        ]
        m.d.sync += w.clear_at.eq(w.clear_at + 1)
        with m.If(w.clear_at + 1 == w.clear_end):
            m.next = "RING_WRITE"
    with m.State("RING_WRITE"):
        m.d.comb += w.rings.write.en.eq(1)
        m.next = "ANSWER"


def places(w: Work) -> None:
    """A row of the places of pools: put, nobody has had it, or got."""
    m = w.m
    with m.State("PLACE_ROW_READ"):
        m.d.comb += w.places.read.addr.eq(w.command.index)
        m.next = "PLACE_ROW"
    with m.State("PLACE_ROW"):
        row = w.places.read.data
        m.d.comb += [
            w.places.write.addr.eq(w.command.index),
            w.places.write.data.base.eq(w.word(0)),
            w.places.write.data.slots.eq(w.word(1)),
            w.places.write.en.eq(w.command.put),
        ]
        m.d.sync += w.answer_row.eq(
            Cat(row.base, row.slots, row.epoch, Cat(row.seen, row.held, Const(0, 6), row.holder))
        )
        m.next = "ANSWER"


def state(w: Work) -> None:
    """What has become of a ring: frontier, fault, slots partly filled."""
    m, io = w.m, w.io
    ring = w.ring
    in_flight = Signal(16)
    with m.State("RING_ROW"):
        m.d.sync += [
            w.slot_at.eq(ring.base),
            w.clear_at.eq(0),
            w.clear_end.eq((ring.window * ring.message_packets) << 1),
            in_flight.eq(0),
            w.answer_row.eq(
                Cat(
                    ring.ring_id,
                    ring.key[32:],
                    ring.key[:32],
                    ring.epoch,
                    Cat(ring.size, ring.window, ring.message_packets),
                    Cat(
                        ring.mtu,
                        Cat(ring.pooled, ring.place, ring.log2_places),
                        Const(0, 3),
                        ring.selective,
                        ring.valid,
                    ),
                    ring.base,
                    ring.first_serial,
                )
            ),
        ]
        with m.If((w.command.table == TABLE_STATE) & ring.valid & ring.pooled & ~ring.has_turn):
            m.next = "STATE_ROW"
        with m.Elif((w.command.table == TABLE_STATE) & ring.valid):
            m.next = "IN_FLIGHT"
        with m.Elif(w.command.table == TABLE_STATE):
            m.d.sync += w.answer_row.eq(0)
            m.next = "ANSWER"
        with m.Else():
            m.next = "ANSWER"
    with m.State("IN_FLIGHT"):
        m.next = "IN_FLIGHT_SLOT"
    with m.State("IN_FLIGHT_SLOT"):
        now = w.slots.read.data
        # What an older message left behind in a slot is full, or nobody's any more.
        is_done = now.seen == w.everyone
        if w.p.trees:
            is_done = is_done & (~w.tree.has_parent | now.final)
        partly = now.valid & ~is_done & ~behind(now.serial, ring.next_serial)
        m.d.sync += [
            w.slot_at.eq(w.slot_at + 1),
            w.clear_at.eq(w.clear_at + 1),
            in_flight.eq(in_flight + partly),
        ]
        with m.If(w.clear_at + 1 == w.clear_end):
            m.next = "STATE_ROW"
        with m.Else():
            m.next = "IN_FLIGHT"
    with m.State("STATE_ROW"):
        m.d.sync += w.answer_row.eq(
            Cat(
                ring.next_serial,
                Cat(ring.next_offset, Const(0, 15), ring.failed),
                Cat(in_flight, Const(0, 16)),
                Cat(ring.fault_rule, ring.fault_child, Const(0, 16)),
            )
        )
        m.next = "ANSWER"
    with m.State("ANSWER"):
        m.d.comb += io.answer.valid.eq(1)
        with m.If(io.answer.ready):
            m.next = "IDLE"
