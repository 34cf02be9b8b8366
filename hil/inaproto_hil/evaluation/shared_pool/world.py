"""Jobs on one slot pool, in virtual time, by all that decides about it in the product (MINA, section III-D).

Of the product: the seats of the hosts (:mod:`inaproto.daemon.host.turn_seats`), which find the training step
in the calls of a job, vote, and bind each all-reduce to a path; the controller's sharing service, with its
planner and its coordinators; the pool of the switch (:mod:`inaproto.core.switch.slot_pools`). Of the world:
the clock, what training processes do, by the trace of a model; how long an all-reduce takes, by its bytes and
its path (:mod:`inaproto_hil.evaluation.shared_pool.fabric`); how long messages and writes to disk take.

A job is alone on its hosts. Runs repeat to the bit: no thread, no socket, no chance but the seed's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final, NamedTuple

import trio

from inaproto.core.host.engines.two_paths import Binding
from inaproto.core.host.operations import BASE
from inaproto.core.sharing.events import SharingAction, SharingConfig, TurnStands
from inaproto.daemon.host.turn_seats import JobSeat, TurnSeats
from inaproto.units import Instant, OpIndex, S
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.sharing import SharingPattern
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.service.turns.planner import PlannerConfig
from inaproto_controller.service.turns.service import SharingService
from inaproto_hil.evaluation.shared_pool.fabric import JobFabric, Operation
from inaproto_hil.evaluation.shared_pool.pool import SwitchPool
from inaproto_hil.rigs.deterministic_trio import run_deterministically

STALL_S: Final = 1.0
"""Stall time of host daemons, by default."""


@dataclass(frozen=True, slots=True)
class WorldConfig:
    """Seconds, where it is not said otherwise."""

    until: float
    """No step begins later."""
    hosts: int = 2
    """Hosts of each job."""
    message: float = 100e-6
    """Between the controller and a host, one way."""
    disk: float = 500e-6
    """Time of a write."""
    error: float = 0.0
    """Relative, of what all-reduces and computing take."""
    seed: int = 1
    planning: PlannerConfig = field(default_factory=PlannerConfig)
    sharing: SharingConfig = field(default_factory=lambda: SharingConfig(""))


class Turn(NamedTuple):
    job: str
    epoch: int
    first: int
    until: int | None
    decided: float


@dataclass(slots=True)
class GroupRun:
    """What became of the jobs."""

    times: Sequence[StepTimes]
    operations: list[Operation] = field(default_factory=list)
    """As they end."""
    steps: list[list[float]] = field(default_factory=list)
    """When the steps of each job began, and when the last one ended."""
    turns: list[Turn] = field(default_factory=list)
    known_at: float | None = None
    """When the steps of all jobs were known to the controller."""
    lost: int = 0
    """Patterns that were known, and then not."""
    rescued: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    """Counters of the coordinator."""


class _Line:
    """Messages in order, each so long on its way."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._send, self._receive = trio.open_memory_channel[tuple[float, Callable[[], None]]](1 << 16)

    def carry(self, deliver: Callable[[], None]) -> None:
        self._send.send_nowait((trio.current_time() + self._seconds, deliver))

    async def run(self) -> None:
        async for at, deliver in self._receive:
            await trio.sleep_until(at)
            deliver()


class _Host:
    """One host of one job: its daemon's seats, and its training process."""

    def __init__(self, world: _World, job: int, number: int) -> None:
        self._world, self._job = world, job
        self.name = f"job{job}-h{number}"
        self.is_first = number == 0
        draws = Random(f"{world.config.seed}/{self.name}")
        self._draws = draws
        self.seats = TurnSeats(self.name, clock=world.clock, random_bits=draws.getrandbits)
        self.seat: JobSeat = self.seats(f"job{job}")
        self.up, self.down = _Line(world.config.message), _Line(world.config.message)
        self._called: deque[OpIndex] = deque()
        self._is_called = trio.Event()
        self._asked_again = trio.Event()
        self._bound = self._done = 0
        """All-reduces."""
        self._progress = trio.Event()

    def send(self, message: Message) -> None:
        self.up.carry(partial(self._world.heard, self, message))

    def begin_ring(self, ring_id: int) -> None:
        """From the next all-reduce: one that runs is bound already."""
        hosts = self._world.config.hosts
        self.seat.begin(
            ring_id=ring_id, hosts=hosts, next_operation=OpIndex(self._bound), changed=self._look_again
        )

    def _look_again(self) -> None:
        self._asked_again.set()

    async def train(self) -> None:
        world, times = self._world, self._world.times[self._job]
        config, operation = world.config, 0
        sizes = world.sizes[self._job]
        waited: tuple[float, float] | None = None
        while (start := trio.current_time()) <= config.until:
            if self.is_first:
                world.run.steps[self._job].append(start)
            scale = 1 + self._draws.uniform(-config.error, config.error)
            for number in range(times.count):
                await trio.sleep_until(start + times.ready[number] * scale)
                ago = None
                if waited is not None and number == 0:
                    now = trio.current_time()
                    ago = (round((now - waited[0]) * S), round((now - waited[1]) * S))
                self.seat.called(OpIndex(operation), sizes[number], ago)
                self._called.append(OpIndex(operation))
                self._is_called.set()
                operation += 1
            await trio.sleep_until(start + times.duration * scale)
            began = trio.current_time()
            while self._done < operation:
                self._progress = trio.Event()
                await self._progress.wait()
            waited = began, trio.current_time()
        if self.is_first:
            world.run.steps[self._job].append(trio.current_time())
        self.seat.ring_ended()

    async def operate(self) -> None:
        """Bind and run what was called, one after the other."""
        fabric = self._world.fabrics[self._job]
        while True:
            while not self._called:
                self._is_called = trio.Event()
                await self._is_called.wait()
            index = self._called.popleft()
            binding = await self._binding(index)
            self._bound = index + 1
            self.seat.bound(index, binding.path)
            was_ina = await fabric.run(index, binding)
            self.seat.done(index)
            if was_ina:
                self.seat.drained(index)
            self._done = index + 1
            self._progress.set()

    async def _binding(self, index: OpIndex) -> Binding:
        """As :mod:`inaproto.core.host.engines.two_paths` asks for it."""
        while True:
            self._asked_again = trio.Event()
            now = self._world.clock()
            found = self.seat.bind(index, now)
            if isinstance(found, Binding):
                return found
            if found.until <= now:
                return Binding(BASE)
            with trio.move_on_at((found.until + 1) / S):
                await self._asked_again.wait()


class _World:
    def __init__(
        self, times: Sequence[StepTimes], sizes: Sequence[Sequence[int]], config: WorldConfig
    ) -> None:
        self.times, self.sizes, self.config = times, sizes, config
        self.run = GroupRun(times, steps=[[] for _ in times])
        pool = SwitchPool(config.sharing.capacity)
        self.fabrics = [
            JobFabric(
                number,
                one,
                config.hosts,
                pool,
                stall_s=STALL_S,
                error=config.error,
                draws=Random(f"{config.seed}/fabric {number}"),
                record=self.run.operations.append,
            )
            for number, one in enumerate(times)
        ]
        self.pool = pool
        self.hosts = [
            [_Host(self, job, number) for number in range(config.hosts)] for job in range(len(times))
        ]
        self._by_name = {host.name: host for hosts in self.hosts for host in hosts}
        self.service = SharingService(
            self._order, lease_s=60.0, config=config.sharing, planning=config.planning
        )
        self.service.acted = self._acted
        self._known: dict[str, bool] = {}

    @staticmethod
    def clock() -> Instant:
        return Instant(round(trio.current_time() * S))

    def _order(self, host: str, message: Message) -> None:
        to = self._by_name[host]
        to.down.carry(partial(to.seats.heard, message))  # type: ignore[arg-type]

    def heard(self, host: _Host, message: Message) -> None:
        self.service.heard(host.name, message)  # type: ignore[arg-type]
        if isinstance(message, SharingPattern):
            is_known = bool(message.nbytes)
            self.run.lost += self._known.get(host.name, False) and not is_known
            self._known[host.name] = is_known
            if self.run.known_at is None and sum(self._known.values()) == len(self._by_name):
                self.run.known_at = trio.current_time()

    def _acted(self, pool: str, action: SharingAction) -> None:
        if isinstance(action, TurnStands):
            turn = Turn(action.job, action.epoch, action.first, action.until, trio.current_time())
            self.run.turns.append(turn)

    async def _put(self, owner: str, body: bytes | None) -> None:
        await trio.sleep(self.config.disk)

    async def play(self) -> GroupRun:
        self.service.lead({}, self._put)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.service.run)
            for host in self._by_name.values():
                nursery.start_soon(host.up.run)
                nursery.start_soon(host.down.run)
                nursery.start_soon(host.seats.run)
                self.service.arrived(host.name)
                host.seats.connected(host.send)
                nursery.start_soon(host.operate)
            for job, fabric in enumerate(self.fabrics):
                fabric.begin_rings = partial(self._begin_rings, job)
                fabric.end_rings = partial(self._end_rings, job)
                self._begin_rings(job)
            async with trio.open_nursery() as training:
                for host in self._by_name.values():
                    training.start_soon(host.train)
            nursery.cancel_scope.cancel()
        self.run.rescued = sum(fabric.rescued for fabric in self.fabrics)
        for status in self.service.status():
            self.run.counters |= status["counters"]
        return self.run

    def _begin_rings(self, job: int) -> None:
        fabric = self.fabrics[job]
        fabric.ring_id += len(self.times)
        self.pool.join(fabric.ring_id)
        for host in self.hosts[job]:
            host.begin_ring(fabric.ring_id)

    def _end_rings(self, job: int) -> None:
        for host in self.hosts[job]:
            host.seat.ring_ended()
        self.pool.leave(self.fabrics[job].ring_id)


def play(times: Sequence[StepTimes], sizes: Sequence[Sequence[int]], config: WorldConfig) -> GroupRun:
    """Jobs that begin together and train until ``config.until``. ``sizes``: bytes of the operations of each
    job's step."""

    async def main() -> GroupRun:
        return await _World(times, sizes, config).play()

    return run_deterministically(config.seed, main)
