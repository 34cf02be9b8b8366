"""What neighbours in the trees of models owe each other: room for what they keep, limits, resuming."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trio

import inaproto
from tests.clusters.models import WAIT_S, models_cluster, models_text


async def test_all_that_a_server_missed_fits_into_one_connection(tmp_path: Path) -> None:
    """Eight updates of 4 MiB are sent at once when it is back: more than a stranger's queue may hold."""
    elements = 1 << 19
    text = models_text(1, 1, dtype="int64", elements=elements, ahead_max=8, heartbeat_ms=500)
    async with models_cluster(tmp_path, text) as cluster:
        async with await cluster.worker("h0") as model:
            await cluster.end("ps0")
            for clock in range(1, 9):
                model.push(np.full(elements, clock))
                assert await model.finish(WAIT_S) == clock
            await cluster.start("ps0")
            weights = await model.pull(0, WAIT_S)
            assert (weights == 36).all()
        (shard,) = cluster.servers["ps0"].status()["shards"]
        assert shard["marks"].get("attached", 0) <= 1
        assert not any("unread" in link["error"] for link in cluster.status("h0")["shards"][0]["links"])


async def test_an_update_is_finished_when_all_servers_have_taken_it(tmp_path: Path) -> None:
    """The last is away, and the worker as far ahead of it as it may be; the first takes more."""
    text = models_text(1, 2, dtype="int64", elements=2, ahead_max=1, heartbeat_ms=500)
    async with models_cluster(tmp_path, text) as cluster, await cluster.worker("h0") as model:
        await cluster.end("ps1")
        model.push(np.full(2, 1))
        await model.finish(WAIT_S)
        while cluster.servers["ps0"].status()["shards"][0]["by_worker"] != {"h0": 1}:  # noqa: ASYNC110
            await trio.sleep(0.01)
        model.push(np.full(2, 1))
        with pytest.raises(inaproto.OperationTimeout, match="waits for server ps1"):
            await model.finish(0.0)
        await cluster.start("ps1")
        assert await model.finish(WAIT_S) == 2
        assert (await model.pull(0, WAIT_S)).tolist() == [2, 2]


async def test_one_process_may_have_many_shards_at_another(tmp_path: Path) -> None:
    """Each is a connection of its own, by TLS too: neighbours are no strangers."""
    text = models_text(1, 1, tls=True, dtype="int32", elements=1)
    text += "".join(f'[[models]]\nname = "m{n}"\ndtype = "int32"\nelements = 1\n' for n in range(65))
    async with models_cluster(tmp_path, text) as cluster:

        def attached() -> int:
            shards = [model["shards"][0] for model in cluster.hosts["h0"].status()["models"]]
            return sum(shard["attached"] for shard in shards)

        while attached() < 66:  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert cluster.servers["ps0"].status()["refused"] == {}


async def test_a_worker_of_which_servers_know_different_clocks_waits_for_nobody_ahead_of_it(
    tmp_path: Path,
) -> None:
    """ps1 has five of its updates, ps0 none: the other worker cannot come to five before it does."""
    text = models_text(
        2, 2, dtype="int64", elements=2, tree="direct", staleness=1, heartbeat_ms=500, teardown_failures=9
    )
    async with models_cluster(tmp_path, text) as cluster, await cluster.worker("h1") as other:
        async with await cluster.worker("h0") as first:
            await cluster.end("ps0")
            for _ in range(5):
                first.push(np.full(2, 1))
                await first.finish(WAIT_S)

            def of_first() -> int:
                (shard,) = cluster.servers["ps1"].status()["shards"]
                return int(shard["by_worker"]["h0"])

            while of_first() < 4:  # noqa: ASYNC110
                await trio.sleep(0.01)
            await cluster.end("h0")
        await cluster.start("ps0")
        await cluster.start("h0")
        async with await cluster.worker("h0") as again, trio.open_nursery() as nursery:
            assert again.clock == 0

            async def go_on() -> None:
                while other.clock < 6:
                    await other.pull(1, WAIT_S)
                    await other.finish(WAIT_S)

            nursery.start_soon(go_on)
            while again.clock < 6:
                again.push(np.full(2, 1))
                await again.finish(WAIT_S)
                await again.pull(1, WAIT_S)
                assert again.last_pull is not None
                assert again.last_pull.oldest >= again.clock - 1
