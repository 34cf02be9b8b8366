"""Several tasks on one network: they come, take what they need, and give it back when they end.

PARING section IV-C.1, 2, 3, 5 and 6, as a pure state: no clock, no I/O. What a task takes: its servers, which
are its own; of each switch that adds up for it, rate times load of the capacity; and memory.

- *Memory* (2): a switch that has none left adds nothing up. A gradient that does not fit is cut into subtasks
  of the least free memory of the tree's switches, which go one after the other along the same tree, so that a
  switch holds one of them at a time. Where no switch has memory, all is sent straight to the PS. P4 switches
  (5) have no bound on their rate, and little memory. The paper says nothing of what is left over: here a
  switch with less than ``CHUNK_BYTES`` counts as full for what is larger, since between two subtasks lies a
  round trip, which its rate leaves out, and the smallest chunk would be that of the whole tree.
- *Several parameter servers* (3): the gradient is cut into equal parts, each with a PS and a tree of its own.
  The workers are those of the first. As in print, each tree is planned on what those before left; further PSs
  are the idle servers of most capacity, of these the nearest to the workers. The paper does not say how a
  worker's rate is shared: all parts are sent at once here, each with an equal part of it, so that the last
  one done is when all is done.
- *Replanning* (1): servers stay, trees are planned anew on what is free now; they are taken if they are
  better.
- *A scheduler* (6) says which fractions of the gradient go first. That changes no tree: ``schedule`` says
  when each is done.

Invariants: of no switch more is taken than it has, of capacity and of memory; no server is taken twice; when
a task ends, all that it took is free again, exactly. What a switch has left is worked out anew from what is
taken each time, so nothing can drift.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, NamedTuple

from inaproto.errors import Infeasible, InvariantBroken, LocalMisuse
from inaproto_controller.cluster.graph_topology import UNREACHABLE
from inaproto_controller.planning.paring.model import ZERO, Capacity, Node, ProgrammableNetwork, Task
from inaproto_controller.planning.paring.planner import Fixed, Plan, plan

CHUNK_BYTES: Final = 64 << 10
"""Least size of the subtasks of a gradient: what 10 Gbit/s carry in 52 microseconds, many round trips."""
STRAIGHT: Final = "no switch has enough memory: gradients go straight to the parameter server"
NO_CAPACITY: Final = "no switch has capacity left: gradients go straight to the parameter server"
NEITHER: Final = "no switch has both capacity and memory left: gradients go straight to the parameter server"
NO_FURTHER: Final = "no further server is idle to be a parameter server"
FURTHER_UNABLE: Final = "no further idle server that is linked to the workers can add gradients up"
FURTHER_APART: Final = "no path leads from the workers to any further idle server"
NONE_PROGRAMMABLE: Final = "no switch can add up: gradients go straight to the parameter server"


@dataclass(frozen=True, slots=True)
class Subtasks:
    """Subtasks of a part, one after the other; several where memory is short."""

    each_bytes: int
    whole: int
    """So many of ``each_bytes``."""
    rest_bytes: int
    """Bytes of one more at the end; 0: there is none."""

    @property
    def count(self) -> int:
        return self.whole + (self.rest_bytes > 0)

    @property
    def nbytes(self) -> int:
        return self.whole * self.each_bytes + self.rest_bytes


@dataclass(frozen=True)
class Part:
    """Part of a gradient: with one parameter server, along one tree."""

    plan: Plan
    """Its task has the bytes of the part."""
    subtasks: Subtasks

    @cached_property
    def held_bytes(self) -> dict[Node, int]:
        """Bytes held of the memory of each of its switches."""
        return dict.fromkeys(self.plan.tree.switches(self.plan.network), self.subtasks.each_bytes)


@dataclass(frozen=True)
class Admitted:
    task: Task
    parts: tuple[Part, ...]
    reason: str = ""
    """Why it is not as it could be; empty: nothing is short."""

    @property
    def workers(self) -> tuple[Node, ...]:
        return self.parts[0].plan.tree.workers(self.parts[0].plan.network)

    @property
    def servers(self) -> tuple[Node, ...]:
        """Workers and parameter servers."""
        return (*self.workers, *(part.plan.tree.ps for part in self.parts))

    @property
    def rate(self) -> Fraction:
        """Gbit/s of gradient that a worker sends, all parts at once, until the last is done."""
        return self.task.gradient_bytes * 8 / (self.seconds * 10**9)

    @property
    def hops(self) -> Fraction:
        """Links per byte of gradient."""
        return Fraction(self.traffic_bytes, self.task.gradient_bytes)

    @property
    def traffic_bytes(self) -> int:
        return sum(part.plan.traffic_bytes for part in self.parts)

    @property
    def fee(self) -> Fraction:
        """Fee of all switches, each once, in links."""
        return sum((part.plan.fee for part in self.parts), ZERO)

    @property
    def seconds(self) -> Fraction:
        return max(part.plan.seconds for part in self.parts)


class Sent(NamedTuple):
    """A fraction of a gradient, by a communication scheduler."""

    fraction: Fraction
    priority: int
    ends: Fraction
    """Seconds after the first is begun."""


def schedule(admitted: Admitted, fractions: Sequence[tuple[Fraction, int]]) -> tuple[Sent, ...]:
    """When each is aggregated, of a higher priority first, else in order. Raises ``LocalMisuse`` unless they
    are the whole."""
    if any(fraction <= 0 for fraction, _ in fractions) or sum(one for one, _ in fractions) != 1:
        raise LocalMisuse("the fractions of a gradient are more than 0 and together 1")
    done, sent = ZERO, []
    for fraction, priority in sorted(fractions, key=lambda one: -one[1]):
        done += fraction
        sent.append(Sent(fraction, priority, done * admitted.seconds))
    return tuple(sent)


@dataclass(frozen=True)
class Tenants:
    """A network and the tasks on it. ``admitted``, ``left`` and ``replanned`` give the state after."""

    network: ProgrammableNetwork
    memory: Mapping[Node, int] = field(default_factory=dict)
    """Bytes for gradients, of the switches that have a limit."""
    running: Mapping[str, Admitted] = field(default_factory=dict)
    """Tasks by name, in order of arrival."""
    others: frozenset[Node] = frozenset()
    """Servers that are taken by something else."""

    def __post_init__(self) -> None:
        hosts = self.network.topology.hosts
        for node, nbytes in self.memory.items():
            if not hosts <= node < self.network.topology.nodes or nbytes < 0:
                raise LocalMisuse(f"memory of node {node}, {nbytes} bytes: of a switch, 0 or more")

    # -- what is taken, and what is free

    @cached_property
    def busy(self) -> frozenset[Node]:
        return self.others.union(*(task.servers for task in self.running.values()))

    def taken(self, node: Node) -> Fraction:
        """What is taken of a switch's capacity, in Gbit/s."""
        return sum((part.plan.held.get(node, ZERO) for part in self._parts()), ZERO)

    def taken_bytes(self, node: Node) -> int:
        return sum(part.held_bytes.get(node, 0) for part in self._parts())

    @cached_property
    def free(self) -> ProgrammableNetwork:
        """What is left of capacities; none where no memory is."""
        return self.free_for(1)

    def free_for(self, gradient_bytes: int) -> ProgrammableNetwork:
        """What is left of capacities to a gradient; none where memory is for no subtask of it."""
        least = _least_room(gradient_bytes)
        held: dict[Node, Fraction] = {}
        filled: dict[Node, int] = {}
        for part in self._parts():
            for node, rate in part.plan.held.items():
                held[node] = held.get(node, ZERO) + rate
            for node, kept in part.held_bytes.items():
                filled[node] = filled.get(node, 0) + kept
        capacities: list[Capacity] = list(self.network.capacities)
        for node in held.keys() | self.memory.keys():
            capacity = capacities[node]
            left = capacity if capacity is None else capacity - held.get(node, ZERO)
            room = self.memory[node] - filled.get(node, 0) if node in self.memory else least
            if (left is not None and left < 0) or room < 0:
                raise InvariantBroken(f"more is taken of {self.network.topology.name(node)} than it has")
            capacities[node] = left if room >= least else ZERO
        return replace(self.network, capacities=tuple(capacities))

    def free_bytes(self, node: Node) -> int | None:
        """None: without limit."""
        return self.memory[node] - self.taken_bytes(node) if node in self.memory else None

    def _parts(self) -> Iterator[Part]:
        for task in self.running.values():
            yield from task.parts

    # -- tasks come and go

    def admitted(self, name: str, task: Task, *, servers: int = 1, **options: Any) -> Tenants | Infeasible:
        """The state with the task placed; ``servers``: parameter servers; ``options``: as ``plan`` takes
        them."""
        if name in self.running:
            raise LocalMisuse(f"task {name} runs already")
        if not 1 <= servers <= task.gradient_bytes:
            raise LocalMisuse(f"{servers} parameter servers for {task.gradient_bytes} bytes")
        found = self._placed(task, servers, options)
        return found if isinstance(found, Infeasible) else self._with(name, found)

    def left(self, name: str) -> Tenants:
        """Without it. Raises ``LocalMisuse`` for a task that does not run."""
        self._known(name)
        return replace(self, running={other: one for other, one in self.running.items() if other != name})

    def replanned(self, name: str, **options: Any) -> Tenants:
        """Workers and parameter servers stay; ``self`` if no better trees are found."""
        old = self._known(name)
        parts: list[Part] = []
        others = self.left(name)
        for part in old.parts:
            fixed = Fixed(part.plan.tree.ps, old.workers)
            busy = (others.busy | set(old.servers)) - {fixed.ps, *fixed.workers}
            found = others._part(part.plan.task, parts, {"fixed": fixed, "busy": busy} | options)
            if isinstance(found, Infeasible):
                return self
            parts.append(found)
        new = replace(old, parts=tuple(parts), reason=others._reason(parts))
        if (new.seconds, new.traffic_bytes) >= (old.seconds, old.traffic_bytes):
            return self
        return replace(self, running={**self.running, name: new})

    def _known(self, name: str) -> Admitted:
        if name not in self.running:
            raise LocalMisuse(f"no task {name} runs")
        return self.running[name]

    def _with(self, name: str, admitted: Admitted) -> Tenants:
        return replace(self, running={**self.running, name: admitted})

    def _placed(self, task: Task, servers: int, options: Mapping[str, Any]) -> Admitted | Infeasible:
        shares = _shares(task.gradient_bytes, servers)
        parts: list[Part] = []
        for share in shares:
            own = replace(task, gradient_bytes=share, rate_cap=task.rate_cap / servers)
            where: dict[str, Any] = {"busy": self.busy}
            if parts:
                ps = self._next_server(parts)
                if isinstance(ps, Infeasible):
                    return ps
                tree = parts[0].plan.tree
                workers = tree.workers(self.network)
                where = {"fixed": Fixed(ps, workers)}
                options = {name: value for name, value in options.items() if name != "ps"}
            found = self._part(own, parts, where | dict(options))
            if isinstance(found, Infeasible):
                return found
            parts.append(found)
        return Admitted(task, tuple(parts), self._reason(parts))

    def _part(self, task: Task, parts: Sequence[Part], options: Mapping[str, Any]) -> Part | Infeasible:
        """On what the other tasks, and the parts before, leave."""
        now = self
        if parts:
            now = self._with("", Admitted(task, tuple(parts)))
            options = _fees_left(parts, options)
        found = plan(now.free_for(task.gradient_bytes), task, **options)
        if isinstance(found, Infeasible):
            if parts and "budget" in found.witness:
                spent = str(sum(part.plan.fee for part in parts))
                return replace(found, witness={**found.witness, "fees of the parts before": spent})
            return found
        switches = found.tree.switches(self.network)
        room = min((room for one in switches if (room := now.free_bytes(one)) is not None), default=None)
        return Part(found, _cut(task.gradient_bytes, room))

    def _reason(self, parts: Sequence[Part]) -> str:
        """What all switches were short of, before these parts."""
        first, switches = parts[0].plan, self.network.programmable
        if first.network.programmable or any(part.plan.tree.switches(first.network) for part in parts):
            return ""
        if not switches:
            return NONE_PROGRAMMABLE
        is_used_up = [self.taken(switch) == self.network.capacities[switch] for switch in switches]
        least = _least_room(first.task.gradient_bytes)
        rooms = [self.free_bytes(switch) for switch in switches]
        if all(room is not None and room < least for room in rooms):
            return STRAIGHT
        return NO_CAPACITY if all(is_used_up) else NEITHER

    def _next_server(self, parts: Sequence[Part]) -> Node | Infeasible:
        network, workers = self.network, parts[0].plan.tree.workers(self.network)
        taken = {*self.busy, *workers, *(part.plan.tree.ps for part in parts)}
        others = (server for server in range(network.topology.hosts) if server not in taken)
        away = {server: _distance(network, server, workers) for server in others}
        linked = [server for server, distance in away.items() if distance is not None]
        able = [server for server in linked if network.capacities[server] != 0]
        if not able:
            reason = NO_FURTHER if not away else FURTHER_UNABLE if linked else FURTHER_APART
            return Infeasible(reason, {"parameter servers": len(parts), "idle": len(away)})

        def order(server: Node) -> tuple[bool, Fraction, int, Node]:
            capacity = network.capacities[server]
            return capacity is not None, -(capacity or ZERO), away[server] or 0, server

        return min(able, key=order)


def _fees_left(parts: Sequence[Part], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the next part: switches of those before have had their fee, which is off the budget."""
    used = {node for part in parts for node in part.plan.tree.switches(part.plan.network)}
    fees = {node: fee for node, fee in (options.get("fees") or {}).items() if node not in used}
    budget = options.get("budget")
    if budget is not None:
        budget = budget - sum(part.plan.fee for part in parts) if fees else None
    return {**options, "fees": fees, "budget": budget}


def _distance(network: ProgrammableNetwork, server: Node, workers: Sequence[Node]) -> int | None:
    """Distance to all of them together; None: one of them is out of reach."""
    distances = [network.distance(server, worker) for worker in workers]
    return None if max(distances) >= UNREACHABLE else sum(distances)


def _least_room(gradient_bytes: int) -> int:
    """Room that a switch must have for a subtask of a gradient."""
    return min(gradient_bytes, CHUNK_BYTES)


def _shares(nbytes: int, count: int) -> list[int]:
    """As equal as bytes allow, the larger ones first."""
    each, more = divmod(nbytes, count)
    return [each + (number < more) for number in range(count)]


def _cut(nbytes: int, room: int | None) -> Subtasks:
    each = nbytes if room is None else min(room, nbytes)
    return Subtasks(each, *divmod(nbytes, each))
