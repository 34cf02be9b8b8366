"""A frame port over a connected UNIX stream socket (docs/protocol.md 3.9).

A plain non-blocking socket: Trio is asked only when the kernel has nothing to give or take. One
``receive`` is one ``recv`` of everything that is there, up to the receive buffer.

Invariants:

* ``receive`` has no checkpoint between taking bytes from the socket and returning their frames, so its
  cancellation loses nothing.
* What ``send_nowait`` accepted leaves in order. Writes happen at once when at least
  ``write_at_once_bytes`` wait and the socket takes them, else in ``run``, one scheduler tick later: the
  first, middle and last packets of a message then leave, and arrive, as one vector instead of three.
* A port fails alone: whatever its peer sends ends in ``PortClosed`` with the reason, here only.
"""

from __future__ import annotations

import contextlib
import math
import socket
from dataclasses import dataclass
from typing import Final

import trio

from inaproto.errors import ConfigError, LocalMisuse
from inaproto.ports import FramePortCapabilities, PortClosed, PortCounters
from inaproto.units import FRAME_BYTES_MAX, Frames
from inaproto.wire.ethernet import ETHERNET_HEADER_BYTES
from inaproto_adapters.frames.framing import PREFIX_BYTES, FrameReader, OutputQueue

_CHUNK_BYTES: Final = 256 << 10
_SOCKET_BYTES: Final = 512 << 10
"""Asked of the kernel, which doubles it for its own needs and clips it at ``net.core.wmem_max``."""
_WRITES_PER_TURN: Final = 8
"""Chunks written before other tasks have a turn, when the peer reads as fast as this side writes."""
_PARTIAL_S: Final = 10.0
"""A port whose peer falls silent in the middle of a frame ends after this long."""
_CLOSED_HERE: Final = "the port was closed on this side"


@dataclass(frozen=True, slots=True)
class FramesConfig:
    """Bounds of one frame port, in bytes."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    queue_bytes_max: int = 64 << 20
    """Output that waits for the peer, length prefixes included."""
    receive_bytes: int = 1 << 20
    """The most that one ``receive`` returns, length prefixes included."""
    write_at_once_bytes: int = 32 << 10

    def __post_init__(self) -> None:
        longest = PREFIX_BYTES + self.frame_bytes_max
        if not ETHERNET_HEADER_BYTES <= self.frame_bytes_max <= FRAME_BYTES_MAX:
            raise ConfigError(
                f"frames: frame_bytes_max={self.frame_bytes_max}: "
                f"it lies between {ETHERNET_HEADER_BYTES} and {FRAME_BYTES_MAX}"
            )
        if self.queue_bytes_max < longest:
            raise ConfigError(
                f"frames: queue_bytes_max={self.queue_bytes_max}: it must hold one frame, {longest} bytes"
            )
        if self.receive_bytes < 2 * longest:
            raise ConfigError(
                f"frames: receive_bytes={self.receive_bytes}: it must hold two frames, {2 * longest} bytes"
            )
        if self.write_at_once_bytes < 0:
            raise ConfigError(
                f"frames: write_at_once_bytes={self.write_at_once_bytes}: it cannot be negative"
            )


class StreamFramePort:
    """:class:`inaproto.ports.FramePort` over ``sock``, which it owns from now on."""

    def __init__(
        self, sock: socket.socket, config: FramesConfig | None = None, *, name: str = "frames"
    ) -> None:
        if sock.type != socket.SOCK_STREAM:
            raise LocalMisuse(f"a frame port needs a stream socket, not {sock!r}")
        self.name = name
        self._config = config or FramesConfig()
        self._sock = sock
        self._sock.setblocking(False)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        self._reader = FrameReader(
            frame_bytes_max=self._config.frame_bytes_max, buffer_bytes=self._config.receive_bytes
        )
        self._queue = OutputQueue(bytes_max=self._config.queue_bytes_max, chunk_bytes=_CHUNK_BYTES)
        self._counters = PortCounters()
        self._closed: str | None = None
        self._send_fault: str | None = None
        self._write_blocked = False
        self._idle = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        state = f"closed: {self._closed}" if self._closed else f"{self._queue.bytes} bytes queued"
        return f"<StreamFramePort {self.name}, {state}>"

    @property
    def capabilities(self) -> FramePortCapabilities:
        return FramePortCapabilities("frames", self._config.frame_bytes_max, lossless=True)

    @property
    def counters(self) -> PortCounters:
        return self._counters

    async def receive(self) -> list[Frames]:
        """The frames that are there, as views of the receive buffer; see ``FramePort.receive``."""
        await trio.lowlevel.checkpoint()
        while True:
            if self._closed is not None:
                raise PortClosed(self._closed)
            if self._reader.fault is not None:
                self._close(self._reader.fault)
                continue
            try:
                nbytes = 0 if self._reader.more else self._sock.recv_into(self._reader.free())
            except BlockingIOError:
                await self._wait_for_input()
                continue
            except OSError as error:
                self._close(self._end_reason(f"the connection failed: {error.strerror}"))
                continue
            if nbytes == 0 and not self._reader.more:
                self._close(self._end_reason("the peer closed the connection"))
                continue
            blocks = self._read(nbytes)
            if blocks:
                return blocks
            # Bytes without a whole frame, perhaps without end: the other ports have their turn too.
            await trio.lowlevel.checkpoint()

    async def _wait_for_input(self) -> None:
        """A peer may be silent for ever between frames, not within one."""
        limit = _PARTIAL_S if self._reader.end() else math.inf
        with trio.move_on_after(limit) as scope, contextlib.suppress(trio.ClosedResourceError):
            await trio.lowlevel.wait_readable(self._sock)
        if scope.cancelled_caught:
            self._close(self._end_reason(f"the peer sent no more for {_PARTIAL_S:g} s"))

    def _read(self, nbytes: int) -> list[Frames]:
        runts = self._reader.runts
        blocks = self._reader.take(nbytes)
        if self._reader.runts != runts:
            self._counters.drop("runt frame", self._reader.runts - runts)
        for block in blocks:
            self._counters.frames_in += len(block)
            self._counters.bytes_in += block.size
        return blocks

    def _end_reason(self, how: str) -> str:
        cut_off = self._reader.end()
        return f"{how}; {cut_off}" if cut_off else how

    def send_nowait(self, frames: Frames) -> int:
        """See ``FramePort.send_nowait``. Raises ``LocalMisuse`` for frames too short or too long."""
        if self._closed is not None or self._send_fault is not None:
            raise PortClosed(self._closed or self._send_fault or "")
        n, length = frames.shape
        if not ETHERNET_HEADER_BYTES <= length <= self._config.frame_bytes_max:
            raise LocalMisuse(
                f"frames of {length} bytes do not go through {self.name}, which takes "
                f"{ETHERNET_HEADER_BYTES} to {self._config.frame_bytes_max}"
            )
        accepted = self._queue.push(frames)
        while accepted < n and not self._write_blocked and self._send_fault is None:
            # Either all of it goes, or the socket takes no more: then the queue is what is full.
            self._write()
            accepted += self._queue.push(frames[accepted:])
        self._counters.frames_out += accepted
        self._counters.bytes_out += accepted * length
        if accepted < n:
            self._counters.drop("output queue full", n - accepted)
        if self._queue.bytes >= self._config.write_at_once_bytes and not self._write_blocked:
            self._write()
        if self._queue.bytes and self._idle:
            self._idle.unpark_all()
        return accepted

    async def run(self) -> None:
        """Write queued frames until the port closes; see ``FramePort.run``."""
        await trio.lowlevel.checkpoint()
        while self._closed is None and self._send_fault is None:
            if not self._queue.bytes:
                await self._idle.park()
                continue
            if self._write_blocked:
                try:
                    await trio.lowlevel.wait_writable(self._sock)
                except trio.ClosedResourceError:
                    return
                self._write_blocked = False
            self._write()
            if self._queue.bytes and not self._write_blocked:
                await trio.lowlevel.checkpoint()

    def _write(self) -> None:
        for _ in range(_WRITES_PER_TURN):
            if not self._queue.bytes:
                return
            waiting = self._queue.head()
            try:
                nbytes = self._sock.send(waiting)
            except BlockingIOError:
                self._write_blocked = True
                return
            except OSError as error:
                # What the peer sent before it went can still be received.
                self._send_fault = f"the peer takes no more frames: {error.strerror}"
                self._queue.clear()
                self._idle.unpark_all()
                return
            self._queue.written(nbytes)
            if nbytes < len(waiting):
                self._write_blocked = True
                return

    def _close(self, reason: str) -> None:
        if self._closed is not None:
            return
        self._closed = reason
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()
        self._queue.clear()
        self._idle.unpark_all()

    async def aclose(self) -> None:
        """Close both directions. Output that the socket takes at once still leaves, the rest is lost."""
        if self._closed is None and self._send_fault is None and not self._write_blocked:
            self._write()
        self._close(_CLOSED_HERE)
        await trio.lowlevel.checkpoint()


def open_frame_pair(
    config: FramesConfig | None = None, *, names: tuple[str, str] = ("a", "b")
) -> tuple[StreamFramePort, StreamFramePort]:
    """Two ports joined by a socket pair."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return StreamFramePort(left, config, name=names[0]), StreamFramePort(right, config, name=names[1])
