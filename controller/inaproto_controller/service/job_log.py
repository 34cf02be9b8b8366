"""What becomes of jobs, in the controller's log: who looks there for why a job failed finds it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from inaproto_controller.cluster.desired import Change, Desired, Job, JobState, SetJob

log = logging.getLogger("inaproto.controller")


def log_jobs(before: Desired, after: Desired, changes: Sequence[Change]) -> None:
    """A line for each job whose state is another one, or that has lost some of its ranks and goes on."""
    for number in dict.fromkeys(change.job.number for change in changes if isinstance(change, SetJob)):
        old, job = before.jobs.get(number), after.jobs.get(number)
        if job is None:
            continue
        if (
            old is None
            or old.state is not job.state
            or (job.state is JobState.RUNNING and old.why != job.why)
        ):
            is_amiss = job.state is JobState.FAILED or (job.state is JobState.RUNNING and job.why)
            log.log(logging.WARNING if is_amiss else logging.INFO, "job %s (number %d) %s", *_told(job))


def _told(job: Job) -> tuple[str, int, str]:
    where = f" on {', '.join(job.hosts)}" if job.hosts and job.state.is_live else ""
    return job.spec.name, job.number, f"is {job.state.value}{where}" + (f": {job.why}" if job.why else "")
