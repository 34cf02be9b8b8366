"""Cutting a byte stream into frames and laying frames out as one, against the obvious loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.units import FRAME_BYTES_MAX
from inaproto_adapters.frames.framing import RUNS_MAX, FrameReader, OutputQueue

FRAME_BYTES = 100
"""Short frames and a short buffer bring the ends of both into every example."""

runs = st.lists(
    st.tuples(st.integers(1, FRAME_BYTES), st.integers(1, 80)).map(lambda run: [run[0]] * run[1]), max_size=12
).map(lambda lengths: [length for run in lengths for length in run])


def frame(number: int, length: int) -> bytes:
    return bytes((number * 31 + at) & 0xFF for at in range(length))


def encode(frames: list[bytes]) -> bytes:
    return b"".join(len(data).to_bytes(4, "big") + data for data in frames)


def read(reader: FrameReader, stream: bytes, cuts: list[int]) -> list[bytes]:
    """Feed ``stream`` in pieces of the sizes of ``cuts``, over and over; returns the frames, copied."""
    got: list[bytes] = []
    at = step = 0
    while at < len(stream) and reader.fault is None:
        room = reader.free()
        size = min(len(room), cuts[step % len(cuts)], len(stream) - at)
        room[:size] = stream[at : at + size]
        at += size
        step += 1
        blocks = reader.take(size)
        got.extend(row.tobytes() for block in blocks for row in block)
        while reader.more:
            blocks = reader.take(0)
            got.extend(row.tobytes() for block in blocks for row in block)
    return got


@given(lengths=runs, cuts=st.lists(st.integers(1, 3000), min_size=1, max_size=8))
def test_any_cut_of_the_stream_gives_the_same_frames(lengths: list[int], cuts: list[int]) -> None:
    frames = [frame(number, length) for number, length in enumerate(lengths)]
    reader = FrameReader(frame_bytes_max=FRAME_BYTES, buffer_bytes=2 * (FRAME_BYTES + 4))
    assert read(reader, encode(frames), cuts) == [data for data in frames if len(data) >= 14]
    assert reader.runts == sum(len(data) < 14 for data in frames)
    assert reader.end() is None


@given(
    lengths=runs, kept=st.integers(0, 1 << 16), cuts=st.lists(st.integers(1, 3000), min_size=1, max_size=4)
)
def test_end_of_the_stream_names_what_it_cut_off(lengths: list[int], kept: int, cuts: list[int]) -> None:
    frames = [frame(number, length) for number, length in enumerate(lengths)]
    stream = encode(frames)[:kept]
    reader = FrameReader(frame_bytes_max=FRAME_BYTES, buffer_bytes=2048)
    got = read(reader, stream, cuts)
    whole = [data for at, data in enumerate(frames) if len(encode(frames[: at + 1])) <= len(stream)]
    assert got == [data for data in whole if len(data) >= 14]
    tail = len(stream) - len(encode(whole))
    if tail == 0:
        assert reader.end() is None
    elif tail < 4:
        assert reader.end() == f"the stream ended inside a length prefix: {tail} of 4 bytes arrived"
    else:
        due = len(frames[len(whole)])
        assert reader.end() == f"the stream ended inside a frame: {tail - 4} of {due} bytes arrived"


@given(
    lengths=runs,
    bad=st.sampled_from([0, FRAME_BYTES + 1, 0x7FFFFFFF, 0xFFFFFFFF])
    | st.integers(FRAME_BYTES + 1, 0xFFFFFFFF),
    rest=st.binary(max_size=50),
    cuts=st.lists(st.integers(1, 3000), min_size=1, max_size=4),
)
def test_bad_length_ends_the_stream_after_the_frames_before_it(
    lengths: list[int], bad: int, rest: bytes, cuts: list[int]
) -> None:
    frames = [frame(number, length) for number, length in enumerate(lengths)]
    reader = FrameReader(frame_bytes_max=FRAME_BYTES, buffer_bytes=2048)
    got = read(reader, encode(frames) + bad.to_bytes(4, "big") + rest, cuts)
    assert got == [data for data in frames if len(data) >= 14]
    assert reader.fault is not None
    assert f"a frame of {bad} bytes" in reader.fault
    assert bad.to_bytes(4, "big").hex(" ") in reader.fault


@given(stream=st.binary(max_size=3000), cuts=st.lists(st.integers(1, 500), min_size=1, max_size=4))
def test_garbage_gives_only_what_can_be_frames(stream: bytes, cuts: list[int]) -> None:
    reader = FrameReader(frame_bytes_max=FRAME_BYTES, buffer_bytes=2048)
    for data in read(reader, stream, cuts):
        assert 14 <= len(data) <= FRAME_BYTES


def test_equal_frames_are_one_view_of_the_receive_buffer() -> None:
    reader = FrameReader(frame_bytes_max=FRAME_BYTES_MAX, buffer_bytes=1 << 20)
    lengths = [1098] + [1082] * 166 + [1086]
    stream = encode([frame(number, length) for number, length in enumerate(lengths)])
    room = reader.free()
    room[: len(stream)] = stream
    blocks = reader.take(len(stream))
    assert [block.shape for block in blocks] == [(1, 1098), (166, 1082), (1, 1086)]
    assert blocks[1].strides == (1086, 1)
    assert all(np.shares_memory(block, np.frombuffer(room, dtype=np.uint8)) for block in blocks)


@pytest.mark.parametrize("n", [1, 2, 3, 33, 34, 35, 289, 290, 291, 2000])
def test_run_ends_exactly_where_the_length_changes(n: int) -> None:
    reader = FrameReader(frame_bytes_max=FRAME_BYTES_MAX, buffer_bytes=1 << 20)
    stream = encode([bytes(20)] * n + [bytes(21)] * 2)
    reader.free()[: len(stream)] = stream
    assert [block.shape for block in reader.take(len(stream))] == [(n, 20), (2, 21)]


def test_frames_of_alternating_lengths_are_returned_in_bounded_portions() -> None:
    reader = FrameReader(frame_bytes_max=FRAME_BYTES_MAX, buffer_bytes=1 << 20)
    stream = encode([bytes(14), bytes(15)] * 1000)
    reader.free()[: len(stream)] = stream
    portions = [len(reader.take(len(stream)))]
    while reader.more:
        portions.append(len(reader.take(0)))
    assert sum(portions) == 2000
    assert max(portions) == RUNS_MAX


@given(
    pushes=st.lists(st.tuples(st.integers(1, FRAME_BYTES), st.integers(0, 60)), max_size=10),
    writes=st.lists(st.integers(1, 700), min_size=1, max_size=5),
    bytes_max=st.integers(FRAME_BYTES + 4, 5000),
)
def test_output_is_the_stream_of_what_was_accepted(
    pushes: list[tuple[int, int]], writes: list[int], bytes_max: int
) -> None:
    queue = OutputQueue(bytes_max=bytes_max, chunk_bytes=2 * (FRAME_BYTES + 4))
    written, expected = b"", b""
    waiting = 0
    for step, (length, n) in enumerate(pushes):
        frames = [frame(step + row, length) for row in range(n)]
        room = (bytes_max - waiting) // (length + 4)
        accepted = queue.push(np.array([list(data) for data in frames], dtype=np.uint8).reshape(n, length))
        assert accepted == min(n, room)
        expected += encode(frames[:accepted])
        waiting += accepted * (length + 4)
        assert queue.bytes == waiting <= bytes_max
        if queue.bytes:
            head = queue.head()
            size = min(len(head), writes[step % len(writes)])
            written += bytes(head[:size])
            queue.written(size)
            waiting -= size
    while queue.bytes:
        head = queue.head()
        written += bytes(head)
        queue.written(len(head))
    assert written == expected


def test_cleared_queue_starts_again() -> None:
    queue = OutputQueue(bytes_max=1000, chunk_bytes=512)
    queue.push(np.zeros((3, 60), dtype=np.uint8))
    queue.clear()
    assert queue.bytes == 0
    assert queue.push(np.ones((1, 60), dtype=np.uint8)) == 1
    assert bytes(queue.head()) == encode([b"\1" * 60])
