"""Virtual time: what happens next. Equal times keep the order in which they were planned."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from inaproto.units import Instant


class Agenda:
    """Calls to make, each at its time. Nothing is ever cancelled: what is out of date finds so itself."""

    def __init__(self) -> None:
        self.now = Instant(0)
        self._heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, when: int, act: Callable[[Any], None], argument: Any = None) -> None:
        """Call ``act(argument)`` at ``when``, or now if that is past."""
        self._sequence += 1
        heapq.heappush(self._heap, (max(when, self.now), self._sequence, act, argument))

    def after(self, delay_ns: int, act: Callable[[Any], None], argument: Any = None) -> None:
        self.at(self.now + delay_ns, act, argument)

    def run_next(self) -> bool:
        """Make the next call; False if there is none."""
        if not self._heap:
            return False
        at, _, act, argument = heapq.heappop(self._heap)
        self.now = Instant(at)
        act(argument)
        return True

    @property
    def next_at(self) -> int | None:
        return self._heap[0][0] if self._heap else None
