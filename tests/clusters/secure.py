"""A deployment with its authority, a switch that listens for other machines, and clients of every kind."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inaproto.ca.authority import Authority, create
from inaproto.ca.identity import Role
from inaproto.daemon.net.control_address import Endpoint, TlsDoor
from inaproto.daemon.net.control_stream import ControlStream, EndOfChannel
from inaproto.daemon.net.tcp_stream import TcpStream, dial_tcp
from inaproto.daemon.net.tls import ALPN, Credentials
from inaproto.daemon.net.tls_stream import handshake
from inaproto.daemon.observe.status import ask
from tests.clusters.switch import ControlHost, Running, running_switch
from tests.unit.rendezvous_members import hello

LOOPBACK = "127.0.0.1"
SPINE = "spine"


class Deployment:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.authority = create(root / "ca")

    def issue(
        self,
        role: Role,
        name: str,
        *,
        days: float = 1,
        now: datetime | None = None,
        addresses: Sequence[str] = (),
        by: Authority | None = None,
    ) -> Path:
        out = self.root / f"{role.value}-{name}"
        (by or self.authority).issue(role, name, directory=out, days=days, now=now, addresses=addresses)
        return out

    def host(self, name: str = "h0") -> Path:
        return self.issue(Role.HOST, name)


class SecureSwitch:
    def __init__(self, running: Running, deployment: Deployment) -> None:
        self.running = running
        self.deployment = deployment
        self.port = int(running.announced.rpartition(":")[2])

    def door(self, credentials: Path, name: str = SPINE) -> TlsDoor:
        return TlsDoor(Endpoint(LOOPBACK, self.port, name), Credentials(credentials))

    async def connect(self, credentials: Path) -> ControlStream:
        stream = ControlStream(await self.door(credentials).connect())
        self.running.streams.append(stream)
        return stream

    async def host(self, number: int) -> ControlHost:
        host = ControlHost(await self.connect(self.deployment.host(f"h{number}")))
        await host.stream.send(hello(number))
        return host

    async def below_tls(self) -> TcpStream:
        return await dial_tcp(LOOPBACK, self.port, 5)

    async def refusal(self, context: ssl.SSLContext) -> str:
        """How a client hears that it is refused, in the handshake or by what it reads first."""
        stream = ControlStream(
            await handshake(await self.below_tls(), context, is_server=False, address=LOOPBACK)
        )
        try:
            await stream.receive()
        except EndOfChannel as end:
            return end.reason
        finally:
            stream.close()
        raise AssertionError("the switch answers")

    async def listener(self) -> dict[str, Any]:
        """Its status, asked on its own machine."""
        found: dict[str, Any] = (await ask(self.running.settings.control_path))["control_listen"]
        return found

    async def refused(self) -> dict[str, int]:
        found: dict[str, int] = (await self.listener())["refused"]
        return found

    async def cut(self) -> dict[str, int]:
        """Sessions that were ended, by code."""
        status = await ask(self.running.settings.control_path)
        found: dict[str, int] = status["control_sessions"]["refused"]
        return found


def client_context(credentials: Path | None, *, authority: Path) -> ssl.SSLContext:
    """A client that follows no rules but those that a test gives it; it trusts the authority's switches."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(authority / "ca.pem")
    context.set_alpn_protocols([ALPN])
    if credentials is not None:
        context.load_cert_chain(credentials / "cert.pem", credentials / "key.pem")
    return context


@asynccontextmanager
async def secure_switch(directory: Path, **options: Any) -> AsyncIterator[SecureSwitch]:
    """``directory`` has short paths, for sockets."""
    deployment = Deployment(directory)
    tls = deployment.issue(Role.SWITCH, SPINE, addresses=[LOOPBACK])
    async with running_switch(
        directory / "run", control_listen=f"{LOOPBACK}:0", tls=tls, **options
    ) as running:
        yield SecureSwitch(running, deployment)


def long_ago() -> datetime:
    return datetime(2020, 1, 1, tzinfo=UTC)
