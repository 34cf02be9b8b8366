"""The switch daemon: an Ethernet switch with a NetReduce accelerator in it (NetReduce sections 3 and 4).

It listens at two UNIX sockets in its directory: every connection to ``ports.sock`` is a port, every
connection to ``control.sock`` a session or a question for its status. Network interfaces can be ports, too
(:mod:`inaproto.daemon.switch.link_ports`). A switch that is alone, or the root of
a fabric, has the control plane (:mod:`inaproto.daemon.switch.control_plane`); the others have a session with
it (:mod:`inaproto.daemon.switch.session`) and trunks to their neighbours
(:mod:`inaproto.daemon.switch.trunks`).

Invariants: the accelerator is stepped from synchronous code only; what it says of a ring goes to the control
plane. A switch that has lost the control plane forgets its rings, but drops what comes late for them, and
keeps its ports closed until it is admitted again. Where the accelerator is elsewhere, with ports of its own
(``AnswersLater``), the switch has none, and is its control plane alone.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, assert_never

import trio

from inaproto.ca.identity import Role
from inaproto.core import kernels
from inaproto.core.rdma.reliable_connection import MTUS
from inaproto.core.rendezvous.fabric.control import SWITCH_LOST
from inaproto.core.rendezvous.fabric.events import Installed
from inaproto.core.rendezvous.fabric.shards import ALONE
from inaproto.core.switch.accelerator import (
    Accelerator,
    AcceleratorConfig,
    Action,
    EmitFrames,
    ForLink,
    InstallRing,
    RemoveRing,
    RingFault,
    RingRefused,
)
from inaproto.core.switch.events import (
    AcceleratorLost,
    AnswersLater,
    MakeAccelerator,
    RingReady,
    SaidLater,
    TakesAtMost,
)
from inaproto.core.switch.moderation import Moderation
from inaproto.daemon.net.control_address import Holder, credentials_of, door_of, doors_of, parse_listen
from inaproto.daemon.net.controller_link import ControllerLink
from inaproto.daemon.net.session_rules import Guard
from inaproto.daemon.net.tls_listener import TlsListener, listen_tls
from inaproto.daemon.net.unix_sockets import UNIX
from inaproto.daemon.observe.status_tables import narrow_port_note
from inaproto.daemon.settings.config import SwitchSettings
from inaproto.daemon.settings.fabric_file import Place
from inaproto.daemon.shell import current_instant
from inaproto.daemon.switch.blame_log import BlameLog
from inaproto.daemon.switch.capture_desk import CaptureDesk
from inaproto.daemon.switch.control_plane import SESSIONS_SPARE, ControlPlane
from inaproto.daemon.switch.control_server import ControlServer
from inaproto.daemon.switch.job_secret import tokens_of
from inaproto.daemon.switch.lent_slots import LentSlots
from inaproto.daemon.switch.link_ports import LinkPorts
from inaproto.daemon.switch.narrow_ports import narrow_ports
from inaproto.daemon.switch.ports import ConnectPort, OpenPortListener, PortBoard, WrapPort
from inaproto.daemon.switch.session import SwitchSession
from inaproto.daemon.switch.shard_keeper import ShardCommand, ShardKeeper
from inaproto.daemon.switch.tree_grants import TreeGrants
from inaproto.daemon.switch.trunks import Trunks
from inaproto.daemon.switch.wished_trees import WishedTrees
from inaproto.errors import Blame, ConfigError, InvariantBroken
from inaproto.ports import Link, PortListener, RandomBits, StreamNetwork
from inaproto.tracing.opening import tracing_of_daemon
from inaproto.wire.messages.trees import TreeState, TreeWished

if TYPE_CHECKING:
    from inaproto.tracing.spans import Tracing

_VERSION: Final = version("inaproto")
log = logging.getLogger("inaproto.switch")


class Switch:
    """The accelerator and what joins it to ports and control. Synchronous; :func:`run_switch` runs it."""

    def __init__(
        self,
        settings: SwitchSettings,
        place: Place | None = None,
        *,
        wrap_port: WrapPort | None = None,
        links: Sequence[Link] = (),
        shard_command: ShardCommand | None = None,
        network: StreamNetwork = UNIX,
        random_bits: RandomBits = secrets.randbits,
        make_accelerator: MakeAccelerator = Accelerator,
        tracing: Tracing | None = None,
    ) -> None:
        self.settings = settings
        self.shards = ShardKeeper(settings.shards, shard_command)
        self.boot_id = f"{random_bits(64):016x}"
        self._tracing = tracing
        self._place = place
        self._started = trio.current_time()
        self._accelerator = make_accelerator(
            AcceleratorConfig(
                rings_max=settings.rings_max,
                memory_bytes_max=settings.memory_kib << 10,
                ring_ports=frozenset() if place is None else place.fabric.ring_ports(place.name),
                ports_up=frozenset() if place is None else place.fabric.ports_up(place.name),
            )
        )
        self._apart = self._accelerator if isinstance(self._accelerator, AnswersLater) else None
        if self._apart is not None and links:
            raise ConfigError("port: this accelerator has ports of its own; leave it out")
        if self._apart is not None and place is not None:
            raise ConfigError("fabric: a switch with this accelerator is alone; leave it out")
        self._rings: dict[int, str] = {}
        """Rings that it was told to install, and not to remove; with the job that each is of."""
        self._blames = BlameLog()
        self.ports = PortBoard(
            self._accelerator.step,
            self._perform_of_accelerator,
            wrap_port=wrap_port,
            ports_max=0 if place is not None and place.is_further_root else settings.ports_max,
            trunks=0 if place is None else len(place.fabric.trunk_ports(place.name)),
            links=len(links),
            moderation=Moderation(self._accelerator.rings) if settings.moderation == "on" else None,
            tell_silence=self.shards.silence,
        )
        if links and place is not None and place.is_further_root:
            raise ConfigError(f"port: no host can be at {place.name}, a further root; leave it out")
        self.links = LinkPorts(links, self.ports)
        self.captures = CaptureDesk(self.ports)
        self.trunks = (
            None
            if place is None
            else Trunks(place, self.ports, self._control_boot, lambda: self._accelerator.addresses)
        )
        self.plane: ControlPlane | None = None
        self.session: SwitchSession | None = None
        self._guard = Guard(wall_s=time.time, tokens=tokens_of(settings.job_secret))
        self._trees = TreeGrants()
        self.slots = LentSlots(
            settings.name or "switch", self.boot_id, rings=self._rings.values, clock=current_instant
        )
        self.trees = WishedTrees(self._wish_trees, self._tree_states)
        self.controller = ControllerLink(
            "switch",
            settings.name,
            self._trees,
            doors_of(settings.controller, network, holder_of(settings)),
            sides=[self.slots] if place is None or not place.is_root else [self.slots, self.trees],
        )
        self.listener: TlsListener | None = None
        """Where other machines come in, if they may."""
        if place is not None and not place.is_root:
            door = door_of(settings.control, place.fabric.root.control_path, network, holder_of(settings))
            self.session = SwitchSession(place, self.boot_id, self, door)
            self.server = ControlServer(
                _nobody,
                self.status,
                desk=None,
                sessions_max=SESSIONS_SPARE,
                captures=self.captures,
                random_bits=random_bits,
                guard=self._guard,
            )
            return
        if settings.control:
            raise ConfigError("control: is for a switch of a fabric below its root; leave it out")
        self.ports.is_open = True
        self.plane = ControlPlane(
            settings,
            place,
            self.boot_id,
            order=self.ordered,
            blame=self._blames.add,
            switch_lost=self._switch_lost,
            mtu_most=self._mtu_most,
            answers_probes=not self.is_apart,
            status=self.status,
            random_bits=random_bits,
            captures=self.captures,
            guard=self._guard,
            shards=self.shards,
            tracing=tracing,
        )
        self.shards.plane = self.plane
        self.plane.trees_changed = self.trees.changed
        self.server = self.plane.server

    def _control_boot(self) -> str:
        return self.boot_id if self.session is None else self.session.control_boot

    # --- a controller's wishes, where the control plane is

    def _wish_trees(self, wishes: tuple[TreeWished, ...]) -> None:
        if self.plane is not None:
            self.plane.wish_trees(wishes)

    def _tree_states(self) -> tuple[TreeState, ...]:
        return () if self.plane is None else self.plane.tree_states()

    # --- the control plane's orders

    def ordered(self, order: InstallRing | RemoveRing) -> bool:
        """Whether the accelerator has done it: it refuses, or says so later, otherwise."""
        if isinstance(order, InstallRing):
            self._rings[order.spec.ring_id] = order.spec.job
        else:
            self._rings.pop(order.ring_id, None)
        actions = self._accelerator.step(order, current_instant())
        for action in actions:
            self._perform_of_accelerator(action)
        if isinstance(order, InstallRing):
            for narrow in narrow_ports([order.spec], self._accelerator.addresses, self.ports.sizes()):
                log.warning("%s", narrow_port_note(narrow))
        return self._apart is None and not any(isinstance(action, RingRefused) for action in actions)

    def _mtu_most(self) -> int:
        """The largest MTU of a ring that its accelerator takes; 0: any, or it is not known."""
        most = self._accelerator.mtu_max if isinstance(self._accelerator, TakesAtMost) else 0
        return max((mtu for mtu in MTUS if mtu <= most), default=0)

    @property
    def is_apart(self) -> bool:
        """Whether its accelerator has ports of its own, and this process none."""
        return self._apart is not None

    async def keep_apart(self) -> None:
        """Have the orders carried out of an accelerator that is elsewhere; until cancelled."""
        if self._apart is not None:
            await self._apart.run(self._said_later)

    def _said_later(self, said: SaidLater) -> None:
        if self.plane is None:
            raise InvariantBroken(f"no control plane hears {said}")
        match said:
            case Blame():
                self._blames.add(said)
            case AcceleratorLost(reason):
                for ring_id in list(self._rings):
                    self._said_later(RingFault(ring_id, 0, SWITCH_LOST, reason))
            case _ if said.ring_id not in self._rings:
                pass  # it was given up meanwhile
            case RingReady(ring_id):
                self.plane.switch_said(ALONE, Installed(ALONE, ring_id))
            case RingFault() | RingRefused():
                self.plane.said_of_ring(said)
            case _:
                assert_never(said)

    def admitted(self) -> None:
        self.ports.is_open = True
        if self.trunks is not None:
            self.trunks.admitted()

    async def report_trunk(self, say: Callable[[str, str], None]) -> None:
        if self.trunks is not None:
            await self.trunks.report_above(say)

    def session_ended(self) -> None:
        """The control plane is gone, and with it all rings."""
        self.ports.close()
        for ring_id in list(self._rings):
            self.ordered(RemoveRing(ring_id))

    def _switch_lost(self, name: str) -> None:
        if self.trunks is not None:
            self.trunks.drop(name)

    # --- the accelerator

    def _perform_of_accelerator(self, action: Action) -> None:
        match action:
            case Blame():
                self._blames.add(action)
            case RingFault() | RingRefused():
                if self.plane is not None:
                    self.plane.said_of_ring(action)
                elif self.session is not None:
                    self.session.said_of_ring(action)
            case EmitFrames() | ForLink():
                raise InvariantBroken("frames are sent where they arrive, nowhere else")
            case _:
                assert_never(action)

    def _narrow_ports(self) -> list[dict[str, Any]]:
        specs = [ring.spec for ring in self._accelerator.rings.values()]
        return narrow_ports(specs, self._accelerator.addresses, self.ports.sizes())

    def status(self) -> dict[str, Any]:
        """What ``inaproto status`` shows; msgpack and JSON can carry it."""
        found = {
            "role": "switch",
            "name": "" if self._place is None else self._place.name,
            "version": _VERSION,
            "kernels": kernels.description(),
            "pid": os.getpid(),
            "boot_id": self.boot_id,
            "dir": str(self.settings.dir),
            "weather": str(self.settings.weather),
            "seed": self.settings.seed,
            "uptime_s": round(trio.current_time() - self._started, 3),
            "totals": self.ports.totals(),
            "ports": self.ports.status(),
            "links": self.links.status(),
            "narrow_ports": self._narrow_ports(),
            "captures": self.captures.status(),
            "accelerator": _text_keys(self._accelerator.view().as_dict()),
            "hosts": [],
            "jobs": [],
            "rendezvous": {},
            "blames": self._blames.counts(),
            "spans": None if self._tracing is None else self._tracing.status(),
            "control_sessions": self._guard.status(),
            "controller": self.controller.status()
            | {
                "grants": len(self._trees.grants),
                "slots": self.slots.status(),
                "trees": self.trees.status(),
            },
        }
        if self.plane is not None:
            found |= self.plane.status()
        if self.session is not None:
            found["control"] = self.session.status()
        if self.trunks is not None:
            found["trunks"] = self.trunks.status()
        if self._apart is not None:
            found["board"] = self._apart.status()
        if self.listener is not None:
            found["control_listen"] = self.listener.status()
        return self.shards.merged(found | {"shards": self.shards.status()})


def holder_of(settings: SwitchSettings) -> Holder:
    """The name whose certificate a switch has; one that is alone has any name."""
    return Holder(Role.SWITCH, settings.name, settings.tls, settings.dir)


async def _listen_to_machines(settings: SwitchSettings) -> TlsListener | None:
    """Raises ``ConfigError``."""
    if not settings.control_listen:
        return None
    endpoint = parse_listen(settings.control_listen)
    credentials = credentials_of(endpoint, holder_of(settings))
    return await listen_tls(endpoint.host, endpoint.port, credentials)


def _nobody(event: object) -> None:
    raise InvariantBroken(f"a switch without rendezvous heard {event}")


async def run_switch(
    settings: SwitchSettings,
    *,
    open_port_listener: OpenPortListener,
    stop: trio.Event,
    place: Place | None = None,
    connect_port: ConnectPort | None = None,
    wrap_port: WrapPort | None = None,
    links: Sequence[Link] = (),
    shard_command: ShardCommand | None = None,
    announce: Callable[[str], None] = lambda line: None,
    started: Callable[[Switch], None] = lambda switch: None,
    network: StreamNetwork = UNIX,
    random_bits: RandomBits = secrets.randbits,
    make_accelerator: MakeAccelerator = Accelerator,
) -> None:
    """Run a switch until ``stop`` is set, then tell the hosts and return.

    ``place`` is its place in a fabric, if it is not alone; ``connect_port`` dials the switch above; ``links``
    are interfaces that are ports of it, ``shard_command`` starts what has the rings of its shards.
    ``announce`` gets one line when all sockets listen, ``started`` the
    switch itself. Raises
    ``ConfigError`` when they cannot, ``Unsupported`` for interfaces that can never be used here.
    ``make_accelerator`` makes what sums. ``network`` and ``random_bits`` are for worlds other than the field
    (``tests/clusters/memory.py``).
    """
    for link in links:
        link.require()
    await network.prepare(settings.dir, "switch")
    tracing = tracing_of_daemon(settings.tracing, "switch", settings.name or "switch")
    switch = Switch(
        settings,
        place,
        wrap_port=wrap_port,
        links=links,
        shard_command=shard_command,
        network=network,
        random_bits=random_bits,
        make_accelerator=make_accelerator,
        tracing=tracing,
    )
    bound = await network.listen(settings.control_path, "control socket of the switch")
    try:
        async with AsyncExitStack() as listeners:
            switch.listener = machines = await _listen_to_machines(settings)
            if machines is not None:
                listeners.callback(machines.close)
            listener = None
            if not switch.is_apart:
                listener = await open_port_listener(settings.ports_path)
                listeners.push_async_callback(_close, listener)
            below = {}
            for name, path in ({} if place is None else place.trunk_paths()).items():
                below[name] = await open_port_listener(path)
                listeners.push_async_callback(_close, below[name])
            async with trio.open_nursery() as nursery:
                if listener is not None:
                    nursery.start_soon(switch.ports.accept_ports, listener)
                nursery.start_soon(switch.links.serve)
                nursery.start_soon(switch.ports.keep_pauses)
                nursery.start_soon(switch.keep_apart)
                await nursery.start(switch.shards.run)
                nursery.start_soon(switch.server.accept_sessions, bound)
                if machines is not None:
                    nursery.start_soon(machines.run)
                    nursery.start_soon(switch.server.accept_sessions, machines)
                if settings.metrics:
                    from inaproto.daemon.net.metrics_server import serve_metrics
                    from inaproto.daemon.observe.metrics import switch_metrics

                    await nursery.start(serve_metrics, settings.metrics, switch_metrics, switch.status)
                if settings.capture is not None:
                    file = switch.captures.open_file(settings.capture, settings.capture_mb << 20)
                    nursery.start_soon(switch.captures.keep_file, file)
                if switch.plane is not None:
                    nursery.start_soon(switch.plane.keep_deadlines)
                if switch.session is not None:
                    nursery.start_soon(switch.session.run)
                if switch.trunks is not None:
                    nursery.start_soon(switch.trunks.keep_alive)
                    for name, trunk_listener in below.items():
                        nursery.start_soon(switch.trunks.accept, name, trunk_listener)
                    if connect_port is not None:
                        nursery.start_soon(switch.trunks.dial, connect_port)
                log.info(
                    "switch %s listens in %s, weather %s", switch.boot_id, settings.dir, settings.weather
                )
                log.info("accelerator: %s; kernels: %s", settings.accelerator, kernels.description())
                nursery.start_soon(switch.controller.run)
                nursery.start_soon(switch.slots.run)
                control = "" if machines is None else f" control={machines.address}"
                started(switch)
                announce(f"ready switch dir={settings.dir} boot={switch.boot_id}{control}")
                await stop.wait()
                bound.close()
                if machines is not None:
                    machines.close()
                if listener is not None:
                    await listener.aclose()
                if switch.plane is not None:
                    switch.plane.shut_down("it was told to stop")
                    await switch.server.flush()
                nursery.cancel_scope.cancel()
    finally:
        bound.close()
        if tracing is not None:
            tracing.close()


async def _close(listener: PortListener) -> None:
    with trio.CancelScope(shield=True):
        await listener.aclose()


def _text_keys(value: Any) -> Any:
    """msgpack and JSON know only text as keys."""
    if isinstance(value, dict):
        return {str(key): _text_keys(item) for key, item in value.items()}
    return value
