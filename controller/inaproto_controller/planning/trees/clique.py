"""Trees of the short paper's formulation: a clique of candidates that do not conflict, whose jobs gain most.

In the graph of candidates with an edge where two do *not* conflict, several near-maximum cliques are found,
and that with the largest sum of decreases of the jobs' completion times is kept. That is an independent set
of the conflict graph with most weight; ours is offered exact as well.

Where the short paper is silent, ours: the weight of a job is the share of a plain step that INA saves, times
what is left of the job without INA; candidates are drawn anew each time; jobs outside the clique have no
tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto_controller.cluster.compiled import jit
from inaproto_controller.cluster.network import Bools, Ints, Network
from inaproto_controller.planning.trees.builder import Changes, TreeJob, changed
from inaproto_controller.planning.trees.candidates import CandidateDraws
from inaproto_controller.planning.trees.exact import SECONDS_MAX, heaviest_set
from inaproto_controller.planning.trees.peeling import peel
from inaproto_controller.planning.trees.rebuild_all import CANDIDATES_MAX

CLIQUES: Final = 16
"""Cliques that are compared."""

Floats = NDArray[np.float64]


class HeaviestClique:
    wants_completions = False

    def __init__(
        self,
        network: Network,
        *,
        seed: int | str,
        candidates_max: int = CANDIDATES_MAX,
        exact: bool = False,
        seconds_max: float = SECONDS_MAX,
    ) -> None:
        """``exact`` needs SciPy and, of a full cluster, more than ``seconds_max`` for many a build: what was
        found until then is taken."""
        self._network = network
        self._draws = CandidateDraws(candidates_max, seed)
        self._stream = np.random.default_rng(Random(f"{seed}/cliques").getrandbits(128))
        self._exact = exact
        self._seconds_max = seconds_max
        self.unproved = 0
        """Exact builds whose clique may not be the heaviest: time was up."""

    def build(self, jobs: Sequence[TreeJob], new: Sequence[int], *, now: float, completed: bool) -> Changes:
        if not new:
            return {}
        candidates = self._draws.draw(jobs)
        conflicts = self._network.conflicts(candidates.slots, candidates.roots)
        weights = np.array([decrease(job) for job in jobs])[candidates.jobs]
        if self._exact:
            heaviest, bound = heaviest_set(conflicts, weights, seconds_max=self._seconds_max)
            self.unproved += bound > weights[heaviest].sum()
            chosen = fill(conflicts, heaviest, np.argsort(-weights, kind="stable"))
        else:
            chosen = heavy_set(conflicts, weights, CLIQUES, self._stream)
        trees: list[int | None] = [None] * len(jobs)
        for job, root in zip(
            candidates.jobs[chosen].tolist(), candidates.roots[chosen].tolist(), strict=True
        ):
            trees[job] = root
        return changed(jobs, trees)


def decrease(job: TreeJob) -> float:
    """Seconds by which INA for all its operations brings the end of a job nearer."""
    return job.times.gain * job.steps_left * job.times.step_plain


def heavy_set(conflicts: Bools, weights: Floats, sets: int, stream: np.random.Generator) -> Bools:
    """(n, n) bool; (n,) weights -> (n,) bool: the heaviest of so many maximal independent sets.

    The first is that of reducing-peeling, the second takes the heaviest first, all others weight for each
    conflict, with luck.
    """
    degrees = np.count_nonzero(conflicts, axis=1)
    best = peel(conflicts)
    for number in range(1, sets):
        worth = weights
        if number > 1:
            worth = weights / (1 + degrees) * (0.5 + stream.random(weights.size))
        found = fill(conflicts, np.zeros_like(best), np.argsort(-worth, kind="stable"))
        if weights[found].sum() > weights[best].sum():
            best = found
    return best


@jit
def fill(conflicts: Bools, chosen: Bools, order: Ints) -> Bools:
    """An independent set, with all that can enter it in this order."""
    filled = chosen.copy()
    barred = chosen.copy()
    for vertex in np.flatnonzero(chosen):
        barred |= conflicts[vertex]
    for vertex in order:
        if not barred[vertex]:
            filled[vertex] = True
            barred[vertex] = True
            barred |= conflicts[vertex]
    return filled
