"""A parameter server of the overlay world: the root of one shard's tree, around the real core, and its disk.

A record is on disk some time after it was written. A crash keeps what was said to be there, and of what was
on its way a first part that is drawn: a record may be there though nobody was ever told so. Now and then the
records become a snapshot.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, assert_never

from inaproto.core.models.events import (
    Connected,
    Disconnected,
    Heard,
    Noted,
    Persist,
    Persisted,
    Remove,
    Reshape,
    RootAction,
    RootConfig,
    RootEvent,
    RootRecord,
    RootSnapshot,
    Tell,
    Woke,
)
from inaproto.core.models.shard import ShardRoot
from inaproto.errors import Blame
from inaproto.sim.kernel.machine import Timer
from inaproto.sim.kernel.violated import Violated
from inaproto.sim.models.config import FIRST_SERVER
from inaproto.sim.models.machine import Machine
from inaproto.units import MS
from inaproto.wire.messages.clocks import FOREVER, Clocks, WorkerId
from inaproto.wire.messages.models import NodeId, Word

if TYPE_CHECKING:
    from inaproto.sim.models.world import OverlayWorld


class Server(Machine):
    """Machine and root in one: ``shard`` and ``node`` make it a seat of the network."""

    def __init__(self, world: OverlayWorld, shard: int) -> None:
        super().__init__(world, FIRST_SERVER + shard, f"server{shard}")
        self.shard = shard
        self.node = NodeId(self.number)
        self.machine: Machine = self
        config = world.config
        tree = config.tree(shard)
        first, *others = config.stands(shard, self.node)
        self.config = RootConfig(
            shard=config.spec(shard),
            node=self.node,
            workers=config.workers_all,
            children=first.children,
            nodes=tuple(sorted(node for node in tree.nodes if node != self.node)),
            patience=world.patience,
            teardown_failures=config.teardown_failures,
            removal_ns=None if config.removal_ns < 0 else config.removal_ns,
            shape=first.shape,
            others=tuple(others),
        )
        initial = world.values[shard].initial()
        self.snapshot: RootSnapshot | None = None
        if initial is not None:
            initial.setflags(write=False)
            self.snapshot = RootSnapshot(initial, Clocks.alike(self.config.workers))
        self.records: list[RootRecord] = []
        """On disk, after the snapshot."""
        self._pending: deque[tuple[RootRecord, int]] = deque()

    def __str__(self) -> str:
        return self.name

    @property
    def unwritten(self) -> int:
        """Records that are on their way to the disk."""
        return len(self._pending)

    def begin(self) -> None:
        if self.incarnation > 1:
            self.world.mark("a server has started again")
        self.core = ShardRoot(self.config, self.snapshot, tuple(self.records), self.now)
        self._timer = Timer(self, lambda: self.core.deadline, lambda: self.step(Woke()))
        self.world.ledgers[self.shard].restarted(self.core.snapshot())
        self.step(Woke())

    def lose(self) -> None:
        kept = self.draws.below(len(self._pending) + 1)
        if kept:
            self.world.mark("a record was on disk, and nobody was told")
        if kept < len(self._pending):
            self.world.mark("a record was lost in a crash")
        for _ in range(kept):
            self._write(self._pending.popleft()[0])
        self._pending.clear()
        self.world.network.crashed(self)

    def remove(self, worker: WorkerId) -> None:
        """A person says so, again and again until the server has it on its disk."""
        if self.world.ledgers[self.shard].clocks[worker] >= FOREVER:
            return
        if self.is_up:
            self.step(Remove(worker))
        self.world.agenda.after(20 * MS, lambda _: self.remove(worker))

    def reshape(self, tree: int) -> None:
        """As its daemon says when it has measured."""
        if self.is_up:
            self.after(0, lambda: self.step(Reshape(tree, "drawn")))

    # --- a seat of the network

    def connected(self, peer: NodeId) -> None:
        self.step(Connected(peer))

    def disconnected(self, peer: NodeId) -> None:
        self.step(Disconnected(peer))

    def heard(self, peer: NodeId, word: Word) -> None:
        self.step(Heard(peer, word))

    def step(self, event: RootEvent) -> None:
        world = self.world
        world.note(self, type(event).__name__, world.say(self.shard, event))
        world.steps.root += 1
        actions = self.core.step(event, self.now)
        world.hooks.root_stepped(self, event, actions)
        for action in actions:
            self._perform(action)
        self._timer.arm()

    def _perform(self, action: RootAction) -> None:
        match action:
            case Tell(peer, word):
                self.world.network.tell(self, peer, word)
            case Persist(record, token):
                self.world.mark("a record waits for the disk")
                self._pending.append((record, token))
                most = self.world.config.fsync_max_ns
                self.after(self.draws.between(most // 8, most), self._synced)
            case Noted(mark):
                self.world.mark(mark.value)
            case Blame():
                raise Violated("nobody is to blame", f"{self} blames {action}")
            case _:
                assert_never(action)

    # --- the disk

    def _synced(self) -> None:
        record, token = self._pending.popleft()
        self._write(record)
        self.step(Persisted(token))
        if len(self.records) >= self.world.config.snapshot_every:
            self.world.mark("records became a snapshot")
            self.snapshot, self.records = self.core.snapshot(), []

    def _write(self, record: RootRecord) -> None:
        self.records.append(record)
        self.world.ledgers[self.shard].written(record)
