"""Spans of what a controller decides of jobs: one for each state that a job was in, one trace for each job.

A state's span is made when it is over, from commits alone. One that began under another leader has none.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from inaproto.tracing.opening import trace_id
from inaproto_controller.cluster.desired import Desired, Job, JobState

if TYPE_CHECKING:
    from inaproto.tracing.spans import Tracing

OF_JOB: Final = -2
"""In place of an operation's number, with that of the job in place of its first ring's."""
EVENTS_MAX: Final = 64


@dataclass(slots=True)
class _Since:
    """Times are those of the wall clock, ns."""

    state: JobState
    began: int
    events: list[tuple[str, int, dict[str, str]]] = field(default_factory=list)


class JobSpans:
    """Told of each commit."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._since: dict[int, _Since] = {}
        """By the job's number."""

    def committed(self, before: Desired, after: Desired) -> None:
        for number, job in after.jobs.items():
            old = before.jobs.get(number)
            if job is not old:
                self._changed(old, job, time.time_ns())
        for number in before.jobs.keys() - after.jobs.keys():
            self._since.pop(number, None)

    def _changed(self, old: Job | None, job: Job, now: int) -> None:
        since = self._since.get(job.number)
        if old is not None and since is not None and since.state is old.state:
            if old.tree != job.tree and len(since.events) < EVENTS_MAX:
                root = "" if job.tree is None else job.tree.root
                since.events.append(("tree" if root else "no tree", now, {"root": root} if root else {}))
            if old.state is not job.state:
                self._ended(old, job, since)
        if old is None or old.state is not job.state:
            self._since.pop(job.number, None)
            if job.state.is_live:
                self._since[job.number] = _Since(job.state, now)

    def _ended(self, old: Job, job: Job, since: _Since) -> None:
        said: dict[str, Any] = {
            "inaproto.job": job.spec.name,
            "inaproto.job_number": job.number,
            "inaproto.hosts": list(job.hosts),
            "inaproto.next_state": job.state.value,
        }
        told = {"inaproto.reason": old.why, "inaproto.next_reason": job.why}
        span = self._tracing.start(
            f"controller {old.state.value}",
            self._tracing.WORKS,
            said | {key: text for key, text in told.items() if text},
            trace_id=trace_id(job.spec.name, job.number, OF_JOB),
            start_ns=since.began,
        )
        for name, at, attributes in since.events:
            span.add_event(name, attributes, at)
        span.end()
