"""The switch daemon: an Ethernet switch with a NetReduce accelerator in it (NetReduce sections 3 and 4).

It listens at two UNIX sockets in its directory: every connection to ``ports.sock`` is a port, every
connection to ``control.sock`` a session of a host daemon or a question for its status. Two pure cores
decide everything: :class:`~inaproto.core.accelerator.Accelerator` about frames,
:class:`~inaproto.core.rendezvous.Rendezvous` about who belongs to which ring.

Invariants: the cores are stepped from synchronous code only, so no step sees another half done; what
one core says to the other goes through a queue and is never a call back into a running step. Only the
rendezvous has a deadline, while a job waits for its ranks or is away from the fast path; one task keeps it.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, assert_never

import trio

from inaproto.core.accelerator import (
    Accelerator,
    AcceleratorConfig,
    Action,
    EmitFrames,
    InstallRing,
    RemoveRing,
    RingFault,
    RingRefused,
)
from inaproto.core.rendezvous import Rendezvous
from inaproto.core.rendezvous_types import (
    Noted,
    RefuseHost,
    RendezvousAction,
    RendezvousConfig,
    RendezvousEvent,
    Send,
    ShuttingDown,
    WelcomeHost,
    Woke,
)
from inaproto.daemon.config import SwitchSettings
from inaproto.daemon.control_server import ControlServer
from inaproto.daemon.switch_ports import OpenPortListener, PortBoard, WrapPort, current_instant
from inaproto.daemon.unix_sockets import UNIX
from inaproto.errors import Blame, InvariantBroken
from inaproto.ports import RandomBits, StreamNetwork
from inaproto.units import MS, US, S
from inaproto.wire.control_messages import Welcome

log = logging.getLogger("inaproto.switch")

BLAME_LOG_S = 1.0
"""A rule that is broken again and again is logged this often."""
BLAME_RULES_MAX = 256
SESSIONS_SPARE = 32
"""Control sessions beyond one per port: hosts that reconnect, and ``inaproto status``."""


class Switch:
    """The two cores and what joins them. Synchronous; :func:`run_switch` runs it."""

    def __init__(
        self,
        settings: SwitchSettings,
        *,
        wrap_port: WrapPort | None = None,
        random_bits: RandomBits = secrets.randbits,
    ) -> None:
        self.settings = settings
        self.boot_id = f"{random_bits(64):016x}"
        self._started = trio.current_time()
        self._accelerator = Accelerator(
            AcceleratorConfig(rings_max=settings.rings_max, memory_bytes_max=settings.memory_kib << 10)
        )
        self._rendezvous = Rendezvous(
            RendezvousConfig(
                jobs_max=settings.rings_max,
                ranks_max=settings.ranks_max,
                mtu_max=settings.mtu_max,
                recover_ns=settings.recover_ms * MS,
                boot_id=self.boot_id,
                first_ring_id=1 + random_bits(31),  # hosts may still speak of a ring of an earlier boot
            )
        )
        self._deadline_changed = trio.Event()
        self._events: deque[RendezvousEvent] = deque()
        self._handling = False
        self._blames = BlameLog()
        self.ports = PortBoard(
            self._accelerator.step,
            self._perform_of_accelerator,
            wrap_port=wrap_port,
            ports_max=settings.ports_max,
        )
        self.control = ControlServer(
            self.handle,
            self.status,
            welcome=self._welcome,
            sessions_max=settings.ports_max + SESSIONS_SPARE,
            random_bits=random_bits,
        )

    def handle(self, event: RendezvousEvent) -> None:
        """Step the rendezvous and perform its actions, then the events that these caused."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        deadline = self._rendezvous.deadline
        try:
            while self._events:
                for action in self._rendezvous.step(self._events.popleft(), current_instant()):
                    self._perform(action)
        finally:
            self._handling = False
        if self._rendezvous.deadline != deadline:
            self._deadline_changed.set()

    async def keep_deadlines(self) -> None:
        """Wake the rendezvous when its deadline has passed, until cancelled."""
        while True:
            self._deadline_changed = trio.Event()
            deadline = self._rendezvous.deadline
            # A microsecond more, so that the float clock is past the deadline for sure.
            at = math.inf if deadline is None else (deadline + US) / S
            with trio.move_on_at(at):
                await self._deadline_changed.wait()
            if deadline is not None and current_instant() >= deadline:
                self.handle(Woke())

    def shut_down(self, reason: str) -> None:
        """Tell whoever has a ring."""
        self.handle(ShuttingDown(reason))

    def _perform(self, action: RendezvousAction) -> None:
        match action:
            case Send(session, message):
                self.control.send(session, message)
            case WelcomeHost(session, hello_id):
                self.control.welcome(session, hello_id)
            case RefuseHost(session, error):
                self.control.refuse(session, error)
            case InstallRing() | RemoveRing():
                for said in self._accelerator.step(action, current_instant()):
                    self._perform_of_accelerator(said)
            case Noted(text, is_problem):
                log.log(logging.WARNING if is_problem else logging.INFO, "%s", text)
            case Blame():
                self._blames.add(action)
            case _:
                assert_never(action)

    def _perform_of_accelerator(self, action: Action) -> None:
        match action:
            case Blame():
                self._blames.add(action)
            case RingFault() | RingRefused():
                self.handle(action)
            case EmitFrames():
                raise InvariantBroken("frames are sent where they arrive, nowhere else")
            case _:
                assert_never(action)

    def _welcome(self, hello_id: int) -> Welcome:
        settings = self.settings
        return Welcome(
            id=hello_id, boot_id=self.boot_id, port_path=str(settings.ports_path), mtu_max=settings.mtu_max
        )

    def status(self) -> dict[str, Any]:
        """What ``inaproto status`` shows; msgpack and JSON can carry it."""
        accelerator = self._accelerator.view().as_dict()
        rendezvous = asdict(self._rendezvous.view())
        return {
            "role": "switch",
            "version": version("inaproto"),
            "pid": os.getpid(),
            "boot_id": self.boot_id,
            "dir": str(self.settings.dir),
            "weather": str(self.settings.weather),
            "seed": self.settings.seed,
            "uptime_s": round(trio.current_time() - self._started, 3),
            "totals": self.ports.totals(),
            "ports": self.ports.status(),
            "accelerator": _text_keys(accelerator),
            "hosts": list(rendezvous["hosts"]),
            "jobs": list(rendezvous["jobs"]),
            "rendezvous": rendezvous["counters"],
            "blames": self._blames.counts(),
        }


class BlameLog:
    """Counts blames by rule, and logs each rule at most every ``BLAME_LOG_S``."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._silent_until: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def add(self, blame: Blame) -> None:
        rule = blame.rule if blame.rule in self._counts or len(self._counts) < BLAME_RULES_MAX else "others"
        self._counts[rule] = self._counts.get(rule, 0) + 1
        now = trio.current_time()
        if now < self._silent_until.get(rule, now):
            self._unsaid[rule] = self._unsaid.get(rule, 0) + 1
            return
        self._silent_until[rule] = now + BLAME_LOG_S
        unsaid = self._unsaid.pop(rule, 0)
        log.warning("%s%s", blame, f" (and {unsaid} more like it)" if unsaid else "")

    def counts(self) -> dict[str, int]:
        return dict(self._counts)


async def run_switch(
    settings: SwitchSettings,
    *,
    open_port_listener: OpenPortListener,
    stop: trio.Event,
    wrap_port: WrapPort | None = None,
    announce: Callable[[str], None] = lambda line: None,
    network: StreamNetwork = UNIX,
    random_bits: RandomBits = secrets.randbits,
) -> None:
    """Run a switch until ``stop`` is set, then tell the hosts and return.

    ``announce`` gets one line when both sockets listen. Raises ``ConfigError`` when they cannot.
    ``network`` and ``random_bits`` are for worlds other than the field (``tests/daemon/memory_cluster.py``).
    """
    await network.prepare(settings.dir, "switch")
    switch = Switch(settings, wrap_port=wrap_port, random_bits=random_bits)
    bound = await network.listen(settings.control_path, "control socket of the switch")
    try:
        listener = await open_port_listener(settings.ports_path)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(switch.ports.accept_ports, listener)
                nursery.start_soon(switch.control.accept_sessions, bound)
                nursery.start_soon(switch.keep_deadlines)
                log.info(
                    "switch %s listens in %s, weather %s", switch.boot_id, settings.dir, settings.weather
                )
                announce(f"ready switch dir={settings.dir} boot={switch.boot_id}")
                await stop.wait()
                bound.close()
                await listener.aclose()
                switch.shut_down("it was told to stop")
                await switch.control.flush()
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await listener.aclose()
    finally:
        bound.close()


def _text_keys(value: Any) -> Any:
    """msgpack and JSON know only text as keys."""
    if isinstance(value, dict):
        return {str(key): _text_keys(item) for key, item in value.items()}
    return value
