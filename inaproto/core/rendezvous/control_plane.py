"""The control plane of a switch: who belongs to which ring, and which switches do what for it.

It runs in the switch that is alone, or in the root of a fabric.
:class:`~inaproto.core.rendezvous.rendezvous.Rendezvous` decides about jobs and rings. What it orders goes in
the same step, and in its place among the other actions, through the core that knows the switches:
:class:`~inaproto.core.rendezvous.fabric.control.TreeControl` lays each ring through those of a fabric,
:class:`~inaproto.core.rendezvous.fabric.one_switch.OneSwitch` in the accelerator of a switch that is alone.
What that core says of rings the rendezvous hears when all it has ordered before is done. What is left are
orders to the world: messages, rings for accelerators, lines for the log. The daemon and the deterministic
world perform them, and say with events what came of them.

Invariants: a host hears that a ring stands (``Start``, ``InaStands``) only when all its switches have it, and
the rendezvous hears it then, too; what an accelerator refuses or stops is said of that ring alone; actions
are to be performed in order, and what performing one of them causes is an event for a later step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import assert_never

from inaproto.core.rendezvous.events import (
    HostArrived,
    HostEvent,
    Noted,
    RefuseHost,
    RendezvousAction,
    RendezvousConfig,
    RendezvousEvent,
    RendezvousView,
    RingStands,
    Send,
    SessionId,
    WantRing,
    WelcomeHost,
    Woke,
)
from inaproto.core.rendezvous.fabric.control import TreeControl
from inaproto.core.rendezvous.fabric.events import (
    Admit,
    HostSeen,
    Order,
    Release,
    RingGone,
    RingWanted,
    StartAsked,
    SwitchEvent,
    Tell,
    TimePassed,
    TreeControlConfig,
    TreeControlView,
    TreeEvent,
)
from inaproto.core.rendezvous.fabric.one_switch import OneSwitch
from inaproto.core.rendezvous.link_measures import LinkMeasures
from inaproto.core.rendezvous.next_ring import in_psn_order
from inaproto.core.rendezvous.rendezvous import Rendezvous
from inaproto.core.rendezvous.tree_moves import stands
from inaproto.core.switch.accelerator import InstallRing, RemoveRing
from inaproto.errors import Blame
from inaproto.units import Instant
from inaproto.wire.control_messages import Ring, Start
from inaproto.wire.messages.ina import InaStands
from inaproto.wire.messages.trees import TreeState

ControlEvent = HostEvent | SwitchEvent
"""What hosts, a controller and the clock say, and what switches do."""


@dataclass(frozen=True, slots=True)
class TreesChanged:
    """``tree_states()`` has changed."""

    states: tuple[TreeState, ...]


ControlAction = WelcomeHost | RefuseHost | Send | Order | Admit | TreesChanged | Noted | Blame
"""``Order`` is for the accelerator of the named switch, which is told by the event ``Installed`` or
``Refused`` what came of an order to install."""


@dataclass(frozen=True, slots=True)
class ControlPlaneView:
    rendezvous: RendezvousView
    fabric: TreeControlView | None
    """None: the switch is alone."""


class ControlPlane:
    """Pure core; see the module. ``fabric`` is None for a switch that is alone.

    Rings wait for a switch or a trunk as long as jobs wait for their ranks, where they do.
    """

    def __init__(self, config: RendezvousConfig, fabric: TreeControlConfig | None = None) -> None:
        self._root = ""
        self._switches: TreeControl | OneSwitch = OneSwitch(config.shards)
        if fabric is not None:
            self._root = fabric.switches[0].name
            config = replace(config, switches=fabric.switches, root=self._root)
            self._switches = TreeControl(replace(fabric, wait_ns=config.recover_ns or fabric.wait_ns))
        self._rendezvous = Rendezvous(config)
        self._heard: deque[RendezvousEvent] = deque()
        """What the rendezvous has to hear; empty between two steps."""
        self._tree_states: tuple[TreeState, ...] = ()

    @property
    def deadline(self) -> Instant | None:
        """The earliest of both cores."""
        deadlines = self._rendezvous.deadline, self._switches.deadline
        return min((at for at in deadlines if at is not None), default=None)

    def step(self, event: ControlEvent, now: Instant) -> list[ControlAction]:
        if isinstance(event, SwitchEvent):
            actions = self._to_switches(event, now)
        else:
            self._heard.append(event)
            actions = []
        actions += self._hear(now)
        if isinstance(event, Woke):
            actions += [*self._to_switches(TimePassed(), now), *self._hear(now)]
        states = self._rendezvous.tree_states()
        if states != self._tree_states:
            self._tree_states = states
            actions.append(TreesChanged(states))
        return actions

    def view(self) -> ControlPlaneView:
        return ControlPlaneView(self._rendezvous.view(), self._switches.view())

    def tree_states(self) -> tuple[TreeState, ...]:
        """Where the rings of the jobs on the path ``shared`` are; without a job while it gathers."""
        return self._tree_states

    def is_in_job(self, session: SessionId, job: str) -> bool:
        """Whether the host of that session has ranks of it."""
        return self._rendezvous.is_in_job(session, job)

    @property
    def links(self) -> LinkMeasures:
        """As hosts have measured them; to be read only."""
        return self._rendezvous.links

    @property
    def _are_selective(self) -> bool:
        return isinstance(self._switches, OneSwitch) or self._switches.is_selective

    # --- from core to core

    def _hear(self, now: Instant) -> list[ControlAction]:
        """Step the rendezvous with all that it has to hear, and with what comes of it."""
        actions: list[ControlAction] = []
        while self._heard:
            event = self._heard.popleft()
            for action in self._rendezvous.step(event, now):
                if isinstance(event, HostArrived) and isinstance(action, WelcomeHost):
                    hello = event.hello
                    seen = HostSeen(hello.ip, hello.switch or self._root, hello.chooses_port)
                    if hello.gid is None:  # of hosts on InfiniBand the switches see no packet
                        actions += self._to_switches(seen, now)
                actions += self._ordered(action, now)
        return actions

    def _ordered(self, action: RendezvousAction, now: Instant) -> list[ControlAction]:
        """What the rendezvous orders, done by the switches where it is about them."""
        match action:
            case Send(session, Ring() as ring) if isinstance(self._switches, OneSwitch):
                port = self._switches.source_port(ring.ring_id)
                return [Send(session, replace(ring, udp_source_port=port)) if port else action]
            case Send(session, Ring() as ring) if not self._are_selective:
                return [Send(session, in_psn_order(ring))]
            case Send(_, Start() | InaStands()):
                return self._to_switches(StartAsked(action), now)
            case InstallRing(spec):
                return self._to_switches(RingWanted(spec), now)
            case WantRing(spec, tree):
                return self._to_switches(RingWanted(spec, tree), now)
            case RemoveRing(ring_id):
                return self._to_switches(RingGone(ring_id), now)
            case Send() | WelcomeHost() | RefuseHost() | Noted() | Blame():
                return [action]
            case _:
                assert_never(action)

    def _to_switches(self, event: TreeEvent, now: Instant) -> list[ControlAction]:
        actions: list[ControlAction] = []
        for action in self._switches.step(event, now):
            match action:
                case Order() | Admit():
                    actions.append(action)
                case Tell(said):
                    self._heard.append(said)
                case Release(start):
                    actions.append(start)
                    if ring_id := stands(start.message):
                        self._heard.append(RingStands(ring_id))
                case _:
                    assert_never(action)
        return actions
