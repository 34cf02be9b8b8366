"""Packets that this switch makes for others: sums, results and notes (NetReduce section 3.3).

Between switches nothing is in order: each end places packets by PSN, which follows from message and packet.
So sums go up and results down as soon as they are complete. Their headers are made from the two addresses of
the virtual connection. ``inaproto.core.switch.tree``: ``emission``, ``translation``.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Mux, Signal

from inaproto.core.switch.tree.translation import VIRTUAL_UDP_PORT
from inaproto.wire.packet import HEADER_BYTES
from inaproto.wire.roce import Opcode
from inaproto.wire.tree_note import NOTE_BYTES, NoteKind
from inaproto_adapters.fpga.register_map import Counter
from inaproto_hil.rtl.engine.work import Back, Work
from inaproto_hil.rtl.header import DONT_FRAGMENT, PARTITION, TTL

SUMS = (Back.UP, Back.REPEATED, Back.REPEATED_ELSEWHERE, Back.ASK)
OPENINGS = (Back.TELL_OPENS, Back.TELL_OPENS_AGAIN)
NOTES = (Back.NOTE, Back.TELL_REPEATS, *OPENINGS, Back.TELL_GAP)
COUNTED = {
    **dict.fromkeys(NOTES, Counter.NOTES_OUT),
    **dict.fromkeys(SUMS, Counter.SUMS_UP_AGAIN),
    Back.UP: Counter.SUMS_UP,
    Back.DOWN: Counter.RESULTS_DOWN,
    Back.DOWN_AGAIN: Counter.RESULTS_DOWN_AGAIN,
}
THEN = {
    Back.NOTE: "STORED",
    Back.DOWN: "DOWN_NEXT",
    Back.DOWN_AGAIN: "RANK",
    Back.UP: "GAPS",
    Back.REPEATED: "REPEATED",
    Back.REPEATED_ELSEWHERE: "AGAIN_NEXT",
    Back.ASK: "ASK_NEXT",
    Back.TELL_REPEATS: "REPEATS_TOLD",
    Back.TELL_OPENS_AGAIN: "RANK",
    Back.TELL_OPENS: "SUM",
    Back.TELL_GAP: "TOLD",
}
"""Where to go on."""


def down(w: Work) -> None:
    """The result of ``out_place`` goes to every switch below, then what is in order goes to hosts."""
    m = w.m
    with m.State("DOWN"):
        m.d.comb += w.owners.read.addr.eq(w.out_number)
        m.next = "DOWN_TO"
    with m.State("DOWN_TO"):
        with m.If(w.owners.read.data.below):
            w.send(w.out_child, Back.DOWN)
        with m.Else():
            m.next = "DOWN_NEXT"
    with m.State("DOWN_NEXT"):
        m.d.sync += w.out_child.eq(w.out_child + 1)
        with m.If(w.out_child + 1 == w.inputs):
            m.next = "ADVANCE"
        with m.Else():
            m.next = "DOWN"


def send(w: Work) -> None:
    """One packet for a switch: ``out_place``, the note that came, or one that is made here."""
    m, p, io = w.m, w.p, w.io
    place, more = w.out_place, w.arrival.more
    link = Signal.like(w.owner)
    psn, is_up = Signal(24), Signal()

    def is_any(backs: tuple[Back, ...]) -> Signal:
        return Cat(w.back == back for back in backs).any()

    opens = is_any(OPENINGS)
    others = Mux(w.back == Back.TELL_GAP, NoteKind.GAP.value, NoteKind.REPEATS.value)
    m.d.comb += [
        is_up.eq(io.ports_up.bit_select(link.port, 1)),
        io.note.kind.eq(Mux(opens, NoteKind.OPENS.value, others)),
        *(io.note[name].eq(w.ring[name]) for name in ("ring_id", "epoch", "key")),
        io.note.rank.eq(w.told_rank),
        io.note.msg_id.eq(w.told_place.serial),
        io.note.offset.eq(w.told_place.offset),
        io.note.count.eq(w.back == Back.TELL_REPEATS),
        io.note.raw.eq(more.raw),
    ]
    with m.State("LINK"):
        m.d.comb += w.owners.read.addr.eq(w.connection_of(w.link_row))
        m.d.sync += psn.eq(w.tree.start_psn + place.serial * w.ring.message_packets + place.offset)
        m.next = "LINK_READ"
    with m.State("LINK_READ"):
        m.d.sync += link.eq(w.owners.read.data)
        m.next = "LINK_BEGIN"
    with m.State("LINK_BEGIN"):
        order = io.order
        header = order.header
        m.d.comb += [
            order.made.eq(1),
            order.child.eq(0),
            order.kept.eq(w.tree.has_parent & ~is_any(SUMS)),
            order.mask.eq(1 << link.port[: range(p.ports).stop.bit_length()]),
            # The row is what comes from the switch: what goes there has it the other way round.
            header.dst_mac.eq(link.src_mac),
            header.src_mac.eq(link.dst_mac),
            header.src_ip.eq(link.dst_ip),
            header.dst_ip.eq(link.src_ip),
            header.dst_qp.eq(link.dst_qp),
            header.tos.eq(0),
            header.ip_id.eq(0),
            header.fragment.eq(DONT_FRAGMENT),
            header.ttl.eq(TTL),
            header.source_port.eq(VIRTUAL_UDP_PORT),
            header.flags.eq(0),
            header.partition.eq(PARTITION),
            header.ack.eq(0),
            header.psn.eq(psn),
            header.reth.eq(Mux(is_any(SUMS), w.out_region.up_length, w.out_region.down_length)),
            header.imm.eq(w.out_region.serial),
            header.rank.eq(link.rank),
            header.is_result.eq(~is_any(SUMS)),
        ]
        with m.If(is_any(NOTES)):
            m.d.comb += [
                order.copied.eq(w.back == Back.NOTE),
                order.told.eq(w.back != Back.NOTE),
                order.kept.eq(0),
                order.opening.eq(0),
                order.opcode.eq(Opcode.RC_SEND_ONLY),
                order.payload.eq(NOTE_BYTES),
                header.psn.eq(0),
            ]
        with m.If(w.back == Back.NOTE):
            m.d.comb += order.payload.eq(w.seen.payload_bytes)
        with m.If(opens):
            own = Mux(w.seen.opcode == Opcode.RC_WRITE_ONLY_IMM, *_opening_bytes())
            m.d.comb += order.payload.eq(NOTE_BYTES + own)
        with m.If(~is_up):
            m.d.comb += w.count(Counter.LINKS_DOWN)
            m.next = "LINK_DONE"
        with m.Elif(~io.emitting):
            m.d.comb += io.begin.eq(1)
            m.next = "LINK_WAIT"
    with m.State("LINK_WAIT"), m.If(~io.emitting):
        with m.Switch(w.back):
            for back, counter in COUNTED.items():
                with m.Case(back):
                    m.d.comb += w.count(counter)
        m.next = "LINK_DONE"
    with m.State("LINK_DONE"), m.Switch(w.back):
        for back, then in THEN.items():
            with m.Case(back):
                m.next = then


def _opening_bytes() -> tuple[Const, Const]:
    """Headers of a first packet: with immediate, and without."""
    return Const(HEADER_BYTES[Opcode.RC_WRITE_ONLY_IMM]), Const(HEADER_BYTES[Opcode.RC_WRITE_FIRST])
