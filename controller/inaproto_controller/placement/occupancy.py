"""Which hosts of a fat tree are taken, and into how many fragments a set of hosts falls (MINA, section
III-B).

Fragments of a set in a pod: 1 if it holds all hosts of the pod, 0 if it holds none, else the sum over the
pods below. Few are good for the trees of jobs to come: a whole pod shares no link with others.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import LocalMisuse
from inaproto_controller.topology import FatTree


class Occupancy:
    def __init__(self, tree: FatTree) -> None:
        self.tree = tree
        self._free = np.ones(tree.hosts, np.bool_)
        self._free_hosts = tree.hosts

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
        if len(set(hosts)) != len(hosts) or (self._free[hosts] == free).any():
            raise LocalMisuse(f"hosts {hosts} are not all {'taken' if free else 'free'}, each named once")
        self._free[hosts] = free
        self._free_hosts += len(hosts) if free else -len(hosts)

    def free_fragments(self) -> int:
        return fragments(self.tree, self._free)

    def busy_fragments(self) -> int:
        return fragments(self.tree, ~self._free)


def fragments(tree: FatTree, members: NDArray[np.bool_]) -> int:
    """Of a set of hosts, (hosts,) bool."""
    counts = members.astype(np.int64)
    found = counts.copy()
    for layer, children in enumerate(tree.down, start=1):
        counts = counts.reshape(-1, children).sum(axis=1)
        found = found.reshape(-1, children).sum(axis=1)
        found[counts == tree.pod_hosts(layer)] = 1
    return int(found.sum())
