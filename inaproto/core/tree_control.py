"""Rings over several switches: which switch is told what, and what follows when one refuses or is lost.

In NetReduce section 3.3 the tables of switches that are no leaves are "pre-computed and populated during
the job initialization"; this core does it, for all switches of a ring. It stands between the rendezvous,
which knows jobs and rings, and the switches, each of which has an accelerator: a ring that is wanted becomes
a tree of the switches that its ranks need, each of them gets its role, and the ranks are told to start when
all have it.

The tree of a ring is part of the *fabric*, a spanning tree of switches. Its root is the lowest switch
above all ranks that aggregates. A switch aggregates even if one sum only comes to it, and none does below
one that steers: so a virtual connection always joins two neighbours, and no switch meets packets of a ring
that it does not know. The children of a switch are in the order of the lowest rank of each.

A ring goes INSTALLING -> STANDING, or FAILED, and is then forgotten. If a switch or a trunk between its
ranks is not there, so that these cannot reach each other by any path, it is WAITING before, for at most
``wait_ns``; if only the switches' sum is out of reach it is refused, and its hosts sum themselves. Frames
that a trunk loses later are sent again: a ring that stands is not touched. :data:`HANDLERS` is the whole
table of (phase, event).

Invariants: a switch has a ring exactly from the order that installs it to the one that removes it, or
until it restarts; the ranks start only when every switch has the ring; of a ring that cannot go on the
rendezvous hears once. What a ring's hosts send must never pass a switch as plain traffic, for its
receiver would take it for a result: so a switch that restarts hears of the rings that it had, as removed,
before it is admitted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from inaproto.core.accelerator import InstallRing, RemoveRing, RingFault, RingRefused
from inaproto.core.aggregation_tree import Role, TreeSwitch, compose_roles
from inaproto.core.reduction_plan import ReductionPlan
from inaproto.core.rendezvous_types import RoomMade, Send
from inaproto.core.ring_spec import RingSpec
from inaproto.core.tree_control_types import (
    Admit,
    FabricSwitch,
    Faulted,
    HostSeen,
    Installed,
    Order,
    Refused,
    Release,
    RingEvent,
    RingGone,
    RingWanted,
    StartAsked,
    SwitchArrived,
    SwitchLost,
    Tell,
    TimePassed,
    TreeAction,
    TreeControlConfig,
    TreeControlView,
    TreeEvent,
    TreeView,
    TrunkSaid,
)
from inaproto.core.tree_ways import NOT_SAID, Obstacle, Ways
from inaproto.errors import LocalMisuse
from inaproto.units import Instant, PortId, S

SWITCH_LOST: Final = "switch lost"
"""Rule of the fault of a ring one of whose switches is gone."""
NO_WAY: Final = "no way between its ranks"
"""Rule of the fault of a ring that has waited in vain."""


class Phase(Enum):
    WAITING = "waiting"
    """For a switch or a trunk."""
    INSTALLING = "installing"
    STANDING = "standing"
    FAILED = "failed"
    """The rendezvous was told, and has not given it up yet."""


@dataclass(slots=True)
class _Tree:
    spec: RingSpec
    roles: dict[str, Role | None]
    """None: the switch does all."""
    shape: TreeSwitch
    wait_until: Instant
    phase: Phase = Phase.WAITING
    missing: dict[str, None] = field(default_factory=dict)
    starts: list[Send] = field(default_factory=list)

    def spec_at(self, switch: str) -> RingSpec:
        return replace(self.spec, role=self.roles[switch])


@dataclass(frozen=True, slots=True)
class _Retired:
    until: Instant
    specs: Mapping[str, RingSpec]
    """By switch."""


class TreeControl:
    """Pure core; see the module. ``step`` never raises for anything a switch or a host can do."""

    def __init__(self, config: TreeControlConfig) -> None:
        self._config = config
        self._names = tuple(switch.name for switch in config.switches)
        above = {switch.name: switch.above for switch in config.switches}
        self._ways = Ways(above, root=config.switches[0].name)
        self._trees: dict[int, _Tree] = {}
        self._retired: deque[_Retired] = deque(maxlen=config.retired_max)
        self._hosts: dict[bytes, str] = dict(config.hosts)
        self._counters = {"trees_made": 0, "trees_refused": 0, "trees_waited": 0}
        self._counters |= {"switches_lost": 0, "trunks_down": 0}

    @property
    def deadline(self) -> Instant | None:
        """Of rings that wait. A switch that does not answer is found by the end of its session."""
        return min((tree.wait_until for tree in self._waiting()), default=None)

    def step(self, event: TreeEvent, now: Instant) -> list[TreeAction]:
        match event:
            case SwitchArrived():
                return self._arrived(event, now)
            case SwitchLost():
                return self._lost(event)
            case TrunkSaid():
                return self._trunk_said(event, now)
            case TimePassed():
                return self._look_again(now)
            case HostSeen(host, switch):
                return self._seen(host, switch)
            case RingWanted(spec):
                return self._wanted(spec, now)
            case Installed() | Refused() | Faulted() | StartAsked() | RingGone():
                tree = self._trees.get(event.ring_id)
                if tree is not None:
                    return HANDLERS[tree.phase, type(event)](self, tree, event, now)
                # Said of a ring that is gone by now; a ring that needs no switch may start.
                return [Release(event.start)] if isinstance(event, StartAsked) else []

    def view(self) -> TreeControlView:
        return TreeControlView(
            present=tuple(self._ways.present),
            rings=tuple(
                TreeView(
                    ring_id,
                    tree.phase.value,
                    tuple(tree.roles),
                    tuple(tree.missing),
                    _reason(self._ways.obstacle(tree.shape)) if tree.phase is Phase.WAITING else "",
                )
                for ring_id, tree in self._trees.items()
            ),
            counters=dict(self._counters),
            trunks_down=dict(self._ways.down),
        )

    def plan_of(self, hosts: tuple[bytes, ...]) -> ReductionPlan | None:
        """As the function :func:`plan_of`, with the hosts that were seen."""
        return plan_of(self._config, hosts, self._hosts)

    # --- switches

    def _arrived(self, event: SwitchArrived, now: Instant) -> list[TreeAction]:
        switch = event.switch
        if switch not in self._names:
            return []
        restarted = SwitchLost(switch, "it restarted")
        actions = self._lost(restarted) if switch in self._ways.present else []
        self._ways.arrived(switch, is_trunk_up=event.is_trunk_up)
        specs = [
            retired.specs[switch]
            for retired in self._retired
            if switch in retired.specs and now < retired.until
        ]
        specs += [tree.spec_at(switch) for tree in self._told() if switch in tree.roles]
        for spec in specs:
            actions += [Order(switch, InstallRing(spec)), Order(switch, RemoveRing(spec.ring_id))]
        return [*actions, Admit(switch), *self._look_again(now)]

    def _lost(self, event: SwitchLost) -> list[TreeAction]:
        self._counters["switches_lost"] += self._ways.lost(event.switch)
        actions: list[TreeAction] = []
        for tree in self._told():
            if event.switch in tree.roles and tree.phase is not Phase.FAILED:
                rank = min(_ranks_at(tree, event.switch), default=0)
                evidence = f"{event.switch} is gone: {event.reason}"
                fault = RingFault(tree.spec.ring_id, rank, SWITCH_LOST, evidence)
                actions += self._fail(tree, fault)
        return actions

    def _trunk_said(self, event: TrunkSaid, now: Instant) -> list[TreeAction]:
        if event.switch not in self._ways.present or event.switch == self._names[0]:
            return []
        self._counters["trunks_down"] += bool(event.error) and not self._is_down(event.switch)
        came_up = self._ways.trunk_said(event.switch, event.error)
        room: list[TreeAction] = [Tell(RoomMade())] if came_up else []
        return [*self._look_again(now), *room]

    def _is_down(self, switch: str) -> bool:
        """Whether its switch has said so."""
        return self._ways.down.get(switch, NOT_SAID) != NOT_SAID

    def _seen(self, host: bytes, switch: str) -> list[TreeAction]:
        if switch in self._names:
            self._hosts.pop(host, None)
            self._hosts[host] = switch
            while len(self._hosts) > self._config.hosts_max:
                del self._hosts[next(iter(self._hosts))]
        return []

    # --- rings

    def _wanted(self, spec: RingSpec, now: Instant) -> list[TreeAction]:
        try:
            roles = roles_of(self._config, spec, self._hosts)
        except LocalMisuse as error:
            return self._refuse(spec, str(error))
        shape = tree_of(self._config.switches, [self._hosts[flow.src_ip] for flow in spec.flows])
        obstacle = self._ways.obstacle(shape)
        if obstacle is not None and not _waits_for(obstacle):
            self._counters["trees_refused"] += 1
            return [Tell(_refusal(spec, obstacle))]
        tree = _Tree(spec, roles, shape, Instant(now + self._config.wait_ns))
        self._trees[spec.ring_id] = tree
        if obstacle is None:
            return self._install(tree)
        self._counters["trees_waited"] += 1
        return []

    def _install(self, tree: _Tree) -> list[TreeAction]:
        tree.phase = Phase.INSTALLING
        tree.missing = dict.fromkeys(tree.roles)
        return [Order(switch, InstallRing(tree.spec_at(switch))) for switch in tree.roles]

    def _waiting(self) -> list[_Tree]:
        return [tree for tree in self._trees.values() if tree.phase is Phase.WAITING]

    def _told(self) -> list[_Tree]:
        """Rings of which their switches have heard."""
        return [tree for tree in self._trees.values() if tree.phase is not Phase.WAITING]

    def _look_again(self, now: Instant) -> list[TreeAction]:
        """After each rings that wait may be installed, are refused, or have waited long enough."""
        actions: list[TreeAction] = []
        for tree in self._waiting():
            obstacle = self._ways.obstacle(tree.shape)
            if obstacle is None:
                actions += self._install(tree)
            elif not _waits_for(obstacle) or (tree.wait_until <= now and not obstacle.parts):
                self._counters["trees_refused"] += 1
                actions += self._fail(tree, _refusal(tree.spec, obstacle))
            elif tree.wait_until <= now:
                waited = f"it did not come within {self._config.wait_ns / S:g} s"
                evidence = f"{obstacle.reason}; {waited}, and no other path leads past it"
                actions += self._fail(tree, RingFault(tree.spec.ring_id, obstacle.rank, NO_WAY, evidence))
        return actions

    def _refuse(self, spec: RingSpec, reason: str) -> list[TreeAction]:
        self._counters["trees_refused"] += 1
        return [Tell(RingRefused(spec.ring_id, reason))]

    def _fail(self, tree: _Tree, event: RingFault | RingRefused) -> list[TreeAction]:
        if tree.phase is Phase.WAITING:
            tree.roles = {}  # no switch has heard of it
        tree.phase = Phase.FAILED
        tree.starts.clear()
        return [Tell(event)]

    def _installed(self, tree: _Tree, event: Installed, now: Instant) -> list[TreeAction]:
        tree.missing.pop(event.switch, None)
        if tree.missing:
            return []
        tree.phase = Phase.STANDING
        self._counters["trees_made"] += 1
        starts, tree.starts = tree.starts, []
        return [Release(start) for start in starts]

    def _refused(self, tree: _Tree, event: Refused, now: Instant) -> list[TreeAction]:
        refusal = event.refusal
        self._counters["trees_refused"] += 1
        return self._fail(tree, RingRefused(refusal.ring_id, f"{event.switch}: {refusal.reason}"))

    def _faulted(self, tree: _Tree, event: Faulted, now: Instant) -> list[TreeAction]:
        return self._fail(tree, event.fault)

    def _hold(self, tree: _Tree, event: StartAsked, now: Instant) -> list[TreeAction]:
        tree.starts.append(event.start)
        return []

    def _release(self, tree: _Tree, event: StartAsked, now: Instant) -> list[TreeAction]:
        return [Release(event.start)]

    def _not_wanted(self, tree: _Tree, event: RingGone, now: Instant) -> list[TreeAction]:
        del self._trees[event.ring_id]
        return []

    def _gone(self, tree: _Tree, event: RingGone, now: Instant) -> list[TreeAction]:
        del self._trees[event.ring_id]
        present = self._ways.present
        specs = {switch: tree.spec_at(switch) for switch in tree.roles}
        self._retired.append(_Retired(Instant(now + self._config.retired_ns), specs))
        return [Order(switch, RemoveRing(event.ring_id)) for switch in tree.roles if switch in present]

    def _too_late(self, tree: _Tree, event: RingEvent, now: Instant) -> list[TreeAction]:
        """The ring has failed, or the switch says again what it has said."""
        return []


def roles_of(
    config: TreeControlConfig, spec: RingSpec, hosts: Mapping[bytes, str] | None = None
) -> dict[str, Role | None]:
    """Of every switch that has something to do for the ring; None: it does all.

    ``hosts``: where they are, if not as the configuration says. Raises ``LocalMisuse`` for a rank whose host
    is not known.
    """
    known = config.hosts if hosts is None else hosts
    try:
        seats = [known[flow.src_ip] for flow in spec.flows]
    except KeyError:
        raise LocalMisuse("a rank's host is at no switch of the fabric") from None
    tree = tree_of(config.switches, seats)
    if len(list(tree.walk())) == 1:
        return {tree.name: None}
    toward: dict[str, dict[str, PortId]] = {switch.name: {} for switch in config.switches}
    for switch in config.switches:
        if switch.above is not None:
            toward[switch.name][switch.above] = switch.port_up
            toward[switch.above][switch.name] = switch.port_down
    addresses = {switch.name: switch.address for switch in config.switches}
    roles = compose_roles(tree, ring_id=spec.ring_id, addresses=addresses, port_toward=toward)
    return {name: role for name, role in roles.items() if role.inputs or role.steered}


def plan_of(
    config: TreeControlConfig, hosts: tuple[bytes, ...], seen: Mapping[bytes, str] | None = None
) -> ReductionPlan | None:
    """What the tree of a ring adds whose member ``r`` is the host with IP address ``hosts[r]``.

    ``seen``: where hosts are, if not as the configuration says. None if one is not known: such a ring is
    refused.
    """
    known = config.hosts if seen is None else seen
    seats = [known.get(host, "") for host in hosts]
    return ReductionPlan.from_tree(tree_of(config.switches, seats)) if all(seats) else None


def tree_of(fabric: tuple[FabricSwitch, ...], seats: list[str]) -> TreeSwitch:
    """The part of the fabric that a ring needs; rank ``r`` is at switch ``seats[r]``."""
    return _Pruner(fabric, seats).tree()


class _Pruner:
    def __init__(self, fabric: tuple[FabricSwitch, ...], seats: list[str]) -> None:
        self._fabric = {switch.name: switch for switch in fabric}
        self._seats = seats
        self._ranks: dict[str, list[int]] = {}
        """Below each switch."""
        self._below: dict[str, list[str]] = {name: [] for name in self._fabric}
        for rank, seat in enumerate(seats):
            for name in self._up(seat):
                self._ranks.setdefault(name, []).append(rank)
        for name in self._ranks:
            above = self._fabric[name].above
            if above is not None:
                self._below[above].append(name)

    def _up(self, name: str) -> list[str]:
        path = [name]
        while (above := self._fabric[path[-1]].above) is not None:
            path.append(above)
        return path

    def tree(self) -> TreeSwitch:
        size = len(self._seats)
        root = next(
            name
            for name in self._up(self._seats[0])
            if len(self._ranks[name]) == size and self._fabric[name].aggregates
        )
        return self._switch(root, adds=True)

    def _switch(self, name: str, *, adds: bool) -> TreeSwitch:
        """``adds``: whether it may aggregate; what is below a switch that steers may not."""
        adds = adds and self._fabric[name].aggregates
        parts: dict[int, TreeSwitch | int] = {
            rank: rank for rank, seat in enumerate(self._seats) if seat == name
        }
        for below in self._below[name]:
            parts[self._ranks[below][0]] = self._switch(below, adds=adds)
        return TreeSwitch(name, tuple(parts[lowest] for lowest in sorted(parts)), adds)


def _waits_for(obstacle: Obstacle) -> bool:
    return obstacle.parts or obstacle.is_starting


def _refusal(spec: RingSpec, obstacle: Obstacle) -> RingRefused:
    """A trunk that comes up is said (``RoomMade``), so trying again before helps nobody."""
    return RingRefused(spec.ring_id, obstacle.reason, until_room=obstacle.is_trunk)


def _reason(obstacle: Obstacle | None) -> str:
    return "" if obstacle is None else obstacle.reason


def _ranks_at(tree: _Tree, switch: str) -> tuple[int, ...]:
    role = tree.roles[switch]
    return tuple(range(tree.spec.size)) if role is None else (*role.ranks, *role.steered)


Handler = Callable[..., list[TreeAction]]
"""Method of :class:`TreeControl`, called with the ring, the event and the time."""

HANDLERS: Final[Mapping[tuple[Phase, type[RingEvent]], Handler]] = {
    (Phase.WAITING, Installed): TreeControl._too_late,
    (Phase.WAITING, Refused): TreeControl._too_late,
    (Phase.WAITING, Faulted): TreeControl._too_late,
    (Phase.WAITING, StartAsked): TreeControl._hold,
    (Phase.WAITING, RingGone): TreeControl._not_wanted,
    (Phase.INSTALLING, Installed): TreeControl._installed,
    (Phase.INSTALLING, Refused): TreeControl._refused,
    (Phase.INSTALLING, Faulted): TreeControl._faulted,
    (Phase.INSTALLING, StartAsked): TreeControl._hold,
    (Phase.INSTALLING, RingGone): TreeControl._gone,
    (Phase.STANDING, Installed): TreeControl._too_late,
    (Phase.STANDING, Refused): TreeControl._refused,
    (Phase.STANDING, Faulted): TreeControl._faulted,
    (Phase.STANDING, StartAsked): TreeControl._release,
    (Phase.STANDING, RingGone): TreeControl._gone,
    (Phase.FAILED, Installed): TreeControl._too_late,
    (Phase.FAILED, Refused): TreeControl._too_late,
    (Phase.FAILED, Faulted): TreeControl._too_late,
    (Phase.FAILED, StartAsked): TreeControl._too_late,
    (Phase.FAILED, RingGone): TreeControl._gone,
}
"""What is said of switches and trunks concerns all rings at once: see ``_lost`` and ``_look_again``."""
