"""The best hosts for one job, by all choices that there are (MINA, section III-B)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from math import comb
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import LocalMisuse
from inaproto_controller.cluster.topology import FatTree
from inaproto_controller.planning.placement.simple import Hosts

CHOICES_MAX: Final = 200_000


@dataclass(frozen=True, slots=True)
class Placed:
    cost: float
    """Fragments of the job's hosts, and alpha for each of those of the hosts that stay free."""
    hosts: Hosts


def best_placement(tree: FatTree, free: Sequence[int], count: int, *, alpha: float = 0.5) -> Placed | None:
    """``count`` of the ``free`` hosts that cost least; of equal choices the first in lexicographic order.

    None for more than ``CHOICES_MAX`` choices. Raises ``LocalMisuse`` if not as many are free.
    """
    if not 0 < count <= len(free):
        raise LocalMisuse(f"{count} of {len(free)} free hosts")
    choices = comb(len(free), count)
    if choices > CHOICES_MAX:
        return None
    flat = np.fromiter(chain.from_iterable(combinations(sorted(free), count)), np.int64, choices * count)
    costs = placement_costs(tree, free, flat.reshape(choices, count), alpha=alpha)
    best = int(costs.argmin())
    return Placed(float(costs[best]), tuple(flat[best * count : (best + 1) * count].tolist()))


def placement_costs(
    tree: FatTree, free: Sequence[int], chosen: NDArray[np.int64], *, alpha: float = 0.5
) -> NDArray[np.float64]:
    """(choices,), for (choices, count) of the free hosts."""
    jobs = np.zeros((len(chosen), tree.hosts), np.bool_)
    np.put_along_axis(jobs, chosen, values=True, axis=1)
    rest = np.zeros(tree.hosts, np.bool_)
    rest[list(free)] = True
    return _fragments(tree, jobs) + alpha * _fragments(tree, rest & ~jobs)


def _fragments(tree: FatTree, members: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Fragments of (sets, hosts): as ``placement.occupancy.fragments``, for each."""
    counts = members.astype(np.int16)
    found = counts.copy()
    for layer, children in enumerate(tree.down, start=1):
        counts = counts.reshape(len(members), -1, children).sum(axis=2)
        found = found.reshape(len(members), -1, children).sum(axis=2)
        found[counts == tree.pod_hosts(layer)] = 1
    sums: NDArray[np.float64] = found.sum(axis=1).astype(np.float64)
    return sums
