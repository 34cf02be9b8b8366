"""A recording by itself: what it keeps, what it leaves out, and how it says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
import trio
from trio.testing import wait_all_tasks_blocked

from inaproto.daemon.capture.recording import BATCH_COST, Recording
from inaproto.units import Frames, PortId
from inaproto.wire.files.capture_reader import CaptureReader
from inaproto.wire.files.pcapng import CapturedFrame, Direction

FIRST, SECOND = PortId(1), PortId(2)
T0 = 1_700_000_000_000_000_000


def block(n: int, fill: int = 0, nbytes: int = 64) -> Frames:
    return np.full((n, nbytes), fill, np.uint8)


def ticks() -> Iterator[int]:
    return count(T0, 1000)


async def written(recording: Recording) -> tuple[list[CapturedFrame], CaptureReader]:
    """All of a recording that has ended."""
    data = bytearray()

    async def sink(part: bytes) -> None:
        await trio.lowlevel.checkpoint()
        data.extend(part)

    await recording.write(sink)
    reader = CaptureReader()
    frames = list(reader.feed(bytes(data)))
    reader.finish()
    return frames, reader


def fills(frames: Sequence[CapturedFrame]) -> list[int]:
    return [frame.data[0] for frame in frames]


async def test_frames_have_their_port_their_direction_and_their_time() -> None:
    recording = Recording("test", clock=ticks().__next__)
    recording.watch(FIRST, "port-1")
    recording.saw(FIRST, (block(2, 1), block(1, 2, 100)), is_outbound=False)
    recording.watch(SECOND, "trunk-a")
    recording.saw(SECOND, (block(1, 3),), is_outbound=True)
    recording.saw(PortId(9), (block(1, 4),), is_outbound=True)
    recording.end("enough")
    recording.saw(FIRST, (block(1, 5),), is_outbound=True)
    frames, reader = await written(recording)
    assert fills(frames) == [1, 1, 2, 3]
    assert [frame.interface.name for frame in frames] == ["port-1"] * 3 + ["trunk-a"]
    assert [frame.direction for frame in frames] == [Direction.INBOUND] * 3 + [Direction.OUTBOUND]
    assert [frame.when_ns for frame in frames] == [1_700_000_000_000_000_000] * 3 + [
        1_700_000_000_000_001_000
    ]
    assert (reader.received, reader.lost) == ({0: 3, 1: 1}, {0: 0, 1: 0})
    assert (recording.ports, recording.frames, recording.ended) == (("port-1", "trunk-a"), 4, "enough")


async def test_what_was_seen_is_not_what_became_of_it() -> None:
    recording = Recording("test")
    recording.watch(FIRST, "port-1")
    frames = block(1, 7)
    recording.saw(FIRST, (frames,), is_outbound=False)
    frames[:] = 9  # the accelerator has added to it
    recording.end("")
    recording.end("enough")
    assert fills((await written(recording))[0]) == [7]


async def test_ports_that_were_not_asked_for_are_left_out() -> None:
    recording = Recording("test", ports=frozenset({"port-2"}))
    recording.watch(FIRST, "port-1")
    recording.watch(SECOND, "port-2")
    for port in (FIRST, SECOND):
        recording.saw(port, (block(1, int(port)),), is_outbound=False)
    recording.end("enough")
    frames, _ = await written(recording)
    assert fills(frames) == [2]


async def test_a_reader_that_stalls_loses_frames_which_are_counted() -> None:
    """Nothing is written here until 5 batches have come, of which the queue holds 2."""
    recording = Recording("test", queue_bytes_max=2 * (3 * 64 + BATCH_COST))
    recording.watch(FIRST, "port-1")
    for number in range(5):
        recording.saw(FIRST, (block(3, number),), is_outbound=False)
    assert (recording.frames, recording.lost) == (6, 9)
    data = bytearray()
    go_on = trio.Event()

    async def sink(part: bytes) -> None:
        await go_on.wait()
        data.extend(part)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(recording.write, sink)
        await wait_all_tasks_blocked()
        go_on.set()
        await wait_all_tasks_blocked()
        recording.saw(FIRST, (block(2, 5),), is_outbound=False)
        recording.end("enough")
    reader = CaptureReader()
    frames = list(reader.feed(bytes(data)))
    assert fills(frames) == [0] * 3 + [1] * 3 + [5] * 2
    assert [frame.dropped for frame in frames] == [0] * 6 + [9, 0]
    assert (reader.received, reader.lost) == ({0: 17}, {0: 9})


async def test_a_number_of_frames_is_kept_to() -> None:
    recording = Recording("test", frames_max=4)
    recording.watch(FIRST, "port-1")
    recording.saw(FIRST, (block(3, 1), block(3, 2), block(3, 3)), is_outbound=False)
    assert (recording.frames, recording.ended) == (4, "4 frames")
    assert fills((await written(recording))[0]) == [1, 1, 1, 2]


async def test_a_file_that_is_full_says_so() -> None:
    recording = Recording("test", bytes_max=1 << 20)
    recording.watch(FIRST, "port-1")
    for _ in range(20):
        recording.saw(FIRST, (block(64, 1, 1024),), is_outbound=False)
    async with trio.open_nursery() as nursery:
        frames: list[CapturedFrame] = []

        async def write() -> None:
            frames.extend((await written(recording))[0])

        nursery.start_soon(write)
    assert recording.ended == "the file has 1 MiB"
    assert 14 * 64 <= len(frames) == recording.frames < 16 * 64
    assert recording.frames + recording.lost == 20 * 64
    assert recording.status()["bytes"] <= 1 << 20


async def test_a_sink_that_fails_ends_it() -> None:
    recording = Recording("test")
    recording.watch(FIRST, "port-1")

    async def sink(part: bytes) -> None:
        await trio.lowlevel.checkpoint()
        raise OSError(28, "No space left on device")

    await recording.write(sink)
    assert recording.ended == "it cannot be written: No space left on device"
    recording.saw(FIRST, (block(1),), is_outbound=False)
    assert recording.frames == 0


async def test_frames_that_a_full_disk_refused_are_not_counted_as_in_the_file() -> None:
    recording = Recording("test")
    recording.watch(FIRST, "port-1")
    recording.saw(FIRST, (block(3),), is_outbound=False)
    chunks = 0

    async def sink(part: bytes) -> None:
        nonlocal chunks
        await trio.lowlevel.checkpoint()
        chunks += 1
        if chunks == 2:  # the header, then the three frames, then a disk without room
            recording.saw(FIRST, (block(5),), is_outbound=False)
        if chunks == 3:
            recording.saw(FIRST, (block(7),), is_outbound=False)
            raise OSError(28, "No space left on device")

    await recording.write(sink)
    assert (recording.frames, recording.lost) == (3, 12)
