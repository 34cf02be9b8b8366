"""One training: workers push, pull and clock, and a parameter server is killed on the way.

Workers are tasks of this process, each at its own host daemon; daemons and parameter servers are processes.
Now and then a worker is slow (its machine does something else): ``slow_share`` of its clocks take
``slow_s`` longer. With staleness 0 everybody waits for it every time; with s > 0 only who is s clocks ahead.

Every gradient follows from the seed, the worker, its clock and the weights that it pulled. So at s = 0 the
servers must hold, to the last bit, what one process computes that adds in the order of the trees
(``alone``), although a server was killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import trio

import inaproto
from examples.digits import data
from examples.sparse_regression.model import ELEMENTS, DualAveraging, Samples, Vector, gradient
from inaproto.daemon.settings.models_file import PlacedModel, Shard
from inaproto.wire.messages.models import NodeId
from inaproto_hil.rigs.models_cluster import ModelsCluster

MODEL = "sparse"
WAIT_S = 120.0
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Config:
    seed: int = 1
    workers: int = 4
    servers: int = 2
    clocks: int = 150
    batch: int = 32
    slow_share: float = 0.1
    slow_s: float = 0.05
    kill: bool = True
    """The last parameter server, when all workers are half through."""


@dataclass(slots=True)
class Training:
    """What one staleness gave."""

    staleness: int
    pulled: list[tuple[float, int, Vector]] = field(default_factory=list)
    """What worker 0 pulled: seconds since the start, its clock, and the sum that it got."""
    behind: list[int] = field(default_factory=list)
    """How many clocks the oldest of the others' updates was behind the worker's own, for each pull."""
    waited_s: float = 0.0
    """In pulls, all workers."""
    killed_s: float | None = None
    seconds: float = 0.0

    @property
    def last(self) -> Vector:
        """All updates of all workers."""
        return self.pulled[-1][2]


class Task:
    """What the workers compute; drawn from the seed alone."""

    def __init__(self, config: Config) -> None:
        digits = data.load(config.seed)
        self.config = config
        self.train = Samples.of(digits.train_images, digits.train_labels)
        self.test = Samples.of(digits.test_images, digits.test_labels)
        self.averaging = DualAveraging(config.workers)

    def gradient(self, worker: int, clock: int, summed: Vector) -> Vector:
        """Update ``clock`` of ``worker``, from the sum it pulled; of a minibatch of its samples."""
        mine = np.arange(worker, len(self.train), self.config.workers)
        draw = data.stream(self.config.seed, f"minibatch of worker {worker} at clock {clock}")
        batch = self.train.only(draw.choice(mine, self.config.batch, replace=False))
        return gradient(self.averaging.weights(summed), batch)

    def pause_s(self, worker: int, clock: int) -> float:
        draw = data.stream(self.config.seed, f"pace of worker {worker} at clock {clock}")
        return self.config.slow_s if draw.random() < self.config.slow_share else 0.0


def models_text(staleness: int) -> str:
    return (
        f'[[models]]\nname = "{MODEL}"\ndtype = "float32"\nelements = {ELEMENTS}\n'
        f"staleness = {staleness}\nin_degree = 2\nheartbeat_ms = 2000\n"
    )


async def _work(
    model: inaproto.Model, worker: int, task: Task, training: Training, clocks: list[int], began: float
) -> None:
    staleness = training.staleness
    while True:
        is_last = model.clock == task.config.clocks
        summed = await model.pull(0 if is_last else staleness, WAIT_S)
        record = model.last_pull
        assert record is not None
        training.waited_s += record.seconds
        training.behind.append(record.clock - record.oldest)
        if worker == 0:
            training.pulled.append((time.monotonic() - began, model.clock, summed))
        if is_last:
            return
        model.push(task.gradient(worker, model.clock + 1, summed))
        await trio.sleep(task.pause_s(worker, model.clock + 1))
        clocks[worker] = await model.finish(WAIT_S)


async def _train(
    cluster: ModelsCluster, task: Task, training: Training, progress: Callable[[int], None]
) -> None:
    config, clocks, began = task.config, [0] * task.config.workers, time.monotonic()

    async def worker(number: int) -> None:
        socket = cluster.host_socket(number)
        async with await inaproto.connect_model(MODEL, socket=socket, timeout=WAIT_S) as model:
            await _work(model, number, task, training, clocks, began)

    async def kill() -> None:
        while min(clocks) < config.clocks // 2:  # noqa: ASYNC110  the workers count for others too
            await trio.sleep(LOOK_S)
        server = cluster.models.servers[-1]
        training.killed_s = time.monotonic() - began
        cluster.kill(server)
        cluster.begin_again(server)  # not in a thread: processes end with the thread that started them
        await trio.to_thread.run_sync(partial(cluster.wait_ready, server))

    async def watch() -> None:
        while True:
            progress(sum(clocks))
            await trio.sleep(LOOK_S)

    async with trio.open_nursery() as watching:
        watching.start_soon(watch)
        async with trio.open_nursery() as working:
            for number in range(config.workers):
                working.start_soon(worker, number)
            if config.kill:
                working.start_soon(kill)
        watching.cancel_scope.cancel()
    training.seconds = time.monotonic() - began
    progress(config.workers * config.clocks)


def train(task: Task, staleness: int, progress: Callable[[int], None]) -> tuple[Training, PlacedModel]:
    """Start everything, train, end everything. Raises ``ClusterError``, or what a worker failed with."""
    training, config = Training(staleness), task.config
    with ModelsCluster(config.workers, config.servers, models_text(staleness)) as cluster:
        (placed,) = cluster.models.models
        trio.run(_train, cluster, task, training, progress)
    return training, placed


def alone(task: Task, placed: PlacedModel) -> Vector:
    """Synchronous training in one process: the sum that the servers must hold at s = 0.

    A node adds its own worker's update first, then its children's sums in their order.
    """
    summed = np.zeros(ELEMENTS, np.float32)
    for clock in range(1, task.config.clocks + 1):
        updates = [task.gradient(worker, clock, summed) for worker in range(task.config.workers)]
        summed = np.concatenate(
            [summed[shard.first : shard.end] + _added(placed, shard, updates) for shard in placed.shards]
        )
    return summed


def _added(placed: PlacedModel, shard: Shard, updates: list[Vector]) -> Vector:
    tree, worker_of = shard.tree, {placed.node_of(name): at for at, name in enumerate(placed.workers)}

    def of(node: NodeId) -> Vector:
        parts = [] if node == tree.root else [updates[worker_of[node]][shard.first : shard.end]]
        parts += [of(child) for child in tree.children(node)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    return of(tree.root)
