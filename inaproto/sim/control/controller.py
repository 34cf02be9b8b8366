"""The controller of the control world: jobs, trees and turns, around the real cores of both.

It is level-triggered, as a daemon has to be where every message may be lost: hosts say in heartbeats what
they have and are told in orders what they are to have; what it promises is on disk first. Its own logic is
small:

- a job is SUBMITTED, RUNNING once all its hosts are ready, then OVER: ended, cancelled, or failed because
  a host of it has started anew or is silent;
- a job that runs gets the tree that the newest plan has for it (``TreeMigration``), and while that tree
  stands its seats are in the sharing group of the tree's pool;
- a seat is gone for its group when its host has dropped it or started anew; and the job's ring is removed
  when every switch of its tree says that it has no slot there.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, assert_never

from inaproto.core.migration.coordinator import TreeMigration
from inaproto.core.migration.events import (
    Deposed,
    DrainJob,
    FromSwitch,
    JobDrained,
    JobEnded,
    MigrationAction,
    MigrationConfig,
    MigrationEvent,
    Persist,
    Persisted,
    Phase,
    PlanStands,
    PlanWanted,
    ToSwitch,
    Tree,
    TreeStands,
    Woke,
)
from inaproto.core.sharing.group import GroupEvent, HostArrived, HostDeparted, HostReported, SeatMoved
from inaproto.errors import Blame
from inaproto.sim.control.config import NO_TREE, ControlJob
from inaproto.sim.control.group import Group
from inaproto.sim.control.job_state import JobPhase, JobState, boot_of
from inaproto.sim.control.node import Node
from inaproto.sim.control.words import (
    ControllerIsHere,
    Heartbeat,
    JobOrder,
    Orders,
    SeatPhase,
    SeatSays,
    SeatSeen,
)
from inaproto.sim.kernel.machine import Timer
from inaproto.sim.kernel.violated import Violated
from inaproto.units import Instant, JobId
from inaproto.wire.messages.sharing import Seat, SeatHold
from inaproto.wire.messages.slots import Lease, Order, SlotAnswer, SlotsChanged

if TYPE_CHECKING:
    from inaproto.sim.control.world import ControlWorld

MIGRATION: Final = "migration"
TERM: Final = "term"
PLAN: Final = "plan"


_AWAY_BEATS: Final = 2
"""Heartbeats after which a host that is not heard of counts as not connected."""


class _Heard(NamedTuple):
    """The newest heartbeat of a host."""

    boot: int
    number: int
    at: int
    seats: dict[str, SeatSeen]
    obeys: tuple[int, int]


def _has_tree(heard: _Heard, job: str) -> bool:
    return job in heard.seats and heard.seats[job].lease is not None


class SimController(Node):
    def __init__(self, world: ControlWorld, number: int) -> None:
        super().__init__(world, number, "controller")
        self.is_ready = False

    # --- life

    def begin(self) -> None:
        """Nothing is said before its term is on disk."""
        self.is_ready = False
        self.term = self.world.store.disk.get(TERM, 0) + 1
        self.world.store.persist(TERM, self.term, self._begin)

    def lose(self) -> None:
        if self.is_ready:
            for group in self.groups:
                self.world.mark(f"the controller crashed while a round was {group.view().phase}")
            for job in self.migration.view().jobs:
                self.world.mark(f"the controller crashed while a job was {job.phase.value}")
        self.world.store.crash()

    def _begin(self) -> None:
        world = self.world
        disk, config = world.store.disk, world.config
        if self.incarnation > 1:
            world.mark("the controller has started again")
        self.is_ready = True
        self.states: dict[str, JobState] = {
            name.removeprefix("job/"): state for name, state in disk.items() if name.startswith("job/")
        }
        self._deciding: set[str] = set()
        """Jobs whose next state is on its way to the disk; looked up, never iterated."""
        self._plan: int = disk.get(PLAN, -1)
        self._heard: dict[int, _Heard] = {}
        """Newest heartbeat of each host."""
        self._connected: dict[int, None] = {}
        """Hosts that were heard of lately."""
        self._told: dict[tuple[str, int], tuple[SeatHold, ...]] = {}
        """What each group, by tree, was told last of the seats of each host that is connected."""
        self._moved: dict[Seat, tuple[int, bool]] = {}
        """Where it was told last that each seat is."""
        self._parking: dict[str, tuple[int, int]] = {}
        """Jobs that have no turn any more, and are to leave their trees of that epoch: after which orders."""
        self._news: dict[str, Lease | None] = {}
        """What is known of jobs' trees in this term."""
        self._numbers = 0
        self._began = world.agenda.now
        self._targets: dict[str, int] = {}
        record = disk.get(MIGRATION)
        self.migration = TreeMigration(
            MigrationConfig(
                switches=tuple(switch.name for switch in world.switches),
                slots=tuple(switch.capacity for switch in world.switches),
                resend_ns=max(4 * config.delay_max_ns, config.retry_ns),
                audit_ns=max(config.slot_lease_ns // 2, config.heartbeat_ns),
                backoff_ns=config.retry_ns,
                backoff_max_ns=16 * config.retry_ns,
                jitter_ns=tuple(self.draws.below(config.retry_ns) for _ in range(8)),
            ),
            record,
        )
        self._migration_timer = Timer(self, lambda: self.migration.deadline, lambda: self.migrate(Woke()))
        self.groups = [Group(self, tree) for tree in range(len(config.trees))]
        for switch in world.switches:
            self.send(switch, ControllerIsHere(self.term))
        for job in self.states.values():
            if job.phase is JobPhase.OVER:
                world.job_over(job.job.name, job.why)
                self.migrate(JobEnded(job.job.name))
        self.migrate(Woke())
        self._want_trees()
        self._beat()

    def jump(self, by_ns: int) -> None:
        """Its clock jumps."""
        self.clock_ns += by_ns
        self.world.note(self, "clock jumps", by_ns)
        if self.is_up and self.is_ready:
            self._migration_timer.rearm()
            for group in self.groups:
                group.timer.rearm()

    # --- what people ask for; False: ask again

    def submit(self, job: ControlJob) -> bool:
        """True: it is on disk."""
        if not self.is_up or not self.is_ready:
            return False
        if job.name in self.states:
            return True
        self._write(JobState(job, JobPhase.SUBMITTED))
        return False

    def plan(self, number: int) -> bool:
        if not self.is_up or not self.is_ready:
            return False
        if number <= self._plan:
            return True
        self.world.store.persist(PLAN, number, partial(self._planned, number))
        return False

    def _planned(self, number: int) -> None:
        if number > self._plan:
            self._plan = number
            self.world.note(self, "plan", number)
            if any(job.phase not in (Phase.STABLE, Phase.BACKING_OFF) for job in self.migration.view().jobs):
                self.world.mark("a plan was replaced while it was under way")
            self._want_trees()

    def cancel(self, name: str) -> bool:
        if not self.is_up or not self.is_ready or name not in self.states:
            return False
        if self.states[name].phase is JobPhase.OVER:
            return True
        self._end(name, "cancelled")
        return False

    # --- jobs

    def _write(self, state: JobState) -> None:
        name = state.job.name
        if name in self._deciding:
            return
        self._deciding.add(name)
        self.world.store.persist(f"job/{name}", state, partial(self._written, state))

    def _written(self, state: JobState) -> None:
        name = state.job.name
        self._deciding.discard(name)
        self.states[name] = state
        self.world.note(self, f"job is {state.phase.value}", f"{name} {state.why}")
        if state.phase is JobPhase.OVER:
            self.world.job_over(name, state.why)
            self._leave(name)
            self.migrate(JobEnded(name))
        self._want_trees()
        self._order_all()

    def _end(self, name: str, why: str) -> None:
        state = self.states[name]
        if state.phase is not JobPhase.OVER:
            self._write(replace(state, phase=JobPhase.OVER, why=why))

    def _beat(self) -> None:
        """Everything that may have been lost is said again."""
        world = self.world
        for state in list(self.states.values()):
            if state.phase is JobPhase.RUNNING:
                for host in state.job.hosts:
                    heard = self._heard[host].at if host in self._heard else self._began
                    if world.agenda.now - heard > world.config.silent_ns:
                        world.mark("a job failed because a host was silent")
                        self._end(state.job.name, "a host is silent")
        self._order_all()
        for host in list(self._connected):
            if world.agenda.now - self._heard[host].at > _AWAY_BEATS * world.config.heartbeat_ns:
                del self._connected[host]
                self._forget_told(world.hosts[host].name)
                self._tell_groups(HostDeparted(world.hosts[host].name))
        for group in self.groups:
            group.look()
        self._look_for_removed()
        self.after(world.config.heartbeat_ns, self._beat)

    def _order_all(self) -> None:
        for host in self.world.hosts:
            self._order(host.index)

    def _order(self, host: int) -> None:
        self._numbers += 1
        orders = []
        for name, state in self.states.items():
            if host not in state.job.hosts or state.phase is JobPhase.OVER:
                continue
            begins = state.phase is JobPhase.RUNNING
            boot, _ = boot_of(state, host) or (0, 0)
            orders.append(JobOrder(name, begins, boot, name in self._news, self._news.get(name)))
        heard = self._heard.get(host)
        newest = (0, 0) if heard is None else (heard.boot, heard.number)
        self.send(self.world.hosts[host], Orders(self.term, self._numbers, tuple(orders), newest))

    def _heartbeat(self, beat: Heartbeat) -> None:
        heard = self._heard.get(beat.host)
        if heard is not None and (beat.boot, beat.number) <= (heard.boot, heard.number):
            return
        seats = {seen.job: seen for seen in beat.seats}
        self._heard[beat.host] = _Heard(beat.boot, beat.number, self.world.agenda.now, seats, beat.obeys)
        self._report(beat)
        changed = False
        for name, state in list(self.states.items()):
            if beat.host in state.job.hosts:
                changed |= self._look_at(name, state, beat, seats)
        if changed:
            self._order(beat.host)

    def _tell_groups(self, event: GroupEvent) -> None:
        for group in self.groups:
            group.step(event)

    def _report(self, beat: Heartbeat) -> None:
        """Tells the sharing groups which seats the host has, and where they are."""
        host = self.world.hosts[beat.host].name
        if beat.host not in self._connected:
            self._connected[beat.host] = None
            self._forget_told(host)
            self._tell_groups(HostArrived(host))
        by_tree: dict[int, list[SeatSeen]] = {}
        for seen in beat.seats:
            if seen.lease is not None:
                by_tree.setdefault(seen.lease.tree, []).append(seen)
        for group in self.groups:
            here = by_tree.get(group.tree, [])
            holds = tuple(self._hold_of(seen) for seen in here)
            if not self.world.config.tells_changes or self._told.get((host, group.tree)) != holds:
                self._told[host, group.tree] = holds
                group.step(HostReported(host, holds))
            for seen in here:
                seat, since = Seat(JobId(seen.job), host, seen.life), Instant(self.now - seen.age_ns)
                place = seen.operation, seen.is_running
                if not self.world.config.tells_changes or self._moved.get(seat) != place:
                    self._moved[seat] = place
                    group.step(SeatMoved(seat, seen.operation, seen.is_running, since))

    def _forget_told(self, host: str) -> None:
        """It has come or gone, and its seats may be forgotten: all is told again."""
        self._told = {key: holds for key, holds in self._told.items() if key[0] != host}
        self._moved = {seat: place for seat, place in self._moved.items() if seat.host != host}

    def _hold_of(self, seen: SeatSeen) -> SeatHold:
        lease, hosts = seen.lease, self.world.jobs[seen.job].config.hosts
        assert lease is not None, "it has a seat"
        return SeatHold(
            pool=f"tree{lease.tree}",
            job=seen.job,
            life=seen.life,
            ring_id=seen.ring_id,
            hosts=len(hosts),
            stand=lease.epoch,
        )

    def _look_at(self, name: str, state: JobState, beat: Heartbeat, seats: dict[str, SeatSeen]) -> bool:
        """Whether the host is to be told something at once."""
        if state.phase is JobPhase.SUBMITTED:
            self._begin_if_ready(state)
            return name not in seats
        found = boot_of(state, beat.host)
        if found is None:
            return name in seats
        boot, number = found
        is_gone = beat.boot > boot or (beat.boot == boot and beat.number > number and name not in seats)
        if state.phase is JobPhase.OVER:
            return name in seats
        if is_gone:
            self.world.mark("a job failed because a host had lost its seat")
            self._end(name, "a host has lost its seat")
        elif all(seen is not None and seen.phase is SeatPhase.FINISHED for seen in self._seen(state)):
            self._end(name, "ended")
        else:
            self._look_for_parked(state)
        return name in seats and seats[name].phase is SeatPhase.READY

    def _seen(self, state: JobState) -> list[SeatSeen | None]:
        """A job's seats, as their hosts said last."""
        found = [self._heard.get(host) for host in state.job.hosts]
        return [None if heard is None else heard.seats.get(state.job.name) for heard in found]

    def _begin_if_ready(self, state: JobState) -> None:
        name = state.job.name
        heard = [self._heard.get(host) for host in state.job.hosts]
        boots = tuple(
            (one.boot, one.number)
            for one in heard
            if one is not None and name in one.seats and one.seats[name].phase is SeatPhase.READY
        )
        if len(boots) == len(state.job.hosts):
            self._write(replace(state, phase=JobPhase.RUNNING, boots=boots))

    # --- trees

    def _want_trees(self) -> None:
        """The newest plan, for the jobs that run."""
        config = self.world.config
        targets: dict[str, int] = {}
        for sim in self.world.jobs.values():
            name, state = sim.name, self.states.get(sim.name)
            if state is not None and state.phase is JobPhase.RUNNING:
                wanted = sim.config.tree if self._plan < 0 else config.plan[self._plan].trees[sim.line]
                targets[name] = wanted
        if targets != self._targets:
            self._targets = targets
            version = self.migration.view().plan + 1
            trees = tuple((name, self._tree(tree)) for name, tree in targets.items())
            self.migrate(PlanWanted(version, trees))
        for name, tree in targets.items():
            if tree == NO_TREE and name not in self._news and name not in self._leases():
                self._news[name] = None

    def _leases(self) -> dict[str, Lease]:
        """Leases of jobs that have a tree, may have it, or try to get it."""
        jobs = self.migration.view().jobs
        return {job.job: job.lease for job in jobs if job.lease is not None}

    def _tree(self, tree: int) -> Tree | None:
        if tree == NO_TREE:
            return None
        world = self.world
        names = sorted(world.switches[index].name for index in world.config.trees[tree])
        return Tree(tree, tuple(names))

    def migrate(self, event: MigrationEvent) -> None:
        self.world.steps.migration += 1
        for action in self.migration.step(event, self.now):
            self._perform(action)
        self._migration_timer.arm()

    def _perform(self, action: MigrationAction) -> None:
        world = self.world
        match action:
            case Persist(record, token):
                world.mark("a migration waits for the disk")
                world.store.persist(MIGRATION, record, lambda: self.migrate(Persisted(token)))
            case ToSwitch(name, request):
                if request.order is Order.RELEASE:
                    self._releases(request.lease)
                self.send(world.switch_named(name), request)
            case DrainJob(job, epoch):
                world.mark("a job is to drain")
                world.note(self, "drains", f"{job} {epoch}")
                self._drain(job, epoch)
            case TreeStands(job, tree, epoch):
                world.mark("a tree stands")
                world.note(self, "tree stands", f"{job} {tree.tree_id} {epoch}")
                world.hooks.tree_stands(Lease(job, tree.tree_id, epoch))
                self._join(Lease(job, tree.tree_id, epoch))
            case PlanStands(version):
                world.note(self, "plan stands", version)
                world.mark("a plan stands")
            case Deposed():
                raise Violated("nobody is to blame", f"the only controller was deposed: {action}")
            case Blame():
                raise Violated("nobody is to blame", f"migration: {action}")
            case _:
                assert_never(action)

    def _releases(self, lease: Lease | None) -> None:
        for job in self.migration.view().jobs:
            if job.lease == lease and job.phase is Phase.GIVING_BACK:
                self.world.mark("what was acquired in part was given back")

    def _join(self, lease: Lease) -> None:
        """Its tree stands."""
        state = self.states[lease.job]
        if state.phase is not JobPhase.RUNNING:
            return
        self._news[lease.job] = lease
        self._parking.pop(lease.job, None)
        for group in self.groups:
            group.release(lease.job)
        self._order_all()

    def _drain(self, job: str, epoch: int) -> None:
        lease = self._leases().get(job)
        if lease is None:
            self.after(0, lambda: self.migrate(JobDrained(job, epoch)))
            return
        if any(seat.in_ina for seat in self.world.jobs[job].seats.values()):
            self.world.mark("a job was to drain under an operation by the switches")
        self.groups[lease.tree].hold(job, epoch)
        if self.world.config.parks_first:
            self._news[job] = None
            self._order_all()

    def drained(self, job: str, epoch: int) -> None:
        """Its group says so: it has no turn. Its hosts park its ring, and then the tree can be left."""
        self.world.mark("a job has drained")
        self._news[job] = None
        self._parking[job] = epoch, self._numbers
        self._order_all()

    def _look_for_parked(self, state: JobState) -> None:
        """Hosts that have heard that the job is to have no tree, and have none, have left the switches."""
        name = state.job.name
        if name not in self._parking:
            return
        epoch, number = self._parking[name]
        heard = [self._heard.get(host) for host in state.job.hosts]
        if all(
            one is not None and one.obeys > (self.term, number) and not _has_tree(one, name) for one in heard
        ):
            del self._parking[name]
            self.world.mark("all hosts have parked a ring")
            self.migrate(JobDrained(name, epoch))

    def _leave(self, job: str) -> None:
        """It is over; what it still has in its sharing group is waited for."""
        self._parking.pop(job, None)
        self._news[job] = None
        for group in self.groups:
            group.release(job)

    def _look_for_removed(self) -> None:
        """Jobs that are over, with no slot left at any switch of their trees."""
        view = self.migration.view()
        known = {job.job for job in view.jobs}
        for group in self.groups:
            switches = {self.world.switches[index].name for index in self.world.config.trees[group.tree]}
            here = [switch for switch in view.switches if switch.switch in switches]
            if any(switch.is_lost or not switch.boot for switch in here):
                continue
            for name in group.held_by():
                state = self.states.get(name)
                held = any(lease.job == name for switch in here for lease in switch.held)
                if state is not None and state.phase is JobPhase.OVER and name not in known and not held:
                    self.world.mark("a ring was removed under a turn")
                    group.ring_removed(JobId(name))

    @property
    def is_idle(self) -> bool:
        """It knows that nothing is held."""
        if not self.is_up or not self.is_ready:
            return False
        return not self.migration.view().jobs and not any(group.held_by() for group in self.groups)

    def waiting(self) -> str:
        """For people."""
        if not self.is_up or not self.is_ready:
            return "the controller is down"
        said = [f"migration {self.migration.view()}"]
        return "; ".join(said + [f"group {group.tree} {group.core.view()}" for group in self.groups])

    # --- what comes in

    def received(self, source: Node, message: Any) -> None:
        if not self.is_ready:
            return
        match message:
            case Heartbeat():
                self._heartbeat(message)
            case SeatSays(tree, word):
                self.groups[tree].hear(word)
            case SlotAnswer() | SlotsChanged():
                self.migrate(FromSwitch(message))
                self._look_for_removed()
            case _:
                raise AssertionError(f"controller: {message}")
