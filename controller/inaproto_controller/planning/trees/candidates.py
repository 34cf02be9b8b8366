"""Candidate trees: all roots of a job, or some drawn at random (MINA, section III-C, k)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import ConfigError
from inaproto_controller.cluster.compiled import jit
from inaproto_controller.cluster.network import Ints
from inaproto_controller.planning.trees.builder import TreeJob


class Candidates(NamedTuple):
    """Vertices of a conflict graph, by job and root; arrays of equal size."""

    jobs: Ints
    """Indexes into the jobs that they were drawn for."""
    slots: Ints
    roots: Ints


class CandidateDraws:
    """One stream of draws: what it answers depends on all that was asked before."""

    def __init__(self, candidates_max: int, seed: int | str) -> None:
        """Raises ``ConfigError`` for less than one candidate."""
        if candidates_max < 1:
            raise ConfigError(f"candidates_max {candidates_max}: at least one for each job")
        self.candidates_max = candidates_max
        self._stream = np.random.default_rng(Random(f"{seed}/candidates").getrandbits(128))

    def draw(self, jobs: Sequence[TreeJob]) -> Candidates:
        """All roots of a job that has no more than ``candidates_max``, else so many, each as likely,
        ascending; less those that are barred."""
        counts = np.array([job.roots for job in jobs], np.int64)
        most = self.candidates_max
        if jobs:
            most = min(most, int(counts.max()))
        owners, roots = _draw(counts, most, self._stream.random((len(jobs), most)))
        if any(job.barred for job in jobs):
            usable = [root not in jobs[owner].barred for owner, root in zip(owners, roots, strict=True)]
            owners, roots = owners[usable], roots[usable]
        return Candidates(owners, np.array([job.slot for job in jobs], np.int64)[owners], roots)

    def shuffled(self, candidates: Candidates) -> Candidates:
        """The same, in any order, all alike."""
        order = self._stream.permutation(candidates.jobs.size)
        return Candidates(*(column[order] for column in candidates))


@jit
def _draw(counts: Ints, most: int, shares: NDArray[np.float64]) -> tuple[Ints, Ints]:
    owners = np.empty(counts.size * most, np.int64)
    roots = np.empty(counts.size * most, np.int64)
    filled = 0
    for job in range(counts.size):
        first, count = filled, counts[job]
        if count <= most:
            for root in range(count):
                roots[filled] = root
                filled += 1
        else:
            # Floyd's way: the n-th draw is below n more than what was left over, or else that itself.
            for bound in range(count - most, count):
                root = int(shares[job, filled - first] * (bound + 1))
                for place in range(first, filled):
                    if roots[place] == root:
                        root = bound
                        break
                roots[filled] = root
                filled += 1
            roots[first:filled].sort()
        owners[first:filled] = job
    return owners[:filled], roots[:filled]
