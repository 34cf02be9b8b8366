"""How long all-reduces of a job have waited at this host for a decision on their turn, rather than started.

What a rule of sharing costs those who share (MINA section IV-B): under equal indices a seat that has voted
starts nothing, by index only an operation that the decision may concern waits.
"""

from __future__ import annotations

from typing import Any

from inaproto.units import Instant, OpIndex


class TurnWaits:
    """One operation waits at a time: they start in order."""

    def __init__(self) -> None:
        self._waiting: tuple[OpIndex, Instant] | None = None
        self._count = self._total_ns = self._max_ns = 0

    def began(self, op_index: OpIndex, now: Instant) -> None:
        """It is told to wait; again, perhaps."""
        if self._waiting is None or self._waiting[0] != op_index:
            self._waiting = op_index, now

    def ended(self, now: Instant) -> None:
        """The operation that waited, if one did, starts or never will."""
        if self._waiting is None:
            return
        ns = max(0, now - self._waiting[1])
        self._waiting = None
        self._count += 1
        self._total_ns += ns
        self._max_ns = max(self._max_ns, ns)

    def status(self) -> dict[str, Any]:
        """For ``inaproto status``."""
        return {"count": self._count, "total_ns": self._total_ns, "max_ns": self._max_ns}
