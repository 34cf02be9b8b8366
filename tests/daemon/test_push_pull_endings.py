"""What a worker has finished is not lost, or withheld for long, when its process or its host daemon ends."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.daemon.models.shard_records import record_of
from inaproto.daemon.models.store.durable_log import DurableLog
from inaproto_hil.rigs.models_cluster import ModelsCluster as DaemonProcesses
from tests.clusters.models import WAIT_S, ModelsCluster, models_cluster, models_text

ELEMENTS = 10
MODEL: dict[str, Any] = {
    "dtype": "int64",
    "elements": ELEMENTS,
    "staleness": 2,
    "shared": True,
    "in_degree": 1,
}
"""The hosts are one below the other; each may withhold two clocks."""


def last_host(cluster: ModelsCluster) -> str:
    """Below all others."""
    model = cluster.models.models[0]
    (leaf,) = model.shards[0].tree.leaves
    return model.process_of(leaf)


async def on_disk(cluster: ModelsCluster, host: str, clock: int) -> None:
    """Until each server has the updates of the host's worker up to this one."""

    def clocks() -> list[int]:
        shards = [shard for server in cluster.servers.values() for shard in server.status()["shards"]]
        return [shard["by_worker"][host] for shard in shards]

    with trio.fail_after(WAIT_S):
        while set(clocks()) != {clock}:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_what_a_process_had_finished_goes_up_when_it_is_gone(tmp_path: Path) -> None:
    async with models_cluster(tmp_path, models_text(3, 2, **MODEL)) as cluster:
        host = last_host(cluster)
        async with await cluster.worker(host) as model:
            model.push(np.ones(ELEMENTS, np.int64))
            await model.finish(WAIT_S)
            model.push(np.full(ELEMENTS, 100))
        await on_disk(cluster, host, 1)
        async with await cluster.worker(host) as model:
            assert model.clock == 1
            assert (await model.pull(1, WAIT_S)).tolist() == [1] * ELEMENTS


async def test_a_process_that_died_far_ahead_does_not_keep_the_next_one_waiting(tmp_path: Path) -> None:
    """Its last update was held back: others withheld what was before it."""
    async with models_cluster(tmp_path, models_text(3, 2, **MODEL, ahead_max=3)) as cluster:
        host = last_host(cluster)
        async with await cluster.worker(host) as model:
            for clock in range(1, 5):
                model.push(np.ones(ELEMENTS, np.int64))
                if clock < 4:
                    await model.finish(WAIT_S)
            with pytest.raises(inaproto.OperationTimeout):
                await model.finish(0.2)
        async with await cluster.worker(host) as model:
            assert model.clock == 4
        await on_disk(cluster, host, 4)


async def test_a_host_that_ends_in_order_says_what_servers_lack(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "inaproto.overlay")
    async with models_cluster(tmp_path, models_text(3, 2, **MODEL)) as cluster:
        host = last_host(cluster)
        async with await cluster.worker(host) as model:
            model.push(np.ones(ELEMENTS, np.int64))
            await model.finish(WAIT_S)
            await cluster.end("ps1")
            models = cluster.hosts[host].models
            assert models is not None
            await models.end(0.5)
        said = [record.getMessage() for record in caplog.records]
        assert sum("all that worker" in text for text in said) == 1
        (lacking,) = [text for text in said if "has not said" in text]
        assert f"server ps1 has not said that it has update 1 of worker {model.worker} on its disk" in lacking
        await cluster.start("ps1")
        await on_disk(cluster, host, 1)


def test_sigterm_of_a_host_takes_what_is_finished_to_the_server(tmp_path: Path) -> None:
    text = '[[models]]\nname = "m"\ndtype = "int64"\nelements = 10\nstaleness = 5\n'
    with DaemonProcesses(1, 1, text, log_dir=tmp_path) as cluster:
        path = cluster.directory / "h0.sock"
        with inaproto.connect_model_blocking("m", socket=path, timeout=WAIT_S) as model:
            for _ in range(2):
                model.push(np.ones(ELEMENTS, np.int64))
                model.finish(WAIT_S)
            cluster.stop()
        shard = cluster.models.models[0].shards[0]
        store = DurableLog(cluster.store("ps0") / "m-0")
        try:
            changes = [record_of(frame, shard) for frame in store.found.changes]
        finally:
            store.close()
    assert changes[-1].clocks.minimum() == 2
    deltas = [change.delta for change in changes if change.delta is not None]
    assert np.sum(deltas, axis=0).tolist() == [2] * ELEMENTS
    assert "m/0: all that worker 0 has finished is on the server's disk" in (tmp_path / "h0.log").read_text()
