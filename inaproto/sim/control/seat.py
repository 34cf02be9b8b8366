"""A job's seats: each binds its all-reduces one by one, runs them by the switches or by the chain, and
drains.

The chain is the exact fallback: an operation that some seat runs by it has its sum ``chain_ns`` after each
seat has begun the operation and none waits for the switches any more. A seat that waits for them in vain
takes the chain for that operation (*rescue*), and then so do the others, each in its own time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, assert_never
from zlib import crc32

from inaproto.core.migration.ledger import Lease
from inaproto.core.sharing.events import (
    CoordinatorLost,
    Differs,
    FromCoordinator,
    FromPeer,
    HoldOperation,
    Noted,
    OperationEnded,
    OperationStarting,
    ParticipantAction,
    ParticipantConfig,
    ParticipantEvent,
    StartOperation,
    TellCoordinator,
    TellPeer,
    Woke,
)
from inaproto.core.sharing.messages import CoordinatorMessage, Path, PeerMessage, Seat, Vote
from inaproto.core.sharing.participant import SharingParticipant
from inaproto.errors import Blame
from inaproto.faults.streams import Draws
from inaproto.sim.control.config import ControlJob
from inaproto.sim.control.node import Timer
from inaproto.sim.control.trunk import Part
from inaproto.sim.control.words import SeatPhase
from inaproto.sim.kernel.violated import Violated
from inaproto.units import JobId, OpIndex

if TYPE_CHECKING:
    from inaproto.sim.control.host import ControlHost
    from inaproto.sim.control.world import ControlWorld


@dataclass(slots=True)
class SimJob:
    """What is true of a job, whoever knows it."""

    config: ControlJob
    seats: dict[int, SimSeat] = field(default_factory=dict)
    """By host; those that are there."""
    is_over: bool = False
    """It ended, failed or was cancelled, durably."""

    @property
    def name(self) -> str:
        return self.config.name

    def part(self, part: Part) -> int:
        return self.value(part.operation, part.seat.host.index)

    def value(self, operation: int, host: int) -> int:
        """What the seat on ``host`` adds."""
        return crc32(f"{self.name}/{operation}/{host}".encode())

    def total(self, operation: int) -> int:
        return sum(self.value(operation, host) for host in self.config.hosts)

    def look_at_chain(self, operation: int) -> None:
        """Some seat has begun it, or waits for the switches no more."""
        if len(self.seats) < len(self.config.hosts):
            return
        seats = list(self.seats.values())
        if any(seat.operation < operation or seat.waits_for_sum(operation) for seat in seats):
            return
        for seat in seats:
            if seat.operation == operation and seat.on_chain and not seat.chain_runs:
                seat.chain_runs = True
                seat.host.after(self.config.chain_ns, partial(seat.chain_ended, operation))


class Membership:
    """A seat in the sharing group of a tree: the participant, and the lease of the tree."""

    def __init__(self, seat: SimSeat, lease: Lease, first: int) -> None:
        self.seat = seat
        self.lease = lease
        self.id = Seat(JobId(seat.job.name), seat.host.name, life=lease.epoch)
        config = seat.world.config
        self.core = SharingParticipant(
            ParticipantConfig(
                self.id,
                first_operation=OpIndex(first),
                ask_ns=config.lease_ns,
                answer_ns=config.lease_ns,
            )
        )
        self.timer = Timer(seat.host, lambda: self.core.deadline, lambda: self.step(Woke()))

    def step(self, event: ParticipantEvent) -> None:
        seat = self.seat
        seat.world.steps.participant += 1
        actions = self.core.step(event, seat.host.now)
        seat.world.participant_stepped(self)
        for action in actions:
            self._perform(action)
        self.timer.arm()

    def _perform(self, action: ParticipantAction) -> None:
        seat = self.seat
        match action:
            case StartOperation(index, path, epoch):
                seat.bound(self, index, path, epoch)
            case HoldOperation():
                seat.held()
            case TellCoordinator(message):
                if isinstance(message, Vote):
                    seat.world.mark("a seat voted")
                seat.host.tell_coordinator(self.lease.tree, message)
            case TellPeer(to, word):
                seat.host.tell_peer(to, self.id, word)
            case Differs(index):
                seat.differs(index)
            case Noted(mark):
                seat.world.noted(mark)
            case Blame():
                raise Violated("nobody is to blame", f"{self.id}: {action}")
            case _:
                assert_never(action)


class SimSeat:
    """A job on a host, from when the host was told of it until it drops it."""

    def __init__(self, host: ControlHost, job: SimJob) -> None:
        self.host = host
        self.job = job
        self.world: ControlWorld = host.world
        self.phase = SeatPhase.READY
        self.operation = -1
        """That was begun last."""
        self.path: Path | None = None
        """Of an operation that has no sum yet."""
        self.epoch_now: int | None = None
        self.chain_runs = False
        self.undrained: dict[int, Membership | None] = {}
        """Operations that were begun and have not drained, with who bound them."""
        self.in_ina: dict[int, Lease] = {}
        """Those of them that were begun by the switches."""
        self.member: Membership | None = None
        self.members: dict[Seat, Membership] = {}
        """All that were, for what is still said to them."""
        self.is_closed = False
        self._waiting: Membership | None = None
        """Who is to bind the next operation."""
        self._ready_at = 0
        self._is_held = False
        self._draws = Draws(self.world.config.seed, f"seat/{job.name}/{host.name}")

    def __str__(self) -> str:
        return f"{self.job.name} on {self.host.name}"

    # --- what the host is told of it

    def begin(self) -> None:
        """All hosts of the job are ready."""
        if self.phase is SeatPhase.READY:
            self.phase = SeatPhase.RUNNING
            self._think()

    def take(self, lease: Lease | None) -> bool:
        """The job has this tree now, or none; whether that is news."""
        if lease == (None if self.member is None else self.member.lease):
            return False
        self.world.note(self.host, "takes a tree", f"{self.job.name} {lease}")
        if any(tree != (None if lease is None else lease) for tree in self.in_ina.values()):
            self.world.mark("a tree was changed under a running operation")
        self.member = None
        if lease is not None:
            first = self.operation + 1 + (self._waiting is not None)
            self.member = Membership(self, lease, first)
            self.members[self.member.id] = self.member
            self.member.timer.arm()
        return True

    def lost_slot(self, lease: Lease) -> None:
        """A switch of the tree says that the job has no slot there."""
        if self.member is not None and self.member.lease == lease and self.path is Path.INA:
            self._rescue(self.operation, "a slot was lost under an operation")

    def lost_controller(self) -> None:
        """Its connection to the controller has ended."""
        if self.member is not None:
            self.member.step(CoordinatorLost())

    def differs(self, operation: int) -> None:
        """Another seat says that it runs the operation by the chain."""
        if operation == self.operation and self.path is Path.INA:
            self._rescue(operation, "an operation was rescued before it stalled")

    def close(self) -> None:
        """Its connections are gone, and nothing is told to anybody any more."""
        self.is_closed = True
        self.job.seats.pop(self.host.index, None)
        self.world.seat_gone(self)

    def hear_coordinator(self, to: Seat, message: CoordinatorMessage) -> None:
        member = self.members.get(to)
        if member is not None:
            member.step(FromCoordinator(message))

    def hear_peer(self, to: Seat, sender: Seat, message: PeerMessage) -> None:
        member = self.members.get(to)
        if member is not None:
            member.step(FromPeer(sender, message))

    # --- its operations

    def _think(self) -> None:
        job = self.job.config
        following = self.operation + 1
        if following == job.operations:
            self._finish()
            return
        delay = self._draws.below(job.think_ns + 1)
        if following and following % job.burst_operations == 0:
            delay += job.pause_ns
        self.host.after(delay, self._ready)

    def _finish(self) -> None:
        if not self.undrained:
            self.phase = SeatPhase.FINISHED
            self.world.note(self.host, "finishes", self.job.name)

    def _ready(self) -> None:
        """Nothing but a path is missing for the next operation."""
        if self.is_closed:
            return
        stopped = self.host.stopped_until - self.world.agenda.now
        if stopped > 0:
            self.host.after(stopped, self._ready)
            return
        self._ready_at = self.world.agenda.now
        following = self.operation + 1
        if self.member is None:
            self.bound(None, following, Path.FALLBACK, None)
            return
        self._waiting = self.member
        self.member.step(OperationStarting(OpIndex(following)))

    def held(self) -> None:
        self._is_held = True
        self.world.mark("an operation waited for a lock")

    def bound(self, by: Membership | None, index: int, path: Path, epoch: int | None) -> None:
        if self.is_closed:
            return
        world = self.world
        assert index == self.operation + 1, (str(self), index, self.operation)
        if self._is_held:
            stalled = world.agenda.now - self._ready_at
            world.measures.stalls += 1
            world.measures.stalled_ns += stalled
            world.measures.stalled_max_ns = max(world.measures.stalled_max_ns, stalled)
        self._waiting, self._is_held = None, False
        self.operation, self.path, self.epoch_now = index, path, epoch
        self.chain_runs = False
        self.undrained[index] = by
        world.note(self.host, "begins", f"{self.job.name} {index} {path.value} {epoch}")
        if path is Path.INA:
            assert by is not None, "only a group gives a path by the switches"
            assert epoch is not None, "and that has an epoch"
            self.in_ina[index] = by.lease
            world.measures.ina_operations += 1
            world.mark("an operation by the switches")
            world.began(self, index, path, epoch, by.lease)
            world.trunk.put(Part(self, by.lease, epoch, index))
            stall = self.job.config.stall_ns
            self.host.after(stall, lambda: self._rescue(index, "an operation stalled at the switches"))
        else:
            world.measures.chain_operations += 1
            world.began(self, index, path, None, None)
        self.job.look_at_chain(index)

    def waits_for_sum(self, operation: int) -> bool:
        """From the switches."""
        return not self.is_closed and self.operation == operation and self.path is Path.INA

    @property
    def on_chain(self) -> bool:
        return not self.is_closed and self.path is Path.FALLBACK

    def _rescue(self, index: int, why: str) -> None:
        if self.operation != index or self.path is not Path.INA:
            return
        world = self.world
        world.mark(why)
        world.mark("an operation was rescued by the chain")
        world.rescued(self, index)
        world.note(self.host, "takes the chain for", f"{self.job.name} {index}")
        world.measures.rescued += 1
        self.path = Path.FALLBACK
        self.job.look_at_chain(index)

    def chain_ended(self, operation: int) -> None:
        if self.operation == operation and self.on_chain:
            self.has_sum(operation, self.job.total(operation), "chain")

    def has_sum(self, operation: int, total: int, path: str) -> None:
        world = self.world
        self.path, self.epoch_now = None, None
        world.note(self.host, "has the sum of", f"{self.job.name} {operation} {path} {total}")
        world.operations_done += 1
        world.ended(self, operation, total)
        self.job.look_at_chain(operation)
        delay = self._draws.below(self.job.config.drain_ns + 1)
        self.host.after(delay, lambda: self._drained(operation))
        self._think()

    def _drained(self, operation: int) -> None:
        if self.is_closed:
            return
        by = self.undrained.pop(operation)
        if self.in_ina.pop(operation, None) is not None:
            self.world.drained(self, operation)
        if by is not None:
            by.step(OperationEnded(OpIndex(operation)))
        if self.operation + 1 == self.job.config.operations and self.path is None:
            self._finish()
