"""A node with all that is below it: its worker, its children, their sums, and the weights at hand.

At s > 0 the cache has, of the workers below, exactly what the ledger has merged (invariant; docs/protocol.md
18.2): both take an update together. At s = 0 it has what the root had at one clock, and nothing is added to
it.
"""

from __future__ import annotations

from inaproto.core.models.cache import Cache
from inaproto.core.models.children import OWN_PLACE, Bond, Children
from inaproto.core.models.events import NodeAction, NodeConfig, Tell
from inaproto.core.models.ledger import Ledger
from inaproto.core.models.local_worker import LocalWorker
from inaproto.core.models.tree.epochs import Orders, Stand
from inaproto.core.models.updates import Update
from inaproto.units import Instant
from inaproto.wire.messages.clocks import FOREVER, NO_CLOCKS, Clocks, WorkerId
from inaproto.wire.messages.models import Weights


class Subtree:
    def __init__(self, config: NodeConfig, orders: Orders, now: Instant) -> None:
        self.children = Children(config, config.children, now)
        self.ledger = Ledger(config.shard.staleness, orders)
        self.worker = None if config.worker is None else LocalWorker(config.worker, config.shard)
        self.cache: Cache | None = None
        self.root: Clocks = NO_CLOCKS
        """What the root is known to have, durably, of the workers below."""
        self._is_synchronous = config.shard.staleness == 0
        shape = config.shape if self._is_synchronous else None
        self._unmet = set[WorkerId]() if shape is None else set(shape.workers)
        """Workers of the tree below of whom nobody has spoken yet: a child may come before its own do."""
        self._start_ends = Instant(now + config.patience.start_ns)

    @property
    def below(self) -> set[WorkerId]:
        """The workers whose clocks are waited for."""
        own = [] if self.worker is None else [self.worker.worker]
        return {*own, *self.children.awaited_workers}

    @property
    def _spoken_for(self) -> set[WorkerId]:
        """Workers below, with those that children have lost and may have updates of."""
        return {*self.below, *self.children.workers}

    @property
    def claimed(self) -> tuple[WorkerId, ...]:
        """Those below, and others whose updates are still under way here."""
        bound = self.children.bound(Bond.ASKED) + self.children.bound(Bond.ATTACHED)
        own = [] if self.worker is None else [self.worker.worker]
        return tuple(sorted({*self.ledger.merged, *own, *(w for child in bound for w in child.workers)}))

    @property
    def floor(self) -> Clocks:
        """What the root is known to have of them, here or at a child that asks."""
        floor = self.root.restricted(self.claimed)
        for child in self.children.bound(Bond.ASKED):
            floor = floor.joined(child.floor)
        return floor

    def epoch(self, own: int) -> int:
        """The number of the newest that is known here, ``own``, or at a child that asks."""
        return max([own, *(child.epoch for child in self.children.bound(Bond.ASKED))])

    def heard_of_root(self, root: Clocks) -> None:
        self.root = self.root.joined(root.restricted(self.claimed))

    def take(self, place: int, update: Update) -> bool:
        """Merges it, whole or not at all; at s > 0 also into the weights at hand (MLNet 3.2)."""
        if not self.ledger.take(place, update):
            return False
        if self.cache is not None and not self._is_synchronous:
            self.cache = self.cache.plus([update])
        return True

    def take_own(self, update: Update) -> None:
        """Take an update of the own worker. Updates of an earlier life of its host may turn up that were
        under way when it died, and count in place of those that it makes again; what it says when it leaves
        holds whatever they were."""
        [(worker, clock)] = update.after.items()
        merged = self.ledger.merged[worker]
        if clock >= FOREVER and update.before[worker] < merged < FOREVER:
            update = Update(merged + 1, Clocks({worker: merged}), update.after, None)
        self.take(OWN_PLACE, update)

    def reshape(self, stand: Stand) -> None:
        """The place in another tree: nobody is waited for who has never been here."""
        self.children.reshape(stand.children)
        self._unmet.clear()

    def is_met(self, now: Instant) -> bool:
        """Whether windows may go up: at s = 0 the first would go in parts, were it not to wait for hosts that
        start later. Not for one that is dead, nor for longer than ``start_ns``."""
        if self._unmet:
            self._unmet.difference_update(self._spoken_for)
            if self.children.dead or now >= self._start_ends:
                self._unmet.clear()
        return all(self._is_gone(worker) for worker in sorted(self._unmet))

    def was_away(self, for_ns: int) -> None:
        """This process: what is to last longer has not, meanwhile."""
        self._start_ends = Instant(self._start_ends + for_ns)
        self.children.was_away(for_ns)

    @property
    def deadline(self) -> Instant | None:
        times = [self.children.deadline, self._start_ends if self._unmet else None]
        return min((time for time in times if time is not None), default=None)

    def take_kept(self) -> None:
        """What a reset dropped of the own worker's updates."""
        for update in [] if self.worker is None else self.worker.kept:
            self.take_own(update)

    def reset(self, base: Clocks) -> list[Tell]:
        """Drops all sums; the children are told to attach anew."""
        self.cache = None
        self.ledger.reset(base.restricted(sorted(self._spoken_for)))
        attached = self.children.bound(Bond.ATTACHED)
        return [self.children.detach(child, "its parent's sums are made anew") for child in attached]

    def prune(self) -> None:
        """What the root has need not be kept."""
        merged, claimed = self.ledger.merged, self._spoken_for
        self.ledger.prune(self.root, [worker for worker in merged if worker not in claimed])
        self.root = self.root.restricted(self.claimed)
        if self.ledger.merged is not merged:
            self.check_cache()

    def check_cache(self) -> None:
        """Weights that differ from the ledger are of no use: what they lack may never come here."""
        if self.cache is None or self._is_synchronous:
            return
        merged = self.ledger.merged.restricted(sorted(self.below))
        if self.cache.included.restricted(merged) != merged:
            self.cache = None

    def renew(self, said: Weights) -> bool:
        """Takes weights from above, with what is not in them. False: they lack what was forgotten here."""
        if self.cache is not None and self.cache.root.minimum() > said.root.minimum():
            return True
        self.cache = Cache.of(said)
        if not self._is_synchronous:
            self.cache = self.cache.plus(self.ledger.unmerged)
            self.check_cache()
        return self.cache is not None

    def answer(self) -> list[NodeAction]:
        """All that wait and for whom the weights are legal (MLNet 3.2, multicast)."""
        if self.cache is None:
            return []
        own = [] if self.worker is None else self.worker.answers(self.cache)
        return [*own, *self.children.multicast(self.cache.word())]

    @property
    def needs(self) -> list[int]:
        """The model clocks that are waited for, ascending."""
        own = [] if self.worker is None else [pull.needed for pull in self.worker.pulls]
        return sorted({*own, *self.children.needs})

    def forward(self, *, is_flush: bool, is_held: bool, is_last: bool = False) -> list[Update]:
        """What goes up now. A need of somebody below that the parent does not know to be met goes at once.

        ``is_last``: this node ends, and at s = 0 waits for nobody's part of a window any more.
        """
        below = sorted(self.below)
        sub_clock, up_clock = self.ledger.merged.minimum(below), self.ledger.forwarded.minimum(below)
        is_needed = any(up_clock < needed <= sub_clock for needed in self.needs)
        if is_last and self._is_synchronous:
            below, is_held = [], False
        is_flush |= is_needed
        return self.ledger.forward(below, is_flush=is_flush, is_held=is_held, is_gone=self._is_gone)

    def _is_gone(self, worker: WorkerId) -> bool:
        known = (self.root, NO_CLOCKS if self.cache is None else self.cache.root)
        return any((clocks.get(worker) or 0) >= FOREVER for clocks in known)
