"""The root: a parameter server's shard of a model (MLNet sections 3.1 and 3.2; docs/protocol.md 18).

It has the weights and the vector of the workers' clocks, both durable: a push is taken, then made durable,
and only then do weights and vector show it. One step is made durable at a time; what comes meanwhile makes
the next one. At s = 0 a step is one window, whole, in the order of the tree; so weights are those of a clock.
At s > 0 it is all that has come.

It also decides for all. Two nodes dead at once (``teardown_failures``) tear the tree down, and each node is a
child of the root; when fewer are missing for ``return_ns``, it is built up. A worker below no node any more
is removed after ``removal_ns``: its clock is ``REMOVED``. Whoever has a part of a sum with its later updates
makes that anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import numpy as np

from inaproto.core.models.absence import Absence
from inaproto.core.models.children import OWN_PLACE, Bond, Children
from inaproto.core.models.events import (
    Connected,
    Disconnected,
    Heard,
    Mark,
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
    RootView,
    Stirred,
    Tell,
    Woke,
)
from inaproto.core.models.failures import Failures
from inaproto.core.models.pending import Pending
from inaproto.core.models.rules import Below, Fault, fault_from_below
from inaproto.core.models.tree.epochs import Orders, first_clock
from inaproto.core.models.updates import Update, added, goes_on, total
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import Instant, S
from inaproto.wire.messages.clocks import FOREVER, NO_CLOCKS, REMOVED, Clocks, WorkerId
from inaproto.wire.messages.models import (
    FIRST_EPOCH,
    Attach,
    Attached,
    Detach,
    Epoch,
    Flush,
    Heartbeat,
    HeartbeatAnswer,
    Mode,
    NodeId,
    PullRequest,
    Push,
    Reshaped,
    UpWord,
    Weights,
    Word,
)


class ShardRoot:
    """Pure core; see the module. ``snapshot`` None: a new model, all weights 0."""

    def __init__(
        self, config: RootConfig, snapshot: RootSnapshot | None, records: Sequence[RootRecord], now: Instant
    ) -> None:
        self._config = config
        self._workers, self._nodes = frozenset(config.workers), frozenset(config.nodes)
        if snapshot is None:
            shard = config.shard
            weights = np.zeros(shard.elements, shard.numpy_dtype)
            snapshot = RootSnapshot(weights, Clocks.alike(config.workers))
        self._check(snapshot)
        self._weights, self._clocks = snapshot.weights.copy(), snapshot.clocks
        self._orders = Orders(config, snapshot.epoch)
        self._weights.setflags(write=False)
        for record in records:
            self._apply(record)
        if not self._orders.knows(self._orders.epoch):  # the configuration is another one now, for all nodes
            self._orders.epoch = FIRST_EPOCH
        self._merged = self._clocks
        self._pending = Pending(by_windows=config.shard.staleness == 0)
        self._persisting: RootRecord | None = None
        self._token = 0
        self._chosen: Reshape | None = None
        """Choice whose epoch is to be the next record."""
        self._children = Children(config, self._orders.stand.children, now)
        self._failures = Failures(config, now)
        self._absence = Absence(config.patience, now)
        self._counters: dict[str, int] = {}

    def _check(self, snapshot: RootSnapshot) -> None:
        shard, weights = self._config.shard, snapshot.weights
        if weights.shape != (shard.elements,) or weights.dtype != shard.numpy_dtype:
            got = f"{weights.shape} of {weights.dtype}"
            raise LocalMisuse(f"a shard of {shard.elements} {shard.dtype} was given weights {got}")
        if snapshot.clocks.workers != tuple(sorted(self._config.workers)):
            raise LocalMisuse(f"a snapshot of other workers: {snapshot.clocks.workers}")

    @property
    def deadline(self) -> Instant | None:
        times = (self._children.deadline, self._failures.deadline, self._absence.deadline)
        return min((time for time in times if time is not None), default=None)

    def step(self, event: RootEvent, now: Instant) -> list[RootAction]:
        actions = [*self._notice_absence(now), *self._take(event, now)]
        actions += self._settle(now)
        for action in actions:
            if isinstance(action, Noted):
                self._counters[action.mark.value] = self._counters.get(action.mark.value, 0) + 1
        return actions

    def _notice_absence(self, now: Instant) -> list[RootAction]:
        away_ns = self._absence.until(now)
        if not away_ns:
            return []
        self._children.was_away(away_ns)
        self._failures.was_away(away_ns)
        return [Noted(Mark.AWAY, why=f"for {away_ns / S:.3g} s")]

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody waits for weights."""
        return any(child.waiting for child in self._children)

    def snapshot(self) -> RootSnapshot:
        """All that is durable."""
        return RootSnapshot(self._weights, self._clocks, self._orders.epoch)

    def view(self) -> RootView:
        return RootView(
            node=self._config.node,
            clocks=self._clocks,
            merged=self._merged,
            model_clock=self._clocks.minimum(),
            is_direct=self._failures.is_direct,
            children=self._children.view(),
            dead=self._failures.dead(self._children),
            lost=self._failures.absent,
            epoch=self._orders.epoch,
            may_reshape=not self._why_not,
            load=self._children.load,
            counters=dict(self._counters),
        )

    def absent_since(self, worker: WorkerId) -> Instant | None:
        """Since when it is one of ``view().lost``."""
        return self._failures.absent_since(worker)

    def _take(self, event: RootEvent, now: Instant) -> list[RootAction]:
        match event:
            case Heard():
                return self._heard(event.peer, event.word, now)
            case Stirred():
                return [*self._children.stirs(event.peer, now, is_attached=True)]
            case Connected():
                self._children.connected(event.peer, now)
            case Disconnected():
                self._children.disconnected(event.peer, now)
            case Persisted():
                return self._persisted(event.token)
            case Reshape():
                return self._choose(event)
            case Remove():
                if event.worker not in self._merged:
                    raise LocalMisuse(f"worker {event.worker} is not of this model, and cannot be removed")
                return self._remove(event.worker)
            case Woke():
                pass
            case _:
                assert_never(event)
        return []

    # --- what children say

    def _fault(self, peer: NodeId, word: UpWord) -> Fault | None:
        if peer not in self._nodes:
            return Fault("node or worker of another tree", f"node {peer}")
        known = Below(self._config.shard, self._clocks, None, self._workers, self._nodes)
        return fault_from_below(word, self._children.get(peer), known)

    def _heard(self, peer: NodeId, word: Word, now: Instant) -> list[RootAction]:
        if not isinstance(word, UpWord):
            return [Fault("speaks to the root as if it were below", type(word).__name__).of(peer)]
        fault = self._fault(peer, word)
        if fault is not None:
            return [fault.of(peer)]
        self._children.heard(peer, now)
        match word:
            case Attach():
                return self._child_attaches(peer, word, now)
            case Push():
                return self._child_pushes(peer, word)
            case PullRequest():
                asked = self._children.asks(peer, word)
                return [asked] if isinstance(asked, Blame) else []
            case Heartbeat():
                self._children.beats(peer, word)
                return [Tell(peer, HeartbeatAnswer(is_attached=True))]
            case Detach():
                self._children.leave(peer, word.session)
            case Flush():
                pass  # the root withholds nothing
            case _:
                assert_never(word)
        return []

    def _child_attaches(self, peer: NodeId, said: Attach, now: Instant) -> list[RootAction]:
        child = self._children.attach(peer, said, now)
        if isinstance(child, Blame):
            return [child]
        is_adopted = not child.is_of_tree and not self._failures.is_direct
        epoch = self._orders.epoch
        told: list[RootAction] = [Tell(peer, Reshaped(epoch))] if epoch.number else []
        return [*told, Noted(Mark.ADOPTED, peer)] if is_adopted else told

    def _child_pushes(self, peer: NodeId, said: Push) -> list[RootAction]:
        child = self._children.get(peer)
        if child is None or child.bond is not Bond.ATTACHED or child.session != said.session:
            return []
        if self._merge(child.place, Update.of(said)):
            return []
        return [Noted(Mark.REFUSED_PUSH, peer), self._children.detach(child, "a part of it came another way")]

    def _merge(self, place: int, update: Update) -> bool:
        if not goes_on(self._merged, update):
            return False
        self._merged = self._merged.with_(update.after)
        self._pending.add(place, update)
        return True

    def _remove(self, worker: WorkerId) -> list[RootAction]:
        """Remove the worker, as of the window after its last one that has come."""
        clock = self._merged[worker]
        if clock >= FOREVER:
            return []
        end = Update(clock + 1, Clocks({worker: clock}), Clocks({worker: REMOVED}), None)
        self._merge(OWN_PLACE, end)
        return [Noted(Mark.WORKER_REMOVED, why=f"worker {worker} after its clock {clock}")]

    # --- which tree

    @property
    def _why_not(self) -> str:
        """Another tree cannot be chosen now; empty: it can."""
        clock = self._clocks.minimum()
        if self._chosen is not None or clock < self._orders.epoch.first - 1:
            return "the last change is not over"
        if self._failures.is_direct or self._failures.dead(self._children):
            return "hosts are missing"
        return "all workers have left" if clock >= FOREVER else ""

    def _choose(self, said: Reshape) -> list[RootAction]:
        if not 0 <= said.tree < len(self._config.stands):
            raise LocalMisuse(f"tree {said.tree} is none of the {len(self._config.stands)} to choose from")
        why_not = self._why_not or ("it is used" if said.tree == self._orders.epoch.tree else "")
        if why_not:
            return [Noted(Mark.NOT_RESHAPED, why=f"tree {said.tree}: {why_not}")]
        self._chosen = said
        return []

    def _next_epoch(self, chosen: Reshape) -> Epoch:
        """The next epoch, by what is durable; nothing else changes that before the epoch is."""
        old = self._orders.epoch
        furthest = max(clock for _, clock in self._clocks.items() if clock < FOREVER)
        first = first_clock(furthest, self._config.shard.ahead_max)
        return Epoch(old.number + 1, old.tree, chosen.tree, first)

    def _reshaped(self, chosen: Reshape) -> list[RootAction]:
        epoch = self._orders.epoch
        told = [Tell(c.node, Reshaped(epoch)) for c in self._children if c.bond is not Bond.NONE]
        self._children.reshape(self._orders.stand.children)
        why = f"tree {epoch.tree} in place of {epoch.before} at clock {epoch.first}: {chosen.why}"
        return [Noted(Mark.RESHAPED, why=why), *told]

    # --- durable before visible

    def _persist(self) -> list[RootAction]:
        """The next step, if none is under way."""
        if self._persisting is not None:
            return []
        if self._chosen is not None and self._clocks.minimum() < FOREVER:
            return self._write(RootRecord(NO_CLOCKS, None, self._next_epoch(self._chosen)))
        clock = self._merged.minimum()
        is_synchronous = self._config.shard.staleness == 0
        update = self._window(clock) if is_synchronous else self._pending.all(clock)
        return [] if update is None else self._write(RootRecord(update.after, update.delta))

    def _write(self, record: RootRecord) -> list[RootAction]:
        self._token += 1
        self._persisting = record
        return [Persist(record, self._token)]

    def _window(self, until: int) -> Update | None:
        parts = self._pending.first_window(until)
        shape = self._orders.shape(parts[0].clock) if parts else None
        if shape is not None:
            parts = shape.added(parts, lambda worker: self._clocks[worker] >= FOREVER)
        return total(parts, parts[0].clock) if parts else None

    def _persisted(self, token: int) -> list[RootAction]:
        if self._persisting is None or token != self._token:
            raise LocalMisuse(f"token {token} is not the one that is waited for")
        self._apply(self._persisting)
        has_epoch, self._persisting = self._persisting.epoch is not None, None
        chosen = self._chosen
        if not has_epoch or chosen is None:
            return []
        self._chosen = None
        return self._reshaped(chosen)

    def _apply(self, record: RootRecord) -> None:
        weights = added(self._weights, record.delta)
        assert weights is not None, "there are weights"
        self._weights, self._clocks = weights, self._clocks.with_(record.clocks)
        if record.epoch is not None:
            self._orders.epoch = record.epoch

    # --- what is due

    def _settle(self, now: Instant) -> list[RootAction]:
        children, failures = self._children, self._failures
        actions: list[RootAction] = [*children.age(now)]
        for worker in failures.removed(children, self._clocks, now):
            actions += self._remove(worker)
        actions += self._persist()
        actions += self._attach()
        mode = failures.new_mode(children, now)  # after the last one that was missing is attached
        if mode is not None:
            actions.append(Noted(Mark.TORN_DOWN if mode else Mark.BUILT_UP, why=f"dead: {failures.why}"))
            actions += [Tell(child.node, Mode(mode)) for child in children if child.bond is not Bond.NONE]
        actions += children.multicast(Weights(self._clocks, self._clocks, self._weights))
        return [*actions, *children.tell_merged(self._clocks)]

    def _attach(self) -> list[RootAction]:
        """At s > 0 only once what has come of its workers is durable: the child's log may end before that,
        and it could not use weights that lack it."""
        actions: list[RootAction] = []
        failures = self._failures
        for child in self._children.bound(Bond.ASKED):
            base, durable = (clocks.restricted(child.workers) for clocks in (self._merged, self._clocks))
            if self._config.shard.staleness > 0 and base != durable:
                continue
            child.bond, child.told = Bond.ATTACHED, durable
            failures.met(child.workers)
            actions.append(Tell(child.node, Attached(child.session, base, durable, failures.is_direct)))
        return actions
