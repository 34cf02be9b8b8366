"""Memory that packets go through: used again and again, so that no step waits for fresh pages.

:class:`OutputArena` holds what one step emits, :class:`PayloadPool` what ranks sent and nobody has summed
yet. Both exist for speed alone; neither knows a protocol.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from inaproto.core.kernels.compiled import SEAL, pointer_to

Parts = tuple[tuple[int, int], ...]
"""Packets of a rank and the bytes of each."""
CUTS_MAX: Final = 256
"""Pieces of an arena that are remembered."""
_LINE: Final = 64
"""Bytes of a cache line: what a kernel writes at once does not lie in two of them."""


def aligned(*shape: int) -> NDArray[np.uint8]:
    """Zeros, uint8 of that shape, that begin where a cache line does.

    What lies behind a short payload is added up with it, and is not sent. Whatever it is, it must not look
    like NaN, for which sums do more.
    """
    size = math.prod(shape)
    memory: NDArray[np.uint8] = np.zeros(size + _LINE, np.uint8)
    begin = -memory.ctypes.data % _LINE
    return memory[begin : begin + size].reshape(shape)


class Cut:
    """A piece of an arena as the packets of several ranks: cut once, and found again when asked for."""

    __slots__ = ("address", "blocks", "egress", "nbytes", "sent")

    def __init__(self, flat: NDArray[np.uint8], address: int, ranks: int, parts: Parts) -> None:
        self.address = address
        self.nbytes = len(flat)
        self.blocks: list[NDArray[np.uint8]] = []
        """uint8 (ranks, packets, frame_bytes), one behind the other."""
        self.egress: object = None
        self.sent: list[Any] = []
        """The actions by which all these leave, if by the same ``egress`` as the last time."""
        at = 0
        for packets, frame_bytes in parts:
            size = ranks * packets * frame_bytes
            self.blocks.append(flat[at : at + size].reshape(ranks, packets, frame_bytes))
            at += size


class CutsPieces(Protocol):
    """Memory for packets that a kernel puts together."""

    order: bytearray
    """Memory for what a kernel is told that fills a piece, and where it is."""
    order_at: ctypes.c_void_p

    def take_cut(self, ranks: int, parts: Parts) -> Cut:
        """A piece for packets of several kinds of each of ``ranks``."""
        ...


class OutputArena:
    """Memory for the packets that one step emits, used again by the next.

    Fresh memory costs a page fault for every 4 KiB, which is as much as the sums themselves. Grows to
    what a step needed, up to ``bytes_max``; beyond that a request gets memory of its own.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._buffer = aligned(1 << 16)
        self._address = self._buffer.ctypes.data
        self._used = 0
        self._wanted = 0
        self._cuts: dict[tuple[int, int, Parts], Cut] = {}
        self.lent: list[Lender] = []
        """Those that lent memory in this step."""
        self.order = bytearray(SEAL.size)
        """Memory for what a kernel is told that fills a piece, and where it is."""
        self.order_at = pointer_to(self.order)

    def reset(self) -> None:
        """Begin a step: everything handed out before is void."""
        if self.lent:
            for lender in self.lent:
                lender.settle()
            self.lent.clear()
        if len(self._buffer) < self._wanted <= self._bytes_max:
            self._buffer = aligned(min(2 * self._wanted, self._bytes_max))
            self._address = self._buffer.ctypes.data
            self._cuts.clear()
        self._used = self._wanted = 0

    def take(self, ranks: int, packets: int, frame_bytes: int) -> NDArray[np.uint8]:
        """uint8, shape (ranks, packets, frame_bytes), contents undefined."""
        size = ranks * packets * frame_bytes
        self._wanted += size
        begin = self._used
        if begin + size > len(self._buffer):
            return np.empty((ranks, packets, frame_bytes), np.uint8)
        self._used += size
        return self._buffer[begin : begin + size].reshape(ranks, packets, frame_bytes)

    def take_cut(self, ranks: int, parts: Parts) -> Cut:
        """The same for several kinds of packets at once, in one piece."""
        cut = self._cuts.get((self._used, ranks, parts))
        if cut is not None:
            self._used += cut.nbytes
            self._wanted += cut.nbytes
            return cut
        size = ranks * sum([packets * frame_bytes for packets, frame_bytes in parts])
        self._wanted += size
        begin = self._used
        if begin + size > len(self._buffer):
            fresh = aligned(size)
            return Cut(fresh, fresh.ctypes.data, ranks, parts)
        if len(self._cuts) >= CUTS_MAX:
            self._cuts.clear()
        self._used += size
        cut = Cut(self._buffer[begin : self._used], self._address + begin, ranks, parts)
        self._cuts[begin, ranks, parts] = cut
        return cut


class Lender(Protocol):
    """A port with memory in which frames can be built: what is sent from there is not copied."""

    def lent_memory(self) -> NDArray[np.uint8]:
        """uint8, one dimension; asked for once some of it was lent."""
        ...

    def lend(self, nbytes: int) -> int:
        """Where there is memory for frames that this port sends before ``settle``; -1: nowhere."""
        ...

    def settle(self) -> None:
        """What was lent and is to be sent has been."""
        ...


class PayloadBuffer:
    """Payloads of one message: ``array`` uint8 (ranks, packets, MTU), and its rows cut once.

    A CRC over memoryviews that exist already costs half of one over rows cut in the loop.
    """

    __slots__ = ("address", "array", "cuts")

    def __init__(self, ranks: int, packets: int, mtu: int) -> None:
        self.array = aligned(ranks, packets, mtu)
        self.address = self.array.ctypes.data
        self.cuts = [[memoryview(row) for row in rank] for rank in self.array]


class PayloadPool:
    """Payload buffers, handed out latest first.

    Inputs are needed only until a message's results are complete; the results are kept in their
    place. The next message then finds a buffer that is still in the processor's cache.
    """

    def __init__(self, ranks: int, packets_max: int, mtu: int) -> None:
        self._shape = (ranks, packets_max, mtu)
        self.free: list[PayloadBuffer] = []
        """Buffers that nobody uses now; the last one is the next."""

    def __len__(self) -> int:
        return len(self.free)

    def take(self) -> PayloadBuffer:
        return self.free.pop() if self.free else PayloadBuffer(*self._shape)

    def give_back(self, buffer: PayloadBuffer) -> None:
        self.free.append(buffer)
