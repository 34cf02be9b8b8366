"""The judge of the compiled loop: jobs that share trees, event by event, in plain Python.

One list of jobs, the earliest of whom is next; what they do is ``JobRun``'s, whether an operation gets INA is
``may_use``'s. Nothing is left behind, grouped beforehand or computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inaproto_controller.cluster.model import measured
from inaproto_controller.cluster.network import Network
from inaproto_controller.cluster.requests import Request
from inaproto_controller.cluster.step_times import Speeds, StepTimes
from inaproto_controller.planning.placement.occupancy import Occupancy
from inaproto_controller.planning.placement.simple import FirstFit
from inaproto_controller.planning.trees.builder import TreeBuilder, TreeJob, integers
from inaproto_controller.planning.turns.job_run import JobRun, Phase
from inaproto_controller.planning.turns.policy import NextOperation, Policy, may_use
from inaproto_controller.simulate.results import Operation
from inaproto_controller.simulate.setting import Migration


@dataclass
class Job:
    number: int
    slot: int
    request: Request
    run: JobRun
    hosts: tuple[int, ...]
    roots: int
    tree: int | None = None
    """Assigned: it may wait for the end of an operation on ..."""
    using: int | None = None
    """... the one in effect."""
    had_tree: bool = False
    waits: bool = False
    downtime_then: float = 0.0
    no_ina_until: float = 0.0
    granted: int = 0
    """The build that gave it its tree."""
    migrations: int = 0
    counted: int = 0
    finish: float = math.inf
    operations: list[Operation] = field(default_factory=list)


class Cluster:
    """First-fit placement; groups in descending order of their first members."""

    def __init__(
        self,
        network: Network,
        occupancy: Occupancy,
        trees: TreeBuilder,
        policy: Policy,
        speeds: Speeds,
        migration: Migration,
        *,
        is_weighted: bool = False,
    ) -> None:
        self.network, self.occupancy, self.trees = network, occupancy, trees
        self.policy, self.speeds, self.migration = policy, speeds, migration
        self.is_weighted = is_weighted
        self.jobs: list[Job] = []
        """That run, in order of placement."""
        self.groups: list[list[Job]] = []
        self.events = 0
        self.builds = 0
        self.releasing: list[tuple[Job, int, float]] = []
        """Trees that were given up, and until when their links are held."""

    def run(self, requests: Sequence[Request], slots: Sequence[int]) -> list[Job]:
        """``slots``: that the simulation would give, one after the other from the end; ended jobs give theirs
        back there."""
        free, queue = list(slots), list(enumerate(requests))
        done: list[Job] = []
        now, ended = 0.0, False
        while True:
            new = []
            while queue:
                number, request = queue[0]
                hosts = FirstFit().place(self.occupancy, request.hosts)
                if hosts is None:
                    break
                queue.pop(0)
                new.append(self._begin(number, request, hosts, free.pop(), now))
            self._build(new, now, ended)
            if not self.jobs:
                return sorted(done, key=lambda job: job.number)
            while True:
                in_order = [job for group in self.groups for job in group]
                job = min(in_order, key=lambda one: one.run.at)
                now = job.run.at
                ended = self._event(job, now)
                if ended:
                    break
            job.finish = now
            self.jobs.remove(job)
            self.occupancy.release(job.hosts)
            self.network.leave(job.slot)
            free.append(job.slot)
            done.append(job)

    def _begin(self, number: int, request: Request, hosts: tuple[int, ...], slot: int, now: float) -> Job:
        times = StepTimes(measured(request.model), self.speeds, hosts=1 if request.hosts == 1 else 2)
        weight = float(request.hosts) if self.is_weighted else 1.0
        run = JobRun(times, start=now, steps_max=request.steps, weight=weight)
        self.occupancy.take(hosts)
        job = Job(number, slot, request, run, hosts, self.network.enter(slot, hosts))
        self.jobs.append(job)
        self.events += 1
        return job

    # -- trees and groups

    def _build(self, new: Sequence[Job], now: float, ended: bool) -> None:
        if new or self.trees.wants_completions:
            seen = [
                TreeJob(
                    job.slot,
                    job.number,
                    job.request.hosts,
                    job.run.times,
                    job.roots,
                    job.tree,
                    job.using if job.run.uses_ina else None,
                    job.request.steps - job.run.steps,
                )
                for job in self.jobs
            ]
            places = [self.jobs.index(job) for job in new]
            self._change(self.trees.build(seen, places, now=now, completed=ended), now)
        self._group()

    def _change(self, trees: Mapping[int, int | None], now: float) -> None:
        """Nobody is granted links before those who had them have released them."""
        self.builds += 1
        changed: list[Job] = []
        for job in self.jobs:
            if job.slot not in trees or trees[job.slot] == job.tree:
                continue
            self._change_one(job, trees[job.slot], now)
            changed.append(job)
        self.releasing = [one for one in self.releasing if one[0] in self.jobs and one[2] > now]
        for job, tree, until in self.releasing:
            for other in changed:
                if self._exclude(job, tree, other, other.tree):
                    other.no_ina_until = max(other.no_ina_until, until)

    def _change_one(self, job: Job, tree: int | None, now: float) -> None:
        """A change that is taken back before it came into effect is none."""
        if job.waits:
            job.migrations -= 1
        is_change = job.had_tree and not (job.run.uses_ina and tree == job.using)
        cost = self.migration.total if job.had_tree else 0.0
        job.migrations += is_change
        job.had_tree, job.tree, job.granted = True, tree, self.builds
        if job.run.uses_ina:
            job.waits, job.downtime_then = tree != job.using, cost
            return
        if cost:
            job.no_ina_until = now + cost
            self._hold(job, now)
        job.using = tree

    def _hold(self, job: Job, now: float) -> None:
        if job.using is not None:
            self.releasing.append((job, job.using, now + self.migration.release))

    def _exclude(self, one: Job, its: int | None, other: Job, others: int | None) -> bool:
        if its is None or others is None or one is other:
            return False
        found = self.network.conflicts_with(one.slot, its, integers([other.slot]), integers([others]))
        return bool(found[0])

    def _group(self) -> None:
        """Everybody with whom somebody of the group conflicts is in it."""
        left, found = list(self.jobs), []
        while left:
            group = [left.pop(0)]
            for member in group:  # grows meanwhile
                near = [one for one in left if self._exclude(member, member.tree, one, one.tree)]
                group += near
                left = [one for one in left if one not in near]
            found.append(sorted(group, key=lambda job: job.number))
        self.groups = found[::-1]

    # -- operations

    def _event(self, job: Job, now: float) -> bool:
        """Whether the job has ended."""
        run = job.run
        self.events += 1
        if run.phase is Phase.BEGINS:
            run.begin(uses_ina=self._decide(job, now))
        elif run.phase is Phase.ENDS:
            used, index = run.uses_ina, run.index
            run.end()
            job.operations.append(Operation(job.number, run.steps, index, used, run.began, now))
            if used and job.waits:
                self._apply(job, now)
        else:
            return not run.end_step()
        return False

    def _apply(self, job: Job, now: float) -> None:
        """The operation that held the old tree has ended; who was given its links waits for their release."""
        for other in self.jobs:
            if other.granted < job.granted:
                continue
            if self.migration.release and self._exclude(job, job.using, other, other.tree):
                other.no_ina_until = max(other.no_ina_until, now + self.migration.release)
        self._hold(job, now)
        job.waits, job.using = False, job.tree
        job.counted += 1
        job.no_ina_until = max(job.no_ina_until, now + job.downtime_then)

    def _decide(self, job: Job, now: float) -> bool:
        if self.policy is Policy.NONE or job.using is None or now < job.no_ina_until:
            return False
        group = next(group for group in self.groups if job in group)
        if any(one.run.uses_ina for one in group):
            return False
        if any(one.waits and self._exclude(one, one.using, job, job.tree) for one in self.jobs):
            return False
        if self.policy is Policy.GREEDY:
            return True
        mine = job.run.next_operation()
        assert mine is not None
        return may_use(mine, [one for other in group if other is not job for one in asks(other)], now)


def asks(job: Job) -> list[NextOperation]:
    """For its next operation, if it may use INA then."""
    found = job.run.next_operation()
    return [] if found is None or found.begin < job.no_ina_until else [found]
