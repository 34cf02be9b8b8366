"""Frames in a byte stream: 4-byte big-endian length, then the Ethernet frame without FCS.

This is what QEMU speaks on ``-netdev stream``. No input or output here: :class:`FrameReader` owns the
receive buffer and cuts it into frames, :class:`OutputQueue` lays frames out with their prefixes.

Invariants:

* A run of frames of equal length costs a few vector operations, whatever its length: it becomes one
  strided view of the receive buffer, no frame is copied. Where lengths alternate, a frame costs one
  comparison with the next prefix; runs are searched in growing steps, so no stretch of the buffer is
  looked at more than a constant number of times.
* No byte after a length that has not been checked is ever interpreted; after a bad length nothing is.
* Both sides are bounded: a receive buffer that holds at least two of the longest frames, and a queue
  of a fixed number of bytes.

Runts, frames too short for an Ethernet header, are dropped and counted as a switch does it: unlike a
bad length they leave the stream in step.
"""

from __future__ import annotations

from collections import deque
from struct import unpack_from
from typing import Final

import numpy as np

from inaproto.units import Frames
from inaproto.wire.ethernet import ETHERNET_HEADER_BYTES

PREFIX_BYTES: Final = 4
_RUN_STEP: Final = 32
_RUN_STEP_GROWTH: Final = 8
_SPARE_CHUNKS_MAX: Final = 4
RUNS_MAX: Final = 256
"""Runs that one ``take`` reads: a buffer full of tiny frames, no two alike, holds tens of thousands."""


class FrameReader:
    """A receive buffer that yields its complete frames as views.

    Fill ``free()`` with the next bytes of the stream, report how many by ``take(n)``. While ``more`` is
    set, complete frames may be left: ask for them by ``take(0)`` first.
    """

    def __init__(self, *, frame_bytes_max: int, buffer_bytes: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.fault: str | None = None
        """Why the stream cannot be read any further; the frames before it have been returned."""
        self.runts = 0
        self.more = False
        self._data = np.empty(buffer_bytes, dtype=np.uint8)
        self._bytes = self._data.data
        self._start = 0
        self._end = 0

    def free(self) -> memoryview:
        """Where the next bytes go. Moves an incomplete frame to the front: views returned before die."""
        if self._start:
            # The part moved is shorter than one frame, and the buffer holds two: there is always room.
            tail = self._end - self._start
            self._data[:tail] = self._data[self._start : self._end]
            self._start, self._end = 0, tail
        return self._bytes[self._end :]

    def take(self, nbytes: int) -> list[Frames]:
        """Account ``nbytes`` more; returns the frames that are now complete, equal neighbours together."""
        self._end += nbytes
        self.more = False
        blocks: list[Frames] = []
        at, end = self._start, self._end
        runs = 0
        while end - at >= PREFIX_BYTES:
            if runs == RUNS_MAX:
                self.more = True
                break
            runs += 1
            (length,) = unpack_from(">I", self._bytes, at)
            if not 1 <= length <= self.frame_bytes_max:
                self.fault = (
                    f"the peer announced a frame of {length} bytes (length prefix "
                    f"{self._bytes[at : at + PREFIX_BYTES].hex(' ')}), a frame has 1 to "
                    f"{self.frame_bytes_max}; the last {end - at} bytes received were not read as frames"
                )
                break
            stride = PREFIX_BYTES + length
            if end - at < stride:
                break
            n = self._run_length(at, length, (end - at) // stride)
            if length >= ETHERNET_HEADER_BYTES:
                blocks.append(self._data[at : at + n * stride].reshape(n, stride)[:, PREFIX_BYTES:])
            else:
                self.runts += n
            at += n * stride
        self._start = at
        return blocks

    def _run_length(self, at: int, length: int, n_max: int) -> int:
        """How many of the next ``n_max`` frames, the first known, have ``length`` bytes."""
        stride = PREFIX_BYTES + length
        if n_max == 1 or unpack_from(">I", self._bytes, at + stride)[0] != length:
            return 1
        known, step = 2, _RUN_STEP
        while known < n_max:
            upto = min(n_max, known + step)
            rows = self._data[at + known * stride : at + upto * stride].reshape(upto - known, stride)
            differs = rows[:, :PREFIX_BYTES].view(">u4")[:, 0] != length
            first = int(differs.argmax())
            if differs[first]:
                return known + first
            known, step = upto, step * _RUN_STEP_GROWTH
        return known

    def end(self) -> str | None:
        """What the end of the stream cut off, or None when it came between frames."""
        tail = self._end - self._start
        if tail == 0 or self.fault:
            return self.fault
        if tail < PREFIX_BYTES:
            return f"the stream ended inside a length prefix: {tail} of {PREFIX_BYTES} bytes arrived"
        (length,) = unpack_from(">I", self._bytes, self._start)
        return f"the stream ended inside a frame: {tail - PREFIX_BYTES} of {length} bytes arrived"


class _Chunk:
    """A stretch of output; bytes ``head .. tail`` wait to be written."""

    __slots__ = ("bytes", "data", "head", "tail")

    def __init__(self, nbytes: int) -> None:
        self.data = np.empty(nbytes, dtype=np.uint8)
        self.bytes = self.data.data
        self.head = 0
        self.tail = 0


class OutputQueue:
    """Frames with their length prefixes, laid out in chunks as they go onto the stream.

    Chunks are kept and used again, so that in the steady state output is laid into memory that the
    cache already holds.
    """

    def __init__(self, *, bytes_max: int, chunk_bytes: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._chunk_bytes = chunk_bytes
        self._chunks: deque[_Chunk] = deque()
        self._spare: list[_Chunk] = []

    def push(self, frames: Frames) -> int:
        """Copy as many of ``frames`` (n, frame_bytes) as fit the bound; returns how many."""
        n: int = frames.shape[0]
        length: int = frames.shape[1]
        stride = PREFIX_BYTES + length
        accepted = min(n, (self.bytes_max - self.bytes) // stride)
        done = 0
        while done < accepted:
            chunk = self._chunks[-1] if self._chunks else None
            if chunk is None or self._chunk_bytes - chunk.tail < stride:
                chunk = self._spare.pop() if self._spare else _Chunk(self._chunk_bytes)
                self._chunks.append(chunk)
            take = min(accepted - done, (self._chunk_bytes - chunk.tail) // stride)
            upto = chunk.tail + take * stride
            rows = chunk.data[chunk.tail : upto].reshape(take, stride)
            rows[:, PREFIX_BYTES:] = frames[done : done + take]
            rows[:, :PREFIX_BYTES].view(">u4")[:, 0] = length
            chunk.tail = upto
            done += take
        self.bytes += accepted * stride
        return accepted

    def head(self) -> memoryview:
        """The bytes to write next; only when ``bytes`` is not 0."""
        chunk = self._chunks[0]
        return chunk.bytes[chunk.head : chunk.tail]

    def written(self, nbytes: int) -> None:
        """The first ``nbytes`` of ``head()`` are on their way."""
        chunk = self._chunks[0]
        chunk.head += nbytes
        self.bytes -= nbytes
        if chunk.head == chunk.tail:
            chunk.head = chunk.tail = 0
            self._chunks.popleft()
            if len(self._spare) < _SPARE_CHUNKS_MAX:
                self._spare.append(chunk)

    def clear(self) -> None:
        self._chunks.clear()
        self._spare.clear()
        self.bytes = 0
