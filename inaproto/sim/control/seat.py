"""A job's seats: each binds its all-reduces one by one, runs them by the switches or by the chain, and
drains.

Which of the two, and when a seat has parked, is decided by the core that a host daemon runs
(:mod:`inaproto.core.sharing.seat`); here is what it decides about, in virtual time.

The chain is the exact fallback: an operation that some seat runs by it has its sum ``chain_ns`` after each
seat has begun the operation and none waits for the switches any more. A seat that waits for them in vain
takes the chain for that operation (*rescue*), and then so do the others, each in its own time. (Where daemons
run, the generation of the job's rings ends instead.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, assert_never
from zlib import crc32

from inaproto.core.sharing.events import (
    CoordinatorLost,
    Differs,
    FromCoordinator,
    FromPeer,
    Mark,
    Noted,
    Path,
    TellCoordinator,
    TellPeer,
    Woke,
)
from inaproto.core.sharing.seat import (
    AskAgain,
    Bind,
    MayBind,
    OperationBound,
    OperationDone,
    OperationDrained,
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
from inaproto.errors import Blame
from inaproto.faults.streams import Draws
from inaproto.sim.control.config import ControlJob
from inaproto.sim.control.trunk import Part
from inaproto.sim.control.words import SeatPhase, SeatSeen
from inaproto.sim.kernel.machine import Timer
from inaproto.sim.kernel.violated import Violated
from inaproto.units import Instant, JobId, OpIndex
from inaproto.wire.messages.sharing import CoordinatorMessage, PeerMessage, Seat, Vote
from inaproto.wire.messages.slots import Lease

if TYPE_CHECKING:
    from inaproto.sim.control.host import ControlHost
    from inaproto.sim.control.world import ControlWorld


@dataclass(slots=True)
class SimJob:
    """What is true of a job, whoever knows it."""

    config: ControlJob
    seats: dict[int, SimSeat] = field(default_factory=dict)
    """Seats by host; those that are there."""
    is_over: bool = False
    """It ended, failed or was cancelled, durably."""
    line: int = 0
    """Number of the job in the configuration; one that was submitted again has that of the first."""
    done: int = 0
    """Operations of which all seats have the sum."""
    _sums: int = 0
    """Seats that have the sum of the one after these."""

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

    def has_sum(self) -> bool:
        """Count one more seat with the sum of its operation; whether all have it now."""
        self._sums += 1
        if self._sums < len(self.config.hosts):
            return False
        self._sums = 0
        self.done += 1
        return True

    @property
    def slowness(self) -> int:
        """That of its slowest host, for which all others wait."""
        return max((seat.host.slowness for seat in self.seats.values()), default=1)

    def has_links(self, world: ControlWorld) -> bool:
        """Whether each of its hosts can send to the next one in the chain, and back."""
        hosts = [world.hosts[host] for host in self.config.hosts]
        return not any(
            world.network.is_cut(one, other) or world.network.is_cut(other, one)
            for one, other in pairwise(hosts)
        )

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
                seat.host.after(self.config.chain_ns * self.slowness, partial(seat.chain_ended, operation))


class SimSeat:
    """A job on a host, from when the host was told of it until it drops it."""

    def __init__(self, host: ControlHost, job: SimJob) -> None:
        self.host = host
        self.job = job
        self.world: ControlWorld = host.world
        self.phase = SeatPhase.READY
        self.operation = -1
        """Operation that was begun last."""
        self.path: Path | None = None
        """Path of an operation that has no sum yet."""
        self.epoch_now: int | None = None
        self.chain_runs = False
        self.undrained: dict[int, Seat | None] = {}
        """Operations that were begun and have not drained, with who bound them."""
        self.in_ina: dict[int, Lease] = {}
        """Those of them that were begun by the switches."""
        self.id: Seat | None = None
        """In the sharing group of its tree, while its ring stands there."""
        self.lease: Lease | None = None
        """Lease of the tree on which its ring stands."""
        self._wanted: Lease | None = None
        """Lease of the tree on which it is to stand."""
        config = self.world.config
        self.core = SharingSeat(
            SeatConfig(JobId(job.name), host.name, ask_ns=config.lease_ns, answer_ns=config.lease_ns)
        )
        self.timer = Timer(host, lambda: self.core.deadline, lambda: self.step(Woke()))
        self.is_closed = False
        self._asks = False
        """The next operation is to be bound, and is not yet."""
        self._ready_at = 0
        self._is_held = False
        self._draws = Draws(self.world.config.seed, f"seat/{job.name}/{host.name}")

    def __str__(self) -> str:
        return f"{self.job.name} on {self.host.name}"

    # --- the core

    def step(self, event: SeatEvent) -> None:
        self.world.steps.participant += 1
        actions = self.core.step(event, self.host.now)
        self.world.hooks.participant_stepped(self)
        for action in actions:
            self._perform(action)
        self.timer.arm()

    def _perform(self, action: SeatAction) -> None:
        world, host = self.world, self.host
        match action:
            case Bind(index, epoch):
                self._bound(index, epoch)
            case WaitUntil(_, until):
                if not self._is_held:
                    world.mark("an operation waited for a decision")
                host.after(max(0, until - host.now), partial(self._ask, until))
            case AskAgain():
                self._ask()
            case SeatTaken(seat):
                self.id = seat
            case SeatLeft():
                self.id = self.lease = None
            case Parked():
                world.mark("a ring was parked")
                self._stand()
            case TellCoordinator(message):
                if isinstance(message, Vote):
                    world.mark("a seat voted")
                assert self.lease is not None, "who speaks has a seat"
                host.tell_coordinator(self.lease.tree, message)
            case TellPeer(to, word):
                assert self.id is not None, "who speaks has a seat"
                host.tell_peer(to, self.id, word)
            case Differs(index):
                if index == self.operation and self.path is Path.INA:
                    self._rescue(index, "an operation was rescued before it stalled")
            case Noted(mark):
                if mark is Mark.HELD:
                    self._is_held = True
                    world.mark("an operation waited for a lock")
                world.noted(mark)
            case Blame():
                raise Violated("nobody is to blame", f"{self}: {action}")
            case _:
                assert_never(action)

    def seen(self) -> SeatSeen:
        """What its host reports of it."""
        place, life = self.core.place, 0 if self.id is None else self.id.life
        return SeatSeen(
            job=self.job.name,
            phase=self.phase,
            lease=self.lease,
            life=life,
            ring_id=0,
            operation=place.operation,
            is_running=place.is_running,
            age_ns=self.host.now - place.since,
        )

    # --- what the host is told of it

    def begin(self) -> None:
        """All hosts of the job are ready."""
        if self.phase is SeatPhase.READY:
            self.phase = SeatPhase.RUNNING
            self._think()

    def take(self, lease: Lease | None) -> bool:
        """The job is to have this tree, or none; whether that is news."""
        if lease == self._wanted:
            return False
        self.world.note(self.host, "is to have a tree", f"{self.job.name} {lease}")
        if self.in_ina:
            self.world.mark("a tree was changed under a running operation")
        self._wanted = lease
        if self.lease is None:
            self._stand()
        else:
            self.step(ParkWanted())
            self.host.after(self.world.config.silent_ns, partial(self._park_overdue, self.id))
        return True

    def _stand(self) -> None:
        self.lease = self._wanted
        if self.lease is not None:
            self.world.note(self.host, "takes a tree", f"{self.job.name} {self.lease}")
            self.step(RingStands(self.host.next_life(), OpIndex(self.operation + 1)))

    def _park_overdue(self, seat: Seat | None) -> None:
        """The switches end the ring of who does not park."""
        if self.is_closed or seat is None or self.id != seat or not self.is_to_park:
            return
        self.world.mark("a ring that was to park ended")
        self.world.note(self.host, "ends its ring", self.job.name)
        if self.path is Path.INA:
            self._rescue(self.operation, "an operation lost its ring")
        for index in list(self.in_ina):
            del self.in_ina[index]
            self.world.hooks.drained(self, index)
        self.step(RingEnded())
        self._stand()
        self.host.after(0, self._ask)

    @property
    def is_to_park(self) -> bool:
        return self.lease is not None and self.lease != self._wanted

    def lost_slot(self, lease: Lease) -> None:
        """A switch of the tree says that the job has no slot there."""
        if self.lease == lease and self.path is Path.INA:
            self._rescue(self.operation, "a slot was lost under an operation")

    def lost_controller(self) -> None:
        """Its connection to the controller has ended."""
        self.step(CoordinatorLost())

    def leave(self) -> None:
        """The job is no more on this host, which says so."""
        self.close()
        self.step(RingEnded())

    def close(self) -> None:
        """Its connections are gone, and nothing is told to anybody any more."""
        self.is_closed = True
        self.job.seats.pop(self.host.index, None)
        self.world.hooks.seat_gone(self)

    def hear_coordinator(self, message: CoordinatorMessage) -> None:
        self.step(FromCoordinator(message))

    def hear_peer(self, sender: Seat, message: PeerMessage) -> None:
        self.step(FromPeer(sender, message))

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
        self.host.after(delay * self.host.slowness, self._ready)

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
        self._asks = True
        self._ask()

    def _ask(self, until: Instant | None = None) -> None:
        """Asks by which path the next operation goes; ``until``: when it is to go, if nothing is known by
        then."""
        if self._asks and not self.is_closed:
            self.step(MayBind(OpIndex(self.operation + 1)))

    def _bound(self, index: int, epoch: int | None) -> None:
        world, lease = self.world, self.lease
        assert index == self.operation + 1, (str(self), index, self.operation)
        if self._is_held:
            stalled = world.agenda.now - self._ready_at
            world.measures.stalls += 1
            world.measures.stalled_ns += stalled
            world.measures.stalled_max_ns = max(world.measures.stalled_max_ns, stalled)
        path = Path.FALLBACK if epoch is None else Path.INA
        self._asks = self._is_held = False
        self.operation, self.path, self.epoch_now = index, path, epoch
        self.chain_runs = False
        self.undrained[index] = self.id
        world.note(self.host, "begins", f"{self.job.name} {index} {path.value} {epoch}")
        if epoch is not None:
            assert lease is not None, "only a group gives a path by the switches"
            self.in_ina[index] = lease
            world.measures.ina_operations += 1
            world.mark("an operation by the switches")
            world.hooks.began(self, index, path, epoch, lease)
            world.trunk.put(Part(self, lease, epoch, index))
            stall = self.job.config.stall_ns
            self.host.after(stall, lambda: self._rescue(index, "an operation stalled at the switches"))
        else:
            world.measures.chain_operations += 1
            world.hooks.began(self, index, path, None, None)
        self.step(OperationBound(OpIndex(index), path))
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
        if self.job.slowness > 1:
            world.mark("an operation of a straggler was rescued")
        world.mark("an operation was rescued by the chain")
        world.hooks.rescued(self, index)
        world.note(self.host, "takes the chain for", f"{self.job.name} {index}")
        world.measures.rescued += 1
        self.path = Path.FALLBACK
        self.job.look_at_chain(index)

    def chain_ended(self, operation: int) -> None:
        if self.operation != operation or not self.on_chain:
            return
        if self.world.config.chain_by_links and not self.job.has_links(self.world):
            self.world.mark("a chain waited for a link")
            self.host.after(self.job.config.chain_ns, partial(self.chain_ended, operation))
            return
        self.has_sum(operation, self.job.total(operation), "chain")

    def has_sum(self, operation: int, total: int, path: str) -> None:
        world = self.world
        self.path, self.epoch_now = None, None
        world.note(self.host, "has the sum of", f"{self.job.name} {operation} {path} {total}")
        world.operations_done += 1
        if self.job.slowness > 1:
            world.mark("a straggler was waited for")
        if self.job.has_sum():
            world.stops.has_gone_on(self.job)
        world.hooks.ended(self, operation, total)
        self.step(OperationDone(OpIndex(operation)))
        self.job.look_at_chain(operation)
        delay = self._draws.below(self.job.config.drain_ns + 1) * self.host.slowness
        self.host.after(delay, lambda: self._drained(operation))
        self._think()

    def _drained(self, operation: int) -> None:
        if self.is_closed:
            return
        if self.in_ina.pop(operation, None) is not None:
            self.world.hooks.drained(self, operation)
            self.step(OperationDrained(OpIndex(operation)))
        del self.undrained[operation]
        if self.operation + 1 == self.job.config.operations and self.path is None:
            self._finish()
