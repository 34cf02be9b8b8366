"""Where control connections of other machines come in: TLS, with limits on what strangers may cost.

``run`` takes connections and shakes hands with several at once; ``accept`` gives those whose peers have
proved who they are; a session ends when its certificate is revoked. What a stranger can take is bounded:
connections per second and at once of an address, handshakes at once in all, bytes and time of each.

Invariants: a connection is in one of the counts until it is closed; when the table of handshakes is full, the
oldest makes room, which is over long since if its peer is honest; addresses make room in the table of them
when nothing of theirs is open and their allowance is whole.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import socket
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import trio

from inaproto.daemon.net.tcp_stream import TcpStream
from inaproto.daemon.net.tls import Credentials, TlsRefused
from inaproto.daemon.net.tls_stream import TlsStream, handshake
from inaproto.errors import ConfigError
from inaproto.ports import PortClosed

log = logging.getLogger("inaproto.tls")

ACCEPT_RETRY_S: Final = 0.5
BACKLOG: Final = 128
REVOKED_S: Final = 5.0
"""The list of revoked certificates is looked at so often while there are sessions."""
LOG_S: Final = 60.0
CODES_LOGGED_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class TlsLimits:
    handshakes_max: int = 64
    handshakes_of_address_max: int = 8
    handshake_s: float = 5.0
    sessions_of_address_max: int = 64
    """A machine has a session for each of its host daemons; several may share an address behind NAT."""
    connections_burst: int = 64
    """Connections of an address at once, and then so many a second:"""
    connections_per_s: float = 16.0
    addresses_max: int = 4096


@dataclass(slots=True)
class _Address:
    """What one address has open, and may still open (token bucket)."""

    allowance: float
    counted_s: float
    handshakes: int = 0
    sessions: int = 0


@dataclass(slots=True, eq=False)
class _Handshake:
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    made_room: bool = False


class TlsListener:
    """:class:`inaproto.ports.StreamListener`; made by :func:`listen_tls`, runs while ``run`` does."""

    def __init__(self, sock: socket.socket, credentials: Credentials, limits: TlsLimits) -> None:
        self._sock = sock
        self._credentials = credentials
        self._limits = limits
        self._host, self._port = sock.getsockname()[:2]
        self._ready_in, self._ready = trio.open_memory_channel[TlsStream](limits.handshakes_max)
        self._addresses: dict[str, _Address] = {}
        self._handshakes: dict[_Handshake, None] = {}
        self._sessions: dict[TlsStream, str] = {}
        """Sessions, with where each came from."""
        self._refused: Counter[str] = Counter()
        self._accepted = 0
        self._logged: dict[str, float] = {}

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    @property
    def port(self) -> int:
        return int(self._port)

    # --- StreamListener

    async def accept(self) -> TlsStream:
        try:
            return await self._ready.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise PortClosed(f"the listener at {self._host}:{self._port} was closed") from None

    def close(self) -> None:
        if self._sock.fileno() < 0:
            return
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()
        for one in self._handshakes:
            one.scope.cancel()
        self._ready_in.close()
        with suppress(trio.WouldBlock, trio.EndOfChannel):
            while True:
                self._ready.receive_nowait().close()

    # --- connections

    async def run(self) -> None:
        """Until :meth:`close`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_revoked_out)
            await self._take_connections(nursery)
            nursery.cancel_scope.cancel()

    async def _keep_revoked_out(self) -> None:
        while True:
            await trio.sleep(REVOKED_S)
            revoked = self._credentials.revoked() if self._sessions else frozenset()
            for stream, host in list(self._sessions.items()):
                if stream.identity.serial in revoked:
                    self._count("revoked", host, f"the certificate of {stream.identity} was revoked")
                    stream.close()

    async def _take_connections(self, nursery: trio.Nursery) -> None:
        while self._sock.fileno() >= 0:
            try:
                sock, (host, *_) = self._sock.accept()
            except BlockingIOError:
                try:
                    await trio.lowlevel.wait_readable(self._sock)
                except trio.ClosedResourceError:
                    return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                log.warning("no new connection: %s", error.strerror)
                await trio.sleep(ACCEPT_RETRY_S)
            else:
                self._admit(sock, group_of(host), host, nursery)
                await trio.lowlevel.checkpoint()  # however many more there are

    def _admit(self, sock: socket.socket, group: str, host: str, nursery: trio.Nursery) -> None:
        """A connection that costs too much is closed before it costs anything."""
        code = self._refusal_of(group)
        if code:
            sock.close()
            self._count(code, host, "it opens more connections than one address may")
            return
        entry = self._addresses[group]
        entry.allowance -= 1
        entry.handshakes += 1
        if len(self._handshakes) >= self._limits.handshakes_max:
            oldest = next(iter(self._handshakes))
            oldest.made_room = True
            oldest.scope.cancel()
            del self._handshakes[oldest]
        one = _Handshake()
        self._handshakes[one] = None
        nursery.start_soon(self._shake, sock, group, host, one)

    def _refusal_of(self, group: str) -> str:
        """A code, or nothing; ``group`` then has an entry."""
        limits, now = self._limits, trio.current_time()
        entry = self._addresses.get(group)
        if entry is None:
            if len(self._addresses) >= limits.addresses_max:
                self._forget_idle(now)
            if len(self._addresses) >= limits.addresses_max:
                return "too_many_addresses"
            entry = self._addresses[group] = _Address(limits.connections_burst, now)
        self._fill(entry, now)
        if entry.allowance < 1:
            return "connection_flood"
        if entry.handshakes >= limits.handshakes_of_address_max:
            return "too_many_handshakes"
        if entry.sessions + entry.handshakes >= limits.sessions_of_address_max:
            return "too_many_sessions"
        return ""

    def _fill(self, entry: _Address, now: float) -> None:
        gained = (now - entry.counted_s) * self._limits.connections_per_s
        entry.allowance = min(self._limits.connections_burst, entry.allowance + gained)
        entry.counted_s = now

    def _forget_idle(self, now: float) -> None:
        for group, entry in list(self._addresses.items()):
            self._fill(entry, now)
            if (
                not entry.handshakes
                and not entry.sessions
                and entry.allowance >= self._limits.connections_burst
            ):
                del self._addresses[group]

    async def _shake(self, sock: socket.socket, group: str, host: str, one: _Handshake) -> None:
        entry = self._addresses[group]
        below = TcpStream(sock)
        stream = None
        try:
            with one.scope, trio.fail_after(self._limits.handshake_s):
                stream = await handshake(below, self._credentials.server(), is_server=True, address=host)
        except trio.TooSlowError:
            self._count("handshake_slow", host, f"no handshake within {self._limits.handshake_s:g} s")
        except TlsRefused as refused:
            self._count(refused.code, host, refused.reason)
        except (OSError, trio.ClosedResourceError):
            self._count("gone", host, "the connection failed in the handshake")
        finally:
            entry.handshakes -= 1
            self._handshakes.pop(one, None)
            if stream is None:
                below.close()
        if one.made_room:
            self._count("made_room", host, "newer handshakes took its place")
        if stream is not None:
            entry.sessions += 1
            self._sessions[stream] = host
            stream.on_close = partial(self._session_ended, entry, stream)
            self._offer(stream, host)

    def _offer(self, stream: TlsStream, host: str) -> None:
        try:
            self._ready_in.send_nowait(stream)
        except (trio.WouldBlock, trio.ClosedResourceError, trio.BrokenResourceError):
            stream.close()
            self._count("busy", host, "nobody had time for it")
        else:
            self._accepted += 1

    def _session_ended(self, entry: _Address, stream: TlsStream) -> None:
        entry.sessions -= 1
        del self._sessions[stream]

    # --- what is told

    def _count(self, code: str, host: str, reason: str) -> None:
        self._refused[code] += 1
        now, key = trio.current_time(), f"{code} {host}"
        if now - self._logged.get(key, -math.inf) < LOG_S:
            return
        self._logged.pop(key, None)
        self._logged[key] = now
        while len(self._logged) > CODES_LOGGED_MAX:
            del self._logged[next(iter(self._logged))]
        log.warning("%s is refused (%s): %s", host, code, reason)

    def status(self) -> dict[str, Any]:
        """For ``inaproto status``."""
        return {
            "address": self.address,
            "accepted": self._accepted,
            "handshakes": len(self._handshakes),
            "sessions": sum(entry.sessions for entry in self._addresses.values()),
            "refused": dict(sorted(self._refused.items())),
            "credentials": self._credentials.status(),
        }


def group_of(host: str) -> str:
    """What is counted as one address: of IPv6 the network, a machine has 2**64 addresses in it."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
    return host


async def listen_tls(
    host: str, port: int, credentials: Credentials, limits: TlsLimits | None = None
) -> TlsListener:
    """Raises ``ConfigError`` that names the address and the remedy. Port 0 is any that is free."""
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"control_listen: {host}:{port}: {error.strerror or error}") from None
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"control_listen: cannot listen at {host}:{port}: {error.strerror}; it must be an address of "
            "this machine and a free port"
        ) from None
    return TlsListener(sock, credentials, limits or TlsLimits())
