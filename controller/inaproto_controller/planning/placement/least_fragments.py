"""MINA's placement: the hosts that leave fewest fragments, found exactly (Algorithm 1, section III-B).

Minimised is A + alpha * B: A the fragments of the job's hosts, B those of the hosts that stay free. For
each pod a vector says, for each number j of its hosts that the job takes, the least that this adds; a pod's
vector comes from those of its children by a min-plus knapsack, and hosts are read back from the numbers
that made it.

Departures from the paper: its lines 16-19 add ``S[i-1, j]`` to what child i costs for j hosts, though its
own equation has ``S[i-1, j-k]`` and k hosts: the equation is right. Of equal choices the one that takes
more from earlier children is taken, as in the published simulator. Vectors are kept, and computed anew for
the pods of hosts that were taken or released since; they are no longer than the largest job asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto_controller.cluster.compiled import jit
from inaproto_controller.cluster.topology import FatTree
from inaproto_controller.planning.placement.occupancy import Occupancy
from inaproto_controller.planning.placement.simple import Hosts

Scores = NDArray[np.float64]
Choices = NDArray[np.int32]
Counts = NDArray[np.int64]

_LIMIT_AT_FIRST: Final = 64


class LeastFragments:
    def __init__(self, tree: FatTree, *, alpha: float = 0.5) -> None:
        self.tree = tree
        self.alpha = alpha
        self._limit = min(tree.hosts, _LIMIT_AT_FIRST)
        """Most hosts of a job that vectors are long enough for."""
        self._known = np.ones(tree.hosts, np.bool_)
        """Hosts that were free when hosts were last placed."""
        self._free: list[Counts] = []
        """Free hosts of each pod, by layer from hosts up to that below the top."""
        self._scores: list[Scores] = []
        """(pods, most of its hosts that are taken + 1) by layer: the least that taking j of them adds."""
        self._begin()

    def _begin(self) -> None:
        """Vectors of ``_limit``, all hosts free."""
        tree = self.tree
        self._known = np.ones(tree.hosts, np.bool_)
        self._free = [np.ones(tree.hosts, np.int64)]
        self._scores = [np.tile([self.alpha, 1.0], (tree.hosts, 1))]
        for layer in range(1, tree.layers):
            size = tree.pod_hosts(layer)
            pods = tree.hosts // size
            self._free.append(np.full(pods, size, np.int64))
            self._scores.append(np.full((pods, min(size, self._limit) + 1), np.inf))
            self._scores[layer][0] = self._folded(layer, 0, self._limit)[0]
            self._scores[layer][1:] = self._scores[layer][0]

    def place(self, occupancy: Occupancy, count: int) -> Hosts | None:
        """None if fewer are free. ``count``: at least 1."""
        if count > occupancy.free_hosts:
            return None
        self._look(occupancy.free, count)
        return tuple(self._read(self.tree.layers, 0, count))

    def score(self, occupancy: Occupancy, count: int) -> float:
        """What the best choice of ``count`` hosts, which must be free, costs."""
        self._look(occupancy.free, count)
        return float(self._folded(self.tree.layers, 0, count)[0][count])

    def _look(self, free: NDArray[np.bool_], count: int) -> None:
        """Vectors for jobs of up to ``count`` hosts; only those of pods that have changed are computed."""
        if count > self._limit:
            self._limit = min(self.tree.hosts, max(count, 2 * self._limit))
            self._begin()
        changed = np.flatnonzero(free != self._known)
        self._known[changed] = free[changed]
        self._free[0][changed] = free[changed]
        self._scores[0][changed] = np.where(free[changed, None], [self.alpha, 1.0], [0.0, np.inf])
        for layer in range(1, self.tree.layers):
            width = self.tree.down[layer - 1]
            changed = np.unique(changed // width)
            self._free[layer][changed] = self._free[layer - 1].reshape(-1, width)[changed].sum(axis=1)
            for pod in changed.tolist():
                scores, _ = self._folded(layer, pod, self._limit)
                self._scores[layer][pod, : len(scores)] = scores
                self._scores[layer][pod, len(scores) :] = np.inf

    def _folded(self, layer: int, pod: int, limit: int) -> tuple[Scores, Choices]:
        """Vector of a pod for ``limit`` hosts at most, and how many of j each child gives, (children, j)."""
        width = self.tree.down[layer - 1]
        children = slice(pod * width, (pod + 1) * width)
        size = self.tree.pod_hosts(layer)
        free = self._free[layer - 1][children]
        scores, choices = _fold(self._scores[layer - 1][children], free, min(limit, size))
        if free.sum() == size:
            scores[0] = self.alpha
            if size < len(scores):
                scores[size] = 1.0
        return scores, choices

    def _read(self, layer: int, pod: int, count: int) -> Iterator[int]:
        """Hosts of the best choice, ascending."""
        if layer == 0:
            yield pod
            return
        _, choices = self._folded(layer, pod, count)
        parts = []
        for child in reversed(choices):
            parts.append(int(child[count]))
            count -= parts[-1]
        for number, part in enumerate(reversed(parts), start=pod * len(parts)):
            if part:
                yield from self._read(layer - 1, number, part)


@jit
def _fold(children: Scores, free: Counts, limit: int) -> tuple[Scores, Choices]:
    """A min-plus knapsack of the children, one after the other: the least of before[j - i] + child[i] for
    each j up to ``limit``, and the least i that makes it. ``free``: hosts that each child has."""
    choices = np.zeros((len(children), limit + 1), np.int32)
    before = np.zeros(1)
    for number in range(len(children)):
        rows = min(free[number], limit) + 1
        count = min(len(before) + rows - 1, limit + 1)
        scores = np.full(count, np.inf)
        for i in range(rows):
            end = min(count, i + len(before))
            sums = before[: end - i] + children[number, i]
            is_less = sums < scores[i:end]
            scores[i:end] = np.where(is_less, sums, scores[i:end])
            choices[number, i:end] = np.where(is_less, i, choices[number, i:end])
        before = scores
    return before, choices
