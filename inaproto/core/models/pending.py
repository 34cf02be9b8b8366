"""What a node has taken and not forwarded (MLNet section 3.2, synchronous and asynchronous).

At s = 0 updates wait in *windows*, one per clock: a window is added in the order of the tree, own worker
first, then the children, whatever the order in which they came, so that its sum has the bits of the reduction
plan; what a fast child has of a later clock waits apart. At s > 0 all is one sum, in the order of arrival.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inaproto.core.models.updates import Update, total
from inaproto.wire.messages.clocks import FOREVER, WorkerId


@dataclass(slots=True)
class Pending:
    """``by_windows``: s = 0."""

    by_windows: bool
    _taken: list[tuple[int, Update]] = field(default_factory=list)
    """Updates with the place of their source in the order of the tree, in the order of arrival. At s > 0 one,
    at most."""

    def __len__(self) -> int:
        return len(self._taken)

    @property
    def updates(self) -> list[Update]:
        """In an order in which each goes on from those before it."""
        return [update for _, update in self._taken]

    @property
    def workers(self) -> set[WorkerId]:
        return {worker for _, update in self._taken for worker in update.after}

    @property
    def has_last_words(self) -> bool:
        """Whether a worker that leaves is among them."""
        return any(clock >= FOREVER for _, update in self._taken for _, clock in update.after.items())

    def add(self, place: int, update: Update) -> None:
        if self._taken and not self.by_windows:
            [(_, sum_so_far)] = self._taken
            self._taken = [(place, total([sum_so_far, update], update.clock))]
        else:
            self._taken.append((place, update))

    def keep(self, updates: list[Update]) -> None:
        """Only these, of those that are in it."""
        kept = {id(update) for update in updates}
        self._taken = [(place, update) for place, update in self._taken if id(update) in kept]

    def clear(self) -> None:
        self._taken.clear()

    def first_window(self, until: int) -> list[Update]:
        """At s = 0: takes the parts of the earliest window out, in the order of the tree, if it is not later
        than ``until``; else nothing."""
        clock = min((update.clock for _, update in self._taken), default=FOREVER)
        if clock > until:
            return []
        window = sorted((t for t in self._taken if t[1].clock == clock), key=lambda taken: taken[0])
        self._taken = [t for t in self._taken if t[1].clock != clock]
        return [update for _, update in window]

    def all(self, clock: int) -> Update | None:
        """At s > 0: takes the sum out; ``clock`` is c_sub."""
        updates, self._taken = self.updates, []
        return total(updates, clock) if updates else None
