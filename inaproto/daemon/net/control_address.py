"""Where the control plane is: a UNIX socket of this machine, or ``tls://[NAME@]ADDRESS:PORT`` of another.

With ``NAME@`` the far side must have the certificate of the switch or controller of that name, wherever it
is; without it, one that names ADDRESS.
"""

from __future__ import annotations

import errno
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import trio

from inaproto.ca.identity import NAME, Role
from inaproto.daemon.net.names import AGENTS_SOCKET, in_its_place
from inaproto.daemon.net.tcp_stream import dial_tcp
from inaproto.daemon.net.tls import (
    CERTIFICATE_FILE,
    Credentials,
    TlsRefused,
    certificate_status,
    require_server,
)
from inaproto.daemon.net.tls_stream import handshake
from inaproto.errors import ConfigError
from inaproto.ports import ByteStream, StreamNetwork

CONNECT_S: Final = 5.0
_ENDPOINT: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:@/\s]+):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int
    name: str = ""
    """Name of the switch or controller that must be there; empty: its certificate names ``host``."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tls://{self.name}{'@' if self.name else ''}{host}:{self.port}"


def parse_listen(value: str) -> Endpoint:
    """``ADDRESS:PORT``. Raises ``ValueError``, as pydantic wants it."""
    found = _ENDPOINT.fullmatch(value)
    if found is None or int(found[2]) > 65535:
        raise ValueError("must be an address and a port such as 10.0.0.100:7420 or [::]:7420")
    return Endpoint(found[1].strip("[]"), int(found[2]))


def parse_control(value: str) -> Endpoint:
    """Raises ``ValueError``."""
    name, at, endpoint = value.removeprefix("tls://").rpartition("@")
    if not value.startswith("tls://") or (at and not NAME.fullmatch(name)):
        raise ValueError("must be tls://NAME@ADDRESS:PORT, with the name of the switch that is there")
    found = parse_listen(endpoint)
    if not found.port:
        raise ValueError("must name a port")
    return Endpoint(found.host, found.port, name)


def split_controllers(value: object) -> object:
    """Split an environment variable, one text: colons between paths; blanks or commas where one is by TLS."""
    if not isinstance(value, str):
        return value
    return value.replace(",", " ").split() if "://" in value else value.split(":")


def parse_controller(value: object) -> object:
    """A ``tls://`` address as ``Endpoint``, else a path. Raises ``ValueError``."""
    if isinstance(value, Endpoint):
        return value
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("must be the path of a socket, or tls://NAME@ADDRESS:PORT")
    if "://" not in str(value):
        path = Path(value).expanduser().absolute()
        if (meant := in_its_place(path, AGENTS_SOCKET)) is not None:
            raise ValueError(f"hosts and switches reach a controller at {meant}")
        return path
    try:
        return parse_control(str(value))
    except ValueError as error:
        text = str(error).replace("switch that", "controller that")
        raise ValueError(text) from None


class Door(Protocol):
    """A way to the control plane."""

    async def connect(self) -> ByteStream:
        """Raises the ``OSError`` of the attempt, whose ``strerror`` is for people."""
        ...


@dataclass(frozen=True, slots=True)
class UnixDoor:
    path: Path
    network: StreamNetwork

    async def connect(self) -> ByteStream:
        return self.network.dial(self.path)

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class TlsDoor:
    endpoint: Endpoint
    credentials: Credentials
    role: Role | None = None
    """Role that must be there; None: a switch or a controller."""

    async def connect(self) -> ByteStream:
        endpoint = self.endpoint
        below = await dial_tcp(endpoint.host, endpoint.port, CONNECT_S)
        by_address = not endpoint.name
        context = self.credentials.client(by_address=by_address)
        with trio.move_on_after(CONNECT_S):
            try:
                stream = await handshake(
                    below,
                    context,
                    is_server=False,
                    address=below.address,
                    host=endpoint.host if by_address else None,
                )
                try:
                    require_server(stream.identity, endpoint.name, self.role)
                except BaseException:
                    stream.close()
                    raise
            except TlsRefused as refused:
                raise OSError(errno.EPROTO, f"TLS: {refused.reason}") from None
            return stream
        raise TimeoutError(errno.ETIMEDOUT, f"no TLS handshake within {CONNECT_S:g} s")

    def __str__(self) -> str:
        return str(self.endpoint)


@dataclass(frozen=True, slots=True)
class Holder:
    """Daemon that wants credentials, and where it has them."""

    role: Role
    name: str
    """Empty: a switch that is alone needs none."""
    tls: Path | None
    dir: Path
    """Directory of its sockets, for those that are made on this machine."""


def door_of(control: str, path: Path, network: StreamNetwork, holder: Holder) -> Door:
    """Door by TLS where ``control`` says so, else by the UNIX socket at ``path``. Raises ``ConfigError``."""
    if not control:
        return UnixDoor(path, network)
    endpoint = parse_control(control)
    return TlsDoor(endpoint, credentials_of(endpoint, holder))


def doors_of(
    controllers: Sequence[Path | Endpoint], network: StreamNetwork, holder: Holder
) -> tuple[Door, ...]:
    """Doors to controllers. Raises ``ConfigError``."""
    return tuple(
        TlsDoor(at, credentials_of(at, holder), Role.CONTROLLER)
        if isinstance(at, Endpoint)
        else UnixDoor(at, network)
        for at in controllers
    )


def door_for_operator(control: str, tls: Path | None) -> Door:
    """Door by the certificate in ``tls``: the far side says what that is good for. Raises ``ConfigError``."""
    try:
        endpoint = parse_control(control)
    except ValueError as error:
        raise ConfigError(f"--control: {control!r} {error}") from None
    if tls is None:
        raise ConfigError("--tls: is needed with --control: the directory of an operator's certificate")
    return TlsDoor(endpoint, Credentials(tls))


def credentials_of(endpoint: Endpoint, holder: Holder) -> Credentials:
    """Those in its directory; without one, on loopback alone, of a development authority.

    Raises ``ConfigError``; also for those of somebody else, which the far side would refuse.
    """
    role, name = holder.role, holder.name
    if holder.tls is not None:
        found = certificate_status(holder.tls / CERTIFICATE_FILE)
        if found["role"] != role.value or (name and found["name"] != name):
            raise ConfigError(
                f"tls: {holder.tls} is of {found['role']} {found['name']}, this is {role.value} {name}; "
                "inaproto ca issue makes the right one"
            )
        return Credentials(holder.tls)
    if not is_loopback(endpoint.host):
        raise ConfigError(
            f"tls: is needed with {endpoint}: a directory of certificates, which inaproto ca issue makes "
            "(on loopback alone they are made at the first start)"
        )
    from inaproto.ca import development  # cryptography: only where TLS is used

    return Credentials(development.credentials(holder.dir, role, name or role.value))


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
