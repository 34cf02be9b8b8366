"""Jobs that share switch memory by turns: what host daemons say about that, and the groups that it is for.

There is a group for each pool: that of the fabric's root, and of each other root that a tree can have, by the
cluster file. What a group has decided is in the store, as long as there is one; all else is what hosts have
reported since this controller leads. A group without seats is forgotten after the lease: of all that were,
one record keeps the greatest term and epoch, and a group that begins anew goes on from these.

Invariants: a host speaks for its own seats only; groups and seats are bounded, and what a host calls a pool
does not make it one; only a leader decides.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final

import trio

from inaproto.core.sharing.events import FromSeat, PatienceConfig, SharingAction, SharingConfig, Tell
from inaproto.core.sharing.group import GroupConfig, HostArrived, HostDeparted, JobsHeld
from inaproto.core.switch.ring_spec import SHARED_POOL
from inaproto.daemon.shell import current_instant
from inaproto.errors import DecodeError
from inaproto.units import JobId, S
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.sharing import (
    FromHost,
    Seat,
    SeatHold,
    SharingPattern,
    SharingProgress,
    SharingSeats,
)
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.service.store.records import PutRecord
from inaproto_controller.service.turns.group import OWNER, TOLD_AT_ONCE, GroupRunner
from inaproto_controller.service.turns.planner import Place, PlannerConfig, SeatNews, pattern_of
from inaproto_controller.service.turns.store import Floor, decode_floor, encode_floor, encode_record

log = logging.getLogger("inaproto.controller")

FLOOR: Final = "sharing-floor"
NO_POOLS_MAX: Final = 64
"""Names that are no pool's and were warned of; there may be more of them."""
PLAN_S: Final = 0.0002
"""Between two plans, at least; and as long as the one before took, so that planning is half of the work at
most. A turn is planned when the one before it has drained: what is waited here the pool idles."""


class SharingService:
    """``send`` takes a message to a host, or loses it. ``lease_s``: a host of which nothing was heard for so
    long is lost. ``roots``: switches that trees can have as their roots, and with it a pool of their own."""

    def __init__(
        self,
        send: Callable[[str, Message], None],
        *,
        lease_s: float,
        roots: Collection[str] = (),
        config: SharingConfig | None = None,
        planning: PlannerConfig | None = None,
    ) -> None:
        self._send = send
        self._pools = frozenset({SHARED_POOL, *(f"{SHARED_POOL}@{root}" for root in roots)})
        self._no_pools: dict[str, None] = {}
        self._lease_s = lease_s
        self._config = config or SharingConfig("")
        if self._config.patience is None:
            patience = PatienceConfig(mute_ns=max(1, round(lease_s * S)))
            self._config = replace(self._config, patience=patience)
        self._planning = planning or PlannerConfig()
        self._groups: dict[str, GroupRunner] = {}
        self._connected: dict[str, None] = {}
        self._put_record: PutRecord | None = None
        self._floor = Floor()
        self._idle_since: dict[str, float] = {}
        """Groups of which nothing is left."""
        self._forgotten: dict[str, trio.Event] = {}
        """Owners of records that are to go from the store: when they have."""
        self._waiting: deque[Tell] = deque()
        """What hosts are to be told yet."""
        self._wake_teller = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._look = trio.Event()
        self._held: tuple[JobId, ...] = ()
        """Jobs that are to have no turn."""
        self.acted: Callable[[str, SharingAction], None] = lambda pool, action: None
        """Hears all that the coordinators do."""

    # --- leading

    def lead(self, records: Mapping[str, bytes], put_record: PutRecord) -> None:
        """Nothing is known of hosts yet. Raises ``ConfigError`` for records that are not ours."""
        self._groups.clear()
        self._connected.clear()  # their sessions were of the term before
        self._held = ()
        self._put_record = put_record
        self._idle_since.clear()
        self._forgotten.clear()
        floor = records.get(FLOOR)
        self._floor = Floor() if floor is None else decode_floor(floor)
        for owner, body in records.items():
            if owner.startswith(OWNER) and "\0" not in owner:  # as a store once took it from a host
                self._new_group(owner.removeprefix(OWNER), body)

    async def run(self) -> None:
        """While this controller leads, until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._waiting.clear()
                nursery.start_soon(self._keep_telling)
                for group in self._groups.values():
                    nursery.start_soon(group.run)
                await self._keep_planning()
        finally:
            self._nursery = None
            self._put_record = None

    def _new_group(self, name: str, record: bytes) -> GroupRunner:
        group = self._groups[name] = GroupRunner(
            GroupConfig(replace(self._config, group=name), lease_ns=round(self._lease_s * S)),
            self._planning,
            record,
            put_record=self._put,
            send=self._order,
            look=self._look_soon,
            connected=self._connected,
            acted=self._acted,
            now=current_instant,
        )
        group.tell(JobsHeld(self._held))
        if self._nursery is not None:
            self._nursery.start_soon(group.run)
        return group

    async def _put(self, owner: str, body: bytes | None) -> None:
        """After what is still to be done of the group of that name before."""
        if (gone := self._forgotten.get(owner)) is not None:
            await gone.wait()
        assert self._put_record is not None, "only a leader has groups"
        await self._put_record(owner, body)

    def _end_idle(self, now: float) -> float:
        """Groups of which nothing has been left for the lease are forgotten; when to look again."""
        again_at = math.inf
        for name, group in list(self._groups.items()):
            floor = group.floor
            if floor is None:
                self._idle_since.pop(name, None)
                continue
            over_at = self._idle_since.setdefault(name, now) + self._lease_s
            if over_at > now or self._nursery is None:
                again_at = min(again_at, over_at)
                continue
            del self._groups[name], self._idle_since[name]
            group.end()
            self._floor = self._floor.above(floor)
            self._forgotten[OWNER + name] = trio.Event()
            self._nursery.start_soon(self._forget, OWNER + name)
        return again_at

    async def _forget(self, owner: str) -> None:
        assert self._put_record is not None, "only a leader has groups"
        await self._put_record(FLOOR, encode_floor(self._floor))
        await self._put_record(owner, None)
        self._forgotten.pop(owner).set()

    def _order(self, action: Tell, is_soon: bool) -> None:
        """What a host is told keeps its order: nothing overtakes what waits."""
        if is_soon and not self._waiting:
            self._send(action.seat.host, action.message)
        else:
            self._waiting.append(action)
            self._wake_teller.set()

    async def _keep_telling(self) -> None:
        """A thousand hosts are told one after the other, and in between the controller hears others."""
        while True:
            for _ in range(min(TOLD_AT_ONCE, len(self._waiting))):
                action = self._waiting.popleft()
                self._send(action.seat.host, action.message)
            if self._waiting:
                await trio.lowlevel.checkpoint()
            else:
                self._wake_teller = trio.Event()
                await self._wake_teller.wait()

    def _acted(self, pool: str, action: SharingAction) -> None:
        self.acted(pool, action)

    def _look_soon(self) -> None:
        self._look.set()

    async def _keep_planning(self) -> None:
        while True:
            self._look = trio.Event()
            now = trio.current_time()
            again = [self._end_idle(now), *(group.plan() for group in self._groups.values())]
            await trio.sleep(max(PLAN_S, trio.current_time() - now))
            with trio.move_on_at(min(again)):
                await self._look.wait()

    # --- hosts

    def arrived(self, host: str) -> None:
        """It has a session, and will say what it has."""
        self._connected[host] = None
        for group in self._groups.values():
            group.tell(HostArrived(host))

    @property
    def connected(self) -> list[str]:
        """Hosts that have sessions."""
        return list(self._connected)

    def departed(self, host: str) -> None:
        self._connected.pop(host, None)
        for group in self._groups.values():
            group.tell(HostDeparted(host))

    def heard(self, host: str, message: SharingSeats | FromHost) -> None:
        """Raises ``DecodeError`` for what that host cannot say."""
        if self._put_record is None:
            return
        if isinstance(message, SharingSeats):
            self._reported(host, message)
            return
        seat = message.seat
        if seat.host != host:
            raise DecodeError("control", f"{message.TYPE}: host {host!r} speaks for {seat.host!r}")
        for group in self._groups.values():  # one knows the seat; the rounds of another are not known here
            match message:
                case SharingPattern():
                    pattern = pattern_of(message.nbytes, message.ready_ns, message.duration_ns)
                    group.measured(seat, SeatNews(pattern=pattern, bandwidth=message.bandwidth))
                case SharingProgress():
                    group.moved(seat, _place_of(message))
                case _:
                    group.tell(FromSeat(seat, message))

    def _reported(self, host: str, report: SharingSeats) -> None:
        pools: dict[str, dict[Seat, SeatHold]] = {}
        for hold in report.seats:
            pools.setdefault(hold.pool, {})[Seat(JobId(hold.job), host, hold.life)] = hold
        for name in pools:
            if name not in self._groups and self._is_pool(name, host):
                self._new_group(name, encode_record(self._floor.record))
        for name, group in self._groups.items():
            group.reported(host, pools.get(name, {}))

    def _is_pool(self, name: str, host: str) -> bool:
        if name in self._pools:
            return True
        if name not in self._no_pools and len(self._no_pools) < NO_POOLS_MAX:
            self._no_pools[name] = None
            log.warning("host %s has seats at %r: no switch of the cluster file has that pool", host, name)
        return False

    # --- whoever moves trees

    def hold(self, jobs: frozenset[str]) -> None:
        """These have no turns from now on, others may; turns of theirs that stand are ended by agreement."""
        self._held = tuple(JobId(job) for job in sorted(jobs))
        for group in self._groups.values():
            group.tell(JobsHeld(self._held))

    def operation(self, job: str) -> int | None:
        """Where a job is, as its seats have told; None: it has none."""
        found = (group.operation(job) for group in self._groups.values())
        return max((one for one in found if one is not None), default=None)

    def steps(self) -> dict[str, StepTimes]:
        """Steps of jobs whose training step is known."""
        return {job: times for group in self._groups.values() for job, times in group.steps().items()}

    def status(self) -> list[dict[str, Any]]:
        """For people and their programs; fields may be added."""
        return [group.status() for _, group in sorted(self._groups.items())]


def _place_of(message: SharingProgress) -> Place:
    now, age = trio.current_time(), message.step_age_ns
    return Place(
        message.operation,
        message.is_running,
        message.uses_ina,
        now - message.age_ns / S,
        now,
        message.step_first,
        None if age is None else now - age / S,
    )
