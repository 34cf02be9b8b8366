"""A tree of push/pull cores, with workers that train on it, deliveries in any order, and faults.

A simple model beside it: update ``t`` of worker ``w`` adds 1 to the element ``w * updates + t - 1`` of the
weights, so that any weights show which updates are in them, and how often. Checked on every answer: exactly
once, in order, no staler than was asked; at s = 0 of one clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inaproto.core.models.events import (
    Answer,
    Clocked,
    Connect,
    Connected,
    Disconnect,
    Disconnected,
    Done,
    Heard,
    Left,
    Mark,
    NodeAction,
    NodeConfig,
    NodeEvent,
    Noted,
    Patience,
    Persist,
    Persisted,
    Pulled,
    Pushed,
    Refuse,
    Resumed,
    RootAction,
    RootConfig,
    RootEvent,
    RootRecord,
    RootSnapshot,
    ShardSpec,
    Tell,
    Woke,
)
from inaproto.core.models.node import ShardNode
from inaproto.core.models.shard import ShardRoot
from inaproto.core.models.tree.epochs import Stand
from inaproto.core.models.tree.shape import Shape
from inaproto.errors import Blame
from inaproto.units import MS, Instant
from inaproto.wire.messages.clocks import FOREVER, Clocks, WorkerId
from inaproto.wire.messages.models import NodeId, Word

ROOT = NodeId(100)
QUICK = Patience(heartbeat_ns=10 * MS, dead_ns=30 * MS, return_ns=30 * MS, start_ns=0)
Gradients = Callable[[int, int], NDArray[Any]]
"""Of a worker and a clock."""


def ancestors(parents: Mapping[int, int], node: int) -> tuple[NodeId, ...]:
    line = []
    while node != ROOT:
        node = parents[node]
        line.append(NodeId(node))
    return tuple(line)


def children(parents: Mapping[int, int], node: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(child) for child, parent in parents.items() if parent == node)


@dataclass
class Program:
    """A worker: push, clock, pull, again and again, then leave."""

    worker: int
    updates: int
    staleness: int
    clock: int | None = None
    is_waiting: bool = False
    is_pull_due: bool = False
    has_left: bool = False
    is_away: bool = False
    request: int = 0
    answers: list[Answer] = field(default_factory=list)

    @property
    def may_act(self) -> bool:
        return self.clock is not None and not (self.is_waiting or self.has_left or self.is_away)


class Net:
    """``parents``: of each node, ``ROOT`` at the top; node ``n`` has worker ``n`` unless it is in
    ``bare``."""

    def __init__(
        self,
        parents: Mapping[int, int],
        shard: ShardSpec,
        *,
        random: Random,
        updates: int,
        pulls: int | None = None,
        bare: Sequence[int] = (),
        patience: Patience = QUICK,
        gradients: Gradients | None = None,
        weights: NDArray[Any] | None = None,
        removal_ns: int | None = None,
        others: Sequence[Mapping[int, int]] = (),
    ) -> None:
        """``others``: trees of the same nodes to choose from."""
        self.trees = (parents, *others)
        self.parents, self.shard, self.random, self.patience = parents, shard, random, patience
        self.workers = tuple(WorkerId(n) for n in sorted(parents) if n not in bare)
        self.updates = updates
        self._gradients = gradients or self._marks
        self.is_checked = gradients is None
        self.now = Instant(0)
        self.nodes: dict[NodeId, ShardNode] = {}
        self.inboxes: dict[tuple[NodeId, NodeId], deque[Connected | Heard | Disconnected]] = {}
        """What the second has yet to hear from the first, or of its connection to it."""
        self.linked: set[frozenset[NodeId]] = set()
        self.unaware: set[tuple[NodeId, NodeId]] = set()
        """The second has yet to hear that it is connected to the first, anew: what it says is lost till
        then."""
        self.dialled: set[tuple[NodeId, NodeId]] = set()
        self.cut: set[frozenset[NodeId]] = set()
        self.still: set[NodeId] = set()
        """They do nothing, and what they are told waits."""
        self.persisting: deque[tuple[RootRecord, int]] = deque()
        self.durable: list[RootRecord] = []
        self.noted: list[Noted] = []
        self.refused: list[Refuse] = []
        self.told: list[tuple[NodeId, NodeId, Word]] = []
        self.programs = {
            w: Program(w, updates, shard.staleness if pulls is None else pulls) for w in self.workers
        }
        self.snapshot = None if weights is None else RootSnapshot(weights, Clocks.alike(self.workers))
        self.root_config = RootConfig(
            shard,
            ROOT,
            self.workers,
            children(parents, ROOT),
            tuple(NodeId(n) for n in parents),
            patience,
            removal_ns=removal_ns,
            shape=self._shape(ROOT, parents),
            others=tuple(self._stand(ROOT, tree) for tree in others),
        )
        self.root: ShardRoot | None = None
        self.start_root()
        for node in parents:
            self.start(NodeId(node))

    def _marks(self, worker: int, clock: int) -> NDArray[Any]:
        delta = np.zeros(self.shard.elements, self.shard.numpy_dtype)
        delta[self.workers.index(WorkerId(worker)) * self.updates + clock - 1] = 1
        return delta

    def _stand(self, node: NodeId, tree: Mapping[int, int]) -> Stand:
        return Stand(ancestors(tree, node), children(tree, node), self._shape(node, tree))

    def _shape(self, node: NodeId, tree: Mapping[int, int]) -> Shape:
        def worker(of: NodeId) -> WorkerId | None:
            return WorkerId(of) if WorkerId(of) in self.workers else None

        return Shape.of(node, partial(children, tree), worker)

    # --- lives and deaths

    def start_root(self) -> None:
        self.root = ShardRoot(self.root_config, self.snapshot, self.durable, self.now)
        self._dial_again()

    def start(self, node: NodeId) -> None:
        worker = WorkerId(node) if WorkerId(node) in self.workers else None
        config = NodeConfig(
            self.shard,
            node,
            ancestors(self.parents, node),
            children(self.parents, node),
            worker,
            self.patience,
            self._shape(node, self.parents),
            workers=self.workers,
            nodes=tuple(NodeId(n) for n in self.parents),
            others=tuple(self._stand(node, tree) for tree in self.trees[1:]),
        )
        self.nodes[node] = ShardNode(config, self.now)
        self._dial_again()
        self.step(node, Woke())

    def _is_up(self, node: NodeId) -> bool:
        return self.root is not None if node == ROOT else node in self.nodes

    def crash(self, node: NodeId) -> None:
        """What it had is gone, but for what is durable."""
        if node == ROOT:
            self.root = None
            self.persisting.clear()
        else:
            del self.nodes[node]
            self.dialled = {(a, b) for a, b in self.dialled if a != node}
            program = self.programs.get(WorkerId(node))
            if program is not None:
                program.clock = None
                program.is_waiting = program.is_pull_due = program.has_left = False
        for a, b in sorted(self.inboxes):
            if b == node:
                self.inboxes[a, b].clear()
        for pair in sorted(self.linked, key=sorted):
            if node in pair:
                self._unlink(*pair)

    def cut_off(self, a: NodeId, b: NodeId) -> None:
        self.cut.add(frozenset((a, b)))
        self._unlink(a, b)

    def heal(self) -> None:
        self.cut.clear()
        self._dial_again()

    def _unlink(self, a: NodeId, b: NodeId) -> None:
        """What is on its way is lost."""
        if frozenset((a, b)) in self.linked:
            self.linked.remove(frozenset((a, b)))
            for end, peer in ((a, b), (b, a)):
                self._lose(peer, end)

    def _lose(self, a: NodeId, b: NodeId) -> None:
        """``b`` hears no more of ``a``."""
        inbox = self.inboxes.setdefault((a, b), deque())
        is_new = any(isinstance(event, Connected) for event in inbox)
        kept = [event for event in inbox if isinstance(event, Disconnected)]
        inbox.clear()
        inbox.extend(kept)
        if not (is_new or kept) and self._is_up(b):
            inbox.append(Disconnected(a))

    def _dial_again(self) -> None:
        for a, b in sorted(self.dialled):
            self._dial(a, b)

    def _dial(self, a: NodeId, b: NodeId) -> None:
        if frozenset((a, b)) in self.linked | self.cut or not (self._is_up(a) and self._is_up(b)):
            return
        self.linked.add(frozenset((a, b)))
        self.unaware |= {(a, b), (b, a)}
        self.inboxes.setdefault((a, b), deque()).append(Connected(a))
        self.inboxes.setdefault((b, a), deque()).append(Connected(b))

    # --- steps

    def step(self, node: NodeId, event: NodeEvent | RootEvent) -> None:
        actions: Sequence[NodeAction | RootAction]
        if node == ROOT:
            assert self.root is not None
            actions = self.root.step(event, self.now)  # type: ignore[arg-type]
        else:
            actions = self.nodes[node].step(event, self.now)  # type: ignore[arg-type]
        for action in actions:
            self._perform(node, action)

    def _perform(self, node: NodeId, action: NodeAction | RootAction) -> None:
        match action:
            case Tell():
                self.told.append((node, action.peer, action.word))
                is_there = frozenset((node, action.peer)) in self.linked
                if is_there and (action.peer, node) not in self.unaware:
                    self.inboxes[node, action.peer].append(Heard(node, action.word))
            case Connect():
                self.dialled.add((node, action.peer))
                self._dial(node, action.peer)
            case Disconnect():
                self.dialled.discard((node, action.peer))
                self._close(node, action.peer)
            case Persist():
                self.persisting.append((action.record, action.token))
            case Resumed():
                program = self.programs[action.worker]
                program.clock, program.is_waiting = action.clock, False
                program.is_pull_due, program.has_left = action.clock > 0, action.clock >= FOREVER
            case Done():
                program = self.programs[WorkerId(node)]
                program.is_waiting = False
                if action.clock != FOREVER:
                    program.clock, program.is_pull_due = action.clock, True
            case Answer():
                program = self.programs[WorkerId(node)]
                program.is_waiting = program.is_pull_due = False
                program.answers.append(action)
                self.check(action)
            case Noted():
                self.noted.append(action)
            case Refuse():
                self.refused.append(action)
                self.programs[WorkerId(node)].has_left = True
            case Blame():
                raise AssertionError(f"{node} blames {action}")

    def _close(self, a: NodeId, b: NodeId) -> None:
        """What ``a`` has said still arrives."""
        if frozenset((a, b)) in self.linked:
            self.linked.remove(frozenset((a, b)))
            self.inboxes[a, b].append(Disconnected(a))
            self.inboxes[b, a].clear()
            if (b, a) in self.dialled:
                self._dial(b, a)

    def update(self, worker: int) -> None:
        """Pushes and clocks."""
        program = self.programs[WorkerId(worker)]
        assert program.clock is not None
        assert not program.is_waiting
        program.request += 1
        program.is_waiting = True
        self.step(NodeId(worker), Pushed(self._gradients(worker, program.clock + 1)))
        self.step(NodeId(worker), Clocked(program.request))

    def pull(self, worker: int, staleness: int | None = None) -> None:
        program = self.programs[WorkerId(worker)]
        program.request += 1
        program.is_waiting = True
        self.step(
            NodeId(worker), Pulled(program.request, program.staleness if staleness is None else staleness)
        )

    def leave(self, worker: int) -> None:
        program = self.programs[WorkerId(worker)]
        program.request += 1
        program.has_left = True
        self.step(NodeId(worker), Left(program.request))

    def _act(self, worker: WorkerId) -> None:
        program = self.programs[worker]
        assert program.clock is not None
        if program.is_pull_due:
            self.pull(worker)
        elif program.clock < program.updates:
            self.update(worker)
        else:
            self.leave(worker)

    def moves(self) -> list[Callable[[], None]]:
        """Whatever may happen next."""
        found: list[Callable[[], None]] = []
        for a, b in self._readable:
            found.append(partial(self._deliver, a, b))
        if self.persisting and ROOT not in self.still:
            found.append(self._persist)
        for worker, program in self.programs.items():
            if program.may_act and NodeId(worker) in self.nodes.keys() - self.still:
                found.append(partial(self._act, worker))
        return found

    @property
    def _readable(self) -> list[tuple[NodeId, NodeId]]:
        return sorted(way for way, inbox in self.inboxes.items() if inbox and way[1] not in self.still)

    def _deliver(self, a: NodeId, b: NodeId) -> None:
        event = self.inboxes[a, b].popleft()
        if isinstance(event, Connected) and not any(isinstance(e, Connected) for e in self.inboxes[a, b]):
            self.unaware.discard((a, b))
        self.step(b, event)

    def _persist(self) -> None:
        record, token = self.persisting.popleft()
        self.durable.append(record)
        self.step(ROOT, Persisted(token))

    def pass_time(self) -> None:
        """To the next deadline."""
        self.now = Instant(self._next_deadline() or self.now)
        self._wake()

    @property
    def _cores(self) -> dict[NodeId, ShardNode | ShardRoot]:
        found: dict[NodeId, ShardNode | ShardRoot]
        found = {**self.nodes, **({} if self.root is None else {ROOT: self.root})}
        return {node: core for node, core in found.items() if node not in self.still}

    def _next_deadline(self) -> Instant | None:
        times = [core.deadline for core in self._cores.values() if core.deadline is not None]
        return None if not times else max(self.now, min(times))

    def _wake(self) -> None:
        """Everybody whose deadline it is."""
        for node, core in self._cores.items():
            if core.deadline is not None and core.deadline <= self.now:
                self.step(node, Woke())

    def settle(self, persists: bool = True) -> None:
        """Delivers all there is, and makes all durable; workers do nothing by themselves."""
        persists &= ROOT not in self.still
        while self._readable or (persists and self.persisting):
            for a, b in self._readable:
                while self.inboxes[a, b]:
                    self._deliver(a, b)
            if persists and self.persisting:
                self._persist()

    def elapse(self, duration_ns: int) -> None:
        """That much time, in which words take none."""
        until = self.now + duration_ns
        while self.now < until:
            self.settle()
            self.now = Instant(min(until, self._next_deadline() or until))
            self._wake()
        self.settle()

    def run(self, steps: int, fault: Callable[[], None] | None = None, haste: float = 0.02) -> bool:
        """Until all workers have left and all is durable. Whether they have.

        ``haste``: how often time passes although something else might happen first.
        """
        for _ in range(steps):
            if fault is not None:
                fault()
            if self.is_finished:
                return True
            moves = self.moves()
            if moves and self.random.random() >= haste:
                self.random.choice(moves)()
            else:
                self.pass_time()
        return self.is_finished

    @property
    def is_finished(self) -> bool:
        if self.root is None:
            return False
        clocks = self.root.view().clocks
        return all(clocks[w] >= FOREVER for w in self.workers if not self.programs[w].is_away)

    # --- judgement

    def words(self, kind: type, by: int | None = None, to: int | None = None) -> int:
        """How many of this kind were told."""
        found = [(teller, peer) for teller, peer, word in self.told if isinstance(word, kind)]
        return sum(by in (None, teller) and to in (None, peer) for teller, peer in found)

    def marks(self) -> set[Mark]:
        return {noted.mark for noted in self.noted}

    def counts(self, weights: NDArray[Any]) -> NDArray[np.int64]:
        """How often each update is in the weights: worker, clock."""
        return weights.astype(np.int64).reshape(len(self.workers), self.updates)

    def check(self, answer: Answer) -> None:
        if not self.is_checked:
            return
        counts = self.counts(answer.weights)
        for place, worker in enumerate(self.workers):
            included = answer.included[worker]
            if included >= FOREVER:  # it has left, or was removed: all that it did is a beginning
                included = int(counts[place].sum())
            assert np.array_equal(counts[place], np.arange(self.updates) < included), f"{counts[place]}"
            if answer.included[worker] < FOREVER:
                assert included >= answer.clock - answer.staleness, "staler than was asked"
                if self.shard.staleness == 0 and answer.staleness == 0:
                    assert included == answer.clock

    def check_end(self) -> None:
        assert self.root is not None
        snapshot = self.root.snapshot()
        assert (self.counts(snapshot.weights) == 1).all(), self.counts(snapshot.weights)
