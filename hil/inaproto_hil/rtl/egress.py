"""Frames that wait at the ports: one writer fills the ports' queues, and each port empties its own.

Results and other traffic leave through the same queues (NetReduce section 4).

Invariants:

- A frame is offered only once all of it is there, so the reader never waits inside a frame for the writer.
- Frames leave a port in the order in which they were written. A port whose reader stands still stops no other
  port; it is the writer that looks at ``room`` of all ports it wants.
- The writer never waits. A port with ``room`` has it for ``slack`` frames of the writer's pipeline too, so
  nothing is ever overwritten.
"""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from inaproto.errors import LocalMisuse
from inaproto_hil.rtl.layout import Beat


class FrameFifo(wiring.Component):
    """One port's queue. A beat with ``valid`` is taken at once. A frame is offered from the second cycle on
    after its last beat, a beat every cycle.

    ``room``: at least ``reserve`` beats are free; what is written in the same cycle still counts as free.
    """

    def __init__(self, words: int, depth: int, reserve: int) -> None:
        if depth < 2 or depth & (depth - 1) or not 0 < reserve <= depth:
            raise LocalMisuse(f"a queue of {depth} beats, {reserve} in reserve: powers of two are possible")
        self._beat = Beat(words)
        self._depth = depth
        self._reserve = reserve
        super().__init__(
            {
                "valid": In(1),
                "beat": In(self._beat),
                "room": Out(1),
                "tx": Out(stream.Signature(self._beat)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.beats = beats = memory.Memory(shape=self._beat, depth=self._depth, init=[])
        write, read = beats.write_port(), beats.read_port()

        # Counts modulo twice the depth: what is full differs from what is empty.
        written = Signal(range(2 * self._depth))
        whole = Signal.like(written)
        fetched = Signal.like(written)
        after = (written + 1)[: len(written)]
        m.d.comb += [
            write.addr.eq(written),
            write.data.eq(self.beat),
            write.en.eq(self.valid),
            self.room.eq((written - fetched)[: len(written)] <= self._depth - self._reserve),
        ]
        with m.If(self.valid):
            m.d.sync += written.eq(after)
            with m.If(self.beat.last):
                m.d.sync += whole.eq(after)

        # The memory's own output register is the stage that is offered: it keeps its beat until it is taken.
        m.d.comb += [
            read.addr.eq(fetched),
            read.en.eq((fetched != whole) & (~self.tx.valid | self.tx.ready)),
            self.tx.payload.eq(read.data),
        ]
        with m.If(read.en):
            m.d.sync += [fetched.eq(fetched + 1), self.tx.valid.eq(1)]
        with m.Elif(self.tx.ready):
            m.d.sync += self.tx.valid.eq(0)
        return m


class Egress(wiring.Component):
    """The queues of all ports; ``tx_0`` and so on are what they offer.

    ``frame_beats``: of the longest frame. ``beat`` goes to all ports of ``mask``, which is the same for all
    beats of a frame; to none if it is 0. The writer may decide on a frame in a cycle in which all of its
    ports have ``room``, while at most ``slack`` frames it decided on before have beats now or later.
    """

    def __init__(self, words: int, ports: int, frame_beats: int, slack: int = 1) -> None:
        if slack < 0:
            raise LocalMisuse(f"a slack of {slack} frames")
        self._words = words
        self._ports = ports
        self._reserve = (slack + 1) * frame_beats
        self.depth = 1 << (max(4, slack + 2) * frame_beats - 1).bit_length()
        """Beats that each port's queue has room for: of four frames at least."""
        tx = Out(stream.Signature(Beat(words)))
        super().__init__(
            {
                "valid": In(1),
                "beat": In(Beat(words)),
                "mask": In(ports),
                "room": Out(ports),
                **{f"tx_{port}": tx for port in range(ports)},
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for port in range(self._ports):
            fifo = FrameFifo(self._words, self.depth, self._reserve)
            m.submodules[f"fifo_{port}"] = fifo
            m.d.comb += [
                fifo.valid.eq(self.valid & self.mask[port]),
                fifo.beat.eq(self.beat),
                self.room[port].eq(fifo.room),
            ]
            wiring.connect(m, fifo.tx, wiring.flipped(getattr(self, f"tx_{port}")))
        return m
