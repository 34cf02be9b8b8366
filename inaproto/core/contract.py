"""What all cores are made of, as far as it is the same in all, and what a core is to whoever drives it.

Facts in, orders out, a clock that is handed in: ``step`` does no I/O, looks at no clock and calls nobody
back; what a peer can do it answers by actions, a caller's mistake raises ``LocalMisuse`` and changes nothing;
whoever drives a core wakes it at its ``deadline``; ``view`` changes nothing.

A phased protocol is a complete table: for every phase and every event there is one handler, which gets the
subject (a job, a ring) and the event, and returns actions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from inaproto.errors import LocalMisuse
from inaproto.units import Instant

P = TypeVar("P")
S = TypeVar("S")
A = TypeVar("A")
E = TypeVar("E")
EventT_contra = TypeVar("EventT_contra", contravariant=True)
ActionT = TypeVar("ActionT")
ViewT_co = TypeVar("ViewT_co", covariant=True)

Handler = Callable[[S, E], list[A]]
"""Called with the subject and the event."""


class Core(Protocol[EventT_contra, ActionT, ViewT_co]):
    def step(self, event: EventT_contra, now: Instant) -> list[ActionT]:
        """Apply ``event``; the actions are to be performed in order, all of them, before the next step."""

    @property
    def deadline(self) -> Instant | None:
        """When it is to be woken at the latest; None: not by the clock."""

    def view(self) -> ViewT_co:
        """A frozen picture for checkers, statistics and people."""


class Handlers(Generic[P, S, A]):
    """The table of a machine with phases ``P``, subjects ``S`` and actions ``A``."""

    def __init__(self) -> None:
        self._found: dict[tuple[P, type[Any]], Handler[S, Any, A]] = {}
        self._to: dict[tuple[P, type[Any]], tuple[P | None, ...]] = {}

    def on(
        self, event: type[E], handler: Handler[S, E, A], *phases: P, to: tuple[P | None, ...] = ()
    ) -> None:
        """Handle events of that type so in these phases. Raises ``LocalMisuse`` for a second handler.

        ``to``: the phases to which that may lead, None being the end; empty: it leads nowhere.
        """
        for phase in phases:
            if (phase, event) in self._found:
                raise LocalMisuse(f"{event.__name__} in {phase} has two handlers")
            self._found[phase, event] = handler
            self._to[phase, event] = to

    def leads_to(self, phase: P, event: type[Any]) -> tuple[P | None, ...]:
        """Where it may lead; None: to the end."""
        return self._to[phase, event]

    def step(self, phase: P, subject: S, event: object) -> list[A]:
        return self._found[phase, type(event)](subject, event)

    def __iter__(self) -> Iterator[tuple[P, type[Any]]]:
        """Every phase and event that has a handler."""
        return iter(self._found)
