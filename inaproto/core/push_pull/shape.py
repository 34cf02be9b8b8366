"""The order of additions of s = 0: that of the tree as it was built, whoever is attached to whom.

Sums of plain floats depend on the order. So a node adds up the parts of a window only where a whole subtree
is there; else it passes them up as they are, and the root, which has them all in the end, adds them as the
tree would have. A window has the same bits with and without failures, also in direct mode (ours: the paper
does not ask for it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from inaproto.core.push_pull.clocks import WorkerId
from inaproto.core.push_pull.updates import Update, total
from inaproto.core.push_pull.words import NodeId

IsGone = Callable[[WorkerId], bool]
"""Whether a worker has no part in the window, since its last words were in an earlier one: that one is added,
or on its way in front of this one."""


@dataclass(frozen=True)
class Shape:
    """A node of the tree: its own worker comes first, then what is below, left to right."""

    worker: WorkerId | None
    below: tuple[Shape, ...] = ()

    @staticmethod
    def of(
        node: NodeId,
        children: Callable[[NodeId], Sequence[NodeId]],
        worker: Callable[[NodeId], WorkerId | None],
    ) -> Shape:
        """``children``: of each node, in the order of addition; ``worker``: on its host."""
        return Shape(worker(node), tuple(Shape.of(child, children, worker) for child in children(node)))

    @cached_property
    def workers(self) -> frozenset[WorkerId]:
        own = frozenset() if self.worker is None else frozenset((self.worker,))
        return own.union(*(shape.workers for shape in self.below))

    def added(self, parts: Sequence[Update], is_gone: IsGone) -> list[Update]:
        """The parts of a window, with every subtree that is whole added up."""
        return self._add(parts, is_gone)[0]

    def _add(self, parts: Sequence[Update], is_gone: IsGone) -> tuple[list[Update], bool]:
        """And whether they are all of this subtree, in one."""
        own = [part for part in parts if part.after.workers == (self.worker,)]
        groups = [(own, bool(own) or self.worker is None or is_gone(self.worker))]
        placed = {id(part) for part in own}
        for shape in self.below:
            found = [part for part in parts if shape.workers.issuperset(part.after)]
            placed.update(id(part) for part in found)
            groups.append(shape._add(found, is_gone))
        others = [part for part in parts if id(part) not in placed]
        in_order = [part for group, _ in groups for part in group]
        if others:  # sums of this very subtree, or of no subtree at all
            present = {worker for part in parts for worker in part.after}
            is_whole = all(worker in present or is_gone(worker) for worker in self.workers)
            return [*others, *in_order], is_whole and len(parts) == 1
        if not all(is_whole for _, is_whole in groups):
            return in_order, False
        return ([total(in_order, in_order[0].clock)] if in_order else []), True
