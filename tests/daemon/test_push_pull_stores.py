"""Parameter servers and their disks: a models file that changed, a disk that is full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import trio

from tests.daemon.models_cluster import WAIT_S, ModelsCluster, models_cluster, models_text


async def finish(cluster: ModelsCluster, host: str, until: int, value: int = 1) -> None:
    async with await cluster.worker(host) as model:
        while model.clock < until:
            model.push(np.full(4, value))
            await model.finish(WAIT_S)


def clocks_at(cluster: ModelsCluster, server: str) -> dict[str, int]:
    (shard,) = cluster.servers[server].status()["shards"]
    return dict(shard["by_worker"])


async def test_clocks_stay_with_their_workers_when_the_file_has_them_in_another_order(
    tmp_path: Path,
) -> None:
    """And a new host above the others begins at 0."""
    fields: dict[str, Any] = {"dtype": "int64", "elements": 4, "staleness": 1}
    async with models_cluster(tmp_path, models_text(2, 2, **fields)) as cluster:
        await finish(cluster, "h0", 2)
        await finish(cluster, "h1", 4)
        for server in ("ps0", "ps1"):
            while clocks_at(cluster, server) != {"h0": 2, "h1": 4}:  # noqa: ASYNC110
                await trio.sleep(0.01)
    text = models_text(3, 2, workers=["h2", "h1", "h0"], **fields)
    for _ in range(2):  # the second time as it was renumbered
        async with models_cluster(tmp_path, text) as cluster:
            assert clocks_at(cluster, "ps0") == {"h2": 0, "h1": 4, "h0": 2}
            for host, clock in (("h0", 2), ("h1", 4), ("h2", 0)):
                async with await cluster.worker(host) as model:
                    assert model.clock == clock
    async with models_cluster(tmp_path, text) as cluster:
        await finish(cluster, "h2", 2)
        async with await cluster.worker("h0") as model:
            assert (await model.pull(0, WAIT_S)).tolist() == [8] * 4
