"""TCP as :class:`inaproto.ports.ByteStream`: what TLS runs over. It carries no descriptors."""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Sequence
from typing import Final

import trio

RECEIVE_BYTES: Final = 64 << 10
TCP_NOTSENT_LOWAT: Final = 25
"""Number of the option on Linux; the standard library has no name for it."""


class TcpStream:
    """Takes ownership of a connected TCP socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        try:
            self.address = str(sock.getpeername()[0])
        except OSError:  # it has gone already; whoever reads will see
            self.address = ""

    def receive_nowait(self) -> tuple[bytes, Sequence[int]]:
        return self._sock.recv(RECEIVE_BYTES), ()

    def send_nowait(self, data: memoryview, descriptors: Sequence[int] = ()) -> int:
        if descriptors:
            raise OSError(errno.EOPNOTSUPP, "descriptors do not leave their machine")
        return self._sock.send(data, socket.MSG_NOSIGNAL)

    async def wait_receivable(self) -> None:
        await trio.lowlevel.wait_readable(self._sock)

    async def wait_sendable(self) -> None:
        await trio.lowlevel.wait_writable(self._sock)

    def fileno(self) -> int:
        return self._sock.fileno()

    def peer_pid(self) -> int:
        return 0

    def peer_is_gone(self) -> bool:
        if self._sock.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLRDHUP)
        return bool(poll.poll(0))

    def bound_buffers(self, nbytes: int) -> None:
        """The kernel's are made for speed alone: megabytes that wait in them have the link before whatever is
        more important, however slowly this side reads or writes."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, nbytes // 2)  # the kernel takes it twice
        self._sock.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, nbytes)

    def close(self) -> None:
        if self._sock.fileno() >= 0 and trio.lowlevel.in_trio_run():
            trio.lowlevel.notify_closing(self._sock)
        self._sock.close()


async def dial_tcp(host: str, port: int, wait_s: float) -> TcpStream:
    """Raises ``OSError``: the caller knows whether to try again and what to say."""
    try:
        with trio.fail_after(wait_s):
            stream = await trio.open_tcp_stream(host, port)
    except trio.TooSlowError:
        raise TimeoutError(errno.ETIMEDOUT, f"no connection within {wait_s:g} s") from None
    except OSError as error:
        cause = error.__cause__
        text = error.strerror or str(error if cause is None else _first(cause))
        raise OSError(error.errno or errno.EHOSTUNREACH, text) from None
    sock = socket.socket(fileno=stream.socket.detach())
    return TcpStream(sock)


def _first(cause: BaseException) -> BaseException:
    return _first(cause.exceptions[0]) if isinstance(cause, BaseExceptionGroup) else cause
