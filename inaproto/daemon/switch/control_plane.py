"""Drives the control plane: sessions of hosts and switches, the clock, the switch's own accelerator, the log.

What is decided is decided by :class:`inaproto.core.rendezvous.control_plane.ControlPlane`, in the switch that
is alone or in the root of a fabric, and goes down with it.

Invariants: the core is stepped from synchronous code only, so no step sees another half done; what
performing its actions causes is an event for a later step. A host is welcome, and stays, only while the
switch at which its NIC is has its ports open. One task keeps the deadlines of core and probes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, assert_never

from inaproto.core.rendezvous.control_plane import ControlAction, ControlEvent, TreesChanged
from inaproto.core.rendezvous.control_plane import ControlPlane as Core
from inaproto.core.rendezvous.events import (
    AcceleratorTakes,
    LinkMeasured,
    Noted,
    RefuseHost,
    RendezvousConfig,
    Send,
    SessionEnded,
    SessionId,
    ShuttingDown,
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
    SwitchLost,
    TrunkSaid,
)
from inaproto.core.steps import Steps
from inaproto.core.switch.accelerator import InstallRing, RemoveRing, RingFault, RingRefused
from inaproto.core.switch.ring_spec import SHARED_POOL
from inaproto.daemon.net.session_rules import Guard
from inaproto.daemon.settings.config import SwitchSettings
from inaproto.daemon.settings.fabric_file import Place
from inaproto.daemon.shell import Alarm, current_instant
from inaproto.daemon.switch.capture_desk import CaptureDesk
from inaproto.daemon.switch.control_server import ControlServer
from inaproto.daemon.switch.fabric_members import FabricMembers
from inaproto.daemon.switch.job_ways import JobWays
from inaproto.daemon.switch.link_probes import LinkProbes
from inaproto.daemon.switch.ring_records import install_message
from inaproto.daemon.switch.ring_spans import RingSpans
from inaproto.daemon.switch.shard_keeper import ShardKeeper
from inaproto.errors import Blame
from inaproto.ports import RandomBits
from inaproto.units import MS, Instant
from inaproto.wire.control_messages import SWITCH_AWAY, SWITCH_UNKNOWN, Error, Hello, Message, Welcome
from inaproto.wire.messages.probe import LinkProbed, LinkProbeWord
from inaproto.wire.messages.switch import PoolSpec, RingRemove, SwitchAdmit, SwitchHello, SwitchWelcome
from inaproto.wire.messages.trees import TreeState, TreeWished

if TYPE_CHECKING:
    from inaproto.tracing.spans import Tracing

log = logging.getLogger("inaproto.switch")

SESSIONS_SPARE = 32
"""Control sessions beyond one per port: hosts that reconnect, and ``inaproto status``."""
LINKS_SHOWN = 64
"""The newest."""


class ControlPlane:
    """``order`` goes to this switch's own accelerator, and returns whether that did not refuse; ``mtu_most``
    is the largest MTU of a ring that it takes, 0: any; ``answers_probes``: whether ports answer path probes.
    """

    def __init__(
        self,
        settings: SwitchSettings,
        place: Place | None,
        boot_id: str,
        *,
        order: Callable[[InstallRing | RemoveRing], bool],
        blame: Callable[[Blame], None],
        switch_lost: Callable[[str], None],
        mtu_most: Callable[[], int],
        answers_probes: bool,
        status: Callable[[], dict[str, Any]],
        random_bits: RandomBits,
        captures: CaptureDesk,
        guard: Guard | None = None,
        shards: ShardKeeper | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._spans = None if tracing is None else RingSpans(tracing)
        self._shards = shards
        self._settings = settings
        self._place = place
        self._boot_id = boot_id
        self._order = order
        self._blame = blame
        self._switch_lost = switch_lost
        self._mtu_most, self._mtu_told = mtu_most, 0
        self._answers_probes = answers_probes
        self._core = Core(
            RendezvousConfig(
                jobs_max=settings.rings_max,
                ranks_max=settings.ranks_max,
                mtu_max=settings.mtu_max,
                recover_ns=settings.recover_ms * MS,
                boot_id=boot_id,
                first_ring_id=1 + random_bits(31),  # hosts may still speak of a ring of an earlier boot
                pool=PoolSpec(SHARED_POOL, settings.pool_rings),
                links=settings.link_figures,
                switch_rate_bps=settings.switch_mbps * 1_000_000,
                tensor_bytes=settings.tensor_kib << 10,
                shards=settings.shards,
            ),
            None if place is None else place.fabric.tree_config(),
        )
        self._switches: dict[str, SessionId] = {}
        """Sessions of the other switches that are connected; the root needs no session."""
        self._probes = LinkProbes(
            0 if settings.link_mbps else settings.link_probe_kib << 10, self._tell_probe, self._link_measured
        )
        self._members = None if place is None else FabricMembers(place)
        self._ways = JobWays()
        self.trees_changed: Callable[[], None] = lambda: None
        """Called when ``tree_states()`` may have changed."""
        self._steps: Steps[ControlEvent] = Steps(self._step)
        self._alarm = Alarm(self._deadline, self._woke)
        self.server = ControlServer(
            self.handle,
            status,
            desk=self,
            sessions_max=settings.ports_max * (len(place.fabric.entries) if place else 1) + SESSIONS_SPARE,
            random_bits=random_bits,
            captures=captures,
            guard=guard,
        )

    def handle(self, event: ControlEvent) -> None:
        """Step the core and perform its actions, then the events that these caused."""
        if self._steps.post(event):
            self._alarm.look()

    def _step(self, event: ControlEvent) -> None:
        if isinstance(event, SessionEnded):
            self._probes.session_ended(event.session, current_instant())
        now, most = current_instant(), self._mtu_most()
        if most != self._mtu_told:
            self._mtu_told = most
            self._core.step(AcceleratorTakes(most), now)
        actions = self._core.step(event, now)
        for action in actions:
            self._perform(action)
        if any(isinstance(action, Noted | TreesChanged) for action in actions):
            self._ways.look(self._core.view().rendezvous.jobs, current_instant())
        if self._spans is not None:
            self._spans.look(self._core.view().rendezvous.jobs)

    # --- trees of shared jobs

    def wish_trees(self, wishes: tuple[TreeWished, ...]) -> None:
        """All wishes that there are, instead of those before."""
        self.handle(TreesWished(wishes))

    def tree_states(self) -> tuple[TreeState, ...]:
        """Where the rings of the jobs on the path ``shared`` are; without a job while it gathers."""
        return self._core.tree_states()

    async def keep_deadlines(self) -> None:
        """Wake core and probes when a deadline of theirs has passed, until cancelled."""
        await self._alarm.run()

    def _deadline(self) -> Instant | None:
        deadlines = self._core.deadline, self._probes.deadline
        return min((at for at in deadlines if at is not None), default=None)

    def _woke(self) -> None:
        self._probes.woke(current_instant())
        self.handle(Woke())

    def shut_down(self, reason: str) -> None:
        """Tell whoever has a ring."""
        self.handle(ShuttingDown(reason))

    def said_of_ring(self, said: RingFault | RingRefused) -> None:
        """This switch's own accelerator says something of a ring."""
        self.switch_said(self._own_name, said)

    @property
    def _own_name(self) -> str:
        return "" if self._place is None else self._place.name

    # --- orders of the core

    def _perform(self, action: ControlAction) -> None:
        match action:
            case Send(session, message):
                self.server.send(session, message)
            case WelcomeHost(session, hello_id):
                self._welcome(session, hello_id)
            case RefuseHost(session, error):
                self.server.refuse(session, error)
            case Order(switch, order):
                self._to_switch(switch, order)
            case Admit(switch):
                self._tell_switch(switch, SwitchAdmit())
            case TreesChanged():
                self.trees_changed()
            case Noted(text, is_problem):
                log.log(logging.WARNING if is_problem else logging.INFO, "%s", text)
            case Blame():
                self._blame(action)
            case _:
                assert_never(action)

    def _to_switch(self, switch: str, order: InstallRing | RemoveRing) -> None:
        if switch == self._own_name:
            if self._order(order) and isinstance(order, InstallRing):
                self.handle(Installed(switch, order.spec.ring_id))
        elif isinstance(order, InstallRing):
            self._tell_switch(switch, install_message(order.spec))
        else:
            self._tell_switch(switch, RingRemove(ring_id=order.ring_id))

    def _tell_switch(self, switch: str, message: Message) -> None:
        if self._shards is not None and self._shards.has(switch):
            self._shards.tell(switch, message)
            return
        session = self._switches.get(switch)
        if session is not None:
            self.server.order(session, message)

    # --- hosts

    def is_in_job(self, session: SessionId, job: str) -> bool:
        """Whether the host of that session has ranks of it."""
        return self._core.is_in_job(session, job)

    def refusal_of(self, hello: Hello) -> Error | None:
        """Why a host cannot be welcome now, before the rendezvous hears of it."""
        name, place = hello.switch, self._place
        if place is None or (name and name not in place.fabric.by_name):
            if not name and place is None:
                return None
            known = "this switch is alone" if place is None else ", ".join(place.fabric.by_name)
            text = f"host {hello.host!r}: there is no switch {name!r} to be at ({known})"
            return Error(code=SWITCH_UNKNOWN, message=text, of=hello.id)
        if name and Place(place.fabric, name).is_further_root:
            text = f"host {hello.host!r}: {name} is a further root, at which no host can be; choose a leaf"
            return Error(code=SWITCH_UNKNOWN, message=text, of=hello.id)
        own = [
            entry.name for entry in place.fabric.entries if place.fabric.address(entry.name).ip == hello.ip
        ]
        if own:
            text = f"host {hello.host!r}: its IP address is that of the virtual connections of {own[0]}"
            return Error(code=SWITCH_UNKNOWN, message=text, of=hello.id)
        members = self._members
        if members is not None and not members.is_open(name or place.name):
            why = "it is starting" if name in self._switches else "it has not been here yet"
            if members.why_away(name) and name not in self._switches:
                why = f"it is gone: {members.why_away(name)}"
            text = f"host {hello.host!r} has to wait for its switch {name}: {why}"
            return Error(code=SWITCH_AWAY, message=text, of=hello.id)
        return None

    def _welcome(self, session: SessionId, hello_id: int) -> None:
        hello = self.server.hello_of(session)
        settings, ports_path = self._settings, self._settings.ports_path
        if self._place is not None and hello is not None:
            switch = hello.switch or self._place.name
            ports_path = self._place.fabric.by_name[switch].ports_path
        welcome = Welcome(
            id=hello_id,
            boot_id=self._boot_id,
            port_path=str(ports_path),
            mtu_max=settings.mtu_max,
            infiniband=True,
            path_probes=self._answers_probes,
            succeeds=True,
        )
        self.server.send(session, welcome)
        if hello is not None and hello.probes:
            self._probes.host_arrived(session, hello.host, self._core.links, current_instant())
            self._alarm.look_if_sooner()

    # --- other switches

    def refusal_of_switch(self, hello: SwitchHello) -> str:
        """Empty: it is welcome."""
        reason = self._why_refused(hello)
        if reason and self._members is not None:
            self._members.refused(hello.switch, reason)
        return reason

    def _why_refused(self, hello: SwitchHello) -> str:
        place, name = self._place, hello.switch
        if place is None:
            return "this switch is alone: it was started without a fabric file (--fabric)"
        if hello.fabric != place.fabric.digest:
            return (
                f"switch {name!r} has another fabric file than {place.name}, the root; give all switches the "
                "same one, and start anew those that have an old one"
            )
        if name == place.name or name not in place.fabric.by_name:
            return f"switch {name!r} is not below {place.name} in the fabric"
        if name in self._switches:
            return f"another switch {name!r} is connected; give each switch daemon its own --name"
        return ""

    def switch_arrived(self, session: SessionId, hello: SwitchHello) -> None:
        name = hello.switch
        log.info("switch %s is here, boot %s", name, hello.boot_id)
        self._switches[name] = session
        if self._members is not None:
            self._members.came(name)
        self.server.send(session, SwitchWelcome(id=hello.id, boot_id=self._boot_id))
        self.handle(SwitchArrived(name, is_trunk_up=False, is_selective=hello.selective))

    def switch_opened(self, switch: str) -> None:
        if self._members is not None:
            self._members.opened(switch)

    def trunk_said(self, switch: str, above: str, error: str) -> None:
        """``above``: empty if it is the one of the fabric's own tree."""
        link = None if self._members is None else self._members.said_of_trunk(switch, above, error)
        if link is not None:
            self.handle(TrunkSaid(switch, error, link[1]))

    def switch_said(self, switch: str, said: RingFault | RingRefused | Installed) -> None:
        match said:
            case RingFault():
                self.handle(Faulted(switch, said))
            case RingRefused():
                self.handle(Refused(switch, said))
            case Installed():
                self.handle(said)
            case _:
                assert_never(said)

    def switch_ended(self, switch: str, reason: str) -> None:
        log.warning("switch %s is lost: %s", switch, reason)
        del self._switches[switch]
        if self._members is not None:
            self._members.gone(switch, reason)
        self._switch_lost(switch)
        self.handle(SwitchLost(switch, reason))
        self.server.end_hosts(switch, f"its switch {switch} is gone: {reason}")

    # --- shards of this switch

    def shard_arrived(self, shard: str) -> None:
        """It has no ring."""
        self.handle(SwitchArrived(shard))

    def shard_lost(self, shard: str, reason: str) -> None:
        """Whatever it knew is gone."""
        self.handle(SwitchLost(shard, reason))

    # --- links of hosts

    def probe_said(self, session: SessionId, message: LinkProbeWord | LinkProbed) -> None:
        self._probes.said(session, message, current_instant())
        self._alarm.look_if_sooner()

    def _tell_probe(self, session: SessionId, message: Message) -> None:
        self.server.send(session, message)

    def _link_measured(self, hosts: tuple[str, str], latency_ns: int, rate_bps: int) -> None:
        self.handle(LinkMeasured(hosts, latency_ns, rate_bps))

    # --- status

    def status(self) -> dict[str, Any]:
        view = self._core.view()
        rendezvous = asdict(view.rendezvous)
        found = {
            "hosts": list(rendezvous["hosts"]),
            "jobs": list(rendezvous["jobs"]),
            "rendezvous": rendezvous["counters"],
            "regroupings": list(rendezvous["regroupings"]),
            "trees": list(rendezvous["trees"]),
            "host_links": self._links_status(),
            "job_ways": self._ways.status(current_instant()),
        }
        if view.fabric is not None and self._members is not None:
            found["fabric"] = self._members.status(view.fabric)
        return found

    def _links_status(self) -> dict[str, Any]:
        figures = self._settings.link_figures
        return {
            "configured": "" if figures is None else str(figures),
            "measured": [
                {"hosts": list(one.hosts), "latency_ns": one.latency_ns, "rate_bps": one.rate_bps}
                for one in self._core.links.all()[-LINKS_SHOWN:]
            ],
            "not_measured": dict(self._probes.failed),
        }
