"""Which ways jobs were summed by, and why not by switches: the rendezvous forgets a job with its end.

For ``inaproto report``. A way is a path with the reason for it. A job that comes back has a record of its
own, as on hosts (:mod:`inaproto.daemon.host.job_totals`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from inaproto.core.rendezvous.events import JobView
from inaproto.core.rendezvous.jobs import Phase
from inaproto.units import Instant, S

JOBS_MAX: Final = 64
WAYS_MAX: Final = 24
REASON_CHARACTERS_MAX: Final = 300
OTHERS: Final = "other reasons"


@dataclass(slots=True)
class _Way:
    since: Instant
    """When it was taken last."""
    times: int = 0
    lasted_ns: int = 0


@dataclass(slots=True)
class _Ways:
    job: str
    run: int = 0
    """Id of the first ring that started, as hosts know it."""
    recoveries: int = 0
    ended: Instant | None = None
    now_by: tuple[str, str] | None = None
    """Path and reason."""
    ways: dict[tuple[str, str], _Way] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    """Why its rings ended, with another one after them, and how often."""

    def take(self, path: str, reason: str, now: Instant) -> None:
        key = path, reason[:REASON_CHARACTERS_MAX]
        if key not in self.ways and len(self.ways) >= WAYS_MAX:
            key = path, OTHERS
        if key != self.now_by:
            self.leave(now)
            way = self.ways.setdefault(key, _Way(now))
            way.since, way.times, self.now_by = now, way.times + 1, key

    def leave(self, now: Instant) -> None:
        if self.now_by is not None:
            way = self.ways[self.now_by]
            way.lasted_ns += now - way.since
            self.now_by = None

    def recovered(self, count: int, reason: str) -> None:
        new, self.recoveries = count - self.recoveries, count
        if new > 0:
            text = reason[:REASON_CHARACTERS_MAX]
            key = text if text in self.ends or len(self.ends) < WAYS_MAX else OTHERS
            self.ends[key] = self.ends.get(key, 0) + new

    def status(self, now: Instant) -> dict[str, Any]:
        return {
            "job": self.job,
            "run": self.run,
            "ended": self.ended is not None,
            "ended_s_ago": None if self.ended is None else (now - self.ended) / S,
            "recoveries": self.recoveries,
            "ways": [
                {
                    "path": path,
                    "reason": reason,
                    "times": way.times,
                    "lasted_s": (way.lasted_ns + (now - way.since if key == self.now_by else 0)) / S,
                }
                for key, way in self.ways.items()
                for path, reason in [key]
            ],
            "ring_ends": [{"reason": reason, "times": times} for reason, times in self.ends.items()],
        }


class JobWays:
    """``look`` whenever the rendezvous may have changed its mind."""

    def __init__(self) -> None:
        self._live: dict[str, _Ways] = {}
        self._over: list[_Ways] = []

    def look(self, jobs: Iterable[JobView], now: Instant) -> None:
        here = {job.name: job for job in jobs if job.ring_id}
        for name in [name for name in self._live if name not in here]:
            over = self._live.pop(name)
            over.leave(now)
            over.ended = now
            self._over = [*self._over, over][-JOBS_MAX:]
        for name, job in here.items():
            ways = self._live.setdefault(name, _Ways(name))
            if job.phase == Phase.RUNNING.value:
                ways.run = ways.run or job.ring_id
            ways.take(job.path, job.fallback, now)
            ways.recovered(job.recoveries, job.last_recovery)

    def status(self, now: Instant) -> list[dict[str, Any]]:
        """The newest last, those that live behind those that are over."""
        return [ways.status(now) for ways in (*self._over, *self._live.values())]
