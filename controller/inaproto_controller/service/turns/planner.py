"""Whose turn is wished for next on a pool, from what hosts report of their jobs.

Jobs whose training step is known are planned for by :mod:`inaproto_controller.planning.turns.turns`. A job of
which that is not known (yet) takes turns of a few operations with the others, whoever has waited longest
first; so it is measured, and nobody is left out. So do all where plans would take long: nobody's pattern may
keep the controller from its other work. A job that is alone has a turn without end.

All is asked for again at every event; nothing is remembered but who had a turn when.

Speeds: what an all-reduce takes without INA is measured by the hosts; with INA it is taken to be
``ina_ratio`` times as fast, and not measured: what the hosts see of it depends on who else sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median
from typing import Final, NamedTuple

from inaproto.core.sharing.communication_pattern import Pattern
from inaproto.core.sharing.events import TurnView, TurnWanted
from inaproto.errors import ConfigError
from inaproto.units import Epoch, JobId, OpIndex, S
from inaproto_controller.cluster.step_times import Speeds, StepTimes
from inaproto_controller.planning.turns.turns import JobFacts, StandingTurn, TurnConfig, next_turn

UNMEASURED_OPERATIONS: Final = 8
"""Operations of a turn of a job whose step is not known, where others want turns, too."""
ROUND_TRIP_S: Final = 5e-3
"""Between the wish for a turn and its standing, until that is seen: three messages, and a write to disk."""
ROUND_TRIPS: Final = 9
"""Round trips that were seen last."""
ROUND_TRIPS_MIN: Final = 3
"""Round trips that must be seen before they count."""
PATIENCE_S: Final = 0.25
"""How long a pool is left free for a turn that is asked for later; or ten round trips. Where all-reduces
end sooner than predicted, that time never comes: the next has begun by then, and that after it is far off."""
ROUND_TRIP_SHARE: Final = 1.25
"""Share of their median by which a turn is asked for sooner."""
PLANNED_OPERATIONS_MAX: Final = 8_192
"""Most operations, of one step each of all jobs, that turns are planned for. A plan takes some microseconds
for each."""
PLANNED_JOBS_MAX: Final = 64
AGE_MAX: Final = 10.0
"""Seconds; a job that was not heard of for so long is not where it would be by its step."""


@dataclass(frozen=True, slots=True)
class PlannerConfig:
    ina_ratio: float = 2.0
    latency: float = 50e-6
    """Latency of an all-reduce, seconds."""
    turns: TurnConfig = field(default_factory=lambda: TurnConfig(round_trip=ROUND_TRIP_S))


class Place(NamedTuple):
    """Place of a seat, in the controller's time, seconds."""

    operation: int
    is_running: bool
    uses_ina: bool
    at: float
    heard: float
    step_first: int
    step_start: float | None


@dataclass(slots=True)
class SeatNews:
    """What was heard of a seat last."""

    place: Place | None = None
    pattern: Pattern | None = None
    bandwidth: int = 0

    @property
    def step_ns(self) -> int:
        """How long a step takes; 0 if that is not known."""
        return 0 if self.pattern is None else self.pattern.duration_ns

    @property
    def longest_ns(self) -> int:
        """How long the greatest all-reduce of a step takes; 0 if that is not known."""
        return max(self.pattern.nbytes) * S // self.bandwidth if self.pattern and self.bandwidth else 0


class Wish(NamedTuple):
    wanted: TurnWanted | None
    """None: nothing is to change now."""
    again_at: float
    """When this is to be asked again, whatever happens; may be infinite."""


class TurnPlanner:
    def __init__(self, config: PlannerConfig | None = None) -> None:
        self._config = config or PlannerConfig()
        self._served: dict[JobId, Epoch] = {}
        """Last turn of each job."""
        self._stands: dict[Epoch, float] = {}
        self._times: dict[JobId, tuple[object, StepTimes | None]] = {}
        """Times, and of what they are: the same is not worked out again."""
        self._free_since: float | None = None
        """When a turn was put off first, since the last one."""
        self._took: deque[float] = deque(maxlen=ROUND_TRIPS)

    def took(self, seconds: float) -> None:
        """A round has been decided upon, so long after it began."""
        self._took.append(seconds)

    @property
    def round_trip(self) -> float:
        """Round trip that plans reckon with, seconds."""
        if len(self._took) < ROUND_TRIPS_MIN:
            return self._config.turns.round_trip
        return ROUND_TRIP_SHARE * median(self._took)

    def stands(self, job: JobId, epoch: Epoch, now: float) -> None:
        """A turn has been decided upon."""
        self._served[job] = max(epoch, self._served.get(job, epoch))
        self._stands.setdefault(epoch, now)

    def wish(self, jobs: Mapping[JobId, Sequence[SeatNews]], turns: Sequence[TurnView], now: float) -> Wish:
        """``jobs``: those that can have turns, each with all its seats."""
        self._forget(jobs, turns)
        open_turn = next((one.turn for one in turns if one.turn.until is None), None)
        if not jobs:
            return Wish(TurnWanted(None), inf)
        facts = {job: found for job in jobs if (found := self._facts(job, jobs[job], now)) is not None}
        others = [job for job in jobs if job not in facts]
        if not others and _is_quick(facts.values()):
            return self._planned(facts, turns, now)
        waiting = sorted(jobs, key=lambda job: (self._served.get(job, Epoch(0)), job))
        standing = {one.turn.job for one in turns}
        found_job = next((job for job in waiting if job not in standing), None)
        if found_job is None:
            alone = len(jobs) == 1 and open_turn is None
            return Wish(TurnWanted(waiting[0]) if alone else None, inf)
        return Wish(TurnWanted(found_job, UNMEASURED_OPERATIONS if len(jobs) > 1 else None), inf)

    def _planned(self, facts: Mapping[JobId, JobFacts], turns: Sequence[TurnView], now: float) -> Wish:
        standing = [
            StandingTurn(one.turn.job, one.turn.first, one.turn.until, self._stands.get(one.turn.epoch, now))
            for one in turns
            if one.turn.job in facts
        ]
        config = replace(self._config.turns, round_trip=self.round_trip)
        proposal = next_turn(list(facts.values()), standing, now, config)
        if proposal is None:
            return Wish(None, inf)
        if turns:
            self._free_since = None
        elif self._free_since is None:
            self._free_since = now
        impatient_at = inf
        if self._free_since is not None:
            impatient_at = self._free_since + max(PATIENCE_S, 10 * self.round_trip)
        if min(proposal.ask_at, impatient_at) > now:
            return Wish(None, min(proposal.ask_at, impatient_at))
        return Wish(TurnWanted(proposal.job, None, proposal.first, proposal.until), inf)

    def steps(self) -> Mapping[JobId, StepTimes]:
        """Steps of jobs whose step was known when turns were planned last."""
        return {job: times for job, (_, times) in self._times.items() if times is not None}

    def _forget(self, jobs: Mapping[JobId, Sequence[SeatNews]], turns: Sequence[TurnView]) -> None:
        standing = {one.turn.epoch for one in turns}
        self._stands = {epoch: at for epoch, at in self._stands.items() if epoch in standing}
        self._served = {job: epoch for job, epoch in self._served.items() if job in jobs}
        self._times = {job: times for job, times in self._times.items() if job in jobs}

    def _facts(self, job: JobId, seats: Sequence[SeatNews], now: float) -> JobFacts | None:
        """None: its step is not known."""
        patterns = [seat.pattern for seat in seats if seat.pattern is not None]
        places = [seat.place for seat in seats if seat.place is not None]
        if len(patterns) < len(seats) or not places:
            return None
        place = max(places, key=lambda one: (one.operation, one.at))
        times = self._times_of(job, patterns, min(seat.bandwidth for seat in seats), len(seats))
        if times is None or place.step_start is None or now - place.heard > AGE_MAX:
            return None
        first, start, operation = place.step_first, place.step_start, place.operation
        if operation == first + times.count and not place.is_running:
            first, start = operation, max(place.at, start + times.duration)
        if not first <= operation < first + times.count:
            return None
        return JobFacts(
            job, times, OpIndex(operation), OpIndex(first), start, place.at, place.is_running, place.uses_ina
        )

    def _times_of(
        self, job: JobId, patterns: Sequence[Pattern], bandwidth: int, hosts: int
    ) -> StepTimes | None:
        if not bandwidth or len(patterns[0].nbytes) > PLANNED_OPERATIONS_MAX:
            return None
        key, known = (tuple(patterns), bandwidth), self._times.get(job)
        is_known = known is not None and known[0] == key
        times = known[1] if known is not None and is_known else self._timed(job, patterns, bandwidth, hosts)
        self._times[job] = (key, times)
        return times

    def _timed(self, job: JobId, patterns: Sequence[Pattern], bandwidth: int, hosts: int) -> StepTimes | None:
        of_job = Pattern.of_job(patterns)
        if of_job is None:
            return None
        speeds = Speeds(float(bandwidth), self._config.ina_ratio, self._config.latency)
        try:
            return StepTimes(of_job.trace(job), speeds, hosts=hosts)
        except (ConfigError, ZeroDivisionError):
            return None


def _is_quick(jobs: Collection[JobFacts]) -> bool:
    """Whether they are quick to plan for."""
    operations = sum(one.times.count for one in jobs)
    return operations <= PLANNED_OPERATIONS_MAX and len(jobs) <= PLANNED_JOBS_MAX


def pattern_of(nbytes: Sequence[int], ready_ns: Sequence[int], duration_ns: int) -> Pattern | None:
    """None: it is none. What a host says is checked: its times ascend."""
    is_pattern = bool(nbytes) and len(nbytes) == len(ready_ns) and min(nbytes) > 0
    if not is_pattern or list(ready_ns) != sorted(ready_ns) or duration_ns < ready_ns[-1]:
        return None
    if max(nbytes) >= 1 << 50 or duration_ns >= 1 << 50:
        return None
    return Pattern(tuple(nbytes), tuple(ready_ns), duration_ns)
