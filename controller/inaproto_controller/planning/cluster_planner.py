"""The planners that there are, for the hosts and switches of one cluster file, by name.

Hosts by fewest fragments (MINA, Algorithm 1) where the cluster has equal pods within equal pods, else the
lowest free ones; or, with a ``joint`` planner, together with their trees (PARING). Other trees by
:mod:`inaproto_controller.planning.trees.sticky`, each for itself: two jobs whose trees want the same slot are
for the sharing groups of a running controller.

What is remembered from one question to the next saves time and changes no answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from inaproto.core.sharing.model_trace import ModelTrace
from inaproto.errors import ConfigError
from inaproto.wire.messages.trees import FabricTree
from inaproto_controller.cluster.desired import TreeNames
from inaproto_controller.cluster.graph_network import GraphNetwork, GraphTree
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.cluster.model import CLUSTER, measured
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.planning.paring.live_placement import JointPlacement
from inaproto_controller.planning.placement.least_fragments import LeastFragments
from inaproto_controller.planning.placement.occupancy import Occupancy
from inaproto_controller.planning.placement.simple import FirstFit
from inaproto_controller.planning.trees.builder import TreeJob
from inaproto_controller.planning.trees.sticky import StickyTrees

STEPS_LEFT: Final = 1000
"""Steps that every job is taken to have left: nobody says how long it goes on."""
_UNKNOWN_MODEL: Final = ModelTrace("unknown", 0.0, (0.0,), (1 << 28,))
"""All its time goes into an all-reduce, so that it gains by INA as much as any can."""


class Resource(NamedTuple):
    """Where slots are: at a switch that sums, or at its port to a link."""

    agent: str
    port: str


@dataclass(frozen=True, slots=True)
class TreeWished:
    """A job with hosts, and which tree it has."""

    number: int
    hosts: tuple[str, ...]
    model: str | None
    tree: TreeNames | None


class ClusterPlanner:
    """Raises ``ConfigError`` for a cluster in which no job could have a host. ``joint``: who chooses hosts
    and trees together, if anybody does."""

    def __init__(self, topology: GraphTopology, joint: JointPlacement | None = None) -> None:
        self.topology = topology
        self.joint: Final = joint
        self.hosts: Final = frozenset(topology.host_names)
        self.summing: Final = frozenset(switch.name for switch in topology.switches if switch.aggregates)
        """Switches where trees take slots; others pass packets on and are not asked."""
        self.sharp: Final = frozenset(switch.name for switch in topology.switches if switch.sharp)
        """Those of them that sum by SHARP, which no agent speaks for."""
        self._network = GraphNetwork(topology)
        self._number = {name: number for number, name in enumerate(topology.host_names)}
        self._builder = StickyTrees(self._network, may_share=False)
        self._entered: dict[int, tuple[tuple[str, ...], list[TreeNames]]] = {}
        """Hosts and candidates by job."""
        self.no_fragments = ""
        """Why hosts are not placed by fragments, if they are not."""
        self._placement: LeastFragments | FirstFit
        try:
            self._placement = LeastFragments(topology.hierarchy())
        except ConfigError as error:
            self.no_fragments = str(error)
            self._placement = FirstFit()

    # -- hosts

    @property
    def placement(self) -> str:
        """Rule by which hosts are chosen, for people."""
        rule = f"first fit: {self.no_fragments}" if self.no_fragments else "least fragments"
        return rule if self.joint is None else f"paring, with trees; where there is none, {rule}"

    def occupancy(self, free: Collection[str]) -> Occupancy:
        """In which only these hosts are free."""
        occupancy = Occupancy(self.topology)
        occupancy.take(number for name, number in self._number.items() if name not in free)
        return occupancy

    def take(self, occupancy: Occupancy, hosts: Iterable[str]) -> None:
        """Raises ``LocalMisuse`` for one that is not free."""
        occupancy.take(self._number[name] for name in hosts)

    def place(self, occupancy: Occupancy, count: int) -> tuple[str, ...] | None:
        """Of those that are free; in the order of the cluster file. None if fewer are free."""
        places = self._placement.place(occupancy, count)
        return None if places is None else tuple(self.topology.host_names[place] for place in places)

    # -- trees

    @cached_property
    def capacities(self) -> Mapping[Resource, int]:
        """How many slots there are, where there are some."""
        capacities = self._network.capacities.tolist()
        return {
            resource: capacities[number]
            for number, resources in enumerate(self._resources)
            for resource in resources
        }

    @cached_property
    def _resources(self) -> list[list[Resource]]:
        """Resources by the network's numbers: a link has a port at each end that sums."""
        found = []
        for part, name, ends in self._network.resource_names():
            if part == "switch":
                found.append([Resource(name, "")])
            else:
                found.append([Resource(end, name) for end in ends if end in self.summing])
        return found

    def used(self, number: int, tree: TreeNames) -> list[Resource]:
        """What a candidate of an entered job takes one slot of, each."""
        root = self._entered[number][1].index(tree)
        used = self._network.resources(number, root)
        return [resource for one in used for resource in self._resources[one]]

    def candidates(self, number: int) -> Sequence[TreeNames]:
        """Candidates of an entered job."""
        return self._entered[number][1]

    def sharp_roots(self, number: int) -> list[str]:
        """Roots of a job's candidates in switches that sum by SHARP; none, if the job is not entered."""
        _, trees = self._entered.get(number, ((), ()))  # asked while another thread plans
        return [tree.root for tree in trees if self.sharp.intersection(tree.switches)]

    def build(
        self, wishes: Sequence[TreeWished], barred: Mapping[int, Collection[TreeNames]]
    ) -> dict[int, TreeNames]:
        """First trees for those without one. ``wishes``: all jobs with several hosts, by number, entered by
        :meth:`enter`; ``barred``: candidates that a job cannot have now."""
        jobs, new = [], []
        for place, wish in enumerate(wishes):
            candidates = self._entered[wish.number][1]
            tree = candidates.index(wish.tree) if wish.tree in candidates else None
            if tree is None:
                new.append(place)
            out = frozenset(candidates.index(one) for one in barred.get(wish.number, ()))
            times = _times(wish.model)
            jobs.append(
                TreeJob(
                    wish.number,
                    wish.number,
                    len(wish.hosts),
                    times,
                    len(candidates),
                    tree,
                    steps_left=STEPS_LEFT,
                    barred=out,
                )
            )
        changes = self._builder.build(jobs, new, now=0.0, completed=True)
        return {
            number: self._entered[number][1][root]
            for number, root in sorted(changes.items())
            if root is not None
        }

    def named(self, tree: FabricTree) -> TreeNames:
        """A tree of a fabric, with the links between its switches."""
        above = dict(tree.above)
        links = [
            self.topology.link_name(number)
            for number, (one, other) in enumerate(self._ends)
            if above.get(one) == other or above.get(other) == one
        ]
        return TreeNames(tree.root, tuple(sorted((tree.root, *above))), tuple(sorted(links)))

    @cached_property
    def _ends(self) -> list[tuple[str, str]]:
        """Names of the ends of each link."""
        name = self.topology.name
        return [(name(link.one), name(link.other)) for link in self.topology.links]

    def gains(self, model: str | None) -> bool:
        """Whether steps of that model are shorter with a tree; who gains nothing gets none."""
        times = _times(model)
        return times.step_ina < times.step_plain

    def enter(self, wishes: Sequence[TreeWished]) -> None:
        """Those are the jobs from now on."""
        wanted = {wish.number: wish.hosts for wish in wishes}
        for number, (hosts, _) in list(self._entered.items()):
            if wanted.get(number) != hosts:
                self._network.leave(number)
                del self._entered[number]
        for number, hosts in wanted.items():
            if number not in self._entered:
                count = self._network.enter(number, [self._number[host] for host in hosts])
                names = [self._names(self._network.tree(number, root)) for root in range(count)]
                self._entered[number] = hosts, names

    def _names(self, tree: GraphTree) -> TreeNames:
        topology = self.topology
        return TreeNames(
            topology.switches[tree.root].name,
            tuple(sorted(topology.switches[number].name for number in tree.switches)),
            tuple(sorted(topology.link_name(number) for number in tree.links)),
        )


def _times(model: str | None) -> StepTimes:
    known = _TIMES.get(model)
    if known is None:
        trace = _UNKNOWN_MODEL if model is None else measured(model)
        known = _TIMES[model] = StepTimes(trace, CLUSTER, hosts=2)
    return known


_TIMES: Final[dict[str | None, StepTimes]] = {}
"""As many as there are measured models."""
