"""Who uses INA when jobs take turns: asked once, when an operation is about to begin (MINA, section III-D).

A job never waits for INA: it gets it for an operation, or goes on without. With INA free, the published score
rule looks at each other job whose next operation would begin before mine is over: if that one gains more from
INA, for each second that it takes, mine goes without. What an operation gains is how much earlier its step
ends with INA for it alone, all later operations going without; by the max-plus form of a step this is O(1).

Equal ratios take turns by chance of time, not by rank: only a strictly greater one holds mine back. So an
operation that gains nothing still uses INA where nobody else would gain. No memory, no fairness.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from inaproto_controller.cluster.step_times import StepTimes


class Policy(Enum):
    NONE = "none"
    """Never."""
    GREEDY = "greedy"
    """Whenever it is free."""
    SCORE = "score"
    """Whenever it is free and nobody would gain more."""


class NextOperation(NamedTuple):
    """The operation that a job begins next."""

    times: StepTimes
    number: int
    """Number of the operation in its step."""
    step_start: float
    begin: float
    weight: float = 1.0

    def gain(self) -> float:
        """How much earlier its step ends with INA for this operation, seconds times ``weight``."""
        times, after, at = self.times, self.number + 1, self.begin - self.step_start
        tail, floor = times.tail_plain[after], times.floor_plain[after]
        plain = max(at + times.plain[self.number] + tail, floor)
        with_ina = max(at + times.ina[self.number] + tail, floor)
        return self.weight * (plain - with_ina)


def may_use(mine: NextOperation, others: Iterable[NextOperation], now: float) -> bool:
    """Whether an operation that begins now is to use INA, which is free. ``others``: of the same group."""
    until = now + mine.times.ina[mine.number]
    if until <= now:
        return True  # it takes no time, so nobody begins meanwhile
    ratio = mine.gain() / (until - now)
    for other in others:
        if other.begin >= until:
            continue
        seconds = other.begin + other.times.ina[other.number] - now
        if seconds > 0.0 and other.gain() / seconds > ratio:
            return False
    return True
