"""Who asks a switch for a capture, and what becomes of it; also the one that runs from its start."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, Final

import trio

from inaproto.client.foreign_descriptors import discard, discard_socket
from inaproto.daemon.capture.recording import Recording, Sink
from inaproto.daemon.net.control_stream import ControlStream, EndOfChannel
from inaproto.daemon.switch.ports import PortBoard
from inaproto.errors import ConfigError, InvariantBroken
from inaproto.wire.control_messages import Error, Message
from inaproto.wire.messages.capture import Capture, CaptureBegun, CaptureEnd, CaptureEnded

log = logging.getLogger("inaproto.switch")

CAPTURE_REFUSED: Final = "capture_refused"
FLUSH_S: Final = 1.0
RECORDINGS_MAX: Final = 8
"""At once: each copies all frames."""
_FILE_MODE: Final = 0o640


class CaptureRefused(Exception):
    """The text says why, and what to ask for."""


class CaptureDesk:
    """The recordings of a switch."""

    def __init__(self, board: PortBoard) -> None:
        self._board = board
        self._asked_for: list[Recording] = []
        """Until all is written: what is queued is memory, whether the recording has ended or not."""
        self._file: Recording | None = None

    def status(self) -> list[dict[str, Any]]:
        """Those that are not written yet, and the one to a file even when that is full."""
        files = [] if self._file is None else [self._file]
        return [one.status() for one in (*files, *self._asked_for)]

    def begin(self, asked: Capture, to: str) -> Recording:
        """Raises ``CaptureRefused``."""
        if len(self._asked_for) >= RECORDINGS_MAX:
            raise CaptureRefused(f"{RECORDINGS_MAX} captures run already; end one of them")
        known = self._board.port_names()
        unknown = sorted(set(asked.ports) - set(known))
        if unknown:
            raise CaptureRefused(
                f"there is no port {', '.join(unknown)}; ports: {', '.join(known) or 'none'}"
            )
        recording = Recording(to, ports=frozenset(asked.ports) or None, frames_max=asked.frames_max)
        self._board.record(recording)
        self._asked_for.append(recording)
        return recording

    def finish(self, recording: Recording, reason: str) -> None:
        """It sees nothing more."""
        recording.end(reason)
        self._board.forget(recording)

    async def run(self, recording: Recording, sock: socket.socket, duration_ms: int) -> None:
        """Write to a connected stream socket until the recording has ended, then close it."""

        async def send(data: bytes) -> None:
            await _send_all(sock, data)

        try:
            async with trio.open_nursery() as nursery:
                if duration_ms:
                    nursery.start_soon(self._end_after, recording, duration_ms)
                await recording.write(send)
                nursery.cancel_scope.cancel()
        finally:
            self.finish(recording, "its capture was cancelled")
            self._asked_for.remove(recording)
            discard_socket(sock)

    async def _end_after(self, recording: Recording, duration_ms: int) -> None:
        await trio.sleep(duration_ms / 1000)
        self.finish(recording, f"{duration_ms / 1000:g} s")

    # --- the one to a file

    def open_file(self, path: Path, bytes_max: int) -> FileIO:
        """Begin it. Raises ``ConfigError`` if the file cannot be made."""
        try:
            file = FileIO(path, "w", opener=_open_at_once)
        except OSError as error:
            raise ConfigError(f"capture: cannot write {path}: {error.strerror}") from None
        self._file = Recording(str(path), bytes_max=bytes_max)
        self._board.record(self._file)
        return file

    async def keep_file(self, file: FileIO) -> None:
        """Until cancelled; what is queued then is given a bounded time. A full file says so, once."""
        recording = self._file
        if recording is None:
            raise InvariantBroken("no file was opened")

        async def put(data: bytes) -> None:
            await trio.to_thread.run_sync(_put, file, data, abandon_on_cancel=True)

        with file:
            async with trio.open_nursery() as nursery:
                writer = trio.CancelScope(shield=True)
                nursery.start_soon(self._write_file, recording, put, writer)
                try:
                    await trio.sleep_forever()
                finally:
                    self.finish(recording, "the switch was stopped")
                    writer.deadline = trio.current_time() + FLUSH_S

    async def _write_file(self, recording: Recording, put: Sink, scope: trio.CancelScope) -> None:
        with scope:
            await recording.write(put)
        self.finish(recording, "its switch did not wait for it")
        log.warning(
            "capture %s ended: %s; %d frames are in it, %d are not",
            recording.to,
            recording.ended,
            recording.frames,
            recording.lost,
        )


async def _send_all(sock: socket.socket, data: bytes) -> None:
    """Raises ``OSError``."""
    left = memoryview(data)
    while left:
        try:
            # Each call says that it must not wait: the client has the socket too, and sets its mode.
            sent = sock.send(left, socket.MSG_DONTWAIT)
        except BlockingIOError:
            await trio.lowlevel.wait_writable(sock)
        else:
            left = left[sent:]
            await trio.lowlevel.checkpoint()


def _open_at_once(path: str, flags: int) -> int:
    """For a pipe that nobody reads, not at all. The frames are the group's to read, as at the socket."""
    fd = os.open(path, flags | os.O_NONBLOCK, _FILE_MODE)
    os.set_blocking(fd, True)
    return fd


def _put(file: FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) or 0 :]


class CaptureClient:
    """A control connection's capture; one at a time. ``nursery`` lives as long as the connection."""

    def __init__(self, desk: CaptureDesk, stream: ControlStream, nursery: trio.Nursery) -> None:
        self._desk = desk
        self._stream = stream
        self._nursery = nursery
        self._recording: Recording | None = None

    def said(self, message: Capture | CaptureEnd) -> None:
        match message:
            case Capture():
                try:
                    self._begin(message)
                except CaptureRefused as refused:
                    self._tell(Error(code=CAPTURE_REFUSED, message=str(refused), of=message.id))
            case CaptureEnd():
                if self._recording is not None:
                    self._desk.finish(self._recording, "the client has enough")

    def _begin(self, asked: Capture) -> None:
        descriptors = []
        while (descriptor := self._stream.take_descriptor()) is not None:
            descriptors.append(descriptor)
        sock = stream_socket(descriptors)
        try:
            if self._recording is not None:
                raise CaptureRefused("this connection has a capture already")
            recording = self._desk.begin(asked, f"process {self._stream.peer_pid()}")
        except CaptureRefused:
            discard_socket(sock)
            raise
        self._recording = recording
        self._tell(CaptureBegun(id=asked.id, ports=recording.ports))
        self._nursery.start_soon(self._run, recording, sock, asked)

    async def _run(self, recording: Recording, sock: socket.socket, asked: Capture) -> None:
        await self._desk.run(recording, sock, asked.duration_ms)
        self._recording = None
        frames, lost = recording.frames, recording.lost
        self._tell(CaptureEnded(id=asked.id, frames=frames, lost=lost, reason=recording.ended))

    def _tell(self, message: Message) -> None:
        with suppress(EndOfChannel):  # the task that receives hears of it, too
            self._stream.send_nowait(message)


def stream_socket(descriptors: Sequence[int]) -> socket.socket:
    """Takes ownership. Raises ``CaptureRefused`` unless it is one connected stream socket."""
    if len(descriptors) != 1:
        for descriptor in descriptors:
            discard(descriptor)
        raise CaptureRefused("a capture comes with one descriptor, that of a socket for what is captured")
    try:
        sock = socket.socket(fileno=descriptors[0])
    except OSError as error:
        discard(descriptors[0])
        raise CaptureRefused(f"what came with the request is no socket: {error.strerror}") from None
    if sock.type != socket.SOCK_STREAM:
        discard_socket(sock)
        raise CaptureRefused("what came with the request is no stream socket")
    sock.setblocking(False)
    return sock
