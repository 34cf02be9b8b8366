"""What one job has had summed on a host, by path and size: what ``inaproto report`` is made of.

All-reduces of a job end one after the other. How long one took is counted twice: ``called_ns`` from its call,
and ``busy_ns`` from when the one before it had ended, if that was later, so that nothing is counted for two
all-reduces at once. Paths are compared by the second.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from inaproto.units import Instant, S
from inaproto.wire.messages.client import DonePath

SIZES_MAX: Final = 48
"""Sizes that are told apart, all paths together; the others of a path are one row."""
OTHER_SIZES: Final = -1
REASONS_MAX: Final = 16
REASON_CHARACTERS_MAX: Final = 300


@dataclass(slots=True)
class _Row:
    operations: int = 0
    nbytes: int = 0
    called_ns: int = 0
    busy_ns: int = 0
    busy_squared: float = 0.0
    """Squares of the busy times, in seconds, added up: how much they differ among each other."""

    def add(self, other: _Row) -> None:
        self.operations += other.operations
        self.nbytes += other.nbytes
        self.called_ns += other.called_ns
        self.busy_ns += other.busy_ns
        self.busy_squared += other.busy_squared

    def status(self) -> dict[str, Any]:
        return {
            "operations": self.operations,
            "bytes": self.nbytes,
            "called_s": self.called_ns / S,
            "busy_s": self.busy_ns / S,
            "busy_s_squared": self.busy_squared,
        }


@dataclass(slots=True, eq=False)
class JobTotals:
    """One for each life of a job on this host; ``began``: when its first rank came."""

    job: str
    began: Instant
    run: int = 0
    """Id of the first ring that started, the same on all its hosts; 0: none has."""
    size: int = 0
    """Ranks of the whole job."""
    ranks: int = 0
    """Those of this host."""
    hosts: int = 0
    recoveries: int = 0
    has_ended: bool = False
    kept_in: JobTotals | None = None
    """Where it counts on, once it is forgotten."""
    _last: Instant | None = None
    """When its last all-reduce ended."""
    _rows: dict[tuple[DonePath, int], _Row] = field(default_factory=dict)
    """By path and bytes of one all-reduce."""
    _redone: Counter[tuple[str, str]] = field(default_factory=Counter)
    """All-reduces that a collective library did not finish, by code and reason."""

    @property
    def has_summed(self) -> bool:
        return bool(self._rows or self._redone)

    def rings(self, run: int, *, size: int, ranks: int, hosts: int) -> None:
        """It has a ring. The first one names this life of the job."""
        self.run = self.run or run
        self.size, self.ranks, self.hosts = size, ranks, hosts

    def done(self, path: DonePath, nbytes: int, since: Instant, now: Instant) -> None:
        busy_ns = now - (since if self._last is None else max(since, self._last))
        self._last = now
        self._row(path, nbytes).add(_Row(1, nbytes, now - since, busy_ns, (busy_ns / S) ** 2))

    def redone(self, code: str, reason: str) -> None:
        key = code, reason[:REASON_CHARACTERS_MAX]
        self._redone[key if key in self._redone or len(self._redone) < REASONS_MAX else (code, "others")] += 1

    def take(self, other: JobTotals) -> None:
        """Add what ``other`` has had, of which nothing else is kept."""
        for (path, nbytes), row in other._rows.items():
            self._row(path, nbytes).add(row)

    def _row(self, path: DonePath, nbytes: int) -> _Row:
        key = path, nbytes
        if key not in self._rows and len(self._rows) >= SIZES_MAX:
            key = path, OTHER_SIZES
        return self._rows.setdefault(key, _Row())

    def status(self, now: Instant) -> dict[str, Any]:
        return {
            "job": self.job,
            "run": self.run,
            "size": self.size,
            "ranks": self.ranks,
            "hosts": self.hosts,
            "ended": self.has_ended,
            "began_s_ago": (now - self.began) / S,
            "last_s_ago": None if self._last is None else (now - self._last) / S,
            "recoveries": self.recoveries,
            "paths": [
                {"path": path, "size": nbytes, **row.status()} for (path, nbytes), row in self._rows.items()
            ],
            "redone": [
                {"code": code, "reason": reason, "times": times}
                for (code, reason), times in self._redone.items()
            ],
        }
