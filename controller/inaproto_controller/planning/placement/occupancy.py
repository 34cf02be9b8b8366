"""Which hosts of a cluster are taken, and into how many fragments a set of hosts falls (MINA, section
III-B).

Fragments of a set in a pod: 1 if it holds all hosts of the pod, 0 if it holds none, else the sum over the
pods below. Few are good for the trees of jobs to come: a whole pod shares no link with others. A cluster
that is no fat tree has the pods that its distances make (``GraphTopology.levels``).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import LocalMisuse
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.cluster.topology import FatTree

Cluster = FatTree | GraphTopology


class Occupancy:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._free = np.ones(cluster.hosts, np.bool_)
        self._free_hosts = cluster.hosts

    @property
    def free(self) -> NDArray[np.bool_]:
        """(hosts,) bool, read only: those that no job has."""
        view = self._free.view()
        view.flags.writeable = False
        return view

    @property
    def free_hosts(self) -> int:
        return self._free_hosts

    def take(self, hosts: Iterable[int]) -> None:
        """Raises ``LocalMisuse`` if one of them is taken already, and takes none."""
        self._change(list(hosts), free=False)

    def release(self, hosts: Iterable[int]) -> None:
        """Raises ``LocalMisuse`` if one of them is free already, and releases none."""
        self._change(list(hosts), free=True)

    def _change(self, hosts: list[int], *, free: bool) -> None:
        known = not hosts or 0 <= min(hosts) <= max(hosts) < self.cluster.hosts
        if not known or len(set(hosts)) != len(hosts) or (self._free[hosts] == free).any():
            raise LocalMisuse(f"hosts {hosts} are not all {'taken' if free else 'free'}, each named once")
        self._free[hosts] = free
        self._free_hosts += len(hosts) if free else -len(hosts)

    def free_fragments(self) -> int:
        return fragments(self.cluster, self._free)

    def busy_fragments(self) -> int:
        return fragments(self.cluster, ~self._free)


def fragments(cluster: Cluster, members: NDArray[np.bool_]) -> int:
    """Fragments of a set of hosts, (hosts,) bool."""
    if isinstance(cluster, GraphTopology):
        return _fragments_of_levels(cluster, members)
    counts = members.astype(np.int64)
    found = counts.copy()
    for layer, children in enumerate(cluster.down, start=1):
        counts = counts.reshape(-1, children).sum(axis=1)
        found = found.reshape(-1, children).sum(axis=1)
        found[counts == cluster.pod_hosts(layer)] = 1
    return int(found.sum())


def _fragments_of_levels(cluster: GraphTopology, members: NDArray[np.bool_]) -> int:
    found, below = members.astype(np.int64), np.arange(cluster.hosts)
    for level in cluster.levels:
        pods = np.array(level)
        parents = np.zeros(found.size, np.int64)
        parents[below] = pods
        found = np.bincount(parents, weights=found).astype(np.int64)
        found[np.bincount(pods, weights=members) == np.bincount(pods)] = 1
        below = pods
    return int(found.sum())
