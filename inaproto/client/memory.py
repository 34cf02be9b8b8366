"""Memory that a training process shares with its host daemon: memfd segments, and regions in them.

Registered buffers (``Communicator.buffer``) live in it as long as the communicator; private arrays
pass through pooled regions that come back when nobody uses them any more.

Invariants: regions in use never overlap; a region comes back to the pool only after its last
reference has gone, and an operation holds one until it has ended; every segment is sealed against
shrinking and wholly allocated, which the daemon insists on.
"""

from __future__ import annotations

import bisect
import fcntl
import mmap
import os
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import LocalMisuse

ALIGNMENT = 64
"""Of regions: a cache line."""
SMALL_BYTES_MAX = 1 << 20
"""Regions up to this size are powers of two, larger ones multiples of it."""
SEGMENT_BYTES_MIN = 4 << 20


@dataclass(frozen=True, slots=True, eq=False)
class SharedSegment:
    number: int
    nbytes: int
    memory: mmap.mmap
    address: int


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Region:
    """``nbytes`` at ``offset`` of a segment."""

    segment: SharedSegment
    offset: int
    nbytes: int

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The region's first elements; the array keeps the mapping, not the region."""
        return np.ndarray(shape, dtype, buffer=self.segment.memory, offset=self.offset)


class SharedMemory:
    """The segments of one communicator."""

    def __init__(self) -> None:
        self._numbers = 0
        self._nbytes = 0
        self._unannounced: list[tuple[SharedSegment, int]] = []
        self._free: dict[int, list[tuple[SharedSegment, int]]] = {}
        """Places of regions that came back, by their size."""
        self._open: tuple[SharedSegment, int] | None = None
        """The segment that small regions are cut from, and where its unused part begins."""
        self._registered: list[tuple[int, SharedSegment]] = []
        """Segments of registered buffers, by address."""

    @property
    def nbytes(self) -> int:
        """Of all segments."""
        return self._nbytes

    def take_unannounced(self) -> list[tuple[SharedSegment, int]]:
        """New segments with their descriptors, which the caller sends to the daemon and closes."""
        taken, self._unannounced = self._unannounced, []
        return taken

    def allocate(self, nbytes: int) -> Region:
        """A pooled region for a private array. Raises ``MemoryError``."""
        size = _size_class(nbytes)
        free = self._free.setdefault(size, [])
        segment, offset = free.pop() if free else self._cut(size)
        region = Region(segment, offset, nbytes)
        weakref.finalize(region, free.append, (segment, offset)).atexit = False
        return region

    def register(self, nbytes: int) -> Region:
        """A region of its own segment, never pooled. Raises ``MemoryError``."""
        segment = self._new_segment(nbytes)
        bisect.insort(self._registered, (segment.address, segment), key=lambda item: item[0])
        return Region(segment, 0, nbytes)

    def find(self, array: NDArray[Any]) -> Region | None:
        """Where ``array`` lies, if it lies in a registered buffer."""
        address = int(array.__array_interface__["data"][0])
        at = bisect.bisect_right(self._registered, address, key=lambda item: item[0]) - 1
        if at < 0:
            return None
        start, segment = self._registered[at]
        if address + array.nbytes > start + segment.nbytes:
            return None
        return Region(segment, address - start, array.nbytes)

    def close(self) -> None:
        """Close descriptors that were never sent; mappings end with the arrays that use them."""
        for _, descriptor in self.take_unannounced():
            os.close(descriptor)

    def _cut(self, size: int) -> tuple[SharedSegment, int]:
        if size > SMALL_BYTES_MAX:
            return self._new_segment(size), 0
        segment, used = self._open if self._open is not None else (self._new_segment(SEGMENT_BYTES_MIN), 0)
        if used + size > segment.nbytes:
            segment, used = self._new_segment(SEGMENT_BYTES_MIN), 0
        self._open = segment, used + size
        return segment, used

    def _new_segment(self, nbytes: int) -> SharedSegment:
        nbytes = max(nbytes, 1)
        nbytes += -nbytes % mmap.PAGESIZE
        descriptor = os.memfd_create("inaproto", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            memory = mmap.mmap(descriptor, nbytes)
        except OSError as error:
            os.close(descriptor)
            raise MemoryError(f"cannot make {nbytes} bytes of shared memory: {error.strerror}") from None
        address = int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])
        segment = SharedSegment(self._numbers, nbytes, memory, address)
        self._numbers += 1
        self._nbytes += nbytes
        self._unannounced.append((segment, descriptor))
        return segment


def _size_class(nbytes: int) -> int:
    if nbytes < 0:
        raise LocalMisuse(f"a region of {nbytes} bytes")
    if nbytes > SMALL_BYTES_MAX:
        return nbytes + -nbytes % SMALL_BYTES_MAX
    return max(ALIGNMENT, 1 << (nbytes - 1).bit_length()) if nbytes else ALIGNMENT
