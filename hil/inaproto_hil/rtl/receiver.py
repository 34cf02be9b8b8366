"""Takes frames from the ports, one after the other, and says of each what it is.

A frame goes into one of two staging buffers while its head is kept for the parser and its ICRC is computed.
While the engine works on one frame the next one comes in. Ports have turns: the next frame is of the next
port that has one.

Invariant: nothing of a frame is looked at before all of it is there and its ICRC is known.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from inaproto_hil.rtl.align import Align
from inaproto_hil.rtl.icrc import IcrcCheck
from inaproto_hil.rtl.layout import SEEN, Beat
from inaproto_hil.rtl.parameters import SHIFT_BYTES, Parameters
from inaproto_hil.rtl.parser import Parser
from inaproto_hil.rtl.tree_parser import TREE_SEEN, TreeParser


def arrival_layout(parameters: Parameters) -> data.StructLayout:
    """A frame that is there: ``beats`` of it lie in staging buffer ``buffer``."""
    return data.StructLayout(
        {
            "seen": SEEN,
            **({"more": TREE_SEEN} if parameters.trees else {}),
            "intact": 1,
            "port": range(parameters.ports),
            "buffer": 1,
            "beats": range(parameters.foreign_beats + 1),
            "last_bytes": range(parameters.bus_bytes + 1),
        }
    )


class Receiver(wiring.Component):
    """``rx_0`` ... are the ports; ``arrival`` stays until ``taken``. ``address``, in beats of the buffer in
    question, gives ``beat_data`` one cycle later."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        words = parameters.words
        frames = {f"rx_{port}": In(stream.Signature(Beat(words))) for port in range(parameters.ports)}
        super().__init__(
            {
                **frames,
                "arrival": Out(arrival_layout(parameters)),
                "there": Out(1),
                "taken": In(1),
                "address": In(range(parameters.foreign_beats)),
                "beat_data": Out(32 * words),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        p = self.parameters
        words, beats_max = p.words, p.foreign_beats
        m = Module()
        m.submodules.align = align = Align(words)
        m.submodules.check = check = IcrcCheck(words)
        m.submodules.parser = parser = Parser()
        m.submodules.staging = staging = memory.Memory(shape=32 * words, depth=2 * beats_max, init=[])
        write, read = staging.write_port(), staging.read_port(domain="sync")

        # ---- ports in turn: one frame at a time goes through the aligner ---------------------------
        inputs = [getattr(self, f"rx_{port}") for port in range(p.ports)]
        wants = Signal(p.ports)
        chosen, busy = Signal(range(p.ports)), Signal()
        m.d.comb += wants.eq(Cat(one.valid for one in inputs))
        following = Signal(range(p.ports))
        for step in range(p.ports, 0, -1):  # the nearest one wins: it is assigned last
            for port in range(p.ports):
                with m.If((chosen == (port - step) % p.ports) & wants[port]):
                    m.d.comb += following.eq(port)
        held = Signal()  # a frame is complete and waits for its turn
        from_port = Signal(range(p.ports))
        with m.If(~busy), m.If(wants.any() & ~held):
            m.d.sync += [busy.eq(1), chosen.eq(following)]
        valid = Array([one.valid for one in inputs])[chosen]
        payload = Array([one.payload.as_value() for one in inputs])[chosen]
        beat_in = Signal(Beat(words))
        m.d.comb += beat_in.as_value().eq(payload)
        m.d.comb += [
            align.input.payload.as_value().eq(payload),
            align.input.valid.eq(valid & busy),
        ]
        for port, one in enumerate(inputs):
            m.d.comb += one.ready.eq(busy & (chosen == port) & align.input.ready)
        with m.If(busy & valid & align.input.ready & beat_in.last):
            m.d.sync += [busy.eq(0), from_port.eq(chosen)]

        # ---- into the staging buffer, the head, and the check --------------------------------------
        buffer = Signal()
        index = Signal(range(beats_max + 1))
        head = Signal(32 * p.head_words)
        length, last_bytes = Signal(16), Signal(range(p.bus_bytes + 1))
        out = align.output
        took = Signal()
        fits = Signal()
        m.d.comb += [
            out.ready.eq(~held),
            took.eq(out.valid & out.ready),
            fits.eq(index < beats_max),
            write.addr.eq(Mux(buffer, beats_max, 0) + index),
            write.data.eq(out.payload.data),
            write.en.eq(took & fits),
            check.valid.eq(took),
            check.beat.eq(out.payload),
            parser.head.eq(head),
            parser.frame_bytes.eq(length),
        ]
        tree_parser = TreeParser() if p.trees else None
        if tree_parser is not None:
            m.submodules.tree_parser = tree_parser
            m.d.comb += [tree_parser.head.eq(head), tree_parser.seen.eq(parser.seen)]
        passed = Signal(16)  # bytes of the beats before
        with m.If(took):
            with m.If(out.payload.first):
                m.d.sync += head.eq(out.payload.data)
            for beat in range(1, -(-p.head_words // words)):
                at = 32 * words * beat
                with m.If(~out.payload.first & (index == beat)):
                    m.d.sync += head[at : at + 32 * words].eq(out.payload.data)
            m.d.sync += [index.eq(Mux(fits, index + 1, index)), passed.eq(passed + p.bus_bytes)]
            with m.If(out.payload.last):
                m.d.sync += [
                    held.eq(1),
                    length.eq(passed + out.payload.bytes - SHIFT_BYTES),
                    last_bytes.eq(out.payload.bytes),
                ]

        # ---- a complete frame becomes an arrival once the check is through -------------------------
        checked, intact, parsed = Signal(), Signal(), Signal()
        overlong = Signal()
        with m.If(took & ~fits):
            m.d.sync += overlong.eq(1)
        with m.If(check.done):
            m.d.sync += [checked.eq(1), intact.eq(check.ok)]
        m.d.sync += parsed.eq(held)  # the parser has had a cycle
        again = Signal()
        with m.If(self.taken):
            m.d.sync += self.there.eq(0)
        with m.If(held & checked & parsed & (~self.there | overlong)):
            m.d.comb += again.eq(1)
            with m.If(~overlong):
                if tree_parser is not None:
                    m.d.sync += self.arrival.more.eq(tree_parser.more)
                m.d.sync += [
                    self.arrival.seen.eq(parser.seen),
                    self.arrival.intact.eq(intact),
                    self.arrival.port.eq(from_port),
                    self.arrival.buffer.eq(buffer),
                    self.arrival.beats.eq(index),
                    self.arrival.last_bytes.eq(last_bytes),
                    self.there.eq(1),
                    buffer.eq(~buffer),
                ]
        with m.If(again):
            m.d.sync += [held.eq(0), checked.eq(0), index.eq(0), passed.eq(0), overlong.eq(0), parsed.eq(0)]

        m.d.comb += [
            read.addr.eq(Mux(self.arrival.buffer, beats_max, 0) + self.address),
            self.beat_data.eq(read.data),
            self.idle.eq(~busy & ~held & ~self.there & ~out.valid & (index == 0)),
        ]
        return m
