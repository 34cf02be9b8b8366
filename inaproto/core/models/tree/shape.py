"""The order of additions of s = 0: that of the tree as it was built, whoever is attached to whom.

Sums of plain floats depend on the order. So a node adds up the parts of a window only where a whole subtree
is there; else it passes them up as they are, and the root, which has them all in the end, adds them as the
tree would have. A window has the same bits with and without failures, also in direct mode (ours: the paper
does not ask for it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from inaproto.core.models.updates import Update, total
from inaproto.wire.messages.clocks import WorkerId
from inaproto.wire.messages.models import NodeId

IsGone = Callable[[WorkerId], bool]
"""Whether a worker has no part in the window, since its last words were in an earlier one: that one is added,
or on its way in front of this one."""


@dataclass(frozen=True)
class Shape:
    """A node of the tree: its own worker comes first, then what is below, left to right."""

    worker: WorkerId | None
    below: tuple[Shape, ...] = field(default=(), repr=False)

    @staticmethod
    def of(
        node: NodeId,
        children: Callable[[NodeId], Sequence[NodeId]],
        worker: Callable[[NodeId], WorkerId | None],
    ) -> Shape:
        """``children``: of each node, in the order of addition; ``worker``: on its host."""
        below = {node: tuple(children(node))}
        for parent in (order := [node]):
            for child in below[parent]:
                below[child] = tuple(children(child))
                order.append(child)
        made: dict[NodeId, Shape] = {}
        for parent in reversed(order):
            made[parent] = Shape(worker(parent), tuple(made[child] for child in below[parent]))
        return made[node]

    @cached_property
    def workers(self) -> frozenset[WorkerId]:
        found = list[WorkerId]()
        for shape in (walk := [self]):
            walk += shape.below
            found += [] if shape.worker is None else [shape.worker]
        return frozenset(found)

    def added(self, parts: Sequence[Update], is_gone: IsGone) -> list[Update]:
        """The parts of a window, with every subtree that is whole added up.

        Downwards the parts are given to the subtrees that they are of, upwards these are added up.
        """
        for place in (walk := [_Place(self, list(parts))]):
            walk += place.divide()
        for place in reversed(walk):
            place.add(is_gone)
        return walk[0].parts


class _Place:
    """A subtree, and the parts of a window that are of it, or of subtrees of it."""

    def __init__(self, shape: Shape, parts: list[Update]) -> None:
        self._shape = shape
        self.parts = parts
        """Once added, what goes up of them."""
        self.is_whole = False
        """They are all of this subtree, in one."""
        self._own: list[Update] = []
        self._below: list[_Place] = []
        self._others: list[Update] = []
        """Sums of this very subtree, or of no subtree at all."""

    def divide(self) -> list[_Place]:
        """Those below that have parts."""
        shape = self._shape
        self._own = [part for part in self.parts if part.after.workers == (shape.worker,)]
        self._below = [
            _Place(sub, [part for part in self.parts if sub.workers.issuperset(part.after)])
            for sub in shape.below
        ]
        placed = {id(part) for part in self._own}.union(id(p) for place in self._below for p in place.parts)
        self._others = [part for part in self.parts if id(part) not in placed]
        return [place for place in self._below if place.parts]

    def add(self, is_gone: IsGone) -> None:
        """Those below that have parts are added."""
        shape, parts = self._shape, self.parts
        groups = [self._own, *(place.parts for place in self._below)]
        in_order = [part for group in groups for part in group]
        if self._others:
            present = {worker for part in parts for worker in part.after}
            self.is_whole = len(parts) == 1 and all(w in present or is_gone(w) for w in shape.workers)
            self.parts = [*self._others, *in_order]
            return
        own_is_there = bool(self._own) or shape.worker is None or is_gone(shape.worker)
        self.is_whole = own_is_there and all(
            place.is_whole if place.parts else all(map(is_gone, place._shape.workers))
            for place in self._below
        )
        self.parts = [total(in_order, in_order[0].clock)] if self.is_whole and in_order else in_order
