"""Clusters of any shape: hosts, switches and the links between them, and how many jobs may be summed where.

MINA, section III-C, beyond fat trees: generations of switches have different quotas, and one cluster may hold
several. A Quantum switch sums for some jobs at a time (``jobs``), a Quantum-2 switch for some at each port
(``jobs_per_port``); any other passes packets on: it may be in a tree, but not where inputs join.

Nodes are numbered: hosts first, then switches, each in the order in which they were given. That order is also
the order of hosts for placement, and the one in which candidate roots are numbered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import ConfigError
from inaproto_controller.cluster.topology import FatTree, Quota

SWITCHES_MAX: Final = 8192
UNREACHABLE: Final = 1 << 14
"""Distance of what no path leads to; more than any path has links."""


@dataclass(frozen=True, slots=True)
class GraphSwitch:
    name: str
    jobs: int | None = None
    """Jobs that it sums for at a time; None: no limit but that of its ports."""
    jobs_per_port: int | None = None
    """Jobs that go through each of its links at a time; None: no limit but its own."""
    sharp: bool = False
    """It sums by SHARP: no daemon of ours is there."""

    @property
    def aggregates(self) -> bool:
        """A limit says so, and none is 0."""
        limits = [limit for limit in (self.jobs, self.jobs_per_port) if limit is not None]
        return bool(limits) and min(limits) > 0


@dataclass(frozen=True, slots=True)
class GraphLink:
    one: int
    """A node."""
    other: int
    jobs: int | None = None
    """Trees at a time, where this is less than its ends allow; 0: no tree at all."""


@dataclass(frozen=True)
class GraphTopology:
    """Raises ``ConfigError``, which names the node, for what is no cluster."""

    host_names: tuple[str, ...]
    switches: tuple[GraphSwitch, ...]
    links: tuple[GraphLink, ...]
    may_be_apart: bool = False
    """Whether there may be hosts between which no path leads: whoever plans here answers for that."""

    def __post_init__(self) -> None:
        if not self.host_names:
            raise ConfigError("a cluster needs at least one host")
        if len(self.switches) > SWITCHES_MAX:
            raise ConfigError(
                f"{len(self.switches)} switches: at most {SWITCHES_MAX}, as all distances are kept"
            )
        names = Counter([*self.host_names, *(switch.name for switch in self.switches)])
        for name, count in names.items():
            if count > 1:
                raise ConfigError(f"{name}: {count} nodes have this name")
        for switch in self.switches:
            for field, limit in (("jobs", switch.jobs), ("jobs_per_port", switch.jobs_per_port)):
                if limit is not None and limit < 0:
                    raise ConfigError(f"switch {switch.name}: {field} {limit}: 0 or more")
        self._check_links()

    def _check_links(self) -> None:
        linked: set[int] = set()
        for link in self.links:
            ends = (link.one, link.other)
            if min(ends) < 0 or max(ends) >= self.nodes:
                raise ConfigError(f"link {ends}: nodes are 0 to {self.nodes - 1}")
            name = f"link {self.name(link.one)} - {self.name(link.other)}"
            if link.one == link.other:
                raise ConfigError(f"{name}: from a node to itself")
            if max(ends) < self.hosts:
                raise ConfigError(f"{name}: both are hosts; hosts meet at switches")
            if link.jobs is not None and link.jobs < 0:
                raise ConfigError(f"{name}: jobs {link.jobs}: 0 or more")
            linked.update(ends)
        for host, name in enumerate(self.host_names):
            if host not in linked:
                raise ConfigError(f"host {name}: no link leads to it")
        if self.may_be_apart:
            return
        apart = np.flatnonzero(self._rack_distances[0] >= UNREACHABLE)
        if apart.size:
            racks = sorted(set(self._racks))
            away = self._racks.index(racks[int(apart[0])])
            raise ConfigError(
                f"host {self.host_names[away]}: no path leads to it from {self._first_of(racks[0])}"
            )

    def _first_of(self, switch: int) -> str:
        return f"host {self.host_names[self._racks.index(switch)]}"

    @classmethod
    def of_fat_tree(cls, tree: FatTree, quota: Quota, *, jobs: int = 1) -> GraphTopology:
        """The same cluster, node by node; hosts and, within their layer, switches keep their order.

        ``jobs``: that share a switch, or a link.
        """
        limits = (jobs, None) if quota is Quota.SWITCH else (None, jobs)
        first, switches, links = [0, tree.hosts], [], []
        for layer in range(1, tree.layers + 1):
            count = tree.nodes(layer)
            switches += [GraphSwitch(f"switch-{layer}-{number}", *limits) for number in range(count)]
            first.append(first[-1] + count)
        for layer in range(tree.layers):
            alike = tree.nodes(layer) // (tree.hosts // tree.pod_hosts(layer))
            for number in range(tree.nodes(layer)):
                pod, colour = divmod(number, alike)
                for up in range(tree.up[layer]):
                    above = (pod // tree.down[layer] * tree.up[layer] + up) * alike + colour
                    links.append(GraphLink(first[layer] + number, first[layer + 1] + above))
        return cls(tuple(f"host-{host}" for host in range(tree.hosts)), tuple(switches), tuple(links))

    @property
    def hosts(self) -> int:
        return len(self.host_names)

    @property
    def nodes(self) -> int:
        return len(self.host_names) + len(self.switches)

    def name(self, node: int) -> str:
        if node < self.hosts:
            return self.host_names[node]
        return self.switches[node - self.hosts].name

    def link_name(self, number: int) -> str:
        """Its ends, and for the second and further ones between the same two which of them it is."""
        return self.link_names[number]

    @cached_property
    def link_names(self) -> tuple[str, ...]:
        """Names of all links, in order."""
        seen: Counter[frozenset[int]] = Counter()
        names = []
        for link in self.links:
            ends = frozenset((link.one, link.other))
            seen[ends] += 1
            name = f"{self.name(link.one)} - {self.name(link.other)}"
            names.append(f"{name} #{seen[ends]}" if seen[ends] > 1 else name)
        return tuple(names)

    def link_jobs(self, link: GraphLink) -> int | None:
        """How many trees may go over it at a time; None: no limit."""
        limits = [] if link.jobs is None else [link.jobs]
        for node in (link.one, link.other):
            if node >= self.hosts:
                switch = self.switches[node - self.hosts]
                if switch.aggregates and switch.jobs_per_port is not None:
                    limits.append(switch.jobs_per_port)
        return min(limits, default=None)

    # -- distances, in links; hosts pass nothing on

    @cached_property
    def all_distances(self) -> NDArray[np.int16]:
        """Over all links."""
        return self.distances(self.links)

    @cached_property
    def homes(self) -> tuple[tuple[int, ...], ...]:
        """Switches that each host is linked to, numbered from 0."""
        return tuple(tuple(sorted(set(switches))) for switches in self._homes(self.links))

    def _homes(self, links: Sequence[GraphLink]) -> list[list[int]]:
        homes: list[list[int]] = [[] for _ in range(self.hosts)]
        for link in links:
            low, high = sorted((link.one, link.other))
            if low < self.hosts:
                homes[low].append(high - self.hosts)
        return homes

    def distances(self, links: Sequence[GraphLink]) -> NDArray[np.int16]:
        """(switches, nodes): from each switch, over these links; ``UNREACHABLE`` if there is no path."""
        count = len(self.switches)
        near = np.zeros((count, count), np.float32)
        for link in links:
            low, high = sorted((link.one, link.other))
            if low >= self.hosts:
                near[low - self.hosts, high - self.hosts] = near[high - self.hosts, low - self.hosts] = 1
        between = np.full((count, count), UNREACHABLE, np.int16)
        reached = np.eye(count, dtype=np.bool_)
        newly, distance = reached, 0
        while newly.any():
            between[newly] = distance
            newly = (newly.astype(np.float32) @ near > 0) & ~reached
            reached |= newly
            distance += 1
        to_hosts = np.full((count, self.hosts), UNREACHABLE, np.int16)
        for host, switches in enumerate(self._homes(links)):
            if switches:
                nearest = between[:, switches].min(axis=1)
                to_hosts[:, host] = np.where(nearest < UNREACHABLE, nearest + 1, UNREACHABLE)
        return np.hstack([to_hosts, between])

    # -- a hierarchy of hosts, for placement

    @cached_property
    def _racks(self) -> tuple[int, ...]:
        """Number of the first of the switches that each host is linked to."""
        racks = [len(self.switches)] * self.hosts
        for link in self.links:
            low, high = sorted((link.one, link.other))
            if low < self.hosts:
                racks[low] = min(racks[low], high - self.hosts)
        return tuple(racks)

    @cached_property
    def _rack_distances(self) -> NDArray[np.int16]:
        """(racks, racks), by ascending switch."""
        racks = sorted(set(self._racks))
        return self.all_distances[racks, :][:, [self.hosts + rack for rack in racks]]

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """From racks up to the whole cluster: by host, the number of its pod, in order of first hosts.

        A pod is what short ways hold together: racks are its members that are a distance apart at most, or
        joined by others that are. Each level is of a greater distance than the one before; a level that
        joins nothing is left out. For a fat tree these are its pods.
        """
        racks = sorted(set(self._racks))
        place = {rack: number for number, rack in enumerate(racks)}
        levels = [_numbered(self._racks)]
        for distance in np.unique(self._rack_distances).tolist()[1:]:
            joined = _components(self._rack_distances <= distance)
            level = _numbered([joined[place[rack]] for rack in self._racks])
            if level != levels[-1]:
                levels.append(level)
        return tuple(levels)

    def hierarchy(self) -> FatTree:
        """Equal pods within equal pods, as placement by fragments needs them; the ways up are left out.

        Raises ``ConfigError`` for a cluster that has none, or whose hosts are not in order of their pods.
        """
        down, below = [], tuple(range(self.hosts))
        for number, level in enumerate(self.levels, start=1):
            if any(left > right for left, right in pairwise(level)):
                raise ConfigError(f"hosts are not in order of their pods of level {number}: {_ADVICE}")
            children = Counter(pod for _, pod in sorted(set(zip(below, level, strict=True))))
            sizes = set(children.values())
            if len(sizes) > 1:
                raise ConfigError(
                    f"pods of level {number} hold {min(sizes)} to {max(sizes)} of what is below, "
                    f"not equally many: {_ADVICE}"
                )
            down.append(sizes.pop())
            below = level
        return FatTree(tuple(down), (1,) * len(down))


_ADVICE: Final = "placement by fragments cannot be used, first fit and random fit can"


def _numbered(values: Sequence[int]) -> tuple[int, ...]:
    """Equal numbers for equal values, in order of their first."""
    known: dict[int, int] = {}
    return tuple(known.setdefault(value, len(known)) for value in values)


def _components(near: NDArray[np.bool_]) -> list[int]:
    """Least row that each row is joined to."""
    found = [-1] * len(near)
    for first in range(len(near)):
        stack = [first] if found[first] < 0 else []
        while stack:
            one = stack.pop()
            if found[one] < 0:
                found[one] = first
                stack += np.flatnonzero(near[one]).tolist()
    return found
