"""Earliest of many timers, one for each queue pair."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from inaproto.units import Instant


class Deadlines:
    """One deadline for each key at most; ties go to the smaller key.

    Changed deadlines leave stale entries in the heap, which are skipped when they come up and swept
    when they outnumber the live ones.
    """

    def __init__(self) -> None:
        self._at: dict[int, Instant] = {}
        self._heap: list[tuple[Instant, int]] = []

    def arm(self, key: int, at: Instant | None) -> None:
        """Set the key's deadline; None disarms it."""
        if at is None:
            self._at.pop(key, None)
        elif self._at.get(key) != at:
            self._at[key] = at
            heappush(self._heap, (at, key))
            if len(self._heap) > 64 + 2 * len(self._at):
                self._heap = [(live, owner) for owner, live in self._at.items()]
                heapify(self._heap)

    @property
    def keys(self) -> Iterable[int]:
        """Those that have a deadline."""
        return self._at

    @property
    def earliest(self) -> Instant | None:
        while self._heap:
            at, key = self._heap[0]
            if self._at.get(key) == at:
                return at
            heappop(self._heap)
        return None

    def due(self, now: Instant) -> list[int]:
        """Keys whose deadline has come; they are disarmed."""
        keys = []
        while (at := self.earliest) is not None and at <= now:
            key = heappop(self._heap)[1]
            del self._at[key]
            keys.append(key)
        return keys
