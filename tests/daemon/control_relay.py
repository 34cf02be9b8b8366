"""A relay on the control path between a host daemon and its switch, that holds back what a test names.

The host finds it at ``control.sock`` of a directory of its own; frames go their usual way. Messages of a
type that is held wait in order until :meth:`ControlRelay.release`; all others pass.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import trio

from inaproto.daemon.net.control_stream import ControlStream, EndOfChannel
from inaproto.daemon.net.unix_sockets import connect_unix, listen_unix
from inaproto.wire.control_messages import Message


class ControlRelay:
    """``hold`` names types of what the switch says; ``held`` is what waits now."""

    def __init__(self, directory: Path, switch: Path) -> None:
        self.directory = directory
        self.held: list[tuple[ControlStream, Message]] = []
        self._switch = switch
        self._holding: tuple[type[Message], ...] = ()

    def hold(self, *types: type[Message]) -> None:
        self._holding = types

    def release(self) -> None:
        """Pass on what was held, and hold nothing any more."""
        self._holding = ()
        held, self.held = self.held, []
        for stream, message in held:
            _pass_on(stream, message)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        self.directory.mkdir(mode=0o700)
        bound = await listen_unix(self.directory / "control.sock", "relay")
        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    await trio.lowlevel.wait_readable(bound.sock)
                    sock, _ = bound.sock.accept()
                    nursery.start_soon(self._serve, ControlStream(sock))
        finally:
            bound.close()

    async def _serve(self, host: ControlStream) -> None:
        try:
            with suppress(OSError):  # no switch now: the host sees its connection end
                await self._relay(host, ControlStream(await connect_unix(self._switch, "relay")))
        finally:
            host.close()

    async def _relay(self, host: ControlStream, switch: ControlStream) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(host.run)
                nursery.start_soon(switch.run)
                nursery.start_soon(self._up, host, switch)
                await self._down(switch, host)
        finally:
            switch.close()

    async def _up(self, host: ControlStream, switch: ControlStream) -> None:
        try:
            while True:
                _pass_on(switch, await host.receive())
        except EndOfChannel:
            switch.close()

    async def _down(self, switch: ControlStream, host: ControlStream) -> None:
        try:
            while True:
                message = await switch.receive()
                if isinstance(message, self._holding):
                    self.held.append((host, message))
                else:
                    _pass_on(host, message)
        except EndOfChannel:
            host.close()


def _pass_on(stream: ControlStream, message: Message) -> None:
    with suppress(EndOfChannel):  # the task that receives from it sees it too
        stream.send_nowait(message)
