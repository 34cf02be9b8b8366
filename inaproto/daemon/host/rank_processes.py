"""The processes that have been ranks here, and what each was told before it went: who of a job failed first.

A process that goes, and had been told nothing, goes by itself; one that goes when its job has failed does so
because of that, as far as can be seen here. Whoever has started them reads it in the status, and knows his
own by their session (``man setsid``), in which what they start is, too.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from inaproto.units import Instant, S

PROCESSES_MAX: Final = 256
"""The status of a host has to fit into a message."""
TOLD_CHARACTERS_MAX: Final = 300


@dataclass(slots=True, eq=False)
class RankProcess:
    """One connection of a process as a rank of a job; it may have others."""

    job: str
    rank: int
    session: int
    """Its process's session; 0: not known, as of one in another PID namespace."""
    joined: Instant
    told: str = ""
    """The error by which its job cannot go on, name and words, if it heard that before it went."""
    has_gone: bool = False

    def tell(self, why: str) -> None:
        """The first word counts."""
        self.told = self.told or why[:TOLD_CHARACTERS_MAX]


class RankProcesses:
    """Of one host daemon, over all its jobs."""

    def __init__(self) -> None:
        self._known: list[RankProcess] = []

    def add(self, job: str, rank: int, pid: int, now: Instant) -> RankProcess:
        session = 0
        if pid:
            with suppress(OSError):  # it has ended
                session = os.getsid(pid)
        if len(self._known) == PROCESSES_MAX:
            self._forget_one()
        found = RankProcess(job, rank, session, now)
        self._known.append(found)
        return found

    def _forget_one(self) -> None:
        """The oldest that has gone, or, where all are there, the oldest: a rank that makes and closes
        communicators is not to be forgotten for these."""
        self._known.remove(next((one for one in self._known if one.has_gone), self._known[0]))

    def status(self, now: Instant) -> list[dict[str, Any]]:
        return [
            {
                "job": one.job,
                "rank": one.rank,
                "session": one.session,
                "joined_s_ago": (now - one.joined) / S,
                "told": one.told,
                "gone": one.has_gone,
            }
            for one in self._known
        ]
