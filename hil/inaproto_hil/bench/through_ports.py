"""``inaproto bench accelerator --ports``: the accelerator behind real ports, memory that processes share.

Two processes, a CPU each. One is a switch: the accelerator, and the ports of the switch daemon, served by
its event loop. The other one has all hosts: it keeps ``--window`` messages of each in flight, made
beforehand, and counts results. Its work is a copy of what it sends; acknowledgements, which real hosts send,
there are none.

The rate is that of tensor bytes in one direction by the CPU time of the switch's process, all of it: ports,
event loop, system calls and accelerator. The rate by wall time says whether the switch was busy all the
time, that by the CPU time of the hosts' process whether it could have been busier. The first and the last
set of all are not timed, and have every element compared.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import click
import trio

from inaproto.cli import collect_seldom
from inaproto.core import kernels
from inaproto.core.switch.accelerator import Accelerator, InstallRing
from inaproto.daemon.switch.ports import PortBoard
from inaproto.units import Frames, Instant
from inaproto.wire.crc import CRC_IMPLEMENTATION
from inaproto_adapters.frames.shm import ShmPort, open_shm
from inaproto_hil.bench.accelerator import (
    Config,
    Packets,
    Sets,
    hello,
    specs_of,
    wrong_in,
)
from inaproto_hil.bench.shards import cpus_for
from inaproto_hil.rigs import environment

_READY_S: Final = 600.0
_ROUND_S: Final = 600.0
"""After which a round has failed: frames were lost."""


def _serve(config: Config, path: Path, cpu: int, ready: Connection) -> None:
    """The process of the switch: serves ports, until it is ended."""
    os.sched_setaffinity(0, {cpu})

    async def serve() -> None:
        accelerator = Accelerator()
        for spec in specs_of(config):
            refused = accelerator.step(InstallRing(spec), Instant(0))
            if refused:
                ready.send(str(refused[0]))
                return
        board = PortBoard(accelerator.step, print, wrap_port=None, ports_max=config.workers)
        listener = await open_shm().listen(path)
        collect_seldom()  # as daemons do
        ready.send("")
        await board.accept_ports(listener)

    trio.run(serve)


class _Hosts:
    """All of them, each with a port of the switch."""

    def __init__(self, config: Config, ports: list[ShmPort]) -> None:
        self._config = config
        self._ports = ports
        self.prepared = Packets(config).prepared

    async def exchange(self, batch: Sets, keep: dict[int, list[Frames]] | None = None) -> None:
        """Send these and receive their results, into ``keep`` if there is one. Raises ``ClickException``."""
        with trio.move_on_after(_ROUND_S) as scope:
            async with trio.open_nursery() as nursery:
                for rank in range(self._config.workers):
                    nursery.start_soon(self._one, rank, [messages[rank] for messages, _ in batch], keep)
        if scope.cancelled_caught:
            raise click.ClickException(f"results of a round have not come for {_ROUND_S:g} s")

    async def _one(
        self, rank: int, messages: list[list[Frames]], keep: dict[int, list[Frames]] | None
    ) -> None:
        port, each = self._ports[rank], self._config.packets * self._config.rings
        sent = results = 0
        while results < each * len(messages):
            while sent < min(len(messages), results // each + self._config.window):
                if port.send_blocks_nowait(messages[sent]):
                    raise click.ClickException("the ring of a port is too small for the window")
                sent += 1
            for block in await port.receive():
                results += len(block)
                if keep is not None:
                    keep.setdefault(rank, []).append(block.copy())

    async def checked(self) -> int:
        """Elements of one set that were wrong."""
        batch, out = self.prepared(1), dict[int, list[Frames]]()
        await self.exchange(batch, out)
        return wrong_in(out, batch[0][1], self._config)


def _seconds(pid: int) -> tuple[float, float, float]:
    """CPU time of the switch, wall time, CPU time of the hosts."""
    clock_of_process = ~pid << 3 | 2  # as clock_getcpuclockid(3) has it
    return time.clock_gettime(clock_of_process), time.monotonic(), time.process_time()


async def _drive(config: Config, path: Path, pid: int, progress: Callable[[range], Any]) -> dict[str, Any]:
    """Samples by what they are rates of: seconds of each round; and elements that were wrong."""
    ports: list[ShmPort] = []
    samples: list[tuple[float, ...]] = []
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        for rank in range(config.workers):
            port = await open_shm().connect(path)
            stack.push_async_callback(port.aclose)
            nursery.start_soon(port.run)
            port.send_nowait(hello(rank))
            ports.append(port)
        hosts = _Hosts(config, ports)
        wrong = await hosts.checked()
        for turn in progress(range(config.warmup + config.rounds)):
            batch = hosts.prepared(config.sets)
            begin = _seconds(pid)
            await hosts.exchange(batch)
            if turn >= config.warmup:
                samples.append(tuple(b - a for a, b in zip(begin, _seconds(pid), strict=True)))
        wrong += await hosts.checked()
        nursery.cancel_scope.cancel()
    return {"samples": samples, "wrong": wrong}


def measure_ports(config: Config, progress: Callable[[range], Any] = iter) -> dict[str, Any]:
    """The whole measurement as the JSON document of the command. Raises ``ClickException``."""
    cpus = cpus_for(2)
    before = os.sched_getaffinity(0)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    with here, tempfile.TemporaryDirectory(prefix="inaproto-") as folder:
        path = Path(folder) / "port"
        switch = context.Process(target=_serve, args=(config, path, cpus[0], there), daemon=True)
        switch.start()
        there.close()
        try:
            os.sched_setaffinity(0, {cpus[1]})
            if not here.poll(_READY_S):
                raise click.ClickException(f"the switch has said nothing for {_READY_S:g} s")
            if why := here.recv():
                raise click.ClickException(why)
            assert switch.pid is not None
            found = trio.run(_drive, config, path, switch.pid, progress)
        except EOFError:
            raise click.ClickException("the switch ended; what it said is above") from None
        finally:
            os.sched_setaffinity(0, before)
            switch.terminate()
            switch.join()
    return _report(config, cpus, found["samples"], found["wrong"])


def _report(config: Config, cpus: list[int], samples: list[tuple[float, ...]], wrong: int) -> dict[str, Any]:
    bits = 32 * config.elements * config.workers * config.rings * config.sets
    report: dict[str, Any] = {
        "version": 1,
        "benchmark": "accelerator-ports",
        "config": asdict(config)
        | {
            "ports": "shm",
            "cpus": cpus,
            "dtype": "float32",
            "op": "sum",
            "crc": CRC_IMPLEMENTATION,
            "kernels": kernels.description(),
        },
        "env": environment.describe(),
        "wrong": wrong,
    }
    names = "gbps_per_core", "gbps", "hosts_gbps_per_core"
    for name, seconds in zip(names, zip(*samples, strict=True), strict=True):
        rates = [bits / each / 1e9 for each in seconds]
        report |= {name: statistics.median(rates), f"{name}_spread": [min(rates), max(rates)]}
    report["samples_us"] = [of_switch * 1e6 for of_switch, _, _ in samples]
    return report
