"""A sharing group at the controller of a control world: the core that ships, and a planner that gives turns
round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from inaproto.core.sharing.events import (
    FromSeat,
    JobBarred,
    JobDrained,
    Mark,
    Noted,
    PatienceConfig,
    Persist,
    Persisted,
    PoolFree,
    RingRemoved,
    SeatGivenUp,
    SharingConfig,
    SharingView,
    Tell,
    TurnRevoked,
    TurnStands,
    TurnWanted,
    Woke,
)
from inaproto.core.sharing.group import (
    GroupAction,
    GroupConfig,
    GroupEvent,
    JobsHeld,
    Look,
    MayPlan,
    Plan,
    SeatForgotten,
    SeatsContradict,
    SharingGroup,
    StoodStill,
    Wished,
)
from inaproto.core.sharing.rounds import Phase
from inaproto.errors import Blame
from inaproto.sim.control.words import ToSeat
from inaproto.sim.kernel.machine import Timer
from inaproto.sim.kernel.violated import Violated
from inaproto.units import Epoch, JobId, OpIndex
from inaproto.wire.messages.sharing import Rule, Seat, SeatMessage

if TYPE_CHECKING:
    from inaproto.sim.control.config import ControlConfig
    from inaproto.sim.control.controller import SimController

_JITTERS: Final = 8
ABORTS: Final = (
    *(Mark.ABORTED_UNEQUAL, Mark.ABORTED_IN_INA, Mark.ABORTED_LATE),
    *(Mark.ABORTED_REFUSED, Mark.ABORTED_CHANGED),
)


class Group:
    """The group of one tree."""

    def __init__(self, controller: SimController, tree: int) -> None:
        self.controller = controller
        self.world = controller.world
        self.tree = tree
        self.name = f"sharing/{tree}"
        config = self.world.config
        self.resend_ns = max(3 * config.delay_max_ns, config.retry_ns, config.resend_ns)
        sharing = SharingConfig(
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
        )
        still_ns = config.stands_still_ns
        self.core = SharingGroup(
            GroupConfig(sharing, lease_ns=config.host_lease_ns, pause_ns=still_ns, stall_ns=still_ns),
            self.world.store.disk.get(self.name),
        )
        self.timer = Timer(controller, lambda: self.core.deadline, lambda: self.step(Woke()))
        self.timer.arm()
        self._held: dict[str, int] = {}
        """Jobs that are held, with the epoch of their trees."""
        self._drained: dict[str, None] = {}
        """Those of them that have no turn any more."""
        self._is_to_look = False
        self._last = ""
        """The job that had the last turn."""
        self._since = self.world.agenda.now
        self._ends: dict[Epoch, OpIndex | None] = {}
        """Ends of turns that were said to stand."""
        self._has_aborted = False
        """The last round."""

    def view(self) -> SharingView:
        return self.core.view().sharing

    # --- whoever moves trees

    def hold(self, job: str, epoch: int) -> None:
        """The job is to have no turn, and is drained then."""
        self._held[job] = epoch
        self.step(JobsHeld(self._jobs_held()))
        if job in self._drained:
            self.controller.after(0, lambda: self.controller.drained(job, epoch))

    def release(self, job: str) -> None:
        self._drained.pop(job, None)
        if self._held.pop(job, None) is not None:
            self.step(JobsHeld(self._jobs_held()))

    def _jobs_held(self) -> tuple[JobId, ...]:
        return tuple(JobId(job) for job in sorted(self._held))

    def held_by(self) -> list[str]:
        """Jobs whose turns have not drained."""
        return [turn.turn.job for turn in self.view().turns]

    def may_have_turn(self, job: str | None) -> bool:
        view = self.core.view()
        return job in view.jobs and job not in self._held and job not in view.sharing.barred

    def ring_removed(self, job: JobId) -> None:
        epochs = [turn.turn.epoch for turn in self.view().turns if turn.turn.job == job]
        self.step(RingRemoved(job, max(epochs, default=Epoch(0))))

    # --- whose turn it is

    def look(self) -> None:
        """Plan soon."""
        if not self._is_to_look:
            self._is_to_look = True
            self.controller.after(0, self._plan)

    def _plan(self) -> None:
        self._is_to_look = False
        self.step(MayPlan())

    def _wish(self, jobs: list[JobId]) -> TurnWanted:
        """The next job in turn; an open turn is long enough after ``slice_ns``."""
        config = self.world.config
        waiting = [job for job in jobs if job != self._last] or jobs
        if not waiting:
            return TurnWanted(None)
        operations = config.turn_operations or None
        is_over = self.world.agenda.now - self._since >= config.slice_ns
        if self._last in jobs and operations is None and not is_over:
            return self._turn_of(self._last, None)
        after = [job for job in waiting if job > self._last]
        return self._turn_of(min(after or waiting), operations)

    def _turn_of(self, job: str, operations: int | None) -> TurnWanted:
        ahead = self.world.config.ahead
        if ahead < 0:
            return TurnWanted(JobId(job), operations)
        seats = self.world.jobs[job].seats.values()
        first = max((seat.operation for seat in seats), default=0) + 1 + ahead
        until = None if operations is None else OpIndex(first + operations)
        return TurnWanted(JobId(job), operations, OpIndex(first), until)

    # --- the core

    def hear(self, message: SeatMessage) -> None:
        self.step(FromSeat(message.seat, message))

    def step(self, event: GroupEvent) -> None:
        self.world.steps.coordinator += 1
        for action in self.core.step(event, self.controller.now):
            self._perform(action)
        self.timer.arm()

    def _perform(self, action: GroupAction) -> None:
        world, controller = self.world, self.controller
        match action:
            case Tell(seat, message):
                controller.send(world.host_named(seat.host), ToSeat(seat, message))
            case Persist(record, token):
                if self.view().phase == Phase.DECIDING.value:
                    world.mark("a decision waits for the disk")
                world.store.persist(self.name, record, lambda: self.step(Persisted(token)))
            case Look():
                self.look()
            case Plan(jobs, _):
                world.hooks.planned(self, action)
                wanted = self._wish([job for job, _ in jobs])
                self.step(Wished(wanted))
            case TurnStands(job, epoch, first, until):
                self._stands(job, epoch, first, until)
            case StoodStill(job, epoch):
                world.mark("a turn was ended in which nothing went on")
                if world.jobs[job].slowness > 1:
                    world.mark("a straggler's turn was ended")
                world.note(controller, "stands still", f"{self.tree} {job} {epoch}")
            case SeatsContradict(job, host):
                world.note(controller, "seats contradict", f"{self.tree} {job} {host}")
            case SeatForgotten(seat, why, is_lost):
                world.mark(f"a seat was forgotten: {why}")
                if is_lost and world.host_named(seat.host).half_open is not None:
                    world.mark("a seat was lost by a half-open session")
                if is_lost:
                    self._gives_up(seat, self.core.view().epoch)
            case PoolFree(epoch):
                world.mark("a pool was free again")
                world.note(controller, "pool free", f"{self.tree} {epoch}")
            case JobDrained(job):
                controller.after(0, lambda: self._has_drained(job))
            case Noted(mark):
                world.noted(mark)
                if mark is Mark.ROUND_BEGUN and self._has_aborted:
                    world.mark("a round was tried again")
                if mark is Mark.ROUND_BEGUN or mark is Mark.COMMITTED or mark in ABORTS:
                    self._has_aborted = mark in ABORTS
            case SeatGivenUp(seat, epoch):
                self._gives_up(seat, epoch)
            case JobBarred(job):
                world.note(controller, "leaves out", f"{self.tree} {job}")
            case Blame():
                raise Violated("nobody is to blame", f"{self.name}: {action}")
            case _:
                assert_never(action)

    def _gives_up(self, seat: Seat, epoch: Epoch) -> None:
        """The round that is under way may give it one turn more, of which it may hear from a peer."""
        view = self.view()
        until = epoch + (view.phase in (Phase.PREPARING.value, Phase.DECIDING.value))
        self.world.note(self.controller, "gives up", f"{self.tree} {seat} {until}")
        self.world.hooks.given_up(seat, until, view.version)

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
            if self._last and world.is_dark(self._last):
                world.mark("a turn moved from a rack without power")
            self._last, self._since = job, world.agenda.now
            if world.config.turn_operations == 0:
                self.controller.after(world.config.slice_ns, self.look)

    def _has_drained(self, job: str) -> None:
        epoch = self._held.get(job)
        if epoch is not None:
            self._drained[job] = None
            self.controller.drained(job, epoch)


def _patience(config: ControlConfig) -> PatienceConfig | None:
    if config.mute_ns < 0:
        return None
    return PatienceConfig(config.mute_ns, config.failed_max, bar_ns=config.mute_ns // 4 + 1)
