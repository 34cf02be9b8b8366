"""Registered memory: address ranges and keys over buffers of the caller.

Every region gets addresses of its own, never used again, with an unmapped page between neighbours: an
access that runs over a region's end hits nothing. One key serves as local and remote key. Keys count
on from a start value through an odd multiplier; they keep mistakes apart, and strangers out no better
than 32 bits can.

Invariant: a region that is given out by ``sources`` or ``target`` lies whole inside registered memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.core.rdma.verbs import MemoryRegion, Segment
from inaproto.errors import LocalMisuse

_PAGE: Final = 4096
_FIRST_VA: Final = 1 << 32
_KEY_STEP: Final = 0x9E3779B1
_KEY_MASK: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True, eq=False)
class _Registered:
    region: MemoryRegion
    data: NDArray[np.uint8]
    view: memoryview
    """The same bytes, for single packets: to cut an array costs more than to copy one payload."""
    address: int
    """Where they are in this process, for compiled kernels."""


class MemoryTable:
    """Regions by key."""

    def __init__(self, *, regions_max: int, first_key: int) -> None:
        self._regions_max = regions_max
        self._key = first_key & _KEY_MASK
        self._va = _FIRST_VA
        self._regions: dict[int, _Registered] = {}

    def __len__(self) -> int:
        return len(self._regions)

    def register(self, buffer: memoryview) -> MemoryRegion:
        """Raises ``LocalMisuse`` if the buffer is empty or not contiguous, or the table is full."""
        if not buffer.c_contiguous or buffer.nbytes == 0:
            raise LocalMisuse("only a contiguous buffer of at least one byte can be registered")
        if len(self._regions) >= self._regions_max:
            raise LocalMisuse(f"all {self._regions_max} memory regions are in use")
        while self._key in self._regions or self._key == 0:
            self._key = (self._key + _KEY_STEP) & _KEY_MASK
        region = MemoryRegion(key=self._key, va=self._va, nbytes=buffer.nbytes)
        view = buffer.cast("B")
        data = np.frombuffer(view, np.uint8)
        self._regions[region.key] = _Registered(region, data, view, data.ctypes.data)
        self._va += (-(-buffer.nbytes // _PAGE) + 1) * _PAGE
        self._key = (self._key + _KEY_STEP) & _KEY_MASK
        return region

    def deregister(self, region: MemoryRegion) -> None:
        """Peers may no longer write there. Writes already posted keep the buffer until they are completed."""
        known = self._regions.get(region.key)
        if known is None or known.region != region:
            raise LocalMisuse(f"memory region {region} is not registered")
        del self._regions[region.key]

    def sources(self, segments: Iterable[Segment]) -> tuple[list[memoryview], list[int]]:
        """The bytes that a work request reads, piece by piece, and for each piece where in this process it is
        and how many bytes it has. Raises ``LocalMisuse`` outside registered memory."""
        pieces: list[memoryview] = []
        places: list[int] = []
        for segment in segments:
            key, va, nbytes = segment
            found = self._find(key, va, nbytes)
            if found is None:
                raise LocalMisuse(f"{segment} is not inside a registered memory region")
            known, begin = found
            pieces.append(known.view[begin : begin + nbytes])
            places += (known.address + begin, nbytes)
        return pieces, places

    def permits(self, key: int, va: int, nbytes: int) -> bool:
        """A peer may write there."""
        found = self._find(key, va, nbytes)
        return found is not None and not found[0].view.readonly

    def address_for(self, key: int, va: int, nbytes: int) -> int | None:
        """Where in this process a peer may write these bytes; None if it may not."""
        found = self._find(key, va, nbytes)
        if found is None or found[0].view.readonly:
            return None
        return found[0].address + found[1]

    def target(self, key: int, va: int, nbytes: int) -> NDArray[np.uint8] | None:
        """The bytes that a peer writes, None if it may not."""
        if not self.permits(key, va, nbytes):
            return None
        known = self._regions[key]
        return known.data[va - known.region.va :][:nbytes]

    def write(self, key: int, va: int, payload: memoryview) -> bool:
        """A peer's bytes go there; False, and nothing is written, if it may not."""
        found = self._find(key, va, len(payload))
        if found is None or found[0].view.readonly:
            return False
        known, begin = found
        known.view[begin : begin + len(payload)] = payload
        return True

    def _find(self, key: int, va: int, nbytes: int) -> tuple[_Registered, int] | None:
        """The region that holds these bytes, and where in it they begin."""
        known = self._regions.get(key)
        if known is None or nbytes < 0:
            return None
        region = known.region
        begin = va - region.va
        if begin < 0 or begin + nbytes > region.nbytes:
            return None
        return known, begin
