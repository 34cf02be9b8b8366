"""What the compiled kernels know of rings and of flows, to take their packets in (``join.c``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from inaproto.core.switch.aggregator import AggregatorArray
from inaproto.core.switch.lookup_table import Flow
from inaproto.core.switch.packet_memory import PayloadPool
from inaproto.core.switch.region import Region

_FIRST: Final = 2
_NEXT: Final = 3
_LIKE: Final = 6
_PAYLOAD: Final = 7
_CONSTANT_BYTES: Final = 30

Like = tuple[int, bytes, object, int]
"""Epoch of a ring, and the INA headers of its messages less serial numbers and rank; what these are, decoded;
and their number."""


class RingInlet:
    """A ring, with the regions that it has now."""

    __slots__ = ("_addresses", "_constant", "_known", "_pool", "_words", "at", "is_whole", "regions")

    def __init__(self, array: AggregatorArray) -> None:
        self.regions: Sequence[Region] = array.regions
        kernels = [region.kernels for region in self.regions]
        self.is_whole = None not in kernels
        """Whether each region has had a message; it has no kernels before."""
        self._pool: PayloadPool = self.regions[0].pool
        self._known: Like | None = None
        self._constant = np.zeros(_CONSTANT_BYTES, np.uint8)
        regions = np.array([0 if region is None else region.at for region in kernels], np.int64)
        serials = array.first_serial, array.next_serial, array.id_mask, array.spec.window_messages
        words = np.array(
            [regions.ctypes.data, len(regions), *serials, 0, 0, self._constant.ctypes.data], np.int64
        )
        self._addresses, self._words, self.at = regions, words.data, words.ctypes.data

    def tell(self, array: AggregatorArray, epoch: int, like: Like | None) -> None:
        """What changes: the next message, what it may be like, and where its payloads would be."""
        words, free = self._words, self._pool.free
        words[_FIRST] = array.first_serial
        words[_NEXT] = array.next_serial
        words[_PAYLOAD] = free[-1].address if free else 0
        if like is not self._known:
            self._known = like
            if like is not None:
                self._constant.data[:] = like[1]
        words[_LIKE] = like[3] if like is not None and like[0] == epoch else 0


class Inlet:
    """A flow of a ring."""

    __slots__ = ("_kept", "at", "dst_mac", "ring", "src_mac")

    def __init__(self, ring: RingInlet, flow: Flow, key: bytes) -> None:
        """``key``: the masked headers that its packets share."""
        self.ring = ring
        self.dst_mac, self.src_mac = flow.dst_mac, flow.src_mac
        memory = np.frombuffer(key + flow.dst_mac + flow.src_mac, np.uint8)
        at = memory.ctypes.data
        words = np.array([ring.at, flow.spec.rank, flow.psn_mask, at, at + len(key)], np.int64)
        self._kept = memory, words
        self.at = words.ctypes.data
