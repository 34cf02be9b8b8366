"""The seats of a host in sharing groups: which of its jobs' all-reduces go through the switches, and when.

A seat is a job on this host while its ring through the switches stands. Without a controller a turn that
stands goes on, no other begins, and a doubt is ended by the other hosts of the job, if one of them has heard
the decision.

What the controller plans by is told to it: the training step
(:mod:`inaproto.core.sharing.communication_pattern`), from the calls of the lowest rank of the job here and
the waits between them that its process tells, and where in it the job is. Times go as ages, for clocks
differ.

The rules of a seat are in :mod:`inaproto.core.sharing.seat`; here are the connection to the controller, the
deadlines, and what is measured. Invariant: all calls return at once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, assert_never

import trio

from inaproto.core.host.engines.two_paths import Binding, Wait
from inaproto.core.host.operations import BASE, INA, BoundPath
from inaproto.core.sharing.communication_pattern import (
    PatternConfig,
    PatternEvent,
    PatternFound,
    PatternLost,
    PatternWatch,
    Submitted,
    WaitBegan,
    WaitEnded,
)
from inaproto.core.sharing.events import (
    CoordinatorLost,
    Differs,
    FromCoordinator,
    FromPeer,
    Noted,
    Path,
    TellCoordinator,
    TellPeer,
    Woke,
)
from inaproto.core.sharing.seat import (
    AskAgain,
    Bind,
    Parked,
    ParkWanted,
    RingEnded,
    RingStands,
    SeatAction,
    SeatConfig,
    SeatEvent,
    SeatLeft,
    SeatTaken,
    SharingSeat,
    WaitUntil,
)
from inaproto.core.switch.ring_spec import SHARED_POOL
from inaproto.daemon.host.turn_waits import TurnWaits
from inaproto.daemon.host.turns import Turns
from inaproto.daemon.shell import Alarm
from inaproto.errors import Blame
from inaproto.ports import RandomBits
from inaproto.units import Instant, JobId, OpIndex, S
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.sharing import (
    PATTERN_OPERATIONS_MAX,
    SEATS_MAX,
    CoordinatorMessage,
    PeerMessage,
    Seat,
    SeatHold,
    SharingPattern,
    SharingProgress,
    SharingSeats,
)

log = logging.getLogger("inaproto.host")

REPORT_S: Final = 0.001
"""Between two reports of where jobs are: what happens in between is told by the next one."""
REPORT_SEATS: Final = 4
"""So many are told in that time: a controller that is flooded ends the session."""
MEASURED: Final = 32
"""All-reduces whose speed is averaged."""


@dataclass(frozen=True, slots=True)
class Step:
    """The pattern of a job's training step."""

    nbytes: tuple[int, ...]
    ready_ns: tuple[int, ...]
    duration_ns: int
    first: int
    """An operation that begins a step."""


class TurnSeats:
    """``tell_peer`` takes a word to a seat of another host, or loses it."""

    def __init__(
        self,
        host: str,
        *,
        clock: Callable[[], Instant],
        random_bits: RandomBits,
        tell_peer: Callable[[PeerMessage], None] = lambda word: None,
        pattern: PatternConfig | None = None,
    ) -> None:
        self.host = host
        self.clock = clock
        self.random_bits = random_bits
        self.pattern = pattern or PatternConfig()
        self.tell_peer = tell_peer
        self._seats: dict[Seat, JobSeat] = {}
        self._send: Callable[[Message], None] | None = None
        self._alarm = Alarm(self._deadline, self._wake, clock)
        self._to_tell: dict[JobSeat, None] = {}
        """Seats whose place is not what was told."""
        self._news = trio.Event()

    def __call__(self, job: str) -> JobSeat:
        """The seat of a job's rings, until they end."""
        return JobSeat(job, self)

    # --- the controller

    def connected(self, send: Callable[[Message], None]) -> None:
        """There is a controller, which knows nothing. ``send`` never fails: what it cannot send is lost."""
        self._send = send
        self._tell_seats()
        for seat in self._seats.values():
            self._tell_of(seat)

    def disconnected(self) -> None:
        self._send = None
        for seat in list(self._seats.values()):  # one may go meanwhile
            seat.coordinator_lost()
        self._alarm.look_if_sooner()

    def tell(self, message: Message) -> None:
        """The controller, if there is one."""
        if self._send is not None:
            self._send(message)

    def heard(self, message: CoordinatorMessage) -> None:
        """Takes what the controller says."""
        seat = self._seats.get(message.seat)
        if seat is not None:
            seat.ordered(message)
        self._alarm.look_if_sooner()

    def heard_of_peer(self, word: PeerMessage) -> None:
        """From ``word.sender``'s host, as the control plane of the switches has made sure of."""
        seat = self._seats.get(word.seat)
        if seat is not None:
            seat.told(word)
        self._alarm.look_if_sooner()

    def _tell_seats(self) -> None:
        holds = tuple(seat.hold for seat in self._seats.values())
        self.tell(SharingSeats(seats=holds[:SEATS_MAX]))

    def _tell_of(self, seat: JobSeat) -> None:
        self.tell(seat.pattern_message())
        self.moved(seat)

    # --- seats

    def sit(self, seat: Seat, its: JobSeat) -> None:
        self._seats[seat] = its
        self._tell_seats()
        self._tell_of(its)

    def stand_up(self, seat: Seat, its: JobSeat) -> None:
        del self._seats[seat]
        self._to_tell.pop(its, None)
        self._tell_seats()

    def moved(self, its: JobSeat) -> None:
        """A seat is elsewhere in its job."""
        self._to_tell[its] = None
        self._news.set()

    def look(self) -> None:
        """A deadline may have changed."""
        self._alarm.look_if_sooner()

    # --- life

    async def run(self) -> None:
        """Keep deadlines and tell where jobs are, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._alarm.run)
            nursery.start_soon(self._report)

    def _deadline(self) -> Instant | None:
        return min((at for seat in self._seats.values() if (at := seat.deadline) is not None), default=None)

    def _wake(self) -> None:
        now = self.clock()
        for seat in list(self._seats.values()):
            if seat.deadline is not None and seat.deadline <= now:
                seat.woke()

    async def _report(self) -> None:
        while True:
            await self._news.wait()
            self._news = trio.Event()
            seats, self._to_tell = self._to_tell, {}
            for seat in seats:
                self.tell(seat.progress_message())
            await trio.sleep(REPORT_S * max(1.0, len(seats) / REPORT_SEATS))

    def status(self) -> list[dict[str, Any]]:
        return [seat.status() for seat in self._seats.values()]


class JobSeat(Turns):
    """The turns (:class:`inaproto.daemon.host.turns.Turns`) of one job here, around the core of their
    rules."""

    def __init__(self, job: str, seats: TurnSeats) -> None:
        self._job = job
        self._seats = seats
        self._core = SharingSeat(SeatConfig(JobId(job), seats.host))
        self._seat = Seat(JobId(job), seats.host)
        """The present one, or the last."""
        self.hold: SeatHold
        self._changed: Callable[[], object] = lambda: None
        self._differs: Callable[[OpIndex, str], object] = lambda op_index, host: None
        self._parked: Callable[[], object] = lambda: None
        self._watch = PatternWatch(seats.pattern)
        self._watched = Instant(0)
        self._step: Step | None = None
        self._step_first = 0
        self._step_start: Instant | None = None
        self._sizes: dict[OpIndex, int] = {}
        """Bytes of operations that were called, and have not ended."""
        self._speeds: deque[tuple[int, int]] = deque(maxlen=MEASURED)
        """Bytes and nanoseconds of operations on the base ring."""
        self._wait_times = TurnWaits()

    @property
    def deadline(self) -> Instant | None:
        return self._core.deadline

    # --- the ring's life

    def begin(
        self,
        *,
        ring_id: int,
        hosts: int,
        next_operation: OpIndex,
        changed: Callable[[], object],
        pool: str = SHARED_POOL,
        stand: int = 0,
        differs: Callable[[OpIndex, str], object] = lambda op_index, host: None,
    ) -> None:
        self.ring_ended()
        life = self._seats.random_bits(62)
        self._changed, self._differs = changed, differs
        self.hold = SeatHold(pool=pool, job=self._job, life=life, ring_id=ring_id, hosts=hosts, stand=stand)
        self._tell(RingStands(life, next_operation))

    def ring_ended(self) -> None:
        """All that was on the switches is over: their ring is gone, and the queue pairs are."""
        self._wait_times.ended(self._seats.clock())
        self._tell(RingEnded())

    def park(self, parked: Callable[[], object]) -> None:
        self._parked = parked
        self._tell(ParkWanted())

    # --- operations

    def bind(self, op_index: OpIndex, now: Instant) -> Binding | Wait:
        binding = self._perform(self._core.may_bind(op_index, now))
        assert binding is not None, "the core answers at once"
        if isinstance(binding, Wait):
            self._wait_times.began(op_index, now)
        self._seats.look()
        return binding

    def bound(self, op_index: OpIndex, path: BoundPath) -> None:
        now = self._seats.clock()
        self._wait_times.ended(now)
        self._and_perform(self._core.bound(op_index, Path.INA if path == INA else Path.FALLBACK, now))
        self._seats.moved(self)

    def done(self, op_index: OpIndex) -> None:
        nbytes, now = self._sizes.pop(op_index, 0), self._seats.clock()
        if nbytes:
            place = self._core.place
            if place.operation == op_index and not place.uses_ina:
                self._speeds.append((nbytes, now - place.since))
        self._and_perform(self._core.done(op_index, now))
        self._seats.moved(self)

    def drained(self, op_index: OpIndex) -> None:
        self._and_perform(self._core.drained(op_index, self._seats.clock()))

    # --- the core

    def ordered(self, said: CoordinatorMessage) -> None:
        self._tell(FromCoordinator(said))

    def told(self, said: PeerMessage) -> None:
        self._tell(FromPeer(said.sender, said))

    def coordinator_lost(self) -> None:
        self._tell(CoordinatorLost())

    def woke(self) -> None:
        self._tell(Woke())

    def _tell(self, event: SeatEvent) -> None:
        self._and_perform(self._core.step(event, self._seats.clock()))

    def _and_perform(self, actions: list[SeatAction]) -> None:
        if actions:
            self._perform(actions)

    def _perform(self, actions: list[SeatAction]) -> Binding | Wait | None:
        """Returns the answer to ``MayBind``, if it is among them."""
        binding: Binding | Wait | None = None
        for action in actions:
            match action:
                case Bind(_, epoch):
                    binding = Binding(BASE) if epoch is None else Binding(INA, epoch)
                case WaitUntil(_, until):
                    binding = Wait(until)
                case SeatTaken(seat):
                    self._seat = seat
                    self._seats.sit(seat, self)
                case SeatLeft(seat):
                    self._seats.stand_up(seat, self)
                case AskAgain():
                    self._changed()
                case Parked():
                    self._parked()
                case TellCoordinator(message):
                    self._seats.tell(message)
                case TellPeer(_, message):
                    self._seats.tell_peer(message)
                case Differs(index, peer):
                    self._differs(index, peer.host)
                case Noted(mark):
                    log.debug("%s: %s", self._seat, mark.value)
                case Blame():
                    log.warning("%s: %s", self._seat, action)
                case _:
                    assert_never(action)
        return binding

    # --- what the controller plans by

    def called(self, op_index: OpIndex, nbytes: int, waited: tuple[int, int] | None) -> None:
        now = self._seats.clock()
        self._sizes[op_index] = nbytes
        if not nbytes:
            return
        found = False
        if waited is not None:
            began_ago, ended_ago = waited
            found |= self._observe(WaitBegan(), Instant(now - began_ago))
            found |= self._observe(WaitEnded(), Instant(now - min(began_ago, ended_ago)))
        found |= self._observe(Submitted(nbytes), now)
        if found and self._core.view().seat is not None:
            self._seats.tell(self.pattern_message())
        step = self._step
        if step is not None and op_index >= step.first and (op_index - step.first) % len(step.nbytes) == 0:
            self._step_first = op_index
            self._step_start = Instant(now - step.ready_ns[0])

    def _observe(self, event: PatternEvent, at: Instant) -> bool:
        """Whether that changes the pattern."""
        self._watched = max(self._watched, at)
        actions = self._watch.step(event, self._watched)
        for action in actions:
            self._step = self._step_start = None
            if isinstance(action, PatternLost):
                log.info("job %s: its step is measured again: %s", self._job, action.loss.value)
            if isinstance(action, PatternFound) and len(action.pattern.nbytes) <= PATTERN_OPERATIONS_MAX:
                pattern = action.pattern
                self._step = Step(pattern.nbytes, pattern.ready_ns, pattern.duration_ns, action.step)
                count, ms = len(pattern.nbytes), pattern.duration_ns / 1e6
                log.info("job %s: a step is %d all-reduces in %.1f ms", self._job, count, ms)
        return bool(actions)

    def pattern_message(self) -> SharingPattern:
        step = self._step
        nanoseconds = sum(ns for _, ns in self._speeds)
        return SharingPattern(
            seat=self._seat,
            nbytes=() if step is None else step.nbytes,
            ready_ns=() if step is None else tuple(max(0, at) for at in step.ready_ns),
            duration_ns=0 if step is None else max(0, step.duration_ns),
            bandwidth=sum(nbytes for nbytes, _ in self._speeds) * S // max(1, nanoseconds),
        )

    def progress_message(self) -> SharingProgress:
        now = self._seats.clock()
        operation, is_running, uses_ina, since = self._core.place
        start = self._step_start
        return SharingProgress(
            seat=self._seat,
            operation=operation,
            is_running=is_running,
            uses_ina=uses_ina,
            age_ns=now - since,
            step_first=self._step_first,
            step_age_ns=None if start is None else max(0, now - start),
        )

    def status(self) -> dict[str, Any]:
        """For ``inaproto status``."""
        seat = self._core.view()
        record: dict[str, Any] = {"job": self._job, "life": self._seat.life, "granted": seat.granted}
        record["waits"] = self._wait_times.status()
        record["step_operations"] = None if self._step is None else len(self._step.nbytes)
        view = seat.participant
        if view is not None:
            turn = view.turn
            record |= {
                "phase": view.phase,
                "pool": self.hold.pool,
                "next_operation": view.next_operation,
                "turn": None
                if turn is None
                else {"epoch": turn.epoch, "first": turn.first, "until": turn.until},
                "counters": {name: count for name, count in view.counters.items() if count},
            }
        return record
