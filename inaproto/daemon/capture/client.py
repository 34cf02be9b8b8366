"""Asking a switch for a capture, and taking what comes."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import trio

from inaproto.daemon.net.control_stream import DEAD_S, ControlStream, EndOfChannel
from inaproto.daemon.net.unix_sockets import connect_unix
from inaproto.errors import ConfigError, DecodeError, InaprotoError
from inaproto.wire.control import why_not
from inaproto.wire.control_messages import Error, Message, Ping, Pong
from inaproto.wire.messages.capture import Capture, CaptureBegun, CaptureEnd, CaptureEnded

PING_S = 2.0
RECEIVE_BYTES = 1 << 18


class CaptureFailed(InaprotoError):
    """The switch gave none; the text says why."""


async def capture(
    path: Path,
    asked: Capture,
    take: Callable[[bytes], None],
    *,
    begun: Callable[[tuple[str, ...]], None] = lambda ports: None,
    enough: trio.Event | None = None,
) -> CaptureEnded:
    """Give all pcapng that comes to ``take``, in a thread, until the capture ends; ``enough`` ends it before.

    ``begun`` gets the names of the ports. Raises ``CaptureFailed``, and what ``take`` raises.
    """
    stream = await _connect(path)
    ours, theirs = socket.socketpair()
    data = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
    try:
        with theirs:
            await stream.send(asked, descriptors=[theirs.fileno()])
        answer = await _answer(stream, path)
        if not isinstance(answer, CaptureBegun):
            raise CaptureFailed(f"{path}: {answer.message if isinstance(answer, Error) else answer}")
        begun(answer.ports)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_keep_alive, stream)
            if enough is not None:
                nursery.start_soon(_end, stream, enough)
            try:
                last = await _receive(data, take, stream, path)
            except (InaprotoError, OSError) as error:
                last = error  # a nursery would wrap it
            nursery.cancel_scope.cancel()
        if isinstance(last, Exception):
            raise last
        return last
    finally:
        await trio.aclose_forcefully(data)
        stream.close()


async def _connect(path: Path) -> ControlStream:
    try:
        return ControlStream(await connect_unix(path, "capture"))
    except OSError as error:
        raise CaptureFailed(f"{path}: cannot connect: {error.strerror}; is a switch started there?") from None


async def _receive(
    data: trio.SocketStream, take: Callable[[bytes], None], stream: ControlStream, path: Path
) -> CaptureEnded | Exception:
    async for chunk in data:
        # It may wait for who reads; the switch is to hear of us meanwhile.
        await trio.to_thread.run_sync(take, bytes(chunk), abandon_on_cancel=True)
    with trio.move_on_after(DEAD_S):
        last = await _answer(stream, path)
        if isinstance(last, CaptureEnded):
            return last
    return CaptureFailed(f"{path}: the capture ended without a word")


async def _answer(stream: ControlStream, path: Path) -> Message:
    try:
        while True:
            message = await stream.receive()
            if not isinstance(message, Ping | Pong):
                return message
    except EndOfChannel as end:
        raise CaptureFailed(f"{path}: the connection was {end.reason}") from None
    except DecodeError as error:
        raise CaptureFailed(f"{path}: {why_not(error, 'is no inaproto switch')}") from None


async def _keep_alive(stream: ControlStream) -> None:
    try:
        while True:
            await trio.sleep(PING_S)
            await stream.send(Ping(id=2))
    except EndOfChannel:
        return  # what is on its way in still comes


async def _end(stream: ControlStream, enough: trio.Event) -> None:
    await enough.wait()
    try:
        await stream.send(CaptureEnd(id=3))
    except EndOfChannel:
        return


def control_socket(path: Path) -> Path:
    """Control socket of a switch, named by its directory or by the socket itself. Raises ``ConfigError``."""
    if not path.is_dir():
        return path
    found = path / "control.sock"
    if not found.exists():
        listed = ", ".join(sorted(name for name in os.listdir(path) if name.endswith(".sock"))) or "none"
        raise ConfigError(f"{path}: no switch has its socket here; sockets: {listed}")
    return found
