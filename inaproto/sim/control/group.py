"""A sharing group at the controller: the coordinator of one pool, and a planner that gives turns round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from inaproto.core.sharing.coordinator import SharingCoordinator
from inaproto.core.sharing.events import (
    FromSeat,
    JobBarred,
    JobDrained,
    JobHeld,
    JobReleased,
    Mark,
    Noted,
    PatienceConfig,
    Persist,
    Persisted,
    PoolFree,
    RingRemoved,
    SeatGivenUp,
    SeatGone,
    SeatsChanged,
    SharingAction,
    SharingConfig,
    SharingEvent,
    Tell,
    TurnRevoked,
    TurnStands,
    TurnWanted,
    Woke,
)
from inaproto.core.sharing.messages import AT_ONCE, Rule, Seat, SeatMessage
from inaproto.core.sharing.rounds import Phase
from inaproto.errors import Blame
from inaproto.sim.control.words import ToSeat
from inaproto.sim.kernel.machine import Timer
from inaproto.sim.kernel.violated import Violated
from inaproto.units import Epoch, JobId, OpIndex
from inaproto.wire.messages.slots import Lease

if TYPE_CHECKING:
    from inaproto.sim.control.config import ControlConfig
    from inaproto.sim.control.controller import Controller

_JITTERS: Final = 8
ABORTS: Final = (
    *(Mark.ABORTED_UNEQUAL, Mark.ABORTED_IN_INA, Mark.ABORTED_LATE),
    *(Mark.ABORTED_REFUSED, Mark.ABORTED_CHANGED),
)


class Group:
    """Of one tree. ``look`` is called again and again, and says what is wanted if that has changed."""

    def __init__(self, controller: Controller, tree: int) -> None:
        self.controller = controller
        self.world = controller.world
        self.tree = tree
        self.name = f"sharing/{tree}"
        config = self.world.config
        self.resend_ns = max(3 * config.delay_max_ns, config.retry_ns)
        self.core = SharingCoordinator(
            SharingConfig(
                group=self.name,
                rule=Rule(config.rule),
                capacity=config.pools[tree],
                margin=config.margin,
                end_margin=config.end_margin,
                vote_ns=config.lease_ns // 2,
                lease_ns=config.lease_ns,
                resend_ns=self.resend_ns,
                retry_ns=config.retry_ns,
                objections_max=config.objections_max,
                retry_jitter_ns=tuple(controller.draws.below(config.retry_ns) for _ in range(_JITTERS)),
                patience=_patience(config),
            ),
            self.world.store.disk.get(self.name),
        )
        self.timer = Timer(controller, lambda: self.core.deadline, lambda: self.step(Woke()))
        self.timer.arm()
        self._members: dict[str, tuple[Seat, ...]] = {}
        self._draining: dict[str, int] = {}
        """Jobs that are held, with the epoch of their trees."""
        self._last = ""
        """The job that had the last turn."""
        self._since = self.world.agenda.now
        self._ends: dict[Epoch, OpIndex | None] = {}
        """Of turns that were said to stand."""
        self._wish: TurnWanted | None = None
        self._has_aborted = False
        """The last round."""
        self._went_on: dict[Epoch, tuple[object, int]] = {}
        """Where the seats of turns are, and since when."""

    # --- who is in it

    def join(self, job: str, seats: tuple[Seat, ...]) -> None:
        self._members[job] = seats
        self.step(JobReleased(JobId(job)))
        self._draining.pop(job, None)
        self.changed()

    def leave(self, job: str) -> None:
        if self._members.pop(job, None) is not None:
            self.changed()

    def hold(self, job: str, epoch: int) -> None:
        self._draining[job] = epoch
        self.step(JobHeld(JobId(job)))

    def is_to_drain(self, lease: Lease) -> bool:
        return self._draining.get(lease.job) == lease.epoch

    def changed(self) -> None:
        """Who is in it."""
        if not self.controller.knows_members:
            return
        self.step(SeatsChanged(tuple(seat for seats in self._members.values() for seat in seats)))
        self.look()

    def seats_gone(self, job: str, host: str, life: int) -> None:
        """The host has no seat of the job but the one of that life."""
        view = self.core.view()
        waited_for = [*(seat for turn in view.turns for seat in turn.undrained), *view.missing]
        for seat in dict.fromkeys(waited_for):
            if (seat.job, seat.host) == (job, host) and seat.life != life:
                self.step(SeatGone(seat, "dropped by its host"))

    def held_by(self) -> list[str]:
        """Jobs whose turns have not drained."""
        return [turn.turn.job for turn in self.core.view().turns]

    def may_have_turn(self, job: str | None) -> bool:
        return job in self._members and job not in self._draining and job not in self.core.view().barred

    def ring_removed(self, job: JobId) -> None:
        epochs = [turn.turn.epoch for turn in self.core.view().turns if turn.turn.job == job]
        self.step(RingRemoved(job, max(epochs, default=Epoch(0))))

    # --- whose turn it is

    def look(self) -> None:
        """The planner: the next job in turn; an open turn is long enough after ``slice_ns``."""
        if not self.controller.knows_members:
            return
        config = self.world.config
        self._end_what_stands()
        barred = self.core.view().barred
        jobs = [job for job in self._members if job not in self._draining and job not in barred]
        waiting = [job for job in jobs if job != self._last] or jobs
        if not waiting:
            self._want(TurnWanted(None))
            return
        now = self.world.agenda.now
        operations = config.turn_operations or None
        is_over = now - self._since >= config.slice_ns
        if self._wish is not None and self._wish.job in jobs and operations is None and not is_over:
            return
        if self._last in jobs and operations is None and not is_over:
            self._want_turn(self._last, None)
            return
        after = [job for job in waiting if job > self._last]
        self._want_turn(min(after or waiting), operations)

    def _end_what_stands(self) -> None:
        """Turns in which nothing goes on, where others wait for that."""
        stuck_ns, now = self.world.config.stuck_ns, self.world.agenda.now
        view = self.core.view()
        before, self._went_on = self._went_on, {}
        standing = [one.turn.job for one in view.turns]
        others = any(job not in standing for job in self._members)
        for one in view.turns if stuck_ns >= 0 else ():
            turn, seats = one.turn, self.world.jobs[one.turn.job].seats.values()
            undrained = [seat.host for seat in one.undrained]
            ahead = turn.until or self.world.jobs[turn.job].config.operations
            where = tuple(
                (min(seat.operation, ahead), seat.operation < ahead and seat.path)
                for seat in seats
                if seat.host.name in undrained
            )
            known = before.get(turn.epoch)
            self._went_on[turn.epoch] = known if known is not None and known[0] == where else (where, now)
            is_wanted = others or turn.job in self._draining
            if is_wanted and turn.until != AT_ONCE and now - self._went_on[turn.epoch][1] >= stuck_ns:
                self.world.mark("a turn was ended in which nothing went on")
                self.step(TurnRevoked(turn.epoch))

    def _want_turn(self, job: str, operations: int | None) -> None:
        ahead = self.world.config.ahead
        seats = self.world.jobs[job].seats.values()
        if ahead < 0:
            self._want(TurnWanted(JobId(job), operations))
            return
        first = max((seat.operation for seat in seats), default=0) + 1 + ahead
        until = None if operations is None else OpIndex(first + operations)
        self._want(TurnWanted(JobId(job), operations, OpIndex(first), until))

    def _want(self, wish: TurnWanted) -> None:
        if wish != self._wish:
            self._wish = wish
            self.step(wish)

    # --- the core

    def hear(self, message: SeatMessage) -> None:
        self.step(FromSeat(message.seat, message))

    def step(self, event: SharingEvent) -> None:
        self.world.steps.coordinator += 1
        for action in self.core.step(event, self.controller.now):
            self._perform(action)
        self.timer.arm()

    def _perform(self, action: SharingAction) -> None:
        world, controller = self.world, self.controller
        match action:
            case Tell(seat, message):
                controller.send(world.host_named(seat.host), ToSeat(seat, message))
            case Persist(record, token):
                if self.core.view().phase == Phase.DECIDING.value:
                    world.mark("a decision waits for the disk")
                world.store.persist(self.name, record, lambda: self.step(Persisted(token)))
            case TurnStands(job, epoch, first, until):
                self._stands(job, epoch, first, until)
            case PoolFree(epoch):
                world.mark("a pool was free again")
                world.note(controller, "pool free", f"{self.tree} {epoch}")
                controller.after(0, self.look)
            case JobDrained(job):
                controller.after(0, lambda: self._drained(job))
            case Noted(mark):
                world.noted(mark)
                if mark is Mark.TAKEN_BACK:
                    controller.after(0, self.look)
                if mark is Mark.ROUND_BEGUN and self._has_aborted:
                    world.mark("a round was tried again")
                if mark is Mark.ROUND_BEGUN or mark is Mark.COMMITTED or mark in ABORTS:
                    self._has_aborted = mark in ABORTS
            case SeatGivenUp(seat, epoch):
                world.note(controller, "gives up", f"{self.tree} {seat} {epoch}")
                world.given_up(seat, epoch, self.core.view().version)
            case JobBarred(job):
                world.note(controller, "leaves out", f"{self.tree} {job}")
                controller.after(0, self.look)
            case Blame():
                raise Violated("nobody is to blame", f"{self.name}: {action}")
            case _:
                assert_never(action)

    def _stands(self, job: JobId, epoch: Epoch, first: OpIndex, until: OpIndex | None) -> None:
        world = self.world
        world.mark("a turn stands")
        world.note(self.controller, "turn stands", f"{self.tree} {job} {epoch} {first}:{until}")
        if epoch not in self._ends:
            world.measures.turns += 1
            if world.config.revoked_ns >= 0 and epoch % 3 == 0:
                self.controller.after(world.config.revoked_ns, lambda: self.step(TurnRevoked(epoch)))
        if self._ends.setdefault(epoch, until) != until:
            world.mark("a turn was revoked")
            self._ends[epoch] = until
        if job != self._last:
            self._last, self._since = job, world.agenda.now
            if world.config.turn_operations == 0:
                self.controller.after(world.config.slice_ns, self.look)
        self.controller.after(0, self.look)

    def _drained(self, job: str) -> None:
        epoch = self._draining.get(job)
        if epoch is not None:
            self.controller.drained(job, epoch)


def _patience(config: ControlConfig) -> PatienceConfig | None:
    if config.mute_ns < 0:
        return None
    return PatienceConfig(config.mute_ns, config.failed_max, bar_ns=config.mute_ns // 4 + 1)
