"""What all cores are made of, as far as it is the same in all.

A phased protocol is a complete table: for every phase and every event there is one handler, which gets the
subject (a job, a ring) and the event, and returns actions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from inaproto.errors import LocalMisuse

P = TypeVar("P")
S = TypeVar("S")
A = TypeVar("A")
E = TypeVar("E")

Handler = Callable[[S, E], list[A]]
"""Called with the subject and the event."""


class Handlers(Generic[P, S, A]):
    """The table of a machine with phases ``P``, subjects ``S`` and actions ``A``."""

    def __init__(self) -> None:
        self._found: dict[tuple[P, type[Any]], Handler[S, Any, A]] = {}

    def on(self, event: type[E], handler: Handler[S, E, A], *phases: P) -> None:
        """Handle events of that type so in these phases. Raises ``LocalMisuse`` for a second handler."""
        for phase in phases:
            if (phase, event) in self._found:
                raise LocalMisuse(f"{event.__name__} in {phase} has two handlers")
            self._found[phase, event] = handler

    def step(self, phase: P, subject: S, event: object) -> list[A]:
        return self._found[phase, type(event)](subject, event)

    def __iter__(self) -> Iterator[tuple[P, type[Any]]]:
        """Every phase and event that has a handler."""
        return iter(self._found)
