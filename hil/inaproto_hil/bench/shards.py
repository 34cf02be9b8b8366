"""``inaproto bench accelerator --shards``: several accelerators at once, a process and a CPU each, and one.

Each shard has rings of its own, as the shards of a switch have (docs/shards.md), and shares nothing with the
others but what the machine makes them share: caches, memory, and the execution units of a core with two
threads. A round times one shard alone, the others at rest, then all of them at once; which one is alone goes
around. Both are wall time, from the first packet of the first to the last one of the last, so a shard that
waits for a CPU counts as one that does not sum. The same ratio by CPU time leaves such waits out, and is what
a machine says that others use, too: what is missing in it are caches and memory that shards share.

What is timed is what ``inaproto bench accelerator`` times (packets copied into the receive buffer are
included here). Sets that are not timed, before and after those that are, have every element compared.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any, Final

import click

from inaproto.core import kernels
from inaproto.wire.crc import CRC_IMPLEMENTATION
from inaproto_hil.bench.accelerator import Config, Core, Packets, Sets, wrong_in
from inaproto_hil.rigs import environment

_READY_S: Final = 600.0
"""For a shard to prepare a round of packets."""
_END_S: Final = 5.0


class _Shard:
    """What one process has: an accelerator with its rings, and packets for them."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._core = Core(config)
        self.prepared = Packets(config).prepared

    def timed(self, batch: Sets) -> tuple[int, int, int]:
        """When it began and ended with them, and the CPU time that they took; nanoseconds."""
        begin, cpu = time.monotonic_ns(), time.thread_time_ns()
        for messages, _ in batch:
            self._core.sum(messages)
        cpu = time.thread_time_ns() - cpu
        return begin, time.monotonic_ns(), cpu

    def checked(self, batch: Sets) -> int:
        """Elements that were wrong."""
        return sum(wrong_in(self._core.run(messages)[1], sums, self._config) for messages, sums in batch)


def _serve(config: Config, cpu: int, orders: Connection) -> None:
    """The process of a shard: prepares and times as it is told, until it hears nothing more."""
    os.sched_setaffinity(0, {cpu})
    shard = _Shard(config)
    batch = shard.prepared(config.sets)
    orders.send(shard.checked(batch))
    while (order := orders.recv()) is not None:
        if order == "prepare":
            batch = shard.prepared(config.sets)
            orders.send(None)
        elif order == "time":
            orders.send(shard.timed(batch))
        else:
            orders.send(shard.checked(shard.prepared(config.sets)))


class _Shards:
    """The processes, from the start on until ``close``."""

    def __init__(self, config: Config, cpus: list[int]) -> None:
        context = multiprocessing.get_context("spawn")
        self._orders: list[Connection] = []
        self._processes = []
        for cpu in cpus:
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(config, cpu, there), daemon=True)
            process.start()
            there.close()
            self._orders.append(here)
            self._processes.append(process)

    def all(self, order: str) -> list[Any]:
        """What each answers."""
        return self.some(order, self._orders)

    def alone(self, which: int, order: str) -> list[Any]:
        """What that one answers; the others rest."""
        return self.some(order, self._orders[which : which + 1])

    def some(self, order: str, whom: list[Connection]) -> list[Any]:
        for one in whom:
            one.send(order)
        return self.answers(whom)

    def answers(self, whom: list[Connection] | None = None) -> list[Any]:
        """Raises ``ClickException`` when a shard ends, or says nothing."""
        found = []
        for one in self._orders if whom is None else whom:
            if not one.poll(_READY_S):
                raise click.ClickException(f"a shard has said nothing for {_READY_S:g} s")
            try:
                found.append(one.recv())
            except EOFError:
                raise click.ClickException("a shard ended; what it said is above") from None
        return found

    def close(self) -> None:
        for one in self._orders:
            with suppress(OSError):  # of one that has ended
                one.send(None)
            one.close()
        for process in self._processes:
            process.join(_END_S)
            process.terminate()
            process.join()


def cpus_for(shards: int) -> list[int]:
    """A CPU for each. Raises ``BadParameter`` where there are fewer."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < shards:
        raise click.BadParameter(
            f"--shards {shards}: each needs a CPU of its own, and this process may use {len(cpus)}"
        )
    return cpus[:shards]


def _seconds(spans: list[tuple[int, int, int]]) -> float:
    return (max(end for _, end, _ in spans) - min(begin for begin, _, _ in spans)) / 1e9


def _spread(values: list[float]) -> list[float]:
    return [min(values), max(values)]


def measure_shards(config: Config, shards: int, progress: Callable[[range], Any] = iter) -> dict[str, Any]:
    """The whole measurement as the JSON document of the command. Raises ``ClickException``."""
    cpus = cpus_for(shards)
    workers = _Shards(config, cpus)
    alone_s: list[float] = []
    together_s: list[float] = []
    by_cpu: list[float] = []
    try:
        wrong = sum(workers.answers())
        for turn in progress(range(config.warmup + config.rounds)):
            workers.alone(turn % shards, "prepare")
            one = workers.alone(turn % shards, "time")
            workers.all("prepare")
            every = workers.all("time")
            if turn >= config.warmup:
                alone_s.append(_seconds(one))
                together_s.append(_seconds(every))
                by_cpu.append(sum(one[0][2] / cpu_ns for _, _, cpu_ns in every))
        wrong += sum(workers.all("check"))
    finally:
        workers.close()
    bits = 32 * config.elements * config.workers * config.rings * config.sets
    alone = [bits / seconds / 1e9 for seconds in alone_s]
    together = [shards * bits / seconds / 1e9 for seconds in together_s]
    ratios = [all_of / one for all_of, one in zip(together, alone, strict=True)]
    return {
        "version": 1,
        "benchmark": "accelerator-shards",
        "config": asdict(config)
        | {
            "shards": shards,
            "cpus": cpus,
            "dtype": "float32",
            "op": "sum",
            "crc": CRC_IMPLEMENTATION,
            "kernels": kernels.description(),
        },
        "env": environment.describe(),
        "gbps_of_one": statistics.median(alone),
        "gbps_of_one_spread": _spread(alone),
        "gbps_of_all": statistics.median(together),
        "gbps_of_all_spread": _spread(together),
        "ratio_to_one": statistics.median(ratios),
        "ratio_to_one_spread": _spread(ratios),
        "ratio_by_cpu_time": statistics.median(by_cpu),
        "ratio_by_cpu_time_spread": _spread(by_cpu),
        "wrong": wrong,
        "samples_of_one_us": [seconds * 1e6 for seconds in alone_s],
        "samples_of_all_us": [seconds * 1e6 for seconds in together_s],
    }
