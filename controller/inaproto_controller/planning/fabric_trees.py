"""Trees that jobs on the path ``shared`` can have in a cluster: switches that need slots, and how they hang.

Candidates are those of :class:`inaproto_controller.cluster.graph_network.GraphNetwork`: roots nearest to the
hosts, along shortest paths. A switch that sums lends as many slots as the cluster file says jobs, times the
jobs that may share one by turns; where it limits jobs by port, as many as all its ports together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from inaproto.daemon.switch.tree_records import TOLD_SWITCHES_MAX
from inaproto.wire.messages.trees import FabricTree
from inaproto_controller.cluster.graph_network import GraphNetwork, GraphTree
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.planning.trees.shared_roots import Option

KNOWN_MAX: Final = 4096
"""Groups of hosts whose candidates are remembered."""
SLOTS_MAX: Final = 1 << 12


class FabricOption(NamedTuple):
    tree: FabricTree
    option: Option


class FabricTrees:
    """``share_max``: jobs that may share a slot by turns."""

    def __init__(self, topology: GraphTopology, *, share_max: int) -> None:
        self._topology = topology
        self._network = GraphNetwork(topology)
        self._hosts = {name: number for number, name in enumerate(topology.host_names)}
        self._known: dict[tuple[str, ...], tuple[FabricOption, ...]] = {}
        links = [0] * len(topology.switches)
        for link in topology.links:
            for end in (link.one, link.other):
                if end >= topology.hosts:
                    links[end - topology.hosts] += 1
        self.slots: Final[Mapping[str, int]] = {
            switch.name: min(
                share_max * (switch.jobs if switch.jobs is not None else (switch.jobs_per_port or 0) * count),
                SLOTS_MAX,
            )
            for switch, count in zip(topology.switches, links, strict=True)
            if switch.aggregates
        }
        """Slots of each switch that sums."""

    def options(self, hosts: Sequence[str]) -> tuple[FabricOption, ...]:
        """Nearest roots first; none for hosts that the cluster file has not, nor what no message can say."""
        key = tuple(hosts)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            found = self._known[key] = self._find(key)
        return found

    def _find(self, hosts: tuple[str, ...]) -> tuple[FabricOption, ...]:
        numbers = sorted({self._hosts[host] for host in hosts if host in self._hosts})
        if len(numbers) < 2 or len(numbers) < len(set(hosts)):
            return ()
        found = map(self._option, self._network.candidates(numbers))
        return tuple(one for one in found if len(one.tree.above) <= TOLD_SWITCHES_MAX)

    def _option(self, tree: GraphTree) -> FabricOption:
        """The links of a candidate are a tree: each switch is above those that are farther from the root."""
        topology = self._topology
        beside: dict[int, list[int]] = {}
        for number in tree.links:
            link = topology.links[number]
            beside.setdefault(link.one, []).append(link.other)
            beside.setdefault(link.other, []).append(link.one)
        root = topology.hosts + tree.root
        above, found = {root: root}, [root]
        for node in found:
            for other in beside.get(node, ()):
                if other >= topology.hosts and other not in above:
                    above[other] = node
                    found.append(other)
        name = topology.name
        named = sorted((name(one), name(over)) for one, over in above.items() if one != root)
        slots = tuple(sorted(name(node) for node in found if name(node) in self.slots))
        return FabricOption(FabricTree(name(root), tuple(named)), Option(name(root), slots))
