"""Spans of how rings come about, where hosts meet: from the first rank that asks, or the ring that ended, on.

In the trace of the ring, as are the spans of its ranks and hosts; it says by which path they sum, and why not
in the switches.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from inaproto.client.ring_names import parse_ring_job
from inaproto.core.rendezvous.events import JobView
from inaproto.core.rendezvous.jobs import Phase
from inaproto.tracing.opening import OF_RING, trace_id

if TYPE_CHECKING:
    from inaproto.tracing.spans import Tracing


class RingSpans:
    """``look`` whenever the rendezvous may have changed its mind."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._since: dict[str, int] = {}
        """Jobs that have no ring that runs, with the time (wall clock, ns) since when."""

    def look(self, jobs: Iterable[JobView]) -> None:
        here = {job.name: job for job in jobs}
        waits = {name for name, job in here.items() if job.phase != Phase.RUNNING.value}
        for name in self._since.keys() - waits:
            began = self._since.pop(name)
            if name in here:
                self._started(here[name], began)
        for name in waits - self._since.keys():
            self._since[name] = time.time_ns()

    def _started(self, job: JobView, began: int) -> None:
        name = parse_ring_job(job.name)
        said: dict[str, Any] = {
            "inaproto.job": name.job,
            "inaproto.size": job.size,
            "inaproto.ring_id": job.ring_id,
            "inaproto.path": job.path,
        }
        told = {"inaproto.fallback": job.fallback, "inaproto.costs": job.costs}
        if job.recoveries:
            told["inaproto.reason"] = job.last_recovery
        said |= {key: text for key, text in told.items() if text}
        trace = trace_id(name.job, job.ring_id, OF_RING)
        self._tracing.start("switch ring", self._tracing.WORKS, said, trace_id=trace, start_ns=began).end()
