"""Jobs that share one switch, one operation with INA at a time: a sharing group alone (MINA, Figure 12)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.planning.turns.job_run import JobRun, Phase
from inaproto_controller.planning.turns.policy import Policy, may_use
from inaproto_controller.simulate.results import Operation


@dataclass(frozen=True, slots=True)
class Shared:
    """What became of the jobs. Steps that have ended count, and the time until then."""

    events: int
    end: float
    """When the last event happened."""
    jobs: Sequence[JobRun]

    @property
    def seconds(self) -> float:
        """Seconds of all jobs' steps."""
        return sum(job.step_start - job.started for job in self.jobs)

    @property
    def plain_seconds(self) -> float:
        """What they would have taken without INA."""
        return sum(job.times.step_plain * job.steps for job in self.jobs)

    @property
    def ina_seconds(self) -> float:
        """What they would have taken with INA for all operations."""
        return sum(job.times.step_ina * job.steps for job in self.jobs)

    @property
    def score(self) -> float | None:
        """INA efficiency score: what INA saved, of what it could; None if it could save nothing."""
        possible = self.plain_seconds - self.ina_seconds
        return None if possible == 0 else (self.plain_seconds - self.seconds) / possible

    @property
    def utilisation(self) -> float:
        """Share of the jobs' time that is operations with INA."""
        return sum(job.ina_seconds for job in self.jobs) / self.seconds


def share(
    jobs: Sequence[StepTimes],
    policy: Policy,
    *,
    until: float,
    weights: Sequence[float] | None = None,
    on_operation: Callable[[Operation], None] | None = None,
) -> Shared:
    """Jobs without end that all start at 0; the first event later than ``until`` is the last.

    ``weights``: of what their operations gain by INA, 1 for all by default.
    Of events at the same time that of the earlier job is first.
    """
    runs = [
        JobRun(times, start=0.0, weight=weight)
        for times, weight in zip(jobs, weights or [1.0] * len(jobs), strict=True)
    ]
    events, now = len(runs), 0.0
    while now <= until:
        number = min(range(len(runs)), key=lambda one: runs[one].at)
        run = runs[number]
        now = run.at
        events += 1
        if run.phase is Phase.BEGINS:
            run.begin(uses_ina=_decide(policy, runs, number, now))
        elif run.phase is Phase.ENDS:
            uses_ina, index = run.uses_ina, run.index
            run.end()
            if on_operation is not None:
                on_operation(Operation(number, run.steps, index, uses_ina, run.began, now))
        else:
            run.end_step()
    return Shared(events, now, runs)


def _decide(policy: Policy, runs: Sequence[JobRun], number: int, now: float) -> bool:
    if policy is Policy.NONE or any(run.uses_ina for run in runs):
        return False
    if policy is Policy.GREEDY:
        return True
    mine = runs[number].next_operation()
    assert mine is not None
    others = (run.next_operation() for other, run in enumerate(runs) if other != number)
    return may_use(mine, (one for one in others if one is not None), now)
