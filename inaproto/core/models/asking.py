"""What a node has asked its parent by ``Attach``, and what it must ask yet (docs/protocol.md 18.5).

A child is answered with how far this node is with the child's workers; so it must know. It asks above first
for workers that are new below it, and where the child knows the root to be further than is known here, since
what the root has cannot be sent again, or a later epoch (:mod:`inaproto.core.models.tree.epochs`). Once the
parent was asked with such a *floor*, the child is answered whatever came of it: a floor beyond the root's
clocks is its own fault, and nobody's below or above it.
"""

from __future__ import annotations

from inaproto.core.models.children import Bond
from inaproto.core.models.subtree import Subtree
from inaproto.wire.messages.clocks import NO_CLOCKS, Clocks, WorkerId
from inaproto.wire.messages.models import Attach


class Asking:
    def __init__(self) -> None:
        self.workers: tuple[WorkerId, ...] = ()
        """Workers that the last ``Attach`` asked about."""
        self.known: Clocks = NO_CLOCKS
        """What this node then knew the root to have of them."""
        self._floor: Clocks = NO_CLOCKS
        """The same, and what children that had come knew."""
        self._epoch = 0
        """Number of the newest epoch that was known then, here or at a child that had come."""
        self._unsure: set[WorkerId] = set()
        """Workers that it must ask about."""

    def child_came(self, said: Attach, below: set[WorkerId], sub: Subtree, epoch: int) -> None:
        """``below``: whose clocks were waited for before it came; ``epoch``: the newest known here."""
        merged = sub.ledger.merged
        self._unsure.update(w for w in said.workers if w not in below or w not in merged)
        self._unsure.update(_behind(said.floor, sub))
        if said.epoch > epoch:
            self._unsure.update(said.workers)

    def is_due(self, sub: Subtree) -> bool:
        self._unsure.intersection_update(sub.claimed)
        return bool(self._unsure)

    def asks(self, session: int, sub: Subtree, epoch: int) -> Attach:
        self.workers, self._floor = sub.claimed, sub.floor
        self.known = sub.root.restricted(self.workers)
        self._epoch = sub.epoch(epoch)
        return Attach(session, self.workers, self._floor, self._epoch)

    def is_answered(self, sub: Subtree, epoch: int) -> None:
        """After the answer was taken: children may have come since it was asked."""
        self._unsure.difference_update(self.workers)
        for child in sub.children.bound(Bond.ASKED):
            asked = self._floor
            later = Clocks((w, clock) for w, clock in child.floor.items() if clock > (asked.get(w) or 0))
            self._unsure.update(_behind(later, sub))
            if child.epoch > max(self._epoch, epoch):
                self._unsure.update(child.workers)

    def lost(self, below: set[WorkerId]) -> tuple[WorkerId, ...]:
        """As it tells its parent. Whom one child has lost may be below another one by now."""
        return tuple(sorted(set(self.workers) - below))


def _behind(floor: Clocks, sub: Subtree) -> list[WorkerId]:
    """Workers of whom less is known here than the floor says."""
    merged, root = sub.ledger.merged, sub.root
    return [w for w, clock in floor.items() if min(merged.get(w) or 0, root.get(w) or 0) < clock]
