"""Real daemons whose rings end in the middle of a job: it goes on, with the same bytes, and says why.

Every test is one seeded run in virtual time (:mod:`tests.clusters.memory`), and most strike at many
moments of an all-reduce: the job must not notice but by the clock.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.core.host.events import NicRefused
from inaproto.core.rendezvous.events import RendezvousConfig
from inaproto.daemon.host.daemon import HostDaemon
from inaproto.daemon.switch import control_plane
from inaproto.errors import JobError, RankLost, SwitchUnreachable
from tests.clusters.memory import MemoryCluster, in_memory, run_world
from tests.daemon.test_allreduce_end_to_end import draw, nested_reference, numpy_dtype
from tests.seeds import seeds

WEATHER = "drop=0.01,duplicate=0.005,reorder=0.01,corrupt=0.002,truncate=0.001"
DTYPES = ("float32", "float16", "bfloat16", "int64", "float64")

Fault = Callable[[MemoryCluster, random.Random], Awaitable[None]]


class Job:
    """Ranks that call all-reduces of random types and sizes, two at a time, and check them.

    ``places``: the host of each rank; left out, rank i is on host i.
    """

    def __init__(
        self,
        cluster: MemoryCluster,
        size: int,
        operations: int,
        seed: object,
        places: Sequence[int] | None = None,
    ) -> None:
        self.cluster = cluster
        self.size = size
        self.places = range(size) if places is None else places
        self.draws = random.Random(f"{seed}/job")
        self.called = [
            (self.draws.choice(DTYPES), self.draws.choice(("sum", "sum", "max")), self.draws.randint(1, 4000))
            for _ in range(operations)
        ]
        self.done = [0] * size
        self.paths: set[str] = set()
        """By which they were summed."""
        self.name = "train"
        self.wishes: dict[str, Any] = {}
        """Of all ranks: how they connect."""
        self.seed = seed

    def inputs(self, index: int) -> list[Any]:
        dtype, _, length = self.called[index]
        return [draw(numpy_dtype(dtype), (length,), (self.seed, index, rank)) for rank in range(self.size)]

    def expected(self, index: int) -> Any:
        return nested_reference(self.inputs(index), self.places, self.called[index][1])

    async def rank(self, rank: int) -> None:
        async with await self.cluster.connect(
            self.name, rank, size=self.size, host=self.places[rank], **self.wishes
        ) as comm:
            for first in range(0, len(self.called), 2):
                works: list[tuple[int, inaproto.Work]] = [
                    (index, comm.all_reduce(self.inputs(index)[rank], self.called[index][1]))
                    for index in range(first, min(first + 2, len(self.called)))
                ]
                for index, work in works:
                    result = await work
                    assert result.tobytes() == self.expected(index).tobytes(), (
                        rank,
                        index,
                        self.called[index],
                    )
                    self.done[rank] += 1
            self.paths.update(record.path for record in comm.statistics().recent)

    async def run(self, *faults: Callable[[], Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:
            for rank in range(self.size):
                nursery.start_soon(self.rank, rank)
            for fault in faults:
                nursery.start_soon(fault)
        assert self.done == [len(self.called)] * self.size


async def restart_switch(cluster: MemoryCluster, draws: random.Random) -> None:
    assert cluster.switch is not None
    await cluster.switch.crash()
    await trio.sleep(draws.choice((0.0, 0.1, 2.0)))
    await cluster.start_switch()


async def stop_and_start_switch(cluster: MemoryCluster, draws: random.Random) -> None:
    assert cluster.switch is not None
    await cluster.switch.stop()
    await trio.sleep(draws.choice((0.0, 0.5)))
    await cluster.start_switch()


async def lose_a_fabric(cluster: MemoryCluster, draws: random.Random) -> None:
    """A host's control connection ends, as if the switch had closed it; NIC and port go with it."""
    fabric = daemon(cluster, draws.randrange(len(cluster.hosts))).fabric
    if fabric is not None:
        fabric._lose("the control connection broke")


async def break_a_queue_pair(cluster: MemoryCluster, draws: random.Random) -> None:
    fabric = daemon(cluster, draws.randrange(len(cluster.hosts))).fabric
    for ring in fabric.rings() if fabric is not None else ():
        ring.feed(NicRefused("the queue pair failed"))


def daemon(cluster: MemoryCluster, host: int) -> HostDaemon:
    found = cluster.hosts[host].daemon
    assert found is not None
    return found


FAULTS = {
    "switch crash": restart_switch,
    "switch stop": stop_and_start_switch,
    "fabric": lose_a_fabric,
    "queue pair": break_a_queue_pair,
}


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("name", FAULTS)
def test_a_job_goes_on_whatever_ends_its_ring(name: str, seed: int) -> None:
    draws = random.Random(f"{name}/{seed}")

    async def scenario(cluster: MemoryCluster) -> None:
        job = Job(cluster, 3, 8, (name, seed))

        async def strike() -> None:
            for _ in range(draws.randint(1, 3)):
                await trio.sleep(draws.uniform(0.005, 0.05))
                await FAULTS[name](cluster, draws)

        await job.run(strike)

    run_world(f"goes on/{name}/{seed}", scenario, hosts=3, weather=draws.choice(("", WEATHER)))


@pytest.mark.parametrize("seed", seeds(2))
@in_memory("all faults/{seed}", hosts=4, weather=WEATHER)
async def test_every_fault_at_once(cluster: MemoryCluster, seed: int) -> None:
    draws = random.Random(f"all/{seed}")

    job = Job(cluster, 4, 12, ("all", seed))

    def strike(fault: Fault) -> Callable[[], Awaitable[None]]:
        async def struck() -> None:
            for _ in range(2):
                await trio.sleep(draws.uniform(0.0, 0.3))
                await fault(cluster, draws)

        return struck

    await job.run(*(strike(fault) for fault in (restart_switch, lose_a_fabric, break_a_queue_pair)))


@pytest.mark.parametrize("after_ms", [12, 23, 33])
@in_memory("in a row/{after_ms}", hosts=3, weather=WEATHER)
async def test_a_host_that_is_halted_already_loses_its_connection_too(
    cluster: MemoryCluster, after_ms: int
) -> None:
    """What it has kept is then in no receive slot any more: those of the next ring are empty."""

    async def strike() -> None:
        await trio.sleep(after_ms / 1000)
        for host in (1, 0, 2):
            fabric = daemon(cluster, host).fabric
            if fabric is not None:
                fabric._lose("the control connection broke")
            await trio.sleep(0.004)

    await Job(cluster, 3, 6, ("in a row", after_ms)).run(strike)


@pytest.mark.parametrize("seed", [24, 35])
@in_memory("anew/{seed}", hosts=3, weather=WEATHER)
async def test_a_switch_that_counts_its_rings_anew_confuses_nobody(
    cluster: MemoryCluster, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rings of two switches, one after the other, have the same id: what is kept is told apart by serial."""
    monkeypatch.setattr(
        control_plane, "RendezvousConfig", lambda **values: RendezvousConfig(**values | {"first_ring_id": 1})
    )

    async def strike() -> None:
        draws = random.Random(f"anew/{seed}")
        for _ in range(4):
            await trio.sleep(draws.uniform(0.005, 0.2))
            assert cluster.switch is not None
            await cluster.switch.crash()
            await cluster.start_switch()

    await Job(cluster, 3, 8, ("anew", seed)).run(strike)


# --- the chain


@in_memory("chain", hosts=4, weather=WEATHER, switch={"memory_kib": 0})
async def test_hosts_sum_themselves_when_the_accelerator_has_no_room(cluster: MemoryCluster) -> None:
    await Job(cluster, 4, 10, "chain").run()


@in_memory("returns", hosts=3, switch={"memory_kib": 40})
async def test_a_job_returns_to_the_switch_when_another_has_made_room(cluster: MemoryCluster) -> None:
    paths: list[str] = []
    on_chain = trio.Event()
    hog = await cluster.job("hog", 3)

    async def make_room() -> None:
        await on_chain.wait()
        async with trio.open_nursery() as nursery:
            for comm in hog:
                nursery.start_soon(comm.aclose)

    async def watch() -> None:
        while paths[-1:] != ["switch"] or "chain" not in paths:
            await trio.sleep(0.0005)
            rings = daemon(cluster, 0).status()["rings"]
            paths.extend(ring["path"] for ring in rings if ring["job"] == "train")
            if "chain" in paths:
                on_chain.set()

    await Job(cluster, 3, 60, "returns").run(make_room, watch)


# --- what cannot go on


@in_memory("switch stays away", hosts=2)
async def test_a_switch_that_stays_away_is_named_in_time(cluster: MemoryCluster) -> None:
    assert cluster.switch is not None
    comms = await cluster.job("train", 2)
    await cluster.switch.crash()
    began = trio.current_time()
    for comm in comms:
        with pytest.raises(SwitchUnreachable, match=r"its switch has not come back within 8 s"):
            await comm.all_reduce(np.ones(10, np.float32))
    assert 8 <= trio.current_time() - began <= 8.5
    await cluster.start_switch()


@in_memory("host anew", hosts=3)
async def test_a_host_daemon_that_was_started_anew_is_named_at_once(cluster: MemoryCluster) -> None:
    comms = await cluster.job("train", 3)
    await cluster.hosts[1].crash()
    began = trio.current_time()
    await cluster.start_host(1)
    for comm in (comms[0], comms[2]):
        with pytest.raises(RankLost, match=r"rank 1 \(h1, .*its host daemon was started anew"):
            await comm.all_reduce(np.ones(10, np.float32))
    assert trio.current_time() - began <= 0.5
    with pytest.raises(JobError):
        await comms[1].all_reduce(np.ones(10, np.float32))
