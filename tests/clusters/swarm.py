"""Scenarios for :mod:`tests.clusters.memory`, drawn from a seed: sizes, weather, ranks, faults.

Ranks train in attempts. In an attempt every rank joins, reduces inputs that belong to the attempt alone,
and leaves; when a fault has ended it for any rank, all ranks of the job make another one, as a training
program that goes back to its last checkpoint.

Checked: every result that any rank got is the numpy reference, so no two ranks ever differ; a rank that
fails fails with a ``JobError`` that names a rank or a daemon; a rank that is not reached by the fault ends
within a bound that follows from the deadlines in force; when the faults are over the job finishes, and
nothing is left of it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import trio

import inaproto
from inaproto.errors import JobError
from inaproto.units import MS, US
from inaproto_adapters.memory import MemoryFramePort, MemoryStream
from tests.clusters.memory import MemoryCluster, WorldResult, run_world
from tests.daemon.test_allreduce_end_to_end import draw, nested_reference, numpy_dtype

DTYPES = ("float32", "int32", "float16", "bfloat16", "float64", "int64")
OPERATION_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 20.0
ATTEMPTS_MAX = 12
ATTEMPT_S_MAX = 60.0
"""Joining (and the time to say who is missing), the operations, each at most as long as its timeout."""
NAMES = re.compile(r"\brank \d|\branks \d|\bhost h\d|\bhost daemon\b|\bswitch\b")


@dataclass(frozen=True, slots=True)
class Reduction:
    dtype: str
    op: str
    length: int


@dataclass(frozen=True, slots=True)
class Fault:
    """``kind`` at ``at_s`` after the start, on host or rank ``target``, undone after ``for_s``."""

    kind: str
    at_s: float
    target: int
    for_s: float


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    size: int
    places: tuple[int, ...]
    """The host of each rank."""
    reductions: tuple[Reduction, ...]
    pauses_s: tuple[float, ...]
    """Of each rank before each operation: stragglers."""
    in_flight: int
    registered: bool
    """Inputs lie in registered buffers and results come in their place."""


@dataclass(frozen=True, slots=True)
class SwarmConfig:
    hosts: int
    weather: str
    control_delay_ns: int
    host_options: dict[str, Any]
    jobs: tuple[Job, ...]
    faults: tuple[Fault, ...]


CUTS = {
    "cut all": (MemoryStream, MemoryFramePort),
    "cut control": (MemoryStream,),
    "cut links": (MemoryFramePort,),
}
FAULTS = ("cancel rank", "host stop", "host crash", "switch stop", "switch crash", *CUTS)


def draw_config(seed: int) -> SwarmConfig:
    dice = Random(f"{seed}/swarm")
    hosts = dice.randint(2, 5)
    weather = ",".join(
        f"{kind}={dice.choice((0, 0.002, 0.01, 0.03))}"
        for kind in ("drop", "duplicate", "reorder", "corrupt", "truncate")
    )
    options = {
        "mtu": dice.choice((256, 1024)),
        "message_packets": dice.choice((1, 3, 8)),
        "window_messages": dice.choice((1, 2, 4)),
        "transport_timeout": dice.choice((8, 10, 14)),
        "operation_timeout_ms": int(OPERATION_TIMEOUT_S * 1000),
    }
    sizes = [dice.choice((hosts, hosts, 2 * hosts))]
    sizes += [dice.randint(2, hosts)] * (dice.random() < 0.4)
    jobs = tuple(_draw_job(dice, f"job{number}", size, hosts) for number, size in enumerate(sizes))
    faults = tuple(
        Fault(
            FAULTS[(seed + number) % len(FAULTS)],  # so that few seeds draw all kinds
            at_s=round(dice.choice((0.03, 0.3)) * dice.random(), 4),
            target=dice.randrange(hosts),
            for_s=round(dice.choice((0.1, 2.0, 15.0)) * dice.random(), 4),
        )
        for number in range(dice.choice((0, 1, 1, 2, 3, 4)))
    )
    delay_ns = dice.choice((100 * US, MS, 20 * MS, 200 * MS))
    return SwarmConfig(hosts, weather, delay_ns, options, jobs, faults)


def _draw_job(dice: Random, name: str, size: int, hosts: int) -> Job:
    reductions = tuple(
        Reduction(dice.choice(DTYPES), dice.choice(("sum", "sum", "max", "min")), dice.randint(1, 1500))
        for _ in range(dice.randint(2, 6))
    )
    slowest_s = dice.choice((0.0, 0.0, 0.02, 0.2))
    pauses = tuple(round(slowest_s * dice.random(), 4) for _ in range(size))
    in_flight, registered = dice.randint(1, 3), dice.random() < 0.3
    by_turns = dice.random() < 0.5
    places = tuple(rank % hosts if by_turns else dice.randrange(hosts) for rank in range(size))
    return Job(name, size, places, reductions, pauses, in_flight, registered)


@dataclass(slots=True)
class _Attempt:
    """What became of the ranks of a job in one go."""

    scopes: dict[int, trio.CancelScope] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)


class Swarm:
    """One configuration on one cluster."""

    def __init__(self, cluster: MemoryCluster, config: SwarmConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._attempts: dict[str, _Attempt] = {}
        self._faults_over = trio.Event()
        self._down: set[str] = set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for job in self._config.jobs:
                nursery.start_soon(self._train, job)
            await self._do_faults()
            self._faults_over.set()

    # --- training

    async def _train(self, job: Job) -> None:
        for number in range(ATTEMPTS_MAX):
            all_well = self._faults_over.is_set()
            attempt = self._attempts[job.name] = _Attempt()
            with trio.fail_after(ATTEMPT_S_MAX):
                async with trio.open_nursery() as nursery:
                    for rank in range(job.size):
                        nursery.start_soon(self._rank, job, number, rank, attempt)
            if len(attempt.done) == job.size:
                return
            # The hosts of a job that began in good times may still have had to find their switch.
            assert not all_well or number < ATTEMPTS_MAX - 1, f"{job.name} fails without faults"
            self._cluster.trace.note(f"{job.name} attempt {number}: done {sorted(attempt.done)}")
            await trio.sleep(0.5)
        raise AssertionError(f"{job.name} did not finish in {ATTEMPTS_MAX} attempts")

    async def _rank(self, job: Job, number: int, rank: int, attempt: _Attempt) -> None:
        scope = attempt.scopes[rank] = trio.CancelScope()
        try:
            with scope:
                comm = await self._cluster.connect(
                    job.name,
                    rank,
                    size=job.size,
                    host=job.places[rank],
                    timeout=CONNECT_TIMEOUT_S,
                )
                async with comm:
                    await self._reduce(comm, job, number)
                attempt.done.add(rank)
        except JobError as error:
            self._failed(job, rank, error)

    def _failed(self, job: Job, rank: int, error: JobError) -> None:
        self._cluster.trace.note(f"{job.name}.{rank} {type(error).__name__}: {error}")
        assert NAMES.search(str(error)), f"an error that names nobody: {error!r}"

    async def _reduce(self, comm: inaproto.Communicator, job: Job, number: int) -> None:
        works: deque[tuple[inaproto.Work, int]] = deque()
        for index, reduction in enumerate(job.reductions):
            await trio.sleep(job.pauses_s[comm.rank])
            array = self._inputs(job, number, index)[comm.rank]
            if job.registered:
                buffer = comm.buffer(array.shape, array.dtype)
                np.copyto(buffer, array)
                array = buffer
            works.append((comm.all_reduce(array, reduction.op, in_place=job.registered), index))
            if len(works) >= job.in_flight:
                await self._check(works.popleft(), job, number)
        while works:
            await self._check(works.popleft(), job, number)

    def _inputs(self, job: Job, number: int, index: int) -> list[Any]:
        reduction = job.reductions[index]
        seed = (self._cluster.seed, job.name, number, index)
        dtype = numpy_dtype(reduction.dtype)
        return [draw(dtype, (reduction.length,), (*seed, rank)) for rank in range(job.size)]

    async def _check(self, started: tuple[inaproto.Work, int], job: Job, number: int) -> None:
        work, index = started
        result = await work
        expected = nested_reference(self._inputs(job, number, index), job.places, job.reductions[index].op)
        assert result.tobytes() == expected.tobytes(), (
            f"{job.name} attempt {number}, operation {index}: not the reference"
        )

    # --- faults

    async def _do_faults(self) -> None:
        """All, each at its time and undone at its time; they may overlap."""
        async with trio.open_nursery() as nursery:
            for fault in self._config.faults:
                nursery.start_soon(self._do_one, fault)

    async def _do_one(self, fault: Fault) -> None:
        await trio.sleep(fault.at_s)
        place = "switch" if fault.kind.startswith("switch") else f"h{fault.target}"
        if place in self._down:  # nobody is there to suffer it
            return
        self._down.add(place)
        self._cluster.trace.note(f"fault {fault}")
        undo = await self._do(fault)
        await trio.sleep(fault.for_s)
        await undo()
        self._down.remove(place)

    async def _do(self, fault: Fault) -> Callable[[], Any]:
        cluster, name = self._cluster, f"h{fault.target}"
        host, switch = cluster.hosts[fault.target], cluster.switch
        assert switch is not None

        async def nothing() -> None: ...

        async def heal() -> None:
            cluster.network.partition(name, "switch", is_cut=False, kinds=CUTS[fault.kind])

        async def start_host() -> None:
            await cluster.start_host(fault.target)

        match fault.kind:
            case "cancel rank":
                for attempt in self._attempts.values():
                    if fault.target in attempt.scopes:
                        attempt.scopes[fault.target].cancel()
                return nothing
            case "host stop":
                await host.stop()
                return start_host
            case "host crash":
                await host.crash()
                return start_host
            case "switch stop":
                await switch.stop()
                return cluster.start_switch
            case "switch crash":
                await switch.crash()
                return cluster.start_switch
            case _:
                cluster.network.partition(name, "switch", kinds=CUTS[fault.kind])
                return heal


def run_swarm(seed: int) -> WorldResult:
    """Draw, run and check. A failure says how to run it once more."""
    config = draw_config(seed)

    async def scenario(cluster: MemoryCluster) -> None:
        await Swarm(cluster, config).run()

    try:
        return run_world(
            seed,
            scenario,
            hosts=config.hosts,
            weather=config.weather,
            control_delay_ns=config.control_delay_ns,
            **config.host_options,
        )
    except BaseException as error:
        error.add_note(
            f"{config}\nseed {seed}; rerun: "
            f"INAPROTO_SEEDS={seed}:{seed + 1} python -m pytest tests/daemon/test_memory_swarm.py -q"
        )
        raise
