"""A job that trains: which of its operations runs, and when it does what next (MINA, section V-A)."""

from __future__ import annotations

from enum import Enum

from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.planning.turns.policy import NextOperation


class Phase(Enum):
    """What happens at ``at``."""

    BEGINS = "an operation begins"
    ENDS = "an operation ends"
    STEPS = "a step ends"


class JobRun:
    """Events of one job; its owner takes the earliest of all jobs' ``at``, and calls what its phase says."""

    __slots__ = (
        "at",
        "began",
        "ina_seconds",
        "index",
        "phase",
        "started",
        "step_start",
        "steps",
        "steps_max",
        "times",
        "uses_ina",
        "weight",
    )

    def __init__(
        self, times: StepTimes, *, start: float, steps_max: int | None = None, weight: float = 1.0
    ) -> None:
        """``steps_max``: None for a job without end."""
        self.times = times
        self.weight = weight
        self.steps_max = steps_max
        self.steps = 0
        """Steps that have ended."""
        self.started = start
        self.ina_seconds = 0.0
        """Time of operations with INA that have ended."""
        self.uses_ina = False
        """Whether the operation that runs uses INA."""
        self.began = start
        self._begin_step(start)

    def _begin_step(self, start: float) -> None:
        self.step_start = start
        self.index = 0
        self.phase = Phase.BEGINS
        self.at = start + self.times.ready[0]

    def begin(self, *, uses_ina: bool) -> None:
        """The operation that is due, now."""
        self.uses_ina = uses_ina
        self.began = self.at
        self.at += (self.times.ina if uses_ina else self.times.plain)[self.index]
        self.phase = Phase.ENDS

    def end(self) -> None:
        if self.uses_ina:
            self.ina_seconds += self.at - self.began
            self.uses_ina = False
        self.index += 1
        if self.index < self.times.count:
            self.phase = Phase.BEGINS
            self.at = max(self.at, self.step_start + self.times.ready[self.index])
        else:
            self.phase = Phase.STEPS
            self.at = max(self.at, self.step_start + self.times.duration)

    def end_step(self) -> bool:
        """False if that was the last; ``at`` is then when the job ended."""
        self.steps += 1
        if self.steps == self.steps_max:
            return False
        self._begin_step(self.at)
        return True

    def next_operation(self) -> NextOperation | None:
        """The one that begins, or the one after that which runs; None if there is none."""
        index, begin, step_start = self.index, self.at, self.step_start
        if self.phase is Phase.BEGINS:
            return NextOperation(self.times, index, step_start, begin, self.weight)
        if self.phase is Phase.ENDS:
            index += 1
            if index < self.times.count:
                begin = max(begin, step_start + self.times.ready[index])
                return NextOperation(self.times, index, step_start, begin, self.weight)
            begin = max(begin, step_start + self.times.duration)
        if self.steps + 1 == self.steps_max:
            return None
        return NextOperation(self.times, 0, begin, begin + self.times.ready[0], self.weight)
