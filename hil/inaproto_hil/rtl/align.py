"""Frames shifted by two bytes, so that words of a RoCEv2 packet are words of the bus, and back.

The data of a RoCEv2 packet begins at 2 mod 4 of its Ethernet frame (NetReduce section 4: parser and
combinator work on bus words). :class:`Align` puts two zero bytes in front of each frame, :class:`Unalign`
takes them off.

Invariants of both: one beat a cycle unless a neighbour stalls; what is offered stays until it is taken;
``valid`` does not depend on the ``ready`` of the same side. ``input.ready`` follows ``output.ready`` in the
same cycle, and ``output.valid`` follows ``input.valid``.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from inaproto_hil.rtl.layout import Beat
from inaproto_hil.rtl.parameters import SHIFT_BYTES, WORD_BYTES

SHIFT_BITS = 8 * SHIFT_BYTES


class Align(wiring.Component):
    """Puts two zero bytes in front of each frame.

    No latency. A frame whose last bytes do not fit any more has one beat more than it came with.
    """

    def __init__(self, words: int) -> None:
        self.words = words
        beats = stream.Signature(Beat(words))
        super().__init__({"input": In(beats), "output": Out(beats)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        came, out = self.input.payload, self.output.payload
        beat_bytes = WORD_BYTES * self.words
        room = beat_bytes - SHIFT_BYTES  # for bytes of one beat that came, behind those of the beat before

        carry = Signal(SHIFT_BITS)
        left = Signal(range(SHIFT_BYTES + 1))  # bytes of the carry that a beat of their own has to bring
        fits = Signal()
        m.d.comb += fits.eq(came.bytes <= room)

        with m.If(left != 0):
            m.d.comb += [
                out.data.eq(carry),
                out.bytes.eq(left),
                out.last.eq(1),
                self.output.valid.eq(1),
            ]
            with m.If(self.output.ready):
                m.d.sync += left.eq(0)
        with m.Else():
            m.d.comb += [
                out.data.eq(Cat(Mux(came.first, 0, carry), came.data)),
                out.bytes.eq(Mux(came.last & fits, came.bytes + SHIFT_BYTES, beat_bytes)),
                out.first.eq(came.first),
                out.last.eq(came.last & fits),
                self.output.valid.eq(self.input.valid),
                self.input.ready.eq(self.output.ready),
            ]
            with m.If(self.input.valid & self.output.ready):
                m.d.sync += carry.eq(came.data[-SHIFT_BITS:])
                with m.If(came.last & ~fits):
                    m.d.sync += left.eq(came.bytes - room)
        return m


class Unalign(wiring.Component):
    """Takes the two bytes in front of each frame off, whatever they are. A frame of no more bytes vanishes.

    A beat goes out when the one behind it comes, which has its last two bytes; a frame's last bytes, if they
    need a beat of their own, a cycle after they came.
    """

    def __init__(self, words: int) -> None:
        self.words = words
        beats = stream.Signature(Beat(words))
        super().__init__({"input": In(beats), "output": Out(beats)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        came, out = self.input.payload, self.output.payload
        beat_bytes = WORD_BYTES * self.words
        room = beat_bytes - SHIFT_BYTES

        # The bytes of the last beat that came without its first two, if ``full``.
        kept = Signal(8 * room)
        full = Signal()
        begins = Signal()
        ends = Signal()
        kept_bytes = Signal(range(room + 1))  # holds if ``ends``

        m.d.comb += [
            self.output.valid.eq(full & (ends | self.input.valid)),
            self.input.ready.eq(~full | self.output.ready),
            out.first.eq(begins),
        ]
        with m.If(ends):
            m.d.comb += [out.data.eq(kept), out.bytes.eq(kept_bytes), out.last.eq(1)]
        with m.Else():
            closes = came.last & (came.bytes <= SHIFT_BYTES)
            m.d.comb += [
                out.data.eq(Cat(kept, came.data[:SHIFT_BITS])),
                out.bytes.eq(Mux(closes, came.bytes + room, beat_bytes)),
                out.last.eq(closes),
            ]

        with m.If(self.input.valid & self.input.ready):
            m.d.sync += [
                kept.eq(came.data[SHIFT_BITS:]),
                kept_bytes.eq(came.bytes - SHIFT_BYTES),
                full.eq(~came.last | (came.bytes > SHIFT_BYTES)),
                begins.eq(came.first),
                ends.eq(came.last),
            ]
        with m.Elif(self.output.ready & ends):
            m.d.sync += full.eq(0)
        return m
