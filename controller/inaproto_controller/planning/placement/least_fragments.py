"""MINA's placement: the hosts that leave fewest fragments, found exactly (Algorithm 1, section III-B).

Minimised is A + alpha * B: A the fragments of the job's hosts, B those of the hosts that stay free. For
each pod a vector says, for each number j of its hosts that the job takes, the least that this adds; a pod's
vector comes from those of its children by a min-plus knapsack, and hosts are read back from the numbers
that made it.

Departures from the paper: its lines 16-19 add ``S[i-1, j]`` to what child i costs for j hosts, though its
own equation has ``S[i-1, j-k]`` and k hosts: the equation is right. Of equal choices the one that takes
more from earlier children is taken, as in the published simulator. Vectors of pods with alike occupancies
are computed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto_controller.cluster.topology import FatTree
from inaproto_controller.planning.placement.occupancy import Occupancy
from inaproto_controller.planning.placement.simple import Hosts

Scores = NDArray[np.float64]
Choices = NDArray[np.int32]

VECTORS_MAX: Final = 1 << 16
"""Kept for each layer; with more, all of a layer are forgotten."""


@dataclass(frozen=True, slots=True)
class _Vector:
    """Costs of a pod with a certain occupancy."""

    key: int
    """Alike for alike occupancies of one layer."""
    scores: Scores
    """(free + 1,): the least that taking j of its hosts adds."""
    taken: tuple[Choices, ...]
    """For each child, how many of j it gives; j counts those of children up to it."""
    children: tuple[_Vector, ...]


class LeastFragments:
    def __init__(self, tree: FatTree, *, alpha: float = 0.5) -> None:
        self.tree = tree
        self.alpha = alpha
        self._known: list[dict[tuple[int, ...], _Vector]] = [{} for _ in tree.down]
        busy = _Vector(0, np.zeros(1), (), ())
        free = _Vector(1, np.array([alpha, 1.0]), (), ())
        self._hosts = (busy, free)
        self._keys = 2
        self._before: list[list[_Vector]] = []
        """Vectors of the pods of each layer but the last, when hosts were last placed."""
        self._free_before: NDArray[np.bool_] | None = None

    def place(self, occupancy: Occupancy, count: int) -> Hosts | None:
        """None if fewer are free. ``count``: at least 1."""
        if count > occupancy.free_hosts:
            return None
        root = self._root(occupancy.free, count)
        return tuple(self._read(root, count, 0, self.tree.layers))

    def score(self, occupancy: Occupancy, count: int) -> float:
        """What the best choice of ``count`` hosts, which must be free, costs."""
        return float(self._root(occupancy.free, count).scores[count])

    def _root(self, free: NDArray[np.bool_], count: int) -> _Vector:
        below = self._pods(free)
        whole = bool(free.all())
        return self._combine(tuple(below), self.tree.layers if whole else None, limit=count, key=-1)

    def _pods(self, free: NDArray[np.bool_]) -> list[_Vector]:
        """Vectors of the layer below the top; only those of pods that have changed are looked for."""
        if self._free_before is None:
            changed = list(range(self.tree.hosts))
            self._before = [[self._hosts[1]] * self.tree.hosts]
            self._before += [
                [self._hosts[1]] * (self.tree.hosts // self.tree.pod_hosts(layer))
                for layer in range(1, self.tree.layers)
            ]
        else:
            changed = np.flatnonzero(free != self._free_before).tolist()
        self._free_before = free.copy()
        for host in changed:
            self._before[0][host] = self._hosts[int(free[host])]
        for layer in range(1, self.tree.layers):
            width = self.tree.down[layer - 1]
            changed = sorted({place // width for place in changed})
            for pod in changed:
                children = self._before[layer - 1][pod * width : (pod + 1) * width]
                self._before[layer][pod] = self._vector(layer, tuple(children))
        return self._before[-1]

    def _vector(self, layer: int, children: tuple[_Vector, ...]) -> _Vector:
        known = self._known[layer]
        pattern = tuple(child.key for child in children)
        found = known.get(pattern)
        if found is None:
            if len(known) >= VECTORS_MAX:
                known.clear()
            free = sum(len(child.scores) - 1 for child in children)
            whole = layer if free == self.tree.pod_hosts(layer) else None
            found = known[pattern] = self._combine(children, whole, limit=free, key=self._keys)
            self._keys += 1
        return found

    def _combine(self, children: tuple[_Vector, ...], whole: int | None, *, limit: int, key: int) -> _Vector:
        """Vector of a pod with these children, for ``limit`` hosts at most; ``whole``: its layer if all is
        free."""
        scores, taken = np.zeros(1), []
        for child in children:
            scores, choices = _min_plus(scores, child.scores, limit)
            taken.append(choices)
        if whole is not None:
            scores[0] = self.alpha
            size = self.tree.pod_hosts(whole)
            if size <= limit:
                scores[size] = 1.0
        return _Vector(key, scores, tuple(taken), children)

    def _read(self, vector: _Vector, count: int, first: int, layer: int) -> Iterator[int]:
        """Hosts of the best choice, ascending, in the pod of ``layer`` that begins with host ``first``."""
        if layer == 0:
            if count:
                yield first
            return
        parts = []
        for choices in reversed(vector.taken):
            part = int(choices[count])
            parts.append(part)
            count -= part
        size = self.tree.pod_hosts(layer - 1)
        for number, part in enumerate(reversed(parts)):
            if part:
                yield from self._read(vector.children[number], part, first + number * size, layer - 1)


def _min_plus(before: Scores, child: Scores, limit: int) -> tuple[Scores, Choices]:
    """Least of before[j - i] + child[i] for each j, and the least i that makes it."""
    count = min(len(before) + len(child) - 1, limit + 1)
    rows = min(len(child), count)
    sums = np.full((rows, count), np.inf)
    for i in range(rows):
        end = min(count, i + len(before))
        sums[i, i:end] = before[: end - i] + child[i]
    choices = sums.argmin(axis=0)
    return sums[choices, np.arange(count)], choices.astype(np.int32)
