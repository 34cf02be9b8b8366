"""How many jobs of a moment get a tree, by rule and at best (MINA, section III-C).

What candidates need and what there is of it is all that is known here, so it goes for fat trees and graphs,
for quotas of one job and of more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from inaproto_controller.cluster.graph_network import GraphNetwork
from inaproto_controller.cluster.network import Ints
from inaproto_controller.planning.trees.exact import most_trees
from inaproto_controller.planning.trees.peeling import peel


@dataclass(frozen=True, slots=True)
class Moment:
    """Jobs that run, and their candidates."""

    needs: tuple[tuple[tuple[int, ...], ...], ...]
    """Resources needed, by job and root."""
    capacities: Ints
    """Capacities by resource."""

    @classmethod
    def of(cls, network: GraphNetwork, jobs: Sequence[Sequence[int]]) -> Moment:
        """The problem of jobs by their hosts, in a network that is empty, and is again."""
        needs = []
        for slot, hosts in enumerate(jobs):
            roots = network.enter(slot, hosts)
            needs.append(tuple(network.resources(slot, root) for root in range(roots)))
        for slot in range(len(jobs)):
            network.leave(slot)
        return cls(tuple(needs), network.capacities)


def most(moment: Moment) -> int | None:
    """Jobs with a tree at best; None if it took too long. Raises ``Unsupported`` without SciPy."""
    best = most_trees(moment.needs, dict(enumerate(moment.capacities.tolist())))
    return round(best.value) if best.value == best.bound else None


def first_fit(moment: Moment) -> int:
    """Jobs in order; each takes the first candidate for which there is still enough of all."""
    used: Counter[int] = Counter()
    served = 0
    for candidates in moment.needs:
        for needed in candidates:
            if all(used[one] < moment.capacities[one] for one in needed):
                used.update(needed)
                served += 1
                break
    return served


def thinned(moment: Moment, candidates_max: int, draw: Random) -> Moment:
    """The problem with so many candidates of each job at most, drawn without replacement, their order
    kept."""
    needs = []
    for candidates in moment.needs:
        kept = sorted(draw.sample(range(len(candidates)), min(candidates_max, len(candidates))))
        needs.append(tuple(candidates[root] for root in kept))
    return Moment(tuple(needs), moment.capacities)


def peeled(moment: Moment) -> int:
    """Reducing-peeling of the conflict graph, for capacities of 1: pairs say nothing of others."""
    owners, rows = [], []
    for job, candidates in enumerate(moment.needs):
        for needed in candidates:
            owners.append(job)
            rows.append(needed)
    use = np.zeros((len(rows), len(moment.capacities)), np.float32)
    for vertex, needed in enumerate(rows):
        use[vertex, list(needed)] = 1
    alike = np.array(owners)
    conflicts = (use @ use.T > 0) | (alike[:, None] == alike)
    np.fill_diagonal(conflicts, val=False)
    return int(np.count_nonzero(peel(conflicts))) if rows else 0
