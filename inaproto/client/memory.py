"""Memory that a training process shares with its host daemon: memfd segments, and regions in them.

Registered buffers (``Communicator.buffer``) live in it as long as the communicator; private arrays
pass through pooled regions that come back when nobody uses them any more.

The daemon takes a bounded number of segments, for each is a memory region of the host's NIC. So regions
are cut from shared segments, and these become larger when there are many: their number grows as the
logarithm of their bytes, at the price of about an eighth of unused memory.

Any thread may ask for memory, and find what it has.

Invariants: regions in use never overlap; a region comes back to the pool only after its last
reference has gone, and an operation holds one until it has ended; every segment is sealed against
shrinking and wholly allocated, which the daemon insists on.
"""

from __future__ import annotations

import bisect
import fcntl
import mmap
import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inaproto.client import huge_pages
from inaproto.client.stage.views import Home
from inaproto.errors import LocalMisuse

ALIGNMENT = 64
"""Alignment of regions: a cache line."""
SMALL_BYTES_MAX = 1 << 20
"""Regions up to this size are powers of two, larger ones multiples of it."""
POOLED_BYTES_MIN = 4 << 20
"""Least size of a segment that private arrays pass through."""
REGISTERED_BYTES_MIN = 1 << 20
"""Least size of a segment with registered buffers."""
SEGMENTS_OF_MINIMAL_SIZE = 64
"""Segments beyond have at least an eighth of all bytes before them."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedSegment:
    number: int
    nbytes: int
    memory: mmap.mmap
    address: int
    descriptor: int
    """Whoever else maps it does so by this: the host daemon, its successor, other ranks of the host. It is
    open until the memory is closed, or nobody has the mapping any more."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Region:
    """``nbytes`` at ``offset`` of a segment."""

    segment: SharedSegment
    offset: int
    nbytes: int

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The region's first elements; the array keeps the mapping, not the region."""
        return np.ndarray(shape, dtype, buffer=self.segment.memory, offset=self.offset)


@dataclass(slots=True)
class _Open:
    """A segment with an unused part, which begins at ``used``."""

    segment: SharedSegment
    used: int = 0


class SharedMemory:
    """The segments of one communicator."""

    def __init__(self, segments_max: int = 256) -> None:
        self.segments_max = segments_max
        self._lock = threading.RLock()
        self._numbers = 0
        self._nbytes = 0
        self._users = 1
        self._unannounced: list[SharedSegment] = []
        self._free: dict[int, list[tuple[SharedSegment, int]]] = {}
        """Places of regions that came back, by their size."""
        self._open_pooled: list[_Open] = []
        self._open_registered: list[_Open] = []
        self._registered: list[tuple[int, SharedSegment]] = []
        """Segments of registered buffers, by address."""
        self._kept: list[weakref.finalize[..., mmap.mmap]] = []
        """Close the descriptors of these."""

    @property
    def nbytes(self) -> int:
        """Bytes of all segments."""
        return self._nbytes

    def share(self) -> SharedMemory:
        """The same, for one more channel, which closes it, too."""
        self._users += 1
        return self

    def take_unannounced(self) -> list[SharedSegment]:
        """New segments, which the caller announces to the daemon."""
        with self._lock:
            taken, self._unannounced = self._unannounced, []
        return taken

    def allocate(self, nbytes: int) -> Region:
        """A pooled region for a private array. Raises ``MemoryError``, ``LocalMisuse`` at the limit."""
        size = _size_class(nbytes)
        with self._lock:
            free = self._free.setdefault(size, [])
            if not free and self._is_full:  # then a larger region will do
                larger = (each for each in sorted(self._free) if each > size and self._free[each])
                free = self._free[next(larger, size)]
            segment, offset = free.pop() if free else self._cut(self._open_pooled, size, POOLED_BYTES_MIN)
        region = Region(segment, offset, nbytes)
        weakref.finalize(region, free.append, (segment, offset)).atexit = False
        return region

    def register(self, nbytes: int) -> Region:
        """A region of zeros, never pooled. Raises ``MemoryError``, ``LocalMisuse`` at the limit."""
        with self._lock:
            segments = self._numbers
            segment, offset = self._cut(self._open_registered, max(nbytes, 1), REGISTERED_BYTES_MIN)
            if self._numbers > segments:
                bisect.insort(self._registered, (segment.address, segment), key=lambda item: item[0])
        return Region(segment, offset, nbytes)

    def find(self, array: NDArray[Any]) -> Region | None:
        """Where ``array`` lies, if it lies in a registered buffer."""
        address = int(array.__array_interface__["data"][0])
        with self._lock:
            at = bisect.bisect_right(self._registered, address, key=lambda item: item[0]) - 1
            if at < 0:
                return None
            start, segment = self._registered[at]
        if address + array.nbytes > start + segment.nbytes:
            return None
        return Region(segment, address - start, array.nbytes)

    def home(self, array: NDArray[Any]) -> Home | None:
        """The segment of the registered buffer in which ``array`` lies, for other ranks to map."""
        region = self.find(array)
        if region is None:
            return None
        segment = region.segment
        return Home(segment.descriptor, segment.address, segment.nbytes)

    def close(self) -> None:
        """Close all descriptors, when all who share it have; mappings end with the arrays that use them."""
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
            self._registered = []
            self._unannounced = []
            kept, self._kept = self._kept, []
        for closing in kept:
            closing()

    @property
    def _is_full(self) -> bool:
        return self._numbers >= self.segments_max

    def _cut(self, opened: list[_Open], size: int, bytes_min: int) -> tuple[SharedSegment, int]:
        """An unused place in one of the segments ``opened``, or in a new one of at least ``bytes_min``."""
        alignment = ALIGNMENT if size <= SMALL_BYTES_MAX else mmap.PAGESIZE
        for candidate in opened:
            offset = candidate.used + -candidate.used % alignment
            if offset + size <= candidate.segment.nbytes:
                candidate.used = offset + size
                return candidate.segment, offset
        if self._is_full:
            raise LocalMisuse(
                f"shared memory: this process has {self.segments_max} segments, the host daemon's limit; use "
                "fewer, larger buffers, or wait for results before more are asked for"
            )
        grown = self._nbytes // 8 if self._numbers >= SEGMENTS_OF_MINIMAL_SIZE else 0
        least = bytes_min if size <= SMALL_BYTES_MAX else 0
        segment = self._new_segment(max(size, least, grown))
        opened.append(_Open(segment, size))
        return segment, 0

    def _new_segment(self, nbytes: int) -> SharedSegment:
        nbytes += -nbytes % mmap.PAGESIZE
        descriptor = os.memfd_create("inaproto", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, nbytes)
            memory = huge_pages.map_shared(descriptor, nbytes)
            huge_pages.allocate(descriptor, memory, nbytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        except OSError as error:
            os.close(descriptor)
            raise MemoryError(f"cannot make {nbytes} bytes of shared memory: {error.strerror}") from None
        closing = weakref.finalize(memory, os.close, descriptor)  # or with its arrays, if nobody closes
        closing.atexit = False
        self._kept.append(closing)
        segment = SharedSegment(self._numbers, nbytes, memory, huge_pages.address(memory), descriptor)
        self._numbers += 1
        self._nbytes += nbytes
        self._unannounced.append(segment)
        return segment


def _size_class(nbytes: int) -> int:
    if nbytes < 0:
        raise LocalMisuse(f"a region of {nbytes} bytes")
    if nbytes > SMALL_BYTES_MAX:
        return nbytes + -nbytes % SMALL_BYTES_MAX
    return max(ALIGNMENT, 1 << (nbytes - 1).bit_length()) if nbytes else ALIGNMENT
