"""What clients of the job API were answered: every later answer must agree with it, whoever gives it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

OVER: Final = frozenset({"ended", "cancelled", "failed"})
REMEMBERED: Final = 800
"""Jobs that are over; the controller forgets those before its last thousand."""


@dataclass(slots=True)
class Promise:
    """A job, as it was told last."""

    number: int
    known_at: float
    """When that was."""
    token: str = ""
    revision: int = 0
    over: str = ""
    """As what."""
    hosts: tuple[str, ...] = ()
    is_cancelled: bool = False
    """It was asked for, and answered."""


@dataclass(slots=True)
class Promises:
    jobs: dict[str, Promise] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def submitted(self, name: str, answer: Mapping[str, Any], asked_at: float, now: float) -> None:
        """``asked_at``: when the question began: what came meanwhile may be newer than its answer."""
        promise = self._told(name, answer["job"], asked_at, now)
        self.counts["submitted"] += not promise.token
        if promise.token and promise.token != answer["token"]:
            self.faults.append(f"job {name}: its token is another one now")
        promise.token = answer["token"]

    def cancelled(self, name: str, job: Mapping[str, Any], asked_at: float, now: float) -> None:
        promise = self._told(name, job, asked_at, now)
        self.counts["cancelled"] += not promise.is_cancelled
        promise.is_cancelled = True
        if job["state"] not in OVER:
            self.faults.append(f"job {name}: was cancelled, and is {job['state']}")

    def looked(self, job: Mapping[str, Any], asked_at: float, now: float) -> None:
        if job["name"] in self.jobs:
            self._told(job["name"], job, asked_at, now)

    def listed(self, jobs: Sequence[Mapping[str, Any]], asked_at: float, now: float) -> None:
        """All that there are."""
        there = {job["name"]: job for job in jobs}
        self.counts["lists checked"] += 1
        for name, promise in list(self.jobs.items()):
            if name in there:
                self._told(name, there[name], asked_at, now)
                self.counts["promises checked"] += 1
            elif promise.known_at < asked_at:
                self.faults.append(f"job {name}, number {promise.number}: was promised, and is not there")
                del self.jobs[name]
        over = [name for name, promise in self.jobs.items() if promise.over]
        for name in over[:-REMEMBERED]:
            del self.jobs[name]

    def _told(self, name: str, job: Mapping[str, Any], asked_at: float, now: float) -> Promise:
        promise = self.jobs.setdefault(name, Promise(job["number"], asked_at))
        if job["number"] != promise.number:
            self.faults.append(f"job {name}: was number {promise.number}, and is number {job['number']}")
        if asked_at < promise.known_at:
            return promise
        self._compare(name, promise, job)
        state, hosts = job["state"], tuple(job["hosts"])
        promise.revision, promise.known_at = max(promise.revision, job["revision"]), now
        promise.over = promise.over or (state if state in OVER else "")
        promise.hosts = promise.hosts or hosts
        return promise

    def _compare(self, name: str, promise: Promise, job: Mapping[str, Any]) -> None:
        state, hosts = job["state"], tuple(job["hosts"])
        if job["revision"] < promise.revision:
            self.faults.append(f"job {name}: revision {job['revision']} after {promise.revision}")
        if promise.over and state != promise.over:
            self.faults.append(f"job {name}: was {promise.over}, and is {state}")
        if promise.is_cancelled and state not in OVER:
            self.faults.append(f"job {name}: was cancelled, and is {state}")
        if promise.hosts and hosts != promise.hosts:
            self.faults.append(f"job {name}: had hosts {promise.hosts}, and has {hosts}: {job['why']}")
        if state == "failed" and not promise.over:
            self.faults.append(f"job {name}: failed: {job['why']}")
