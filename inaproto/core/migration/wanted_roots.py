"""Roots at which people want jobs to be summed: on disk, as long as the job is there.

A job that is not reported for a while is over, and one that comes later by the same name is another; whoever
wants that somewhere says so again. For as long as the fabric's root is started anew, nobody is forgotten.

Invariant: what is not on disk yet is planned for by nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from inaproto.units import Instant

ROOTS_MAX: Final = 1024
"""One more takes the place of that which was wished for longest ago."""


class WantedRoots:
    def __init__(self, roots: Mapping[str, str], absent_ns: int) -> None:
        """``absent_ns``: a job that is not reported for so long is over."""
        self.durable = dict(roots)
        """Roots by job, in the order in which people have wished for them."""
        self._newest = self.durable
        """The same, or what is on its way to the disk."""
        self._absent_ns = absent_ns
        self._absent: dict[str, Instant] = {}
        """When a job was missed first."""

    def want(self, job: str, root: str) -> dict[str, str]:
        """What is to be written; an empty root: wherever the plan has it."""
        self._absent.pop(job, None)
        roots = {**self._without({job}), **({job: root} if root else {})}
        while len(roots) > ROOTS_MAX:
            del roots[next(iter(roots))]
        self._newest = roots
        return roots

    def forget(self, there: Collection[str], now: Instant) -> dict[str, str] | None:
        """What is to be written without jobs that are over; None: none is. ``there``: jobs that are not."""
        self._absent = {job: self._absent.get(job, now) for job in self._newest if job not in there}
        over = {job for job, since in self._absent.items() if now - since >= self._absent_ns}
        if not over:
            return None
        self._newest = self._without(over)
        return self._newest

    def persisted(self, roots: dict[str, str]) -> None:
        self.durable = roots

    def newest_is(self, roots: dict[str, str] | None) -> None:
        """What was on its way to the disk has not come there: ``roots`` have, or None, those that are."""
        self._newest = self.durable if roots is None else roots

    def _without(self, jobs: set[str]) -> dict[str, str]:
        return {job: root for job, root in self._newest.items() if job not in jobs}
