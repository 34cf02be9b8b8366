"""A cluster over time: requests queue for hosts, jobs get trees, share them, and train (MINA, section V-A).

Between two changes of who has which hosts and trees nothing is decided but who uses INA for an operation:
that is the kernel's (:mod:`~inaproto_controller.planning.trial.kernel`). Here is what happens at a change:
jobs end, the head of the queue is placed while it fits, trees are built, and jobs whose trees exclude each
other form groups.

Departure from the paper: a change of a tree costs what section V-D measured, if :class:`Migration` says so.
The job goes on without INA meanwhile; who needs the links that it gives up waits for their release.
"""

from __future__ import annotations

import math
import sys
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Final

import numpy as np

from inaproto.errors import ConfigError, LocalMisuse
from inaproto_controller.cluster.model import measured
from inaproto_controller.cluster.requests import Request
from inaproto_controller.planning.placement.simple import Hosts
from inaproto_controller.planning.trial import kernel
from inaproto_controller.planning.trial.arrays import Kinds, make_log
from inaproto_controller.planning.turns.policy import Policy
from inaproto_controller.simulate.failures import FailureEvent, checked
from inaproto_controller.simulate.held_trees import HeldTrees
from inaproto_controller.simulate.jobs import Jobs, RunningJob
from inaproto_controller.simulate.outages import Outages, parts_of, rows_of
from inaproto_controller.simulate.results import JobResult, Moment, Operation, Result
from inaproto_controller.simulate.setting import Setting
from inaproto_controller.simulate.turns import take_turns

_POLICIES: Final = {
    Policy.NONE: kernel.NONE,
    Policy.GREEDY: kernel.GREEDY,
    Policy.SCORE: kernel.SCORE,
}
_LATEST: Final = sys.float_info.max
"""Seconds: what is later never happens."""
_LOG_ROOM: Final = 1 << 14


def simulate(
    setting: Setting,
    requests: Sequence[Request],
    *,
    arrivals: Sequence[float] | None = None,
    failures: Sequence[FailureEvent] = (),
    checkpoint_steps: int = 1,
    row_racks: int | None = None,
    until: float = math.inf,
    on_progress: Callable[[int], None] | None = None,
    on_operation: Callable[[Operation], None] | None = None,
) -> Result:
    """Until all jobs have ended, or the first event later than ``until``.

    ``arrivals``: seconds, ascending, of each request; all at 0 by default. The queue is first in, first out:
    who does not fit holds back those behind. ``failures``: of hosts, switches and rows of ``row_racks``
    racks, in order; a job that loses a host goes back to the head of the queue with the steps that it has
    left since its last multiple of ``checkpoint_steps``, and trees that lose a switch are lost.
    ``on_progress`` gets the number of jobs that have ended. Raises ``ConfigError`` for a request that the
    cluster is too small for, for an unknown model, for arrivals and failures out of order, and for a jitter
    or a limit that is none; ``LocalMisuse`` for hosts and trees of the setting that a job cannot have.
    """
    network = setting.network
    rows = [] if row_racks is None else rows_of(network, row_racks)
    outages = Outages(network, checked(failures, parts_of(network, row_racks)), rows)
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
        kinds = Kinds(traces, setting.speeds, suffix_only=setting.suffix_only)
        self._jobs = Jobs(kinds)
        self._trees = HeldTrees(setting.network, setting.trees, setting.migration, self._jobs)
        self._slot_of = np.full(setting.network.hosts, -1, np.int64)
        """(hosts,): slot of the job that has it; -1 for none."""
        self._queue: deque[int] = deque()
        self._arrived = 0
        self._log = make_log(_LOG_ROOM if on_operation else 0)
        self._now = 0.0
        self._events = 0
        self._results: list[JobResult] = []
        self._interrupted: dict[int, JobResult] = {}
        """What became of each request before it lost a host."""
        self._moments: list[Moment] = []

    def _check(self) -> None:
        hosts = self._setting.network.hosts
        for number, request in enumerate(self._requests):
            if not 1 <= request.hosts <= hosts or request.steps < 1:
                raise ConfigError(
                    f"request {number}: {request.hosts} hosts and {request.steps} steps; the cluster has "
                    f"{hosts} hosts, and a job needs one of each at least"
                )
        ascends = all(one <= other for one, other in pairwise([0.0, *self._arrivals]))
        if len(self._arrivals) != len(self._requests) or not ascends:
            raise ConfigError("arrivals: one time for each request, ascending from 0")
        if not 0 <= self._setting.jitter < 1 or not self._until >= 0:
            raise ConfigError(
                f"jitter {self._setting.jitter}, until {self._until}: from 0 to below 1, and from 0 on"
            )

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
                self._trees.build(new, now=self._now, completed=is_changed)
                self._regroup()
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
                if self._now > self._until:
                    break
        unfinished = [self._result(job, is_finished=False) for job in self._jobs]
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
            tree_builds=self._trees.builds,
            moments=self._moments,
        )

    def _next_from_outside(self) -> float:
        arrival = self._arrivals[self._arrived] if self._arrived < len(self._arrivals) else math.inf
        return min(arrival, self._outages.next_at)

    def _is_over(self) -> bool:
        if self._jobs:
            return False
        has_more = self._queue or self._arrived < len(self._arrivals)
        return not has_more or self._next_from_outside() > min(self._until, _LATEST)

    def _advance(self) -> tuple[int, int]:
        pause_at = self._next_from_outside()
        if pause_at > self._until:  # nothing comes from outside any more
            pause_at = math.inf
        while True:
            with np.errstate(over="ignore"):  # the hash of jitter wraps
                why, slot, now, events = kernel.advance(
                    self._jobs.kinds.tables,
                    self._jobs.slots,
                    self._turns,
                    self._log,
                    _POLICIES[self._setting.policy],
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
            number = self._jobs[slot].request
            before = self._interrupted.get(number)
            step += 0 if before is None else before.steps
            self._on_operation(Operation(number, step, index, uses_ina, begin, end))
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
        setting, slot = self._setting, self._jobs.free_slot()
        if len(hosts) != request.hosts:
            raise LocalMisuse(
                f"placement: {len(hosts)} hosts for request {number}, which wants {request.hosts}"
            )
        setting.occupancy.take(hosts)
        roots = setting.network.enter(slot, hosts)
        before = self._interrupted.get(number)
        left = request if before is None else request._replace(steps=request.steps - before.steps)
        job = self._jobs.enter(
            slot,
            number,
            left,
            hosts,
            roots,
            self._now,
            weight=request.hosts if setting.is_weighted else 1.0,
            seed=setting.seed,
        )
        self._slot_of[list(hosts)] = slot
        self._jobs.bar(slot, self._outages.barred(slot))
        self._trees.enter(job)
        self._events += 1
        return slot

    def _complete(self, slot: int) -> None:
        self._results.append(self._result(self._jobs[slot], is_finished=True))
        self._leave(slot)
        if self._on_progress is not None:
            self._on_progress(len(self._results))

    def _leave(self, slot: int) -> None:
        self._trees.leave(slot)
        job = self._jobs.leave(slot)
        self._slot_of[list(job.hosts)] = -1
        self._setting.occupancy.release(job.hosts)
        self._setting.network.leave(slot)

    # -- failures

    def _fail(self) -> bool:
        """What is due; whether anything has changed for jobs."""
        is_changed = False
        while self._outages.next_at <= self._now:
            lost, back, switches = self._outages.take()
            struck = [self._jobs[slot] for slot in np.unique(self._slot_of[lost]).tolist() if slot >= 0]
            for job in sorted(struck, key=lambda job: job.number):
                self._interrupt(job)
            self._setting.occupancy.take(lost)
            self._setting.occupancy.release(back)
            through = (self._setting.network.slots_through(switch) for switch in switches)
            for slot in dict.fromkeys(chain.from_iterable(through)):
                self._jobs.bar(slot, self._outages.barred(slot))
            is_changed = True
        if is_changed:
            self._trees.lose(self._now)
        return is_changed

    def _interrupt(self, job: RunningJob) -> None:
        """Its steps since the last checkpoint are lost; it waits before all that were asked for later."""
        steps = int(self._jobs.slots.steps[job.slot])
        kept = steps // self._checkpoint_steps * self._checkpoint_steps
        self._jobs.slots.steps[job.slot] = kept
        so_far = self._result(job, is_finished=False)
        self._interrupted[job.request] = replace(
            so_far, restarts=so_far.restarts + 1, steps_lost=so_far.steps_lost + steps - kept
        )
        self._leave(job.slot)
        insort(self._queue, job.request)

    def _result(self, job: RunningJob, *, is_finished: bool) -> JobResult:
        slot, slots, times = job.slot, self._jobs.slots, job.times
        before = self._interrupted.get(job.request)
        steps = int(slots.steps[slot]) + (0 if before is None else before.steps)
        found = JobResult(
            number=job.request,
            model=job.asked.model,
            hosts=job.asked.hosts,
            steps=steps,
            is_finished=is_finished,
            arrival=self._arrivals[job.request],
            start=job.start,
            finish=self._now if is_finished else float(slots.step_start[slot]),
            plain_seconds=times.step_plain * steps,
            possible_seconds=times.step_ina * steps,
            ina_seconds=float(slots.ina_seconds[slot]),
            ina_switch_seconds=float(slots.ina_switch_seconds[slot]),
            migrations=job.migrations,
            migrations_counted=int(slots.changed[slot]),
            downtime=job.downtime,
            placed_on=job.hosts,
        )
        return found if before is None else found.after(before)

    # -- groups

    def _regroup(self) -> None:
        setting = self._setting
        self._turns, self._group_sizes = take_turns(
            self._jobs.order,
            self._trees.rivals,
            self._jobs.slots,
            self._jobs.kinds,
            self._trees.blocks(),
            self._trees.counted(),
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
                running=len(self._jobs),
                hosts_busy=setting.network.hosts - setting.occupancy.free_hosts - hosts_down,
                hosts_down=hosts_down,
                with_tree=self._trees.count,
                groups=len(self._group_sizes),
                largest_group=int(self._group_sizes.max(initial=0)),
                queued=len(self._queue),
            )
        )
