"""Rings over several switches: which switch is told what, and what follows when one refuses or is lost.

In NetReduce section 3.3 the tables of switches that are no leaves are "pre-computed and populated during
the job initialization"; this core does it, for all switches of a ring. It stands between the rendezvous,
which knows jobs and rings, and the switches, each of which has an accelerator: a ring that is wanted becomes
a tree of the switches that its ranks need, each of them gets its role, and the ranks are told to start when
all have it.

The tree of a ring is part of the *fabric*: of its own tree, which spans all switches that have hosts, or
one that was assigned to the ring, by further links (:mod:`inaproto.core.rendezvous.fabric.shapes`). A virtual
connection always joins two neighbours, and no switch meets packets of a ring that it does not know.

A ring goes INSTALLING -> STANDING, or FAILED, and is then forgotten. If a switch or a trunk between its
ranks is not there, so that these cannot reach each other by any path, it is WAITING before, for at most
``wait_ns``; if only the switches' sum is out of reach it is refused, and its hosts sum themselves. Frames
that a trunk loses later are sent again: a ring that stands is not touched, unless the trunk is one that only
the ring needs, whose ranks then reach each other without it. ``handlers`` is the whole table of
(phase, event).

A ring that was given up may be wanted again, along another tree. A switch answers each order to install in
its turn, so what an earlier one was answered is told apart by counting.

Invariants: a switch has a ring exactly from the order that installs it to the one that removes it, or
until it restarts; the ranks start only when every switch has the ring; of a ring that cannot go on the
rendezvous hears once. What a ring's hosts send must never pass a switch as plain traffic, for its
receiver would take it for a result: so a switch that restarts hears of the rings that it had, as removed,
before it is admitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from inaproto.core.contract import Handlers
from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.core.rendezvous.events import RoomMade, Send
from inaproto.core.rendezvous.fabric.events import (
    Admit,
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
from inaproto.core.rendezvous.fabric.shapes import links_of, roles_of, tree_of
from inaproto.core.rendezvous.fabric.ways import NOT_SAID, Obstacle, Ways
from inaproto.core.switch.accelerator import InstallRing, RemoveRing, RingFault, RingRefused
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.errors import LocalMisuse
from inaproto.units import Instant, S
from inaproto.wire.messages.switch import Role
from inaproto.wire.messages.trees import FabricTree, Link

SWITCH_LOST: Final = "switch lost"
"""Rule of the fault of a ring one of whose switches is gone."""
TRUNK_LOST: Final = "trunk lost"
"""Rule of the fault of a ring that alone needs a trunk which went down."""
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
    """Its part of the fabric's own tree."""
    assigned: TreeSwitch | None
    """The tree that it goes along, if it is not that."""
    wait_until: Instant
    phase: Phase = Phase.WAITING
    missing: dict[str, None] = field(default_factory=dict)
    starts: list[Send] = field(default_factory=list)

    def spec_at(self, switch: str) -> RingSpec:
        return replace(self.spec, role=self.roles[switch])

    def rank_beyond(self, link: Link) -> int | None:
        """The lowest rank below a trunk that nothing but this ring's tree needs; None: it needs it not."""
        if self.assigned is None:
            return None
        own, either = links_of(self.shape), {link, (link[1], link[0])}  # trees go through it either way
        lower = next((one for one, over in links_of(self.assigned) if (one, over) in either), None)
        if lower is None or own & either:
            return None
        return next(min(switch.ranks) for switch in self.assigned.walk() if switch.name == lower)


@dataclass(frozen=True, slots=True)
class _Retired:
    until: Instant
    specs: Mapping[str, RingSpec]
    """What each switch is told of the ring, by its name."""


class TreeControl:
    """Pure core; see the module. ``step`` never raises for anything a switch or a host can do."""

    def __init__(self, config: TreeControlConfig) -> None:
        self._config = config
        self._above = {one.name: tuple(link.above for link in one.links) for one in config.switches}
        self._root = config.switches[0].name
        self._seats = {self._root} | {one.name for one in config.switches if one.above is not None}
        """Switches at which hosts may be."""
        self._ways = Ways(self._above, root=self._root)
        self._in_order: dict[str, None] = {}
        """Switches that send results in PSN order where a ring spans several."""
        self._trees: dict[int, _Tree] = {}
        self._turned_away: dict[int, None] = {}
        """Rings of which no switch has heard, until they are given up: their ranks do not start."""
        self._unanswered: dict[tuple[str, int], int] = {}
        """Orders to install a ring that a switch has not answered yet."""
        self._retired: dict[int, _Retired] = {}
        """Rings that were given up, by id; the one given up last is the last."""
        self._hosts: dict[bytes, str] = dict(config.hosts)
        self._counters = {"trees_made": 0, "trees_refused": 0, "trees_waited": 0}
        self._counters |= {"switches_lost": 0, "trunks_down": 0}
        self._now = Instant(0)
        self.handlers = self._table()
        """For a ring, by its phase. What is said of switches and trunks concerns all rings at once."""

    def _table(self) -> Handlers[Phase, _Tree, TreeAction]:
        table: Handlers[Phase, _Tree, TreeAction] = Handlers()
        table.on(Installed, self._too_late, Phase.WAITING, Phase.STANDING, Phase.FAILED)
        table.on(Refused, self._too_late, Phase.WAITING, Phase.FAILED)
        table.on(Faulted, self._too_late, Phase.WAITING, Phase.FAILED)
        table.on(StartAsked, self._hold, Phase.WAITING, Phase.INSTALLING)
        table.on(RingGone, self._not_wanted, Phase.WAITING, to=(None,))
        table.on(Installed, self._installed, Phase.INSTALLING, to=(Phase.STANDING,))
        table.on(Refused, self._refused, Phase.INSTALLING, Phase.STANDING, to=(Phase.FAILED,))
        table.on(Faulted, self._faulted, Phase.INSTALLING, Phase.STANDING, to=(Phase.FAILED,))
        table.on(RingGone, self._gone, Phase.INSTALLING, Phase.STANDING, Phase.FAILED, to=(None,))
        table.on(StartAsked, self._release, Phase.STANDING)
        table.on(StartAsked, self._too_late, Phase.FAILED)
        return table

    @property
    def deadline(self) -> Instant | None:
        """When the first ring that waits is given up. A switch that does not answer is found by the end of
        its session."""
        return min((tree.wait_until for tree in self._waiting()), default=None)

    def step(self, event: TreeEvent, now: Instant) -> list[TreeAction]:
        self._now = now
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
            case RingWanted(spec, along):
                return self._wanted(spec, along, now)
            case Installed() | Refused() | Faulted() | StartAsked() | RingGone():
                if self._is_of_an_earlier_order(event):
                    return []
                tree = self._trees.get(event.ring_id)
                if tree is not None:
                    if _is_of_no_part(tree, event):
                        return []
                    return self.handlers.step(tree.phase, tree, event)
                return self._said_of_none(event)

    @property
    def is_selective(self) -> bool:
        """Whether rings may be: every switch that has ever come can send results as they are done."""
        return not self._in_order

    def view(self) -> TreeControlView:
        return TreeControlView(
            present=tuple(self._ways.present),
            rings=tuple(
                TreeView(
                    ring_id,
                    tree.phase.value,
                    tuple(tree.roles),
                    tuple(tree.missing),
                    _reason(self._obstacle(tree)) if tree.phase is Phase.WAITING else "",
                )
                for ring_id, tree in self._trees.items()
            ),
            counters=dict(self._counters),
            trunks_down=dict(self._ways.down),
        )

    # --- switches

    def _arrived(self, event: SwitchArrived, now: Instant) -> list[TreeAction]:
        switch = event.switch
        if switch not in self._above:
            return []
        restarted = SwitchLost(switch, "it restarted")
        actions = self._lost(restarted) if switch in self._ways.present else []
        self._in_order.pop(switch, None)
        if not event.is_selective:
            self._in_order[switch] = None
        self._ways.arrived(switch, is_trunk_up=event.is_trunk_up)
        specs = [
            retired.specs[switch]
            for retired in self._retired.values()
            if switch in retired.specs and now < retired.until
        ]
        specs += [tree.spec_at(switch) for tree in self._told() if switch in tree.roles]
        for spec in specs:
            actions += [self._order(switch, spec), Order(switch, RemoveRing(spec.ring_id))]
        # Of one that has no trunk up nobody will say that it is up: the rings refused without it try now.
        room: list[TreeAction] = [] if self._above[switch] else [Tell(RoomMade())]
        return [*actions, Admit(switch), *self._look_again(now), *room]

    def _lost(self, event: SwitchLost) -> list[TreeAction]:
        self._counters["switches_lost"] += self._ways.lost(event.switch)
        for answer in [one for one in self._unanswered if one[0] == event.switch]:
            del self._unanswered[answer]
        actions: list[TreeAction] = []
        for tree in self._told():
            if event.switch in tree.roles and tree.phase is not Phase.FAILED:
                rank = min(_ranks_at(tree, event.switch), default=0)
                evidence = f"{event.switch} is gone: {event.reason}"
                fault = RingFault(tree.spec.ring_id, rank, SWITCH_LOST, evidence)
                actions += self._fail(tree, fault)
        return actions

    def _trunk_said(self, event: TrunkSaid, now: Instant) -> list[TreeAction]:
        above = self._above.get(event.switch, ())
        link = (event.switch, event.above or next(iter(above), ""))
        if event.switch not in self._ways.present or link[1] not in above:
            return []
        went_down = bool(event.error) and self._ways.down.get(link, NOT_SAID) == NOT_SAID
        self._counters["trunks_down"] += went_down
        came_up = self._ways.trunk_said(link, event.error)
        actions = self._cut(link) if went_down else []
        room: list[TreeAction] = [Tell(RoomMade())] if came_up else []
        return [*actions, *self._look_again(now), *room]

    def _cut(self, link: Link) -> list[TreeAction]:
        """A trunk went down: rings that alone need it would stand still, though their ranks are together."""
        actions: list[TreeAction] = []
        for tree in self._told():
            rank = tree.rank_beyond(link)
            if rank is not None and tree.phase is not Phase.FAILED:
                evidence = f"the trunk between {link[0]} and {link[1]} is down: {self._ways.down[link]}"
                actions += self._fail(tree, RingFault(tree.spec.ring_id, rank, TRUNK_LOST, evidence))
        return actions

    def _seen(self, host: bytes, switch: str) -> list[TreeAction]:
        if switch in self._seats:
            self._hosts.pop(host, None)
            self._hosts[host] = switch
            while len(self._hosts) > self._config.hosts_max:
                del self._hosts[next(iter(self._hosts))]
        return []

    # --- rings

    def _said_of_none(self, event: RingEvent) -> list[TreeAction]:
        """Said of a ring that is gone by now, or was refused at once; one that needs no switch may start."""
        if isinstance(event, RingGone):
            self._turned_away.pop(event.ring_id, None)
        if isinstance(event, StartAsked) and event.ring_id not in self._turned_away:
            return [Release(event.start)]
        return []

    def _wanted(self, spec: RingSpec, along: FabricTree | None, now: Instant) -> list[TreeAction]:
        self._turned_away.pop(spec.ring_id, None)
        spec = replace(spec, selective=spec.selective and self.is_selective)
        fabric = self._config.switches
        try:
            roles = roles_of(self._config, spec, self._hosts, along)
        except LocalMisuse as error:
            return self._refuse(RingRefused(spec.ring_id, str(error)))
        seats = [self._hosts[flow.src_ip] for flow in spec.flows]
        shape, assigned = tree_of(fabric, seats), tree_of(fabric, seats, along)
        wait_until = Instant(now + self._config.wait_ns)
        tree = _Tree(spec, roles, shape, None if assigned == shape else assigned, wait_until)
        obstacle = self._obstacle(tree)
        if obstacle is not None and not _waits_for(obstacle):
            return self._refuse(_refusal(tree, obstacle))
        self._trees[spec.ring_id] = tree
        if obstacle is None:
            return self._install(tree)
        self._counters["trees_waited"] += 1
        return []

    def _obstacle(self, tree: _Tree) -> Obstacle | None:
        return self._ways.obstacle(tree.shape, tree.assigned)

    def _install(self, tree: _Tree) -> list[TreeAction]:
        tree.phase = Phase.INSTALLING
        if not self.is_selective:  # of a switch that came since hosts heard of the ring
            tree.spec = replace(tree.spec, selective=False)
        tree.missing = dict.fromkeys(tree.roles)
        return [self._order(switch, tree.spec_at(switch)) for switch in tree.roles]

    def _order(self, switch: str, spec: RingSpec) -> Order:
        answer = switch, spec.ring_id
        self._unanswered[answer] = self._unanswered.get(answer, 0) + 1
        return Order(switch, InstallRing(spec))

    def _is_of_an_earlier_order(self, event: RingEvent) -> bool:
        """Whether a switch says it of a ring of this id that it was told of before it was told the last time.

        An order that it has not answered comes behind whatever it says.
        """
        if not isinstance(event, Installed | Refused | Faulted):
            return False
        answer = event.switch, event.ring_id
        left = self._unanswered.pop(answer, 0) - (not isinstance(event, Faulted))
        if left > 0:
            self._unanswered[answer] = left
        return left > 0

    def _waiting(self) -> list[_Tree]:
        return [tree for tree in self._trees.values() if tree.phase is Phase.WAITING]

    def _told(self) -> list[_Tree]:
        """Rings of which their switches have heard."""
        return [tree for tree in self._trees.values() if tree.phase is not Phase.WAITING]

    def _look_again(self, now: Instant) -> list[TreeAction]:
        """After each rings that wait may be installed, are refused, or have waited long enough."""
        actions: list[TreeAction] = []
        for tree in self._waiting():
            obstacle = self._obstacle(tree)
            if obstacle is None:
                actions += self._install(tree)
            elif not _waits_for(obstacle) or (tree.wait_until <= now and not obstacle.parts):
                self._counters["trees_refused"] += 1
                actions += self._fail(tree, _refusal(tree, obstacle))
            elif tree.wait_until <= now:
                waited = f"it did not come within {self._config.wait_ns / S:g} s"
                evidence = f"{obstacle.reason}; {waited}, and no other path leads past it"
                actions += self._fail(tree, RingFault(tree.spec.ring_id, obstacle.rank, NO_WAY, evidence))
        return actions

    def _refuse(self, refusal: RingRefused) -> list[TreeAction]:
        """At once: the rendezvous has asked for starts meanwhile, and gives the ring up when it hears it."""
        self._counters["trees_refused"] += 1
        self._turned_away[refusal.ring_id] = None
        return [Tell(refusal)]

    def _fail(self, tree: _Tree, event: RingFault | RingRefused) -> list[TreeAction]:
        if tree.phase is Phase.WAITING:
            tree.roles = {}  # no switch has heard of it
        tree.phase = Phase.FAILED
        tree.starts.clear()
        return [Tell(event)]

    def _installed(self, tree: _Tree, event: Installed) -> list[TreeAction]:
        tree.missing.pop(event.switch, None)
        if tree.missing:
            return []
        tree.phase = Phase.STANDING
        self._counters["trees_made"] += 1
        starts, tree.starts = tree.starts, []
        return [Release(start) for start in starts]

    def _refused(self, tree: _Tree, event: Refused) -> list[TreeAction]:
        refusal = event.refusal
        self._counters["trees_refused"] += 1
        reason = f"{event.switch}: {refusal.reason}"
        return self._fail(tree, replace(refusal, reason=reason))

    def _faulted(self, tree: _Tree, event: Faulted) -> list[TreeAction]:
        return self._fail(tree, event.fault)

    def _hold(self, tree: _Tree, event: StartAsked) -> list[TreeAction]:
        tree.starts.append(event.start)
        return []

    def _release(self, tree: _Tree, event: StartAsked) -> list[TreeAction]:
        return [Release(event.start)]

    def _not_wanted(self, tree: _Tree, event: RingGone) -> list[TreeAction]:
        del self._trees[event.ring_id]
        return []

    def _gone(self, tree: _Tree, event: RingGone) -> list[TreeAction]:
        del self._trees[event.ring_id]
        present = self._ways.present
        earlier = self._retired.pop(event.ring_id, None)  # it may have been elsewhere before
        specs = {} if earlier is None or earlier.until <= self._now else dict(earlier.specs)
        specs |= {switch: tree.spec_at(switch) for switch in tree.roles}
        self._retired[event.ring_id] = _Retired(Instant(self._now + self._config.retired_ns), specs)
        while len(self._retired) > self._config.retired_max:
            del self._retired[next(iter(self._retired))]
        return [Order(switch, RemoveRing(event.ring_id)) for switch in tree.roles if switch in present]

    def _too_late(self, tree: _Tree, event: RingEvent) -> list[TreeAction]:
        """The ring has failed, or the switch says again what it has said."""
        return []


def _is_of_no_part(tree: _Tree, event: RingEvent) -> bool:
    """Whether a switch says it that has no part in the ring: one that it has left, and that restarted."""
    return isinstance(event, Installed | Refused | Faulted) and event.switch not in tree.roles


def _waits_for(obstacle: Obstacle) -> bool:
    return obstacle.parts or obstacle.is_starting


def _refusal(tree: _Tree, obstacle: Obstacle) -> RingRefused:
    """A trunk that comes up is said (``RoomMade``), so trying again before helps nobody.

    So is a switch of an assigned tree: it comes with its trunks, or has none that it could say it of.
    """
    is_said = obstacle.is_trunk or tree.assigned is not None
    return RingRefused(tree.spec.ring_id, obstacle.reason, until_room=is_said)


def _reason(obstacle: Obstacle | None) -> str:
    return "" if obstacle is None else obstacle.reason


def _ranks_at(tree: _Tree, switch: str) -> tuple[int, ...]:
    role = tree.roles[switch]
    return tuple(range(tree.spec.size)) if role is None else (*role.ranks, *role.steered)
