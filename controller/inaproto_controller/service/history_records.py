"""What is remembered of what happened, for people: one record for each turn, round, fallback and migration.

As text they are rows of the store (:meth:`Store.keep_events`), so that a controller that is started anew, or
the other one of a pair, shows what was before. Nothing is decided by them: a row that cannot be read is no
fault. Times are seconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

COMMITTED: Final = "committed"


@dataclass(frozen=True, slots=True)
class TurnSeen:
    """A job had a pool of slots for itself."""

    pool: str
    job: str
    epoch: int
    first: int
    """Operation of the job."""
    until: int | None
    """Excluded; None: open."""
    began_at: float
    ended_at: float | None = None
    """All its seats had drained; None: it stands. Of one that ended while no controller ran: when it was
    known last."""
    kind: Literal["turn"] = "turn"


@dataclass(frozen=True, slots=True)
class RoundSeen:
    """One of two-phase commit, among the hosts of jobs that share a pool."""

    pool: str
    term: int
    number: int
    """Both are its version."""
    began_at: float
    ended_at: float | None = None
    """It was decided; None: not yet, or the controller was killed before."""
    outcome: str = ""
    """Committed, or why it was aborted."""
    what: str = ""
    """It has decided."""
    kind: Literal["round"] = "round"


@dataclass(frozen=True, slots=True)
class Fallback:
    """From here on the hosts of a job sum what switches did, or could."""

    job: str
    reason: str
    at: float
    kind: Literal["fallback"] = "fallback"


@dataclass(frozen=True, slots=True)
class TreeMove:
    """A live job gets a tree other than the one that it had."""

    job: str
    old: str
    """Root."""
    new: str
    at: float
    """When it began."""
    phases: tuple[tuple[str, float], ...] = ()
    """What it went through, and when that began; none: all in one commit."""
    ended_at: float | None = None
    """The new tree stands; None: it is under way."""
    kind: Literal["move"] = "move"


@dataclass(frozen=True, slots=True)
class Led:
    """A controller began to lead."""

    term: int
    at: float
    kind: Literal["led"] = "led"


Event = TurnSeen | RoundSeen | Fallback | TreeMove | Led

_EVENTS: Final[TypeAdapter[Event]] = TypeAdapter(
    Annotated[Event, Field(discriminator="kind")], config=ConfigDict(extra="ignore")
)


def encode_event(event: Event) -> str:
    return _EVENTS.dump_json(event).decode()


def decode_event(body: str) -> Event | None:
    """None: this program does not know it."""
    try:
        return _EVENTS.validate_json(body)
    except ValidationError:
        return None
