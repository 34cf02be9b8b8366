"""Real daemons whose rings end in the middle of a job: it goes on, with the same bytes, and says why.

Every test is one seeded run in virtual time (:mod:`tests.clusters.memory`), and most strike at many
moments of an all-reduce: the job must not notice but by the clock.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
import pytest
import trio

from inaproto.core.rendezvous.events import RendezvousConfig
from inaproto.daemon.switch import control_plane
from inaproto.errors import JobError, RankLost, SwitchUnreachable
from tests.clusters.jobs import ALONE, FAULTS, PAIRS, TRIPLE, TURNS, WEATHER, Fault, Job, daemon
from tests.clusters.memory import MemoryCluster, in_memory, run_world
from tests.seeds import seeds


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize(
    ("path", "places"),
    [
        ("auto", (0, 1, 2)),
        ("auto", PAIRS),
        ("auto", TURNS),
        ("auto", ALONE),
        ("ring", (0, 1, 2)),
        ("ring", TRIPLE),
        ("overlay", TRIPLE),
    ],
)
@pytest.mark.parametrize("name", FAULTS)
def test_a_job_goes_on_whatever_ends_its_ring(name: str, path: str, places: Sequence[int], seed: int) -> None:
    draws = random.Random(f"{name}/{path}/{places}/{seed}")
    once = name == "queue pair" and path != "auto"  # a second break in one place ends a job on its own path

    async def scenario(cluster: MemoryCluster) -> None:
        job = Job(cluster, places, 8, (name, seed), path)

        async def strike() -> None:
            for _ in range(1 if once else draws.randint(1, 3)):
                await trio.sleep(draws.uniform(0.005, 0.05))
                await FAULTS[name](cluster, draws)

        await job.run(strike)
        assert path in ("auto", *job.paths)

    run_world(
        f"goes on/{name}/{path}/{places}/{seed}",
        scenario,
        hosts=len(set(places)),
        weather=draws.choice(("", WEATHER)),
        switch={"memory_kib": 1 << 20 if path != "auto" else draws.choice((0, 1 << 20, 1 << 20))},
    )


@pytest.mark.parametrize("path", ["auto", "chain", "overlay", "ring"])
@in_memory("all faults/{path}", hosts=4, weather=WEATHER)
async def test_every_fault_at_once(cluster: MemoryCluster, path: str) -> None:
    draws = random.Random(f"all on {path}")
    job = Job(cluster, 4, 10, "all", path)

    def strike(fault: Fault) -> Callable[[], Awaitable[None]]:
        async def struck() -> None:
            for _ in range(2):
                await trio.sleep(draws.uniform(0.0, 0.3))
                await fault(cluster, draws)

        return struck

    await job.run(*(strike(FAULTS[name]) for name in ("switch crash", "fabric", "queue pair")))
    assert path in ("auto", *job.paths)


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
async def test_a_host_daemon_that_was_started_anew_and_whose_rank_does_not_come_is_named(
    cluster: MemoryCluster,
) -> None:
    comms = await cluster.job("train", 3)
    await cluster.hosts[1].crash()
    cluster.network.node("train.1").crash()
    began = trio.current_time()
    await cluster.start_host(1)
    for comm in (comms[0], comms[2]):
        with pytest.raises(RankLost, match=r"rank 1 \(h1, .*not come back within 5 s"):
            await comm.all_reduce(np.ones(10, np.float32))
    assert trio.current_time() - began <= 5.5
    with pytest.raises(JobError):
        await comms[1].all_reduce(np.ones(10, np.float32))
