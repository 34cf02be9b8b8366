"""Memory that the library reads and writes: page-aligned pieces, and which of it is registered.

The library's header says that it supports one registration at a time, and its public users hold many. So a
buffer is registered once, however often it is asked for, and no two registrations overlap.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import LocalMisuse

PAGE_BYTES: Final = mmap.PAGESIZE


def page_aligned(nbytes: int) -> memoryview:
    """Zeroed memory of ``nbytes`` that begins and ends with a page of its own; it is freed with its views."""
    if nbytes < 1:
        raise LocalMisuse(f"{nbytes} bytes of memory")
    return memoryview(mmap.mmap(-1, -(-nbytes // PAGE_BYTES) * PAGE_BYTES))[:nbytes]


@dataclass(slots=True, eq=False)
class Region:
    """Registered memory."""

    bytes_: NDArray[np.uint8]
    """Keeps the caller's buffer where it is."""
    address: int
    nbytes: int
    uses: int = 1
    handle: Any = None
    """The library's; None while it is being registered."""


class Regions:
    """The registrations of one context."""

    def __init__(self) -> None:
        self._by_key: dict[int, Region] = {}
        self._keys = count(1)

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, buffer: memoryview) -> tuple[int, Region, bool]:
        """Its key, and whether it still has to be registered. Raises ``LocalMisuse`` where it overlaps."""
        view = np.frombuffer(buffer, np.uint8)
        if not view.flags.writeable or not view.nbytes:
            raise LocalMisuse("SHARP's buffers are writable and not empty")
        address = view.ctypes.data
        for key, its in self._by_key.items():
            if (its.address, its.nbytes) == (address, view.nbytes):
                its.uses += 1
                return key, its, False
            if its.address < address + view.nbytes and address < its.address + its.nbytes:
                raise LocalMisuse("memory that overlaps what is registered; register all of it once")
        key, region = next(self._keys), Region(view, address, view.nbytes)
        self._by_key[key] = region
        return key, region, True

    def drop(self, key: int) -> Region | None:
        """One use less; the region, if it was the last."""
        region = self.at(key)
        region.uses -= 1
        return self._by_key.pop(key) if region.uses == 0 else None

    def at(self, key: int) -> Region:
        """Raises ``LocalMisuse`` for a key of nothing."""
        region = self._by_key.get(key)
        if region is None:
            raise LocalMisuse(f"no memory is registered as {key}")
        return region

    def forget(self, key: int) -> None:
        """It could not be registered."""
        self._by_key.pop(key, None)

    def take_all(self) -> list[Region]:
        """All of them; none is left."""
        regions = list(self._by_key.values())
        self._by_key.clear()
        return regions
