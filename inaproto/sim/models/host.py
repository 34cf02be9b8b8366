"""A host of the overlay world: a node of each shard's tree, around the real core, and perhaps a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from inaproto.core.models.events import (
    Abandoned,
    Answer,
    Connect,
    Connected,
    Disconnect,
    Disconnected,
    Done,
    Heard,
    NodeAction,
    NodeConfig,
    NodeEvent,
    Noted,
    Refuse,
    Resumed,
    Tell,
    Woke,
)
from inaproto.core.models.node import ShardNode
from inaproto.errors import Blame
from inaproto.sim.kernel.machine import Timer
from inaproto.sim.kernel.violated import Violated
from inaproto.sim.models.machine import Machine
from inaproto.sim.models.worker import Worker
from inaproto.wire.messages.clocks import WorkerId
from inaproto.wire.messages.models import NodeId, Word

if TYPE_CHECKING:
    from inaproto.sim.models.world import OverlayWorld


class Host(Machine):
    def __init__(self, world: OverlayWorld, number: int) -> None:
        super().__init__(world, number, f"host{number}")
        self.node = NodeId(number)
        self.is_lost = False
        self.seats = [NodeSeat(self, shard) for shard in range(len(world.config.shards))]
        self.worker: Worker | None = None
        self.lives = 0
        """Processes that its worker has had."""
        self._worker = next(
            (index for index, worker in enumerate(world.config.workers) if worker.host == number), None
        )

    @property
    def worker_number(self) -> int | None:
        """Number of the worker that lives here when the host is up."""
        return self._worker

    def begin(self) -> None:
        if self._worker is not None:
            self.worker = self._process(self._worker)
        for seat in self.seats:
            seat.begin()

    def _process(self, worker: int) -> Worker:
        self.lives += 1
        return Worker(self, worker, self.world.config.workers[worker], self.lives - 1)

    def abandon(self, duration_ns: int) -> None:
        """The worker's process is gone, if there was something left for it to do."""
        before = self.worker
        if before is None or self._worker is None or before.is_over:
            return
        self.world.mark("a worker's process went, and another came")
        self.worker = self._process(self._worker)
        self.worker.follows(before, duration_ns)
        for seat in self.seats:
            seat.step(Abandoned())

    def lose(self) -> None:
        self.worker = None
        self.world.network.crashed(self)


class NodeSeat:
    """The node of one shard's tree on a host."""

    def __init__(self, host: Host, shard: int) -> None:
        self.host = host
        self.machine: Machine = host
        self.shard = shard
        self.node = host.node
        config = host.world.config
        first, *others = config.stands(shard, host.node)
        worker = next((n for n, its in enumerate(config.workers) if its.host == host.number), None)
        self.config = NodeConfig(
            shard=config.spec(shard),
            node=host.node,
            ancestors=first.ancestors,
            children=first.children,
            worker=None if worker is None else WorkerId(worker),
            patience=host.world.patience,
            shape=first.shape,
            others=tuple(others),
            workers=config.workers_all,
            nodes=tuple(NodeId(number) for number in config.hosts),
        )

    def __str__(self) -> str:
        return f"{self.host.name}/{self.shard}"

    def begin(self) -> None:
        worker = self.config.worker
        self.durable = 0 if worker is None else self.host.world.ledgers[self.shard].clocks[worker]
        """Clock of its worker on the disk of the server, when it started."""
        self.core = ShardNode(self.config, self.host.now)
        self._timer = Timer(self.host, lambda: self.core.deadline, lambda: self.step(Woke()))
        self.step(Woke())

    def connected(self, peer: NodeId) -> None:
        self.step(Connected(peer))

    def disconnected(self, peer: NodeId) -> None:
        self.step(Disconnected(peer))

    def heard(self, peer: NodeId, word: Word) -> None:
        self.step(Heard(peer, word))

    def step(self, event: NodeEvent) -> None:
        world = self.host.world
        world.note(self.host, f"{self.shard}: {type(event).__name__}", world.say(self.shard, event))
        world.steps.node += 1
        actions = self.core.step(event, self.host.now)
        world.hooks.stepped(self, event, actions)
        for action in actions:
            self._perform(action)
        self._timer.arm()

    def _perform(self, action: NodeAction) -> None:
        world, worker = self.host.world, self.host.worker
        match action:
            case Tell(peer, word):
                world.network.tell(self, peer, word)
            case Connect(peer):
                world.network.dial(self, peer)
            case Disconnect(peer):
                world.network.hang_up(self, peer)
            case Resumed(_, clock):
                world.mark(f"a worker resumed at {'its first clock' if not clock else 'a later clock'}")
                assert worker is not None, "only a worker's host says so"
                worker.resumed(self, clock)
            case Done(request, clock):
                assert worker is not None, "only a worker's host says so"
                worker.done(self, request, clock)
            case Answer():
                assert worker is not None, "only a worker's host says so"
                world.operations_done += 1
                worker.answered(self, action)
            case Refuse(request, reason):
                assert worker is not None, "only a worker's host says so"
                worker.refused(self, request, reason)
            case Noted(mark):
                world.mark(mark.value)
            case Blame():
                raise Violated("nobody is to blame", f"{self} blames {action}")
            case _:
                assert_never(action)
