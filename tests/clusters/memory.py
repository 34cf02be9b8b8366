"""A switch daemon, host daemons and ranks in one deterministic Trio program: all real but the wires.

``run_switch``, ``run_host``, softnics, accelerator, communicators and shared memory are those of the
field. Control connections, frame links, the clock and the source of secrets are in memory and seeded:
:func:`run_world` runs a scenario in virtual time, and its digest of every frame batch and control
message, with time and node, repeats in every process.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import trio

import inaproto
from inaproto.daemon.host.daemon import HostDaemon, run_host
from inaproto.daemon.host.turns import TurnsOf, no_turns
from inaproto.daemon.settings.config import HostSettings, SwitchSettings
from inaproto.daemon.settings.fabric_file import Fabric, Place
from inaproto.daemon.switch.daemon import Switch, run_switch
from inaproto.faults.streams import Seed, named_bits
from inaproto.faults.weather import Weather
from inaproto.parts import collective_of
from inaproto.ports import FramePort, FramePortCapabilities, Nic, PortCounters, RandomBits, load_adapter
from inaproto.units import MS, US, Frames
from inaproto.wire.control import ControlDecoder
from inaproto_adapters.memory import Link, MemoryNetwork, MemoryNode, StreamTiming
from inaproto_adapters.softnic import SoftNicConfig
from inaproto_hil.rigs.deterministic_trio import run_deterministically
from tests.clusters.infiniband import InfinibandNic, ethernet_of, gid_of

DIRECTORY = Path("/memory")
SMALL: dict[str, Any] = {"mtu": 256, "message_packets": 3, "window_messages": 2}
"""Small messages: 728 tensor bytes, so that a few KiB are many messages."""
LAST_LINES = 40
VIRTUAL_S_MAX = 600.0
"""Of a whole scenario: longer than any chain of deadlines in it, so only a wait without one meets it."""


class Trace:
    """A digest of all that happened, and its last lines for people."""

    def __init__(self) -> None:
        self.events = 0
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self._hash = hashlib.sha256()
        self._decoders: dict[str, ControlDecoder] = {}

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def note(self, text: str) -> None:
        line = f"{round(trio.current_time() * 1e9)} {text}"
        self.events += 1
        self.last.append(line)
        self._hash.update(line.encode() + b"\n")

    def frames(self, node: str, way: str, blocks: Sequence[Frames]) -> None:
        for block in blocks:
            self.note(f"{node} {way} {block.shape} {hashlib.sha256(block.tobytes()).hexdigest()[:16]}")

    def control(self, direction: str, data: bytes) -> None:
        """Bytes that a control connection took; noted as messages, without what is of this machine."""
        decoder = self._decoders.setdefault(direction, ControlDecoder())
        for record in decoder.feed(data):
            self.note(f"{direction} {_without_pid(record)!r}")


_OF_THE_MACHINE = ("pid", "life", "meets", "apart")


def _without_pid(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: 0 if key in _OF_THE_MACHINE else _without_pid(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_pid(item) for item in value]
    return value


class TracedPort:
    """A :class:`inaproto.ports.FramePort` that notes what passes."""

    def __init__(self, port: FramePort, node: str, trace: Trace) -> None:
        self._port = port
        self._node = node
        self._trace = trace

    @property
    def capabilities(self) -> FramePortCapabilities:
        return self._port.capabilities

    @property
    def counters(self) -> PortCounters:
        return self._port.counters

    async def receive(self) -> Sequence[Frames]:
        blocks = await self._port.receive()
        self._trace.frames(self._node, "in", blocks)
        return blocks

    def send_nowait(self, frames: Frames) -> int:
        self._trace.frames(self._node, "out", [frames])
        return self._port.send_nowait(frames)

    async def run(self) -> None:
        await self._port.run()

    async def aclose(self) -> None:
        await self._port.aclose()


def random_bits(seed: Seed, purpose: str) -> RandomBits:
    """Draws as ``secrets.randbits`` does, up to 64 bits, from the stream ``purpose`` of ``seed``."""
    stream = named_bits(seed, purpose)
    return lambda bits: int(stream.random_raw()) >> (64 - bits)


@dataclass(slots=True)
class Life:
    """A daemon from its start to its end."""

    node: MemoryNode
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)

    async def crash(self) -> None:
        """As SIGKILL: its connections close without a word; what its code still does reaches nobody."""
        self.node.crash()
        self.scope.cancel()
        await self.ended.wait()


@dataclass(slots=True)
class SwitchLife(Life):
    told_to_stop: trio.Event = field(default_factory=trio.Event)
    daemon: Switch | None = None

    async def stop(self) -> None:
        """As SIGTERM."""
        self.told_to_stop.set()
        await self.ended.wait()

    async def cancel(self) -> None:
        """As a second SIGTERM, which does not wait."""
        self.scope.cancel()
        await self.ended.wait()


@dataclass(slots=True)
class HostLife(Life):
    settings: HostSettings = field(kw_only=True)
    daemon: HostDaemon | None = None

    async def stop(self) -> None:
        """As SIGTERM."""
        self.scope.cancel()
        await self.ended.wait()


class MemoryCluster:
    """Start what the scenario needs; made by :func:`open_memory_cluster`."""

    def __init__(
        self,
        seed: Seed,
        nursery: trio.Nursery,
        network: MemoryNetwork,
        trace: Trace,
        options: dict[str, Any],
        switch_options: dict[str, Any],
        fabric: Fabric | None = None,
        seats: Sequence[str] = (),
    ) -> None:
        """``fabric`` of several switches, if there is one; host ``i`` is at switch ``seats[i]``."""
        self.seed = seed
        self.network = network
        self.trace = trace
        self.fabric = fabric
        self.seats = seats
        self.switches: dict[str, SwitchLife] = {}
        """By name; of a switch that is alone the name is empty."""
        self.hosts: dict[int, HostLife] = {}
        self._nursery = nursery
        self._options = options
        self._switch_options = switch_options
        self.turns: Callable[[int], TurnsOf] = lambda host: no_turns
        """Of a host, by its number."""
        self.infiniband: Sequence[int] = ()
        """Hosts whose NIC is there."""
        self._lives = 0
        self._communicators: list[inaproto.Communicator] = []

    @property
    def switch(self) -> SwitchLife | None:
        """The one that is alone, or the root."""
        return self.switches.get(self.fabric.root.name if self.fabric else "")

    def _secrets(self, name: str) -> RandomBits:
        self._lives += 1
        return random_bits(self.seed, f"secrets/{name}/{self._lives}")

    # --- daemons

    async def start_switch(self, switch: str = "", **values: Any) -> SwitchLife:
        """Of a fabric: the one of this name, by default the root.

        ``values`` are settings other than those of the cluster.
        """
        directory, place = DIRECTORY, None
        if self.fabric is not None:
            place = Place(self.fabric, switch or self.fabric.root.name)
            switch, directory = place.name, place.entry.dir
        process = switch or "switch"
        node = self.network.node(process)
        life = self.switches[switch] = SwitchLife(node)
        ready = trio.Event()

        def started(daemon: Switch) -> None:
            life.daemon = daemon
            ready.set()

        secrets = self._secrets(process)

        def wrap(port: FramePort, name: str) -> FramePort:
            return TracedPort(port, f"{process}/{name}", self.trace)

        async def connect_port(path: Path) -> FramePort:
            return node.connect_port(path)

        async def serve() -> None:
            try:
                with life.scope:
                    await run_switch(
                        SwitchSettings.model_validate(
                            {"dir": directory, "name": switch} | self._switch_options | values
                        ),
                        place=place,
                        connect_port=connect_port,
                        open_port_listener=node.listen_ports,
                        stop=life.told_to_stop,
                        wrap_port=wrap,
                        started=started,
                        network=node,
                        random_bits=secrets,
                    )
            finally:
                life.ended.set()

        self._nursery.start_soon(serve)
        await ready.wait()
        return life

    async def start_host(self, number: int) -> HostLife:
        """Host ``number``, ``h0`` at 10.0.0.1 and so on; again, after it has ended."""
        name = f"h{number}"
        node = self.network.node(name)
        values = {"name": name, "ip": f"10.0.0.{number + 1}", "dir": DIRECTORY} | SMALL | self._options
        if number in self.infiniband:
            del values["ip"]
            values |= {"nic": "verbs", "gid": gid_of(number)}
        if self.seats:
            values["switch"] = self.seats[number]
        life = self.hosts[number] = HostLife(node, settings=HostSettings.model_validate(values))
        secrets = self._secrets(name)

        async def open_nic(port_path: str) -> Nic:
            port = TracedPort(node.connect_port(Path(port_path)), name, self.trace)
            settings = life.settings
            if number in self.infiniband:
                mac, ip = ethernet_of(number)
                config = SoftNicConfig(mac=mac, ip=ip, first_key=1 + secrets(31), first_qpn=2 + secrets(23))
                below = InfinibandNic(port, config)
                below.host = number
                return below
            nic: Nic = load_adapter("softnic").open(
                port,
                mac=settings.mac_bytes,
                ip=settings.ip_bytes,
                first_key=1 + secrets(31),
                first_qpn=2 + secrets(23),
                selective=settings.selective == "on",
            )
            return nic

        async def serve(task_status: trio.TaskStatus[HostDaemon]) -> None:
            try:
                with life.scope:
                    await run_host(
                        life.settings,
                        open_nic=open_nic,
                        network=node,
                        random_bits=secrets,
                        turns_of=self.turns(number),
                        add_in_threads=False,
                        collective=collective_of(life.settings),
                        task_status=task_status,
                    )
            finally:
                life.ended.set()

        life.daemon = await self._nursery.start(serve)
        return life

    # --- ranks

    async def connect(
        self, job: str, rank: int, *, size: int, host: int | None = None, **options: Any
    ) -> inaproto.Communicator:
        """A rank on host ``host``, by default the host of its number."""
        path = DIRECTORY / f"h{rank if host is None else host}.sock"
        dial = self.network.node(f"{job}.{rank}").dial
        comm = await inaproto.connect(job, rank, size=size, socket=path, dial=dial, **options)
        self._communicators.append(comm)
        return comm

    async def job(self, job: str, places: int | Sequence[int], **options: Any) -> list[inaproto.Communicator]:
        """All ranks of a job, connected; ``places``: the host of each, or how many hosts have one each."""
        hosts = range(places) if isinstance(places, int) else places
        found: dict[int, inaproto.Communicator] = {}

        async def one(rank: int) -> None:
            found[rank] = await self.connect(job, rank, size=len(hosts), host=hosts[rank], **options)

        async with trio.open_nursery() as nursery:
            for rank in range(len(hosts)):
                nursery.start_soon(one, rank)
        return [found[rank] for rank in range(len(hosts))]

    # --- the end

    async def shut_down(self) -> None:
        """Ranks are gone or leave; hosts, then the switches, stop in good order. Nothing may be left."""
        async with trio.open_nursery() as nursery:
            for comm in self._communicators:
                nursery.start_soon(comm.aclose)
        for life in list(self.hosts.values()):
            await life.stop()
        for switch in reversed(list(self.switches.values())):
            await switch.stop()
        assert not self._nursery.child_tasks, f"tasks left: {self._nursery.child_tasks}"
        assert not self.network.open_ends, f"open: {self.network.open_ends}"


@asynccontextmanager
async def open_memory_cluster(
    seed: Seed,
    hosts: int,
    trace: Trace,
    *,
    weather: str = "",
    control_delay_ns: int = MS,
    switch: dict[str, Any] | None = None,
    fabric: Fabric | None = None,
    seats: Sequence[str] = (),
    start: bool = True,
    turns: Callable[[int], TurnsOf] = lambda host: no_turns,
    infiniband: Sequence[int] = (),
    **host_options: Any,
) -> AsyncIterator[MemoryCluster]:
    """A switch, or all of a fabric, and ``hosts`` host daemons, started unless the scenario does it.

    They are shut down in good order at the end.

    Each part of a control message takes up to ``control_delay_ns``.
    """
    network = MemoryNetwork(
        seed=seed,
        link=Link(latency_ns=5 * US, bandwidth_bps=10_000_000_000, weather=Weather.parse(weather)),
        timing=StreamTiming(delay_min_ns=10 * US, delay_max_ns=control_delay_ns, splits=True),
        observe=trace.control,
    )
    with trio.fail_after(VIRTUAL_S_MAX):
        async with trio.open_nursery() as nursery:
            cluster = MemoryCluster(seed, nursery, network, trace, host_options, switch or {}, fabric, seats)
            cluster.turns, cluster.infiniband = turns, infiniband
            if start:
                for name in [entry.name for entry in fabric.entries] if fabric is not None else [""]:
                    await cluster.start_switch(name)
                for number in range(hosts):
                    await cluster.start_host(number)
            yield cluster
            await cluster.shut_down()


@dataclass(frozen=True, slots=True)
class WorldResult:
    digest: str
    events: int
    virtual_s: float


Scenario = Callable[[MemoryCluster], Awaitable[None]]


def run_world(
    seed: Seed, scenario: Scenario, *, hosts: int, weather: str = "", **options: Any
) -> WorldResult:
    """Run ``scenario`` on a fresh cluster. A failure shows the last lines of the trace.

    ``options`` are those of :func:`open_memory_cluster`.
    """
    trace = Trace()

    async def main() -> WorldResult:
        async with open_memory_cluster(seed, hosts, trace, weather=weather, **options) as cluster:
            await scenario(cluster)
        return WorldResult(trace.digest, trace.events, trio.current_time())

    try:
        return run_deterministically(seed, main)
    except BaseException as error:
        lines = "\n  ".join(trace.last)
        error.add_note(
            f"seed {seed}, weather {weather or 'clear'}; the last of {trace.events} events:\n  {lines}"
        )
        raise


Parameters = ParamSpec("Parameters")
Asking = Callable[Concatenate[MemoryCluster, Parameters], Awaitable[None]]
"""A scenario with the arguments of a test."""


def in_memory(seed: str, **options: Any) -> Callable[[Asking[Parameters]], Callable[Parameters, None]]:
    """Make a test of a scenario: it runs on a fresh cluster, which is its first argument.

    ``seed`` names the world; ``{name}`` in it is the test's argument of this name. ``options`` are those of
    :func:`run_world`.
    """

    def make(scenario: Asking[Parameters]) -> Callable[Parameters, None]:
        @wraps(scenario)
        def test(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
            run_world(seed.format(**kwargs), lambda cluster: scenario(cluster, *args, **kwargs), **options)

        whole = signature(scenario)
        asked = list(whole.parameters.values())[1:]
        test.__signature__ = whole.replace(parameters=asked)  # type: ignore[attr-defined]
        return test

    return make
