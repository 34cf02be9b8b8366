"""Models trained by push, pull and clock through host daemons and parameter servers, over sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

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
