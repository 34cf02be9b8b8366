"""The way between a controller and its agents: all that is said passes here, and dies with the controller.

A watch sees each message before it is passed on, and may end the controller when it has been. What was not
passed on by then is lost, as on a network: so one host may have heard of a decision, and another not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import trio

from inaproto.client.unix_stream import UnixStream, dial_unix
from inaproto.daemon.net.unix_sockets import listen_unix
from inaproto.errors import DecodeError
from inaproto.ports import PortClosed
from inaproto.wire.control import LENGTH_BYTES, decode_control
from inaproto.wire.control_messages import Message, decode_message
from inaproto.wire.messages import controller, sharing, slots, trees
from inaproto.wire.messages.controller import AgentHello
from inaproto.wire.messages.sharing import SharingPattern, SharingProgress
from inaproto.wire.messages.types import messages_of

_NOISE: Final = (SharingPattern, SharingProgress)
"""Where jobs are: most of all that is said, and nobody's promise."""
_ALL: Final = messages_of(vars(controller), vars(sharing), vars(slots), vars(trees))
_OF_INTEREST: Final = {one.TYPE for one in _ALL if one not in _NOISE}


class Watch(Protocol):
    def told(self, controller: str, agent: str, message: Message) -> bool:
        """A controller says it; False: it gets lost."""
        ...

    def passed(self, controller: str, agent: str) -> None:
        """What was told last has been passed on, or lost."""
        ...

    def heard(self, controller: str, agent: str, message: Message) -> None:
        """An agent says it, and it has been passed on."""
        ...

    def disconnected(self, controller: str, agent: str) -> None: ...


class AgentRelay:
    """``listen``: where agents dial; ``target``: where the controller of that name takes them."""

    def __init__(self, controller: str, listen: Path, target: Path, watch: Watch) -> None:
        self.controller, self.watch = controller, watch
        self._listen, self._target = listen, target
        self._scopes: dict[trio.CancelScope, None] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        listener = await listen_unix(self._listen, "relay")
        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                with suppress(PortClosed):
                    while True:
                        nursery.start_soon(self._carry, await listener.accept())
        finally:
            listener.close()

    def cut(self) -> None:
        """Every connection, with what is on its way."""
        for scope in self._scopes:
            scope.cancel()

    async def _carry(self, agent_side: UnixStream) -> None:
        try:
            controller_side = dial_unix(self._target)
        except OSError:
            agent_side.close()  # it dials again
            return
        with trio.CancelScope() as scope:
            self._scopes[scope] = None
            await _Session(self, agent_side, controller_side, scope).run()
        del self._scopes[scope]
        agent_side.close()
        controller_side.close()


class _Session:
    def __init__(
        self, relay: AgentRelay, agent_side: UnixStream, controller_side: UnixStream, scope: trio.CancelScope
    ) -> None:
        self._controller, self._watch, self._scope = relay.controller, relay.watch, scope
        self._agent_side, self._controller_side = agent_side, controller_side
        self._agent = ""

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, self._agent_side, self._up)
                nursery.start_soon(self._pump, self._controller_side, self._down)
        finally:
            self._watch.disconnected(self._controller, self._agent)

    async def _pump(self, source: UnixStream, pass_on: Callable[[bytes], Awaitable[None]]) -> None:
        buffer = bytearray()
        with suppress(OSError, DecodeError):
            while True:
                try:
                    data, _ = source.receive_nowait()
                except BlockingIOError:
                    await source.wait_receivable()
                    continue
                if not data:
                    break
                buffer += data
                for frame in _frames(buffer):
                    await trio.lowlevel.checkpoint_if_cancelled()
                    await pass_on(frame)
        self._scope.cancel()

    async def _up(self, frame: bytes) -> None:
        message = _message(frame)
        await _send(self._controller_side, frame)
        if isinstance(message, AgentHello):
            self._agent = message.agent
        if message is not None:
            self._watch.heard(self._controller, self._agent, message)

    async def _down(self, frame: bytes) -> None:
        message = _message(frame)
        if message is None:
            await _send(self._agent_side, frame)
            return
        if self._watch.told(self._controller, self._agent, message):
            await _send(self._agent_side, frame)
        self._watch.passed(self._controller, self._agent)


def _frames(buffer: bytearray) -> Iterator[bytes]:
    """Whole messages with their lengths, taken out of ``buffer``."""
    while len(buffer) >= LENGTH_BYTES:
        end = LENGTH_BYTES + int.from_bytes(buffer[:LENGTH_BYTES], "big")
        if len(buffer) < end:
            return
        frame = bytes(buffer[:end])
        del buffer[:end]
        yield frame


def _message(frame: bytes) -> Message | None:
    """Raises ``DecodeError``."""
    record = decode_control(memoryview(frame)[LENGTH_BYTES:])
    return decode_message(record) if record["type"] in _OF_INTEREST else None


async def _send(sink: UnixStream, data: bytes) -> None:
    """At once, if the far side reads."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[sink.send_nowait(rest) :]
        except BlockingIOError:
            await sink.wait_sendable()
