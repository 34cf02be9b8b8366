"""A simulated switch: ports, trunks to other switches, and an accelerator.

A reboot loses all its state and all that was under way. The hosts at it then lose their NICs, for a softnic
dies with its port; the first switch takes the control plane with it. What another switch must hear before
its ports open again says :mod:`inaproto.core.rendezvous.fabric.control`. A trunk carries frames while the
control plane that runs now has admitted both its ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, assert_never

from inaproto.core.rendezvous.fabric.events import Admit, Installed
from inaproto.core.switch.accelerator import (
    Accelerator,
    AcceleratorConfig,
    Action,
    EmitFrames,
    ForLink,
    FramesArrived,
    InstallRing,
    PortDown,
    PortUp,
    RemoveRing,
    RingFault,
    RingRefused,
)
from inaproto.core.switch.port_pauses import PausedPorts, silences_asked
from inaproto.errors import Blame, InvariantBroken
from inaproto.faults.announcement import announcement
from inaproto.sim.frames.control_plane import DETECTION_NS, ControlPlane, SwitchSession
from inaproto.sim.frames.draw.topology import SWITCH_NODE
from inaproto.sim.frames.link import SimLink
from inaproto.sim.frames.notes import note_kind
from inaproto.sim.frames.shards import ShardedAccelerator, SimShard
from inaproto.sim.kernel.violated import Violated
from inaproto.units import MS, Frames, Instant, PortId
from inaproto.wire.messages.switch import Role
from inaproto.wire.tree_note import NoteKind

if TYPE_CHECKING:
    from inaproto.sim.frames.host.host import SimHost
    from inaproto.sim.frames.world import World

RECONNECT_NS: Final = 1 * MS
_NOTE_FRAME_BYTES_MAX: Final = 54 + 32 + 4
"""Longest frame of a note without a header in it."""
OF_LATE_PACKETS: Final = frozenset({"unknown ring", "connection not registered"})
"""What a restarted switch, or one of whose rings was removed, may rightly say."""
OF_DAMAGED_PACKETS: Final = frozenset({"not from where its rank is"})
"""The ICRC does not cover addresses of Ethernet; and packets of a flow go by another link of a router at any
time."""


class Trunk:
    """The link between a switch and one above it."""

    def __init__(
        self,
        below: SimSwitch,
        above: SimSwitch,
        up: SimLink,
        down: SimLink,
        port_up: PortId,
        port_down: PortId,
    ) -> None:
        self.below, self.above = below, above
        self.up, self.down = up, down
        self.port_up, self.port_down = port_up, port_down
        """The port of the switch below, and that of the one above."""
        self.is_open = False

    @property
    def is_for_rings(self) -> bool:
        """Whether it is beyond the fabric's own tree."""
        return self is not self.below.trunk

    def open(self) -> None:
        """If both ends may."""
        if not self.is_open and self.below.is_admitted and self.above.is_admitted:
            self.is_open = True
            self.below.trunk_changed(self.port_up, is_up=True)
            self.above.trunk_changed(self.port_down, is_up=True)

    def close(self) -> None:
        """An end is gone, and with it what is under way."""
        self.up.reset()
        self.down.reset()
        if self.is_open:
            self.is_open = False
            self.below.trunk_changed(self.port_up, is_up=False)
            self.above.trunk_changed(self.port_down, is_up=False)


class SimSwitch:
    """Number 0 is the first switch, at which the control plane is."""

    def __init__(self, world: World, number: int, name: str) -> None:
        self._world = world
        self.number = number
        self.name = name
        self.node = SWITCH_NODE + number
        self.mac = bytes([2, 0, 0, 0, 2, number + 1])
        self.ip = bytes([10, 0, 1, number + 1])
        self.memory_bytes_max = 0
        self.control = ControlPlane(world) if number == 0 else None
        self.session: SwitchSession | None = None
        """The session with the control plane; the first switch needs none."""
        self.trunk: Trunk | None = None
        """The trunk to the switch above, in the fabric's own tree."""
        self.trunks: list[Trunk] = []
        """Trunks to all switches next to it."""
        self._trunk_of: dict[PortId, Trunk] = {}
        self._ports: dict[PortId, SimHost] = {}
        self._port_of: dict[int, PortId] = {}
        self._egress: dict[PortId, SimLink] = {}
        """Links of all ports that are up."""
        self._port_serial = 0
        self._boots = 0
        self._rings: dict[int, None] = {}
        """Rings that it was told to install, and not to remove."""
        self._had_rings = False
        """A ring was removed, or the switch has rebooted: late packets of it may come."""
        self._admitted_by = 0
        """Which boot of the control plane let it open its ports."""
        self.is_up = False
        self.frames_in = 0
        """Since the last boot."""
        self.frames_taken = 0
        """Over all boots."""
        self.lost_in = 0
        """Frames that found the switch down; over all boots."""
        self.lost_in_pauses = 0
        """Frames that were held back by pauses of links, and found no room or a port that was gone."""
        self._pauses = PausedPorts()
        self._pause_wake_at: Instant | None = None
        self.accelerator: Accelerator | ShardedAccelerator
        self.shards = [SimShard(world, self, shard) for shard in range(1, 1 + world.config.shards)]

    def __str__(self) -> str:
        return "the switch" if self._world.config.topology is None else self.name

    def add_trunk(self, trunk: Trunk) -> PortId:
        """Ports of trunks come before all others, and keep their numbers."""
        self._port_serial += 1
        port = PortId(self._port_serial)
        self.trunks.append(trunk)
        self._trunk_of[port] = trunk
        return port

    # --- ups and downs

    def boot(self, _: Any = None) -> None:
        self._boots += 1
        own = self.new_accelerator()
        self.accelerator = ShardedAccelerator(own, len(self.shards)) if self.shards else own
        self.frames_in = 0
        self._rings.clear()
        if self.control is not None:
            self.control.boot()
            self._admitted_by = self.control.boots
        self.is_up = True  # hosts attach anew, with NICs made since: a softnic dies with its port
        for shard in self.shards:
            shard.boot()
        if self.control is None:
            self._connect()

    def new_accelerator(self) -> Accelerator:
        """The one of a process that starts."""
        return self._world.make_accelerator(
            AcceleratorConfig(
                memory_bytes_max=self.memory_bytes_max,
                ring_ports=frozenset(port for port, trunk in self._trunk_of.items() if trunk.is_for_rings),
                ports_up=frozenset(port for port, trunk in self._trunk_of.items() if trunk.below is self),
            )
        )

    def go_down(self) -> None:
        self._world.accelerator_gone(self)
        self._had_rings = True
        for hook in self._world.hooks.switch_rebooted:
            hook(self)
        for shard in self.shards:
            shard.die()
        self.is_up = False
        self._admitted_by = 0
        for trunk in self.trunks:
            trunk.close()
        hosts = list(self._ports.values())
        for host in self._world.hosts:
            if host.switch is self:
                self.detach(host)
        if self.control is not None:
            self.control.go_down()
            return
        if self.session is not None:
            self.session.break_off("the switch went down")
            self.session = None
        for host in hosts:
            self._world.agenda.after(DETECTION_NS, host.port_gone, host.nic)

    @property
    def sharded(self) -> ShardedAccelerator:
        """The accelerator of a switch that has shards."""
        assert isinstance(self.accelerator, ShardedAccelerator)
        return self.accelerator

    def lost_with(self, shard: SimShard) -> None:
        """A shard has died: packets of its rings are on their way."""
        self._had_rings = True
        self._world.mark("a shard died")

    @property
    def is_admitted(self) -> bool:
        """Its ports may be open: it has heard of all rings that it once had."""
        control = self._world.control
        return self.is_up and self._world.switch.is_up and self._admitted_by == control.boots

    # --- ports

    def port_of_mac(self, mac: bytes) -> PortId | None:
        """Where frames for the host, or the link of a router, with that address go; None: nowhere now."""
        for port, host in self._ports.items():
            if mac in (host.mac, host.link_mac):
                return port
        if self.trunks:
            return self._port_toward(mac)
        return None

    def port_of(self, host: SimHost) -> PortId | None:
        """Where its link is; None: it is down, or elsewhere."""
        return self._port_of.get(host.number)

    def leads_to(self, port: PortId, host: SimHost) -> bool:
        """Whether a host is there: at its port, or at any of those of its router."""
        if host.router is None:
            return self.port_of_mac(host.mac) == port
        at = self._ports.get(port)
        return at is not None and at.router is host.router

    def _port_toward(self, mac: bytes) -> PortId | None:
        host = next((host for host in self._world.hosts if host.mac == mac), None)
        if host is None or host.switch is self:
            return None
        path, below = [host.switch], host.switch
        while below.trunk is not None:
            below = below.trunk.above
            path.append(below)
        trunk = path[path.index(self) - 1].trunk if self in path else self.trunk
        if trunk is None:  # a further root: ranks behind one that steers
            trunk = next((one for one in self.trunks if one.below in path), None)
        if trunk is None or not trunk.is_open:
            return None
        return next(port for port, found in self._trunk_of.items() if found is trunk)

    @property
    def has_detached(self) -> bool:
        """Whether some host has no port here now: frames for it are flooded, or go nowhere."""
        here = sum(host.switch is self for host in self._world.hosts)
        return len(self._ports) < here or not all(trunk.is_open for trunk in self.trunks)

    def attach(self, host: SimHost) -> bool:
        """A link comes up: on a new port. False if the switch does not answer."""
        if not self.is_admitted:
            return False
        if host.number not in self._port_of:
            self._port_serial += 1
            port = PortId(self._port_serial)
            self._ports[port] = host
            self._port_of[host.number] = port
            self._egress[port] = self._world.downlinks[host.number]
            self._step_accelerator(PortUp(port))
        return True

    def detach(self, host: SimHost) -> None:
        """A link goes down: what is under way on it is lost."""
        host.uplink.reset()
        self._world.downlinks[host.number].reset()
        port = self._port_of.pop(host.number, None)
        if port is not None:
            self._pauses.forget(port)
            del self._ports[port], self._egress[port]
            if self.is_up:
                self._step_accelerator(PortDown(port))

    def trunk_changed(self, port: PortId, *, is_up: bool) -> None:
        trunk = self._trunk_of[port]
        if is_up:
            self._egress[port] = trunk.up if trunk.below is self else trunk.down
        else:
            self._pauses.forget(port)
            del self._egress[port]
        if self.is_up:
            self._step_accelerator(PortUp(port) if is_up else PortDown(port))

    # --- frames

    def frames_from(self, host: SimHost, blocks: list[Frames]) -> None:
        port = self._port_of.get(host.number)
        if port is None:
            self.lost_in += sum(map(len, blocks))
            return
        self._take(port, blocks)

    def frames_of_trunk(self, port: PortId, blocks: list[Frames]) -> None:
        if port not in self._egress:
            self.lost_in += sum(map(len, blocks))
            return
        self._take(port, blocks)

    def _take(self, port: PortId, blocks: list[Frames]) -> None:
        world, node = self._world, self.node
        if self.shards:
            blocks, lost = self.sharded.taken(blocks)
            self.lost_in += lost
        for block in blocks:
            self.frames_in += len(block)
            self.frames_taken += len(block)
            world.note_frames(node, block)
        hooks, links = world.hooks, self._egress
        for received in hooks.switch_received:
            received(self, port, blocks)
        world.steps.accelerator += 1
        for action in self.accelerator.step(FramesArrived(port, blocks), world.agenda.now):
            if type(action) is EmitFrames:
                egress, frames = action.port, action.frames
                for sent in hooks.switch_sent:
                    sent(self, egress, frames)
                if egress in self._trunk_of:
                    self._mark_notes(frames)
                if egress in self._pauses.silent:
                    world.mark("a paused port held frames back")
                    self._pauses.silent[egress].push((frames,))
                else:
                    links[egress].send(frames)
            elif type(action) is ForLink:
                self._paused(*action)
            else:
                self._perform_of_accelerator(action)
        for stepped in hooks.switch_stepped:
            stepped(self)

    def _paused(self, port: PortId, frames: Frames) -> None:
        silences, link, now = silences_asked(frames), self._egress[port], Instant(self._world.agenda.now)

        def send(blocks: Sequence[Frames]) -> int:
            for block in blocks:
                link.send(block)
            return 0

        self._pauses.ask(port, silences, len(frames), now, send, self._lose_in_pause)
        self._wake_for_pauses()

    def _wake_for_pauses(self) -> None:
        until = self._pauses.until
        if until is not None and until != self._pause_wake_at:
            self._pause_wake_at = until
            self._world.agenda.at(until, self._pause_ends, until)

    def _pause_ends(self, planned: Instant) -> None:
        if planned == self._pause_wake_at:
            self._pause_wake_at = None
            self._pauses.release(planned)
            self._wake_for_pauses()

    def _lose_in_pause(self, _: str, frames: int) -> None:
        self.lost_in_pauses += frames

    def _mark_notes(self, frames: Frames) -> None:
        if frames.shape[1] > _NOTE_FRAME_BYTES_MAX or len(frames) > 1:
            return
        match note_kind(frames.tobytes()):
            case NoteKind.GAP:
                self._world.mark("a note told of a gap")
            case NoteKind.REPEATS:
                self._world.mark("a note told of repeats")
            case _:
                pass

    def _step_accelerator(
        self, event: PortUp | PortDown | InstallRing | RemoveRing, shard: SimShard | None = None
    ) -> bool:
        """Whether the accelerator did not refuse."""
        self._world.steps.accelerator += 1
        accelerator = self.accelerator if shard is None else shard.accelerator
        actions = accelerator.step(event, self._world.agenda.now)
        for action in actions:
            self._perform_of_accelerator(action, shard)
        return not any(isinstance(action, RingRefused) for action in actions)

    def _perform_of_accelerator(self, action: Action, shard: SimShard | None = None) -> None:
        """``shard``: whose it is, where that was told something."""
        match action:
            case Blame():
                expected = self._had_rings if action.rule in OF_LATE_PACKETS else False
                if self.shards and self._world.damage and action.rule in OF_LATE_PACKETS:
                    expected = True  # a damaged source port leads to a shard that does not have the ring
                moves = self._world.damage or self._world.config.routers
                if not expected and not (moves and action.rule in OF_DAMAGED_PACKETS):
                    raise Violated("nobody is to blame", f"{self} blames {action}")
                self._world.mark(f"the switch blamed: {action.rule}")
            case RingFault():
                self._world.mark("a ring was faulted for its ranks disagreed")
                has_it = next((one for one in self.shards if action.ring_id in one.rings), None)
                self._world.control.said_of_ring(has_it or self, action)
            case RingRefused():
                self._world.mark("a ring was refused for want of memory")
                self._world.control.said_of_ring(shard or self, action)
            case EmitFrames() | ForLink():
                raise InvariantBroken("frames are sent where they arrive, nowhere else")
            case _:
                assert_never(action)

    # --- control

    def ordered(self, order: InstallRing | RemoveRing | Admit, shard: SimShard | None = None) -> bool:
        """Performs an order of the control plane, to it or to a shard of it. Whether the accelerator has not
        refused."""
        world = self._world
        who = self if shard is None else shard
        match order:
            case InstallRing(spec):
                self._rings[spec.ring_id] = None
                self._mark_role(spec.role)
                if spec.selective and spec.role is not None and spec.role.inputs:
                    world.mark("a selective ring spanned several switches")
                for installed in world.hooks.ring_installed:
                    installed(self, spec)
                if not self._step_accelerator(order, shard):
                    return False
                world.control.said_of_ring(who, Installed(who.name, spec.ring_id))
            case RemoveRing(ring_id):
                self._had_rings = True
                self._rings.pop(ring_id, None)
                self._step_accelerator(order, shard)
                for removed in world.hooks.ring_removed:
                    removed(self, ring_id)
            case Admit():
                self._admitted_by = world.control.boots
                for trunk in self.trunks:
                    trunk.open()
                for port, link in self._egress.items():
                    if port not in self._trunk_of or not self._trunk_of[port].is_for_rings:
                        link.send(announcement(self.mac, self.ip))
            case _:
                assert_never(order)
        return True

    def _mark_role(self, role: Role | None) -> None:
        if role is not None and role.parent is not None:
            self._world.mark("a tree of three levels" if role.children else "a tree of two levels")

    @property
    def boots(self) -> int:
        return self._boots

    @property
    def has_rings(self) -> bool:
        return bool(self._rings)

    def _connect(self, boot: Any = None) -> None:
        """Until the control plane answers, unless the switch has restarted since."""
        if not self.is_up or self.session is not None or boot not in (None, self._boots):
            return
        self.session = self._world.control.open_switch_session(self)
        if self.session is None:
            self._world.agenda.after(RECONNECT_NS, self._connect, self._boots)

    def session_ended(self, session: SwitchSession) -> None:
        """The control plane is gone, and with it all rings."""
        if session is not self.session:
            return
        self.session = None
        for ring_id in list(self._rings):
            self.ordered(RemoveRing(ring_id))
        self._connect()
