"""Trees that jobs get once, at placement, for life: none, or the first or any acceptable root.

What the paper's trees are measured against. The published generations differ in what is acceptable: the
earlier one (P), whose baseline the paper prints, looks only at trees that an operation with INA uses at this
very instant, so most of its trees conflict with others and their jobs take turns; the later one (L) looks at
the trees of all running jobs, so trees are exclusive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

import numpy as np

from inaproto_controller.cluster.network import Network
from inaproto_controller.planning.trees.builder import Changes, TreeJob, columns_of, integers
from inaproto_controller.planning.trees.crowding import Crowds

_Trees = list[tuple[int, int]]
"""Slot and root."""


class NoTrees:
    """All operations go without INA."""

    wants_completions = False

    def build(self, jobs: Sequence[TreeJob], new: Sequence[int], *, now: float, completed: bool) -> Changes:
        return {}


class FirstFitP:
    """New jobs in order: the first root that no operation in flight excludes, or none, for life.

    Trees given in the same round are not looked at either: none of their operations is in flight.
    """

    wants_completions = False

    def __init__(self, network: Network) -> None:
        self._network = network

    def build(self, jobs: Sequence[TreeJob], new: Sequence[int], *, now: float, completed: bool) -> Changes:
        busy = [(job.slot, job.using) for job in jobs if job.using is not None]
        found: Changes = {}
        for index in new:
            root = next(_acceptable(self._network, jobs[index], busy), None)
            if root is not None:
                found[jobs[index].slot] = root
        return found


class FirstFitL:
    """New jobs in order: the first root that excludes no tree of a running job, these included, or none, for
    life."""

    wants_completions = False

    def __init__(self, network: Network) -> None:
        self._network = network

    def build(self, jobs: Sequence[TreeJob], new: Sequence[int], *, now: float, completed: bool) -> Changes:
        return _give_exclusive(self._network, jobs, new, _first)


class RandomFit:
    """As ``FirstFitL``, but any acceptable root, all alike."""

    wants_completions = False

    def __init__(self, network: Network, seed: int | str) -> None:
        self._network = network
        self._random = Random(f"{seed}/random trees")

    def build(self, jobs: Sequence[TreeJob], new: Sequence[int], *, now: float, completed: bool) -> Changes:
        return _give_exclusive(self._network, jobs, new, self._any)

    def _any(self, roots: Iterator[int]) -> int | None:
        acceptable = list(roots)
        return self._random.choice(acceptable) if acceptable else None


def _first(roots: Iterator[int]) -> int | None:
    return next(roots, None)


def _give_exclusive(
    network: Network,
    jobs: Sequence[TreeJob],
    new: Sequence[int],
    choose: Callable[[Iterator[int]], int | None],
) -> Changes:
    columns = columns_of(jobs)
    trees = np.full(int(columns.slots.max(initial=-1)) + 1, -1, np.int64)
    trees[columns.slots] = columns.trees
    found: Changes = {}
    for index in new:
        job = jobs[index]
        near = network.near(job.slot)
        near = near[trees[near] >= 0]
        taken = list(zip(near.tolist(), trees[near].tolist(), strict=True))
        root = choose(_acceptable(network, job, taken))
        if root is not None:
            found[job.slot] = root
            trees[job.slot] = root
    return found


def _acceptable(network: Network, job: TreeJob, trees: _Trees) -> Iterator[int]:
    """Roots in the order of their numbers that exclude none of these, and for which there is room."""
    slots = integers([slot for slot, _ in trees])
    roots = integers([root for _, root in trees])
    crowds = Crowds(network, trees)
    for root in range(job.roots):
        if root in job.barred or crowds.met(job.slot, root):
            continue
        if not network.conflicts_with(job.slot, root, slots, roots).any():
            yield root
