"""When a controller is killed: the moment of kill number N of a seed, whatever came before it.

Some moments are any, in the life of a controller from its first instruction on; others are aimed at what is
said and written just then: into rounds of two-phase commit, commits to disk, answers to clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final


class Aim(StrEnum):
    ANY = "any"
    """Some time after it was started, its start included."""
    AT_WORK = "at work"
    """Some time after the first agent has found it."""
    ANSWER = "answer"
    """A client has got an answer: what it says is a promise."""
    DISK = "disk"
    """The store's file is being written."""
    PREPARE = "prepare"
    """A seat was asked for its vote."""
    VOTE = "vote"
    """A seat has voted: with the last vote, the decision goes to disk."""
    COMMIT = "commit"
    """A seat was told a decision."""
    DONE = "done"
    """A seat has applied a decision."""
    DRAINED = "drained"
    """A seat is rid of its turn: the pool may be free."""
    WISHES = "wishes"
    """A host or switch was told what it shall hold."""


NOT_SEEN: Final = " (not seen)"
"""Mark of a kill whose moment did not come."""
WEIGHTS: Final[dict[Aim, int]] = {
    Aim.ANY: 20,
    Aim.AT_WORK: 20,
    Aim.ANSWER: 10,
    Aim.DISK: 10,
    Aim.PREPARE: 8,
    Aim.VOTE: 10,
    Aim.COMMIT: 10,
    Aim.DONE: 4,
    Aim.DRAINED: 4,
    Aim.WISHES: 4,
}
ANY_MORE_S: Final = 1.5
"""Beyond the time that a controller takes to start."""
AT_WORK_S: Final = 2.0
TURNS_OF: Final = 8
"""How many in a row there are of which one is aimed at."""


@dataclass(frozen=True, slots=True)
class Moment:
    number: int
    """Number of the kill."""
    aim: Aim
    count: int = 1
    """The so-manieth that is seen."""
    fraction: float = 0.0
    """Share of the longest delay there is for its aim."""
    is_lost: bool = False
    """What was aimed at is not passed on."""

    def delay_s(self, start_s: float) -> float:
        """``start_s``: that a controller takes until it is ready."""
        if self.aim is Aim.ANY:
            return self.fraction * (start_s + ANY_MORE_S)
        return self.fraction * (AT_WORK_S if self.aim is Aim.AT_WORK else 1.0)


def draw(seed: int, number: int, *, file: bool) -> Moment:
    """``file``: the store is one that can be watched."""
    random = Random(f"{seed}/kill/{number}")
    aims = [aim for aim in WEIGHTS if file or aim is not Aim.DISK]
    [aim] = random.choices(aims, [WEIGHTS[one] for one in aims])
    if aim in (Aim.ANY, Aim.AT_WORK):
        return Moment(number, aim, fraction=random.random())
    count = random.randint(1, TURNS_OF)
    longest = random.choice((0.0, 0.0, 0.005, 0.05))
    is_lost = not longest and aim in (Aim.PREPARE, Aim.COMMIT, Aim.WISHES) and random.random() < 0.5
    return Moment(number, aim, count, random.random() * longest, is_lost)


@dataclass(slots=True)
class Gun:
    """Aimed by one task, fired by whoever sees what it is aimed at; ``fire`` may be called in any thread."""

    fire: Callable[[], None]
    moment: Moment | None = None
    is_seen: bool = False
    """What it is aimed at: from now on only the delay is missing."""
    on_seen: Callable[[], None] = field(default=lambda: None)
    _left: int = 0

    def aim(self, moment: Moment) -> None:
        self.moment, self.is_seen, self._left = moment, False, moment.count

    def saw(self, aim: Aim) -> bool:
        """Whether that was it."""
        moment = self.moment
        if moment is None or moment.aim is not aim or self.is_seen:
            return False
        self._left -= 1
        self.is_seen = self._left <= 0
        return self.is_seen

    def shoot_if_due(self) -> None:
        """After :meth:`saw` has said so: at once, unless there is a delay, which the task keeps."""
        moment = self.moment
        if moment is not None and self.is_seen:
            if not moment.fraction:
                self.fire()
            self.on_seen()
