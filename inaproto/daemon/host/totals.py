"""What a host daemon has done since it was started, over all rings that it ever had; only ever more."""

from __future__ import annotations

from collections import Counter
from typing import Any

from inaproto.units import S
from inaproto.wire.messages.client import DonePath


class HostTotals:
    """One for a daemon: its rings, which end, count here."""

    def __init__(self) -> None:
        self.recoveries = 0
        """Rings that ended in the middle of their jobs."""
        self.redone: Counter[str] = Counter()
        """All-reduces that a collective library tried, and that were redone without it, by code."""
        self._operations: Counter[DonePath] = Counter()
        self._bytes: Counter[DonePath] = Counter()
        self._busy_ns: Counter[DonePath] = Counter()

    def done(self, path: DonePath, nbytes: int, duration_ns: int) -> None:
        """An all-reduce of ``nbytes`` on this host, ``duration_ns`` after its first rank here called it."""
        self._operations[path] += 1
        self._bytes[path] += nbytes
        self._busy_ns[path] += duration_ns

    def status(self) -> dict[str, Any]:
        return {
            "operations_by_path": dict(self._operations),
            "bytes_by_path": dict(self._bytes),
            "seconds_by_path": {path: ns / S for path, ns in self._busy_ns.items()},
            "recoveries": self.recoveries,
            "redone_by_code": dict(sorted(self.redone.items())),
        }
