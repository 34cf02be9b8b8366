"""Drives the control plane of a simulated cluster: sessions with hosts and switches, and virtual time.

What is decided is decided by :class:`inaproto.core.rendezvous.control_plane.ControlPlane`, which the daemon
drives, too. It runs on the first switch, and goes down with it. Hosts and the
other switches have sessions with it: reliable, in order, each message ``control_delay_ns`` on its way, and
broken ones are noticed after ``DETECTION_NS``. Control messages of switches are not encoded here; those of
daemons are in :mod:`inaproto.wire.messages.switch`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, assert_never

from inaproto.core.plan.aggregation_tree import SwitchAddress
from inaproto.core.rendezvous.control_plane import ControlAction, ControlEvent, TreesChanged
from inaproto.core.rendezvous.control_plane import ControlPlane as Core
from inaproto.core.rendezvous.events import (
    HostArrived,
    MemberAsked,
    MemberBroken,
    MemberCalls,
    MemberGone,
    MemberHalted,
    MemberLeft,
    MemberParked,
    MemberReady,
    MemberRefused,
    MemberRegroups,
    Noted,
    OperationStalled,
    RefuseHost,
    RendezvousConfig,
    Send,
    SessionEnded,
    SessionId,
    TreesWished,
    WelcomeHost,
    Woke,
)
from inaproto.core.rendezvous.fabric.events import (
    Admit,
    Faulted,
    Installed,
    Order,
    Refused,
    SwitchArrived,
    SwitchEvent,
    SwitchLost,
    TreeControlConfig,
)
from inaproto.core.rendezvous.fabric.shards import ALONE
from inaproto.core.rendezvous.fabric_tree import FabricSwitch, LinkUp
from inaproto.core.steps import Steps
from inaproto.core.switch.accelerator import InstallRing, RemoveRing, RingFault, RingRefused
from inaproto.errors import Blame, InvariantBroken
from inaproto.sim.frames.draw.topology import SWITCH_NODE, Topology
from inaproto.sim.kernel.violated import Violated
from inaproto.units import MS, Instant
from inaproto.wire.control import ControlDecoder
from inaproto.wire.control_messages import (
    Broken,
    Calls,
    Error,
    Failed,
    Gone,
    Halt,
    Halted,
    Hello,
    JobStatus,
    Left,
    Member,
    Message,
    OpStarted,
    RankRefused,
    Ready,
    Regroup,
    Welcome,
    decode_message,
    encode_message,
)
from inaproto.wire.crc import crc32
from inaproto.wire.messages.ina import InaParked

if TYPE_CHECKING:
    from inaproto.sim.frames.host.host import SimHost
    from inaproto.sim.frames.shards import SimShard
    from inaproto.sim.frames.switch import SimSwitch
    from inaproto.sim.frames.world import World

DETECTION_NS: Final = 2 * MS
"""Until a side notices that the other is gone."""


class Session:
    """The control connection of one host: reliable and in order, until one side goes away."""

    def __init__(self, world: World, host: SimHost, number: SessionId) -> None:
        self.host = host
        self.number = number
        self.is_open = True
        self._world = world

    def to_switch(self, message: Message) -> None:
        if self.is_open:
            self._world.agenda.after(self._world.config.control_delay_ns, self._at_switch, copied(message))

    def _at_switch(self, message: Message) -> None:
        if self.is_open:
            self._world.control.heard(self, message)

    def to_host(self, message: Message) -> None:
        if self.is_open:
            # A status goes to everybody at every turn of a large job: not worth a codec each time.
            sent = message if isinstance(message, JobStatus) else copied(message)
            self._world.agenda.after(self._world.config.control_delay_ns, self._at_host, sent)

    def _at_host(self, message: Message) -> None:
        if self.is_open:
            self.host.when_awake(lambda: self.host.heard(message) if self.is_open else None)

    def break_off(self, reason: str) -> None:
        """This end is gone; the other notices after a while."""
        if self.is_open:
            self.is_open = False
            self._world.agenda.after(DETECTION_NS, self._noticed, reason)

    def _noticed(self, reason: str) -> None:
        self._world.control.session_ended(self, reason)
        self.host.when_awake(lambda: self.host.session_ended(self))


class SwitchSession:
    """The control connection of a switch that is not the first."""

    def __init__(self, world: World, switch: SimSwitch | SimShard, boot: int) -> None:
        self.switch = switch
        self.is_open = True
        self.boot = boot
        """Which boot of the control plane it is with."""
        self._world = world

    def to_control(self, event: SwitchEvent) -> None:
        if self.is_open:
            self._world.agenda.after(self._world.config.control_delay_ns, self._at_control, event)

    def _at_control(self, event: SwitchEvent) -> None:
        if self.is_open:
            self._world.control.handle(event)

    def to_switch(self, action: InstallRing | RemoveRing | Admit) -> None:
        if self.is_open:
            self._world.agenda.after(self._world.config.control_delay_ns, self._at_the_switch, action)

    def _at_the_switch(self, action: InstallRing | RemoveRing | Admit) -> None:
        if self.is_open:
            self.switch.ordered(action)

    def break_off(self, reason: str) -> None:
        """One end is gone; both know after a while."""
        if self.is_open:
            self.is_open = False
            self._world.agenda.after(DETECTION_NS, self._noticed, reason)

    def _noticed(self, reason: str) -> None:
        self._world.control.switch_session_ended(self, reason)
        self.switch.session_ended(self)


def copied(message: Message) -> Message:
    """As the wire carries it."""
    (record,) = ControlDecoder().feed(encode_message(message))
    return decode_message(record)


class ControlPlane:
    def __init__(self, world: World) -> None:
        self._world = world
        self._draws = world.chance_draws
        self._sessions: dict[SessionId, Session] = {}
        self._session_serial = 0
        self._switches: dict[str, SwitchSession] = {}
        self._steps: Steps[ControlEvent] = Steps(self._step)
        self._wake_at: Instant | None = None
        self._fallbacks = self._disagreements = 0
        self.boots = 0
        self.core: Core

    # --- ups and downs

    def boot(self) -> None:
        self.boots += 1
        first_ring_id = 1 + self._draws.below(1 << 30)
        fabric, along = self._world.fabric, self._world.along
        config = RendezvousConfig(
            first_ring_id=first_ring_id,
            boot_id=self._boot_id,
            recover_ns=self._world.config.recover_ns,
            along=along,
            shards=self._world.config.shards,
        )
        self.core = Core(config, fabric)
        self._wake_at = None
        self._fallbacks = self._disagreements = 0
        if self._world.mover.wishes:
            self.handle(TreesWished(self._world.mover.wishes))

    @property
    def _boot_id(self) -> str:
        return f"boot{self.boots}"

    def go_down(self) -> None:
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.break_off("the switch went down")
        switches, self._switches = self._switches, {}
        for other in switches.values():
            other.break_off("the control plane went down")

    # --- hosts

    def open_session(self, host: SimHost) -> Session | None:
        if not self._world.switch.is_up:
            return None
        self._session_serial += 1
        session = Session(self._world, host, SessionId(self._session_serial))
        if host.switch is self._world.switch:
            host.switch.attach(host)
        self._sessions[session.number] = session
        return session

    def heard(self, session: Session, message: Message) -> None:
        if session.number not in self._sessions:
            return
        number = session.number
        match message:
            case Hello():
                self.handle(HostArrived(number, message))
            case Member():
                self.handle(MemberAsked(number, message, self._draws.raw()))
            case Ready():
                self.handle(MemberReady(number, message))
            case Left():
                self.handle(MemberLeft(number, message))
            case Gone():
                self.handle(MemberGone(number, message))
            case Calls():
                self.handle(MemberCalls(number, message))
            case Broken():
                self.handle(MemberBroken(number, message))
            case Halted():
                self.handle(MemberHalted(number, message, self._draws.raw()))
            case RankRefused():
                self.handle(MemberRefused(number, message))
            case Regroup():
                self.handle(MemberRegroups(number, message))
            case OpStarted():
                self.handle(OperationStalled(number, message))
            case InaParked():
                self.handle(MemberParked(number, message))
            case _:
                raise InvariantBroken(f"a host told the switch {message}")

    def session_ended(self, session: Session, reason: str) -> None:
        if self._sessions.pop(session.number, None) is not None:
            self.handle(SessionEnded(session.number, reason))

    # --- other switches

    def open_switch_session(self, switch: SimSwitch | SimShard) -> SwitchSession | None:
        if not self._world.switch.is_up:
            return None
        session = self._switches[switch.name] = SwitchSession(self._world, switch, self.boots)
        # Of some worlds no other switch than the root knows of selective rings that span several.
        is_selective = crc32(self._world.config.seed.encode()) >> 3 & 15 > 0
        session.to_control(SwitchArrived(switch.name, is_selective=is_selective))
        return session

    def switch_session_ended(self, session: SwitchSession, reason: str) -> None:
        if self._switches.get(session.switch.name) is session:
            del self._switches[session.switch.name]
            self.handle(SwitchLost(session.switch.name, reason))

    def _to_switch(self, name: str, action: InstallRing | RemoveRing | Admit) -> None:
        if name in self._switches:
            self._switches[name].to_switch(action)
        elif name == self._name:
            self._world.switch.ordered(action)

    @property
    def _name(self) -> str:
        """As the core calls the switch that this is at."""
        return ALONE if self._world.fabric is None else self._world.switch.name

    # --- what the accelerators say

    def said_of_ring(self, switch: SimSwitch | SimShard, event: RingFault | RingRefused | Installed) -> None:
        said: SwitchEvent
        name = self._name if switch is self._world.switch else switch.name
        match event:
            case RingFault():
                self._world.mark(f"a ring was stopped: {event.rule}")
                said = Faulted(name, event)
            case RingRefused():
                said = Refused(name, event)
            case Installed():
                said = Installed(name, event.ring_id)
            case _:
                assert_never(event)
        if switch is self._world.switch:
            self.handle(said)
        elif switch.session is not None:
            switch.session.to_control(said)

    # --- the core

    def handle(self, event: ControlEvent) -> None:
        """Step the core and perform its actions, then the events that these caused."""
        if self._steps.post(event):
            self._arm()
            self._world.mover.look()

    def _arm(self) -> None:
        deadline = self.core.deadline
        if deadline is not None and deadline != self._wake_at:
            self._wake_at = deadline
            self._world.agenda.at(deadline, self._woke, (self.boots, deadline))

    def _woke(self, planned: tuple[int, Instant]) -> None:
        if planned == (self.boots, self._wake_at) and self._world.switch.is_up:
            self._wake_at = None
            self.handle(Woke())

    def _step(self, event: ControlEvent) -> None:
        world = self._world
        world.note(SWITCH_NODE, type(event).__name__, 0)
        world.steps.control_plane += 1
        if isinstance(event, SwitchLost | SwitchArrived):
            self._mark_rings_of(event.switch)
        actions = self.core.step(event, Instant(world.agenda.now))
        if world.config.recover_ns:
            self._mark_recovery(event, actions)
        for action in actions:
            self._perform(action)

    def _mark_rings_of(self, switch: str) -> None:
        """Those that are lost with a switch."""
        fabric = self.core.view().fabric
        for ring in () if fabric is None else fabric.rings:
            if switch in ring.switches and ring.phase in ("installing", "standing"):
                self._world.mark("a ring was stopped: switch lost")

    def _mark_recovery(self, event: ControlEvent, actions: list[ControlAction]) -> None:
        said = [action.message for action in actions if isinstance(action, Send)]
        halts = [message for message in said if isinstance(message, Halt)]
        counters = self.core.view().rendezvous.counters
        fallbacks = counters["fallbacks"]
        if counters["disagreements"] > self._disagreements:
            self._world.mark("hosts had bound an all-reduce to different rings")
        self._disagreements = counters["disagreements"]
        if fallbacks > self._fallbacks:
            is_refused = isinstance(event, Refused) or any(
                "cannot sum for it" in halt.reason for halt in halts
            )
            why = "the switch refused it" if is_refused else "it broke twice"
            path = next((halt.path for halt in halts), "chain")
            became = {"ring": "one of hosts", "overlay": "an overlay"}.get(path, "a chain")
            self._world.mark(f"a ring became {became}: {why}")
        self._fallbacks = fallbacks
        if isinstance(event, Woke) and any(isinstance(message, Failed | Error) for message in said):
            self._world.mark("a rank did not come back and was named")

    def _perform(self, action: ControlAction) -> None:
        match action:
            case Send(number, message):
                self._send(number, message)
            case WelcomeHost(number, hello_id):
                welcome = Welcome(id=hello_id, boot_id=self._boot_id, port_path="simulated", mtu_max=4096)
                self._send(number, welcome)
            case RefuseHost(number, error):
                self._send(number, error)
                self._world.mark("a host was refused until its old session had ended")
            case Order(switch, order):
                self._to_switch(switch, order)
            case Admit(switch):
                self._to_switch(switch, action)
            case TreesChanged():
                pass  # the mover of trees looks after every event, also at hosts
            case Noted(text, _):
                if self._world.recorder is not None:
                    self._world.recorder.noted(text)
            case Blame():
                raise Violated("nobody is to blame", f"the rendezvous blames {action}")
            case _:
                assert_never(action)

    def _send(self, number: SessionId, message: Message) -> None:
        session = self._sessions.get(number)
        if session is not None:
            for hook in self._world.hooks.told:
                hook(session.host, message)
            session.to_host(message)


def fabric_of(world: World, topology: Topology) -> TreeControlConfig:
    switches = []
    for number, config in enumerate(topology.switches):
        switch = world.switches[number]
        address = SwitchAddress(switch.mac, switch.ip)
        made = FabricSwitch(
            config.name, address, aggregates=config.aggregates, passes_sums=config.passes_sums
        )
        if switch.trunk is not None:
            own, further = switch.trunk, [trunk for trunk in switch.trunks if trunk.below is switch]
            made = replace(
                made,
                above=own.above.name,
                port_up=own.port_up,
                port_down=own.port_down,
                further=tuple(
                    LinkUp(trunk.above.name, trunk.port_up, trunk.port_down)
                    for trunk in further
                    if trunk is not own
                ),
            )
        switches.append(made)
    roots = [
        FabricSwitch(root.name, SwitchAddress(root.mac, root.ip))
        for root in world.switches[len(topology.switches) :]
    ]
    switches[1:1] = roots
    hosts = {host.ip: topology.switches[topology.attached[host.number]].name for host in world.hosts}
    return TreeControlConfig(tuple(switches), hosts)
