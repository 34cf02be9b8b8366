"""The in-degree of trees of real daemons, tuned while they train (MLNet section 5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

import inaproto
from inaproto.core.models.events import RootView
from inaproto.core.models.tree.trees import OverlayTree
from inaproto.daemon.models.degree_choice import DegreeChoice, LinkLoad
from inaproto.daemon.models.shard_records import record_of
from inaproto.daemon.models.store.durable_log import DurableLog
from inaproto.daemon.settings.models_file import Shard
from inaproto.units import MS, Instant, S
from inaproto.wire.messages.models import Epoch, NodeId
from tests.clusters.models import WAIT_S, ModelsCluster, models_cluster, models_text

HOSTS, ELEMENTS = 6, 64
LAST = 60
Weights = dict[int, set[bytes]]
"""By clock, of all workers."""


def update(worker: int, clock: int) -> NDArray[Any]:
    rng = np.random.default_rng([worker, clock])
    return (rng.standard_normal(ELEMENTS) * 10.0 ** rng.integers(-3, 8, ELEMENTS)).astype(np.float32)


def window(tree: OverlayTree, node: NodeId, clock: int) -> NDArray[Any]:
    parts = [] if node == tree.root else [update(node, clock)]
    parts += [window(tree, child, clock) for child in tree.children(node)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def epochs(shard: Shard, directory: Path) -> list[Epoch]:
    """All that the server has on its disk."""
    log = DurableLog(directory)
    try:
        records = [record_of(frame, shard) for frame in log.found.changes]
    finally:
        log.close()
    return [record.epoch for record in records if record.epoch is not None]


async def train(cluster: ModelsCluster, host: int, seen: Weights) -> None:
    """To the last clock, in as many connections as that takes; updates are functions of worker and clock."""
    while True:
        try:
            async with await cluster.worker(f"h{host}") as model:
                while True:
                    weights = await model.pull(0, WAIT_S)
                    seen.setdefault(model.clock, set()).add(weights.tobytes())
                    if model.clock == LAST:
                        return
                    model.push(update(host, model.clock + 1))
                    await model.finish(WAIT_S)
        except inaproto.DaemonUnreachable:
            pass


def in_degree(cluster: ModelsCluster) -> dict[str, Any]:
    (shard,) = cluster.servers["ps0"].status()["shards"]
    return dict(shard["in_degree"])


async def changed(cluster: ModelsCluster) -> None:
    while not in_degree(cluster)["changes"]:  # noqa: ASYNC110
        await trio.sleep(0.01)


@pytest.mark.parametrize("killed", ["", "h2", "ps0"])
async def test_a_tree_becomes_flatter_while_it_trains_and_weights_are_those_of_serial_training(
    tmp_path: Path, killed: str
) -> None:
    """Links have much to spare and everybody waits: so the in-degree grows. Killed: in the midst of that."""
    text = models_text(
        HOSTS, 1, dtype="float32", elements=ELEMENTS, in_degree=1, tune_in_degree=[1, 3, 6],
        link_mbit=1_000_000, heartbeat_ms=200, ahead_max=2,
    )  # fmt: skip
    seen: Weights = {}
    async with models_cluster(tmp_path, text) as cluster:
        (shard,) = cluster.models.models[0].shards
        async with trio.open_nursery() as nursery:
            for host in range(HOSTS):
                nursery.start_soon(train, cluster, host, seen)
            await changed(cluster)
            if killed:
                await cluster.end(killed)
                await cluster.start(killed)
        told = in_degree(cluster)
        assert told["changes"] >= 1
        if killed != "ps0":
            assert told["decisions"][0].startswith("in-degree 1 -> 3 (height): at clock ")
            children = len(cluster.servers["ps0"].status()["shards"][0]["children"])
            assert children == told["now"] or killed, "everybody is where the tree has it"
        await cluster.end("ps0")
    begun = epochs(shard, tmp_path / "ps0.store" / "m-0")
    assert begun[0].first < LAST, "windows of both trees"
    expected = np.zeros(ELEMENTS, np.float32)
    for clock in range(1, LAST + 1):
        tree = [0, *(epoch.tree for epoch in begun if epoch.first <= clock)][-1]
        expected = expected + window(shard.trees[tree], shard.trees[tree].root, clock)
        assert seen.get(clock, {expected.tobytes()}) == {expected.tobytes()}, clock


def test_a_link_is_as_full_as_its_bytes_take_of_the_time_that_is_waited() -> None:
    load = LinkLoad(1_000_000, Instant(0), 0)
    load.goes_on(True, Instant(1 * S), 0)
    load.goes_on(False, Instant(2 * S), 400_000)
    load.goes_on(True, Instant(3 * S), 400_000)
    assert load.look(Instant(4 * S), 500_000) == (500, 250)
    assert load.look(Instant(5 * S), 1_500_000) == (1000, 1000)
    load.goes_on(False, Instant(5 * S), 1_500_000)
    assert load.look(Instant(6 * S), 1_500_000) == (0, 0)


def test_without_a_rate_the_greatest_that_was_seen_counts() -> None:
    load = LinkLoad(None, Instant(0), 0)
    load.goes_on(True, Instant(0), 0)
    load.goes_on(True, Instant(100 * MS), 1_000_000)
    load.goes_on(True, Instant(1000 * MS), 1_000_000)
    assert load.look(Instant(1000 * MS), 1_000_000) == (1000, 100)


def test_nobody_looks_while_the_tree_changes() -> None:
    """And a change that was not done is not believed."""
    load = LinkLoad(1_000_000, Instant(0), 0)
    choice = DegreeChoice("m/0", (2, 4), load, 0)
    reshapes = []
    for clock in range(100):
        may = not 20 <= clock < 30
        now = Instant(clock * S)
        load.goes_on(True, now, 0)
        found = choice.stepped(RootView(NodeId(9), model_clock=clock, may_reshape=may), now, 0)
        if found is not None:
            reshapes.append((clock, found.tree))
    assert reshapes == [(40, 1), (65, 1), (90, 1)], "three looks, and two more that agree with the third"
