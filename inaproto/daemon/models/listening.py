"""Where a process of the overlay is reached, and how it reaches others: TLS, plain TCP, UNIX sockets."""

from __future__ import annotations

import errno
import socket
from dataclasses import replace
from pathlib import Path
from typing import Final

import trio

from inaproto.ca.identity import Role
from inaproto.client.unix_stream import dial_unix
from inaproto.daemon.net.control_address import Endpoint, Holder, credentials_of
from inaproto.daemon.net.tcp_stream import TcpStream, dial_tcp
from inaproto.daemon.net.tls import Credentials, TlsRefused
from inaproto.daemon.net.tls_listener import TlsLimits, TlsListener, listen_tls
from inaproto.daemon.net.tls_stream import handshake
from inaproto.daemon.net.unix_sockets import listen_unix
from inaproto.daemon.settings.models_file import Address, Models, Tcp
from inaproto.errors import ConfigError, FabricError
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


def credentials_for(models: Models, process: str, tls: Path | None, directory: Path) -> Credentials | None:
    """None where nobody uses TLS. ``tls``: their directory; without one, on loopback alone, they are made in
    ``directory``. Raises ``ConfigError``."""
    addresses = [models.processes[process], *models.processes.values()]
    found = next((one for one in addresses if isinstance(one, Tcp) and one.is_tls), None)
    if found is None:
        return None
    holder = Holder(Role.MODEL, process, tls, directory)
    return credentials_of(Endpoint(found.host, found.port, process), holder)


async def listen_at(
    address: Address, credentials: Credentials | None = None, connections: int = 0
) -> StreamListener | TlsListener:
    """``connections``: that are to be expected, all of one address if all processes are on one machine.

    Raises ``ConfigError`` that names the address. A ``TlsListener`` is to be run.
    """
    if isinstance(address, Path):
        return await listen_unix(address, "models: the socket of this process")
    if address.is_tls:
        if credentials is None:
            raise ConfigError(f"models: {address} needs certificates")
        return await listen_tls(address.host, address.port, credentials, _limits(connections))
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


def _limits(connections: int) -> TlsLimits:
    """Twice what is expected: a connection that is lost may end here later than its successor comes."""
    usual = TlsLimits()
    most = 2 * connections
    return replace(
        usual,
        handshakes_of_address_max=usual.handshakes_max // 2,
        sessions_of_address_max=max(usual.sessions_of_address_max, most),
        connections_burst=max(usual.connections_burst, most),
        connections_per_s=max(usual.connections_per_s, float(most)),
    )


async def dial(address: Address, peer: str = "", credentials: Credentials | None = None) -> ByteStream:
    """Connect. By TLS the certificate there must be that of ``peer``. Raises ``OSError`` with words for
    people."""
    if isinstance(address, Path):
        await trio.lowlevel.checkpoint()
        return dial_unix(address)
    below = await dial_tcp(address.host, address.port, CONNECT_S)
    if not address.is_tls:
        return below
    if credentials is None:
        below.close()
        raise OSError(errno.EPROTO, "there are no certificates to show")
    try:
        stream = await handshake(below, credentials.client(), is_server=False, address=below.address)
    except TlsRefused as refused:
        raise OSError(errno.EPROTO, f"TLS: {refused.reason}") from None
    if (stream.identity.role, stream.identity.name) != (Role.MODEL, peer):
        stream.close()
        raise OSError(errno.EPROTO, f"TLS: {stream.identity} answers, not {Role.MODEL.value} {peer}")
    return stream
