"""Who a peer is: its role and name, from its certificate, or that it came by a socket of this machine.

A certificate names its holder in one subject alternative name, the URI ``inaproto://ROLE/NAME``; the common
name is for people and never read. Addresses in it (SAN IP) are those that the holder may have: of a switch
where it listens, of a host its NIC's.

Invariant: an :class:`Identity` is made by who has verified it (a TLS handshake, the kernel), nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from inaproto.errors import DecodeError

SCHEME: Final = "inaproto://"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""Name of a daemon, an operator or a job."""


class Role(Enum):
    """What a peer may do: docs/security.md has the table."""

    HOST = "host"
    SWITCH = "switch"
    CONTROLLER = "controller"
    OPERATOR = "operator"
    JOB = "job"
    MODEL = "model"
    """A process of trees of models: of a host, or a parameter server."""
    LOCAL = "local"
    """A peer on a UNIX socket: the file's permissions have decided. No certificate says this."""


CERTIFIED: Final = tuple(role for role in Role if role is not Role.LOCAL)
SERVERS: Final = frozenset((Role.SWITCH, Role.CONTROLLER))
"""Roles of the control plane: only their certificates may be shown by who is connected to there."""
LISTENERS: Final = SERVERS | {Role.MODEL}
"""Roles whose certificates are for both sides of a connection."""


@dataclass(frozen=True, slots=True)
class Identity:
    """``name`` is empty for local peers; ``expires_s`` is UNIX time, None where nothing expires."""

    role: Role
    name: str = ""
    address: str = ""
    """Where it came from; empty on this machine."""
    addresses: tuple[str, ...] = ()
    """IP addresses that its certificate names; none: it is not held to any."""
    expires_s: float | None = None
    serial: str = ""
    """Serial of its certificate, hexadecimal, as ``inaproto ca show`` prints it."""
    pid: int = 0
    uid: int | None = None
    """User of a local peer, as the kernel vouches for it."""

    @property
    def is_local(self) -> bool:
        return self.role is Role.LOCAL

    def __str__(self) -> str:
        if self.is_local:
            return f"process {self.pid} of this machine, user {self.uid}"
        return f"{self.role.value} {self.name} at {self.address}"


def uri_of(role: Role, name: str) -> str:
    """Raises ``ValueError`` for what no certificate says."""
    if role is Role.LOCAL or not NAME.fullmatch(name):
        raise ValueError(f"no certificate is for {role.value} {name!r}")
    return f"{SCHEME}{role.value}/{name}"


def holder_of(uris: Sequence[str]) -> tuple[Role, str]:
    """Role and name from the URIs of a certificate. Raises ``DecodeError``.

    Exactly one of them is ours: of two, each reader might take another.
    """
    ours = [uri for uri in uris if uri.startswith(SCHEME)]
    if len(ours) != 1:
        raise DecodeError("certificate", f"{len(ours)} names {SCHEME}ROLE/NAME, not one")
    role, _, name = ours[0].removeprefix(SCHEME).partition("/")
    known = {one.value: one for one in CERTIFIED}
    if role not in known or not NAME.fullmatch(name):
        raise DecodeError("certificate", f"{ours[0]!r:.120} is not {SCHEME}ROLE/NAME")
    return known[role], name
