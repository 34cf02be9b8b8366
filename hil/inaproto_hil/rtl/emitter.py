"""Makes frames that leave: results under the headers of one connection, or frames as they came.

A result has the header words of the connection's own stored packet and the sum of all stored payloads
(NetReduce section 4: Combinator). UDP checksum and pad are zero, the INA header has its RESULT flag set, and
the ICRC is made anew on the way out. Sums are computed from the stored payloads each time, so a result that
leaves again is made of the same bytes.

Invariant: a frame is begun only if the FIFOs of all its ports have room for all of it, so nothing stalls
inside.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from inaproto.wire.ina_header import FLAG_RESULT, FLAGS_OFFSET, INA_HEADER_BYTES
from inaproto_hil.rtl.align import Unalign
from inaproto_hil.rtl.fold import Fold
from inaproto_hil.rtl.header import CHECKSUM_WORD, HEADER, TOLD, WORDS, ip_checksum, note_of, words_of
from inaproto_hil.rtl.icrc import IcrcSeal
from inaproto_hil.rtl.layout import Beat
from inaproto_hil.rtl.parameters import WORD_BYTES, Parameters

INA_WORDS = INA_HEADER_BYTES // WORD_BYTES
RANK_WORD = 6
"""Of an INA header; the rank is in its lower half."""
UDP_CHECKSUM_WORD = 10
"""Its upper half, in an aligned frame."""
REST = 4
"""Cycles between two frames: the last beat of one has left the aligner before the first of the next comes."""


def header_words(opcode: Any) -> Any:
    """Words before the payload of an aligned frame, for RDMA WRITE opcodes 0x06 to 0x0B."""
    return Mux(opcode == 0x0B, 19, Mux((opcode == 0x06) | (opcode == 0x0A), 18, Mux(opcode == 0x09, 15, 14)))


def order_layout(parameters: Parameters) -> data.StructLayout:
    """What is to leave, and by which ports.

    ``made``: under ``header`` instead of the child's own. Instead of a sum as payload: ``copied``: that of
    the frame in the staging buffer, behind headers of as many words; ``kept``: of the result that came from
    above; ``told``: of the note that is made here.
    """
    return data.StructLayout(
        {
            "raw": 1,
            "mask": parameters.ports,
            "slot": range(parameters.slots),
            "child": range(parameters.children),
            "members": range(parameters.children + 1),
            "dtype": 8,
            "op": 8,
            "opcode": 8,
            "payload": 16,
            "opening": 1,
            "beats": range(parameters.foreign_beats + 1),
            "last_bytes": range(parameters.bus_bytes + 1),
            **({"made": 1, "copied": 1, "kept": 1, "told": 1, "header": HEADER} if parameters.trees else {}),
        }
    )


class Emitter(wiring.Component):
    """``order`` is begun by ``begin`` while not ``busy``. ``raw``: the frame in the staging buffer, of
    ``beats``;
    else the result of ``slot`` for ``child``. Payload memories answer ``bank_address`` by ``banks``, the
    staging
    buffer ``raw_address`` by ``raw_data``, both one cycle later. ``draining``: beats are still on their way
    out."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        words = parameters.words
        super().__init__(
            {
                "order": In(order_layout(parameters)),
                "begin": In(1),
                "busy": Out(1),
                "room": In(parameters.ports),
                "raw_address": Out(range(parameters.foreign_beats)),
                "raw_data": In(32 * words),
                "bank_address": Out(range(parameters.slots * parameters.frame_beats)),
                "banks": In(data.ArrayLayout(32 * words, parameters.banks)),
                **({"note": In(TOLD)} if parameters.trees else {}),
                "out_valid": Out(1),
                "out_beat": Out(Beat(words)),
                "out_mask": Out(parameters.ports),
                "stalled": Out(1),
                "draining": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        p = self.parameters
        words = p.words
        shift = words.bit_length() - 1
        m = Module()
        m.submodules.fold = fold = Fold(words, p.children)
        m.submodules.seal = seal = IcrcSeal(words)
        m.submodules.unalign = unalign = Unalign(words)

        order = Signal(order_layout(p))
        index = Signal(range(p.foreign_beats + 1))
        beats, last_bytes = Signal.like(order.beats), Signal.like(order.last_bytes)
        rest = Signal(range(REST + 1))
        reading = Signal()
        total_words = Signal(16)
        payload_words = Signal(16)
        m.d.comb += [
            payload_words.eq((order.payload + WORD_BYTES - 1) >> 2),
            total_words.eq(header_words(order.opcode) + payload_words + 1),
        ]
        base = Signal(range(p.slots * p.frame_beats))

        # Frames that are in the pipeline may still be on their way into a FIFO: its ``room`` allows for them.
        with m.FSM() as fsm:
            m.d.comb += self.busy.eq(~fsm.ongoing("IDLE"))
            with m.State("IDLE"), m.If(self.begin):
                m.d.sync += order.eq(self.order)
                m.next = "SIZE"
            with m.State("SIZE"):
                with m.If(order.raw):
                    m.d.sync += [beats.eq(order.beats), last_bytes.eq(order.last_bytes)]
                with m.Else():
                    m.d.sync += [
                        beats.eq((total_words + words - 1) >> shift),
                        last_bytes.eq((((total_words - 1) & (words - 1)) + 1) << 2),
                    ]
                m.d.sync += [index.eq(0), base.eq(order.slot * p.frame_beats)]
                m.next = "ROOM"
            with m.State("ROOM"):
                with m.If(~order.mask.any()):
                    m.next = "IDLE"
                with m.Elif((self.room & order.mask) == order.mask):
                    m.next = "STREAM"
                with m.Else():
                    m.d.comb += self.stalled.eq(1)
            with m.State("STREAM"):
                m.d.comb += reading.eq(1)
                m.d.sync += index.eq(index + 1)
                with m.If(index + 1 == beats):
                    m.d.sync += rest.eq(REST)
                    m.next = "REST"
            with m.State("REST"):
                m.d.sync += rest.eq(rest - 1)
                with m.If(rest == 1):
                    m.next = "IDLE"
        m.d.comb += [self.raw_address.eq(index), self.bank_address.eq(base + index)]
        drain = Signal(range(fold.latency + seal.latency + REST + 1))
        with m.If(reading):
            m.d.sync += drain.eq(fold.latency + seal.latency + REST)
        with m.Elif(drain.any()):
            m.d.sync += drain.eq(drain - 1)
        m.d.comb += self.draining.eq(drain.any())

        # ---- one cycle later the words are there ---------------------------------------------------
        meta_layout = data.StructLayout(
            {
                "valid": 1,
                "first": 1,
                "last": 1,
                "bytes": range(p.bus_bytes + 1),
                "raw": 1,
                "mask": p.ports,
                "payload": words,
                "copied": 1,
                "pads": words,
                "pad_bytes": 2,
                "icrc": words,
            }
        )
        meta = Signal(meta_layout)
        own = Signal(32 * words)
        at = Signal(range(p.foreign_beats + 1))
        is_last = Signal()
        m.d.sync += [meta.valid.eq(reading), at.eq(index), is_last.eq(index + 1 == beats)]
        header, summed_from = Signal(8), Signal(8)
        m.d.comb += [
            header.eq(header_words(order.opcode)),
            summed_from.eq(header + Mux(order.opening, INA_WORDS, 0)),
            meta.first.eq(at == 0),
            meta.last.eq(is_last),
            meta.bytes.eq(Mux(is_last, last_bytes, p.bus_bytes)),
            meta.raw.eq(order.raw),
            meta.mask.eq(order.mask),
            meta.pad_bytes.eq(-order.payload[:2]),
        ]
        made, note, checksum = Const(0), Const(0), Const(0)
        if p.trees:
            made = words_of(m, order.header, order.opcode, total_words, meta.pad_bytes)
            checksum = ip_checksum(m, made)
            note = note_of(self.note)
            m.d.comb += meta.copied.eq(order.copied | order.kept | order.told)
        bank = Array(self.banks[child] for child in range(p.children))[order.child]
        for lane in range(words):
            number = Signal(16, name=f"number_{lane}")
            word = Signal(32, name=f"word_{lane}")
            m.d.comb += [
                number.eq((at << shift) + lane),
                word.eq(Mux(order.raw, self.raw_data.word_select(lane, 32), bank.word_select(lane, 32))),
                own.word_select(lane, 32).eq(word),
                meta.payload[lane].eq((number >= summed_from) & (number < header + payload_words)),
                meta.pads[lane].eq(number + 1 == header + payload_words),
                meta.icrc[lane].eq(number >= header + payload_words),
            ]
            with m.If(~order.raw & (number == UDP_CHECKSUM_WORD)):
                m.d.comb += own.word_select(lane, 32).eq(word & 0x0000_FFFF)
            flags_word, flags_byte = divmod(FLAGS_OFFSET, WORD_BYTES)
            with m.If(~order.raw & order.opening & (number == header + flags_word)):
                m.d.comb += own.word_select(lane, 32).eq(word | FLAG_RESULT << 8 * flags_byte)
            if p.trees:
                here = own.word_select(lane, 32)
                with m.If(order.copied):
                    m.d.comb += here.eq(self.raw_data.word_select(lane, 32))
                with m.If(order.told):
                    m.d.comb += here.eq(note.word_select((number - header)[:5], 32))
                with m.If(order.kept & (number >= summed_from)):
                    m.d.comb += here.eq(self.banks[p.children].word_select(lane, 32))
                with m.If(order.made & (number < header)):
                    m.d.comb += here.eq(made.word_select(number[: WORDS.bit_length()], 32))
                    with m.If(number == CHECKSUM_WORD):
                        m.d.comb += here[16:].eq(checksum)
                with m.Elif(order.made & order.opening):
                    with m.If(number == header + RANK_WORD):
                        m.d.comb += here[:16].eq(Cat(order.header.rank[8:], order.header.rank[:8]))
                    with m.If((number == header + flags_word) & ~order.header.is_result):
                        m.d.comb += here.eq(word)

        m.d.comb += [
            fold.en.eq(1),
            fold.inputs.eq(Cat(self.banks[child] for child in range(p.children))),
            fold.members.eq(order.members),
            fold.dtype.eq(order.dtype),
            fold.op.eq(order.op),
        ]
        for _ in range(fold.latency):
            later_meta, later_own = Signal.like(meta), Signal.like(own)
            m.d.sync += [later_meta.eq(meta), later_own.eq(own)]
            meta, own = later_meta, later_own

        # ---- sums in place of payloads, then the ICRC, then no alignment -----------------------------
        beat = Signal(Beat(words))
        for lane in range(words):
            summed = Signal(32, name=f"summed_{lane}")
            plain = own.word_select(lane, 32)
            kept = Array([0xFFFF_FFFF, 0x00FF_FFFF, 0x0000_FFFF, 0x0000_00FF])[meta.pad_bytes]
            whole = Mux(meta.copied, plain, fold.output.word_select(lane, 32))
            m.d.comb += [
                summed.eq(Mux(meta.pads[lane], whole & kept, whole)),
                beat.data.word_select(lane, 32).eq(
                    Mux(meta.raw, plain, Mux(meta.payload[lane], summed, Mux(meta.icrc[lane], 0, plain)))
                ),
            ]
        m.d.comb += [
            beat.first.eq(meta.first),
            beat.last.eq(meta.last),
            beat.bytes.eq(meta.bytes),
            seal.en.eq(1),
            seal.valid.eq(meta.valid),
            seal.beat.eq(beat),
            seal.seal.eq(~meta.raw),
        ]
        mask = meta.mask
        for _ in range(seal.latency):
            later = Signal.like(mask)
            m.d.sync += later.eq(mask)
            mask = later
        out_mask = Signal(p.ports)
        with m.If(seal.out_valid & seal.out.first):
            m.d.sync += out_mask.eq(mask)
        held_valid, held_beat = Signal(), Signal(Beat(words))
        m.d.sync += [held_valid.eq(seal.out_valid), held_beat.eq(seal.out)]
        m.d.comb += [
            unalign.input.valid.eq(held_valid),
            unalign.input.payload.eq(held_beat),
            unalign.output.ready.eq(1),
            self.out_valid.eq(unalign.output.valid),
            self.out_beat.eq(unalign.output.payload),
            self.out_mask.eq(out_mask),
        ]
        return m
