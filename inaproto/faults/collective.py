"""What goes wrong with a collective library, seeded: the same faults in memory under daemons and in worlds.

Chances are of 1000. What becomes of an attempt to attach, or of an operation, is drawn for all hosts at once,
from a stream of its own: it depends on the seed, the job, the attempt and the operation's number in it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Final

from inaproto.errors import ConfigError
from inaproto.faults.streams import Draws, Seed

_OF: Final = 1000


class Outcome(Enum):
    """Of one host."""

    DONE = "done"
    FAILED = "failed"
    """With an error, and the next may do; an attempt: refused."""
    NEVER = "never"
    """It does not end."""
    LOST = "lost"
    """With an error, and so will all that follow."""
    WRONG = "wrong"
    """As if it were done, with a byte that other hosts do not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFaults:
    """How often what goes wrong; all that is 0 never does."""

    refused: int = 0
    """An attempt, at all hosts: no resources."""
    refused_at_one: int = 0
    failed: int = 0
    """An operation, at all hosts."""
    failed_at_some: int = 0
    """At the others it is done, or never ends."""
    never: int = 0
    lost: int = 0
    wrong: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 <= getattr(self, field.name) <= _OF:
                raise ConfigError(f"{field.name}: {getattr(self, field.name)} is not from 0 to {_OF}")
        if self.failed + self.failed_at_some + self.never + self.lost + self.wrong > _OF:
            raise ConfigError(f"failed: the faults of an operation are more than {_OF} together")
        if self.refused + self.refused_at_one > _OF:
            raise ConfigError(f"refused: the faults of an attempt are more than {_OF} together")


NO_FAULTS: Final = CollectiveFaults()


class CollectiveFates:
    """Draws what becomes of attempts and operations of one job."""

    def __init__(self, seed: Seed, job: str, faults: CollectiveFaults = NO_FAULTS) -> None:
        self._seed = seed
        self._job = job
        self._faults = faults

    def attach(self, attempt: int, size: int) -> list[Outcome]:
        """By position."""
        faults, draws = self._faults, Draws(self._seed, f"collective/{self._job}/{attempt}")
        drawn = draws.below(_OF)
        if drawn < faults.refused:
            return [Outcome.FAILED] * size
        outcomes = [Outcome.DONE] * size
        if drawn < faults.refused + faults.refused_at_one:
            outcomes[draws.below(size)] = Outcome.FAILED
        return outcomes

    def lost_after(self, attempt: int, number: int, size: int) -> range:
        """Positions of hosts that lose their attachment a while after that operation: none, one or all."""
        draws = Draws(self._seed, f"collective/{self._job}/{attempt}/{number}/after")
        if draws.below(_OF) >= self._faults.lost:
            return range(0)
        one = draws.below(size)
        return draws.choice((range(one, one + 1), range(size)))

    def operation(self, attempt: int, number: int, size: int) -> list[Outcome]:
        """Of the ``number``-th in that attachment, by position."""
        faults, draws = self._faults, Draws(self._seed, f"collective/{self._job}/{attempt}/{number}")
        drawn = draws.below(_OF)
        for chance, outcome in (
            (faults.failed, Outcome.FAILED),
            (faults.never, Outcome.NEVER),
            (faults.lost, Outcome.LOST),
        ):
            if drawn < chance:
                return [outcome] * size
            drawn -= chance
        outcomes = [Outcome.DONE] * size
        if drawn < faults.wrong:
            outcomes[draws.below(size)] = Outcome.WRONG
        elif drawn < faults.wrong + faults.failed_at_some:
            others = draws.choice((Outcome.DONE, Outcome.NEVER))
            outcomes = [Outcome.FAILED if draws.chance(1, 2) else others for _ in range(size)]
            outcomes[draws.below(size)] = Outcome.FAILED
        return outcomes
