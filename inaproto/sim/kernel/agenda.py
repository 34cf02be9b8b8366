"""Virtual time: what happens next. Equal times keep the order in which they were planned."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from inaproto.units import Instant


class Agenda:
    """Calls to make, each at its time. Nothing is ever cancelled: what is out of date finds so itself."""

    def __init__(self) -> None:
        self.now = Instant(0)
        self.heap: list[tuple[Any, int, Callable[[Any], None], Any]] = []
        self._sequence = 0

    def at(self, when: int, act: Callable[[Any], None], argument: Any = None) -> None:
        """Call ``act(argument)`` at ``when``, or now if that is past."""
        self._sequence = sequence = self._sequence + 1
        if when < self.now:  # noqa: PLR1730  ``max`` takes three times as long, and this is every event's way
            when = self.now
        heappush(self.heap, (when, sequence, act, argument))

    def after(self, delay_ns: int, act: Callable[[Any], None], argument: Any = None) -> None:
        self.at(self.now + delay_ns, act, argument)

    def run_next(self) -> bool:
        """Make the next call; False if there is none."""
        if not self.heap:
            return False
        self.now, _, act, argument = heappop(self.heap)
        act(argument)
        return True
