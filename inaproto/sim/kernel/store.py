"""The controller's disk: records by name, each of which is there some time after it was written.

A crash keeps what was said to be on disk, and of what was on its way a first part that is drawn: a record
may be there though nobody was ever told so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from inaproto.faults.streams import Draws
from inaproto.sim.kernel.agenda import Agenda


class StoreConfig(Protocol):
    @property
    def seed(self) -> str: ...
    @property
    def fsync_max_ns(self) -> int: ...


class WorldWithStore(Protocol):
    """What a store needs of its world."""

    agenda: Agenda

    @property
    def config(self) -> StoreConfig: ...
    def mark(self, name: str) -> None: ...


class Store:
    def __init__(self, world: WorldWithStore) -> None:
        self._world = world
        self._draws = Draws(world.config.seed, "store")
        self.disk: dict[str, Any] = {}
        """Records by name; each takes the place of the one before."""
        self._pending: deque[tuple[str, Any, Callable[[], None]]] = deque()
        self._last_due = 0
        self._incarnation = 0

    def persist(self, name: str, record: Any, done: Callable[[], None]) -> None:
        """``done`` is called when it is on disk, if the controller has not crashed by then. In order."""
        world = self._world
        most = world.config.fsync_max_ns
        delay = self._draws.between(most // 8, most)
        self._last_due = max(self._last_due, world.agenda.now + delay)
        self._pending.append((name, record, done))
        world.agenda.at(self._last_due, self._synced, self._incarnation)

    def crash(self) -> None:
        """Nobody is told of anything that was under way."""
        kept = self._draws.below(len(self._pending) + 1)
        if kept:
            self._world.mark("a record was on disk, and nobody was told")
        if kept < len(self._pending):
            self._world.mark("a record was lost in a crash")
        for name, record, _ in list(self._pending)[:kept]:
            self.disk[name] = record
        self._pending.clear()
        self._incarnation += 1

    def _synced(self, incarnation: int) -> None:
        if incarnation != self._incarnation:
            return
        name, record, done = self._pending.popleft()
        self.disk[name] = record
        done()
