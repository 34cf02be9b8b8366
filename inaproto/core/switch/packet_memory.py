"""Memory that packets go through: used again and again, so that no step waits for fresh pages.

:class:`OutputArena` holds what one step emits, :class:`PayloadPool` what ranks sent and nobody has summed
yet. Both exist for speed alone; neither knows a protocol.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class OutputArena:
    """Memory for the packets that one step emits, used again by the next.

    Fresh memory costs a page fault for every 4 KiB, which is as much as the sums themselves. Grows to
    what a step needed, up to ``bytes_max``; beyond that a request gets memory of its own.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._buffer: NDArray[np.uint8] = np.empty(1 << 16, np.uint8)
        self._address = self._buffer.ctypes.data
        self._used = 0
        self._wanted = 0

    def reset(self) -> None:
        """Begin a step: everything handed out before is void."""
        if len(self._buffer) < self._wanted <= self._bytes_max:
            self._buffer = np.empty(min(2 * self._wanted, self._bytes_max), np.uint8)
            self._address = self._buffer.ctypes.data
        self._used = self._wanted = 0

    def take(self, ranks: int, packets: int, frame_bytes: int) -> NDArray[np.uint8]:
        """uint8, shape (ranks, packets, frame_bytes), contents undefined."""
        return self.take_at(ranks, packets, frame_bytes)[0]

    def take_at(self, ranks: int, packets: int, frame_bytes: int) -> tuple[NDArray[np.uint8], int]:
        """The same, and its address."""
        size = ranks * packets * frame_bytes
        self._wanted += size
        begin = self._used
        if begin + size > len(self._buffer):
            fresh: NDArray[np.uint8] = np.empty((ranks, packets, frame_bytes), np.uint8)
            return fresh, fresh.ctypes.data
        self._used += size
        taken = self._buffer[begin : begin + size].reshape(ranks, packets, frame_bytes)
        return taken, self._address + begin


class PayloadBuffer:
    """Payloads of one message: ``array`` uint8 (ranks, packets, MTU), and its rows cut once.

    A CRC over memoryviews that exist already costs half of one over rows cut in the loop.
    """

    __slots__ = ("address", "array", "cuts")

    def __init__(self, ranks: int, packets: int, mtu: int) -> None:
        self.array: NDArray[np.uint8] = np.empty((ranks, packets, mtu), np.uint8)
        self.address = self.array.ctypes.data
        self.cuts = [[memoryview(row) for row in rank] for rank in self.array]


class PayloadPool:
    """Payload buffers, handed out latest first.

    Inputs are needed only until a message's results are complete; the results are kept in their
    place. The next message then finds a buffer that is still in the processor's cache.
    """

    def __init__(self, ranks: int, packets_max: int, mtu: int) -> None:
        self._shape = (ranks, packets_max, mtu)
        self._free: list[PayloadBuffer] = []

    def __len__(self) -> int:
        """Buffers that nobody uses now."""
        return len(self._free)

    def take(self) -> PayloadBuffer:
        return self._free.pop() if self._free else PayloadBuffer(*self._shape)

    def give_back(self, buffer: PayloadBuffer) -> None:
        self._free.append(buffer)
