"""An AF_XDP socket as memory: frames are rows of one array from the kernel to the consumer, and from the
producer to the kernel.

The array (UMEM) has chunks of one size. Four rings of descriptors say whose a chunk is: *fill* lends chunks
to the kernel to receive into, *receive* gives them back with frames, *transmit* hands over frames,
*completion* gives their chunks back. A run of frames of one length in neighbouring chunks is one strided
view: no frame is copied where it is received, and each is written once where it is sent.

Invariants:

* A chunk is the kernel's to receive into, or received and lent out until ``release``, or free, or on its way
  out. The first half of the memory is for receiving, the second for sending.
* Received chunks go back to the kernel in the order in which they came, so that those of a message stay
  neighbours.
* What is on the transmit ring stays there: the kernel knows how far the ring was filled, and goes on to there
  with the next system call, or while somebody waits for the socket.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import socket
import struct
from ctypes import CDLL, get_errno
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import Unsupported
from inaproto.ports import PortCounters
from inaproto.units import Frames

AF_XDP: Final = 44
_SOL_XDP: Final = 283
_MMAP_OFFSETS: Final = 1
_RX_RING: Final = 2
_TX_RING: Final = 3
_UMEM_REG: Final = 4
_FILL_RING: Final = 5
_COMPLETION_RING: Final = 6
_STATISTICS: Final = 7
COPY: Final = 1 << 1
ZERO_COPY: Final = 1 << 2
_USE_NEED_WAKEUP: Final = 1 << 3
_NEEDS_WAKEUP: Final = 1
_AT_RECEIVE: Final = 0
_AT_TRANSMIT: Final = 0x8000_0000
_AT_FILL: Final = 0x1_0000_0000
_AT_COMPLETION: Final = 0x1_8000_0000
_DESCRIPTOR: Final = np.dtype([("addr", "<u8"), ("length", "<u4"), ("options", "<u4")])
_ADDRESS: Final = np.dtype("<u8")
_HEADROOM: Final = 256
"""Bytes of each chunk before a received frame that the kernel keeps for itself."""
CHUNK_BYTES: Final = (2048, 4096)
"""A chunk is at most a page, unless the memory is of huge pages."""
_MASK_32: Final = 0xFFFF_FFFF
_SO_SNDBUFFORCE: Final = 32
_SOCKET_BYTES: Final = 8 << 20
_SENT_AT_ONCE: Final = 16
"""Frames that the kernel sends by one system call, if there is room; newer ones send 32."""
TAKE_MAX: Final = 1024
"""Frames that one ``take`` gives; the other ports have their turn after it."""
_LIBC: Final = CDLL(None, use_errno=True)


def longest_frame(chunk_bytes: int) -> int:
    """Bytes of the longest frame that fits one chunk."""
    return chunk_bytes - _HEADROOM


class _Ring:
    """Descriptors in memory shared with the kernel; positions count up and wrap at 32 bits."""

    def __init__(self, fd: int, offsets: tuple[int, ...], at: int, entries: int, kind: Any) -> None:
        producer, consumer, descriptors, flags = offsets
        size = descriptors + entries * kind.itemsize
        mapped = mmap.mmap(fd, size, mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=at)
        memory = np.frombuffer(mapped, np.uint8)
        self.entries = memory[descriptors:size].view(kind)
        self._producer = memory[producer : producer + 4].view(np.uint32)
        self._consumer = memory[consumer : consumer + 4].view(np.uint32)
        self._flags = memory[flags : flags + 4].view(np.uint32)

    @property
    def producer(self) -> int:
        return int(self._producer[0])

    @producer.setter
    def producer(self, value: int) -> None:
        self._producer[0] = value & _MASK_32

    @property
    def consumer(self) -> int:
        return int(self._consumer[0])

    @consumer.setter
    def consumer(self, value: int) -> None:
        self._consumer[0] = value & _MASK_32

    @property
    def filled(self) -> int:
        """Entries between consumer and producer."""
        return (self.producer - self.consumer) & _MASK_32

    @property
    def needs_wakeup(self) -> bool:
        return bool(self._flags[0] & _NEEDS_WAKEUP)

    def pieces(self, position: int, n: int) -> list[slice]:
        """Where ``n`` entries from ``position`` on lie: one stretch, or two around the ring's end."""
        begin = position % len(self.entries)
        upto = min(begin + n, len(self.entries))
        whole = slice(begin, upto)
        return [whole] if upto - begin == n else [whole, slice(0, n - (upto - begin))]


class XdpSocket:
    """A socket at one queue of an interface, with memory of its own."""

    def __init__(self, index: int, queue: int, *, chunk_bytes: int, chunks: int, flags: int) -> None:
        """``chunks``: a power of two, for each direction; ``flags``: ``COPY``, ``ZERO_COPY`` or neither.

        Raises ``OSError``.
        """
        self._chunk_bytes = chunk_bytes
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        with contextlib.ExitStack() as undo:
            self.sock = undo.enter_context(socket.socket(AF_XDP, kind, 0))
            # Unmapped when the last view of it goes: a consumer may hold one when the port closes.
            self._data = np.frombuffer(mmap.mmap(-1, 2 * chunks * chunk_bytes), np.uint8).reshape(
                2 * chunks, chunk_bytes
            )
            memory = struct.pack("=QQII", self._data.ctypes.data, self._data.size, chunk_bytes, 0)
            self.sock.setsockopt(_SOL_XDP, _UMEM_REG, memory)
            for ring in (_FILL_RING, _COMPLETION_RING, _RX_RING, _TX_RING):
                self.sock.setsockopt(_SOL_XDP, ring, chunks)
            with contextlib.suppress(PermissionError):
                self.sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _SOCKET_BYTES)
            offsets = struct.unpack("=16Q", self.sock.getsockopt(_SOL_XDP, _MMAP_OFFSETS, 128))
            fd = self.sock.fileno()
            self._received = _Ring(fd, offsets[0:4], _AT_RECEIVE, chunks, _DESCRIPTOR)
            self._transmit = _Ring(fd, offsets[4:8], _AT_TRANSMIT, chunks, _DESCRIPTOR)
            self._fill = _Ring(fd, offsets[8:12], _AT_FILL, chunks, _ADDRESS)
            self._completed = _Ring(fd, offsets[12:16], _AT_COMPLETION, chunks, _ADDRESS)
            self._fill.entries[:] = np.arange(chunks, dtype=np.uint64) * chunk_bytes
            self._fill.producer = chunks
            address = struct.pack("=HHIII", AF_XDP, flags | _USE_NEED_WAKEUP, index, queue, 0)
            if _LIBC.bind(fd, address, len(address)) < 0:
                raise OSError(get_errno(), os.strerror(get_errno()))
            undo.pop_all()
        self._transmit.entries["options"] = 0
        # Numbers of the chunks to be sent from, as a stack, its top at the end: those used last, which the
        # processor's cache still holds, are used next. Neighbours lie in it so that they are taken in order.
        self._free = np.arange(2 * chunks - 1, chunks - 1, -1, dtype=np.int64)
        self._free_count = chunks
        self.has_room = True
        """Whether the kernel sent what it was given, as far as it says."""
        self._taken: NDArray[np.uint64] | None = None
        self._dropped = 0

    # ---- receiving

    def take(self, counters: PortCounters) -> list[Frames]:
        """Frames that are there, equal neighbours together, in order; views until ``release``."""
        ring = self._received
        n = min(ring.filled, TAKE_MAX)
        if not n:
            return []
        pieces = ring.pieces(ring.consumer, n)
        entries = (
            ring.entries[pieces[0]] if len(pieces) == 1 else np.concatenate([ring.entries[p] for p in pieces])
        )
        addresses = self._taken = entries["addr"].copy()
        lengths = entries["length"]
        # Frames of a run follow each other at the same place of the next chunk.
        breaks = lengths[1:] != lengths[:-1]
        breaks |= addresses[1:] - addresses[:-1] != np.uint64(self._chunk_bytes)
        bounds = [0, *(np.flatnonzero(breaks) + 1).tolist(), n]
        blocks: list[Frames] = []
        for i in range(len(bounds) - 1):
            begin, end = bounds[i], bounds[i + 1]
            row, column = divmod(int(addresses[begin]), self._chunk_bytes)
            blocks.append(self._data[row : row + end - begin, column : column + int(lengths[begin])])
        counters.frames_in += n
        counters.bytes_in += int(lengths.sum())
        return blocks

    def release(self) -> None:
        """The frames of the last ``take`` are not looked at any more: their chunks are the kernel's again."""
        if self._taken is None:
            return
        chunks = self._taken // np.uint64(self._chunk_bytes) * np.uint64(self._chunk_bytes)
        self._taken = None
        position, done = self._fill.producer, 0
        for piece in self._fill.pieces(position, len(chunks)):
            size = piece.stop - piece.start
            self._fill.entries[piece] = chunks[done : done + size]
            done += size
        self._fill.producer = position + done
        self._received.consumer += done

    def ask_for_more(self) -> None:
        """Before a wait: some drivers look at the fill ring only when told."""
        if self._fill.needs_wakeup:
            with contextlib.suppress(OSError):
                self.sock.recv(1, socket.MSG_DONTWAIT)

    def count_drops(self, counters: PortCounters) -> None:
        """What found no chunk since this was asked last. Raises ``OSError``."""
        found = struct.unpack("=6Q", self.sock.getsockopt(_SOL_XDP, _STATISTICS, 48))
        dropped = found[0] + found[3]
        if dropped > self._dropped:
            counters.drop("receive ring full", dropped - self._dropped)
            self._dropped = dropped

    # ---- sending

    @property
    def waiting(self) -> int:
        """Frames that were handed over and that the kernel has not taken, for all that it says."""
        return self._transmit.filled

    def send(self, frames: Frames) -> int:
        """Copy frames (n, bytes) into chunks and hand them over; returns how many: the rest found no chunk.

        They leave by ``pump``.
        """
        self._collect()
        n = min(len(frames), self._free_count)
        if not n:
            return 0
        rows = self._free[self._free_count - n : self._free_count][::-1]
        first, length = int(rows[0]), frames.shape[1]
        if int(rows[-1]) - first == n - 1 and (n < 3 or bool((rows[1:] - rows[:-1] == 1).all())):
            self._data[first : first + n, :length] = frames[:n]
        else:
            self._data[rows, :length] = frames[:n]
        ring, done = self._transmit, 0
        for piece in ring.pieces(ring.producer, n):
            size = piece.stop - piece.start
            ring.entries["addr"][piece] = rows[done : done + size] * self._chunk_bytes
            ring.entries["length"][piece] = length
            done += size
        self._free_count -= n
        ring.producer += n
        return n

    def pump(self) -> int:
        """Have the kernel send what was handed over; returns how many frames the link has dropped.

        What it has no room for waits for the next call.
        """
        ring, dropped = self._transmit, 0
        self.has_room = True
        # Kernels before 6.17 do not say how far they are until they have sent all.
        left = ring.filled if ring.needs_wakeup else 0
        while left > 0:
            fault = self._call()
            if fault == errno.EBUSY:  # the link has dropped one, behind which it stopped
                dropped += 1
                left -= 1
            elif fault == errno.EAGAIN:  # it has sent as many as it does at once, or has no room
                left -= _SENT_AT_ONCE
                self.has_room = left > 0
            else:
                break
        return dropped

    def _call(self) -> int:
        """Returns the kernel's error."""
        try:
            self.sock.send(b"", socket.MSG_DONTWAIT)
        except OSError as error:
            return error.errno or 0
        return 0

    def _collect(self) -> None:
        """Chunks whose frames have left are free."""
        ring = self._completed
        n = ring.filled
        if not n:
            return
        position = ring.consumer
        for piece in reversed(ring.pieces(position, n)):
            upto = self._free_count + piece.stop - piece.start
            self._free[self._free_count : upto] = ring.entries[piece][::-1] // np.uint64(self._chunk_bytes)
            self._free_count = upto
        ring.consumer = position + n

    def close(self) -> None:
        """Frees the queue; the socket is of no use after it."""
        # The mapped rings hold the socket, and that the queue. Frames that somebody looks at stay.
        del self._received, self._transmit, self._fill, self._completed
        self.sock.close()


def require_sockets(what: str, *, chunk_bytes: int, chunks: int) -> None:
    """Raises ``Unsupported``, with the remedy, where the kernel has no such sockets or no memory for one;
    ``PermissionError`` where this process may have none."""
    try:
        with socket.socket(AF_XDP, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as sock:
            data = np.frombuffer(mmap.mmap(-1, 2 * chunks * chunk_bytes), np.uint8)
            sock.setsockopt(
                _SOL_XDP, _UMEM_REG, struct.pack("=QQII", data.ctypes.data, data.size, chunk_bytes, 0)
            )
    except PermissionError:
        raise
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            why = (
                "the process may not open AF_XDP sockets (systemd: RestrictAddressFamilies=... AF_XDP), or "
                "the kernel is built without CONFIG_XDP_SOCKETS; use packet:"
            )
        elif error.errno in (errno.ENOBUFS, errno.ENOMEM):
            why = (
                f"it locks {2 * chunks * chunk_bytes >> 20} MiB of memory for each queue, and this process "
                "may not lock so much; systemd: LimitMEMLOCK=infinity; a shell: ulimit -l unlimited"
            )
        else:
            why = f"{error.strerror}; use packet:"
        raise Unsupported(what, why) from None
