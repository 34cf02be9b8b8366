"""The session of a switch with the control plane, which is at the root of its fabric.

Invariants: a switch is admitted at most while its session lasts; orders are carried out in the order of
arrival, and answered on the session that they came on; when the session ends, ``ended`` is called before
another one begins; one from which nothing is heard for ``DEAD_S`` has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

import trio

from inaproto.core.switch.accelerator import InstallRing, RemoveRing, RingFault, RingRefused
from inaproto.daemon.net.control_address import Door, TlsDoor
from inaproto.daemon.net.control_stream import DEAD_S, ControlStream, EndOfChannel
from inaproto.daemon.settings.fabric_file import Place
from inaproto.daemon.switch.ring_orders import carry_out, message_of
from inaproto.errors import DecodeError
from inaproto.wire.control import why_not
from inaproto.wire.control_messages import Error, Message, Ping, Pong
from inaproto.wire.messages.switch import (
    RingInstall,
    RingRemove,
    SwitchAdmit,
    SwitchHello,
    SwitchOpened,
    SwitchWelcome,
    TrunkReport,
)

log = logging.getLogger("inaproto.switch")

HEARTBEAT_S = 2.0
WELCOME_S = 5.0
RETRY_FIRST_S = 0.05
RETRY_LAST_S = 1.0


class Ordered(Protocol):
    """What the control plane may order a switch to do."""

    def ordered(self, order: InstallRing | RemoveRing) -> bool:
        """Whether the accelerator did not refuse it."""
        ...

    def admitted(self) -> None: ...

    async def report_trunk(self, say: Callable[[str, str], None]) -> None:
        """Say of each switch above why the trunk to it is down, or nothing if it is up, when it changes."""
        ...

    def session_ended(self) -> None:
        """The switch forgets its rings and closes its ports."""
        ...


class SwitchSession:
    """Synchronous but for :meth:`run`, which keeps it."""

    def __init__(self, place: Place, boot_id: str, switch: Ordered, door: Door) -> None:
        self._place = place
        self._boot_id = boot_id
        self._switch = switch
        self._door = door
        self._stream: ControlStream | None = None
        self._ids = count(1)
        self._heard_s = 0.0
        self._changed_s = trio.current_time()
        self._sessions = 0
        self._is_admitted = False
        self._control_boot = ""
        self._error = "not tried yet"

    @property
    def control_boot(self) -> str:
        """Boot of the control plane that has admitted this switch; empty: none has."""
        return self._control_boot if self._is_admitted else ""

    def said_of_ring(self, said: RingFault | RingRefused) -> None:
        """The accelerator says something of a ring. Nobody hears it when there is no session: the ring has
        then ended."""
        self._tell(message_of(said))

    async def run(self) -> None:
        """Keep a session, until cancelled."""
        retry_s = RETRY_FIRST_S
        while True:
            try:
                stream = ControlStream(await self._door.connect())
            except OSError as error:
                self._note(f"cannot connect to {self._door}: {error.strerror}")
            else:
                if await self._converse(stream):
                    retry_s = RETRY_FIRST_S
            await trio.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_LAST_S)

    async def _converse(self, stream: ControlStream) -> bool:
        """One session; whether the control plane took this switch."""
        reason = ""
        taken = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.run)
                reason = await self._introduce(stream)
                taken = not reason
                if taken:
                    nursery.start_soon(self._heartbeat, stream)
                    nursery.start_soon(self._switch.report_trunk, self._say_of_trunk)
                    reason = await self._obey(stream)
                nursery.cancel_scope.cancel()
        finally:
            stream.close(reason or "this switch ends")
            if self._stream is not None:
                self._stream = None
                self._is_admitted = False
                self._changed_s = trio.current_time()
                self._switch.session_ended()
            if reason:
                self._note(reason)
        return taken

    async def _introduce(self, stream: ControlStream) -> str:
        """Why the control plane does not take this switch; empty if it does."""
        place = self._place
        hello = SwitchHello(
            id=next(self._ids),
            switch=place.name,
            boot_id=self._boot_id,
            fabric=place.fabric.digest,
            selective=True,
        )
        path = str(self._door)
        try:
            with trio.fail_after(WELCOME_S):
                await stream.send(hello)
                answer = await stream.receive()
        except trio.TooSlowError:
            return f"{path} takes connections but does not answer within {WELCOME_S:g} s"
        except EndOfChannel as end:
            return f"{path}: {end.reason}"
        except DecodeError as error:
            return f"{path}: {why_not(error, 'whatever listens there is no inaproto switch')}"
        match answer:
            case SwitchWelcome(boot_id=boot_id):
                self._stream, self._control_boot = stream, boot_id
                self._heard_s = self._changed_s = trio.current_time()
                self._sessions += 1
                self._error = ""
                log.info("switch %s has a session with control plane %s", place.name, boot_id)
                return ""
            case Error(message=message):
                return message
            case _:
                return f"{path}: answered by {answer.TYPE!r}; is it the root of this fabric?"

    async def _obey(self, stream: ControlStream) -> str:
        """Until the session ends; returns why it did."""
        while True:
            try:
                message = await stream.receive()
            except EndOfChannel as end:
                return f"the control connection was {end.reason}"
            except DecodeError as error:
                return why_not(error, "the control plane sent what is no message")
            self._heard_s = trio.current_time()
            self._handle(message)

    def _handle(self, message: Message) -> None:
        match message:
            case RingInstall() | RingRemove():
                carry_out(message, self._switch.ordered, self._tell)
            case SwitchAdmit():
                self._is_admitted = True
                self._changed_s = trio.current_time()
                log.info("switch %s is admitted", self._place.name)
                self._switch.admitted()
                self._tell(SwitchOpened(id=message.id))
            case Ping(id=id):
                self._tell(Pong(id=id))
            case Pong():
                pass
            case Error(code=code, message=text):
                log.warning("the control plane answers: %s: %s", code, text)
            case _:
                log.warning("the control plane sends a message %r that is not for switches", message.TYPE)

    async def _heartbeat(self, stream: ControlStream) -> None:
        while trio.current_time() - self._heard_s <= DEAD_S:
            self._tell(Ping(id=next(self._ids)))
            await trio.sleep(HEARTBEAT_S)
        stream.close(f"silent for {DEAD_S:g} s")

    def _say_of_trunk(self, above: str, error: str) -> None:
        own = self._place.entry.above  # named by leaving it out, as before there were others
        self._tell(TrunkReport(error=error, above="" if above == own else above))

    def _tell(self, message: Message) -> None:
        if self._stream is None:
            return
        with suppress(EndOfChannel):  # the task that receives sees it too, and ends the session
            self._stream.send_nowait(message)

    def _note(self, error: str) -> None:
        if error != self._error:
            log.warning("switch %s has no control plane, and goes on trying: %s", self._place.name, error)
        self._error = error

    def status(self) -> dict[str, Any]:
        """For ``inaproto status``."""
        own = {"credentials": self._door.credentials.status()} if isinstance(self._door, TlsDoor) else {}
        return own | {
            "path": str(self._door),
            "connected": self._stream is not None,
            "is_admitted": self._is_admitted,
            "control_boot": self._control_boot,
            "since_s": round(trio.current_time() - self._changed_s, 3),
            "sessions": self._sessions,
            "error": self._error,
        }
