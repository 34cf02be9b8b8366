"""Where the hosts and switches of a world hang: one switch, or a tree of them.

A world's *active* links form one spanning tree rooted at its first switch: the switches bridge, and bridges
flood, so a loop must not carry frames. A fat tree (Al-Fares et al., SIGCOMM 2008; MINA and PARING plan on
it) has many such trees; here it is the one through the first aggregation switch of each pod and the first
core. Its other switches and links are on standby and idle; that is what ``standby_switches`` and
``standby_links`` count.

Beyond it there may be *further roots*: switches that sum and do nothing else, to which trunks lead that are
for rings alone (docs/concepts/trees.md, "Several switches"). They are numbered after all others.

Invariants: a switch comes behind the one above it; the root aggregates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from inaproto.core.rdma.dcqcn import Marking
from inaproto.errors import ConfigError
from inaproto.faults.weather import Weather
from inaproto.units import US
from inaproto.wire.messages.trees import FabricTree

SWITCH_NODE: Final = 1000
"""Node number of the first switch in traces; those of the others follow."""
SWITCHES_MAX: Final = 255
_CLEAR: Final = Weather()

Plan = tuple["int | Plan", ...]
"""Ranks in the order of addition, nested as the aggregation points are."""


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """The link of one host or between two switches; both directions are alike."""

    rate_bps: int = 10**9
    delay_ns: int = 10 * US
    queue_frames_max: int = 512
    weather: Weather = _CLEAR
    marking: Marking | None = None
    """Which packets a switch marks that wait for it; what waits in a host is not marked. Not drawn."""


@dataclass(frozen=True, slots=True)
class SwitchConfig:
    name: str
    above: int = -1
    """Number of the next switch toward the root; -1: it is the root."""
    trunk: LinkConfig = LinkConfig()
    """The link to the switch above."""
    aggregates: bool = True
    """False: its accelerator has no memory; it steers its ranks' packets to the next switch that has."""
    passes_sums: bool = False
    """Whether switches below one that steers aggregate all the same."""


@dataclass(frozen=True, slots=True)
class FurtherRoot:
    name: str
    below: tuple[int, ...]
    """Numbers of the switches that have a trunk to it."""
    trunk: LinkConfig = LinkConfig()
    """Each of them."""


@dataclass(frozen=True, slots=True)
class Topology:
    switches: tuple[SwitchConfig, ...]
    """The root first."""
    attached: tuple[int, ...]
    """For each host, the number of its switch."""
    standby_switches: int = 0
    standby_links: int = 0
    further_roots: tuple[FurtherRoot, ...] = ()

    def __post_init__(self) -> None:
        names = list(node_names(self))
        if not 1 <= len(names) <= SWITCHES_MAX or len(set(names)) != len(names):
            raise ConfigError(f"topology: 1 to {SWITCHES_MAX} switches, each of its own name")
        wrong = [name for name in names if re.fullmatch(r"[a-z][a-z0-9-]*", name) is None]
        if wrong or any(re.fullmatch(r"host\d+", name) for name in names):
            raise ConfigError(f"topology: switch names are small letters and digits, and no host's: {names}")
        for number, switch in enumerate(self.switches):
            if switch.above != -1 if number == 0 else not 0 <= switch.above < number:
                raise ConfigError(f"topology: {switch.name} comes before the switch above it")
        if not self.switches[0].aggregates:
            raise ConfigError("topology: the root must aggregate")
        last = len(self.switches) - 1
        linked = [(*self.attached, *root.below) for root in self.further_roots] or [self.attached]
        if any(not 0 <= number <= last for numbers in linked for number in numbers):
            raise ConfigError(f"topology: switches are 0 to {last}")
        for root in self.further_roots:
            if not root.below or 0 in root.below or len(set(root.below)) < len(root.below):
                raise ConfigError(f"topology: below {root.name} is a switch twice, the root, or none")

    def path_up(self, number: int, along: int = -1) -> list[int]:
        """Switches from ``number`` to the root, both included; ``along``: to that of the further roots."""
        path = [number]
        while (above := self._above(path[-1], along)) >= 0:
            path.append(above)
        return path

    def _above(self, number: int, along: int) -> int:
        if number >= len(self.switches):
            return -1
        if along >= 0 and number in self.further_roots[along].below:
            return len(self.switches) + along
        return self.switches[number].above

    def further_tree(self, number: int) -> FabricTree:
        """The tree of a further root: its links, and those of the own tree below them."""
        root, names = len(self.switches) + number, node_names(self)
        below = [one for one in range(len(self.switches)) if root in self.path_up(one, number)]
        above = sorted((names[one], names[self._above(one, number)]) for one in below)
        return FabricTree(names[root], tuple(above))

    def own_tree(self) -> FabricTree:
        """The fabric's own, up to its root."""
        below = ((switch.name, self.switches[switch.above].name) for switch in self.switches[1:])
        return FabricTree(self.switches[0].name, tuple(sorted(below)))

    def plan(self, hosts: Sequence[int], along: int = -1) -> Plan:
        """The reduction plan of a job whose rank ``r`` is on ``hosts[r]`` (docs/protocol.md 8.2).

        ``along``: the further root along whose tree its rings go.

        Written apart from what composes the trees, since results are judged by it: the ranks below an
        aggregating switch are one list, in the order of the lowest rank of each part. Below a switch that
        steers, none aggregates, unless it passes sums on.
        """
        if along >= 0:
            return tuple(self._parts(len(self.switches) + along, hosts, along, is_point=True))
        root = next(
            switch
            for switch in self.path_up(self.attached[hosts[0]])
            if self.switches[switch].aggregates
            and all(switch in self.path_up(self.attached[host]) for host in hosts)
        )
        return tuple(self._parts(root, hosts, -1, is_point=True))

    def _parts(self, switch: int, hosts: Sequence[int], along: int, *, is_point: bool) -> list[int | Plan]:
        by_part: dict[int, list[int | Plan]] = {}
        """Parts by the lowest rank of each."""
        for rank, host in enumerate(hosts):
            if self.attached[host] == switch:
                by_part[rank] = [rank]
        for number, below in enumerate(self.switches):
            path = [self.path_up(self.attached[host], along) for host in hosts]
            ranks = [rank for rank, switches in enumerate(path) if number in switches]
            if self._above(number, along) == switch and ranks:
                adds = is_point and below.aggregates
                may = is_point and (below.aggregates or below.passes_sums)
                parts = self._parts(number, hosts, along, is_point=may)
                by_part[min(ranks)] = [tuple(parts)] if adds else parts
        return [part for lowest in sorted(by_part) for part in by_part[lowest]]


def node_names(topology: Topology | None) -> tuple[str, ...]:
    """Names of the switches, in the order of their nodes."""
    if topology is None:
        return ("switch",)
    own = tuple(switch.name for switch in topology.switches)
    return own + tuple(root.name for root in topology.further_roots)


def leaf_spine(racks: int, hosts: int, *, trunk: LinkConfig | None = None) -> Topology:
    """``racks`` leaves under one spine; the hosts are dealt out in blocks, the first racks get more."""
    trunk = trunk or LinkConfig()
    leaves = tuple(SwitchConfig(f"leaf{rack}", 0, trunk) for rack in range(racks))
    attached = tuple(1 + host * racks // hosts for host in range(hosts))
    return Topology((SwitchConfig("spine"), *leaves), attached)


def fat_tree(k: int, hosts: int, *, trunk: LinkConfig | None = None) -> Topology:
    """The active tree of a fat tree of ``k``-port switches, with its first ``hosts`` hosts.

    ``k`` pods of k/2 edge and k/2 aggregation switches, (k/2)^2 cores, k/2 hosts at each edge switch. Pods
    without hosts are left out, as part of the standby.
    """
    if k < 2 or k % 2 or not 1 <= hosts <= k**3 // 4:
        raise ConfigError(f"fat-tree:{k}: k is even, and it has 1 to k^3/4 = {max(0, k) ** 3 // 4} hosts")
    trunk, half = trunk or LinkConfig(), k // 2
    switches = [SwitchConfig("core0")]
    attached: list[int] = []
    for pod in range(k):
        left = hosts - len(attached)
        edges = min(half, -(-left // half))
        if not edges:
            break
        aggregation = len(switches)
        switches.append(SwitchConfig(f"pod{pod}-agg0", 0, trunk))
        for edge in range(edges):
            attached += [len(switches)] * min(half, hosts - len(attached))
            switches.append(SwitchConfig(f"pod{pod}-edge{edge}", aggregation, trunk))
    all_switches, all_links = half * half + k * k, 2 * k * half * half
    return Topology(
        tuple(switches),
        tuple(attached),
        standby_switches=all_switches - len(switches),
        standby_links=all_links - (len(switches) - 1),
    )


def parse_topology(text: str, hosts: int) -> Topology:
    """``fat-tree:K`` or ``leaf-spine:RACKS``. Raises ``ConfigError`` that says what to write."""
    kind, _, number = text.partition(":")
    if kind not in ("fat-tree", "leaf-spine") or re.fullmatch(r"[0-9]{1,3}", number) is None:
        raise ConfigError(f"topology {text!r}: write fat-tree:K (K even) or leaf-spine:RACKS")
    if kind == "fat-tree":
        return fat_tree(int(number), hosts)
    if not 1 <= int(number) <= hosts:
        raise ConfigError(f"topology {text}: 1 to {hosts} racks for {hosts} hosts")
    return leaf_spine(int(number), hosts)


def map_trunks(topology: Topology, change: Callable[[LinkConfig], LinkConfig]) -> Topology:
    """The topology with other links between its switches; the root has none upward."""
    below = (replace(switch, trunk=change(switch.trunk)) for switch in topology.switches[1:])
    further = tuple(replace(root, trunk=change(root.trunk)) for root in topology.further_roots)
    return replace(topology, switches=(topology.switches[0], *below), further_roots=further)
