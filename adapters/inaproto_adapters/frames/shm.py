"""A frame port in memory that two processes of this machine share (docs/protocol.md 3.9): a ring each
way.

Whoever connects makes the memory, which nobody can make smaller, and sends it along the UNIX socket in
its first message. From then on the socket carries no frame: a byte in it is a bell for a side that
sleeps, and its end is the end of the port. A frame costs one copy, into the ring, or none if it was built in
memory that the ring lent, and the other side works on it where it lies; a system call is made only to wake a
reader that has found nothing.

At a listener whoever sends frames on the socket instead is served as the adapter ``frames`` does. To a
peer that has sent nothing yet frames go on the socket, some KiB at most: one that shares memory drops them.

The ring is the bounded queue: what finds no room is dropped and counted. What a peer writes there is
checked (``shared_ring``), but a peer can change a frame while it is looked at, so the two must trust each
other as far as processes of one user do; those of another user, root aside, are refused.

Invariants:

* ``receive`` cannot be cancelled between taking frames from the ring and returning them, so that loses
  nothing.
* What a peer sent before its end is received before ``PortClosed``.
* A port fails alone: whatever its peer does ends in ``PortClosed`` with the reason, here only.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import trio

from inaproto.client.foreign_descriptors import discard
from inaproto.errors import ConfigError, FabricError, LocalMisuse, Unsupported
from inaproto.ports import FramePortCapabilities, PortClosed, PortCounters
from inaproto.units import FRAME_BYTES_MAX, Frames, S
from inaproto.wire.ethernet import ETHERNET_HEADER_BYTES
from inaproto_adapters.frames.framing import PREFIX_BYTES
from inaproto_adapters.frames.listener import SocketListener, connect_to, listen_at
from inaproto_adapters.frames.port import StreamFramePort
from inaproto_adapters.frames.shared_ring import (
    DATA_BYTES_MIN,
    LendingWriter,
    Reads,
    RingBroken,
    RingShape,
    Writes,
    can_share,
    open_reader,
    open_writer,
)

_OFFER: Final = struct.Struct(">4sIQQ")
_MAGIC: Final = b"\xffina"
"""No length of a frame: whoever expects frames on this socket says so."""
_VERSION: Final = 1
_BELL: Final = b"\x00"
_NO: Final = b"\xff\xff"
"""Before the text that says why."""
_EARLY_BYTES_MAX: Final = 64 << 10
"""That are sent to a peer of which nothing is known: a socket takes so many at once."""
_SLOTS: Final = 8192
_SLOTS_MAX: Final = 1 << 20
_DATA_BYTES_MAX: Final = 1 << 30
_QUEUE_BYTES: Final = 64 << 20
_RECEIVE_BYTES: Final = 1 << 20
_BELLS: Final = 4096
_SEALS: Final = fcntl.F_SEAL_SHRINK
_CLOSED_HERE: Final = "the port was closed on this side"
_CREDENTIALS: Final = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class ShmConfig:
    """Bounds of one port."""

    queue_bytes_max: int = _QUEUE_BYTES
    """Memory of frames each way, of which as much is taken up as is ever used at once."""

    def __post_init__(self) -> None:
        if not DATA_BYTES_MIN <= self.queue_bytes_max <= _DATA_BYTES_MAX:
            raise ConfigError(
                f"shm: queue_bytes_max={self.queue_bytes_max}: "
                f"it lies between {DATA_BYTES_MIN} and {_DATA_BYTES_MAX}"
            )


class ShmPort:
    """:class:`inaproto.ports.FramePort` beside ``sock``, which it owns from now on.

    One that accepted has its rings when the peer's first message has come, which it looks for itself. If
    that is a frame, the peer shares no memory: then the port is one of frames on a stream, and tells so.
    """

    def __init__(self, sock: socket.socket, *, name: str, accepts: bool) -> None:
        sock.setblocking(False)
        self.name = name
        self._sock = sock
        self._counters = PortCounters()
        self._writer: Writes | None = None
        self._reader: Reads | None = None
        self._closed: str | None = None
        self._fault: str | None = None
        """Why the peer gets and gives no more; what it gave before can still be received."""
        self._accepts = accepts
        self._answer: bytearray | None = None if accepts else bytearray()
        """What the peer has said before it said that it has the memory; None: it has."""
        self._early_bytes = 0
        self._owes_bell = False
        """Whether the peer sleeps over frames that are there."""
        self._stream: StreamFramePort | None = None
        """If the peer sends frames."""
        self._ended = trio.Event()
        """The rings are not used any more, or never will be."""
        if accepts:
            self._look_for_offer()

    @property
    def capabilities(self) -> FramePortCapabilities:
        if self._stream is not None:
            return self._stream.capabilities
        return FramePortCapabilities("shared memory", FRAME_BYTES_MAX, lossless=True)

    @property
    def counters(self) -> PortCounters:
        return self._counters if self._stream is None else self._stream.counters

    # ---- both ends get the memory

    def offer(self, config: ShmConfig) -> None:
        """Make the memory and send it. Raises ``OSError``."""
        shape = RingShape(_SLOTS, config.queue_bytes_max)
        fd = os.memfd_create(f"inaproto {self.name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, 2 * shape.nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._map(fd, shape)
            socket.send_fds(self._sock, [_OFFER.pack(_MAGIC, _VERSION, shape.slots, shape.data_bytes)], [fd])
        finally:
            os.close(fd)

    def _look_for_offer(self) -> bool:
        """Take the memory if it has come; returns whether it has, or can come no more."""
        fds: list[int] = []
        try:
            first = self._sock.recv(len(_MAGIC), socket.MSG_PEEK)
            if first and not _MAGIC.startswith(first):
                self._stream = StreamFramePort(self._sock, name=self.name)
                self._stream.counters.frames_out = self._counters.frames_out
                self._stream.counters.bytes_out = self._counters.bytes_out
                self._stream.counters.drops.update(self._counters.drops)
                self._ended.set()
                return True
            data, fds, _, _ = socket.recv_fds(self._sock, _OFFER.size, 4, socket.MSG_CMSG_CLOEXEC)
            if not data:
                self._fault = "the peer closed the connection before it sent its memory"
                return True
            self._require_same_user()
            self._take_up(data, fds)
            self._say(_MAGIC)
        except BlockingIOError:
            return False
        except (OSError, _Refused) as error:
            self._fault = f"what the peer sent is no shared memory: {error}"
            with contextlib.suppress(OSError):
                self._sock.send(_NO + str(error).encode())
        finally:
            for fd in fds:
                discard(fd)
        return True

    def _say(self, what: bytes) -> None:
        """Whole, or the peer cannot follow any more."""
        try:
            sent = self._sock.send(what, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        if sent < len(what):
            raise _Refused("it does not read what it is sent")

    def _require_same_user(self) -> None:
        _, theirs, _ = _CREDENTIALS.unpack(
            self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        own = os.geteuid()
        if theirs not in (own, 0) and own != 0:
            raise _Refused(f"user {own} shares no memory with user {theirs}; use the adapter frames there")

    def _take_up(self, data: bytes, fds: Sequence[int]) -> None:
        if len(data) < _OFFER.size:
            raise _Refused(f"its first message has {len(data)} bytes, of {_OFFER.size}")
        _, version, slots, data_bytes = _OFFER.unpack(data)
        if version != _VERSION:
            raise _Refused(f"version {version} of rings is not known here, {_VERSION} is")
        if not 1 <= slots <= _SLOTS_MAX or not DATA_BYTES_MIN <= data_bytes <= _DATA_BYTES_MAX:
            raise _Refused(f"rings of {slots} descriptors and {data_bytes} bytes cannot be")
        if len(fds) != 1:
            raise _Refused(f"{len(fds)} descriptors came with it, 1 is the memory")
        shape = RingShape(slots, data_bytes)
        try:
            seals = fcntl.fcntl(fds[0], fcntl.F_GET_SEALS)
        except OSError:
            raise _Refused("its memory is no memfd") from None
        if not seals & _SEALS:
            raise _Refused("its memory is not sealed against shrinking")
        if os.fstat(fds[0]).st_size < 2 * shape.nbytes:
            raise _Refused(f"its memory has {os.fstat(fds[0]).st_size} bytes, of {2 * shape.nbytes}")
        page = os.fstatvfs(fds[0]).f_bsize
        if page != mmap.PAGESIZE:  # touching a huge page that cannot be had any more is SIGBUS
            raise _Refused(f"its memory has pages of {page} bytes; only {mmap.PAGESIZE} are taken")
        self._map(fds[0], shape)

    def _map(self, fd: int, shape: RingShape) -> None:
        """The first ring is written by whoever made the memory."""
        memory = np.frombuffer(mmap.mmap(fd, 2 * shape.nbytes), np.uint8)
        rings = memory[: shape.nbytes], memory[shape.nbytes :]
        theirs, own = rings if self._accepts else rings[::-1]
        self._writer = open_writer(own, shape)
        self._reader = open_reader(theirs, shape, min(_RECEIVE_BYTES, shape.data_bytes // 2))

    def ring(self) -> None:
        """See ``RingsLater.ring``."""
        if not self._owes_bell:
            return
        self._owes_bell = False
        try:
            self._sock.send(_BELL, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            pass  # bells that it has not heard are there
        except OSError as error:
            # What the peer sent before it went can still be received.
            self._fault = f"the peer takes no more frames: {error.strerror}"

    # ---- frames

    def lent_memory(self) -> Frames:
        """See ``LendsMemory``."""
        assert isinstance(self._writer, LendingWriter), "it has lent some"
        return self._writer.data

    def lend(self, nbytes: int) -> int:
        """See ``LendsMemory``."""
        writer = self._writer
        return writer.lend(nbytes) if isinstance(writer, LendingWriter) else -1

    def settle(self) -> None:
        """See ``LendsMemory``."""
        if isinstance(self._writer, LendingWriter):
            self._writer.settle()

    async def receive(self) -> list[Frames]:
        """The frames that have come, where the peer put them; see ``FramePort.receive``."""
        await trio.lowlevel.checkpoint_if_cancelled()
        has_waited = False
        while True:
            if self._stream is not None:
                return await self._stream.receive()
            if self._closed is not None:
                raise PortClosed(self._closed)
            fault = self._fault  # before the ring: what came before it is there now
            if self._reader is not None:
                try:
                    blocks, frames, nbytes = self._reader.take()
                except RingBroken as broken:
                    self._close(f"the peer broke the ring: {broken}")
                    continue
                if blocks:
                    self._counters.frames_in += frames
                    self._counters.bytes_in += nbytes
                    if not has_waited:  # a peer that is never silent leaves others their turn
                        await trio.lowlevel.cancel_shielded_checkpoint()
                    return blocks
            if fault is not None:
                self._close(fault)
                continue
            await self._wait_for_bell()
            has_waited = True

    async def _wait_for_bell(self) -> None:
        with contextlib.suppress(trio.ClosedResourceError):
            await trio.lowlevel.wait_readable(self._sock)
        if self._closed is not None or self._stream is not None or self._fault is not None:
            return  # something was sent meanwhile, which found what is on the socket
        if self._reader is None:
            self._look_for_offer()
            return
        try:
            bells = self._sock.recv(_BELLS)
        except BlockingIOError:
            return
        except ConnectionResetError:  # it had not heard all bells
            bells = b""
        except OSError as error:
            self._fault = f"the connection failed: {error.strerror}"
            return
        if not bells:
            self._fault = "the peer closed the connection"
            if self._answer is not None:
                self._fault += " before it took the memory; it must use the adapter shm, too"
        elif self._answer is not None:
            self._answer += bells
            self._read_answer(self._answer)

    def _read_answer(self, answer: bytearray) -> None:
        """Perhaps behind frames that the peer sent before it knew that there is memory."""
        while len(answer) >= len(_MAGIC):
            if answer.startswith(_MAGIC):
                self._answer = None
                return
            if answer.startswith(_NO):
                self._fault = f"the peer refused the memory: {answer[2:200].decode(errors='replace')}"
                return
            frame_bytes = int.from_bytes(answer[:PREFIX_BYTES], "big")
            if frame_bytes > FRAME_BYTES_MAX:
                self._fault = "the peer answered what cannot be"
                return
            if len(answer) < PREFIX_BYTES + frame_bytes:
                return
            del answer[: PREFIX_BYTES + frame_bytes]
            self._counters.drop("before memory was shared")

    def send_nowait(self, frames: Frames) -> int:
        """See ``FramePort.send_nowait``. Raises ``LocalMisuse`` for frames too short or too long."""
        return len(frames) - self.send_blocks_nowait((frames,))

    def send_blocks_nowait(self, blocks: Sequence[Frames]) -> int:
        """See ``SendsBlocks``."""
        refused = self.send_blocks_quietly(blocks)
        self.ring()
        return refused

    def send_blocks_quietly(self, blocks: Sequence[Frames]) -> int:
        """See ``RingsLater``."""
        if self._stream is not None:
            return sum(len(frames) - self._stream.send_nowait(frames) for frames in blocks)
        if self._closed is not None or self._fault is not None:
            raise PortClosed(self._closed or self._fault or "")
        wanted = 0
        for frames in blocks:
            n, length = frames.shape
            if not ETHERNET_HEADER_BYTES <= length <= FRAME_BYTES_MAX:
                raise LocalMisuse(
                    f"frames of {length} bytes do not go through {self.name}, which takes "
                    f"{ETHERNET_HEADER_BYTES} to {FRAME_BYTES_MAX}"
                )
            wanted += n
        if self._writer is None:
            if self._look_for_offer():
                # `receive` may wait for what was just read. No bell wakes it: to its peer it does not sleep,
                # as it has not looked into the ring yet.
                trio.lowlevel.notify_closing(self._sock)
                return self.send_blocks_quietly(blocks)
            return sum([self._send_early(frames) for frames in blocks])
        try:
            written = self._writer.push(blocks)
        except RingBroken as broken:
            reason = f"the peer broke the ring: {broken}"
            self._close(reason)
            raise PortClosed(reason) from None
        self._counters.frames_out += written.frames
        self._counters.bytes_out += written.nbytes
        self._owes_bell = self._owes_bell or written.wakes
        if written.frames < wanted:
            self._counters.drop("output queue full", wanted - written.frames)
        return wanted - written.frames

    def _send_early(self, frames: Frames) -> int:
        """To a peer that may wait for frames on the socket; returns how many were not sent."""
        n: int = frames.shape[0]
        length: int = frames.shape[1]
        fit = min(n, (_EARLY_BYTES_MAX - self._early_bytes) // (PREFIX_BYTES + length))
        early = b"".join(length.to_bytes(PREFIX_BYTES, "big") + frame.tobytes() for frame in frames[:fit])
        self._early_bytes += len(early)
        try:
            self._say(early)
        except (OSError, _Refused) as error:
            self._fault = f"the peer takes no more frames: {error}"
            return n
        self._counters.frames_out += fit
        self._counters.bytes_out += fit * length
        if fit < n:
            self._counters.drop("output queue full", n - fit)
        return n - fit

    async def run(self) -> None:
        """Wait for the end: nothing is queued outside the ring. See ``FramePort.run``."""
        await self._ended.wait()
        if self._stream is not None:
            await self._stream.run()

    def _close(self, reason: str) -> None:
        if self._closed is not None:
            return
        self._closed = reason
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()
        self._writer = self._reader = None
        self._owes_bell = False
        self._ended.set()

    async def aclose(self) -> None:
        """Close both directions; what was sent stays there for the peer."""
        if self._stream is not None:
            await self._stream.aclose()
            return
        self._close(_CLOSED_HERE)
        await trio.lowlevel.checkpoint()


class _Refused(Exception):
    """The memory is not what it must be."""


@dataclass(frozen=True, slots=True)
class ShmAdapter:
    """Ports of one configuration."""

    config: ShmConfig

    async def listen(self, path: str | Path) -> SocketListener[ShmPort]:
        """See ``listen_at``."""
        return await listen_at(path, lambda sock, name: ShmPort(sock, name=name, accepts=True))

    async def connect(self, path: str | Path, *, wait_ns: int = 10 * S, name: str = "") -> ShmPort:
        """See ``connect_to``. Raises a retryable ``FabricError``, too, where there is no memory to share."""
        sock = await connect_to(path, wait_ns=wait_ns)
        port = ShmPort(sock, name=name or Path(path).name, accepts=False)
        try:
            port.offer(self.config)
        except OSError as error:
            await port.aclose()
            raise FabricError(
                "connect", f"the switch port at {path}", "sharing memory", f"{error.strerror}", retryable=True
            ) from None
        return port


def open_shm(*, queue_bytes_max: int = _QUEUE_BYTES) -> ShmAdapter:
    """The adapter with this bound. Raises ``ConfigError``, and ``Unsupported`` where it cannot work."""
    if not can_share():
        raise Unsupported(
            "adapter 'shm'",
            "on this processor it needs the compiled part of ports (make venv, with a C compiler); "
            "use the adapter frames",
        )
    return ShmAdapter(ShmConfig(queue_bytes_max))
