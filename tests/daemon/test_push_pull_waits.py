"""What a worker waits for is said by name: whoever is to blame, once, and nobody else."""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path

import trio

from tests.clusters.models import WAIT_S, ModelsCluster, models_cluster, models_text


async def why(cluster: ModelsCluster, host: str, told: str) -> None:
    """Until the host says so of its worker, in these words and no others."""
    found = ""
    with trio.move_on_after(WAIT_S):
        while not re.fullmatch(told, found):
            await trio.sleep(0.01)
            found = cluster.status(host)["worker"]["why"]
    assert re.fullmatch(told, found), found


async def finish(cluster: ModelsCluster, host: str) -> None:
    async with await cluster.worker(host) as model:
        await model.finish(WAIT_S)


async def test_of_many_workers_only_the_one_that_is_behind_is_named(tmp_path: Path) -> None:
    """At staleness 0 the servers lack the updates of all until the last has come."""
    async with models_cluster(tmp_path, models_text(6, 2, elements=10)) as cluster:
        async with trio.open_nursery() as nursery:
            for host in range(5):
                nursery.start_soon(finish, cluster, f"h{host}")
        async with await cluster.worker("h0") as model, trio.open_nursery() as nursery:
            nursery.start_soon(partial(model.pull, 0, WAIT_S))
            of = r"worker 5 of host h5, which is at clock 0"
            await why(cluster, "h0", rf"it waits for {of}: it has had no process for \d+ s")
            await cluster.end("h5")
            await why(
                cluster, "h0", rf"it waits for {of}: the host (has not been connected for|does not answer).*"
            )
            nursery.cancel_scope.cancel()


async def test_a_worker_whose_host_has_no_place_in_a_tree_yet_waits_for_the_host_above(
    tmp_path: Path,
) -> None:
    """As where one host is started long before the others."""
    text = models_text(2, 1, elements=10, in_degree=1)
    async with models_cluster(tmp_path, text) as cluster:
        model = cluster.models.models[0]
        (leaf,) = model.shards[0].tree.leaves
        above, below = model.process_of(model.shards[0].tree.ancestors(leaf)[0]), model.process_of(leaf)
        for host in (below, above):
            await cluster.end(host)
        await cluster.start(below)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.worker, below)
            await why(cluster, below, f"it waits for a place in the tree of server ps0, below {above}: .+")
            nursery.cancel_scope.cancel()


async def test_a_server_that_lost_its_store_is_waited_for_and_no_worker(tmp_path: Path) -> None:
    async with models_cluster(tmp_path, models_text(3, 2, elements=10)) as cluster:

        async def all_finish() -> None:
            async with trio.open_nursery() as nursery:
                for host in range(3):
                    nursery.start_soon(finish, cluster, f"h{host}")

        await all_finish()
        async with await cluster.worker("h0") as model:
            await model.pull(0, WAIT_S)
        await cluster.end("ps1")
        shutil.rmtree(tmp_path / "ps1.store")
        await cluster.start("ps1")
        await all_finish()
        async with await cluster.worker("h0") as model, trio.open_nursery() as nursery:
            nursery.start_soon(partial(model.pull, 0, WAIT_S))
            lost = "it has update 0 of worker [0-2], and had 1; give it its store, or start all hosts anew"
            told = f"it waits for server ps1, which has lost what it had said to be on its disk: {lost}"
            await why(cluster, "h0", told)
            nursery.cancel_scope.cancel()
        for host in cluster.models.hosts:  # as it says
            await cluster.end(host)
        for host in cluster.models.hosts:
            await cluster.start(host)
        async with await cluster.worker("h0") as model:
            assert model.clock == 0
