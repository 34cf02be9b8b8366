"""Trials of sharing groups: what its members would gain if they took turns alone, for a few steps.

Jobs without end that all start at 0 share one switch, one operation with INA at a time, by the score rule
weighted by hosts; the first event later than three of the longest plain steps is the last, and whole steps
count. What :func:`~inaproto_controller.simulate.shared_switch.share` does, by the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np

from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.planning.trial import kernel
from inaproto_controller.planning.trial.arrays import make_log, make_slots, make_tables
from inaproto_controller.planning.trial.kernel import Slots, Tables, Turns

STEPS: Final = 3
_ENDLESS: Final = 1 << 60
_NOTHING: Final = 1e-9
"""Share of the time without INA below which INA saves nothing but rounding."""


class Sums(NamedTuple):
    """Times of the same steps of some jobs, host seconds."""

    plain: float
    """Without INA."""
    spent: float
    ina: float
    """Time with INA for all operations."""

    def __add__(self, other: Self) -> Sums:  # type: ignore[override]
        return Sums(self.plain + other.plain, self.spent + other.spent, self.ina + other.ina)

    @property
    def score(self) -> float | None:
        """INA efficiency score weighted by hosts; None if there is nothing to gain."""
        possible = self.plain - self.ina
        return None if possible <= _NOTHING * self.plain else (self.plain - self.spent) / possible


def plain(times: StepTimes, hosts: int) -> Sums:
    """Sums of a job that goes without INA."""
    seconds = STEPS * times.step_plain * hosts
    return Sums(seconds, seconds, STEPS * times.step_ina * hosts)


@dataclass(slots=True)
class _Scores:
    """After Welford."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of the squares of the differences from the mean."""

    def add(self, score: float) -> None:
        self.count += 1
        difference = score - self.mean
        self.mean += difference / self.count
        self.squares += difference * (score - self.mean)


class Trials:
    """Trials of groups of jobs, each given by hosts and kind; remembered whatever order they are given in."""

    def __init__(self) -> None:
        self._kinds: list[StepTimes] = []
        self._numbers: dict[int, int] = {}
        self._tables: Tables | None = None
        self._known: dict[tuple[tuple[int, int], ...], Sums] = {}
        self._scores: dict[int, _Scores] = {}

    def kind(self, times: StepTimes) -> int:
        """The same number for the same object."""
        number = self._numbers.get(id(times))
        if number is None:
            number = self._numbers[id(times)] = len(self._kinds)
            self._kinds.append(times)
            self._tables = None
        return number

    def run(self, jobs: Iterable[tuple[int, int]]) -> Sums:
        """``jobs``: hosts and kind of each."""
        group = tuple(sorted(jobs))
        found = self._known.get(group)
        if found is None:
            found = self._known[group] = self._run(group)
            if found.score is not None:
                self._scores.setdefault(len(group), _Scores()).add(found.score)
        return found

    def scores(self, size: int) -> tuple[int, float, float]:
        """Count, mean score and standard deviation of all different groups of so many jobs that were tried
        and had anything to gain."""
        scores = self._scores.get(size, _Scores())
        return scores.count, scores.mean, math.sqrt(scores.squares / max(scores.count, 1))

    def _run(self, group: Sequence[tuple[int, int]]) -> Sums:
        if self._tables is None:
            self._tables = make_tables(self._kinds, [0] * len(self._kinds))
        slots = make_slots(len(group))
        slots.kind[:] = [kind for _, kind in group]
        slots.weight[:] = [hosts for hosts, _ in group]
        slots.has_tree[:] = True
        slots.steps_max[:] = _ENDLESS
        for slot in range(len(group)):
            kernel.begin_step(self._tables, slots, slot, 0.0)
        times = [self._kinds[kind] for _, kind in group]
        longest = max(one.step_plain for one in times)
        kernel.advance(
            self._tables,
            slots,
            _one_group(slots),
            make_log(0),
            kernel.SCORE,
            0.0,
            0.0,
            math.inf,
            STEPS * longest,
        )
        steps = (slots.steps * slots.weight).tolist()
        return Sums(
            sum(one.step_plain * count for one, count in zip(times, steps, strict=True)),
            float((slots.step_start * slots.weight).sum()),
            sum(one.step_ina * count for one, count in zip(times, steps, strict=True)),
        )


def _one_group(slots: Slots) -> Turns:
    jobs = len(slots.at)
    nobody = np.zeros(0, np.int64)
    return Turns(
        group=np.zeros(jobs, np.int64),
        rank=np.arange(jobs),
        is_behind=np.zeros(jobs, np.bool_),
        due=slots.at.copy(),
        heap=np.arange(jobs),
        member_first=np.array([0, jobs]),
        members=np.arange(jobs),
        busy=np.zeros(1, np.int64),
        blocker=nobody,
        blocked=nobody,
        is_granted=np.zeros(0, np.bool_),
        counted=nobody,
        room=nobody,
        uses=np.zeros((jobs, 2), np.int64),
        uses_then=np.zeros((jobs, 2), np.int64),
    )
