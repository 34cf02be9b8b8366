"""A host daemon or switch and its controller: it says what it holds, and is told what to hold.

Several controllers may be named, of which one leads: they are tried in turn, and one that does not lead says
so. While none is to be had the agent goes on with what it has: jobs that run do not need a controller.

Invariants: old wishes (:mod:`inaproto.core.grants.newest`) change nothing; every report has all that is held
at that instant, and the revision of wishes that were given to the holder before it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Protocol

import trio

from inaproto.core.grants.newest import NewestWishes
from inaproto.daemon.net.control_address import Door, TlsDoor
from inaproto.daemon.net.control_stream import DEAD_S, ControlStream, EndOfChannel
from inaproto.errors import DecodeError, LocalMisuse
from inaproto.wire.control_messages import Error, Message, Ping, Pong
from inaproto.wire.messages.controller import (
    AgentHello,
    AgentReport,
    AgentRole,
    AgentWelcome,
    AgentWishes,
    GrantRecord,
    HoldRecord,
)
from inaproto.wire.messages.sharing import CoordinatorMessage

log = logging.getLogger("inaproto.controller_link")

RETRY_S: Final = 0.5
"""Between two rounds of all controllers."""


class GrantHolder(Protocol):
    """The part of a daemon that has jobs' seats or trees."""

    def want(self, grants: Sequence[GrantRecord]) -> None:
        """Hold these and no others. What takes time may follow; a slot is given up before it is taken."""
        ...

    def holds(self) -> Sequence[HoldRecord]:
        """All that is still held, wanted or not."""
        ...


class SharingSide(Protocol):
    """The part of a host daemon that has seats in sharing groups."""

    def connected(self, send: Callable[[Message], None]) -> None:
        """A controller is there that knows nothing; what ``send`` cannot send is lost."""

    def disconnected(self) -> None: ...

    def heard(self, message: CoordinatorMessage) -> None: ...


class AgentSide(Protocol):
    """A part of an agent that a controller speaks with."""

    @property
    def hears(self) -> type[Message] | tuple[type[Message], ...]: ...

    def connected(self, welcome: AgentWelcome, send: Callable[[Message], None]) -> None:
        """A controller is there that knows nothing; what ``send`` cannot send is lost."""

    def disconnected(self) -> None: ...

    def heard(self, message: Any) -> None:
        """One of ``hears``."""


class ControllerLink:
    """``run`` keeps the connection. ``controllers``: the ways to where they take agents."""

    def __init__(
        self,
        role: AgentRole,
        name: str,
        holder: GrantHolder,
        controllers: Sequence[Door],
        *,
        retry_s: float = RETRY_S,
        sharing: SharingSide | None = None,
        sides: Sequence[AgentSide] = (),
        boot_id: str = "",
        has_collective: bool = False,
    ) -> None:
        self._role = role
        self._has_collective = has_collective
        self._name = name
        self._holder = holder
        self._controllers = tuple(controllers)
        self._retry_s = retry_s
        self._sharing = sharing
        self._sides = tuple(sides)
        self._boot_id = boot_id or secrets.token_hex(8)
        self._newest = NewestWishes()
        self._changed = trio.Event()
        self.problem = "not connected yet"
        """Why there is no controller; empty while there is one."""
        self._at = ""
        """Where the one is that was had last."""
        self._since = trio.current_time()

    @property
    def revision(self) -> int:
        """Revision of the wishes that were taken last."""
        return self._newest.revision

    def changed(self) -> None:
        """What is held, or its phase, has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled; with no controller at all it returns."""
        while self._controllers:
            problems = [f"{door}: {await self._try(door)}" for door in self._controllers]
            self._trouble("; ".join(problems))
            await trio.sleep(self._retry_s)

    def status(self) -> dict[str, Any]:
        """For people and their programs; fields may be added."""
        found: dict[str, Any] = {
            "paths": [str(door) for door in self._controllers],
            "connected": not self.problem,
            "at": self._at,
            "since_s": round(trio.current_time() - self._since, 3),
            "term": self._newest.term,
            "revision": self._newest.revision,
            "error": self.problem if self._controllers else "",
        }
        for door in self._controllers:
            if isinstance(door, TlsDoor):
                found["credentials"] = door.credentials.status()
        return found

    async def _try(self, door: Door) -> str:
        """One session, if it comes to one; returns why it is over."""
        try:
            stream = ControlStream(await door.connect())
        except OSError as error:
            return error.strerror or str(error)
        try:
            return await _reason(self._converse(stream, str(door)))
        finally:
            stream.close()

    def _trouble(self, problem: str) -> None:
        log.log(logging.DEBUG if problem == self.problem else logging.WARNING, "no controller: %s", problem)
        if not self.problem:
            self._since = trio.current_time()
        self.problem = problem

    async def _converse(self, stream: ControlStream, at: str) -> str:
        hello = AgentHello(
            role=self._role, agent=self._name, boot_id=self._boot_id, collective=self._has_collective
        )
        await stream.send(hello)
        welcome = await _heard(stream)
        if not isinstance(welcome, AgentWelcome):
            return _said(welcome)
        if not self._newest.welcomed(welcome.term):
            return f"its term {welcome.term} is over, it was {self._newest.term}"
        self.problem, self._at, self._since = "", at, trio.current_time()
        log.info("controller of term %d at %s", welcome.term, at)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.run)
            nursery.start_soon(_reason, self._report(stream, welcome.report_ms / 1000))
            if self._sharing is not None:
                self._sharing.connected(partial(_send, stream))
            for side in self._sides:
                side.connected(welcome, partial(_send, stream))
            try:
                reason = await _reason(self._listen(stream))
            finally:
                for one in (self._sharing, *self._sides):
                    if one is not None:
                        one.disconnected()
            nursery.cancel_scope.cancel()
        return reason

    async def _listen(self, stream: ControlStream) -> str:
        with trio.fail_after(DEAD_S) as silence:
            while True:
                message = await stream.receive()
                silence.deadline = trio.current_time() + DEAD_S
                side = next((side for side in self._sides if isinstance(message, side.hears)), None)
                if isinstance(message, AgentWishes):
                    self._take(message)
                elif side is not None:
                    side.heard(message)
                elif self._sharing is not None and isinstance(message, CoordinatorMessage):
                    self._sharing.heard(message)
                elif not isinstance(message, Ping | Pong):
                    return _said(message)

    def _take(self, wishes: AgentWishes) -> None:
        if self._newest.take(wishes.term, wishes.revision):
            self._holder.want(wishes.grants)
            self.changed()

    async def _report(self, stream: ControlStream, every_s: float) -> str:
        while True:
            self._changed = trio.Event()
            await stream.send(AgentReport(revision=self._newest.revision, holds=tuple(self._holder.holds())))
            with trio.move_on_after(every_s):
                await self._changed.wait()


async def _reason(conversation: Coroutine[Any, Any, str]) -> str:
    """Why it is over, however it ends."""
    try:
        return await conversation
    except trio.TooSlowError:
        return f"nothing was heard of it for {DEAD_S:g} s"
    except (EndOfChannel, DecodeError) as error:
        return str(error)


def _send(stream: ControlStream, message: Message) -> None:
    try:
        stream.send_nowait(message)
    except EndOfChannel:
        return  # whoever listens hears of it, too
    except LocalMisuse as error:  # it is too long, say: what it is about goes on without a controller
        log.error("the controller is not told: %s", error)


async def _heard(stream: ControlStream) -> Message:
    with trio.fail_after(DEAD_S):
        return await stream.receive()


def _said(message: Message) -> str:
    return message.message if isinstance(message, Error) else f"it said {message.TYPE!r}"
