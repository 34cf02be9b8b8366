"""Frames are shifted by two bytes and back, whatever their length and whoever stalls."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

pytest.importorskip("amaranth")

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.sim import Simulator

from inaproto_hil.rtl.align import Align, Unalign
from inaproto_hil.rtl.layout import Beat
from tests.rtl.frames import aligned, beats


@dataclass
class Watched:
    """The transfers of a stream, as bits, and the cycles at which they were."""

    beats: list[int] = field(default_factory=list)
    cycles: list[int] = field(default_factory=list)


def bits(frames: list[bytes], words: int) -> list[int]:
    layout = Beat(words)
    return [layout.const(beat).as_value().value for frame in frames for beat in beats(frame, words)]


def run(
    m: Module,
    source: Any,
    streams: list[Any],
    sink: Any,
    came: list[int],
    count: int,
    stalls: tuple[float, float],
) -> list[Watched]:
    """Send ``came`` until ``count`` beats are out; source and sink stall at random."""
    rng = Random(len(came))
    watched = [Watched() for _ in streams]

    async def produce(ctx: Any) -> None:
        for beat in came:
            while rng.random() < stalls[0]:
                await ctx.tick()
            ctx.set(source.payload.as_value(), beat)
            ctx.set(source.valid, 1)
            await ctx.tick().until(source.ready)
            ctx.set(source.valid, 0)
            ctx.set(source.payload.as_value(), rng.getrandbits(len(source.payload.as_value())))

    async def consume(ctx: Any) -> None:
        while True:
            ctx.set(sink.ready, rng.random() >= stalls[1])
            await ctx.tick()

    async def watch(ctx: Any) -> None:
        offered: list[int | None] = [None] * len(streams)
        signals = [signal for s in streams for signal in (s.valid, s.ready, s.payload.as_value())]
        cycle = 0
        while len(watched[-1].beats) < count:
            _, _, *values = await ctx.tick().sample(*signals)
            for index, seen in enumerate(watched):
                valid, ready, payload = values[3 * index : 3 * index + 3]
                assert offered[index] is None or (valid and payload == offered[index]), "taken back"
                offered[index] = payload if valid and not ready else None
                if valid and ready:
                    seen.beats.append(payload)
                    seen.cycles.append(cycle)
            cycle += 1
            assert cycle < 100 + 10 * (len(came) + count), "it hangs"

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(produce, background=True)
    simulator.add_testbench(consume, background=True)
    simulator.add_testbench(watch)
    simulator.run()
    return watched


def random_frames(seed: int, lengths: list[int]) -> list[bytes]:
    rng = Random(seed)
    return [rng.randbytes(length) for length in lengths]


@pytest.mark.parametrize("words", [2, 4, 16])
@pytest.mark.parametrize("stalls", [(0.0, 0.0), (0.4, 0.0), (0.0, 0.4), (0.4, 0.4)])
def test_there_and_back_for_all_lengths(words: int, stalls: tuple[float, float]) -> None:
    lengths = [*range(1, 201)]
    Random(words).shuffle(lengths)
    if words == 2 and stalls != (0.4, 0.4):  # its frames have the most beats
        lengths = [length for length in lengths if length <= 50]
    frames = random_frames(words, lengths)
    m = Module()
    m.submodules.align = align = Align(words)
    m.submodules.unalign = unalign = Unalign(words)
    wiring.connect(m, align.output, unalign.input)

    plain, shifted = bits(frames, words), bits([aligned(frame) for frame in frames], words)
    middle, out = run(
        m, align.input, [align.output, unalign.output], unalign.output, plain, len(plain), stalls
    )
    assert middle.beats == shifted
    assert out.beats == plain
    if stalls == (0.0, 0.0):
        assert middle.cycles == [*range(len(shifted))], "a beat each cycle"


@pytest.mark.parametrize("words", [2, 4])
def test_unalign_takes_a_beat_each_cycle(words: int) -> None:
    frames = random_frames(1, [1, 2, 5, 6, 7, 8, 9, 13, 14, 15, 16, 17, 1, 1, 100, 30, 32, 6, 14])
    m = Module()
    m.submodules.unalign = unalign = Unalign(words)
    shifted, plain = bits([aligned(frame) for frame in frames], words), bits(frames, words)
    streams = [unalign.input, unalign.output]
    came, out = run(m, unalign.input, streams, unalign.output, shifted, len(plain), (0.0, 0.0))
    assert came.cycles == [*range(len(shifted))]
    assert out.beats == plain


def test_unalign_swallows_what_has_nothing_behind_its_two_bytes() -> None:
    frames = [bytes(2), aligned(b"a"), bytes(1), bytes(2), aligned(bytes(14)), bytes(2), aligned(b"bc")]
    m = Module()
    m.submodules.unalign = unalign = Unalign(4)
    came, plain = bits(frames, 4), bits([b"a", bytes(14), b"bc"], 4)
    (out,) = run(m, unalign.input, [unalign.output], unalign.output, came, len(plain), (0.0, 0.3))
    assert out.beats == plain


@pytest.mark.parametrize("block", [Align, Unalign])
def test_valid_does_not_wait_for_ready(block: Any) -> None:
    """Two blocks of which each waits for the other would wait for ever."""
    unit = block(2)

    async def bench(ctx: Any) -> None:
        for beat in beats(bytes(range(1, 12)), 2):
            ctx.set(unit.input.payload, beat)
            ctx.set(unit.input.valid, 1)
            if not ctx.get(unit.input.ready):
                break
            await ctx.tick()  # the block keeps one
        assert ctx.get(unit.output.valid)
        ctx.set(unit.output.ready, 1)
        assert ctx.get(unit.output.valid)

    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
