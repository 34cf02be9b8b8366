"""What every deterministic world is: virtual time, a digest of all that happens, and the first broken rule.

A world has two phases. Until ``weather_until_ns`` faults and weather befall it and it must be *safe*: no
checker may object. Then everything heals, and it must be *live*: it ends within ``heal_ns``. Everything
depends on the configuration alone, so two runs give one digest: a hash over every ``(time, node, event)``
in order.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Generic, TypeVar

from inaproto.sim.kernel.agenda import Agenda
from inaproto.sim.kernel.config import Recorded
from inaproto.sim.kernel.fates import LinkFates
from inaproto.sim.kernel.violated import Violation, violation_of

DIGEST_BYTES: Final = 1 << 16
"""Notes are hashed in blocks of at least this size."""


@dataclass(slots=True)
class StepCounts:
    """Events handed to each kind of core; a world's own counts are fields of a subclass."""

    @property
    def total(self) -> int:
        return sum(getattr(self, item.name) for item in fields(self))


Config = TypeVar("Config", bound=Recorded)


@dataclass(frozen=True, slots=True)
class RunResult(Generic[Config]):
    """What a run came to."""

    config: Config
    violation: Violation | None
    digest: str
    events: int
    steps: StepCounts
    frames: int
    """Frames; of worlds of words: messages."""
    operations_done: int
    virtual_ns: int
    marks: Mapping[str, int]
    fates: LinkFates
    """All that were not "passes unharmed": with the configuration, enough to run the world again."""


class SimulatedWorld(ABC):
    """One run. Subclasses make the parts, drive the agenda, and say what happened."""

    config: Recorded
    steps: StepCounts

    def __init__(self) -> None:
        self.agenda = Agenda()
        self.events = 0
        self.operations_done = 0
        self.marks: dict[str, int] = {}
        self._notes = bytearray()
        self._hash = hashlib.blake2b(digest_size=16)

    @abstractmethod
    def run(self) -> RunResult[Any]:
        """Run to the end, or to the first violation. Never raises for a fault of the parts."""

    @abstractmethod
    def _run(self) -> None:
        """Run to the end. Raises whatever a checker or a part raises."""

    @abstractmethod
    def waiting(self) -> str:
        """Name, for people, what is not as it should be at the end."""

    @property
    @abstractmethod
    def fates(self) -> LinkFates:
        """Fates of frames or messages so far, of those to which something happened."""

    @abstractmethod
    def _carried(self) -> int:
        """Count the frames, or messages, so far."""

    def _collect_marks(self) -> None:  # noqa: B027  most worlds have none
        """Set the marks that show at the end alone."""

    def _ran(self) -> dict[str, Any]:
        """Fields of the result of a run to the end, or to the first violation; a fault of a part is one."""
        violation = self._first_violation()
        self._collect_marks()
        return {
            "config": self.config,
            "violation": violation,
            "digest": self._digest(),
            "events": self.events,
            "steps": self.steps,
            "frames": self._carried(),
            "operations_done": self.operations_done,
            "virtual_ns": self.agenda.now,
            "marks": dict(sorted(self.marks.items())),
            "fates": self.fates,
        }

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
