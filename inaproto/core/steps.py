"""For whoever drives a core, in real or in virtual time: events one after the other.

Performing an action may cause an event at once (an accelerator refuses the ring that it is told of), in the
middle of a loop over actions. Such an event waits until that step has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

E = TypeVar("E")


class Steps(Generic[E]):
    """Handles events one after the other: what a step causes waits until that step has ended."""

    def __init__(self, step: Callable[[E], None]) -> None:
        self._step = step
        self._events: deque[E] = deque()
        self._is_stepping = False

    @property
    def is_stepping(self) -> bool:
        """A step is under way, and what it asks for may not all be done."""
        return self._is_stepping

    def clear(self) -> None:
        """Forget what waits."""
        self._events.clear()

    def post(self, event: E) -> bool:
        """Step now, or after the step under way. Returns whether nothing is left to be done."""
        self._events.append(event)
        if self._is_stepping:
            return False
        self._is_stepping = True
        try:
            while self._events:
                self._step(self._events.popleft())
        finally:
            self._is_stepping = False
        return True
