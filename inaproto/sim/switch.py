"""The simulated switch: accelerator and rendezvous, wired as ``inaproto.daemon.switch`` wires them.

A reboot loses both cores and all that was under way; every host then finds its session broken.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, assert_never

from inaproto.core.accelerator import (
    Accelerator,
    AcceleratorConfig,
    Action,
    EmitFrames,
    FramesArrived,
    InstallRing,
    PortDown,
    PortUp,
    RemoveRing,
    RingFault,
    RingRefused,
)
from inaproto.core.rendezvous import Rendezvous
from inaproto.core.rendezvous_types import (
    HostArrived,
    MemberAsked,
    MemberGone,
    MemberLeft,
    MemberReady,
    Noted,
    OperationStalled,
    RefuseHost,
    RendezvousAction,
    RendezvousConfig,
    RendezvousEvent,
    Send,
    SessionEnded,
    SessionId,
    WelcomeHost,
)
from inaproto.errors import Blame, InvariantBroken
from inaproto.sim.checkers.checker import Violated
from inaproto.units import MS, Frames, Instant, PortId
from inaproto.wire.control import ControlDecoder
from inaproto.wire.control_messages import (
    Gone,
    Hello,
    JobStatus,
    Left,
    Member,
    Message,
    OpStarted,
    Ready,
    Welcome,
    decode_message,
    encode_message,
)

if TYPE_CHECKING:
    from inaproto.sim.host import SimHost
    from inaproto.sim.world import World

NODE: Final = 1000
"""Node number of the switch in traces."""
DETECTION_NS: Final = 2 * MS
"""Until a side notices that the other is gone."""
OF_LATE_PACKETS: Final = frozenset({"unknown ring", "connection not registered"})
"""What a restarted switch, or one of whose rings was removed, may rightly say."""
OF_DAMAGED_PACKETS: Final = frozenset({"not from where its rank is"})
"""The ICRC does not cover addresses of Ethernet."""


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
            self._world.switch.heard(self, message)

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
        self._world.switch.session_ended(self, reason)
        self.host.when_awake(lambda: self.host.session_ended(self))


def copied(message: Message) -> Message:
    """As the wire carries it."""
    (record,) = ControlDecoder().feed(encode_message(message))
    return decode_message(record)


class SimSwitch:
    def __init__(self, world: World) -> None:
        self._world = world
        self._draws = world.chance_draws
        self._sessions: dict[SessionId, Session] = {}
        self._session_serial = 0
        self._ports: dict[PortId, SimHost] = {}
        self._port_of: dict[int, PortId] = {}
        self._port_serial = 0
        self._events: deque[RendezvousEvent] = deque()
        self._handling = False
        self._boots = 0
        self._had_rings = False
        """A ring was removed, or the switch has rebooted: late packets of it may come."""
        self.is_up = False
        self.frames_in = 0
        """Since the last boot."""
        self.frames_taken = 0
        """Over all boots."""
        self.lost_in = 0
        """Frames that found the switch down; over all boots."""
        self.accelerator: Accelerator
        self.rendezvous: Rendezvous
        self.boot()

    # --- ups and downs

    def boot(self, _: Any = None) -> None:
        world = self._world
        self._boots += 1
        self.accelerator = world.make_accelerator(
            AcceleratorConfig(memory_bytes_max=world.switch_memory_bytes_max)
        )
        first_ring_id = 1 + self._draws.below(1 << 30)
        self.rendezvous = Rendezvous(RendezvousConfig(first_ring_id=first_ring_id, epoch=self._boots))
        self.frames_in = 0
        self.is_up = True  # hosts attach anew, with NICs made since: a softnic dies with its port

    def go_down(self) -> None:
        self._world.accelerator_gone(self)
        self._had_rings = True
        for hook in self._world.hooks.switch_rebooted:
            hook()
        self.is_up = False
        for host in self._world.hosts:
            self.detach(host)
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.break_off("the switch went down")

    # --- ports

    def port_of_mac(self, mac: bytes) -> PortId | None:
        """Where the host with that address is attached."""
        for port, host in self._ports.items():
            if host.mac == mac:
                return port
        return None

    @property
    def has_detached(self) -> bool:
        """Whether a host has no port now: frames for it are flooded, or go nowhere."""
        return len(self._ports) < len(self._world.hosts)

    def attach(self, host: SimHost) -> None:
        """A link comes up: on a new port."""
        if not self.is_up or host.number in self._port_of:
            return
        self._port_serial += 1
        port = PortId(self._port_serial)
        self._ports[port] = host
        self._port_of[host.number] = port
        self._step_accelerator(PortUp(port))

    def detach(self, host: SimHost) -> None:
        """A link goes down: what is under way on it is lost."""
        host.uplink.reset()
        self._world.downlinks[host.number].reset()
        port = self._port_of.pop(host.number, None)
        if port is not None:
            del self._ports[port]
            if self.is_up:
                self._step_accelerator(PortDown(port))

    def frames_from(self, host: SimHost, blocks: list[Frames]) -> None:
        port = self._port_of.get(host.number)
        if port is None:
            self.lost_in += sum(map(len, blocks))
            return
        world = self._world
        for block in blocks:
            self.frames_in += len(block)
            self.frames_taken += len(block)
            world.note_frames(NODE, block)
        hooks, downlinks, ports = world.hooks, world.downlinks, self._ports
        for received in hooks.switch_received:
            received(port, blocks)
        world.steps.accelerator += 1
        for action in self.accelerator.step(FramesArrived(port, blocks), world.agenda.now):
            if type(action) is EmitFrames:
                egress, frames = action
                for sent in hooks.switch_sent:
                    sent(egress, frames)
                downlinks[ports[egress].number].send(frames)
            else:
                self._perform_of_accelerator(action)
        for stepped in hooks.switch_stepped:
            stepped()

    def _step_accelerator(self, event: PortUp | PortDown | InstallRing | RemoveRing) -> None:
        self._world.steps.accelerator += 1
        for action in self.accelerator.step(event, self._world.agenda.now):
            self._perform_of_accelerator(action)

    def _perform_of_accelerator(self, action: Action) -> None:
        match action:
            case Blame():
                expected = self._had_rings if action.rule in OF_LATE_PACKETS else False
                if not expected and not (self._world.damage and action.rule in OF_DAMAGED_PACKETS):
                    raise Violated("nobody is to blame", f"the switch blames {action}")
                self._world.mark(f"the switch blamed: {action.rule}")
            case RingFault():
                self._world.mark("a ring was faulted for its ranks disagreed")
                self.handle(action)
            case RingRefused():
                self._world.mark("a ring was refused for want of memory")
                self.handle(action)
            case EmitFrames():
                raise InvariantBroken("frames are sent where they arrive, nowhere else")
            case _:
                assert_never(action)

    # --- control

    def open_session(self, host: SimHost) -> Session | None:
        if not self.is_up:
            return None
        self._session_serial += 1
        session = Session(self._world, host, SessionId(self._session_serial))
        self.attach(host)
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
            case OpStarted():
                self.handle(OperationStalled(number, message))
            case _:
                raise InvariantBroken(f"a host told the switch {message}")

    def session_ended(self, session: Session, reason: str) -> None:
        if self._sessions.pop(session.number, None) is not None:
            self.handle(SessionEnded(session.number, reason))

    def handle(self, event: RendezvousEvent) -> None:
        """Step the rendezvous and perform its actions, then the events that these caused."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                world = self._world
                world.steps.rendezvous += 1
                following = self._events.popleft()
                world.note(NODE, type(following).__name__, 0)
                for action in self.rendezvous.step(following, Instant(world.agenda.now)):
                    self._perform(action)
        finally:
            self._handling = False

    def _perform(self, action: RendezvousAction) -> None:
        world = self._world
        match action:
            case Send(number, message):
                self._send(number, message)
            case WelcomeHost(number, hello_id):
                welcome = Welcome(
                    id=hello_id, boot_id=f"boot{self._boots}", port_path="simulated", mtu_max=4096
                )
                self._send(number, welcome)
            case RefuseHost(number, error):
                self._send(number, error)
                self._world.mark("a host was refused until its old session had ended")
            case InstallRing(spec):
                for installed in world.hooks.ring_installed:
                    installed(spec)
                self._step_accelerator(action)
            case RemoveRing(ring_id):
                self._had_rings = True
                self._step_accelerator(action)
                for removed in world.hooks.ring_removed:
                    removed(ring_id)
            case Noted(text, _):
                if world.recorder is not None:
                    world.recorder.noted(text)
            case Blame():
                raise Violated("nobody is to blame", f"the rendezvous blames {action}")
            case _:
                assert_never(action)

    def _send(self, number: SessionId, message: Message) -> None:
        session = self._sessions.get(number)
        if session is not None:
            session.to_host(message)
