"""A host's process in the tree of one model and shard: push up, pull down (MLNet section 3.2).

It may have a worker, and it may have children; it has a parent. What it takes from below it adds up, once
(see :mod:`~inaproto.wire.messages.models`), forwards when the staleness of the tree says so, and answers
pulls from its cache where that is legal. Every event changes the state; :meth:`ShardNode._settle` then does
whatever is due in that state, always in the same order, so that nothing depends on how it came about.

Faults: a parent that has a part of a sum of ours makes us drop all sums (``Mark.RESET``): each child attaches
anew and sends again what lies outside our clocks, the own worker's updates come from what it kept. Departure
from the paper: nodes do not ask former children for their model; these come by themselves, with their clocks
and logs, and weights come from the parent.
"""

from __future__ import annotations

from typing import assert_never

from inaproto.core.models.absence import Absence
from inaproto.core.models.asking import Asking
from inaproto.core.models.children import Bond
from inaproto.core.models.events import (
    Abandoned,
    Clocked,
    Connected,
    Disconnected,
    Ending,
    Heard,
    Left,
    Loaded,
    Mark,
    NodeAction,
    NodeConfig,
    NodeEvent,
    NodeView,
    Noted,
    Pulled,
    Pushed,
    Resumed,
    Stirred,
    Tell,
    Urged,
    Woke,
)
from inaproto.core.models.local_worker import LocalWorker
from inaproto.core.models.parent_link import ParentLink
from inaproto.core.models.requests import next_requests, requests_max
from inaproto.core.models.rules import Above, Below, Fault, fault_from_above, fault_from_below
from inaproto.core.models.subtree import Subtree
from inaproto.core.models.tree.epochs import Orders
from inaproto.core.models.updates import Update
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import Instant, S
from inaproto.wire.messages.clocks import NO_CLOCKS
from inaproto.wire.messages.models import (
    Attach,
    Attached,
    Detach,
    Detached,
    Epoch,
    Flush,
    Heartbeat,
    HeartbeatAnswer,
    Merged,
    Mode,
    NodeId,
    PullRequest,
    Push,
    Reshaped,
    UpWord,
    Weights,
    Word,
)


class ShardNode:
    """Pure core; see the module. ``step`` raises ``LocalMisuse`` for the own worker alone, unchanged."""

    def __init__(self, config: NodeConfig, now: Instant) -> None:
        self._config = config
        self._orders = Orders(config)
        self._link = ParentLink(config, now)
        self._sub = Subtree(config, self._orders, now)
        self._absence = Absence(config.patience, now)
        self._asking = Asking()
        self._workers = None if config.workers is None else frozenset(config.workers)
        self._nodes = None if config.nodes is None else frozenset(config.nodes)
        self._asked: list[int] = []
        """Model clocks that the parent was asked for in this session."""
        self._requests = 0
        """Said in this session, less the weights that came."""
        self._is_flush_due = False
        self._is_flush_passed_on = False
        """The parent shall flush too."""
        self._is_ending = False
        self._last_window = 0
        self._redo_from: Instant | None = None
        """When a worker that waits to resume is told to make updates again that are under way; once only."""
        self._may_redo = False
        self._load = 0
        self._counters: dict[str, int] = {}

    @property
    def deadline(self) -> Instant | None:
        redo = None if self._may_redo else self._redo_from
        times = [time for time in (self._link.deadline, self._sub.deadline, redo) if time is not None]
        return min(times, default=None)

    def step(self, event: NodeEvent, now: Instant) -> list[NodeAction]:
        actions = [*self._notice_absence(now), *self._take(event, now)]
        actions += self._settle(now)
        for action in actions:
            if isinstance(action, Noted):
                self._counters[action.mark.value] = self._counters.get(action.mark.value, 0) + 1
        return actions

    def _notice_absence(self, now: Instant) -> list[NodeAction]:
        away_ns = self._absence.until(now)
        if not away_ns:
            return []
        self._link.was_away(away_ns)
        self._sub.was_away(away_ns)
        if self._redo_from is not None:
            self._redo_from = Instant(self._redo_from + away_ns)
        return [Noted(Mark.AWAY, why=f"for {away_ns / S:.3g} s")]

    def _take(self, event: NodeEvent, now: Instant) -> list[NodeAction]:
        match event:
            case Heard():
                fault = self._fault(event.peer, event.word)
                if fault is not None:
                    return [fault.of(event.peer)]
                self._link.heard(event.peer, event.word, now)
                self._sub.children.heard(event.peer, now)
                return self._heard(event.peer, event.word, now)
            case Stirred():
                self._link.heard(event.peer, event, now)
                return [*self._sub.children.stirs(event.peer, now, is_attached=self._link.is_attached)]
            case Pushed():
                self._own(event).push(event.gradients)
            case Clocked():
                return self._clocked(event)
            case Pulled():
                return self._pulled(event)
            case Left():
                return self._left(event)
            case Abandoned():
                worker = self._own(event)
                worker.abandons()
                if worker.is_to_be_flushed:
                    self._flush()
            case Urged():
                self._flush()
            case Ending():
                self._is_ending = True
                self._flush()
            case Connected():
                self._link.connected(event.peer, now)
                self._sub.children.connected(event.peer, now)
            case Disconnected():
                self._link.disconnected(event.peer, now)
                self._sub.children.disconnected(event.peer, now)
            case Loaded():
                self._load = event.permille
            case Woke():
                pass
            case _:
                assert_never(event)
        return []

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody here or below waits for weights from above."""
        return bool(self._asked)

    def view(self) -> NodeView:
        worker, cache = self._sub.worker, self._sub.cache
        return NodeView(
            node=self._config.node,
            parent=self._link.parent,
            is_attached=self._link.is_attached,
            is_direct=self._link.is_direct,
            children=self._sub.children.view(),
            worker=None if worker is None else worker.worker,
            worker_clock=None if worker is None else worker.clock,
            merged=self._sub.ledger.merged,
            forwarded=self._sub.ledger.forwarded,
            root=self._sub.root,
            model_clock=None if cache is None else cache.root.minimum(),
            included=NO_CLOCKS if cache is None else cache.included,
            logged=len(self._sub.ledger.log),
            kept=0 if worker is None else len(worker.kept),
            waiting=() if worker is None else tuple(pull.needed for pull in worker.pulls),
            asked=tuple(self._asked),
            dead=self._dead(),
            epoch=self._orders.epoch,
            counters=dict(self._counters),
        )

    # --- the own worker

    def _own(self, event: object) -> LocalWorker:
        if self._sub.worker is None:
            raise LocalMisuse(f"node {self._config.node} has no worker: {type(event).__name__}")
        return self._sub.worker

    def _clocked(self, said: Clocked) -> list[NodeAction]:
        worker = self._own(said)
        worker.clocks(said.request)
        if worker.is_removed:
            return worker.refuse()
        actions = self._finish_update()
        return [Noted(Mark.HELD)] if worker.is_holding else actions

    def _pulled(self, said: Pulled) -> list[NodeAction]:
        worker = self._own(said)
        pull = worker.pulls_for(said)
        if worker.is_removed:
            return worker.refuse()
        return self._wanted(pull.needed)

    def _left(self, said: Left) -> list[NodeAction]:
        worker = self._own(said)
        update, actions = worker.leaves(said.request)
        if update is not None:
            self._sub.take_own(update)
        return actions

    def _finish_update(self) -> list[NodeAction]:
        """Finish the update of a clock, unless it is held back."""
        worker = self._sub.worker
        finished = None if worker is None else worker.finish(self._sub.root.get(worker.worker) or 0)
        if finished is None:
            return []
        self._sub.take_own(finished[0])
        if worker is not None and worker.is_to_be_flushed:
            self._flush()
        return [finished[1]]

    def _flush(self) -> None:
        """What is withheld goes up, all the way."""
        self._is_flush_due = self._is_flush_passed_on = not self._is_synchronous

    def _wanted(self, needed: int) -> list[NodeAction]:
        """Somebody waits for weights of this model clock. docs/protocol.md 18.6."""
        if self._sub.cache is not None and self._sub.cache.is_legal(needed):
            return [Noted(Mark.FROM_CACHE)]
        self._is_flush_due = not self._is_synchronous
        return [Noted(Mark.COALESCED)] if needed in self._asked else []

    @property
    def _is_synchronous(self) -> bool:
        return self._config.shard.staleness == 0

    # --- what peers say

    def _fault(self, peer: NodeId, word: Word) -> Fault | None:
        sub, link = self._sub, self._link
        if isinstance(word, UpWord):
            stands = self._config.stands
            if isinstance(word, Attach) and all(peer in stand.ancestors for stand in stands):
                return Fault("would be below its own child", f"node {peer}")
            own = self._config.worker if len(stands) == 1 else None  # else it may be below its own child's
            known = Below(self._config.shard, sub.root, own, self._workers, self._nodes)
            return fault_from_below(word, sub.children.get(peer), known)
        if peer != link.parent:
            return None
        return fault_from_above(
            word,
            Above(
                shard=self._config.shard,
                session=link.session,
                is_attached=link.is_attached,
                is_asking=link.is_asking,
                asking=self._asking.workers,
                floor=self._asking.known,
                workers=frozenset(sub.claimed) if self._workers is None else self._workers,
                are_all=self._workers is not None,
                requests=self._requests,
                own=self._config.worker,
                own_clock=None if sub.worker is None else sub.worker.clock,
                trees=len(self._config.stands),
            ),
        )

    def _heard(self, peer: NodeId, word: Word, now: Instant) -> list[NodeAction]:
        match word:
            case Attached() | Detached() | Weights() | Merged() | Mode() | Reshaped() | HeartbeatAnswer():
                return self._heard_from_above(word, now) if peer == self._link.parent else []
            case Attach():
                return self._child_attaches(peer, word, now)
            case Push():
                return self._child_pushes(peer, word)
            case PullRequest():
                asked = self._sub.children.asks(peer, word)
                if isinstance(asked, Blame):
                    return [asked]
                return self._wanted(word.needed) if asked else []
            case Flush():
                self._flush()
            case Heartbeat():
                self._sub.children.beats(peer, word)
                return [Tell(peer, HeartbeatAnswer(self._link.is_attached))]
            case Detach():
                self._sub.children.leave(peer, word.session)
            case _:
                assert_never(word)
        return []

    def _child_attaches(self, peer: NodeId, said: Attach, now: Instant) -> list[NodeAction]:
        known, epoch = self._sub.below, self._orders.epoch
        child = self._sub.children.attach(peer, said, now)
        if isinstance(child, Blame):
            return [child]
        self._asking.child_came(said, known, self._sub, epoch.number)
        told: list[NodeAction] = [Tell(peer, Reshaped(epoch))] if epoch.number else []
        return told if child.is_of_tree else [*told, Noted(Mark.ADOPTED, peer)]

    def _child_pushes(self, peer: NodeId, said: Push) -> list[NodeAction]:
        child = self._sub.children.get(peer)
        if child is None or child.bond is not Bond.ATTACHED or child.session != said.session:
            return []
        if self._sub.take(child.place, Update.of(said)):
            return []
        return [
            Noted(Mark.REFUSED_PUSH, peer),
            self._sub.children.detach(child, "a part of it came another way"),
        ]

    def _heard_from_above(
        self, word: Attached | Detached | Weights | Merged | Mode | Reshaped | HeartbeatAnswer, now: Instant
    ) -> list[NodeAction]:
        link = self._link
        match word:
            case Attached():
                return self._attached(word, now) if word.session == link.session and link.is_asking else []
            case Detached():
                if word.session == link.session:
                    link.lose()
            case Weights():
                return self._weights(word) if link.is_attached else []
            case Merged():
                self._sub.heard_of_root(word.root)
            case Mode():
                return self._mode(word.direct, now)
            case Reshaped():
                return self._reshaped(word.epoch, now)
            case HeartbeatAnswer():
                pass
            case _:
                assert_never(word)
        return []

    # --- the parent

    def _attached(self, said: Attached, now: Instant) -> list[NodeAction]:
        """docs/protocol.md 18.5. What the parent lacks goes again; a sum that it has in part is made anew."""
        sub, link = self._sub, self._link
        link.accepted()
        self._asked.clear()
        self._requests = 0
        sub.heard_of_root(said.root)
        actions: list[NodeAction] = [Noted(Mark.ATTACHED, link.parent)]
        again = sub.ledger.rebase(said.base)
        if again is None:
            actions += [Noted(Mark.RESET, link.parent), *sub.reset(said.base)]
        elif again:
            actions.append(Noted(Mark.RESENT, link.parent))
            actions += [Tell(link.parent, update.push(link.session)) for update in again]
        sub.take_kept()
        self._asking.is_answered(sub, self._orders.epoch.number)
        sub.check_cache()
        if sub.worker is not None and (sub.worker.clock is None or sub.worker.is_to_be_flushed):
            self._flush()
        if sub.cache is None and any(clock > 0 for _, clock in said.root.items()):
            self._asked = [0]  # MLNet 3.2: a node that is back asks for the model
            self._requests += 1
            actions.append(Tell(link.parent, PullRequest(0)))
        return [*actions, *self._mode(said.direct, now)]

    def _weights(self, said: Weights) -> list[NodeAction]:
        self._requests -= 1
        self._sub.heard_of_root(said.root)
        self._asked = [needed for needed in self._asked if needed > said.root.minimum()]
        if not self._sub.renew(said):
            self._link.lose()
        return []

    def _mode(self, is_direct: bool, now: Instant) -> list[NodeAction]:
        if is_direct == self._link.is_direct:
            return []
        told = [Tell(c.node, Mode(is_direct)) for c in self._sub.children if c.bond is not Bond.NONE]
        return [*told, *self._link.set_mode(is_direct, now)]

    def _reshaped(self, epoch: Epoch, now: Instant) -> list[NodeAction]:
        """The children hear of it before they hear anything that came later (see ``epochs``)."""
        orders, sub = self._orders, self._sub
        if epoch.number <= orders.epoch.number:
            return []
        orders.epoch = epoch
        told = [Tell(c.node, Reshaped(epoch)) for c in sub.children if c.bond is not Bond.NONE]
        sub.reshape(orders.stand)
        noted = Noted(Mark.RESHAPED, why=f"tree {epoch.tree} in place of {epoch.before}")
        return [noted, *told, *self._link.reshape(orders.stand.ancestors, now)]

    def _dead(self) -> tuple[NodeId, ...]:
        """As it tells its parent; who is dead to this node's own parent that one knows best."""
        dead = {*self._link.skipped[:-1], *self._sub.children.dead}
        return () if self._link.is_direct else tuple(sorted(dead))

    # --- what is due

    def _settle(self, now: Instant) -> list[NodeAction]:
        sub, link = self._sub, self._link
        actions: list[NodeAction] = [*sub.children.age(now)]
        lost, load = self._asking.lost(sub.below), max(self._load, sub.children.load)
        actions += link.tick(now, self._dead(), lost, load)
        sub.prune()
        actions += self._worker_goes_on(now)
        actions += self._attach()
        actions += sub.answer()
        is_met = sub.is_met(now)
        if link.is_attached:
            actions += self._forward(is_held=not is_met or sub.children.are_expected)
        return [*actions, *sub.children.tell_merged(sub.root)]

    def _worker_goes_on(self, now: Instant) -> list[NodeAction]:
        worker = self._sub.worker
        if worker is None:
            return []
        self._is_redo_due(now)
        actions = worker.prune(self._sub.root)
        base = self._sub.ledger.merged.get(worker.worker)
        if worker.clock is None and self._link.is_attached and base is not None:
            actions += self._resume(worker, base, now)
        return [*actions, *self._finish_update()]

    def _is_redo_due(self, now: Instant) -> bool:
        self._may_redo |= self._redo_from is not None and now >= self._redo_from
        return self._may_redo

    def _resume(self, worker: LocalWorker, base: int, now: Instant) -> list[NodeAction]:
        """Where its parent is, as soon as the root is there too: else what is between could still be lost.

        The root may wait for the others, and these, in another shard, for this very worker: then it goes on
        where the root is, and what it makes again is taken where what is under way is not.
        """
        known = self._sub.root.get(worker.worker) or 0
        if known < base:
            if self._redo_from is None:
                self._redo_from = Instant(now + self._config.patience.dead_ns)
            if not self._is_redo_due(now) or base - known > self._config.shard.ahead_max:
                return []
        self._redo_from, self._may_redo = None, False
        worker.resume(min(known, base))
        return [Noted(Mark.WORKER_RESUMED), Resumed(worker.worker, min(known, base))]

    def _attach(self) -> list[NodeAction]:
        """Attach to the parent, and children to this node, once it is known how far the parent is with
        theirs."""
        link = self._link
        is_due = self._asking.is_due(self._sub)
        if link.may_ask or (link.is_attached and is_due):
            return [Tell(link.parent, self._asking.asks(link.ask(), self._sub, self._orders.epoch.number))]
        if not link.is_attached:
            return []
        actions: list[NodeAction] = []
        for child in self._sub.children.bound(Bond.ASKED):
            base = self._sub.ledger.merged.restricted(child.workers)
            child.bond, child.told = Bond.ATTACHED, self._sub.root.restricted(child.workers)
            actions.append(Tell(child.node, Attached(child.session, base, child.told, link.is_direct)))
        return actions

    def _forward(self, *, is_held: bool) -> list[NodeAction]:
        """Push up, then ask for what is waited for: an edge is FIFO, so the weights come after."""
        parent, session = self._link.parent, self._link.session
        is_held &= not self._link.is_direct
        is_flush, is_last = self._is_flush_due or self._is_ending, self._is_ending
        sent = self._sub.forward(is_flush=is_flush, is_held=is_held, is_last=is_last)
        actions: list[NodeAction] = []
        for update in sent:
            actions.append(Tell(parent, update.push(session)))
            if self._is_synchronous and update.clock <= self._last_window:
                actions.append(Noted(Mark.LATE_PART, parent))
            self._last_window = max(self._last_window, update.clock)
        if sent and self._is_flush_due:
            actions.append(Noted(Mark.FLUSHED, parent))
        if self._is_flush_passed_on:
            actions.append(Tell(parent, Flush()))
        self._is_flush_due = self._is_flush_passed_on = False
        return [*actions, *self._request()]

    def _request(self) -> list[Tell]:
        """What is waited for."""
        link = self._link
        at_most = requests_max(self._config.shard, self._asking.workers)
        due = next_requests(self._sub.needs, self._asked, at_most)
        if due is None:
            return [Tell(link.parent, self._asking.asks(link.ask(), self._sub, self._orders.epoch.number))]
        self._asked = sorted([*self._asked, *due])
        self._requests += len(due)
        return [Tell(link.parent, PullRequest(needed)) for needed in due]
