"""What rings that span several switches need of a frame beside (NetReduce section 3.3).

The UDP source port tells packets between switches, the RETH says how long a message is, and a note is the
payload of a SEND (:mod:`inaproto.wire.tree_note`). Combinational, as the parser is. The header that a note
carries is looked at as ``TreeNote.decode`` does.
"""

from __future__ import annotations

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from inaproto.wire.packet import HEADER_BYTES
from inaproto.wire.roce import Opcode
from inaproto.wire.tree_note import MAGIC, NOTE_BYTES, VERSION, NoteKind
from inaproto.wire.udp import ROCE_PORT
from inaproto_hil.rtl.layout import SEEN
from inaproto_hil.rtl.parameters import NOTE_HEAD_WORDS, SHIFT_BYTES, WORD_BYTES
from inaproto_hil.rtl.parser import BTH_END, number

NOTE_FIELDS = (
    ("kind", 5, 1),
    ("rank", 6, 2),
    ("ring_id", 8, 4),
    ("epoch", 12, 4),
    ("msg_id", 16, 4),
    ("offset", 20, 2),
    ("count", 22, 2),
    ("key", 24, 8),
)
"""(name, offset, bytes) in a note."""
OPENING = tuple(
    int(opcode) for opcode in (Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM)
)
NOTE = data.StructLayout({"fault": 1, **{name: 8 * size for name, _, size in NOTE_FIELDS}})
"""``fault``: ``TreeNote.decode`` would refuse the payload; the fields hold else."""
OPENING_FIELDS = (
    ("tos", 15, 1),
    ("ip_id", 18, 2),
    ("fragment", 20, 2),
    ("ttl", 22, 1),
    ("src_ip", 26, 4),
    ("dst_ip", 30, 4),
    ("source_port", 34, 2),
    ("flags", 43, 1),
    ("partition", 44, 3),
    ("dst_qp", 47, 3),
    ("psn", 51, 3),
    ("reth", 54, 16),
    ("imm", 70, 4),
)
"""(name, offset, bytes) in the header of a message's first packet, that a note carries."""
OPENS = data.StructLayout({**{name: 8 * size for name, _, size in OPENING_FIELDS}, "with_imm": 1})
RAW_BYTES = max(HEADER_BYTES[opcode] for opcode in OPENING)
TREE_SEEN = data.StructLayout(
    {"source_port": 16, "dma_length": 32, "note": NOTE, "opens": OPENS, "raw": 8 * RAW_BYTES}
)
"""``dma_length`` is that of a RETH right behind the BTH; ``raw`` are all headers of a first packet."""


class TreeParser(wiring.Component):
    """``head`` begins an aligned frame, zero past its end; ``seen`` is what the parser says of it."""

    def __init__(self) -> None:
        super().__init__(
            {"head": In(8 * WORD_BYTES * NOTE_HEAD_WORDS), "seen": In(SEEN), "more": Out(TREE_SEEN)}
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        note = self.more.note
        m.d.comb += [
            self.more.source_port.eq(self._at(34, 2)),
            self.more.dma_length.eq(self._at(66, 4)),
            *(note[name].eq(self._note_at(at, size)) for name, at, size in NOTE_FIELDS),
            *(self.more.opens[name].eq(self._header_at(at, size)) for name, at, size in OPENING_FIELDS),
            self.more.opens.with_imm.eq(self._header_at(42, 1) == Opcode.RC_WRITE_ONLY_IMM),
            self.more.raw.eq(self.head[8 * SHIFT_BYTES :]),
        ]
        nbytes = self.seen.payload_bytes
        right = Signal()
        with m.Switch(note.kind):
            with m.Case(NoteKind.OPENS):
                m.d.comb += right.eq((note.offset == 0) & (note.count == 0) & self._is_opening(m, nbytes))
            with m.Case(NoteKind.REPEATS):
                end = note.offset + note.count
                m.d.comb += right.eq((nbytes == NOTE_BYTES) & (note.count != 0) & (end <= 1 << 16))
            with m.Case(NoteKind.GAP):
                m.d.comb += right.eq((nbytes == NOTE_BYTES) & (note.count == 0))
        known = (self._note_at(0, 4) == MAGIC) & (self._note_at(4, 1) == VERSION)
        m.d.comb += note.fault.eq((nbytes < NOTE_BYTES) | ~known | ~right)
        return m

    def _is_opening(self, m: Module, nbytes: Value) -> Value:
        """Whether the note has the whole header of a packet that opens an RDMA WRITE."""
        whole = Signal()
        with m.Switch(self._header_at(42, 1)):
            for opcode in OPENING:
                with m.Case(opcode):
                    m.d.comb += whole.eq(nbytes == NOTE_BYTES + HEADER_BYTES[opcode])
        return (
            whole
            & (self._header_at(12, 3) == 0x0800_45)
            & (self._header_at(20, 1) & 0x3F == 0)
            & (self._header_at(21, 1) == 0)
            & (self._header_at(23, 1) == 17)
            & (self._header_at(36, 2) == ROCE_PORT)
        )

    def _at(self, at: int, size: int) -> Value:
        """The number in ``size`` bytes at byte ``at`` of the plain frame."""
        return number(self.head, SHIFT_BYTES + at, size)

    def _note_at(self, at: int, size: int) -> Value:
        return self._at(BTH_END + at, size)

    def _header_at(self, at: int, size: int) -> Value:
        return self._note_at(NOTE_BYTES + at, size)
