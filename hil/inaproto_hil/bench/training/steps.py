"""The steps that a script says it has made, and which of them count.

All processes of a run are stopped (SIGSTOP) at the end of its turn and continued (SIGCONT) at the next one.
The first step that a rank ends in a turn had begun before, or began before other ranks were continued; the
next one may wait for ranks that came out of that late. Neither counts.
"""

from __future__ import annotations

import json
import statistics
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

UNCOUNTED: Final = 2
"""Steps of each rank at the begin of a turn."""


@dataclass(frozen=True, slots=True)
class Step:
    """One line of one rank."""

    number: int
    seconds: float
    loss: float
    turn: int
    """In which it ended; 0: before the first one."""
    shared_loss: float | None = None
    """Of a batch that all ranks have; None where it was not looked at."""
    digest: str | None = None
    """Of the weights; None alike."""

    @property
    def check(self) -> tuple[float | None, str] | None:
        """What must be the same on all ranks."""
        return None if self.digest is None else (self.shared_loss, self.digest)


class StepLog:
    """Lines of all ranks of a run, taken in threads: one for each rank."""

    def __init__(self, ranks: int) -> None:
        self.ranks: list[list[Step]] = [[] for _ in range(ranks)]
        self.hellos: list[dict[str, Any]] = [{} for _ in range(ranks)]
        self.turn = 0
        self.changed = threading.Condition()

    def take(self, rank: int, line: str) -> bool:
        """Whether it was one of the script's: JSON, with the number of a step or of parameters."""
        try:
            told = json.loads(line)
        except ValueError:
            return False
        if not isinstance(told, dict) or not (
            {"step", "seconds", "loss"} <= set(told) or "parameters" in told
        ):
            return False
        with self.changed:
            if "parameters" in told:
                self.hellos[rank] = told
            else:
                checked = told.get("shared_loss"), told.get("digest")
                step = Step(told["step"], told["seconds"], told["loss"], self.turn, *checked)
                self.ranks[rank].append(step)
            self.changed.notify_all()
        return True

    def in_turn(self, turn: int) -> list[list[Step]]:
        """Of each rank, those that ended in this turn."""
        return [[step for step in steps if step.turn == turn] for steps in self.ranks]

    def ended(self, turn: int) -> int:
        """Steps that every rank has ended in this turn."""
        return min(sum(step.turn == turn for step in steps) for steps in self.ranks)


def counted(steps: Sequence[Step]) -> list[float]:
    """Seconds of those of one rank in one turn that count."""
    return [step.seconds for step in steps[UNCOUNTED:]]


def sample(ranks: Sequence[Sequence[Step]]) -> float:
    """Seconds of a step in one turn: the mean over the ranks of the median of those that count.

    Ranks that wait for each other in each step have the same time on average; those that train alone need
    not. ``nan`` for a rank without a step that counts is impossible: a turn lasts until all have some.
    """
    return statistics.fmean(statistics.median(counted(steps)) for steps in ranks)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Whether ranks had the same weights and the same loss of the same batch, bit for bit."""

    checks: int
    """Steps at which all ranks said what they have."""
    differing: int
    """Those of them at which one had something else."""
    example: str = ""


def agreement(ranks: Sequence[Sequence[Step]]) -> Agreement:
    """Over a whole run."""
    checks = [{step.number: step.check for step in steps if step.check is not None} for steps in ranks]
    common = sorted(set.intersection(*map(set, checks))) if checks else []
    bad = [number for number in common if len({found[number] for found in checks}) > 1]
    if not bad:
        return Agreement(len(common), 0)
    said = ", ".join(f"rank {rank}: {found[bad[0]]}" for rank, found in enumerate(checks))
    return Agreement(len(common), len(bad), f"step {bad[0]}: {said}")


@dataclass(frozen=True, slots=True)
class LossDifference:
    """Two loss curves of the same seeds, beside each other."""

    steps: int
    """Of each rank, that both runs have."""
    largest: float
    at_step: int
    loss: float
    """Of the second run there."""


def loss_difference(
    mine: Sequence[Sequence[Step]], theirs: Sequence[Sequence[Step]]
) -> LossDifference | None:
    """Largest difference of the losses of each rank's own batches. None without a step that both made."""
    found: LossDifference | None = None
    for left, right in zip(mine, theirs, strict=True):
        losses = {step.number: step.loss for step in right}
        both = [(step.number, step.loss, losses[step.number]) for step in left if step.number in losses]
        if not both:
            return None
        number, loss, other = max(both, key=lambda one: abs(one[1] - one[2]))
        if found is None or abs(loss - other) > found.largest:
            found = LossDifference(len(both), abs(loss - other), number, other)
    return found
