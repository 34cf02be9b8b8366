"""Aggregation trees in clusters of any shape: candidates by shortest paths, conflicts by bit sets.

MINA, section III-C, beyond fat trees. A candidate's root is a switch that aggregates, and hosts send along
shortest paths to it. Roots nearest to the hosts come first: those with the shortest way from the host that is
farthest, which in a fat tree are the closest common ancestors. Of several shortest ways a root's first tree
takes the lowest numbers, its second the next, and so on; trees that use the same as an earlier one are left
out, and those whose inputs would join at a switch that does not aggregate. So the same hosts have the same
candidates always, and a job may have none.

A tree uses once each switch in it that aggregates and has a quota, also one that only passes its packets on,
and once each link that has one. With a quota of 1 whatever two trees share excludes them; with more, how many
there are decides: ``resources`` and ``capacities`` say it, pairs do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import ConfigError, LocalMisuse
from inaproto_controller.cluster.compiled import jit
from inaproto_controller.cluster.graph_topology import UNREACHABLE, GraphTopology
from inaproto_controller.cluster.network import Bools, Ints

Words = NDArray[np.uint64]

ROOTS_MAX: Final = 64
WAYS_BYTES_MAX: Final = 1 << 26
"""Most bytes of what is remembered of ways; with more, all is forgotten."""


class _Ways(NamedTuple):
    """One way for each node towards a root; -1 where there is none. (nodes,) int32 each."""

    node: memoryview
    """The next node."""
    link: memoryview
    """The link to it."""
    options: memoryview
    """Among how many it was chosen."""


class GraphTree(NamedTuple):
    """Numbers ascend."""

    root: int
    """Number of the switch; -1 for the empty tree of one host."""
    switches: tuple[int, ...]
    """All, those included that only pass packets on."""
    links: tuple[int, ...]


class _Job(NamedTuple):
    trees: tuple[GraphTree, ...]
    resources: tuple[tuple[int, ...], ...]
    """Resources by root."""
    exclusive: Words
    """(roots, words): bits of the resources for one tree at a time."""


class GraphNetwork:
    """``slack``: how many links farther than the nearest roots others may be. ``roots_max``: candidates of a
    job, at least 1; the nearest roots' trees are kept."""

    def __init__(self, topology: GraphTopology, *, roots_max: int = ROOTS_MAX, slack: int = 0) -> None:
        if roots_max < 1 or slack < 0:
            raise ConfigError(f"roots_max {roots_max}, slack {slack}: at least 1 and at least 0")
        self.topology = topology
        self.roots_max = roots_max
        self.slack = slack
        numbers = [number for number, link in enumerate(topology.links) if topology.link_jobs(link) != 0]
        self._usable = [topology.links[number] for number in numbers]
        whole = len(self._usable) == len(topology.links)
        self._distances = topology.all_distances if whole else topology.distances(self._usable)
        self._can_join = [switch.aggregates for switch in topology.switches]
        self._set_edges(numbers)
        self._set_resources()
        self._ways: dict[tuple[int, int], _Ways] = {}
        self._ways_max = max(1, WAYS_BYTES_MAX // (12 * topology.nodes))
        self._jobs: dict[int, _Job] = {}

    def _set_edges(self, numbers: list[int]) -> None:
        """Both directions of each link, by node, then by the node that it leads to, then by number."""
        rows = []
        for number, link in zip(numbers, self._usable, strict=True):
            rows += [(link.one, link.other, number), (link.other, link.one, number)]
        # Hosts pass nothing on: no way leads through them.
        rows = sorted(row for row in rows if row[1] >= self.topology.hosts)
        self._edges = np.array(rows, np.int64).reshape(-1, 3)

    def _set_resources(self) -> None:
        """Numbers of what is limited: switches first, then links."""
        topology = self.topology
        capacities: list[int] = []
        self._switch_resources = [-1] * len(topology.switches)
        for number, switch in enumerate(topology.switches):
            if switch.aggregates and switch.jobs is not None:
                self._switch_resources[number] = len(capacities)
                capacities.append(switch.jobs)
        self._link_resources = [-1] * len(topology.links)
        for number, link in enumerate(topology.links):
            jobs = topology.link_jobs(link)
            if jobs:
                self._link_resources[number] = len(capacities)
                capacities.append(jobs)
        self._capacities = np.array(capacities, np.int64)
        self._words = max(1, -(-len(capacities) // 64))

    @property
    def hosts(self) -> int:
        return self.topology.hosts

    @property
    def switches(self) -> int:
        return len(self.topology.switches)

    @property
    def is_counted(self) -> bool:
        """Whether a capacity is above 1."""
        return bool((self._capacities > 1).any())

    @property
    def capacities(self) -> Ints:
        """(resources,) int64, read only: how many trees may use each at a time, at least 1."""
        view = self._capacities.view()
        view.flags.writeable = False
        return view

    def resource_names(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """Names of each capacity: "switch" or "link", its name, and those of a link's ends."""
        topology = self.topology
        found: list[tuple[str, str, tuple[str, ...]]] = [("", "", ())] * len(self._capacities)
        for number, one in enumerate(self._switch_resources):
            if one >= 0:
                found[one] = ("switch", topology.switches[number].name, ())
        for number, one in enumerate(self._link_resources):
            if one >= 0:
                link = topology.links[number]
                found[one] = (
                    "link",
                    topology.link_name(number),
                    (topology.name(link.one), topology.name(link.other)),
                )
        return found

    # -- jobs

    def enter(self, slot: int, hosts: Sequence[int]) -> int:
        """How many candidates the job has: 0 if no switch can sum for its hosts.

        Raises ``LocalMisuse`` for a slot that is not free and for hosts that are none or not there.
        """
        places = sorted(set(hosts))
        if not places or places[0] < 0 or places[-1] >= self.hosts:
            raise LocalMisuse(f"hosts {hosts} of slot {slot}: some of 0 to {self.hosts - 1}")
        if slot < 0 or slot in self._jobs:
            raise LocalMisuse(f"slot {slot} is not free")
        trees = self.candidates(places)
        resources = tuple(self._used(tree) for tree in trees)
        exclusive = np.zeros((len(trees), self._words * 64), np.bool_)
        for root, used in enumerate(resources):
            exclusive[root, [one for one in used if self._capacities[one] == 1]] = True
        bits = np.packbits(exclusive, axis=1, bitorder="little").view(np.uint64)
        self._jobs[slot] = _Job(trees, resources, bits)
        return len(trees)

    def leave(self, slot: int) -> None:
        self._job(slot)
        del self._jobs[slot]

    def _job(self, slot: int) -> _Job:
        job = self._jobs.get(slot)
        if job is None:
            raise LocalMisuse(f"no job in slot {slot}")
        return job

    def tree(self, slot: int, root: int) -> GraphTree:
        return self._job(slot).trees[root]

    def tree_size(self, slot: int, root: int) -> tuple[int, int]:
        """Switches and links."""
        tree = self.tree(slot, root)
        return len(tree.switches), len(tree.links)

    def resources(self, slot: int, root: int) -> tuple[int, ...]:
        """Resources of a tree, ascending: indexes into ``capacities``. It uses one of each."""
        return self._job(slot).resources[root]

    def shared(self, slot: int, root: int) -> Sequence[tuple[int, int]]:
        """What the tree uses that more than one may use at a time, by number, and how many may."""
        capacities = self._capacities
        return [(one, int(capacities[one])) for one in self.resources(slot, root) if capacities[one] > 1]

    def _used(self, tree: GraphTree) -> tuple[int, ...]:
        used = [self._switch_resources[number] for number in tree.switches]
        used += [self._link_resources[number] for number in tree.links]
        return tuple(one for one in used if one >= 0)

    def roots_through(self, slot: int, switch: int) -> Ints:
        """Those of its roots whose trees have that switch, ascending."""
        trees = self._job(slot).trees
        return np.array([root for root, tree in enumerate(trees) if switch in tree.switches], np.int64)

    def slots_through(self, switch: int) -> Sequence[int]:
        """All slots."""
        return list(self._jobs)

    def hosts_at(self, switch: int) -> Ints:
        """Hosts that are linked to it, ascending."""
        topology = self.topology
        node = topology.hosts + switch
        if not 0 <= switch < self.switches:
            raise LocalMisuse(f"no switch {switch}; there are {self.switches}")
        ends = [(link.one, link.other) for link in topology.links if node in (link.one, link.other)]
        return np.array(sorted({min(pair) for pair in ends if min(pair) < topology.hosts}), np.int64)

    # -- conflicts

    def near(self, slot: int) -> Ints:
        """Slots of all others, ascending."""
        self._job(slot)
        return np.array(sorted(other for other in self._jobs if other != slot), np.int64)

    def conflicts(self, slots: Ints, roots: Ints) -> Bools:
        """(n, n) bool: whether trees share what is for one at a time; trees of one slot always exclude."""
        if not slots.size:
            return np.zeros((0, 0), np.bool_)
        bits = self._bits(slots, roots)
        return _conflicts(slots.astype(np.int64), bits)

    def conflicts_with(self, slot: int, root: int, slots: Ints, roots: Ints) -> Bools:
        """(n,) bool: that tree against each of these; False for trees of the same slot."""
        if not slots.size:
            return np.zeros(0, np.bool_)
        shared: Bools = (self._bits(slots, roots) & self._job(slot).exclusive[root]).any(axis=1)
        shared &= slots != slot
        return shared

    def _bits(self, slots: Ints, roots: Ints) -> Words:
        pairs = zip(slots.tolist(), roots.tolist(), strict=True)
        return np.array([self._job(slot).exclusive[root] for slot, root in pairs])

    # -- candidates

    def candidates(self, hosts: Sequence[int]) -> tuple[GraphTree, ...]:
        """``hosts``: each once. In the order of the module's head; at most ``roots_max``."""
        if len(hosts) == 1:
            return (GraphTree(-1, (), ()),)
        found: dict[tuple[tuple[int, ...], tuple[int, ...]], GraphTree] = {}
        roots = self._nearest(hosts)
        farthest, turn = UNREACHABLE, 0
        while roots:
            others = []
            for distance, root in roots:
                if distance > farthest:
                    break
                tree, options = self._grow(root, turn, hosts)
                if options > turn + 1:
                    others.append((distance, root))
                if tree is not None:
                    farthest = min(farthest, distance + self.slack)
                    found.setdefault((tree.switches, tree.links), tree)
                    if len(found) == self.roots_max:
                        return tuple(found.values())
            roots = others
            turn += 1
        return tuple(found.values())

    def _nearest(self, hosts: Sequence[int]) -> list[tuple[int, int]]:
        """Switches that aggregate and reach all hosts, with the distance of the farthest host; nearest first,
        by the farthest host, then by the sum over hosts, then by number."""
        distances = self._distances[:, list(hosts)].astype(np.int64)
        farthest = distances.max(axis=1)
        near = np.flatnonzero(np.array(self._can_join) & (farthest < UNREACHABLE))
        order = np.lexsort((near, distances.sum(axis=1)[near], farthest[near]))
        return [(int(farthest[root]), int(root)) for root in near[order]]

    def _grow(self, root: int, turn: int, hosts: Sequence[int]) -> tuple[GraphTree | None, int]:
        """The tree, None if it cannot sum; and among how many ways its nodes could choose at most."""
        first = self.topology.hosts
        top, ways = first + root, self._ways_to(root, turn)
        inputs: dict[int, int] = {}
        links, options = [], 0
        for host in hosts:
            node, seen = host, 0
            while not seen and node != top:
                links.append(ways.link[node])
                options = max(options, ways.options[node])
                node = ways.node[node]
                seen = inputs.get(node, 0)
                inputs[node] = seen + 1
        # With one input a root only passes on what was summed below it.
        joins = [node - first for node, count in inputs.items() if count > 1]
        if inputs[top] < 2 or not all(self._can_join[switch] for switch in joins):
            return None, options
        return GraphTree(root, tuple(sorted(node - first for node in inputs)), tuple(sorted(links))), options

    def _ways_to(self, root: int, turn: int) -> _Ways:
        found = self._ways.get((root, turn))
        if found is None:
            if len(self._ways) >= self._ways_max:
                self._ways.clear()
            found = self._ways[root, turn] = self._choose(root, turn)
        return found

    def _choose(self, root: int, turn: int) -> _Ways:
        """Choose, of each node's shortest ways to the root, number ``turn``, counted round."""
        distances = self._distances[root]
        source, target, _ = self._edges.T
        nearer = np.flatnonzero(
            (distances[target] == distances[source] - 1) & (distances[source] < UNREACHABLE)
        )
        everyone = np.arange(self.topology.nodes)
        first = np.searchsorted(source[nearer], everyone)
        count = np.searchsorted(source[nearer], everyone, side="right") - first
        node, link = np.full((2, everyone.size), -1, np.int32)
        some = count > 0
        chosen = nearer[first[some] + turn % count[some]]
        node[some] = target[chosen]
        link[some] = self._edges[chosen, 2]
        return _Ways(node.data, link.data, count.astype(np.int32).data)

    def paths(self, tree: GraphTree) -> Iterator[tuple[str, str]]:
        """Its links, as the names of their ends: for messages and pictures."""
        for number in tree.links:
            link = self.topology.links[number]
            yield self.topology.name(link.one), self.topology.name(link.other)


@jit
def _conflicts(slots: Ints, bits: Words) -> Bools:
    count, words = bits.shape
    found = np.zeros((count, count), np.bool_)
    for one in range(count):
        for other in range(one):
            exclude = slots[one] == slots[other]
            word = 0
            while not exclude and word < words:
                exclude = (bits[one, word] & bits[other, word]) != 0
                word += 1
            found[one, other] = exclude
            found[other, one] = exclude
    return found
