"""What a simulation found: jobs, and the measures of MINA's section V that follow from them.

Seconds are those of the simulated cluster. A measure that is undefined is None, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

_ROUNDING: Final = 1e-9
"""Rounding of a job's time, relative: many steps are added up."""


@dataclass(frozen=True, slots=True)
class JobResult:
    number: int
    """Number of its request."""
    model: str
    hosts: int
    steps: int
    """Whole ones that it took."""
    is_finished: bool
    arrival: float
    start: float
    """Start of service."""
    finish: float
    """End of the last whole step."""
    plain_seconds: float
    """Seconds that its steps take without INA, alone."""
    possible_seconds: float
    """... with INA for all operations."""
    ina_seconds: float
    """In operations with INA."""
    ina_switch_seconds: float
    """... times the switches of its tree."""
    migrations: int
    """Changes of its tree after its first."""
    migrations_counted: int
    """Those that waited for an operation's end: all that the published simulator counts."""
    downtime: float
    """Charged for them: without INA."""
    placed_on: tuple[int, ...]
    """Hosts; where it was last, if it was interrupted."""
    restarts: int = 0
    """Because a host of it failed."""
    steps_lost: int = 0
    """Whole ones that it had to repeat for that."""

    def after(self, before: JobResult) -> JobResult:
        """This part of a job, and what became of it before it was interrupted; ``steps`` count already."""
        return replace(
            self,
            start=before.start,
            ina_seconds=before.ina_seconds + self.ina_seconds,
            ina_switch_seconds=before.ina_switch_seconds + self.ina_switch_seconds,
            migrations=before.migrations + self.migrations,
            migrations_counted=before.migrations_counted + self.migrations_counted,
            downtime=before.downtime + self.downtime,
            restarts=before.restarts,
            steps_lost=before.steps_lost,
        )

    @property
    def seconds(self) -> float:
        """Job completion time: from start of service."""
        return self.finish - self.start

    @property
    def queued(self) -> float:
        return self.start - self.arrival

    def as_dict(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "model": self.model,
            "hosts": self.hosts,
            "steps": self.steps,
            "finished": self.is_finished,
            "arrival_s": self.arrival,
            "start_s": self.start,
            "finish_s": self.finish,
            "plain_s": self.plain_seconds,
            "all_ina_s": self.possible_seconds,
            "in_ina_s": self.ina_seconds,
            "migrations": self.migrations,
            "downtime_s": self.downtime,
            "restarts": self.restarts,
            "steps_lost": self.steps_lost,
            "placed_on": list(self.placed_on),
        }


@dataclass(frozen=True, slots=True)
class Operation:
    """An all-reduce that has ended."""

    job: int
    """Number of its request."""
    step: int
    """Number of the job's step; those that a failure took are counted again."""
    index: int
    uses_ina: bool
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Moment:
    """The cluster after a change of who has which hosts and trees."""

    at: float
    running: int
    hosts_busy: int
    hosts_down: int
    with_tree: int
    groups: int
    largest_group: int
    queued: int


@dataclass(frozen=True, slots=True)
class Result:
    jobs: Sequence[JobResult]
    """In the order of requests; those that were never placed are left out."""
    end: float
    """When the last event happened."""
    events: int
    hosts: int
    switches: int
    unplaced: int = 0
    """Requests that no host was found for."""
    tree_builds: int = 0
    moments: Sequence[Moment] = ()

    # -- INA

    @property
    def seconds(self) -> float:
        return sum(job.seconds for job in self.jobs)

    @property
    def plain_seconds(self) -> float:
        return sum(job.plain_seconds for job in self.jobs)

    @property
    def possible_seconds(self) -> float:
        return sum(job.possible_seconds for job in self.jobs)

    @property
    def uninterrupted(self) -> Sequence[JobResult]:
        """Jobs that lost no host: of others nobody knows what they would have taken without INA."""
        return [job for job in self.jobs if not job.restarts]

    @property
    def score(self) -> float | None:
        """INA efficiency score: what INA saved of what it could, for jobs that lost no host.

        None if it could save nothing.
        """
        return _share(_saved(self.uninterrupted), _possible(self.uninterrupted))

    @property
    def weighted_score(self) -> float | None:
        """The same, each job's seconds times its hosts."""
        saved = sum((job.plain_seconds - job.seconds) * job.hosts for job in self.uninterrupted)
        possible = sum((job.plain_seconds - job.possible_seconds) * job.hosts for job in self.uninterrupted)
        return _share(saved, possible)

    @property
    def saved_mean(self) -> float | None:
        """Seconds of job completion time that INA saved, per job that lost no host."""
        return _share(_saved(self.uninterrupted), len(self.uninterrupted))

    @property
    def saved_share(self) -> float | None:
        """... as a share of what these jobs take without INA."""
        jobs = self.uninterrupted
        return _share(_saved(jobs), sum(job.plain_seconds for job in jobs))

    @property
    def plain_mean(self) -> float | None:
        """Seconds that these jobs take without INA, per job."""
        jobs = self.uninterrupted
        return _share(sum(job.plain_seconds for job in jobs), len(jobs))

    @property
    def utilisation(self) -> float | None:
        """Share of the jobs' time that is operations with INA."""
        return _share(sum(job.ina_seconds for job in self.jobs), self.seconds)

    @property
    def switch_utilisation(self) -> float | None:
        return _share(sum(job.ina_switch_seconds for job in self.jobs), self.end * self.switches)

    # -- the cluster

    @property
    def cluster_utilisation(self) -> float | None:
        return _share(sum(job.seconds * job.hosts for job in self.jobs), self.end * self.hosts)

    @property
    def seconds_mean(self) -> float | None:
        return _share(self.seconds, len(self.jobs))

    @property
    def queued_mean(self) -> float | None:
        return _share(sum(job.queued for job in self.jobs), len(self.jobs))

    @property
    def seconds_with_queue_mean(self) -> float | None:
        return _share(sum(job.finish - job.arrival for job in self.jobs), len(self.jobs))

    @property
    def migrations(self) -> int:
        return sum(job.migrations for job in self.jobs)

    @property
    def migrations_counted(self) -> int:
        return sum(job.migrations_counted for job in self.jobs)

    @property
    def downtime(self) -> float:
        return sum(job.downtime for job in self.jobs)

    @property
    def fairness(self) -> float | None:
        """Jain's index of how much of its possible gain each job got that could gain; 1 if all alike.

        None if nobody gained or lost more than rounding: noise is shared by chance.
        """
        shares = [
            _gained(job) / (job.plain_seconds - job.possible_seconds)
            for job in self.uninterrupted
            if job.plain_seconds > job.possible_seconds
        ]
        squares = sum(share * share for share in shares)
        return _share(sum(shares) ** 2, len(shares) * squares)

    def by_model(self) -> dict[str, Result]:
        """The same measures for the jobs of each model."""
        models = sorted({job.model for job in self.jobs})
        return {
            model: Result(
                [job for job in self.jobs if job.model == model], self.end, 0, self.hosts, self.switches
            )
            for model in models
        }

    def as_dict(self) -> dict[str, Any]:
        return {
            "jobs": len(self.jobs),
            "unplaced": self.unplaced,
            "score": self.score,
            "weighted_score": self.weighted_score,
            "saved_s_mean": self.saved_mean,
            "saved_share": self.saved_share,
            "jct_s_mean": self.seconds_mean,
            "queued_s_mean": self.queued_mean,
            "jct_with_queue_s_mean": self.seconds_with_queue_mean,
            "utilisation": self.utilisation,
            "switch_utilisation": self.switch_utilisation,
            "cluster_utilisation": self.cluster_utilisation,
            "migrations": self.migrations,
            "migrations_counted": self.migrations_counted,
            "downtime_s": self.downtime,
            "fairness": self.fairness,
            "restarts": sum(job.restarts for job in self.jobs),
            "steps_lost": sum(job.steps_lost for job in self.jobs),
            "tree_builds": self.tree_builds,
            "end_s": self.end,
            "events": self.events,
        }


def _saved(jobs: Sequence[JobResult]) -> float:
    return sum(job.plain_seconds for job in jobs) - sum(job.seconds for job in jobs)


def _possible(jobs: Sequence[JobResult]) -> float:
    return sum(job.plain_seconds for job in jobs) - sum(job.possible_seconds for job in jobs)


def _gained(job: JobResult) -> float:
    """Seconds."""
    gained = job.plain_seconds - job.seconds
    return 0.0 if abs(gained) < _ROUNDING * job.plain_seconds else gained


def _share(part: float, whole: float) -> float | None:
    return None if whole == 0 else part / whole
