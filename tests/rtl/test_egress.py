# amaranth: UnusedElaboratable=no
"""Frames leave each port whole and in order, whenever its reader takes them, and none is ever overwritten."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import pytest

pytest.importorskip("amaranth")

from amaranth.sim import Simulator

from inaproto.errors import LocalMisuse
from inaproto_hil.rtl.egress import Egress, FrameFifo
from inaproto_hil.rtl.layout import Beat

_LATENCY: Final = 2
"""Cycles from a frame's last beat to the first cycle in which the frame is offered."""


@dataclass
class Frame:
    mask: int
    beats: deque[int]
    not_before: int
    """Cycle of its first beat, at the earliest."""


@dataclass
class Awaited:
    """What is still to come at a port, and from when on each beat is offered if none is in front of it."""

    beats: deque[int] = field(default_factory=deque)
    incomplete: list[int] = field(default_factory=list)
    offered_from: deque[int] = field(default_factory=deque)


class Bench:
    """Goes through cycles: a writer that keeps the rules, a reader at each port, and what must be seen."""

    def __init__(
        self, ctx: Any, dut: Egress, random: Random, *, words: int, ports: int, beats_max: int
    ) -> None:
        self._ctx = ctx
        self._dut = dut
        self._random = random
        self._layout = Beat(words)
        self._bytes = 4 * words
        self._tx = [getattr(dut, f"tx_{port}") for port in range(ports)]
        self._beats_max = beats_max
        self._decided: deque[Frame] = deque()
        self._awaited = [Awaited() for _ in range(ports)]
        self._cycle = 0
        self.taken = [0] * ports
        self.written = 0

    @property
    def is_empty(self) -> bool:
        return not self._decided and not any(awaited.beats for awaited in self._awaited)

    def frame(self, mask: int, count: int, delay: int) -> Frame:
        random = self._random
        beats: deque[int] = deque()
        for number in range(count):
            last = number == count - 1
            size = random.randint(1, self._bytes) if last else self._bytes
            beat = {
                "data": random.getrandbits(8 * size),
                "bytes": size,
                "first": number == 0,
                "last": last,
            }
            beats.append(self._layout.const(beat).as_bits())
        return Frame(mask, beats, self._cycle + 1 + delay)

    async def cycle(
        self,
        slack: int,
        *,
        masks: list[int],
        ready: float | list[float],
        gaps: float = 0.2,
        delay_max: int = 3,
        beats_min: int = 1,
    ) -> None:
        """One clock cycle; no frame is begun without ``masks``."""
        unfinished = len(self._decided)
        self._write(gaps)
        if masks and unfinished <= slack:
            mask = self._random.choice(masks)
            if self._ctx.get(self._dut.room) & mask == mask:
                count = self._random.choice(
                    [self._random.randint(beats_min, self._beats_max), self._beats_max]
                )
                self._decided.append(self.frame(mask, count, self._random.randint(0, delay_max)))
        for port, tx in enumerate(self._tx):
            chance = ready[port] if isinstance(ready, list) else ready
            self._read(port, tx, self._random.random() < chance)
        await self._ctx.tick()
        self._cycle += 1

    def _write(self, gaps: float) -> None:
        dut, frame = self._dut, self._decided[0] if self._decided else None
        is_next = frame is not None and self._cycle >= frame.not_before and self._random.random() >= gaps
        self._ctx.set(dut.valid, is_next)
        if frame is None or not is_next:
            # What stands at the inputs without ``valid`` is nobody's.
            self._ctx.set(dut.mask, self._random.getrandbits(len(self._tx)))
            return
        beat = frame.beats.popleft()
        self._ctx.set(dut.mask, frame.mask)
        self._ctx.set(dut.beat.as_value(), beat)
        for port, awaited in enumerate(self._awaited):
            if frame.mask >> port & 1:
                awaited.incomplete.append(beat)
                if not frame.beats:
                    awaited.beats.extend(awaited.incomplete)
                    awaited.offered_from.extend([self._cycle + _LATENCY] * len(awaited.incomplete))
                    awaited.incomplete.clear()
        if not frame.beats:
            self._decided.popleft()
            self.written += 1

    def _read(self, port: int, tx: Any, ready: bool) -> None:
        """A complete frame is always offered, a beat every cycle; an incomplete one never is."""
        awaited = self._awaited[port]
        self._ctx.set(tx.ready, ready)
        is_offered = bool(self._ctx.get(tx.valid))
        assert is_offered == (bool(awaited.beats) and awaited.offered_from[0] <= self._cycle)
        if is_offered:
            assert self._ctx.get(tx.payload.as_value()) == awaited.beats[0]
            if ready:
                awaited.offered_from.popleft()
                awaited.beats.popleft()
                self.taken[port] += 1


def _run(
    words: int,
    ports: int,
    beats_max: int,
    slack: int,
    test: Callable[[Bench, Egress], Any],
) -> None:
    dut = Egress(words, ports, beats_max, slack)
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)

    async def testbench(ctx: Any) -> None:
        random = Random(f"{words} {ports} {beats_max} {slack}")
        bench = Bench(ctx, dut, random, words=words, ports=ports, beats_max=beats_max)
        await test(bench, dut)
        for _ in range(2 * dut.depth + 100):
            await bench.cycle(slack, masks=[], ready=1)
        assert bench.is_empty

    simulator.add_testbench(testbench)
    simulator.run()


@pytest.mark.parametrize(
    ("words", "ports", "beats_max", "slack"), [(2, 4, 7, 1), (4, 3, 5, 2), (16, 2, 3, 1), (4, 2, 8, 0)]
)
def test_random_traffic(words: int, ports: int, beats_max: int, slack: int) -> None:
    every = range(1 << ports)

    async def test(bench: Bench, dut: Egress) -> None:
        for phase in range(8):
            # Slow readers fill queues, fast ones empty them; in between each port has its own pace.
            ready = [[0.1, 0.5, 0.9, 1.0][(phase + port) % 4] for port in range(ports)]
            gaps = [0.0, 0.3][phase % 2]
            for _ in range(120):
                await bench.cycle(slack, masks=list(every), ready=ready, gaps=gaps)
        assert bench.written > 60
        assert min(bench.taken) > 100

    _run(words, ports, beats_max, slack, test)


@pytest.mark.parametrize("slack", [0, 1, 3])
def test_a_port_that_nobody_reads_is_filled_and_others_go_on(slack: int) -> None:
    ports, beats_max = 3, 6

    async def test(bench: Bench, dut: Egress) -> None:
        for _ in range(3 * dut.depth):
            await bench.cycle(
                slack, masks=[0b011], ready=0, gaps=0, delay_max=2 * beats_max, beats_min=beats_max
            )
        # All that may be taken in while a frame and the slack have room; one beat is in front of the memory.
        assert bench.written >= (dut.depth + 1) // beats_max - slack
        filled = bench.written
        for _ in range(dut.depth):
            await bench.cycle(slack, masks=[0b011, 0b111], ready=[0, 1, 1])
        assert bench.written == filled
        for _ in range(3 * dut.depth):
            await bench.cycle(slack, masks=[0b110, 0b100], ready=[0, 1, 1])
        assert bench.written > filled + 5

    _run(4, ports, beats_max, slack, test)


def test_frames_follow_each_other_without_a_gap() -> None:
    async def test(bench: Bench, dut: Egress) -> None:
        for _ in range(300):
            await bench.cycle(1, masks=[0b01], ready=1, gaps=0, delay_max=0, beats_min=4)
        assert bench.taken[0] > 280

    _run(2, 2, 4, 1, test)


def test_a_frame_for_no_port_is_taken_and_gone() -> None:
    async def test(bench: Bench, dut: Egress) -> None:
        for _ in range(100):
            await bench.cycle(1, masks=[0], ready=1)
        assert bench.written > 5
        assert bench.taken == [0, 0]

    _run(4, 2, 5, 1, test)


@pytest.mark.parametrize(("beats", "slack", "depth"), [(5, 1, 32), (8, 2, 32), (9, 1, 64), (8, 3, 64)])
def test_a_queue_has_room_for_four_frames(beats: int, slack: int, depth: int) -> None:
    assert Egress(4, 2, beats, slack).depth == depth


@pytest.mark.parametrize("reserve", [3, 8])
def test_room_is_there_as_long_as_the_reserve_is_free(reserve: int) -> None:
    dut = FrameFifo(2, 8, reserve)
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)

    async def testbench(ctx: Any) -> None:
        for used in range(8):
            assert ctx.get(dut.room) == (8 - used >= reserve)
            ctx.set(dut.valid, 1)
            ctx.set(dut.beat.last, used == 7)
            await ctx.tick()
        ctx.set(dut.valid, 0)
        ctx.set(dut.tx.ready, 1)
        for used in range(8, -1, -1):
            assert ctx.get(dut.room) == (8 - used >= reserve)
            await ctx.tick()

    simulator.add_testbench(testbench)
    simulator.run()


def test_sizes_that_no_queue_has() -> None:
    with pytest.raises(LocalMisuse):
        FrameFifo(4, 24, 8)
    with pytest.raises(LocalMisuse):
        FrameFifo(4, 16, 17)
    with pytest.raises(LocalMisuse):
        Egress(4, 2, 8, -1)
