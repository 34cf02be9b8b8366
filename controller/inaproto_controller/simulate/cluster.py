"""A cluster over time: requests queue for hosts, jobs get trees, share them, and train (MINA, section V-A).

Between two changes of who has which hosts and trees nothing is decided but who uses INA for an operation:
that is the kernel's (:mod:`~inaproto_controller.simulate.kernel`). Here is what happens at a change: jobs
end, the head of the queue is placed while it fits, trees are built, and jobs whose trees exclude each other
form groups.

Departure from the paper: a change of a tree costs what section V-D measured, if :class:`Migration` says so.
The job goes on without INA meanwhile; who needs the links that it gives up waits for their release.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np

from inaproto.errors import ConfigError
from inaproto_controller.model import ModelTrace, Speeds, StepTimes, measured
from inaproto_controller.network import Network
from inaproto_controller.placement.occupancy import Occupancy
from inaproto_controller.placement.simple import Hosts
from inaproto_controller.requests import Request
from inaproto_controller.sharing.policy import Policy
from inaproto_controller.simulate import kernel
from inaproto_controller.simulate.failures import FailureEvent, Part, checked
from inaproto_controller.simulate.group_order import GroupOrder
from inaproto_controller.simulate.kernel import Ints
from inaproto_controller.simulate.outages import Outages
from inaproto_controller.simulate.results import JobResult, Moment, Result
from inaproto_controller.simulate.rivals import Rivals
from inaproto_controller.simulate.running import (
    POLICIES,
    Blocks,
    Kinds,
    grown,
    make_log,
    make_slots,
    take_turns,
)
from inaproto_controller.trees.builder import TreeBuilder, TreeJob

_ROOM: Final = 64
_LATEST: Final = sys.float_info.max
"""Seconds: what is later never happens."""
_LOG_ROOM: Final = 1 << 14


class Placement(Protocol):
    def place(self, occupancy: Occupancy, count: int) -> Hosts | None: ...


@dataclass(frozen=True, slots=True)
class Migration:
    """What a change of a job's tree after its first costs, seconds."""

    release: float = 0.125
    """Until the links of the old tree are free for others."""
    total: float = 0.559
    """Until the job can use INA again."""


FREE: Final = Migration(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Operation:
    """An all-reduce that has ended."""

    job: int
    """Number of its request."""
    step: int
    index: int
    uses_ina: bool
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Setting:
    """A cluster and how it is run. Networks and builders have a state: a setting serves one simulation."""

    network: Network
    occupancy: Occupancy
    placement: Placement
    trees: TreeBuilder
    policy: Policy
    speeds: Speeds
    order: GroupOrder = GroupOrder.DESCENDING
    migration: Migration = FREE
    is_weighted: bool = False
    """The score policy multiplies what an operation gains with the hosts of its job."""
    suffix_only: bool = False
    """Only the operations ask for INA that need it for the shortest step (the short paper)."""
    is_pairwise: bool = False
    """Jobs take turns whose trees exclude each other, not whole groups (no part of the paper)."""
    jitter: float = 0.0
    """Largest share by which an operation takes less or more time."""
    seed: int = 0
    models: Mapping[str, ModelTrace] = field(default_factory=dict)
    """Traces beside those that are part of inaproto."""


@dataclass(slots=True)
class _Running:
    """A job that has hosts."""

    request: int
    slot: int
    number: int
    asked: Request
    times: StepTimes
    hosts: Hosts
    start: float
    roots: int
    tree: int | None = None
    using: int | None = None
    """The tree that is in effect; ``tree`` too, unless that waits for an operation's end."""
    had_tree: bool = False
    barred: frozenset[int] = frozenset()
    """Roots whose trees have a switch that is down."""
    granted: int = 0
    """The build that gave it its tree."""
    migrations: int = 0
    downtime: float = 0.0


def simulate(
    setting: Setting,
    requests: Sequence[Request],
    *,
    arrivals: Sequence[float] | None = None,
    failures: Sequence[FailureEvent] = (),
    checkpoint_steps: int = 1,
    until: float = math.inf,
    on_progress: Callable[[int], None] | None = None,
    on_operation: Callable[[Operation], None] | None = None,
) -> Result:
    """Until all jobs have ended, or the first event later than ``until``.

    ``arrivals``: seconds, ascending, of each request; all at 0 by default. The queue is first in, first out:
    who does not fit holds back those behind. ``failures``: of hosts and switches, in order; a job that loses
    a host goes back to the head of the queue with the steps that it has left since its last multiple of
    ``checkpoint_steps``, and trees that lose a switch are lost. ``on_progress`` gets the number of jobs that
    have ended. Raises ``ConfigError`` for a request that the cluster is too small for, for an unknown model,
    and for arrivals and failures out of order.
    """
    checked_failures = checked(
        failures, {Part.HOST: setting.network.hosts, Part.SWITCH: setting.network.switches}
    )
    outages = Outages(setting.network, checked_failures)
    cluster = _Cluster(setting, requests, arrivals, until, on_progress, on_operation)
    return cluster.run(outages, checkpoint_steps)


class _Cluster:
    def __init__(
        self,
        setting: Setting,
        requests: Sequence[Request],
        arrivals: Sequence[float] | None,
        until: float,
        on_progress: Callable[[int], None] | None,
        on_operation: Callable[[Operation], None] | None,
    ) -> None:
        self._setting = setting
        self._requests = requests
        self._arrivals = [0.0] * len(requests) if arrivals is None else list(arrivals)
        self._until = until
        self._on_progress = on_progress
        self._on_operation = on_operation
        self._check()
        names = dict.fromkeys(request.model for request in requests)
        traces = [setting.models.get(name) or measured(name) for name in names]
        self._kinds = Kinds(traces, setting.speeds, suffix_only=setting.suffix_only)
        self._slots = make_slots(_ROOM)
        self._free_slots = list(range(_ROOM))[::-1]
        self._running: dict[int, _Running] = {}
        """By slot, in order of placement."""
        self._rivals = Rivals(_ROOM)
        self._trees: Ints = np.full(_ROOM, -1, np.int64)
        """(slots,): root of each slot's tree; -1 for none."""
        self._queue: deque[int] = deque()
        self._arrived = 0
        self._placed = 0
        self._log = make_log(_LOG_ROOM if on_operation else 0)
        self._now = 0.0
        self._events = 0
        self._builds = 0
        self._results: list[JobResult] = []
        self._interrupted: dict[int, JobResult] = {}
        """By request: what became of it before it lost a host."""
        self._moments: list[Moment] = []
        self._released: list[tuple[int, int]] = []
        """Slots, and the trees that they have given up just now."""

    def _check(self) -> None:
        hosts = self._setting.network.hosts
        for number, request in enumerate(self._requests):
            if not 1 <= request.hosts <= hosts or request.steps < 1:
                raise ConfigError(
                    f"request {number}: {request.hosts} hosts and {request.steps} steps; the cluster has "
                    f"{hosts} hosts, and a job needs one of each at least"
                )
        if len(self._arrivals) != len(self._requests) or self._arrivals != sorted(self._arrivals):
            raise ConfigError("arrivals: one time for each request, ascending")

    # -- the run

    def run(self, outages: Outages, checkpoint_steps: int) -> Result:
        self._outages = outages
        self._checkpoint_steps = checkpoint_steps
        self._regroup()
        is_changed, queued = False, 0
        while True:
            is_changed |= self._fail()
            new = self._let_in()
            if new or is_changed:
                self._rebuild(new, completed=is_changed)
                self._note()
            elif self._queue and len(self._queue) != queued:
                self._note()
            queued = len(self._queue)
            if self._is_over():
                break
            why, slot = self._advance()
            if why == kernel.LIMITED:
                break
            is_changed = why == kernel.COMPLETED
            if is_changed:
                self._complete(slot)
        unfinished = [self._result(running, is_finished=False) for running in self._running.values()]
        waiting = [self._interrupted[number] for number in self._queue if number in self._interrupted]
        self._results += unfinished + waiting
        self._results.sort(key=lambda job: job.number)
        network = self._setting.network
        return Result(
            self._results,
            self._now,
            self._events,
            network.hosts,
            network.switches,
            unplaced=len(self._requests) - len(self._results),
            tree_builds=self._builds,
            moments=self._moments,
        )

    def _next_from_outside(self) -> float:
        arrival = self._arrivals[self._arrived] if self._arrived < len(self._arrivals) else math.inf
        return min(arrival, self._outages.next_at)

    def _is_over(self) -> bool:
        if self._running:
            return False
        has_more = self._queue or self._arrived < len(self._arrivals)
        return not has_more or self._next_from_outside() > min(self._until, _LATEST)

    def _advance(self) -> tuple[int, int]:
        pause_at = self._next_from_outside()
        if pause_at > self._until:  # nothing comes from outside any more
            pause_at = math.inf
        while True:
            why, slot, now, events = kernel.advance(
                self._kinds.tables,
                self._slots,
                self._turns,
                self._log,
                POLICIES[self._setting.policy],
                self._setting.jitter,
                self._setting.migration.release,
                pause_at,
                self._until,
            )
            self._events += events
            self._drain_log()
            if why != kernel.FULL:
                break
        self._now = float(now)
        return why, slot

    def _drain_log(self) -> None:
        if self._on_operation is None:
            return
        noted = int(self._log.noted[0])
        columns = [column[:noted].tolist() for column in self._log[1:]]
        for slot, step, index, uses_ina, begin, end in zip(*columns, strict=True):
            self._on_operation(Operation(self._running[slot].request, step, index, uses_ina, begin, end))
        self._log.noted[0] = 0

    # -- hosts

    def _let_in(self) -> list[int]:
        """Slots of those who got hosts."""
        while self._arrived < len(self._requests) and self._arrivals[self._arrived] <= self._now:
            self._queue.append(self._arrived)
            self._arrived += 1
        new = []
        while self._queue:
            request = self._requests[self._queue[0]]
            hosts = self._setting.placement.place(self._setting.occupancy, request.hosts)
            if hosts is None:
                break
            new.append(self._begin(self._queue.popleft(), request, hosts))
        return new

    def _begin(self, number: int, request: Request, hosts: Hosts) -> int:
        if not self._free_slots:
            room = len(self._slots.at)
            self._slots = grown(self._slots)
            self._free_slots = list(range(room, 2 * room))[::-1]
            self._rivals.grow()
            self._trees = np.concatenate([self._trees, np.full(room, -1, np.int64)])
        slot = self._free_slots.pop()
        self._setting.occupancy.take(hosts)
        roots = self._setting.network.enter(slot, hosts)
        kind = self._kinds.number(request.model, request.hosts)
        before = self._interrupted.get(number)
        left = request if before is None else request._replace(steps=request.steps - before.steps)
        running = _Running(number, slot, self._placed, left, self._kinds.times[kind], hosts, self._now, roots)
        running.barred = self._outages.barred(slot)
        self._running[slot] = running
        self._placed += 1
        self._events += 1
        slots = self._slots
        for column in slots:
            column[slot] = 0
        slots.kind[slot] = kind
        slots.steps_max[slot] = left.steps
        slots.weight[slot] = request.hosts if self._setting.is_weighted else 1.0
        slots.seed[slot] = np.uint64(
            (self._setting.seed * 0x9E3779B97F4A7C15 + number * 0xD1B54A32D192ED03) % 2**64
        )
        self._rivals.enter(slot, running.number)
        kernel.begin_step(self._kinds.tables, slots, slot, self._now)
        return slot

    def _complete(self, slot: int) -> None:
        self._results.append(self._result(self._running[slot], is_finished=True))
        self._leave(slot)
        if self._on_progress is not None:
            self._on_progress(len(self._results))

    def _leave(self, slot: int) -> None:
        running = self._running.pop(slot)
        self._setting.occupancy.release(running.hosts)
        self._setting.network.leave(slot)
        self._rivals.forget(slot)
        self._trees[slot] = -1
        self._free_slots.append(slot)

    # -- failures

    def _fail(self) -> bool:
        """What is due; whether anything has changed for jobs."""
        is_changed = False
        while self._outages.next_at <= self._now:
            lost, back = self._outages.take()
            gone = set(lost)
            for slot in [slot for slot, running in self._running.items() if gone & set(running.hosts)]:
                self._interrupt(slot)
            self._setting.occupancy.take(lost)
            self._setting.occupancy.release(back)
            for running in self._running.values():
                running.barred = self._outages.barred(running.slot)
            is_changed = True
        if is_changed:
            self._exclude([slot for slot, running in self._running.items() if self._lose_tree(running)])
        return is_changed

    def _interrupt(self, slot: int) -> None:
        """Its steps since the last checkpoint are lost; it is the next to get hosts."""
        running = self._running[slot]
        steps = int(self._slots.steps[slot])
        kept = steps // self._checkpoint_steps * self._checkpoint_steps
        self._slots.steps[slot] = kept
        so_far = self._result(running, is_finished=False)
        self._interrupted[running.request] = replace(
            so_far, restarts=so_far.restarts + 1, steps_lost=so_far.steps_lost + steps - kept
        )
        self._leave(slot)
        self._queue.appendleft(running.request)

    def _lose_tree(self, running: _Running) -> bool:
        """If a switch of it is down. An operation that it carries is begun anew, without INA."""
        slots, slot, tables = self._slots, running.slot, self._kinds.tables
        if not slots.waits[slot]:
            running.using = running.tree
        if running.using in running.barred:
            if slots.uses_ina[slot]:
                slots.uses_ina[slot] = False
                operation = tables.first[slots.kind[slot]] + slots.operation[slot]
                slots.at[slot] = self._now + tables.plain[operation]
            if slots.waits[slot]:
                slots.waits[slot] = False
                slots.has_tree[slot] = slots.has_tree_then[slot]
                slots.switches[slot] = slots.switches_then[slot]
                running.using = running.tree
        if running.tree not in running.barred:
            return False
        running.tree = None
        self._trees[slot] = -1
        if slots.waits[slot]:
            slots.has_tree_then[slot] = False
        else:
            running.using = None
            slots.has_tree[slot] = False
        return True

    def _result(self, running: _Running, *, is_finished: bool) -> JobResult:
        slot, slots, times = running.slot, self._slots, running.times
        before = self._interrupted.get(running.request)
        steps = int(slots.steps[slot]) + (0 if before is None else before.steps)
        found = JobResult(
            number=running.request,
            model=running.asked.model,
            hosts=running.asked.hosts,
            steps=steps,
            is_finished=is_finished,
            arrival=self._arrivals[running.request],
            start=running.start,
            finish=self._now if is_finished else float(slots.step_start[slot]),
            plain_seconds=times.step_plain * steps,
            possible_seconds=times.step_ina * steps,
            ina_seconds=float(slots.ina_seconds[slot]),
            ina_switch_seconds=float(slots.ina_switch_seconds[slot]),
            migrations=running.migrations,
            migrations_counted=int(slots.changed[slot]),
            downtime=running.downtime,
            placed_on=running.hosts,
        )
        return found if before is None else found.after(before)

    # -- trees and groups

    def _rebuild(self, new: Sequence[int], *, completed: bool) -> None:
        builder = self._setting.trees
        if new or builder.wants_completions:
            self._builds += 1
            jobs = self._tree_jobs()
            places = {job.slot: place for place, job in enumerate(jobs)}
            changes = builder.build(jobs, [places[slot] for slot in new], now=self._now, completed=completed)
            changed = [slot for slot, tree in changes.items() if self._set_tree(self._running[slot], tree)]
            for slot in changed:
                self._running[slot].granted = self._builds
            self._wait_for_release(changed)
            self._exclude(changed)
        self._regroup()

    def _tree_jobs(self) -> list[TreeJob]:
        waits, uses_ina = self._slots.waits.tolist(), self._slots.uses_ina.tolist()
        steps: list[int] = self._slots.steps.tolist()
        jobs = []
        for slot, running in self._running.items():
            if not waits[slot]:
                running.using = running.tree
            jobs.append(
                TreeJob(
                    slot,
                    running.number,
                    running.asked.hosts,
                    running.times,
                    running.roots,
                    running.tree,
                    running.using if uses_ina[slot] else None,
                    running.asked.steps - steps[slot],
                    running.barred,
                )
            )
        return jobs

    def _set_tree(self, running: _Running, tree: int | None) -> bool:
        if tree in running.barred:
            tree = None
        if tree == running.tree:
            return False
        slots, slot = self._slots, running.slot
        cost = self._setting.migration.total if running.had_tree else 0.0
        switches = 0 if tree is None else self._setting.network.tree_size(slot, tree)[0]
        if slots.waits[slot]:  # it never came into effect
            running.migrations -= 1
            running.downtime -= float(slots.downtime_then[slot])
        running.tree = tree
        self._trees[slot] = -1 if tree is None else tree
        if not (slots.uses_ina[slot] and tree == running.using):
            running.migrations += running.had_tree
            running.downtime += cost
        running.had_tree = True
        if slots.uses_ina[slot]:
            slots.waits[slot] = tree != running.using
            slots.has_tree_then[slot] = tree is not None
            slots.switches_then[slot] = switches
            slots.downtime_then[slot] = cost
            return True
        released, running.using = running.using, tree
        slots.has_tree[slot] = tree is not None
        slots.switches[slot] = switches
        if cost:
            slots.no_ina_until[slot] = self._now + cost
            if released is not None:
                self._released.append((slot, released))
        return True

    def _wait_for_release(self, changed: Sequence[int]) -> None:
        """Nobody is granted links before those who had them have released them."""
        until = self._now + self._setting.migration.release
        slots = np.array([slot for slot in changed if self._trees[slot] >= 0], np.int64)
        roots = self._trees[slots]
        for slot, tree in self._released:
            waiting = slots[self._setting.network.conflicts_with(slot, tree, slots, roots)]
            self._slots.no_ina_until[waiting] = np.maximum(self._slots.no_ina_until[waiting], until)
        self._released.clear()

    def _with_tree(self) -> tuple[Ints, Ints]:
        """Slots and roots, (n,) each, of jobs that have a tree."""
        slots = np.flatnonzero(self._trees >= 0)
        return slots, self._trees[slots]

    def _order(self) -> Ints:
        return np.fromiter(self._running, np.int64, len(self._running))

    def _exclude(self, changed: Sequence[int]) -> None:
        network, trees = self._setting.network, self._trees
        for slot in changed:
            self._rivals.forget(slot)
        if 2 * len(changed) > len(self._running):
            order = self._order()
            order = order[trees[order] >= 0]
            self._rivals.set_all(order, network.conflicts(order, trees[order]))
            return
        slots, roots = self._with_tree()
        is_done = np.ones(len(trees), np.bool_)
        is_done[list(changed)] = False
        for slot in changed:
            is_done[slot] = True
            if trees[slot] >= 0:
                excluded = slots[network.conflicts_with(slot, int(trees[slot]), slots, roots)]
                self._rivals.meet(slot, excluded[is_done[excluded]])

    def _regroup(self) -> None:
        setting = self._setting
        self._turns, self._group_sizes = take_turns(
            self._order(),
            self._rivals,
            self._slots,
            self._kinds,
            self._blocks(),
            by=setting.order,
            is_pairwise=setting.is_pairwise,
            may_stay_behind=self._until == math.inf and self._on_operation is None,
            uses_ina=setting.policy is not Policy.NONE,
            jitter=setting.jitter,
        )

    def _note(self) -> None:
        setting, hosts_down = self._setting, self._outages.hosts_down
        self._moments.append(
            Moment(
                at=self._now,
                running=len(self._running),
                hosts_busy=setting.network.hosts - setting.occupancy.free_hosts - hosts_down,
                hosts_down=hosts_down,
                with_tree=int((self._trees >= 0).sum()),
                groups=len(self._group_sizes),
                largest_group=int(self._group_sizes.max(initial=0)),
                queued=len(self._queue),
            )
        )

    def _blocks(self) -> Blocks:
        """Who waits with a new tree still holds the links of the old one."""
        network, pairs = self._setting.network, []
        holders = [self._running[slot] for slot in np.flatnonzero(self._slots.waits).tolist()]
        if holders:
            slots, roots = self._with_tree()
            for holder in holders:
                assert holder.using is not None
                held = slots[network.conflicts_with(holder.slot, holder.using, slots, roots)]
                pairs += [
                    (holder.slot, slot, self._running[slot].granted >= holder.granted)
                    for slot in held.tolist()
                ]
        found = np.array(pairs, np.int64).reshape(-1, 3)
        return Blocks(found[:, 0].copy(), found[:, 1].copy(), found[:, 2].astype(np.bool_))
