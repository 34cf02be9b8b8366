"""Control connections over UNIX stream sockets: :class:`inaproto.ports.ByteStream` for the field.

A plain non-blocking socket rather than a ``trio.SocketStream``: whoever sends must be able to write from
synchronous code, descriptors need ``recvmsg``, and clients without an event loop poll it themselves.
"""

from __future__ import annotations

import array
import os
import select
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import trio

from inaproto.client.foreign_descriptors import discard
from inaproto.errors import DecodeError
from inaproto.ports import ByteStream

DESCRIPTORS_MAX: Final = 4
"""Descriptors that may come at once or wait for their message; a peer that sends more is cut off."""
_RECEIVE_BYTES: Final = 64 << 10
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(DESCRIPTORS_MAX * 4)
# Of plain integers: two members of an enumeration are put together by a call of Python.
_CLOSED_ON_EXEC: Final = int(socket.MSG_CMSG_CLOEXEC)
_CUT_OFF: Final = int(socket.MSG_CTRUNC)
_NO_SIGNAL: Final = int(socket.MSG_NOSIGNAL)


class PeerCredentials(NamedTuple):
    pid: int
    uid: int
    gid: int


class UnixStream:
    """Takes ownership of a connected UNIX stream socket; see ``inaproto.ports.ByteStream``."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock

    def receive_nowait(self) -> tuple[bytes, Sequence[int]]:
        data, ancillary, flags, _ = self._sock.recvmsg(_RECEIVE_BYTES, _ANCILLARY_BYTES, _CLOSED_ON_EXEC)
        descriptors: list[int] = []
        for level, kind, packed in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = array.array("i")
                whole.frombytes(packed[: len(packed) - len(packed) % whole.itemsize])
                descriptors.extend(whole)
        if flags & _CUT_OFF:
            for descriptor in descriptors:
                discard(descriptor)
            raise DecodeError("control", f"more than {DESCRIPTORS_MAX} descriptors at once")
        return data, descriptors

    def send_nowait(self, data: memoryview, descriptors: Sequence[int] = ()) -> int:
        if not descriptors:
            return self._sock.send(data, _NO_SIGNAL)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        return self._sock.sendmsg([data], rights, _NO_SIGNAL)

    async def wait_receivable(self) -> None:
        await trio.lowlevel.wait_readable(self._sock)

    async def wait_sendable(self) -> None:
        await trio.lowlevel.wait_writable(self._sock)

    def fileno(self) -> int:
        return self._sock.fileno()

    def peer_credentials(self) -> PeerCredentials:
        """Process, user and group of the far side, as the kernel vouches for them."""
        raw = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return PeerCredentials(*struct.unpack("3i", raw))

    def peer_pid(self) -> int:
        return self.peer_credentials().pid

    def peer_is_gone(self) -> bool:
        poll = select.poll()
        poll.register(self._sock, select.POLLRDHUP)
        return bool(poll.poll(0))

    def detach(self) -> socket.socket:
        """The socket, which is the caller's from now on."""
        return self._sock

    def close(self) -> None:
        if self._sock.fileno() >= 0 and trio.lowlevel.in_trio_run():
            trio.lowlevel.notify_closing(self._sock)
        self._sock.close()


def as_stream(connection: ByteStream | socket.socket) -> ByteStream:
    """``connection`` itself, or the stream over a connected UNIX socket."""
    return UnixStream(connection) if isinstance(connection, socket.socket) else connection


def dial_unix(path: Path) -> UnixStream:
    """Connect to the listener at ``path``; a UNIX socket is connected at once or not at all.

    Raises ``OSError``; ``BlockingIOError`` when more connections wait there than it keeps.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        sock.connect(os.fspath(path))
    except BaseException:
        sock.close()
        raise
    return UnixStream(sock)
