"""How much jobs can gain that share one switch, if nothing counted but the time that there is to share.

An upper bound of their INA efficiency score (MINA, section V), whoever plans: of the switch's time a job
needs at least so much for each second by which its step gets shorter, and the switch has one second a second.
When operations are ready is not looked at, so jobs that need INA at the same moments stay below it.

For a step to be ``s`` seconds shorter than without INA, operations must be ``s`` seconds shorter in sum; an
operation that uses INA for ``u`` seconds gets ``u (plain - ina) / ina`` shorter. So the least INA time for a
second is the least ``ina / (plain - ina)`` of the job's operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final, NamedTuple

from inaproto_controller.cluster.step_times import StepTimes

_ROUNDING: Final = 1e-12


class _Job(NamedTuple):
    plain: float
    ina: float
    """Time of a step with INA."""
    cost: float
    """Seconds of INA for each that a step gets shorter."""


def score_bound(jobs: Sequence[StepTimes]) -> float | None:
    """Bound of the score of jobs without end; None if INA saves them nothing.

    With ``x`` steps a second of each job, ``1 / plain <= x <= 1 / ina``, a step takes ``1 / x``; INA is used
    for ``cost (plain x - 1)`` of the time, and the score is the sum of ``plain x - 1`` over that of
    ``(plain - ina) x``. It is greatest in a corner of what is possible: all jobs but one at an end of theirs.
    """
    gaining = [_job(times) for times in jobs if times.step_ina < times.step_plain]
    if not gaining:
        return None
    ends = [(1 / job.plain, 1 / job.ina) for job in gaining]
    found = []
    for corner in product(*ends):
        if _used(gaining, corner) <= 1 + _ROUNDING:
            found.append(_score(gaining, corner))
        for free in range(len(gaining)):
            job = gaining[free]
            left = 1 - _used(gaining, corner) + job.cost * (job.plain * corner[free] - 1)
            rate = (left / job.cost + 1) / job.plain
            if ends[free][0] <= rate <= ends[free][1]:
                found.append(_score(gaining, (*corner[:free], rate, *corner[free + 1 :])))
    return max(found)


def _job(times: StepTimes) -> _Job:
    pairs = zip(times.plain, times.ina, strict=True)
    return _Job(
        times.step_plain, times.step_ina, min(ina / (plain - ina) for plain, ina in pairs if plain > ina)
    )


def _used(jobs: Sequence[_Job], rates: Sequence[float]) -> float:
    return sum(job.cost * (job.plain * rate - 1) for job, rate in zip(jobs, rates, strict=True))


def _score(jobs: Sequence[_Job], rates: Sequence[float]) -> float:
    saved = sum(job.plain * rate - 1 for job, rate in zip(jobs, rates, strict=True))
    return saved / sum((job.plain - job.ina) * rate for job, rate in zip(jobs, rates, strict=True))
