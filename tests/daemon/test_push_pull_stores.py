"""Parameter servers and their disks: a models file that changed, a disk that is full."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto_hil.cluster import inaproto_command
from inaproto_hil.models_cluster import ModelsCluster as Processes
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


def grown(pid: int, nbytes: int | None) -> None:
    """How long files of that process may become, by the kernel; None: as long as they like."""
    hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if nbytes is None else nbytes, hard))


def test_a_disk_that_is_full_is_said_to_all_who_wait_and_ends(tmp_path: Path) -> None:
    """A real server whose log may not grow: nothing is lost, and it goes on by itself."""
    model = '[[models]]\nname = "m"\ndtype = "int64"\nelements = 20000\nheartbeat_ms = 500\n'
    with Processes(1, 1, model) as cluster:
        pid = cluster.servers[0].process.pid
        path = cluster.directory / "h0.sock"
        with inaproto.connect_model_blocking("m", socket=path, timeout=WAIT_S) as worker:
            worker.push(np.full(20000, 1))
            worker.finish(WAIT_S)
            assert (worker.pull(0, WAIT_S) == 1).all()
            log_bytes = (cluster.store("ps0") / "m-0" / "log-1").stat().st_size
            grown(pid, log_bytes + 30_000)
            worker.push(np.full(20000, 2))
            worker.finish(WAIT_S)
            why = (
                "it waits for server ps0, which cannot make anything durable: .*File too large.*, for \\d+ s"
            )
            with pytest.raises(inaproto.OperationTimeout, match=why):
                worker.pull(0, 1.0)
            asked = subprocess.run(
                [inaproto_command(), "status", "--dir", str(cluster.directory)],
                capture_output=True,
                text=True,
                check=False,
                timeout=WAIT_S,
            )
            assert asked.returncode == 1
            assert "inaproto status: server ps0, m/0: " in asked.stderr
            assert "NOTHING BECOMES DURABLE" in asked.stdout
            grown(pid, None)
            assert (worker.pull(0, WAIT_S) == 3).all()
        status = cluster.status("ps0")
        (shard,) = status["shards"]
        assert shard["fault"] == ""
        assert any("there is space again, after" in note for note in shard["notes"])
        assert shard["marks"]["disk_full"] == 1
