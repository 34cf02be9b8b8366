"""For whoever drives a core: events one after the other, each when the actions of the step before are done.

Performing an action may cause an event at once (an accelerator refuses the ring that it is told of), in the
middle of a loop over actions. Such an event waits.

    for due in self._due.put(event):
        for action in core.step(due, now()):
            self._perform(action)

Invariant: what one ``put`` gives is all there is while it is being dealt with; another one only queues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

E = TypeVar("E")


class StepQueue(Generic[E]):
    """Events that a core has not been stepped with yet."""

    def __init__(self) -> None:
        self._events: deque[E] = deque()
        self._is_stepping = False

    def put(self, event: E) -> Iterator[E]:
        """``event``, then those that are put while the caller deals with it."""
        self._events.append(event)
        return self._drain()

    def _drain(self) -> Iterator[E]:
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._events:
                yield self._events.popleft()
        finally:
            self._is_stepping = False
