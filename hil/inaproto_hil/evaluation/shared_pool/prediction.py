"""What share of jobs' all-reduces would go by INA, by the simulator, from how long these were seen to take.

For jobs whose times are not those of a network but of daemons on a busy machine: plain times are measured,
for each size of each job; with INA they are taken as the controller's planner takes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from inaproto.core.sharing.model_trace import ModelTrace
from inaproto_controller.cluster.step_times import Speeds, StepTimes
from inaproto_controller.planning.turns.turns import TurnConfig
from inaproto_controller.simulate.shared_by_turns import SharedByTurns

_STEPS = 30


class Seen(NamedTuple):
    """An all-reduce of one rank, in order; seconds of one clock."""

    nbytes: int
    path: str
    submitted: float
    ended: float


@dataclass(frozen=True, slots=True)
class MeasuredSpeeds(Speeds):
    plain: Mapping[int, float] = field(default_factory=dict)
    """Seconds, by bytes."""

    def operation(self, nbytes: int, *, hosts: int, ina: bool) -> float:
        return self.plain[nbytes] / (self.ina_ratio if ina else 1.0)


def plain_seconds(seen: Iterable[Seen], path: str) -> dict[int, float]:
    """Median by bytes, of those that went by ``path``: from when the one before has ended, for they are
    serial."""
    found: dict[int, list[float]] = defaultdict(list)
    before = 0.0
    for one in seen:
        if one.path == path:
            found[one.nbytes].append(one.ended - max(one.submitted, before))
        before = one.ended
    return {nbytes: median(seconds) for nbytes, seconds in found.items()}


def predicted_ina_share(
    jobs: Mapping[str, tuple[ModelTrace, Mapping[int, float]]], *, ina_ratio: float, round_trip: float
) -> float | None:
    """``jobs``: the trace of a step, and plain seconds by bytes; those of which a size was not seen are left
    out. None if none is left."""
    times = [
        StepTimes(trace, MeasuredSpeeds(1.0, ina_ratio, 0.0, plain=plain), hosts=2)
        for trace, plain in jobs.values()
        if all(nbytes in plain for nbytes in trace.nbytes)
    ]
    if not times:
        return None
    world = SharedByTurns(times, TurnConfig(round_trip=round_trip))
    world.run(_STEPS * max(one.step_plain for one in times))
    return world.ina_operations / world.operations
