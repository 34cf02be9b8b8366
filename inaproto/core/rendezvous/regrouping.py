"""Survivors of a job that lost a rank agree on who goes on (as ``shrink`` of MPI's failure mitigation, ULFM).

Of an elastic job that has ended because a rank was lost, each survivor either *comes* (says that it goes on,
and how many all-reduces it has the results of), or is lost as well. When nothing is open any more, or
``wait_ns`` after the start, it is decided: who has come goes on, in the old order of ranks, from the
operation up to which all of them have results. If one of these is lost before their next job has begun, the
others have to come again: another round. :data:`HANDLERS` is the whole table of (phase, event).

Invariants: whoever is answered in a round gets its one outcome, as often as it asks until all is over,
``wait_ns`` after the decision; each that comes is answered, or declined with the reason, by ``wait_ns`` after
the start of the round unless its host is away; a rank that is lost or not heard of by then is in no outcome;
each round but the first has lost a rank, so there are at most as many as ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from inaproto.errors import LocalMisuse
from inaproto.units import Instant, S


class Phase(Enum):
    GATHERING = "gathering"
    DECIDED = "decided"
    """Kept, for who did not hear the answer, and until the next job of the survivors has begun."""
    OVER = "over"


# --- events


@dataclass(frozen=True, slots=True)
class Came:
    """A survivor goes on; it has the results of its first ``operations_done`` all-reduces."""

    rank: int
    operations_done: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A survivor is lost as well, or does not want to go on."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Unseen:
    """The host of a survivor has lost its connection: it has to come again."""

    rank: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The deadline may have passed."""


RegroupingEvent = Came | Lost | Unseen | TimePassed


# --- actions


@dataclass(frozen=True, slots=True)
class Outcome:
    """Who goes on."""

    ranks: tuple[int, ...]
    """Ascending, in the numbers of the job that ended; the index of each is its next rank."""
    agreed: int
    """All-reduces whose results all of them have."""


@dataclass(frozen=True, slots=True)
class Answer:
    rank: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Decline:
    """The rank cannot go on with the others."""

    rank: int
    reason: str


RegroupingAction = Answer | Decline


class Regrouping:
    """Pure core; see the module. ``ranks`` are the survivors, as known at ``now``."""

    def __init__(self, ranks: Iterable[int], *, now: Instant, wait_ns: int) -> None:
        self.phase: Phase
        self.outcome: Outcome | None
        self._deadline: Instant
        self._came: dict[int, int | None] = dict.fromkeys(sorted(ranks))
        """Operations of each rank that is not lost; None: it has not come."""
        self._lost: dict[int, str] = {}
        self._wait_ns = wait_ns
        self._begin(now)

    def _begin(self, now: Instant) -> None:
        """A round."""
        self.phase = Phase.GATHERING if self._came else Phase.OVER
        self.outcome = None
        self._came = dict.fromkeys(self._came)
        self._deadline = Instant(now + self._wait_ns)

    @property
    def deadline(self) -> Instant | None:
        return None if self.phase is Phase.OVER else self._deadline

    @property
    def lost(self) -> tuple[int, ...]:
        return tuple(self._lost)

    @property
    def awaited(self) -> tuple[int, ...]:
        """Survivors that have neither come nor been lost."""
        return tuple(rank for rank, done in self._came.items() if done is None)

    def step(self, event: RegroupingEvent, now: Instant) -> list[RegroupingAction]:
        """Raises ``LocalMisuse`` for a rank that is no survivor."""
        if not isinstance(event, TimePassed) and event.rank not in self._came.keys() | self._lost.keys():
            raise LocalMisuse(f"rank {event.rank} is not among the survivors")
        return HANDLERS[self.phase, type(event)](self, event, now)

    def _comes(self, event: Came, now: Instant) -> list[RegroupingAction]:
        if event.rank in self._lost:
            return self._decline(event, now)
        self._came[event.rank] = event.operations_done
        return self._decide_if_complete(now)

    def _loses(self, event: Lost, now: Instant) -> list[RegroupingAction]:
        if event.rank in self._lost:
            return []
        self._lose(event.rank, event.reason)
        return self._decide_if_complete(now)

    def _lose(self, rank: int, reason: str) -> None:
        del self._came[rank]
        self._lost[rank] = reason

    def _misses(self, event: Unseen, now: Instant) -> list[RegroupingAction]:
        if event.rank in self._came:
            self._came[event.rank] = None
        return []

    def _waits(self, event: TimePassed, now: Instant) -> list[RegroupingAction]:
        if now >= self._deadline:
            for rank in self.awaited:
                self._lose(rank, f"it did not say within {self._wait_ns / S:g} s that it goes on")
        return self._decide_if_complete(now)

    def _decide_if_complete(self, now: Instant) -> list[RegroupingAction]:
        done = {rank: done for rank, done in self._came.items() if done is not None}
        if len(done) < len(self._came):
            return []
        if not done:
            self.phase = Phase.OVER
            return []
        self.phase = Phase.DECIDED
        self._deadline = Instant(now + self._wait_ns)
        self.outcome = Outcome(tuple(done), min(done.values()))
        return [Answer(rank, self.outcome) for rank in done]

    def _repeat(self, event: Came, now: Instant) -> list[RegroupingAction]:
        if self.outcome is None or event.rank in self._lost:
            return self._decline(event, now)
        return [Answer(event.rank, self.outcome)]

    def _undo(self, event: Lost, now: Instant) -> list[RegroupingAction]:
        if event.rank in self._came:
            self._lose(event.rank, event.reason)
            self._begin(now)
        return []

    def _decline(self, event: Came, now: Instant) -> list[RegroupingAction]:
        return [Decline(event.rank, self._lost.get(event.rank, "it is too late for it"))]

    def _end(self, event: TimePassed, now: Instant) -> list[RegroupingAction]:
        if now >= self._deadline:
            self.phase = Phase.OVER
        return []

    def _nothing(self, event: RegroupingEvent, now: Instant) -> list[RegroupingAction]:
        return []


Handler = Callable[..., list[RegroupingAction]]

HANDLERS: Final[Mapping[tuple[Phase, type[RegroupingEvent]], Handler]] = {
    (Phase.GATHERING, Came): Regrouping._comes,
    (Phase.GATHERING, Lost): Regrouping._loses,
    (Phase.GATHERING, Unseen): Regrouping._misses,
    (Phase.GATHERING, TimePassed): Regrouping._waits,
    (Phase.DECIDED, Came): Regrouping._repeat,
    (Phase.DECIDED, Lost): Regrouping._undo,
    (Phase.DECIDED, Unseen): Regrouping._nothing,
    (Phase.DECIDED, TimePassed): Regrouping._end,
    (Phase.OVER, Came): Regrouping._decline,
    (Phase.OVER, Lost): Regrouping._nothing,
    (Phase.OVER, Unseen): Regrouping._nothing,
    (Phase.OVER, TimePassed): Regrouping._nothing,
}
