"""Models trained by push, pull and clock through host daemons and parameter servers, over sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

import inaproto
from inaproto.daemon.overlay.durable_log import DurableLog
from inaproto.daemon.overlay.word_records import record_of, snapshot_of
from tests.daemon.models_cluster import WAIT_S, ModelsCluster, models_cluster, models_text

ELEMENTS = 1000


def update(worker: int, clock: int, dtype: str = "int64", elements: int = ELEMENTS) -> NDArray[Any]:
    rng = np.random.default_rng([worker, clock])
    if dtype.startswith("int"):
        return rng.integers(-(1 << 30), 1 << 30, elements).astype(dtype)
    return rng.standard_normal(elements).astype(dtype)


def total(workers: int, clocks: int, dtype: str = "int64") -> NDArray[Any]:
    """Of all updates."""
    found = np.zeros(ELEMENTS, dtype)
    for clock in range(1, clocks + 1):
        for worker in range(workers):
            found += update(worker, clock, dtype)
    return found


async def work(cluster: ModelsCluster, host: int, clocks: int, staleness: int) -> None:
    async with await cluster.worker(f"h{host}") as model:
        assert (model.worker, model.clock, model.elements) == (host, 0, ELEMENTS)
        for clock in range(1, clocks + 1):
            whole = update(host, clock)
            model.push(whole - 7)
            model.push(np.full(ELEMENTS, 7))
            assert await model.finish(WAIT_S) == clock
            await model.pull(staleness, WAIT_S)
            assert model.last_pull is not None
            assert model.last_pull.oldest >= clock - staleness


async def leave(cluster: ModelsCluster, host: int, clocks: int, staleness: int) -> None:
    async with await cluster.worker(f"h{host}") as model:
        assert model.clock == clocks
        if staleness == 0:
            weights = await model.pull(0, WAIT_S)
            assert weights.tobytes() == total(model.workers, clocks).tobytes()
        await model.leave(WAIT_S)


@pytest.mark.parametrize(("hosts", "servers", "staleness"), [(1, 1, 0), (5, 2, 0), (4, 3, 2)])
async def test_all_updates_are_in_the_weights_once(
    tmp_path: Path, hosts: int, servers: int, staleness: int
) -> None:
    text = models_text(hosts, servers, dtype="int64", elements=ELEMENTS, staleness=staleness)
    async with models_cluster(tmp_path, text) as cluster:
        async with trio.open_nursery() as nursery:
            for host in range(hosts):
                nursery.start_soon(work, cluster, host, 6, staleness)
        async with trio.open_nursery() as nursery:
            for host in range(hosts):
                nursery.start_soon(leave, cluster, host, 6, staleness)
        for name in cluster.models.servers:
            for shard in cluster.servers[name].status()["shards"]:
                assert shard["clocks"]["left"] == hosts


async def sums_up(cluster: ModelsCluster, host: int, clocks: int, staleness: int) -> None:
    """All updates of one worker, in as many connections as that takes."""
    while True:
        try:
            async with await cluster.worker(f"h{host}") as model:
                while model.clock < clocks:
                    model.push(update(host, model.clock + 1))
                    await model.finish(WAIT_S)
                    await model.pull(staleness, WAIT_S)
                    assert model.last_pull is not None
                    assert model.last_pull.oldest >= model.clock - staleness
                await model.pull(0, WAIT_S)
                return
        except inaproto.DaemonUnreachable:
            pass


async def reached(cluster: ModelsCluster, server: str, clock: int) -> None:
    """All workers have, at this server."""

    def slowest() -> int:
        return min(int(shard["clocks"]["slowest"]) for shard in cluster.servers[server].status()["shards"])

    while slowest() < clock:  # noqa: ASYNC110
        await trio.sleep(0.01)


def durable_weights(cluster: ModelsCluster) -> NDArray[Any]:
    """As the disks have them; nobody uses them any more."""
    (model,) = cluster.models.models
    weights = np.zeros(model.elements, model.dtype)
    for shard in model.shards:
        log = DurableLog(cluster.directory / f"{shard.server}.store" / f"m-{shard.number}")
        try:
            assert log.found.snapshot is not None
            part = snapshot_of(log.found.snapshot, shard).weights.copy()
            for frame in log.found.changes:
                delta = record_of(frame, shard).delta
                part = part if delta is None else part + delta
            weights[shard.first : shard.end] = part
        finally:
            log.close()
    return weights


FAULTY = {"dtype": "int64", "elements": ELEMENTS, "heartbeat_ms": 100, "ahead_max": 8}


@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("victim", ["interior", "leaf", "ps0", "two"])
async def test_nothing_is_lost_or_counted_twice_whoever_dies(
    tmp_path: Path, victim: str, staleness: int
) -> None:
    text = models_text(6, 2, staleness=staleness, shared=True, **FAULTY)
    async with models_cluster(tmp_path, text) as cluster:
        tree = cluster.models.models[0].shards[0].tree
        interior = [node for node in tree.nodes[1:] if tree.children(node)]
        dying = {
            "interior": [f"h{interior[0]}"],
            "leaf": [f"h{tree.leaves[-1]}"],
            "ps0": ["ps0"],
            "two": [f"h{node}" for node in interior[:2]],
        }[victim]
        async with trio.open_nursery() as nursery:
            for host in range(6):
                nursery.start_soon(sums_up, cluster, host, 12, staleness)
            await reached(cluster, "ps1", 4)
            for name in dying:
                await cluster.end(name)
            for name in dying:
                await cluster.start(name)
        for name in cluster.models.servers:
            await cluster.end(name)
        assert durable_weights(cluster).tobytes() == total(6, 12).tobytes()


async def test_children_of_a_dead_host_go_to_its_parent_and_it_can_be_seen(tmp_path: Path) -> None:
    text = models_text(6, 1, staleness=2, teardown_failures=6, **FAULTY)
    async with models_cluster(tmp_path, text) as cluster:
        model = cluster.models.models[0]
        tree = model.shards[0].tree
        interior = next(node for node in tree.nodes[1:] if tree.children(node))
        child = model.process_of(tree.children(interior)[0])
        async with trio.open_nursery() as nursery:
            for host in range(6):
                nursery.start_soon(sums_up, cluster, host, 9, 2)
            await reached(cluster, "ps0", 3)
            await cluster.end(model.process_of(interior))

            def now_at() -> str:
                (shard,) = cluster.status(child)["shards"]
                return str(shard["parent"]) if shard["attached"] else ""

            while now_at() != "ps0":  # noqa: ASYNC110
                await trio.sleep(0.01)
            (shard,) = cluster.status(child)["shards"]
            assert shard["marks"]["parent_dead"] >= 1
            assert any("parent taken for dead" in note for note in shard["notes"])
            await cluster.start(model.process_of(interior))
        for name in cluster.models.servers:
            await cluster.end(name)
        assert durable_weights(cluster).tobytes() == total(6, 9).tobytes()
