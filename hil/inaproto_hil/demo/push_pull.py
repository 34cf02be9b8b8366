"""``inaproto demo pushpull``: workers push and pull through trees, while a host and a server are killed.

Every daemon is a process of its own; the workers are tasks here, each at its host's daemon. An interior
node of the trees is killed (SIGKILL) with the last updates of its own worker, its children go to its
ancestors, and it comes back: its worker asks how many of its updates count, and makes the others again.
Then a parameter server is killed and started again from its disk.

Nothing that is said in the end is assumed. Updates are whole numbers, so the serial sum of any of them is
exact; each counts itself in an element of its worker, in every shard. So the weights of each pull say
themselves what is in them: that must be enough for the staleness asked for, and the weights must be the
serial sum of just that, byte for byte. When all daemons have stopped, the servers' disks must have the
serial sum of all updates: a count below is a lost update.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import trio
from numpy.typing import NDArray

import inaproto
from inaproto.daemon.models.shard_records import record_of, snapshot_of
from inaproto.daemon.models.store.durable_log import DurableLog
from inaproto.daemon.settings.models_file import PlacedModel, Shard
from inaproto_hil.rigs.cluster import ClusterError
from inaproto_hil.rigs.models_cluster import ModelsCluster

MODEL: Final = "demo"
WAIT_S: Final = 600.0
LOOK_S: Final = 0.1
Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Config:
    seed: int = 1
    workers: int = 8
    servers: int = 2
    elements: int = 4096
    steps: int = 60
    """Updates of each worker."""
    staleness: int = 2
    in_degree: int = 2
    heartbeat_ms: int = 500

    def models_text(self) -> str:
        return (
            f'[[models]]\nname = "{MODEL}"\ndtype = "int64"\nelements = {self.elements}\n'
            f"staleness = {self.staleness}\nin_degree = {self.in_degree}\nseed = {self.seed}\n"
            f"heartbeat_ms = {self.heartbeat_ms}\n"
        )


class Reference:
    """All updates, and the serial sums of the first ones of each worker."""

    def __init__(self, model: PlacedModel, config: Config) -> None:
        self.model = model
        workers, steps = config.workers, config.steps
        shape = (workers, steps + 1, config.elements)
        rng = np.random.default_rng(config.seed)
        self._updates = rng.integers(-(1 << 40), 1 << 40, shape, np.int64)
        self._updates[:, 0] = 0
        for shard in model.shards:
            counts = self._updates[:, 1:, shard.first : shard.first + workers]
            counts[:] = np.eye(workers, dtype=np.int64)[:, None, :]
        self._sums = np.cumsum(self._updates, axis=1)

    def update(self, worker: int, clock: int) -> Numbers:
        found: Numbers = self._updates[worker, clock]
        return found

    def counts(self, shard: Shard, weights: Numbers) -> list[int]:
        """How many updates of each worker the shard's ``weights`` (of the whole model) say they contain."""
        return [int(count) for count in weights[shard.first : shard.first + len(self.model.workers)]]

    def is_sum(self, shard: Shard, weights: Numbers, counts: list[int]) -> bool:
        """Whether they are the serial sum of the first updates, so many of each worker."""
        if not all(0 <= count < self._sums.shape[1] for count in counts):
            return False
        part = slice(shard.first, shard.end)
        expected = sum((self._sums[worker, count, part] for worker, count in enumerate(counts)), 0)
        return np.asarray(expected, np.int64).tobytes() == weights[part].tobytes()


@dataclass
class Tally:
    pulls: int = 0
    staleness_violations: int = 0
    inexact_pulls: int = 0
    reconnections: int = 0
    redone: int = 0
    """Updates that were lost with their host, and made again."""
    counts: dict[str, list[int]] = field(default_factory=dict)
    """On the servers' disks in the end: updates of each worker, by server."""
    durable_is_sum: bool = False


class Clocks:
    """How many updates each worker has made."""

    def __init__(self, workers: int) -> None:
        self.of_workers = [0] * workers
        self._waiting: list[tuple[int, trio.Event]] = []

    def advance(self, worker: int, clock: int) -> None:
        self.of_workers[worker] = clock
        for steps, event in self._waiting:
            if min(self.of_workers) >= steps:
                event.set()

    async def past(self, steps: int) -> None:
        """Return as the last one comes to ``steps``, when nobody can be further than the staleness lets him.

        Who waits is woken by the update itself: a look from time to time may come when all is over, and then
        what was to happen in the middle happens to nobody. Raises ``ClusterError``.
        """
        if min(self.of_workers) >= steps:
            return
        self._waiting.append((steps, event := trio.Event()))
        with trio.move_on_after(WAIT_S) as scope:
            await event.wait()
        if scope.cancelled_caught:
            raise ClusterError(f"all workers at update {steps}: not within {WAIT_S:g} s")


class Worker:
    def __init__(
        self, cluster: ModelsCluster, number: int, reference: Reference, config: Config, tally: Tally,
        clocks: Clocks,
    ):  # fmt: skip
        self._cluster, self._number, self._reference = cluster, number, reference
        self._config, self._tally, self._clocks = config, tally, clocks
        self.clock = 0
        self.is_done = False

    async def run(self) -> None:
        """All its updates, in as many connections as that takes; then it waits for all others'."""
        while not self.is_done:
            try:
                await self._work()
            except inaproto.DaemonUnreachable:
                self._tally.reconnections += 1

    async def _work(self) -> None:
        socket = self._cluster.host_socket(self._number)
        async with await inaproto.connect_model(MODEL, socket=socket, timeout=WAIT_S) as model:
            self._tally.redone += max(0, self.clock - model.clock)
            while model.clock < self._config.steps:
                model.push(self._reference.update(self._number, model.clock + 1))
                self.clock = await model.finish(WAIT_S)
                self._clocks.advance(self._number, self.clock)
                await self._pull(model, self._config.staleness)
            await self._pull(model, 0)
            self.is_done = True

    async def _pull(self, model: inaproto.Model, staleness: int) -> None:
        weights, tally = await model.pull(staleness, WAIT_S), self._tally
        tally.pulls += 1
        counts = [self._reference.counts(shard, weights) for shard in self._reference.model.shards]
        if min(map(min, counts)) < model.clock - staleness:
            tally.staleness_violations += 1
        shards = zip(self._reference.model.shards, counts, strict=True)
        if not all(self._reference.is_sum(shard, weights, count) for shard, count in shards):
            tally.inexact_pulls += 1


def interior_host(model: PlacedModel) -> str:
    """The host that has most children in all trees together."""
    counts = [
        sum(len(shard.tree.children(model.node_of(host))) for shard in model.shards) for host in model.workers
    ]
    return model.workers[counts.index(max(counts))]


async def play(
    cluster: ModelsCluster, config: Config, reference: Reference, tally: Tally, say: Callable[[str], None],
    progress: Callable[[int], None],
) -> Counter[str]:  # fmt: skip
    """Returns what the trees have noted, added up over all daemons that run in the end."""
    clocks = Clocks(config.workers)
    workers = [Worker(cluster, number, reference, config, tally, clocks) for number in range(config.workers)]
    model = reference.model
    victim = interior_host(model)
    children = sorted(
        {
            model.process_of(child)
            for shard in model.shards
            for child in shard.tree.children(model.node_of(victim))
        }
    )

    async def status(name: str) -> dict[str, Any]:
        return await trio.to_thread.run_sync(partial(cluster.status, name))

    async def is_below_victim(host: str) -> bool:
        shards = (await status(host))["models"][0]["shards"]
        return any(shard["parent"] == victim or not shard["attached"] for shard in shards)

    async def no_child_below_victim() -> None:
        with trio.fail_after(WAIT_S):
            for child in children:
                while await is_below_victim(child):  # noqa: ASYNC110  it is another process
                    await trio.sleep(LOOK_S)

    async def direct() -> None:
        await clocks.past(config.steps // 3)
        cluster.kill(victim)
        say(f"killed {victim}, an interior node: parent of {', '.join(children)}")
        await no_child_below_victim()
        say(f"{', '.join(children)} went to other parents; {victim} starts again")
        cluster.begin_again(victim)
        await trio.to_thread.run_sync(cluster.wait_ready, victim)
        await clocks.past(2 * config.steps // 3)
        server = model.servers[-1]
        cluster.kill(server)
        say(f"killed parameter server {server}; it starts again from its disk")
        cluster.begin_again(server)
        await trio.to_thread.run_sync(cluster.wait_ready, server)

    async def watch() -> None:
        while True:
            progress(sum(clocks.of_workers))
            await trio.sleep(LOOK_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        async with trio.open_nursery() as working:
            for worker in workers:
                working.start_soon(worker.run)
            working.start_soon(direct)
        nursery.cancel_scope.cancel()
    progress(config.steps * config.workers)
    marks: Counter[str] = Counter()
    for name in model.workers:
        for shard in (await status(name))["models"][0]["shards"]:
            marks.update(shard["marks"])
    for name in model.servers:
        for shard in (await status(name))["shards"]:
            marks.update(shard["marks"])
    return marks


def read_disks(cluster: ModelsCluster, reference: Reference, tally: Tally) -> None:
    """What the servers' disks have, once nobody uses them."""
    tally.durable_is_sum = True
    for shard in reference.model.shards:
        log = DurableLog(cluster.store(shard.server) / f"{MODEL}-{shard.number}")
        try:
            found = log.found
            assert found.snapshot is not None
            weights = np.zeros(reference.model.elements, np.int64)
            weights[shard.first : shard.end] = snapshot_of(found.snapshot, shard).weights
            for frame in found.changes:
                delta = record_of(frame, shard).delta
                if delta is not None:
                    weights[shard.first : shard.end] += delta
        finally:
            log.close()
        counts = tally.counts[shard.server] = reference.counts(shard, weights)
        tally.durable_is_sum &= reference.is_sum(shard, weights, counts)


def report(config: Config, tally: Tally, marks: Counter[str], seconds: float) -> dict[str, Any]:
    lost = sum(max(0, config.steps - count) for counts in tally.counts.values() for count in counts)
    complete = all(count == config.steps for counts in tally.counts.values() for count in counts)
    return {
        "exact": tally.durable_is_sum and complete and not tally.inexact_pulls,
        "staleness_violations": tally.staleness_violations,
        "lost_updates": lost,
        "workers": config.workers,
        "servers": config.servers,
        "steps": config.steps,
        "staleness": config.staleness,
        "elements": config.elements,
        "seed": config.seed,
        "pulls": tally.pulls,
        "inexact_pulls": tally.inexact_pulls,
        "reconnections": tally.reconnections,
        "updates_redone": tally.redone,
        "durable_updates": tally.counts,
        "events": dict(sorted(marks.items())),
        "seconds": round(seconds, 2),
    }


def last_line(told: dict[str, Any]) -> str:
    exact = "yes" if told["exact"] else "no"
    violations, lost = told["staleness_violations"], told["lost_updates"]
    return f"exact={exact} staleness_violations={violations} lost_updates={lost}"


def run(
    config: Config, out: Path | None, say: Callable[[str], None], progress: Callable[[int], None]
) -> dict[str, Any]:
    """Play it; returns what is told as JSON."""
    began, tally = time.monotonic(), Tally()
    with ModelsCluster(config.workers, config.servers, config.models_text(), log_dir=out) as cluster:
        (model,) = cluster.models.models
        for shard in model.shards:
            tops = ", ".join(model.process_of(node) for node in shard.tree.children(shard.tree.root))
            say(
                f"{shard.server} holds elements {shard.first} to {shard.end - 1}; its tree has height "
                f"{shard.tree.height()}, at the top {tops}"
            )
        reference = Reference(model, config)
        marks = trio.run(play, cluster, config, reference, tally, say, progress)
        cluster.stop()
        read_disks(cluster, reference, tally)
    return report(config, tally, marks, time.monotonic() - began)
