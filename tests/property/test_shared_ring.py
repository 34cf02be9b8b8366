"""Rings in shared memory against a model: what was taken comes once, whole, in order, and stays until the
next ``take``; with anything at all in that memory, nothing outside it is touched."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inaproto.units import FRAME_BYTES_MAX, Frames
from inaproto_adapters.frames import compiled_ports
from inaproto_adapters.frames.shared_ring import (
    DATA_BYTES_MIN,
    HEAD_AT,
    SLEEPS_AT,
    TABLE_AT,
    TAIL_AT,
    LendingWriter,
    Reads,
    RingBroken,
    RingReader,
    RingShape,
    RingWriter,
    Writes,
    _CompiledReader,
)

GUARD = 4096
BLOCK = st.tuples(
    st.integers(1, 40),
    st.one_of(st.sampled_from([14, 62, 62, 1082, FRAME_BYTES_MAX]), st.integers(14, FRAME_BYTES_MAX)),
    st.integers(0, 3),
)
"""Frames, their length, and bytes between them."""
PUSH = st.lists(BLOCK, min_size=1, max_size=6)
STEPS = st.lists(st.one_of(PUSH, st.none()), max_size=30)
"""What is pushed together; None: a ``take``."""
SHAPES = st.builds(RingShape, st.integers(1, 12), st.integers(DATA_BYTES_MIN, DATA_BYTES_MIN + 40_000))
SIDES = list(itertools.product((True, False), repeat=2))
"""Whether writer and reader are compiled."""


class Ring:
    """Both sides of a ring, and memory before and behind it that nobody may touch."""

    def __init__(self, shape: RingShape, sides: tuple[bool, bool], bytes_max: int) -> None:
        whole = np.zeros(2 * GUARD + shape.nbytes + 64, np.uint8)
        begin = GUARD + -(whole.ctypes.data + GUARD) % 64
        self.guards = whole[:begin], whole[begin + shape.nbytes :]
        for guard in self.guards:
            guard[:] = 0xA5
        self.memory: Frames = whole[begin : begin + shape.nbytes]
        self.shape = shape
        calls = compiled_ports.active()
        assert calls is not None
        self.writer: Writes = (
            LendingWriter(calls, self.memory, shape) if sides[0] else RingWriter(self.memory, shape)
        )
        self.reader: Reads = (
            _CompiledReader(calls, self.memory, shape, bytes_max)
            if sides[1]
            else RingReader(self.memory, shape, bytes_max)
        )

    def check(self) -> None:
        for guard in self.guards:
            assert (guard == 0xA5).all()


def blocks_of(wanted: list[tuple[int, int, int]], numbers: Iterator[int]) -> list[Frames]:
    """Frames that tell their numbers; some with other bytes between them."""
    found: list[Frames] = []
    for n, length, between in wanted:
        frames = np.zeros((n, length + between), np.uint8)[:, :length]
        frames[:, :8] = np.fromiter(itertools.islice(numbers, n), ">u8", n)[:, None].view(np.uint8)
        frames[:, 8:] = frames[:, 7:8]
        found.append(frames)
    return found


def rows(blocks: list[Frames]) -> list[bytes]:
    return [row.tobytes() for block in blocks for row in block]


@pytest.mark.parametrize("sides", SIDES)
@settings(max_examples=120, deadline=None)
@given(shape=SHAPES, steps=STEPS, bytes_max=st.integers(1, 60_000))
def test_what_was_taken_comes_once_in_order_and_stays(
    sides: tuple[bool, bool], shape: RingShape, steps: list[list[tuple[int, int, int]] | None], bytes_max: int
) -> None:
    ring = Ring(shape, sides, bytes_max)
    waiting: deque[bytes] = deque()
    held: list[Frames] = []
    numbers = itertools.count()
    for step in [*steps, None, None]:
        before = rows(held)
        if step is not None:
            blocks = blocks_of(step, numbers)
            written = ring.writer.push(blocks)
            accepted = rows(blocks)[: written.frames]
            assert written.nbytes == sum(map(len, accepted))
            waiting.extend(accepted)
            assert rows(held) == before
        else:
            held, frames, nbytes = ring.reader.take()
            got = rows(held)
            assert (frames, nbytes) == (len(got), sum(map(len, got)))
            assert got == [waiting.popleft() for _ in got]
            assert got or not waiting
    while waiting:
        got = rows(ring.reader.take()[0])
        assert got
        assert got == [waiting.popleft() for _ in got]
    ring.check()


@pytest.mark.parametrize("sides", SIDES)
@given(shape=SHAPES)
def test_an_empty_ring_takes_the_longest_frame_however_often(
    sides: tuple[bool, bool], shape: RingShape
) -> None:
    ring = Ring(shape, sides, 1)
    for number in range(3 * shape.chunks + shape.slots):
        frame = np.full((1, FRAME_BYTES_MAX), number & 0xFF, np.uint8)
        assert ring.writer.push([frame]).frames == 1
        (block,), _, _ = ring.reader.take()
        assert (block == frame).all()
        if shape.slots == 1:
            ring.reader.take()
    ring.check()


@settings(max_examples=60, deadline=None)
@given(shape=SHAPES, steps=STEPS)
def test_the_compiled_writer_takes_what_the_other_takes(
    shape: RingShape, steps: list[list[tuple[int, int, int]] | None]
) -> None:
    rings = [Ring(shape, (compiled, False), 1 << 20) for compiled in (True, False)]
    for step in steps:
        if step is None:
            for ring in rings:
                ring.reader.take()
            continue
        blocks = blocks_of(step, itertools.count())
        first, second = (ring.writer.push(blocks) for ring in rings)
        assert (first.frames, first.nbytes) == (second.frames, second.nbytes)
    for at, nbytes in ((HEAD_AT, 8), (TAIL_AT, 8), (TABLE_AT, shape.slots * 16)):
        one, other = (ring.memory[at : at + nbytes].tobytes() for ring in rings)
        assert one == other


@pytest.mark.parametrize("sides", SIDES)
@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_a_reader_that_found_nothing_is_told_of_once(
    sides: tuple[bool, bool], steps: list[list[tuple[int, int, int]] | None]
) -> None:
    """And where either has no barriers, always."""
    ring = Ring(RingShape(64, 16 * DATA_BYTES_MIN), sides, 1 << 30)
    sleeps = always = not sides[0]
    for step in steps:
        if step is None:
            always = not all(sides)
            sleeps = not ring.reader.take()[1] or always
            continue
        written = ring.writer.push(blocks_of(step, itertools.count()))
        assert written.wakes == (sleeps and written.frames > 0)
        sleeps = sleeps and (always or not written.frames)


@pytest.mark.parametrize("sides", SIDES)
@settings(max_examples=200, deadline=None)
@given(
    shape=SHAPES,
    steps=st.lists(st.one_of(PUSH, st.none(), st.integers(0, 2**32)), max_size=20),
    data=st.data(),
)
def test_whatever_is_in_the_memory_nothing_outside_is_touched(
    sides: tuple[bool, bool],
    shape: RingShape,
    steps: list[list[tuple[int, int, int]] | int | None],
    data: st.DataObject,
) -> None:
    words = st.one_of(st.integers(0, 64), st.integers(0, 2**64 - 1), st.sampled_from([2**63, 2**64 - 1]))
    ring = Ring(shape, sides, 50_000)
    places = [HEAD_AT, TAIL_AT, SLEEPS_AT, *range(TABLE_AT, TABLE_AT + 16 * shape.slots, 8)]
    for step in steps:
        try:
            if isinstance(step, int):
                at = data.draw(st.sampled_from(places))
                ring.memory[at : at + 8] = np.frombuffer(data.draw(words).to_bytes(8, "little"), np.uint8)
            elif step is None:
                blocks, frames, _ = ring.reader.take()
                assert frames == sum(map(len, blocks))
                for block in blocks:
                    assert np.shares_memory(block, ring.memory)
                    assert block.ctypes.data >= ring.memory.ctypes.data + shape.data_at
                    end = block.ctypes.data + block.size
                    assert end <= ring.memory.ctypes.data + shape.data_at + shape.data_bytes
            else:
                ring.writer.push(blocks_of(step, itertools.count()))
        except RingBroken:
            break
    ring.check()
