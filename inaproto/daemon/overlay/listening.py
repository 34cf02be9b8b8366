"""Where a process of the overlay is reached, and how it reaches others: TCP on loopback, UNIX sockets."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Final

import trio

from inaproto.client.unix_stream import dial_unix
from inaproto.daemon.overlay.models_file import Address, Tcp
from inaproto.daemon.tcp_stream import TcpStream, dial_tcp
from inaproto.daemon.unix_sockets import listen_unix
from inaproto.errors import ConfigError, FabricError, Unsupported
from inaproto.ports import ByteStream, PortClosed, StreamListener

CONNECT_S: Final = 5.0
_BACKLOG: Final = 128


class TcpListener:
    """:class:`inaproto.ports.StreamListener` for plain TCP."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    async def accept(self) -> TcpStream:
        await trio.lowlevel.checkpoint()
        while self._sock.fileno() >= 0:
            try:
                return TcpStream(self._sock.accept()[0])
            except BlockingIOError:
                try:
                    await trio.lowlevel.wait_readable(self._sock)
                except trio.ClosedResourceError:
                    break
            except ConnectionAbortedError:
                continue
            except OSError as error:
                raise FabricError(
                    "accept", "a new peer", "listening", f"{error.strerror}", retryable=True
                ) from None
        raise PortClosed("the listener was closed")

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()


def require_supported(address: Address) -> None:
    """Raises ``Unsupported``."""
    if isinstance(address, Tcp) and address.is_tls:
        raise Unsupported(f"{address}", "push and pull between machines by TLS is not built yet; use tcp://")


async def listen_at(address: Address) -> StreamListener:
    """Raises ``ConfigError`` that names the address."""
    require_supported(address)
    if isinstance(address, Path):
        return await listen_unix(address, "models: the socket of this process")
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"models: cannot listen at {address}: {error.strerror}; it must be an address of this machine "
            "and a free port"
        ) from None
    return TcpListener(sock)


async def dial(address: Address) -> ByteStream:
    """Raises ``OSError``, whose ``strerror`` is for people."""
    if isinstance(address, Path):
        await trio.lowlevel.checkpoint()
        return dial_unix(address)
    if address.is_tls:
        raise OSError(errno.EPROTONOSUPPORT, "TLS is not built yet")
    return await dial_tcp(address.host, address.port, CONNECT_S)
