"""A planned tree, executed: its bytes counted in the simulated world, its rate measured in a world of adders.

A tree of PARING says who sends to whom; the accelerators of this project are told of it as an aggregation
tree (``inaproto.core.plan.aggregation_tree``) with its reduction plan. Two worlds execute it:

- the world of frames (``inaproto.sim.frames.world``): training ranks, RDMA, accelerators that sum real
  frames. It says what passes on every link, and the sums are compared bit by bit with numpy's.
- the world of adders (``inaproto_controller.simulate.timed.tree_rate``): the same tree in virtual time, where
  the capacities of switches and servers are what limits. It says how fast the tree goes. It is a model beside
  the first one.

How a tree becomes one that switches execute, and what was decided for it:

- *The parameter server adds up*, as a switch does. Here a switch at its place does it, the root of the tree,
  which has one link: that of the server. It adds what comes from below and sends the sums back down.
- *A worker with children* is a switch of its own too, at its server, and the worker a rank at it; what goes
  between the two crosses no link of the network.
- *Switches that only pass on* steer (``aggregates`` is false), and sums of others go through them.
- *Unfolded*: one ring has one role at a switch, but a switch of a plan may add up and also pass on for an
  edge of the same tree, or pass on towards two parents. Each of these places is a switch of the world of its
  own; all of one parent share theirs. A link of the network is then several of the world, and has the sum of
  their bytes. ``Unfolded.places`` tells which; ``Routes`` chooses paths that make them few.

Ranks are the workers in order. Raises ``LocalMisuse`` for what is no tree of the task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, partial
from typing import Final

from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.core.rendezvous.fabric.shapes import tree_of
from inaproto.core.switch.message_packets import DATA_OPCODES
from inaproto.errors import InvariantBroken, LocalMisuse
from inaproto.sim.frames.checkers import all_checkers
from inaproto.sim.frames.checkers.checker import Checker
from inaproto.sim.frames.draw.swarm import JobConfig, WorldConfig
from inaproto.sim.frames.draw.topology import LinkConfig, SwitchConfig, Topology
from inaproto.sim.frames.world import World
from inaproto.units import Frames
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype
from inaproto.wire.roce import Opcode
from inaproto.wire.vector import RoceRun, decode_runs
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.planning.paring.model import (
    Accounting,
    Node,
    PlacedTree,
    ProgrammableNetwork,
    Task,
    measure,
)
from inaproto_controller.planning.paring.routes import Hop, Routes
from inaproto_controller.simulate.timed.tree_rate import Adder, SteadyRate, steady_rate

MTU: Final = 1024
_OPENING: Final = (Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM)
FAST: Final = LinkConfig(rate_bps=10**11, delay_ns=500)
"""Far faster than any adder."""


@dataclass(frozen=True, slots=True)
class Place:
    """A switch of the world."""

    name: str
    node: Node
    """Node of the network where it is."""
    above: int
    """Number of the next place towards the PS; -1: it is the PS."""
    adds: bool


@dataclass(frozen=True)
class Unfolded:
    """A tree as the switches of a world; see the module."""

    topology: GraphTopology
    workers: tuple[Node, ...]
    """Workers by rank."""
    places: tuple[Place, ...]
    """The PS first, and each behind the one above it."""
    seats: tuple[int, ...]
    """Place at which each rank is."""

    @classmethod
    def of(cls, network: ProgrammableNetwork, tree: PlacedTree) -> Unfolded:
        return _Unfolding(network, tree).unfolded()

    @cached_property
    def root(self) -> TreeSwitch:
        """What switches are told of; children are in the order of the lowest rank of each."""
        parts: list[list[TreeSwitch | int]] = [[] for _ in self.places]
        made: dict[int, TreeSwitch] = {}
        for rank, seat in enumerate(self.seats):
            parts[seat].append(rank)
        for number in range(len(self.places) - 1, -1, -1):
            place = self.places[number]
            made[number] = TreeSwitch(place.name, tuple(sorted(parts[number], key=_lowest)), place.adds)
            if place.above >= 0:
                parts[place.above].append(made[number])
        return made[0]

    @property
    def plan(self) -> ReductionPlan:
        """The order of every addition."""
        return ReductionPlan.from_tree(self.root)

    @cached_property
    def hops(self) -> Mapping[str, Hop]:
        """Links of the network, towards the PS, by direction of a link of the world.

        One between a worker and the adder at its own server is none.
        """
        found = {}
        for place in self.places[1:]:
            above = self.places[place.above]
            found[f"{place.name}>{above.name}"] = (place.node, above.node)
        for rank, seat in enumerate(self.seats):
            place = self.places[seat]
            if place.node != self.workers[rank]:
                found[f"host{rank}>{place.name}"] = (self.workers[rank], place.node)
        return found

    def fabric(self) -> Topology:
        """For a world of frames."""
        return Topology(
            tuple(
                SwitchConfig(one.name, one.above, FAST, aggregates=one.adds, passes_sums=not one.adds)
                for one in self.places
            ),
            self.seats,
        )


def _lowest(child: TreeSwitch | int) -> int:
    return child if isinstance(child, int) else min(child.ranks)


class _Unfolding:
    def __init__(self, network: ProgrammableNetwork, tree: PlacedTree) -> None:
        self._topology = network.topology
        self._tree = tree
        self._workers = tree.workers(network)
        self._paths = Routes(network.topology, tree).paths
        self._places: list[Place] = []
        self._passing: dict[tuple[Node, Node], int] = {}
        """Counts by parent, and node that passes on to it."""

    def unfolded(self) -> Unfolded:
        tree, hosts = self._tree, self._topology.hosts
        below: dict[Node, list[Node]] = {}
        for node, parent in sorted(tree.parents.items()):
            below.setdefault(parent, []).append(node)
        adders = {tree.ps: self._add(tree.ps, -1, adds=True)}
        seats: dict[Node, int] = {}
        ahead = [tree.ps]
        for parent in ahead:  # which grows
            for child in below[parent]:
                place = self._entry(child, parent, adders[parent])
                if child in below:
                    adders[child] = place = self._add(child, place, adds=True)
                    ahead.append(child)
                if child < hosts:
                    seats[child] = place
        return Unfolded(
            self._topology,
            self._workers,
            tuple(self._places),
            tuple(seats[worker] for worker in self._workers),
        )

    def _entry(self, child: Node, parent: Node, adder: int) -> int:
        """The place next to ``child`` on its way."""
        place = adder
        for node in reversed(self._paths[child][1:-1]):
            if (parent, node) not in self._passing:
                self._passing[parent, node] = self._add(node, place, adds=False)
            place = self._passing[parent, node]
        return place

    def _add(self, node: Node, above: int, *, adds: bool) -> int:
        self._places.append(Place(f"place-{len(self._places)}", node, above, adds))
        return len(self._places) - 1


@dataclass(frozen=True, slots=True)
class Carried:
    """What the links of the network carried towards the PS."""

    operations: int
    operation_bytes: int
    """Bytes of the tensor of each rank, in one all-reduce."""
    link_bytes: Mapping[Hop, int]
    """Tensor bytes, of all operations; headers and what else the protocol needs are not counted."""

    @property
    def hops(self) -> Fraction:
        """Links that carried the gradients of one iteration, each as often as it did."""
        return Fraction(sum(self.link_bytes.values()), self.operations * self.operation_bytes)


@dataclass(slots=True)
class _Counted:
    of: Mapping[str, Hop]
    bytes_of: Counter[Hop] = field(default_factory=Counter)

    def see(self, link: str, frame: Frames) -> None:
        if link not in self.of:
            return
        for run in decode_runs(frame):
            if isinstance(run, RoceRun) and run.opcode in DATA_OPCODES:
                header = INA_HEADER_BYTES if run.opcode in _OPENING else 0
                self.bytes_of[self.of[link]] += len(run.frames) * (run.payload_bytes - header)


def carry(
    unfolded: Unfolded,
    *,
    elements: Sequence[int] = (1000, 3),
    dtype: Dtype = Dtype.F32,
    seed: str = "paring",
    checkers: Callable[[], Sequence[Checker]] = all_checkers,
) -> Carried:
    """Execute all-reduces of so many elements, without faults, in the world of frames.

    Every rule of the world is checked, and every result with numpy, bit by bit. Raises ``InvariantBroken``
    for one that is broken.
    """
    ranks = len(unfolded.workers)
    if ranks < 2:
        raise LocalMisuse("an all-reduce of one worker: there is nothing to add")
    job = JobConfig("job", tuple(range(ranks)), tuple(elements), dtype, mtu=MTU, depth=len(elements))
    config = WorldConfig(seed, (job,), (FAST,) * ranks, topology=unfolded.fabric(), to_root=True)
    world = World(config, checkers=checkers())
    assert world.fabric is not None, "it has several switches"
    names = [unfolded.places[seat].name for seat in unfolded.seats]
    if tree_of(world.fabric.switches, names, world.along) != unfolded.root:
        raise InvariantBroken("the tree that the world lays is not the planned one")
    counted = _Counted(unfolded.hops)
    for link in world.links:
        link.tap = counted.see
    result = world.run()
    if result.violation is not None:
        raise InvariantBroken(f"a planned tree broke a rule of the world: {result.violation}")
    nbytes = sum(elements) * dtype.itemsize
    return Carried(1, nbytes, dict(sorted(counted.bytes_of.items())))


def go(network: ProgrammableNetwork, task: Task, tree: PlacedTree) -> SteadyRate:
    """The rate at which the tree goes in the world of adders, which is told of the capacities and of the tree
    that switches are told of. Raises ``Unsupported`` where that does not become steady."""
    measure(network, task, tree)
    unfolded = Unfolded.of(network, tree)
    adder = partial(adder_at, network, task, tree)
    adders = {place.name: adder(place.node) for place in unfolded.places if place.adds}
    return steady_rate(unfolded.root, adders, task.rate_cap)


def adder_at(network: ProgrammableNetwork, task: Task, tree: PlacedTree, node: Node) -> Adder:
    """What adds up at the node, and how fast."""
    is_switch = node >= network.topology.hosts
    if not is_switch and node != tree.ps:
        return Adder(task.worker_capacity)
    return Adder(network.capacities[node], int(is_switch and task.accounting is Accounting.PAPER))
