"""Control connections in memory: :class:`inaproto.ports.ByteStream` with seeded delays and cuts.

Time is Trio's clock, as on the links beside (:mod:`inaproto_adapters.memory.link`).

Invariants: bytes arrive once and in order, like those of a UNIX socket, whatever the delays; the end of
a stream arrives behind its last byte; what is under way is bounded. Descriptors are duplicated when
they are sent, as the kernel does it, and those that nobody received are closed with the stream. The
arrival times depend on the seed and on the order of the sends, never on the lengths, which may hold
what differs between two processes (a pid).
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from inaproto.errors import ConfigError
from inaproto.faults.streams import Seed, named_bits
from inaproto.units import Instant
from inaproto_adapters.memory.link import current_instant, park_until

_DRAW_BITS: Final = 53

Observer = Callable[[str, bytes], None]
"""Told of every send: the direction's name, such as ``h0->switch#3``, and its bytes."""


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """How the bytes of one send arrive."""

    delay_min_ns: int = 0
    delay_max_ns: int = 0
    splits: bool = False
    """Half of the sends arrive in two parts, each with its own delay."""
    bytes_max: int = 1 << 18
    """Under way in one direction; more has to wait."""

    def __post_init__(self) -> None:
        if not 0 <= self.delay_min_ns <= self.delay_max_ns:
            raise ConfigError(
                f"stream: delays of {self.delay_min_ns} to {self.delay_max_ns} ns; the shorter one first"
            )
        if self.bytes_max < 1:
            raise ConfigError(f"stream: bytes_max={self.bytes_max}: at least 1")


@dataclass(slots=True)
class _Part:
    at: Instant
    data: bytes
    descriptors: tuple[int, ...] = ()


class _Direction:
    """Bytes under way from one end to the other."""

    def __init__(self, name: str, timing: StreamTiming, seed: Seed, observe: Observer | None) -> None:
        self.name = name
        self.parts: deque[_Part] = deque()
        self.bytes = 0
        self.sender_gone = False
        self.receiver_gone = False
        self.is_cut = False
        self.readable = trio.lowlevel.ParkingLot()
        self.writable = trio.lowlevel.ParkingLot()
        self._timing = timing
        self._bits = named_bits(seed, f"control/{name}")
        self._observe = observe
        self._last = Instant(0)

    @property
    def room(self) -> int:
        return self._timing.bytes_max - self.bytes

    @property
    def next_at(self) -> Instant | None:
        return self.parts[0].at if self.parts and not self.is_cut else None

    @property
    def is_readable(self) -> bool:
        at = self.next_at
        return at is not None and at <= current_instant()

    def push(self, data: bytes, descriptors: tuple[int, ...]) -> None:
        if self._observe is not None:
            self._observe(self.name, data)
        nbytes = len(data)
        if self._timing.splits and self._draw(2) and len(data) > 1:
            cut = 1 + self._draw(len(data) - 1)
            self.parts.append(_Part(self._arrival(), data[:cut], descriptors))
            data, descriptors = data[cut:], ()
        self.parts.append(_Part(self._arrival(), data, descriptors))
        self.bytes += nbytes
        self.readable.unpark_all()

    def finish(self) -> None:
        """The sender has closed: an end behind all that is under way."""
        self.sender_gone = True
        self.parts.append(_Part(self._arrival(), b""))
        self.readable.unpark_all()

    def take(self) -> _Part:
        part = self.parts.popleft()
        self.bytes -= len(part.data)
        self.writable.unpark_all()
        return part

    def abandon(self) -> None:
        """The receiver has closed."""
        self.receiver_gone = True
        for part in self.parts:
            for descriptor in part.descriptors:
                os.close(descriptor)
        self.parts.clear()
        self.bytes = 0
        self.writable.unpark_all()

    def cut(self, is_cut: bool) -> None:
        self.is_cut = is_cut
        self.readable.unpark_all()

    def _arrival(self) -> Instant:
        spread = self._timing.delay_max_ns - self._timing.delay_min_ns + 1
        at = current_instant() + self._timing.delay_min_ns + self._draw(spread)
        self._last = Instant(max(self._last, at))
        return self._last

    def _draw(self, below: int) -> int:
        return (int(self._bits.random_raw()) >> (64 - _DRAW_BITS)) * below >> _DRAW_BITS


class MemoryStream:
    """One end; made by :func:`open_stream_pair`."""

    def __init__(self, outgoing: _Direction, incoming: _Direction, peer_pid: int) -> None:
        self._out = outgoing
        self._in = incoming
        self._peer_pid = peer_pid
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryStream {self._out.name}>"

    @property
    def is_closed(self) -> bool:
        return self._closed

    def receive_nowait(self) -> tuple[bytes, Sequence[int]]:
        self._require_open()
        if not self._in.is_readable:
            raise BlockingIOError(errno.EAGAIN, "nothing has arrived")
        if not self._in.parts[0].data:
            return b"", ()  # and stays there, for who asks again
        part = self._in.take()
        return part.data, part.descriptors

    def send_nowait(self, data: memoryview, descriptors: Sequence[int] = ()) -> int:
        self._require_open()
        if self._out.receiver_gone:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        taken = min(len(data), self._out.room)
        if taken <= 0:
            raise BlockingIOError(errno.EAGAIN, "the far side has not read")
        self._out.push(bytes(data[:taken]), tuple(map(os.dup, descriptors)))
        return taken

    async def wait_receivable(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self._closed and not self._in.is_readable:
            await park_until(self._in.readable, self._in.next_at)
        if self._closed:
            raise trio.ClosedResourceError("closed on this side")

    async def wait_sendable(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self._closed and self._out.room <= 0 and not self._out.receiver_gone:
            await self._out.writable.park()
        if self._closed:
            raise trio.ClosedResourceError("closed on this side")

    def fileno(self) -> int:
        raise OSError(errno.ENOTSUP, "a connection in memory has no descriptor to poll")

    def peer_pid(self) -> int:
        return self._peer_pid

    def peer_is_gone(self) -> bool:
        return self._in.sender_gone and not self._in.is_cut and self._in.parts[-1].at <= current_instant()

    def cut(self, is_cut: bool) -> None:
        """While the connection is cut nothing arrives at either end; then all that was sent."""
        self._out.cut(is_cut)
        self._in.cut(is_cut)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._out.finish()
            self._in.abandon()
            self._out.writable.unpark_all()
            self._in.readable.unpark_all()

    def _require_open(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def open_stream_pair(
    timing: StreamTiming | None = None,
    *,
    seed: Seed = 0,
    names: tuple[str, str] = ("a", "b"),
    pids: tuple[int, int] = (1, 2),
    observe: Observer | None = None,
) -> tuple[MemoryStream, MemoryStream]:
    """Two connected ends; ``names`` and ``pids`` of the first and the second.

    The timing of a direction is the stream ``control/<from>-><to>`` of ``seed``: give the connections of
    one world different names.
    """
    first, second = names
    timing = timing or StreamTiming()
    forth = _Direction(f"{first}->{second}", timing, seed, observe)
    back = _Direction(f"{second}->{first}", timing, seed, observe)
    return MemoryStream(forth, back, pids[1]), MemoryStream(back, forth, pids[0])
