"""Switch daemons of a fabric in this Trio program, over real sockets; wired as the command line does it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from inaproto.daemon.net.control_stream import ControlStream
from inaproto.daemon.net.unix_sockets import connect_unix
from inaproto.daemon.observe.status import ask
from inaproto.daemon.settings.config import SwitchSettings
from inaproto.daemon.settings.fabric_file import Fabric, Place
from inaproto.daemon.switch.daemon import Switch, run_switch
from inaproto.ports import FramePort, load_adapter

DEADLINE_S = 600


class RunningFabric:
    """Made by :func:`running_fabric`."""

    def __init__(self, fabric: Fabric, nursery: trio.Nursery) -> None:
        self.fabric = fabric
        self._nursery = nursery
        self._scopes: dict[str, trio.CancelScope] = {}
        self._ended: dict[str, trio.Event] = {}
        self._frames = load_adapter("frames").open()
        self.switches: dict[str, Switch] = {}
        self._streams: list[ControlStream] = []
        self._plugged: list[FramePort] = []
        self.tap: Callable[[str, FramePort, str], FramePort] | None = None
        """Given a switch, a port of it, and the name of that, puts another one in its place."""

    async def start(self, name: str, *, fabric: Fabric | None = None, **options: object) -> None:
        """``fabric``: another one than the others know."""
        place = Place(fabric or self.fabric, name)
        scope = self._scopes[name] = trio.CancelScope()
        ended = self._ended[name] = trio.Event()
        ready = trio.Event()

        def started(switch: Switch) -> None:
            self.switches[name] = switch
            ready.set()

        async def connect_port(path: Path) -> FramePort:
            port: FramePort = await self._frames.connect(path, wait_ns=0)
            return port

        async def serve() -> None:
            try:
                with scope:
                    await run_switch(
                        SwitchSettings.model_validate({"dir": place.entry.dir, "name": name, **options}),
                        place=place,
                        open_port_listener=self._frames.listen,
                        connect_port=connect_port,
                        wrap_port=None if self.tap is None else partial(self.tap, name),
                        stop=trio.Event(),
                        started=started,
                    )
            finally:
                ended.set()

        self._nursery.start_soon(serve)
        await ready.wait()

    async def end(self, name: str) -> None:
        """Without a word."""
        self._scopes[name].cancel()
        await self._ended[name].wait()

    async def status(self, name: str) -> dict[str, Any]:
        return await ask(self.fabric.by_name[name].control_path)

    async def stranger(self, name: str) -> ControlStream:
        """A connection to the control socket of a switch."""
        stream = ControlStream(await connect_unix(self.fabric.by_name[name].control_path, "test"))
        self._streams.append(stream)
        return stream

    async def plug(self, path: Path) -> FramePort:
        """A port at ``path``, which runs until the end."""
        port: FramePort = await self._frames.connect(path)
        self._nursery.start_soon(port.run)
        self._plugged.append(port)
        return port

    async def trunks_up(self, name: str, *, up: int) -> None:
        """Wait until so many trunks of a switch are up."""
        await self.until(name, lambda told: sum(trunk["is_up"] for trunk in told["trunks"]) == up)

    async def until(self, name: str, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until the status of a switch is so: what it tells is all that can be seen of a daemon."""
        while not condition(await self.status(name)):
            await wait_all_tasks_blocked()

    async def close(self) -> None:
        for stream in self._streams:
            stream.close()
        for port in self._plugged:
            await port.aclose()
        for name in list(self._scopes):
            await self.end(name)


@asynccontextmanager
async def running_fabric(
    fabric: Fabric, *, start: bool = True, deadline_s: float = DEADLINE_S
) -> AsyncIterator[RunningFabric]:
    """All switches are started, unless the test does it."""
    with trio.fail_after(deadline_s):
        async with trio.open_nursery() as nursery:
            running = RunningFabric(fabric, nursery)
            if start:
                for entry in fabric.entries:
                    await running.start(entry.name)
            try:
                yield running
            finally:
                with trio.CancelScope(shield=True):
                    await running.close()
            nursery.cancel_scope.cancel()
