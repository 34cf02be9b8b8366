"""What a host daemon has done since it was started, over all jobs that it ever had; only ever more."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from inaproto.daemon.host.job_totals import JobTotals
from inaproto.units import Instant, S
from inaproto.wire.messages.client import DonePath

JOBS_MAX: Final = 64
"""Jobs that are remembered one by one: the status of a host has to fit into a message."""


class HostTotals:
    """One for a daemon: its rings, which end, count here.

    Invariant: what the jobs of :meth:`jobs` and those that were forgotten have done adds up to the totals.
    """

    def __init__(self) -> None:
        self.recoveries = 0
        """Rings that ended in the middle of their jobs."""
        self.redone: Counter[str] = Counter()
        """All-reduces that a collective library tried, and that were redone without it, by code."""
        self._begun = 0
        self._operations: Counter[DonePath] = Counter()
        self._bytes: Counter[DonePath] = Counter()
        self._busy_ns: Counter[DonePath] = Counter()
        self._jobs: list[JobTotals] = []
        """In the order in which they began here."""
        self._forgotten = JobTotals("", Instant(0))

    def begin(self, job: str, now: Instant) -> JobTotals:
        """The record of a job that begins here; one of the same name that was here before keeps its own."""
        self._begun += 1
        found = JobTotals(job, now)
        self._jobs.append(found)
        if len(self._jobs) > JOBS_MAX:
            over = next((one for one in self._jobs if one.has_ended), self._jobs[0])
            self._jobs.remove(over)
            self._forgotten.take(over)
            over.kept_in = self._forgotten
        return found

    def done(self, record: JobTotals, path: DonePath, nbytes: int, since: Instant, now: Instant) -> None:
        """An all-reduce of ``nbytes`` has ended ``now``, which its first rank here called at ``since``."""
        self._operations[path] += 1
        self._bytes[path] += nbytes
        self._busy_ns[path] += now - since
        (record.kept_in or record).done(path, nbytes, since, now)

    def status(self) -> dict[str, Any]:
        return {
            "jobs": self._begun,
            "operations_by_path": dict(self._operations),
            "bytes_by_path": dict(self._bytes),
            "seconds_by_path": {path: ns / S for path, ns in self._busy_ns.items()},
            "recoveries": self.recoveries,
            "redone_by_code": dict(sorted(self.redone.items())),
        }

    def jobs(self, now: Instant) -> dict[str, Any]:
        """For ``inaproto report``: jobs that have summed something here, the newest last."""
        return {
            "jobs": [one.status(now) for one in self._jobs if one.has_summed],
            "forgotten": self._forgotten.status(now)["paths"],
        }
