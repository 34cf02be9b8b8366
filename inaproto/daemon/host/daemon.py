"""The host daemon: training processes on one side, a NIC and the switch on the other.

It listens at one UNIX socket for training processes, keeps one fabric (control channel and NIC, see
:mod:`inaproto.daemon.host.attachment`) towards the switch, and carries the ranks of any number of jobs.

Invariants: start order does not matter, a process that joins while there is no switch waits for it;
when the switch goes away, the ranks of running jobs wait for it, a bounded time, and the daemon tries to
reach it until it ends; when the daemon is cancelled, switch and processes are told so and the socket is
removed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import trio

from inaproto.ca.identity import Role
from inaproto.daemon.host.attachment import Fabric
from inaproto.daemon.host.collective import CollectiveHost, terms_of
from inaproto.daemon.host.grants import HostGrants
from inaproto.daemon.host.job_hosts import JobHosts
from inaproto.daemon.host.link_memory import LinkMemory
from inaproto.daemon.host.opening import HelloRefused, NoFabric, OpenNic, open_fabric
from inaproto.daemon.host.placement import Placement, unbound
from inaproto.daemon.host.rank_processes import RankProcesses
from inaproto.daemon.host.ring import HostRing
from inaproto.daemon.host.ring_settings import MTU_DEFAULT, host_config, link_bytes
from inaproto.daemon.host.session import ClientSession
from inaproto.daemon.host.successions import Succession, Successions
from inaproto.daemon.host.totals import HostTotals
from inaproto.daemon.host.turn_seats import TurnSeats
from inaproto.daemon.host.turns import TurnsOf, no_turns
from inaproto.daemon.models.channels.queue_pairs import QueuePairs
from inaproto.daemon.models.host_models import HostModels, host_models
from inaproto.daemon.models.seat import ModelSeat
from inaproto.daemon.net.accepting import take_each
from inaproto.daemon.net.control_address import Door, Holder, TlsDoor, door_of, doors_of
from inaproto.daemon.net.control_stream import ControlStream
from inaproto.daemon.net.controller_link import ControllerLink
from inaproto.daemon.net.unix_sockets import UNIX
from inaproto.daemon.settings.config import HostSettings
from inaproto.daemon.shell import Alarm, current_instant
from inaproto.errors import ConfigError, JobError
from inaproto.ports import ByteStream, Collective, RandomBits, StreamListener, StreamNetwork
from inaproto.tracing.opening import tracing_of_daemon
from inaproto.units import MS, Instant
from inaproto.wire.control_messages import error_message
from inaproto.wire.messages.sharing import PeerMessage

if TYPE_CHECKING:
    from inaproto.tracing.spans import Tracing

CLIENTS_MAX = 1024
RETRY_FIRST_S = 0.05
RETRY_LAST_S = 1.0
HELLO_REFUSALS_MAX = 5
"""A host that restarts may meet its own last connection; one refused this often is configured wrongly."""

_VERSION: Final = version("inaproto")
log = logging.getLogger("inaproto.host")


async def run_host(
    settings: HostSettings,
    *,
    open_nic: OpenNic,
    network: StreamNetwork = UNIX,
    random_bits: RandomBits = secrets.randbits,
    turns_of: TurnsOf = no_turns,
    queue_pairs: QueuePairs | None = None,
    collective: Collective | None = None,
    add_in_threads: bool = True,
    placement: Placement | None = None,
    task_status: trio.TaskStatus[HostDaemon] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled. ``open_nic`` makes the NIC whose port is at the path that the switch names.

    Started (``task_status``) when training processes can connect. Raises ``ConfigError`` when the socket
    cannot be made, or when switch and host are configured so that they can never work together.
    ``turns_of`` says of a job on the path ``shared`` when it has the switches, where the settings name no
    controller that does. ``queue_pairs``: by which words and arrays of models go. ``network``,
    ``random_bits`` and ``add_in_threads`` are for worlds other than the field (``tests/clusters/memory.py``).
    """
    holder = Holder(Role.HOST, settings.name, settings.tls, settings.dir)
    door = door_of(settings.control, settings.control_path, network, holder)
    controllers = doors_of(settings.controller, network, holder)
    tracing = tracing_of_daemon(settings.tracing, "host", settings.name)
    listening = await network.listen(settings.listen_path, "listen: host daemon socket")
    daemon = HostDaemon(
        settings,
        open_nic,
        listening,
        door,
        controllers,
        random_bits,
        turns_of,
        queue_pairs,
        add_in_threads=add_in_threads,
        placement=placement or unbound(),
        collective=collective,
        tracing=tracing,
    )
    try:
        async with trio.open_nursery() as nursery:
            if daemon.collective is not None:
                await nursery.start(daemon.collective.run)
            nursery.start_soon(daemon.serve_fabrics)
            nursery.start_soon(daemon.away_alarm.run)
            nursery.start_soon(daemon.accept)
            nursery.start_soon(daemon.controller.run)
            nursery.start_soon(daemon.keep_turns)
            if daemon.models is not None:
                await nursery.start(daemon.models.run)
            if settings.metrics:
                from inaproto.daemon.net.metrics_server import serve_metrics
                from inaproto.daemon.observe.metrics import host_metrics

                await nursery.start(serve_metrics, settings.metrics, host_metrics, daemon.status)
            task_status.started(daemon)
            log.info("host %s listens at %s", settings.name, settings.listen_path)
    finally:
        listening.close()
        daemon.close_away()
        if tracing is not None:
            tracing.close()


class HostDaemon:
    """Made by :func:`run_host`."""

    def __init__(
        self,
        settings: HostSettings,
        open_nic: OpenNic,
        listening: StreamListener,
        door: Door,
        controllers: Sequence[Door],
        random_bits: RandomBits,
        turns_of: TurnsOf,
        queue_pairs: QueuePairs | None = None,
        *,
        add_in_threads: bool = True,
        placement: Placement,
        collective: Collective | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._settings = settings
        self._tracing = tracing
        self._placement = placement
        self._open_nic = open_nic
        self._listening = listening
        self._door = door
        self._random_bits = random_bits
        self._totals = HostTotals()
        self._memory = LinkMemory(link_bytes(settings))
        self._instance = f"{random_bits(64):016x}"
        self._turn_seats = TurnSeats(
            settings.name, clock=current_instant, random_bits=random_bits, tell_peer=self._tell_peer
        )
        self._add_in_threads = add_in_threads
        self._turns_of = self._turn_seats if settings.controller else turns_of
        self._sessions: dict[ClientSession, None] = {}
        self._fabric: Fabric | None = None
        self._switch_error = "not tried yet"
        self._fabrics = 0
        self._away: list[HostRing] = []
        """Rings that wait for the switch in the middle of their jobs; the processes may have ended."""
        self.away_alarm = Alarm(self._away_deadline, self._wake_away)
        """Lets ranks that wait for the switch know when they have waited long enough."""
        self._began = trio.current_time()
        self.models: HostModels | None = None
        """Push and pull, where there is a models file."""
        if settings.models is not None:
            self.models = host_models(
                settings.models, settings.name, settings.models_tls, settings.dir, queue_pairs
            )
        self.grants = HostGrants(
            cut_off=self._cut_off,
            given_up=self._seats_given_up,
            changed=self._grants_changed,
            moved=self._places_moved,
        )
        self.collective: CollectiveHost | None = None
        if collective is not None:
            terms = terms_of(collective, bytes_min=settings.collective_kib_min << 10)
            attach_ns = settings.collective_timeout_ms * MS
            self.collective = CollectiveHost(collective, terms, self.grants, attach_ns=attach_ns)
        self.job_hosts = JobHosts(settings.name)
        self.rank_processes = RankProcesses()
        self.successions = Successions(
            self._begin_succession,
            self._ring_of_journal,
            current_instant,
            host_config("", settings),
            self.away_alarm.look,
        )
        """Ranks that come back: a daemon before this one had them."""
        self.controller = ControllerLink(
            "host",
            settings.name,
            self.grants,
            controllers,
            sharing=self._turn_seats,
            sides=(self.job_hosts, self.grants),
            boot_id=self._instance,
            has_collective=collective is not None,
        )

    @property
    def fabric(self) -> Fabric | None:
        """None while there is no switch; also from the end of one fabric on, while its NIC closes."""
        fabric = self._fabric
        return None if fabric is None or fabric.has_ended else fabric

    @property
    def model_seats(self) -> Mapping[str, ModelSeat]:
        return {} if self.models is None else self.models.seats

    def status(self) -> dict[str, Any]:
        """For ``inaproto status`` and for processes that ask what they wait for."""
        settings, fabric = self._settings, self.fabric
        record: dict[str, Any] = {
            "role": "host",
            "name": settings.name,
            "version": _VERSION,
            "pid": os.getpid(),
            "uptime_s": trio.current_time() - self._began,
            "ip": settings.ip,
            "gid": settings.gid,
            "mtu": settings.asked_mtu or MTU_DEFAULT,
            "path": None,
            "window_messages": settings.window_messages,
            "message_packets": settings.message_packets,
            "collective": settings.collective,
            "collective_kib_min": settings.collective_kib_min,
            "transport_timeout": settings.transport_timeout,
            "clients": len(self._sessions),
            "switch": {
                "path": str(self._door),
                "connected": fabric is not None,
                "boot_id": fabric.welcome.boot_id if fabric else "",
                "connections": self._fabrics,
                "error": "" if fabric else self._fabric.lost if self._fabric else self._switch_error,
            },
            "controller": self.controller.status()
            | {
                "grants": len(self.grants.holds()),
                "turns": self._turn_seats.status(),
            },
            "totals": self._totals.status(),
            "spans": None if self._tracing is None else self._tracing.status(),
            "job_totals": self._totals.jobs(current_instant()),
            "rings": [ring.status() for ring in self._rings() if ring.is_away],
            "returning": self.successions.status(),
            "rank_processes": self.rank_processes.status(current_instant()),
            "models": [] if self.models is None else self.models.status(),
            "models_link": None if self.models is None else self.models.link_status(),
            "models_nic": None if self.models is None else self.models.nic_status(),
            "nic": {},
            "nic_way": "",
            "placement": self._placement.status(),
        }
        if isinstance(self._door, TlsDoor):
            record["credentials"] = self._door.credentials.status()
        return record | (fabric.status() if fabric else {})

    # --- training processes

    async def accept(self) -> None:
        """Take connections of training processes, until cancelled."""
        async with trio.open_nursery() as nursery:
            take = partial(self._admit, nursery)
            try:
                await take_each(self._listening, take, log, "connection of a process")
            finally:
                self._listening.close()  # who connects from here on is for the next daemon

    def _admit(self, nursery: trio.Nursery, connection: ByteStream) -> None:
        stream = ControlStream(connection)
        if len(self._sessions) >= CLIENTS_MAX:
            text = f"host {self._settings.name} serves {CLIENTS_MAX} connections, its limit; close some"
            with contextlib.suppress(Exception):
                stream.send_nowait(error_message(JobError(text)))
            stream.close()
        else:
            nursery.start_soon(self._serve, ClientSession(stream, self))

    async def _serve(self, session: ClientSession) -> None:
        self._sessions[session] = None
        try:
            await session.run()
        finally:
            del self._sessions[session]

    def _grants_changed(self) -> None:
        self.controller.changed()

    def _places_moved(self) -> None:
        for ring in self._rings():
            ring.look_at_place()

    def _cut_off(self, job: str, ranks: range, why: str) -> None:
        for session in list(self._sessions):
            session.cut_off(job, ranks, why)

    def _seats_given_up(self) -> None:
        for session in list(self._sessions):
            session.look_for_seat()

    async def keep_turns(self) -> None:
        """Keeps the turns of jobs on the path ``shared``, if a controller was named that gives them, until
        cancelled."""
        if self._settings.controller:
            await self._turn_seats.run()

    def _tell_peer(self, word: PeerMessage) -> None:
        if self.fabric is not None:
            self.fabric.tell_peer(word)

    # --- the switch

    async def serve_fabrics(self) -> None:
        """Keep a connection to the switch, until cancelled."""
        retry_s = RETRY_FIRST_S
        refusals = 0
        while True:
            try:
                fabric = await open_fabric(
                    self._settings,
                    self._open_nic,
                    door=self._door,
                    random_bits=self._random_bits,
                    instance=self._instance,
                    turns_of=self._turns_of,
                    add_in_threads=self._add_in_threads,
                    placement=self._placement,
                    totals=self._totals,
                    memory=self._memory,
                    heard_of_peer=self._turn_seats.heard_of_peer,
                    collective=self.collective,
                    tracing=self._tracing,
                )
            except NoFabric as why:
                refusals = refusals + 1 if isinstance(why, HelloRefused) else 0
                if refusals >= HELLO_REFUSALS_MAX and not self._fabrics:
                    raise ConfigError(f"name, ip or mac: {why}") from None
                self._note_switch(str(why))
            else:
                retry_s = RETRY_FIRST_S
                refusals = 0
                log.info(
                    "host %s is connected to the switch at %s",
                    self._settings.name,
                    self._door,
                )
                self._note_switch(await self._use(fabric))
            await trio.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_LAST_S)

    def _begin_succession(self, succession: Succession) -> None:
        """If there is a switch; else when there is."""
        fabric = self.fabric
        if fabric is None:
            return
        self.successions.begun(succession)
        try:
            fabric.succeed(succession)
        except JobError as error:
            log.warning("%s", error)
            succession.fail(error)
            return
        for join in succession.past.joins:  # a controller hears of all, also of those that had left before
            self.grants.joined(join.job, join.rank, join.key)
            rank = succession.ranks.get(join.rank)
            if rank is None or rank.owner.process_is_gone():  # it has left, and waits for no answer
                self.grants.left(join.job, join.rank, failure="")

    def _ring_of_journal(self, file: tuple[int, int]) -> HostRing | None:
        return next((ring for ring in self._rings() if ring.is_of(file)), None)

    def _rings(self) -> list[HostRing]:
        """Also those that wait for a switch."""
        return [*([] if self._fabric is None else self._fabric.rings()), *self._away]

    def _away_deadline(self) -> Instant | None:
        found = [at for ring in self._away if ring.is_away and (at := ring.deadline) is not None]
        returning = self.successions.deadline
        return min(found if returning is None else [*found, returning], default=None)

    def _wake_away(self) -> None:
        self.successions.woke()
        for ring in list(self._away):
            if ring.is_away:
                ring.woke()

    async def end(self) -> None:
        """In order, before it is cancelled: what workers of models have finished is taken to the servers, for
        which it waits for a while."""
        if self.models is not None:
            await self.models.end()

    def close_away(self) -> None:
        """The daemon ends: give back what ranks without a process hold."""
        for ring in self._away:
            if not ring.may_have_successor:
                ring.close()

    def _note_switch(self, error: str) -> None:
        if error != self._switch_error:
            log.warning("host %s has no switch, and goes on trying: %s", self._settings.name, error)
        self._switch_error = error

    async def _use(self, fabric: Fabric) -> str:
        """Serve ``fabric`` until it ends; returns why it did."""
        await fabric.prepare([rank for ring in self._away for rank in ring.ranks.values()])
        try:
            return await fabric.run(partial(self._take_up, fabric))
        finally:
            self._fabric = None
            self._away += fabric.rings_away()
            self.away_alarm.look()

    def _take_up(self, fabric: Fabric) -> None:
        """Go on with what has waited for a switch."""
        self._fabric = fabric
        self._fabrics += 1
        away, self._away = self._away, []
        for ring in away:
            if ring.is_away or ring.last_words:
                fabric.rejoin(ring)
        for session in list(self._sessions):
            session.fabric_is_up(fabric)
        self.successions.look()
