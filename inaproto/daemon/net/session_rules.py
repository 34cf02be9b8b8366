"""What who may say on a control connection, and how much; pure but for the clock that callers pass.

| role | by | may say |
|---|---|---|
| local | UNIX socket, whose permissions have decided | all |
| host | certificate | hello as itself, and then what hosts say |
| switch | certificate | hello as itself, and then what switches say |
| operator, controller | certificate | status |
| job | certificate | nothing: ranks join by their host daemon |

Captures need a descriptor, hence a UNIX socket: the gradients of all jobs do not leave by the network.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, Protocol, runtime_checkable

from inaproto.ca.identity import Identity, Role
from inaproto.client.unix_stream import UnixStream
from inaproto.core.rendezvous.tokens import Refusal, TokenIssuer
from inaproto.ports import ByteStream
from inaproto.wire.control_messages import Hello, Member, Message, Ping, Pong, Status
from inaproto.wire.messages.capture import Capture, CaptureEnd
from inaproto.wire.messages.controller import AgentHello
from inaproto.wire.messages.switch import SwitchHello

NOT_AUTHORISED: Final = "not_authorised"
MESSAGE_FLOOD: Final = "message_flood"
HELLO_SLOW: Final = "hello_slow"
CERTIFICATE_EXPIRED: Final = "certificate_expired"


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits of sessions that come from other machines."""

    hello_s: float = 5.0
    """From the handshake to a hello or a question that was answered."""
    hello_bytes_max: int = 4096
    """Before it; a hello has some 200."""
    messages_burst: int = 8192
    """At once, and then so many a second. All ranks of a host may join, and stall, at once."""
    messages_per_s: float = 1000.0


@runtime_checkable
class Authenticated(Protocol):
    """A stream whose far side has proved who it is."""

    @property
    def identity(self) -> Identity: ...


def identity_of(connection: ByteStream) -> Identity:
    """Who is on the far side; of a stream that says nothing of it, a process of this machine."""
    if isinstance(connection, Authenticated):
        return connection.identity
    if isinstance(connection, UnixStream):
        credentials = connection.peer_credentials()
        return Identity(Role.LOCAL, pid=credentials.pid, uid=credentials.uid)
    return Identity(Role.LOCAL, pid=connection.peer_pid())


def _plain(address: str) -> str:
    """An address as Python writes it, which a GID has in a certificate, too; other text as it is."""
    try:
        return str(ip_address(address))
    except ValueError:
        return address


def refusal_of(identity: Identity, message: Message) -> str:
    """Why ``identity`` may not say that; empty: it may."""
    if identity.is_local or isinstance(message, Ping | Pong):
        return ""
    role = identity.role
    match message:
        case Hello():
            if role is not Role.HOST or message.host != identity.name:
                return f"{identity} says hello as host {message.host!r}; a host is who its certificate names"
            nic = str(ip_address(message.ip if message.gid is None else message.gid))
            theirs = [_plain(address) for address in identity.addresses]
            if theirs and nic not in theirs:
                return f"{identity} says that its NIC is {nic}; its certificate has {', '.join(theirs)}"
        case SwitchHello():
            if role is not Role.SWITCH or message.switch != identity.name:
                return f"{identity} says hello as switch {message.switch!r}; its certificate does not"
        case AgentHello():
            if (role.value, identity.name) != (message.role, message.agent):
                return f"{identity} says hello as {message.role} {message.agent!r}; its certificate does not"
        case Status():
            if role not in {Role.OPERATOR, Role.CONTROLLER}:
                return f"{identity} asks for the status; that takes the certificate of an operator"
        case Capture() | CaptureEnd():
            return f"{identity} asks for a capture, which is to be had at the UNIX socket of the switch alone"
        case _:
            if role not in {Role.HOST, Role.SWITCH}:
                return f"{identity} says {message.TYPE!r}, which is for hosts and switches"
    return ""


def for_people(text: str) -> str:
    """What somebody else says: nothing in it that a terminal obeys, or that begins another line of a log."""
    return "".join(one if one.isprintable() else " " for one in text)


class Allowance:
    """A token bucket of messages. ``take`` is false when there have been too many."""

    def __init__(self, burst: int, per_s: float, now: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left = float(burst)
        self._counted_s = now

    def take(self, now: float) -> bool:
        self._left = min(self._burst, self._left + (now - self._counted_s) * self._per_s)
        self._counted_s = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Guard:
    """The rules as one control server keeps them: who is refused is counted by a stable code.

    ``wall_s`` gives UNIX time. With ``tokens``, a rank joins by a token alone.
    """

    def __init__(
        self,
        *,
        wall_s: Callable[[], float],
        limits: SessionLimits | None = None,
        tokens: TokenIssuer | None = None,
    ) -> None:
        self.limits = limits or SessionLimits()
        self._wall_s = wall_s
        self._tokens = tokens
        self._refused: Counter[str] = Counter()

    def count(self, code: str) -> None:
        self._refused[code] += 1

    def seconds_left(self, identity: Identity) -> float:
        """Until the certificate of a peer runs out, and its session with it."""
        return math.inf if identity.expires_s is None else identity.expires_s - self._wall_s()

    def key_of(self, member: Member) -> str | Refusal:
        """What stands for the job's key, of a rank that may join."""
        if self._tokens is None:
            return member.key
        granted = self._tokens.check(
            member.key,
            job=member.job,
            rank=member.rank,
            size=member.size,
            host=member.host,
            now_s=self._wall_s(),
        )
        if isinstance(granted, Refusal):
            self.count(granted.code)
            return granted
        return granted.job_key

    def status(self) -> dict[str, Any]:
        return {"refused": dict(sorted(self._refused.items())), "wants_tokens": self._tokens is not None}
