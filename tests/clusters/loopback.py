"""A switch daemon and host daemons in one Trio program, wired as the command line wires them.

Everything is real but the processes: UNIX sockets, frames, softnics, accelerator, shared memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

import inaproto
from inaproto.core.switch.accelerator import Accelerator
from inaproto.core.switch.events import MakeAccelerator
from inaproto.daemon.host.daemon import HostDaemon, run_host
from inaproto.daemon.host.turns import TurnsOf, no_turns
from inaproto.daemon.settings.config import HostSettings, SwitchSettings
from inaproto.daemon.switch.daemon import run_switch
from inaproto.parts import collective_of
from inaproto.ports import FramePort, Nic, load_adapter
from tests.daemon.control_relay import ControlRelay

DEADLINE_S = 600.0
"""For a whole test: longer than anything takes, so only a hang meets it."""


class RunningSwitch:
    def __init__(self, stop: trio.Event, ended: trio.Event) -> None:
        self._stop = stop
        self._ended = ended

    async def stop(self) -> None:
        self._stop.set()
        await self._ended.wait()


class RunningHost:
    def __init__(
        self,
        settings: HostSettings,
        daemon: HostDaemon,
        nics: list[Nic],
        scope: trio.CancelScope,
        ended: trio.Event,
        relay: ControlRelay | None,
    ) -> None:
        self.settings = settings
        self._relay = relay
        self.daemon = daemon
        self._nics = nics
        self._scope = scope
        self._ended = ended

    @property
    def nic(self) -> Nic:
        """The one that it opened last."""
        return self._nics[-1]

    @property
    def relay(self) -> ControlRelay:
        """On its way to the switch; of a host that was started with one."""
        assert self._relay is not None
        return self._relay

    @property
    def socket(self) -> Path:
        return self.settings.listen_path

    async def stop(self) -> None:
        self._scope.cancel()
        await self._ended.wait()


class Cluster:
    """Start what the test needs; all ends with the ``async with`` of :func:`open_cluster`."""

    def __init__(
        self, directory: Path, nursery: trio.Nursery, weather: str, host_options: dict[str, Any]
    ) -> None:
        self.directory = directory
        self.hosts: list[RunningHost] = []
        self._communicators: list[inaproto.Communicator] = []
        self._nursery = nursery
        self._weather = weather
        self._host_options = host_options
        self.turns_of: TurnsOf = no_turns
        """Who gives turns to jobs on the path ``shared``, at hosts that are started from now on."""

    async def start_switch(
        self, *, make_accelerator: MakeAccelerator = Accelerator, **options: Any
    ) -> RunningSwitch:
        values = {"dir": self.directory, "weather": self._weather, "seed": 1} | options
        settings = SwitchSettings.model_validate(values)
        stop, ready, ended = trio.Event(), trio.Event(), trio.Event()
        weather = load_adapter("weather") if not settings.weather.clear else None

        def wrap(port: FramePort, name: str) -> FramePort:
            assert weather is not None
            wrapped: FramePort = weather.open(port, settings.weather, seed=settings.seed, name=name)
            return wrapped

        async def serve() -> None:
            try:
                await run_switch(
                    settings,
                    open_port_listener=load_adapter(settings.adapter).open().listen,
                    wrap_port=wrap if weather is not None else None,
                    stop=stop,
                    announce=lambda line: ready.set(),
                    make_accelerator=make_accelerator,
                )
            finally:
                ended.set()

        self._nursery.start_soon(serve)
        await ready.wait()
        return RunningSwitch(stop, ended)

    async def start_host(
        self, *, relayed: bool = False, wrap_nic: Callable[[Nic], Nic] | None = None, **options: Any
    ) -> RunningHost:
        """The next host; by default ``h0`` at 10.0.0.1, and so on.

        ``relayed`` puts a :class:`ControlRelay` between it and the switch; ``wrap_nic`` something around
        each of its NICs.
        """
        number = len(self.hosts)
        values = {"name": f"h{number}", "ip": f"10.0.0.{number + 1}", "dir": self.directory}
        relay = None
        if relayed:
            relay = ControlRelay(self.directory / f"relay{number}", self.directory / "control.sock")
            values["dir"] = relay.directory
            await self._nursery.start(relay.run)
        settings = HostSettings.model_validate(values | self._host_options | options)
        self.hosts.append(await self._run_host(settings, relay, wrap_nic))
        return self.hosts[number]

    async def restart_host(self, number: int) -> None:
        """Start host ``number``, which was stopped, once more."""
        host = self.hosts[number]
        self.hosts[number] = await self._run_host(host.settings, host._relay)

    async def _run_host(
        self,
        settings: HostSettings,
        relay: ControlRelay | None = None,
        wrap_nic: Callable[[Nic], Nic] | None = None,
    ) -> RunningHost:
        scope, ended = trio.CancelScope(), trio.Event()
        opened: list[Nic] = []

        async def open_nic(port_path: str) -> Nic:
            port = await load_adapter(settings.adapter).open().connect(port_path)
            nic: Nic = load_adapter("softnic").open(
                port,
                mac=settings.mac_bytes,
                ip=settings.ip_bytes,
                selective=settings.selective == "on",
                moderation=settings.moderation == "on",
            )
            opened.append(nic if wrap_nic is None else wrap_nic(nic))
            return opened[-1]

        async def serve(task_status: trio.TaskStatus[HostDaemon]) -> None:
            try:
                with scope:
                    await run_host(
                        settings,
                        open_nic=open_nic,
                        turns_of=self.turns_of,
                        collective=collective_of(settings),
                        task_status=task_status,
                    )
            finally:
                ended.set()

        daemon: HostDaemon = await self._nursery.start(serve)
        return RunningHost(settings, daemon, opened, scope, ended, relay)

    async def connect(
        self, job: str, rank: int, *, size: int, host: int | None = None, **options: Any
    ) -> inaproto.Communicator:
        """A rank on host ``host``, by default the host of its number."""
        socket = self.hosts[rank if host is None else host].socket
        comm = await inaproto.connect(job, rank, size=size, socket=socket, **options)
        self._communicators.append(comm)
        return comm

    def kill_communicators(self) -> None:
        """As processes that die: their sockets close without a word."""
        for comm in self._communicators:
            comm.channel.close()

    async def job(self, job: str, size: int, **options: Any) -> list[inaproto.Communicator]:
        """All ranks of a job, rank i on host i, connected."""
        found: dict[int, inaproto.Communicator] = {}

        async def one(rank: int) -> None:
            found[rank] = await self.connect(job, rank, size=size, **options)

        await together([lambda rank=rank: one(rank) for rank in range(size)])  # type: ignore[misc]
        return [found[rank] for rank in range(size)]


@asynccontextmanager
async def open_cluster(
    directory: Path,
    hosts: int,
    *,
    weather: str = "",
    switch: bool = True,
    deadline_s: float = DEADLINE_S,
    **host_options: Any,
) -> AsyncIterator[Cluster]:
    with trio.fail_after(deadline_s):
        async with trio.open_nursery() as nursery:
            cluster = Cluster(directory, nursery, weather, host_options)
            if switch:
                await cluster.start_switch()
            for _ in range(hosts):
                await cluster.start_host()
            try:
                yield cluster
            finally:
                cluster.kill_communicators()
            nursery.cancel_scope.cancel()


async def together(calls: list[Callable[[], Any]]) -> None:
    """Run coroutine functions at once, until all have ended."""
    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(call)
