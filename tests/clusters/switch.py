"""A switch daemon in this Trio program, and the control side of hosts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from inaproto.daemon.net.control_stream import ControlStream, EndOfChannel
from inaproto.daemon.net.unix_sockets import connect_unix
from inaproto.daemon.settings.config import SwitchSettings
from inaproto.daemon.switch.daemon import run_switch
from inaproto.daemon.switch.ports import WrapPort
from inaproto.ports import load_adapter
from inaproto.wire.control_messages import JobStatus, Message, Ready, Ring, Start, Welcome
from tests.unit.rendezvous_members import hello, member

DEADLINE_S = 600


class ControlHost:
    """The control side of a host daemon, message by message."""

    def __init__(self, stream: ControlStream) -> None:
        self.stream = stream

    async def expect(self, kind: type[Message]) -> Message:
        """The next message of this kind; others than what waiting ranks are told are a fault."""
        while True:
            message = await self.stream.receive()
            if isinstance(message, kind):
                return message
            assert isinstance(message, JobStatus), message

    async def expect_end(self) -> None:
        with contextlib.suppress(EndOfChannel):
            while True:
                await self.stream.receive()


class Running:
    def __init__(self, settings: SwitchSettings, stop: trio.Event) -> None:
        self.settings = settings
        self.stop = stop
        self.ended = trio.Event()
        self.announced = ""
        self.streams: list[ControlStream] = []

    async def stranger(self) -> ControlStream:
        stream = ControlStream(await connect_unix(self.settings.control_path, "test"))
        self.streams.append(stream)
        return stream

    async def host(self, number: int) -> ControlHost:
        host = ControlHost(await self.stranger())
        await host.stream.send(hello(number))
        welcome = await host.expect(Welcome)
        assert isinstance(welcome, Welcome)
        assert welcome.port_path == str(self.settings.ports_path)
        return host

    async def job(self, size: int = 2) -> list[ControlHost]:
        """Hosts with one rank each, started."""
        hosts = [await self.host(number) for number in range(size)]
        for rank, host in enumerate(hosts):
            await host.stream.send(member(rank, size=size))
        for rank, host in enumerate(hosts):
            await host.expect(Ring)
            await host.stream.send(Ready(job="train", rank=rank))
        for host in hosts:
            await host.expect(Start)
        return hosts


@asynccontextmanager
async def running_switch(
    directory: Path, *, wrap_port: WrapPort | None = None, **options: object
) -> AsyncIterator[Running]:
    settings = SwitchSettings.model_validate({"dir": directory, **options})
    switch = Running(settings, trio.Event())
    ready = trio.Event()

    def announce(line: str) -> None:
        switch.announced = line
        ready.set()

    async def serve() -> None:
        await run_switch(
            settings,
            open_port_listener=load_adapter("frames").open().listen,
            stop=switch.stop,
            wrap_port=wrap_port,
            announce=announce,
        )
        switch.ended.set()

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await ready.wait()
            try:
                yield switch
            finally:
                switch.stop.set()
                for stream in switch.streams:
                    stream.close()
