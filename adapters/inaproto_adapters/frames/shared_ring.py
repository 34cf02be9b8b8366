"""Rings of frames in memory that two processes share: one process writes a ring, one reads it.

Memory of one ring: control (the writer's and the reader's counts, and whether the reader sleeps, each on
a cache line of its own), a table of descriptors, the frames. A descriptor is (offset, frames, bytes of a
frame). Frames of one length lie as rows, so that the reader gets them where they are, as one array for
each run. The counts are of all descriptors that there have been. Which memory comes next is the writer's
affair: it goes by chunks, and takes the one that was used last, which the cache still holds.

:class:`RingWriter` and :class:`RingReader` do without a compiler what ``rings.c`` does, and say how; they
have no memory barriers, so they ask for a bell for every change, want one for every change, and are for
processors that show stores in their order. :func:`open_writer` and :func:`open_reader` take the compiled
ones where there are some, and these lend memory of the ring: frames that are built there are sent without a
copy.

Invariants:

* What the other side can write is copied once and then checked: nothing that is there makes this side touch
  memory outside the ring, wait, or fail but with :class:`RingBroken`.
* A frame is not written over before the reader has taken the next ones.
* Either the reader sees what was written before it sleeps, or it gets a bell.
"""

from __future__ import annotations

import ctypes
import platform
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from inaproto.core.kernels.compiled import address_of
from inaproto.units import FRAME_BYTES_MAX, Frames
from inaproto.wire.ethernet import ETHERNET_HEADER_BYTES
from inaproto_adapters.frames import compiled_ports

HEAD_AT: Final = 0
TAIL_AT: Final = 64
SLEEPS_AT: Final = 128
TABLE_AT: Final = 192
SLEEPS: Final = 1
ALWAYS: Final = 2
"""The reader wants a bell for every change."""
DESCRIPTOR: Final = struct.Struct("=QII")
CHUNKS_MAX: Final = 256
_CHUNKS_MIN: Final = 8
_CHUNK_BYTES: Final = 768 << 10
"""A whole message of packets of 4 KiB is lent in one piece."""
_PAGE: Final = 4096
_BLOCKS_MAX: Final = 512
"""That one ``take`` gives."""
_FAULTS: Final = (
    "",
    "it says that it has taken frames that were never there",
    "it says that it has sent more than the ring holds",
    "it sent frames that lie outside the ring, or have a length that no frame has",
)
_ORDERED: Final = ("x86_64", "AMD64")
_WRITER: Final = struct.Struct("16q")
_WRITER_BYTES: Final = _WRITER.size + 3 * 8 * CHUNKS_MAX + 4 * 8 + 8 * CHUNKS_MAX
_WRITTEN: Final = struct.Struct("4q")
_WRITTEN_AT: Final = 12 * 8
_READER: Final = struct.Struct("13q")
_READ: Final = struct.Struct("4q")
_READ_AT: Final = 9 * 8
_BLOCK_WORDS: Final = 4


class RingBroken(Exception):
    """The other side wrote what cannot be; the text says what."""


@dataclass(frozen=True, slots=True)
class RingShape:
    """Sizes that both sides agree on."""

    slots: int
    """Descriptors."""
    data_bytes: int

    @property
    def data_at(self) -> int:
        return -(-(TABLE_AT + self.slots * DESCRIPTOR.size) // _PAGE) * _PAGE

    @property
    def nbytes(self) -> int:
        return self.data_at + -(-self.data_bytes // _PAGE) * _PAGE

    @property
    def chunks(self) -> int:
        return min(CHUNKS_MAX, max(_CHUNKS_MIN, self.data_bytes // _CHUNK_BYTES))

    @property
    def chunk_bytes(self) -> int:
        return self.data_bytes // self.chunks // 64 * 64


DATA_BYTES_MIN: Final = _CHUNKS_MIN * (FRAME_BYTES_MAX + 64)
"""A frame fits into a chunk."""


@dataclass(frozen=True, slots=True)
class Written:
    """Of one ``push``."""

    frames: int
    nbytes: int
    wakes: bool
    """The reader sleeps, and must get a bell; it is told once for each sleep."""


class Writes(Protocol):
    """The writing side of a ring."""

    def push(self, blocks: Sequence[Frames]) -> Written:
        """Copy the frames of all blocks, in order, as many as have room. Raises :class:`RingBroken`."""
        ...


class Reads(Protocol):
    """The reading side of a ring."""

    def take(self) -> tuple[list[Frames], int, int]:
        """Blocks, frames and bytes that have come; they stay until the next call. Raises :class:`RingBroken`.

        None: from now on the writer rings.
        """
        ...


def can_share() -> bool:
    """Whether this process can write and read rings."""
    return compiled_ports.active() is not None or platform.machine() in _ORDERED


def open_writer(memory: Frames, shape: RingShape) -> Writes:
    """``memory``: uint8, of the ring."""
    calls = compiled_ports.active()
    return RingWriter(memory, shape) if calls is None else LendingWriter(calls, memory, shape)


def open_reader(memory: Frames, shape: RingShape, bytes_max: int) -> Reads:
    """One ``take`` gives no more than ``bytes_max``, and at least a block if there is one."""
    calls = compiled_ports.active()
    if calls is None:
        return RingReader(memory, shape, bytes_max)
    return _CompiledReader(calls, memory, shape, bytes_max)


class _Control:
    """Words of the control that both sides see."""

    def __init__(self, memory: Frames) -> None:
        def word(at: int, dtype: type) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
            return memory[at : at + np.dtype(dtype).itemsize].view(dtype)

        self.head = word(HEAD_AT, np.uint64)
        self.tail = word(TAIL_AT, np.uint64)
        self.sleeps = word(SLEEPS_AT, np.uint32)
        self.table = memory.data


class RingWriter:
    """Writes a ring."""

    def __init__(self, memory: Frames, shape: RingShape) -> None:
        self._control = _Control(memory)
        self._data = memory[shape.data_at : shape.data_at + shape.data_bytes]
        self._shape = shape
        self._head = self._tail = self._chunk = self._used = 0
        self._spare = list(range(shape.chunks - 1, 0, -1))
        self._full: deque[tuple[int, int]] = deque()
        """Chunks, and at which count of the reader each is free again."""

    def push(self, blocks: Sequence[Frames]) -> Written:
        """See ``Writes.push``."""
        begin = self._head
        self._look_back()
        if self._tail == begin:
            self._used = 0
        frames = nbytes = 0
        last: tuple[int, int, int] | None = None
        for block in blocks:
            n, length = block.shape
            at = 0
            while at < n:
                rows, last = self._place(n - at, length, last)
                if last is None:
                    break
                offset = last[0] + (last[1] - rows) * length
                self._data[offset : offset + rows * length].reshape(rows, length)[:] = block[at : at + rows]
                DESCRIPTOR.pack_into(
                    self._control.table,
                    TABLE_AT + (self._head - 1) % self._shape.slots * DESCRIPTOR.size,
                    *last,
                )
                at += rows
                frames += rows
                nbytes += rows * length
            if at < n:
                break
        if self._head == begin:
            return Written(0, 0, wakes=False)
        self._control.head[0] = self._head
        return Written(frames, nbytes, wakes=True)

    def _place(
        self, left: int, length: int, last: tuple[int, int, int] | None
    ) -> tuple[int, tuple[int, int, int] | None]:
        """How many of ``left`` frames go where the newest descriptor says, ``last`` being the one before; no
        descriptor: there is no room."""
        chunk_bytes = self._shape.chunk_bytes
        fit = (chunk_bytes - self._used) // length
        if fit < left and (not fit or left * length <= chunk_bytes) and self._next_chunk():
            fit = chunk_bytes // length
        rows = min(left, fit)
        offset = self._chunk * chunk_bytes + self._used
        if rows and last is not None and last[2] == length and last[0] + last[1] * length == offset:
            found = last[0], last[1] + rows, length
        else:
            if self._head - self._tail == self._shape.slots:
                self._look_back()
            if not rows or self._head - self._tail == self._shape.slots:
                return 0, None
            found = offset, rows, length
            self._head += 1
        self._used += rows * length
        return rows, found

    def _look_back(self) -> None:
        tail = int(self._control.tail[0])
        if not self._tail <= tail <= self._head:
            raise RingBroken(_FAULTS[1])
        self._tail = tail
        while self._full and self._full[0][1] <= tail:
            self._spare.append(self._full.popleft()[0])

    def _next_chunk(self) -> bool:
        if not self._spare:
            self._look_back()
        if not self._spare:
            return False
        self._full.append((self._chunk, self._head))
        self._chunk, self._used = self._spare.pop(), 0
        return True


class RingReader:
    """Reads a ring."""

    def __init__(self, memory: Frames, shape: RingShape, bytes_max: int) -> None:
        self._control = _Control(memory)
        self._data = memory[shape.data_at : shape.data_at + shape.data_bytes]
        self._shape = shape
        self._bytes_max = bytes_max
        self._tail = 0

    def take(self) -> tuple[list[Frames], int, int]:
        """See ``Reads.take``."""
        self._control.sleeps[0] = ALWAYS
        self._control.tail[0] = self._tail
        ready = int(self._control.head[0]) - self._tail
        if not 0 <= ready <= self._shape.slots:
            raise RingBroken(_FAULTS[2])
        found: list[tuple[int, int, int]] = []
        frames = nbytes = 0
        while ready and nbytes < self._bytes_max:
            at = TABLE_AT + self._tail % self._shape.slots * DESCRIPTOR.size
            offset, rows, length = DESCRIPTOR.unpack_from(self._control.table, at)
            if (
                not ETHERNET_HEADER_BYTES <= length <= FRAME_BYTES_MAX
                or not rows
                or offset + rows * length > self._shape.data_bytes
            ):
                raise RingBroken(_FAULTS[3])
            if found and found[-1][2] == length and found[-1][0] + found[-1][1] * length == offset:
                found[-1] = found[-1][0], found[-1][1] + rows, length
            elif len(found) == _BLOCKS_MAX:
                break
            else:
                found.append((offset, rows, length))
            ready -= 1
            self._tail += 1
            frames += rows
            nbytes += rows * length
        data = self._data
        return [data[at : at + n * length].reshape(n, length) for at, n, length in found], frames, nbytes


class LendingWriter:
    """See ``rings_push``, ``rings_lend`` and ``rings_settle``."""

    def __init__(self, calls: compiled_ports.PortCalls, memory: Frames, shape: RingShape) -> None:
        self._push, self._lend, self._settle = calls.push_ring, calls.lend_ring, calls.settle_ring
        self._memory = memory
        self.data = memory[shape.data_at : shape.data_at + shape.data_bytes]
        """uint8: where frames are."""
        control = address_of(memory)
        self._state = bytearray(_WRITER_BYTES)
        spares = shape.chunks - 1
        fixed = (control, control + shape.data_at, shape.slots, shape.chunk_bytes, shape.chunks)
        _WRITER.pack_into(self._state, 0, *fixed, *[0] * 4, spares, *[0] * 6)
        struct.pack_into(f"{spares}q", self._state, _WRITER.size, *range(spares, 0, -1))
        self._state_at = ctypes.addressof(ctypes.c_char.from_buffer(self._state))
        self._room(16)

    def lend(self, nbytes: int) -> int:
        """Where in ``data`` there is memory of the caller's until ``settle``; -1: nowhere."""
        at: int = self._lend(self._state_at, nbytes)
        return at

    def settle(self) -> None:
        """What was lent is sent, or never will be."""
        self._settle(self._state_at)

    def _room(self, blocks: int) -> None:
        self._blocks = bytearray(blocks * 8 * _BLOCK_WORDS)
        self._blocks_at = ctypes.addressof(ctypes.c_char.from_buffer(self._blocks))

    def push(self, blocks: Sequence[Frames]) -> Written:
        """See ``Writes.push``."""
        told: list[int] = []
        for block in blocks:
            rows, length = block.shape
            stride, step = block.strides
            if step != 1 and length > 1 and rows:
                return self.push([np.ascontiguousarray(each) for each in blocks])
            told += (address_of(block), rows, stride, length)
        n = len(blocks)
        if n * 8 * _BLOCK_WORDS > len(self._blocks):
            self._room(2 * n)
        struct.pack_into(f"{len(told)}q", self._blocks, 0, *told)
        self._push(self._state_at, self._blocks_at, n)
        frames, nbytes, fault, wakes = _WRITTEN.unpack_from(self._state, _WRITTEN_AT)
        if fault:
            raise RingBroken(_FAULTS[fault])
        return Written(frames, nbytes, wakes > 0)


class _CompiledReader:
    """See ``rings_take``."""

    def __init__(
        self, calls: compiled_ports.PortCalls, memory: Frames, shape: RingShape, bytes_max: int
    ) -> None:
        self._take = calls.take_ring
        self._data = memory[shape.data_at : shape.data_at + shape.data_bytes]
        self._memory = memory
        limits = (ETHERNET_HEADER_BYTES, FRAME_BYTES_MAX, _BLOCKS_MAX, bytes_max)
        fixed = (address_of(memory), shape.slots, shape.data_bytes, *limits)
        self._state = bytearray(_READER.pack(*fixed, *[0] * 6))
        self._state_at = ctypes.addressof(ctypes.c_char.from_buffer(self._state))
        table = np.zeros(3 * _BLOCKS_MAX, np.int64)
        self._table = table.data
        self._table_at = table.ctypes.data

    def take(self) -> tuple[list[Frames], int, int]:
        """See ``Reads.take``."""
        self._take(self._state_at, self._table_at)
        n, frames, nbytes, fault = _READ.unpack_from(self._state, _READ_AT)
        if fault:
            raise RingBroken(_FAULTS[fault])
        data = self._data
        rest = iter(self._table[: 3 * n].tolist())
        found = [
            np.ndarray((rows, length), np.uint8, data, offset)
            for offset, rows, length in zip(rest, rest, rest, strict=True)
        ]
        return found, frames, nbytes
