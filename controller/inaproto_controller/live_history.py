"""What the controller has seen happen since it was started: turns, rounds, migrations, fallbacks.

For people who look, and for their metrics: in memory, bounded, and not in the store. A controller that is
started anew begins with nothing, and its page says since when. Who shares a pool tells here what the
coordinator of its group does (:meth:`LiveHistory.acted`); what becomes of trees is read from commits
(:meth:`LiveHistory.committed`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from inaproto.core.sharing_types import Mark, Noted, PoolFree, SharingAction, TurnStands
from inaproto_controller.desired import Desired, Job

TURNS_MAX: Final = 4096
EVENTS_MAX: Final = 256
"""Fallbacks, and migrations, that are remembered each."""
TEXT_MAX: Final = 300
_ABORTS: Final = {
    Mark.ABORTED_UNEQUAL: "unequal",
    Mark.ABORTED_IN_INA: "in_ina",
    Mark.ABORTED_LATE: "late",
    Mark.ABORTED_REFUSED: "refused",
    Mark.ABORTED_CHANGED: "changed",
}
TREE_LOST: Final = "its tree is given up: a switch of it is lost, or is not in the cluster file any more"


@dataclass(frozen=True, slots=True)
class TurnSeen:
    """A job had a pool of slots for itself; times are seconds since 1970."""

    pool: str
    job: str
    epoch: int
    first: int
    """Operation of the job."""
    until: int | None
    """Excluded; None: open."""
    began_at: float
    ended_at: float | None = None
    """All its seats had drained; None: it stands."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """From here on the hosts of a job sum what switches did, or could."""

    job: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class TreeMove:
    """A live job got a tree other than the one that it had."""

    job: str
    old: str
    """Root."""
    new: str
    at: float


class LiveHistory:
    """Not thread-safe: of one Trio program."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self.now = wall_clock
        self.since = wall_clock()
        self._turns: dict[tuple[str, int], TurnSeen] = {}
        """By pool and epoch, in the order in which they began."""
        self.fallbacks: deque[Fallback] = deque(maxlen=EVENTS_MAX)
        self.moves: deque[TreeMove] = deque(maxlen=EVENTS_MAX)
        self.rounds: dict[str, int] = dict.fromkeys(("begun", "committed"), 0)
        self.aborts: dict[str, int] = dict.fromkeys(_ABORTS.values(), 0)
        """By why."""
        self._counts = {"turns": 0, "fallbacks": 0, "migrations": 0}
        self._roots: dict[int, str] = {}
        """Of live jobs, by number: the last tree, though it was given up."""

    # -- what happens

    def acted(self, pool: str, action: SharingAction) -> None:
        """The coordinator of the group that shares ``pool`` did this; what is of no interest here is passed
        over."""
        match action:
            case TurnStands(job, epoch, first, until):
                seen = self._turns.get((pool, epoch))
                if seen is None:
                    self._begin(TurnSeen(pool, job, epoch, first, until, self.now()))
                else:
                    self._turns[pool, epoch] = replace(seen, until=until)
            case PoolFree(epoch):
                seen = self._turns.get((pool, epoch))
                if seen is not None and seen.ended_at is None:
                    self._turns[pool, epoch] = replace(seen, ended_at=self.now())
            case Noted(Mark.ROUND_BEGUN):
                self.rounds["begun"] += 1
            case Noted(Mark.COMMITTED):
                self.rounds["committed"] += 1
            case Noted(mark) if mark in _ABORTS:
                self.aborts[_ABORTS[mark]] += 1
            case _:
                pass

    def _begin(self, turn: TurnSeen) -> None:
        self._counts["turns"] += 1
        self._turns[turn.pool, turn.epoch] = turn
        if len(self._turns) > TURNS_MAX:
            over = next((key for key, one in self._turns.items() if one.ended_at is not None), None)
            del self._turns[next(iter(self._turns)) if over is None else over]

    def fell_back(self, job: str, reason: str) -> None:
        """From now on hosts sum for ``job``."""
        self._counts["fallbacks"] += 1
        self.fallbacks.append(Fallback(job[:TEXT_MAX], reason[:TEXT_MAX], self.now()))

    def committed(self, before: Desired, after: Desired) -> None:
        """Trees that changed are noted."""
        for number, job in after.jobs.items():
            if job is not before.jobs.get(number):
                self._job_changed(before.jobs.get(number), job)
        for number in before.jobs.keys() - after.jobs.keys():
            self._roots.pop(number, None)

    def _job_changed(self, old: Job | None, job: Job) -> None:
        if not job.state.is_live:
            self._roots.pop(job.number, None)
        elif job.tree is not None:
            root = self._roots.get(job.number, job.tree.root)
            changed = old is not None and old.tree not in (None, job.tree)
            if changed or root != job.tree.root:
                self._counts["migrations"] += 1
                self.moves.append(TreeMove(job.spec.name, root, job.tree.root, self.now()))
            self._roots[job.number] = job.tree.root
        elif old is not None and old.tree is not None and job.hosts:
            self.fell_back(job.spec.name, TREE_LOST)

    # -- what is told

    def turns(self, since: float) -> list[TurnSeen]:
        """Those that had not ended then, in the order in which they began."""
        return [one for one in self._turns.values() if one.ended_at is None or one.ended_at > since]

    def status(self) -> dict[str, Any]:
        standing = sum(one.ended_at is None for one in self._turns.values())
        return {
            "since": self.since,
            **self._counts,
            "turns_standing": standing,
            "rounds": dict(self.rounds),
            "aborts": dict(self.aborts),
        }
