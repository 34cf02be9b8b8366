"""A seat of an elastic job is of all that are there; with the last one the job is over for its controller.

The account is of processes, whatever they are called in which job: who has begun, and how each ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inaproto.core.grants.verdict import Over
from inaproto.sim.frames.checkers.checker import Checker
from inaproto.sim.frames.host.elastic_process import IN_ORDER, UNDER_WAY
from inaproto.sim.kernel.violated import Violated

if TYPE_CHECKING:
    from inaproto.sim.frames.host.elastic_process import ElasticProcess
    from inaproto.sim.frames.host.host import SimHost
    from inaproto.sim.frames.seats import SeatedJob
    from inaproto.sim.frames.world import World
    from inaproto.wire.messages.controller import HoldRecord


@dataclass
class _Account:
    """Of one attempt of a job on a host, in one life of its daemon."""

    begun: set[ElasticProcess] = field(default_factory=set)
    ended: set[ElasticProcess] = field(default_factory=set)
    lost: set[ElasticProcess] = field(default_factory=set)

    @property
    def phase(self) -> str:
        if self.begun - self.ended - self.lost:
            return "running"
        return "ended" if self.ended else "failed" if self.lost else "held"


class SeatsCounted(Checker):
    name = "seats are of who is there"

    def begin(self, world: World) -> None:
        self._world = world
        self._accounts: dict[tuple[str, int, int], _Account] = {}
        """By job, attempt and host."""
        self._finished: set[tuple[str, int]] = set()
        """Attempts of which a process has ended in order, on whichever host."""

    def _of(self, process: ElasticProcess) -> _Account | None:
        job = self._world.seats.jobs.get(process.job.root.name)
        if job is None:
            return None
        key = job.name, job.attempt, process.host.number
        return self._accounts.setdefault(key, _Account())

    def process_changed(self, process: ElasticProcess) -> None:
        account = self._of(process)
        if account is None:
            return
        if process.state in UNDER_WAY:
            account.begun.add(process)
        elif process in account.begun:
            (account.ended if process.state in IN_ORDER else account.lost).add(process)
            if process.state in IN_ORDER:
                job = self._world.seats.jobs[process.job.root.name]
                self._finished.add((job.name, job.attempt))

    def seats_forgotten(self, host: SimHost) -> None:
        for key in [key for key in self._accounts if key[2] == host.number]:
            del self._accounts[key]

    def seats_reported(self, host: SimHost, holds: Mapping[int, HoldRecord]) -> None:
        for job in self._world.seats.jobs.values():
            hold = holds.get(job.number(host.number))
            if hold is None:
                continue
            account = self._accounts.get((job.name, job.attempt, host.number), _Account())
            found = hold.phase, bool(hold.reason)
            if found != (account.phase, bool(account.lost)):
                raise Violated(
                    self.name,
                    f"{host} says that its seat of {job.token} is {hold.phase} ({hold.reason or 'no loss'}); "
                    f"of its processes {len(account.begun)} have begun, {len(account.ended)} ended in order "
                    f"and {len(account.lost)} were lost",
                )

    def nobody_goes_on(self, job: SeatedJob) -> None:
        found = self._world.seats.as_if_heard(job)
        if not isinstance(found, Over):
            raise Violated(self.name, f"nobody of {job.token} goes on, and it is not over: {found}")

    def job_over(self, job: SeatedJob) -> None:
        assert job.over is not None
        for number in job.elastic.root.positions:
            account = self._accounts.get((job.name, job.attempt, number), _Account())
            if self._world.seats.seen[number].presence == "gone":
                continue
            if account.phase == "running":
                raise Violated(self.name, f"{job.token} is over, and goes on on {self._world.hosts[number]}")
            if account.phase == "ended" and job.over.has_failed:
                raise Violated(
                    self.name, f"{job.token} has failed, and has ended on {self._world.hosts[number]}"
                )
        if not job.over.has_failed and (job.name, job.attempt) not in self._finished:
            raise Violated(self.name, f"{job.token} has ended, and none of its ranks did so")

    def end(self, world: World) -> None:
        for job in world.seats.jobs.values():
            if job.over is None:
                seats = {world.hosts[number].name: seen for number, seen in world.seats.seen.items()}
                raise Violated(
                    self.name, f"{job.token} is finished, and not over for its controller: {seats}"
                )
