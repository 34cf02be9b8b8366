"""Models trained by push, pull and clock through host daemons and parameter servers, over sockets."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

import inaproto
from inaproto.daemon.models.channels.message_channel import StreamChannel
from inaproto.daemon.models.listening import credentials_for, dial
from inaproto.daemon.models.shard_records import record_of, snapshot_of
from inaproto.daemon.models.store.durable_log import DurableLog
from inaproto.wire.control_messages import Error
from inaproto.wire.messages.model_connections import OverlayHello
from tests.clusters.models import WAIT_S, ModelsCluster, models_cluster, models_text

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


FAULTY: dict[str, Any] = {"dtype": "int64", "elements": ELEMENTS, "heartbeat_ms": 100, "ahead_max": 8}


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


async def test_between_machines_processes_prove_who_they_are(tmp_path: Path) -> None:
    """By TLS, each with a certificate of its own; on loopback these are made at the first start."""
    text = models_text(3, 2, tls=True, dtype="int64", elements=ELEMENTS)
    async with models_cluster(tmp_path, text) as cluster:
        async with trio.open_nursery() as nursery:
            for host in range(3):
                nursery.start_soon(work, cluster, host, 4, 0)
        model = cluster.models.models[0]
        server = cluster.models.processes["ps0"]
        credentials = credentials_for(cluster.models, "h1", None, tmp_path)
        channel = StreamChannel(await dial(server, "ps0", credentials), "ps0")
        channel.send_priority(0)
        channel.send_nowait(
            OverlayHello(process="h0", model="m", shard=0, digest=cluster.models.digest, life=1)
        )
        answer = await channel.receive()
        channel.close()
        assert isinstance(answer, Error)
        assert "model h1" in answer.message
        assert "says that it is h0" in answer.message
        assert model.node_of("h1") == 1
        with pytest.raises(OSError, match="answers, not model ps1"):
            await dial(server, "ps1", credentials)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"digest": "other"}, "h0 has another models file than ps0"),
        ({"model": "n"}, "ps0 has no part in shard 0 of model 'n'"),
        ({"shard": 1}, "ps0 has no part in shard 1 of model 'm'"),
        ({"process": "h7"}, "'h7' is not a host of model 'm'"),
        ({"process": "ps0"}, "'ps0' is not a host of model 'm'"),
    ],
    ids=["digest", "model", "shard", "stranger", "itself"],
)
async def test_strangers_are_told_why_they_are_not_taken(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    async with models_cluster(tmp_path, models_text(1, 1, elements=10)) as cluster:
        hello = OverlayHello(process="h0", model="m", shard=0, digest=cluster.models.digest, life=1)
        channel = StreamChannel(await dial(cluster.models.processes["ps0"]), "ps0")
        channel.send_priority(0)
        channel.send_nowait(replace(hello, **changes))
        answer = await channel.receive()
        channel.close()
        assert isinstance(answer, Error)
        assert why in answer.message
        assert cluster.servers["ps0"].status()["refused"] == {"no neighbour": 1}


async def test_what_a_worker_is_told_when_it_cannot_go_on(tmp_path: Path) -> None:
    text = models_text(2, 1, dtype="int32", elements=10, heartbeat_ms=100)
    async with models_cluster(tmp_path, text) as cluster:
        with pytest.raises(inaproto.JoinRefused, match="no worker of a model 'n'; its models are m"):
            await inaproto.connect_model("n", socket=cluster.socket("h0"))
        async with await cluster.worker("h0") as model:
            with pytest.raises(inaproto.JoinRefused, match="another process of this host is its worker 0"):
                await cluster.worker("h0")
            with pytest.raises(
                inaproto.LocalMisuse, match=r"push: float64 of shape \(10,\); model 'm' has int32"
            ):
                model.push(np.zeros(10))
            with pytest.raises(inaproto.LocalMisuse, match=r"push: int32 of shape \(9,\)"):
                model.push(np.zeros(9, np.int32))
            await model.finish(WAIT_S)
            with pytest.raises(
                inaproto.OperationTimeout,
                match=r"pull .* within 0.2 s: it waits for worker 1 of host h1, which is at clock 0: it has "
                r"had no process for \d+ s",
            ):
                await model.pull(timeout=0.2)
            await cluster.end("ps0")
            while cluster.status("h0")["shards"][0]["attached"]:  # noqa: ASYNC110
                await trio.sleep(0.01)
            with pytest.raises(inaproto.OperationTimeout, match=r"server ps0, which does not answer"):
                await model.pull(timeout=0.2)
        await cluster.start("ps0")
        async with await cluster.worker("h0") as model:
            assert model.clock == 1


async def test_what_a_process_that_died_had_not_finished_is_gone(tmp_path: Path) -> None:
    async with models_cluster(tmp_path, models_text(1, 1, dtype="int64", elements=10)) as cluster:
        async with await cluster.worker("h0") as model:
            model.push(np.full(10, 5))
            await model.finish(WAIT_S)
            model.push(np.full(10, 100))
        async with await cluster.worker("h0") as model:
            assert model.clock == 1
            assert (await model.pull(0, WAIT_S)).tolist() == [5] * 10
            await model.finish(WAIT_S)  # an empty update
            assert (await model.pull(0, WAIT_S)).tolist() == [5] * 10
            assert model.clock == 2


async def test_with_staleness_a_worker_sees_what_it_is_pushing_at_once(tmp_path: Path) -> None:
    text = models_text(1, 1, dtype="int64", elements=4, staleness=1)
    async with models_cluster(tmp_path, text) as cluster, await cluster.worker("h0") as model:
        await model.pull(1, WAIT_S)
        model.push(np.arange(4))
        assert (await model.pull(1, WAIT_S)).tolist() == [0, 1, 2, 3]


def test_blocking_workers_do_the_same(tmp_path: Path) -> None:
    """A worker without an event loop, its host daemon in a thread of its own."""
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with models_cluster(tmp_path, models_text(1, 2, dtype="float64", elements=5)):
            ready.set()
            while not stop.is_set():  # noqa: ASYNC110
                await trio.sleep(0.01)

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    try:
        assert ready.wait(WAIT_S)
        with inaproto.connect_model_blocking("m", socket=tmp_path / "h0.sock") as model:
            model.push(np.full(5, 0.5))
            assert model.finish(WAIT_S) == 1
            assert model.pull(timeout=WAIT_S).tolist() == [0.5] * 5
            assert model.last_pull is not None
            assert (model.last_pull.oldest, model.last_pull.newest) == (1, 1)
            model.leave(WAIT_S)
            with pytest.raises(inaproto.LocalMisuse, match="has left"):
                model.pull()
        with pytest.raises(inaproto.JoinRefused, match="has left, or was removed, for good"):
            inaproto.connect_model_blocking("m", socket=tmp_path / "h0.sock")
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"model": ""}, "model '' is not a text of 1 to 128 bytes"),
        ({"model": "x" * 129}, "is not a text of 1 to 128 bytes"),
        ({"model": 5}, "model 5 is not a text"),
        ({"model": "m", "key": 5}, "key must be text"),
        ({"model": "m", "socket": 5}, "socket is 5; it must be the path"),
        ({"model": "m", "socket": "/" + "x" * 200}, "is longer than"),
        ({"model": "m", "timeout": "1"}, "timeout is '1'; it must be seconds"),
        ({"model": "m", "timeout": -1}, "timeout is -1; it must be seconds"),
    ],
    ids=["none", "long", "number", "key", "socket", "long_socket", "timeout", "negative"],
)
def test_what_connect_model_is_called_with(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(inaproto.LocalMisuse, match=f"connect_model: .*{why}"):
        inaproto.connect_model_blocking(**arguments)


async def test_what_calls_of_a_worker_are_called_with(tmp_path: Path) -> None:
    text = models_text(1, 1, dtype="int32", elements=2, staleness=1)
    async with models_cluster(tmp_path, text) as cluster, await cluster.worker("h0") as model:
        for bad in ("x", 1.5, -1, True, 1 << 32):
            with pytest.raises(
                inaproto.LocalMisuse, match=r"pull: staleness .* a number of clocks, 0 or more"
            ):
                await model.pull(bad)  # type: ignore[arg-type]
        for update in ("x", [1.5, 2.5], [1, 2, 3], [[1], [2, 3]], None):
            with pytest.raises(inaproto.LocalMisuse, match="push: "):
                model.push(update)  # type: ignore[arg-type]
        for call in (model.pull, model.finish, model.leave):
            with pytest.raises(inaproto.LocalMisuse, match="timeout is 'soon'"):
                await call(timeout="soon")  # type: ignore[arg-type]
        assert (await model.pull(np.int64(0), WAIT_S)).tolist() == [0, 0]  # type: ignore[arg-type]
        assert model.clock == 0


async def test_a_server_that_was_killed_goes_on_from_its_snapshot_and_log(tmp_path: Path) -> None:
    text = models_text(3, 1, staleness=1, **FAULTY)
    async with models_cluster(tmp_path, text, log_bytes_min=2 * ELEMENTS * 8) as cluster:
        async with trio.open_nursery() as nursery:
            for host in range(3):
                nursery.start_soon(sums_up, cluster, host, 30, 1)
            for clock in (10, 20):
                await reached(cluster, "ps0", clock)
                (shard,) = cluster.servers["ps0"].status()["shards"]
                assert shard["snapshots"] >= clock // 10
                await cluster.end("ps0")
                await cluster.start("ps0")
        await cluster.end("ps0")
        assert durable_weights(cluster).tobytes() == total(3, 30).tobytes()


async def test_nobody_waits_for_a_worker_whose_host_is_away_for_too_long(tmp_path: Path) -> None:
    text = models_text(2, 1, removal_ms=300, teardown_failures=2, **FAULTY)
    async with models_cluster(tmp_path, text) as cluster:
        async with await cluster.worker("h0") as model:
            await cluster.end("h1")
            for clock in range(1, 4):
                model.push(update(0, clock))
                await model.finish(WAIT_S)
                await model.pull(0, WAIT_S)
            assert (await model.pull(0, WAIT_S)).tobytes() == total(1, 3).tobytes()
        (shard,) = cluster.servers["ps0"].status()["shards"]
        assert shard["clocks"]["left"] == 1
        assert shard["by_worker"] == {"h0": 3, "h1": None}
        assert shard["marks"]["worker_removed"] == 1
        await cluster.start("h1")
        with pytest.raises(inaproto.JoinRefused, match="has left, or was removed, for good"):
            await cluster.worker("h1")


async def test_fixed_point_workers_have_floats_and_servers_integers(tmp_path: Path) -> None:
    text = models_text(2, 2, dtype="int64", elements=5, fraction_bits=10)
    async with models_cluster(tmp_path, text) as cluster:

        async def push_one(host: int) -> None:
            async with await cluster.worker(f"h{host}") as model:
                assert model.dtype == np.float64
                model.push(np.full(5, 0.1 + host))
                await model.finish(WAIT_S)
                each = round(0.1 * 1024) + round(1.1 * 1024)
                assert (await model.pull(0, WAIT_S)).tolist() == [each / 1024] * 5

        async with trio.open_nursery() as nursery:
            nursery.start_soon(push_one, 0)
            nursery.start_soon(push_one, 1)
        for name in cluster.models.servers:
            await cluster.end(name)
        assert durable_weights(cluster).tolist() == [round(0.1 * 1024) + round(1.1 * 1024)] * 5


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300], ids=str)
async def test_fixed_point_has_no_place_for_some_numbers(tmp_path: Path, value: float) -> None:
    """The update is refused in all shards, though only one would see it, and the daemon goes on."""
    text = models_text(1, 2, dtype="int64", elements=4, fraction_bits=10)
    async with models_cluster(tmp_path, text) as cluster, await cluster.worker("h0") as model:
        model.push(np.ones(4))
        model.push(np.array([0, 0, 0, value]))
        with pytest.raises(inaproto.JobError, match="a value is not finite or too great"):
            await model.finish(WAIT_S)
        assert model.clock == 0
        model.push(np.ones(4))
        assert await model.finish(WAIT_S) == 1
        assert (await model.pull(0, WAIT_S)).tolist() == [1] * 4


async def test_a_worker_may_ask_again_and_again(tmp_path: Path) -> None:
    """Each pull that ran out of time still waits: some more are refused, and the daemon goes on."""
    text = models_text(2, 1, dtype="int64", elements=4, ahead_max=3)
    async with models_cluster(tmp_path, text) as cluster, await cluster.worker("h0") as model:
        await model.finish(WAIT_S)
        refused = []

        async def pull() -> None:
            try:
                await model.pull(0, WAIT_S)
            except inaproto.JobError as error:
                refused.append(str(error))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(pull)
            while len(refused) < 2:  # noqa: ASYNC110
                await trio.sleep(0.01)
            async with await cluster.worker("h1") as other:
                await other.finish(WAIT_S)
        assert refused == ["model 'm': 3 pulls of this worker wait already; wait for one of them"] * 2
        assert (await model.pull(0, WAIT_S)).tolist() == [0] * 4


async def test_a_pull_that_ran_out_of_time_is_waited_for_by_the_next(tmp_path: Path) -> None:
    text = models_text(2, 1, dtype="int64", elements=4, ahead_max=1)
    async with models_cluster(tmp_path, text) as cluster, await cluster.worker("h0") as model:
        model.push(np.ones(4, np.int64))
        await model.finish(WAIT_S)
        for _ in range(3):
            with pytest.raises(inaproto.OperationTimeout):
                await model.pull(0, 0.0)
        async with await cluster.worker("h1") as other:
            await other.finish(WAIT_S)
            assert (await model.pull(0, WAIT_S)).tolist() == [1] * 4
            await model.finish(WAIT_S)
            await other.finish(WAIT_S)
            assert (await model.pull(0, WAIT_S)).tolist() == [1] * 4


async def test_a_pull_that_names_no_staleness_gets_what_suits_the_model(tmp_path: Path) -> None:
    """MLNet section 5: the weights of this one move far in each clock, so nothing stale is given."""
    text = models_text(1, 2, dtype="float32", elements=ELEMENTS, staleness=3, tune_staleness=True)
    async with models_cluster(tmp_path, text) as cluster, await cluster.worker("h0") as model:
        asked = []
        for clock in range(1, 9):
            model.push(update(0, clock, "float32"))
            await model.finish(WAIT_S)
            await model.pull(timeout=WAIT_S)
            assert model.last_pull is not None
            asked.append(model.last_pull.staleness)
        assert asked == [3] * 6 + [0] * 2
        await model.pull(2, WAIT_S)
        assert model.last_pull is not None
        assert model.last_pull.staleness == 2, "who names one gets that"
        tuned = cluster.status("h0")["worker"]["tuned"]
        assert tuned["staleness"] == 0
        assert tuned["decisions"][0].startswith("staleness 3 -> 0 (drift)")
