"""What a node has taken from below, what it has forwarded of it, and what it may have to send again.

docs/protocol.md 18.2. Invariants: ``merged`` and ``forwarded`` have the same workers, those whose updates
come through this node; ``merged`` is ``forwarded`` and the updates pending. The log has all pushes that the
root may lack: a parent that took them can die before the root has them.
"""

from __future__ import annotations

from collections.abc import Iterable

from inaproto.core.models.pending import Pending
from inaproto.core.models.staleness import forwards
from inaproto.core.models.tree.epochs import Orders
from inaproto.core.models.tree.shape import IsGone
from inaproto.core.models.updates import Update, goes_on, rest_after, total
from inaproto.wire.messages.clocks import FOREVER, NO_CLOCKS, Clocks, WorkerId


class Ledger:
    """``staleness``: s of the tree; ``orders``: of what is below, if additions keep to one."""

    def __init__(self, staleness: int, orders: Orders) -> None:
        self._staleness = staleness
        self._orders = orders
        self._pending = Pending(by_windows=staleness == 0)
        self.merged: Clocks = NO_CLOCKS
        self.forwarded: Clocks = NO_CLOCKS
        self.log: list[Update] = []
        self._last_windows: dict[WorkerId, int] = {}
        """Windows of the last words taken here, by the workers that said them."""

    def take(self, place: int, update: Update) -> bool:
        """Merges it, whole; False, and nothing is changed, if it does not go on from ``merged``."""
        if not goes_on(self.merged, update):
            return False
        self.merged = self.merged.with_(update.after)
        self._pending.add(place, update)
        for worker, clock in update.after.items():
            if clock >= FOREVER:
                self._last_windows[worker] = update.clock
        return True

    @property
    def pending(self) -> list[Update]:
        return self._pending.updates

    @property
    def unmerged(self) -> list[Update]:
        """All that the root may lack, in order."""
        return [*self.log, *self._pending.updates]

    def forward(
        self, awaited: Iterable[WorkerId], *, is_flush: bool, is_held: bool, is_gone: IsGone
    ) -> list[Update]:
        """What goes to the parent now (docs/protocol.md 18.6): it counts as sent, and is in the log.

        ``awaited``: the workers whose clocks make c_sub; what has come of others is not withheld.
        ``is_held``: a child is expected that has not come. ``is_gone``: the root has said so; of a worker
        whose last words were taken here, and have gone up in an earlier window, it is known without.
        """
        awaited = tuple(awaited)
        sub_clock = -1 if is_held else self.merged.minimum(awaited)
        sent = []
        if self._staleness == 0:
            while parts := self._pending.first_window(sub_clock):
                sent += self._added(parts, is_gone)
        elif (
            is_flush
            or self._pending.has_last_words
            or not self._pending.workers <= set(awaited)
            or forwards(sub_clock, self.forwarded.minimum(awaited), self._staleness)
        ):
            whole = self._pending.all(self.merged.minimum(awaited))
            sent = [] if whole is None else [whole]
        for update in sent:
            self.forwarded = self.forwarded.with_(update.after)
        self.log += sent
        return sent

    def _added(self, parts: list[Update], is_gone: IsGone) -> list[Update]:
        window, ended, shape = parts[0].clock, self._last_windows, self._orders.shape(parts[0].clock)
        if shape is None:
            return [total(parts, window)]
        return shape.added(parts, lambda w: is_gone(w) or ended.get(w, window) < window)

    def prune(self, root: Clocks, gone: Iterable[WorkerId]) -> None:
        """What the root has durably need not be kept; workers ``gone`` from below are forgotten once nothing
        of theirs is under way."""
        self.log = [update for update in self.log if not root.covers(update.after)]
        touched = self._touched()
        forgotten = {w for w in gone if w not in touched}
        if any(w in self.merged for w in forgotten):
            self._narrow(w for w in self.merged if w not in forgotten)
        ended = Clocks(
            (w, end)
            for w, clock in self.merged.items()
            if FOREVER <= (end := root.get(w) or 0) != clock and w not in touched
        )
        if len(ended):
            self.merged, self.forwarded = self.merged.with_(ended), self.forwarded.with_(ended)

    def rebase(self, base: Clocks) -> list[Update] | None:
        """A parent has ``base``: what must be sent to it again, in order.

        None, and nothing is changed, if it has a part of something, or lacks what went another way before and
        is not in the log here: then those below are to send again what they have.
        """
        again = rest_after(self.log, base)
        if again is None:
            return None
        kept = rest_after(self._pending.updates, again[1])
        if kept is None or not kept[1].covers(self.merged):
            return None
        self._pending.keep(kept[0])
        self.forwarded, self.merged = again[1], kept[1]
        return again[0]

    def reset(self, base: Clocks) -> None:
        """All sums are dropped: they are made again from what those below kept."""
        self._pending.clear()
        self.log.clear()
        self._last_windows.clear()
        self.merged = self.forwarded = base

    def _touched(self) -> set[WorkerId]:
        return self._pending.workers.union(*(update.after for update in self.log))

    def _narrow(self, workers: Iterable[WorkerId]) -> None:
        workers = tuple(workers)
        self.merged, self.forwarded = self.merged.restricted(workers), self.forwarded.restricted(workers)
        self._last_windows = {w: window for w, window in self._last_windows.items() if w in self.merged}
