"""Parameter servers and their disks: a models file that changed, a disk that is full."""

from __future__ import annotations

import json
import re
import resource
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from click.testing import CliRunner, Result

import inaproto
from inaproto.daemon.models.weights_command import weights
from inaproto_hil.rigs.cluster import inaproto_command
from inaproto_hil.rigs.models_cluster import ModelsCluster as Processes
from tests.clusters.models import WAIT_S, ModelsCluster, models_cluster, models_text


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


@pytest.mark.parametrize("staleness", [0, 3])
async def test_a_worker_can_wait_until_all_that_it_has_finished_is_durable(
    tmp_path: Path, staleness: int
) -> None:
    """Whatever is withheld in the tree."""
    text = models_text(3, 2, in_degree=1, dtype="int64", elements=4, staleness=staleness)
    async with (
        models_cluster(tmp_path, text) as cluster,
        await cluster.worker("h0") as first,
        await cluster.worker("h1") as second,
        await cluster.worker("h2") as third,
    ):
        for model in (first, second, third):
            model.push(np.full(4, 1))
            await model.finish(WAIT_S)
        await third.make_durable(WAIT_S)
        if staleness:
            first.push(np.full(4, 1))
            await first.finish(WAIT_S)
        assert await first.make_durable(WAIT_S) == 1 + bool(staleness)
        assert clocks_at(cluster, "ps0")["h0"] == clocks_at(cluster, "ps1")["h0"] == 1 + bool(staleness)
        assert clocks_at(cluster, "ps0")["h2"] == 1
        if not staleness:
            await first.finish(WAIT_S)
            why = r"make_durable of .* it waits for worker \d of host h1"
            with pytest.raises(inaproto.OperationTimeout, match=why):
                await first.make_durable(0.1)


def run_weights(*arguments: str | Path) -> Result:
    return CliRunner().invoke(weights, [str(one) for one in arguments])


async def test_weights_can_be_saved_from_stores_at_rest_and_of_servers_that_run(tmp_path: Path) -> None:
    text = models_text(2, 2, dtype="int64", elements=5, fraction_bits=4)
    file = tmp_path / "m.npy"
    async with models_cluster(tmp_path, text) as cluster:
        async with await cluster.worker("h0") as first, await cluster.worker("h1") as second:
            for model in (first, second):
                model.push(np.arange(5) / 4)
                await model.finish(WAIT_S)
            await first.make_durable(WAIT_S)
            expected = (await first.pull(0, WAIT_S)).tolist()
        running = await trio.to_thread.run_sync(run_weights, "m", "--dir", tmp_path, "-o", file, "--json")
    told = json.loads(running.output)
    assert (told["model"], told["dtype"], told["elements"], told["of"]) == ("m", "float64", 5, 2)
    assert [part["clocks"] for part in told["parts"]] == [{"h0": 1, "h1": 1}] * 2
    assert (told["same_clocks"], told["files"]) == (True, [str(file)])
    assert np.load(file).tolist() == expected == [0, 0.5, 1, 1.5, 2]
    stores = [tmp_path / "ps0.store" / "m-0", tmp_path / "ps1.store" / "m-1"]
    at_rest = run_weights("m", "--store", stores[1], "--store", stores[0], "-o", tmp_path / "again.npy")
    assert f"part 1, {stores[1]}: updates of h0 1, h1 1" in at_rest.output
    assert np.load(tmp_path / "again.npy").tolist() == expected
    one = run_weights("m", "--store", stores[1], "-o", file)
    assert one.exit_code == 2
    assert (
        "1 stores of the 2 parts of model 'm' are here, without part 0; name all with --store" in one.output
    )
    assert run_weights("m", "--store", stores[1], "-o", file, "--parts").exit_code == 0
    assert np.load(tmp_path / "m-1.npy").tolist() == expected[2:]
    none = run_weights("n", "--dir", tmp_path)
    assert (none.exit_code, "has no store of a model 'n'" in none.output) == (2, True)
    wrong = run_weights("n", "--store", stores[0])
    assert (wrong.exit_code, "is of model 'm', not 'n'" in wrong.output) == (2, True)


def grown(pid: int, nbytes: int | None) -> None:
    """How long files of that process may become, by the kernel; None: as long as they like."""
    hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if nbytes is None else nbytes, hard))


def is_told(worker: inaproto.BlockingModel, why: str) -> None:
    """It pulls in vain until it is told so: news of the disk come when they come."""
    while True:
        with pytest.raises(inaproto.OperationTimeout) as late:
            worker.pull(0, 1.0)
        if re.search(why, str(late.value)):
            return


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
            is_told(
                worker,
                "it waits for server ps0, which cannot make anything durable: .*File too large.*, for \\d+ s",
            )
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
