"""What every deterministic world is: virtual time, a digest of all that happens, and the first broken rule.

A world has two phases. Until ``weather_until_ns`` faults and weather befall it and it must be *safe*: no
checker may object. Then everything heals, and it must be *live*: it ends within ``heal_ns``. Everything
depends on the configuration alone, so two runs give one digest: a hash over every ``(time, node, event)``
in order.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Final

from inaproto.sim.kernel.agenda import Agenda
from inaproto.sim.kernel.violated import Violation, violation_of

DIGEST_BYTES: Final = 1 << 16
"""Notes are hashed in blocks of at least this size."""


@dataclass(slots=True)
class StepCounts:
    """Events handed to each kind of core; a world's own counts are fields of a subclass."""

    @property
    def total(self) -> int:
        return sum(getattr(self, item.name) for item in fields(self))


class SimulatedWorld(ABC):
    """One run. Subclasses make the parts, drive the agenda, and say what happened."""

    def __init__(self) -> None:
        self.agenda = Agenda()
        self.events = 0
        self.operations_done = 0
        self.marks: dict[str, int] = {}
        self._notes = bytearray()
        self._hash = hashlib.blake2b(digest_size=16)

    @abstractmethod
    def _run(self) -> None:
        """Run to the end. Raises whatever a checker or a part raises."""

    @abstractmethod
    def waiting(self) -> str:
        """Name, for people, what is not as it should be at the end."""

    def _first_violation(self) -> Violation | None:
        """Run to the end, or to the first violation. Never raises for a fault of the parts."""
        try:
            self._run()
        except Exception as error:  # noqa: BLE001  whatever a part raises is what the world is there to find
            return violation_of(error, self.events, self.agenda.now)
        return None

    def mark(self, name: str) -> None:
        """Count something that a campaign must meet now and then."""
        self.marks[name] = self.marks.get(name, 0) + 1

    def _hash_notes(self) -> None:
        self._hash.update(self._notes)
        self._notes.clear()

    def _digest(self) -> str:
        self._hash_notes()
        return self._hash.hexdigest()
