"""MINA's trees as the paper evaluates them: all built anew whenever a job was placed (section III-C).

Candidates of every running job are drawn anew each time; those of a maximal independent set of their conflict
graph become trees. As published (generation P): a job outside the set keeps the tree that it has, so
trees do conflict, or has none if it is new; the paper's additions to sharing groups never take effect.
Ours: ``additions`` makes them as they are printed.

Which of alike vertices a set has is left to chance, as it is to the order of hash tables in the published
simulator. By age instead, the set keeps the oldest jobs: Figure 13's first-fit rows are then higher by .02 to
.05 than with the youngest first, and than the published ones.

Departure: draws are ours, so trees are not those of the published simulator, tree by tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from inaproto_controller.cluster.network import Bools, Network
from inaproto_controller.planning.trees.builder import Changes, TreeJob, changed
from inaproto_controller.planning.trees.candidates import CandidateDraws, Candidates
from inaproto_controller.planning.trees.peeling import peel

CANDIDATES_MAX: Final = 5
"""k of the published evaluation."""


class RebuildAll:
    wants_completions = False

    def __init__(
        self,
        network: Network,
        *,
        seed: int | str,
        candidates_max: int = CANDIDATES_MAX,
        additions: bool = False,
    ) -> None:
        self._network = network
        self._draws = CandidateDraws(candidates_max, seed)
        self._additions = additions

    def build(self, jobs: Sequence[TreeJob], new: Sequence[int], *, now: float, completed: bool) -> Changes:
        if not new:
            return {}
        candidates = self._draws.shuffled(self._draws.draw(jobs))
        conflicts = self._network.conflicts(candidates.slots, candidates.roots)
        chosen = peel(conflicts)
        if self._additions:
            chosen |= add_to_groups(jobs, candidates, conflicts, chosen)
        trees = [job.tree for job in jobs]
        for job, root in zip(
            candidates.jobs[chosen].tolist(), candidates.roots[chosen].tolist(), strict=True
        ):
            trees[job] = root
        return changed(jobs, trees)


def add_to_groups(jobs: Sequence[TreeJob], candidates: Candidates, conflicts: Bools, chosen: Bools) -> Bools:
    """(n,) bool: further candidates, at most one of each job that has none yet.

    Each conflicts with one that is chosen and with none other of these, nor with others added beside that: a
    sharing group is a star. The job with most hosts is first, then the lowest candidate.
    """
    added = np.zeros_like(chosen)
    served = np.zeros(len(jobs), np.bool_)
    served[candidates.jobs[chosen]] = True
    hosts = np.array([job.hosts for job in jobs])[candidates.jobs]
    conflicts_of_one = np.count_nonzero(conflicts[:, chosen], axis=1) == 1
    for middle in np.flatnonzero(chosen).tolist():
        open_ = conflicts[middle] & conflicts_of_one & ~served[candidates.jobs]
        while open_.any():
            vertex = int(np.where(open_, hosts, -1).argmax())
            added[vertex] = True
            served[candidates.jobs[vertex]] = True
            open_ &= ~conflicts[vertex]
            open_[vertex] = False
    return added
