"""The seats of a host in sharing groups: which of its jobs' all-reduces go through the switches, and when.

A seat is a job on this host while its ring through the switches stands. It answers at once, from what was
agreed before (:mod:`inaproto.core.sharing.participant`), by the index of the operation. Only where an answer
to its vote is due, and may concern the very operation that is to start, does it wait for that: until the
lease is over, at the latest. Without a controller a turn that stands goes on, no other begins, and a doubt
is ended by the other hosts of the job, if one of them has heard the decision.

What the controller plans by is told to it: the training step
(:mod:`inaproto.core.sharing.communication_pattern`), from the calls of the lowest rank of the job here and
the waits between them that its process tells, and where in it the job is. Times go as ages, for clocks
differ.

Invariants: all calls return at once; a new ring is a new seat, with a life of its own, and what is said of
an old one concerns nobody; the participant hears of every operation once, in order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, assert_never

import trio

from inaproto.core.host.engines.two_paths import BASE, INA, Binding, BoundPath, Wait
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
    Closing,
    CoordinatorLost,
    Differs,
    FromCoordinator,
    FromPeer,
    HoldOperation,
    Noted,
    OperationEnded,
    OperationStarting,
    ParticipantConfig,
    ParticipantEvent,
    StartOperation,
    TellCoordinator,
    TellPeer,
    Woke,
)
from inaproto.core.sharing.messages import CoordinatorMessage, PeerMessage, Seat
from inaproto.core.sharing.participant import Phase, SharingParticipant
from inaproto.core.switch.ring_spec import SHARED_POOL
from inaproto.daemon.host.sharing_records import answer_message, order_of, peer_message, peer_of, seat_record
from inaproto.daemon.host.turn_waits import TurnWaits
from inaproto.daemon.host.turns import NoTurns
from inaproto.errors import Blame
from inaproto.ports import RandomBits
from inaproto.units import US, Epoch, Instant, JobId, OpIndex, S
from inaproto.wire.control_messages import Message
from inaproto.wire.sharing_messages import (
    PATTERN_OPERATIONS_MAX,
    SEATS_MAX,
    FromController,
    PeerWord,
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
FREE: Final = Phase.FREE.value
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
        tell_peer: Callable[[PeerWord], None] = lambda word: None,
        pattern: PatternConfig | None = None,
    ) -> None:
        self.host = host
        self.clock = clock
        self.random_bits = random_bits
        self.pattern = pattern or PatternConfig()
        self.tell_peer = tell_peer
        self._seats: dict[Seat, JobSeat] = {}
        self._send: Callable[[Message], None] | None = None
        self._changed = trio.Event()
        self._to_tell: dict[JobSeat, None] = {}
        """Whose place is not what was told."""
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
        self._changed.set()

    def tell(self, message: Message) -> None:
        """The controller, if there is one."""
        if self._send is not None:
            self._send(message)

    def heard(self, message: FromController) -> None:
        """Of the controller."""
        said = order_of(message)
        seat = self._seats.get(said.seat)
        if seat is not None:
            seat.ordered(said)
        self._changed.set()

    def heard_of_peer(self, word: PeerWord) -> None:
        """From ``word.sender``'s host, as the control plane of the switches has made sure of."""
        said = peer_of(word)
        seat = self._seats.get(said.seat)
        if seat is not None:
            seat.told(said)
        self._changed.set()

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
        self._changed.set()

    # --- life

    async def run(self) -> None:
        """Keep deadlines and tell where jobs are, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_deadlines)
            nursery.start_soon(self._report)

    async def _keep_deadlines(self) -> None:
        while True:
            self._changed = trio.Event()
            found = [at for seat in self._seats.values() if (at := seat.deadline) is not None]
            with trio.move_on_at((min(found) + US) / S if found else float("inf")):
                await self._changed.wait()
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


class JobSeat(NoTurns):
    """The turns (:class:`inaproto.daemon.host.turns.Turns`) of one job here."""

    def __init__(self, job: str, seats: TurnSeats) -> None:
        self._job = job
        self._seats = seats
        self._seat = Seat(JobId(job), seats.host)
        self._core: SharingParticipant | None = None
        self.hold: SeatHold
        self._next = OpIndex(0)
        """That the participant hears of next."""
        self._running: dict[OpIndex, BoundPath] = {}
        """That it has heard of, and that have not ended."""
        self._answers: dict[OpIndex, Binding] = {}
        self._is_binding = False
        self._waits = False
        """An operation was told to wait."""
        self._held: OpIndex | None = None
        """That a lock keeps from starting."""
        self._changed: Callable[[], None] = lambda: None
        self._differs: Callable[[OpIndex, str], None] = lambda op_index, host: None
        self._watch = PatternWatch(seats.pattern)
        self._watched = Instant(0)
        self._step: Step | None = None
        self._step_first = 0
        self._step_start: Instant | None = None
        self._place = (0, False, False, Instant(0))
        """Operation, whether it runs, and by INA; since when."""
        self._sizes: dict[OpIndex, int] = {}
        """Of operations that were called, and have not ended."""
        self._speeds: deque[tuple[int, int]] = deque(maxlen=MEASURED)
        """Bytes and nanoseconds of operations on the base ring."""
        self._granted = 0
        self._parks: Callable[[], None] | None = None
        """Its ring is to be parked: what to call when it is."""
        self._wait_times = TurnWaits()

    @property
    def deadline(self) -> Instant | None:
        return None if self._core is None else self._core.deadline

    # --- the ring's life

    def begin(
        self,
        *,
        ring_id: int,
        hosts: int,
        next_operation: OpIndex,
        changed: Callable[[], None],
        pool: str = SHARED_POOL,
        stand: int = 0,
        differs: Callable[[OpIndex, str], None] = lambda op_index, host: None,
    ) -> None:
        self.ring_ended()
        self._seat = Seat(self._seat.job, self._seat.host, self._seats.random_bits(62))
        self._core = SharingParticipant(ParticipantConfig(self._seat, next_operation))
        self._next, self._changed, self._differs = next_operation, changed, differs
        self.hold = SeatHold(
            pool=pool, job=self._job, life=self._seat.life, ring_id=ring_id, hosts=hosts, stand=stand
        )
        self._seats.sit(self._seat, self)

    def ring_ended(self) -> None:
        """All that was on the switches is over: their ring is gone, and the queue pairs are."""
        self._parks = None
        if self._core is None:
            return
        self._waits = False
        self._wait_times.ended(self._seats.clock())
        for op_index in list(self._running):
            self._ended(op_index)
        self._tell(Closing())
        self._core = None
        self._answers.clear()
        self._seats.stand_up(self._seat, self)

    def park(self, parked: Callable[[], None]) -> None:
        self._parks = parked
        self._park_if_free()

    def _park_if_free(self) -> None:
        """A decision that may concern this seat, a turn, or an operation in one is waited for.

        The other seats of the job agree: they had the same turns, and no round ends without this one.
        """
        parked = self._parks
        if parked is None or self._is_binding or self._answers:
            return
        view = None if self._core is None else self._core.view()
        if view is None or (view.phase == FREE and view.turn is None and not view.in_ina):
            self.ring_ended()
            parked()

    # --- operations

    def bind(self, op_index: OpIndex, now: Instant) -> Binding | Wait:
        core = self._core
        if core is None:
            return Binding(BASE)
        self._is_binding = True
        try:
            if core.deadline is not None and core.deadline <= now:
                self._tell(Woke())
            until = core.awaits(op_index)
            if until is not None and until > now:
                return self._wait(op_index, until, now)
            if op_index == self._next:
                self._start(op_index)
            if op_index in self._answers:
                return self._answers.pop(op_index)
            return self._wait(op_index, core.deadline or now, now)
        finally:
            self._is_binding = False
            self._seats.look()

    def _wait(self, op_index: OpIndex, until: Instant, now: Instant) -> Wait:
        self._waits = True
        self._wait_times.began(op_index, now)
        return Wait(until)

    def bound(self, op_index: OpIndex, path: BoundPath) -> None:
        now = self._seats.clock()
        self._wait_times.ended(now)
        self._place = (op_index, True, path == INA, now)
        self._seats.moved(self)
        if self._core is None:
            return
        while self._next <= op_index:  # nobody asked: its ring had no choice
            self._start(self._next)
        self._answers.pop(op_index, None)
        if op_index == self._held:  # its ring has no choice any more
            self._ended(op_index)
        elif op_index in self._running:
            self._running[op_index] = path
        self._park_if_free()

    def _start(self, op_index: OpIndex) -> None:
        self._next = OpIndex(op_index + 1)
        self._running[op_index] = BASE
        self._tell(OperationStarting(op_index))

    def done(self, op_index: OpIndex) -> None:
        now = self._seats.clock()
        running, _, uses_ina, since = self._place
        nbytes = self._sizes.pop(op_index, 0)
        if running == op_index and not uses_ina and nbytes:
            self._speeds.append((nbytes, now - since))
        self._place = (op_index + 1, False, False, now)
        self._seats.moved(self)
        if self._running.get(op_index) == BASE:
            self._ended(op_index)

    def drained(self, op_index: OpIndex) -> None:
        if op_index in self._running:
            self._ended(op_index)

    def _ended(self, op_index: OpIndex) -> None:
        del self._running[op_index]
        if op_index == self._held:
            self._held = None
        self._tell(OperationEnded(op_index))

    # --- the participant

    def ordered(self, said: CoordinatorMessage) -> None:
        self._tell(FromCoordinator(said))

    def told(self, said: PeerMessage) -> None:
        self._tell(FromPeer(said.sender, said))

    def coordinator_lost(self) -> None:
        self._tell(CoordinatorLost())

    def woke(self) -> None:
        self._tell(Woke())

    def _tell(self, event: ParticipantEvent) -> None:
        if self._core is None:
            return
        for action in self._core.step(event, self._seats.clock()):
            match action:
                case StartOperation(index, _, epoch):
                    self._held = None
                    self._granted += epoch is not None
                    self._answers[index] = Binding(BASE) if epoch is None else Binding(INA, Epoch(epoch))
                case HoldOperation(index):
                    self._waits, self._held = True, index
                case TellCoordinator(message):
                    self._seats.tell(answer_message(message))
                case TellPeer(to, message):
                    if to.job == self._job:  # the control plane carries no other words
                        self._seats.tell_peer(peer_message(message))
                case Differs(index, peer):
                    if self._running.get(index) == INA:
                        self._differs(index, peer.host)
                case Noted(mark):
                    log.debug("%s: %s", self._seat, mark.value)
                case Blame():
                    log.warning("%s: %s", self._seat, action)
                case _:
                    assert_never(action)
        if self._waits and not self._is_binding:
            self._waits = False
            self._changed()
        self._park_if_free()

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
        if found and self._core is not None:
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
            seat=seat_record(self._seat),
            nbytes=() if step is None else step.nbytes,
            ready_ns=() if step is None else tuple(max(0, at) for at in step.ready_ns),
            duration_ns=0 if step is None else max(0, step.duration_ns),
            bandwidth=sum(nbytes for nbytes, _ in self._speeds) * S // max(1, nanoseconds),
        )

    def progress_message(self) -> SharingProgress:
        now = self._seats.clock()
        operation, is_running, uses_ina, since = self._place
        start = self._step_start
        return SharingProgress(
            seat=seat_record(self._seat),
            operation=operation,
            is_running=is_running,
            uses_ina=uses_ina,
            age_ns=now - since,
            step_first=self._step_first,
            step_age_ns=None if start is None else max(0, now - start),
        )

    def status(self) -> dict[str, Any]:
        """For ``inaproto status``."""
        core = self._core
        record: dict[str, Any] = {"job": self._job, "life": self._seat.life, "granted": self._granted}
        record["waits"] = self._wait_times.status()
        record["step_operations"] = None if self._step is None else len(self._step.nbytes)
        if core is not None:
            view = core.view()
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
