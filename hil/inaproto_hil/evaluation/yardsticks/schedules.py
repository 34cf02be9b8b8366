"""The least total time of a few jobs that share one switch: each operation with INA or without, all tried.

MINA, section III-D, decides one operation at a time by a score. Here are the decisions that are best in the
end, for jobs of few operations: all start at 0 and are in the group alone; an operation that begins while INA
is free may use it or not; it never waits; of events at the same time that of the earlier job is first. Least
is the sum of the times at which jobs end.

Branch and bound: what is left to do depends on the jobs' places in their steps and on times from now on, so
equal states are searched once; a branch is left when INA for all that is left, for all jobs at once, would
not make it better than the best schedule known. All times are multiples of ``GRID_SECONDS``, whose sums are
exact: what is equal is seen to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import Final, NamedTuple

from inaproto.core.sharing.model_trace import ModelTrace
from inaproto.errors import ConfigError, LocalMisuse
from inaproto_controller.cluster.step_times import Speeds, StepTimes
from inaproto_controller.planning.turns.job_run import JobRun, Phase
from inaproto_controller.planning.turns.policy import Policy, may_use

GRID_SECONDS: Final = 2.0**-40
SECONDS_MAX: Final = 4096.0
"""Most seconds of all jobs without INA: sums of multiples are exact in a double up to twice that."""
STATES_MAX: Final = 1_000_000
OPERATIONS_MAX: Final = 400
"""Most operations of all jobs; a branch is as deep."""


class FiniteJob(NamedTuple):
    times: StepTimes
    """Multiples of ``GRID_SECONDS``."""
    steps: int


class _GridSpeeds(Speeds):
    def operation(self, nbytes: int, *, hosts: int, ina: bool) -> float:
        return _on_grid(super().operation(nbytes, hosts=hosts, ina=ina))


def _on_grid(seconds: float) -> float:
    return round(seconds / GRID_SECONDS) * GRID_SECONDS


def finite_job(trace: ModelTrace, speeds: Speeds, *, hosts: int, steps: int) -> FiniteJob:
    """The job with all times rounded to multiples, a picosecond each."""
    ready = tuple(_on_grid(start / speeds.gpu_speedup) for start in trace.ready)
    rounded = replace(trace, ready=ready, duration=_on_grid(trace.duration / speeds.gpu_speedup))
    grid = _GridSpeeds(speeds.bandwidth, speeds.ina_ratio, speeds.latency)
    return FiniteJob(StepTimes(rounded, grid, hosts=hosts), steps)


@dataclass(frozen=True, slots=True)
class Schedule:
    seconds: float
    """Sum of the times at which jobs end."""
    uses_ina: tuple[bool, ...]
    """Whether each operation uses INA, in the order in which they begin."""
    decisions: tuple[bool, ...]
    """Decisions for those that began while INA was free."""
    states: int = 0
    """States that were searched."""


Decide = Callable[[Sequence[JobRun], int, float], bool]
"""Decides whether an operation uses INA, which is free: of the jobs that still run, the number of that whose
operation begins, and now."""


def by_policy(policy: Policy) -> Decide:
    def decide(runs: Sequence[JobRun], number: int, now: float) -> bool:
        if policy is not Policy.SCORE:
            return policy is Policy.GREEDY
        mine = runs[number].next_operation()
        assert mine is not None
        others = (run.next_operation() for other, run in enumerate(runs) if other != number)
        return may_use(mine, (one for one in others if one is not None), now)

    return decide


def by_list(decisions: Iterable[bool]) -> Decide:
    """One for each time that it is asked."""
    rest = iter(decisions)
    return lambda runs, number, now: next(rest)


def run_schedule(jobs: Sequence[FiniteJob], decide: Decide) -> Schedule:
    """What becomes of the jobs, event by event."""
    runs = [JobRun(job.times, start=0.0, steps_max=job.steps) for job in jobs]
    seconds = 0.0
    used: list[bool] = []
    decisions: list[bool] = []
    while runs:
        number = min(range(len(runs)), key=lambda one: runs[one].at)
        run = runs[number]
        if run.phase is Phase.BEGINS:
            used.append(False)
            if not any(one.uses_ina for one in runs):
                decisions.append(decide(runs, number, run.at))
                used[-1] = decisions[-1]
            run.begin(uses_ina=used[-1])
        elif run.phase is Phase.ENDS:
            run.end()
        elif not run.end_step():
            seconds += run.at
            del runs[number]
    return Schedule(seconds, tuple(used), tuple(decisions))


class _Place(NamedTuple):
    """Place of a job, in time from now on."""

    job: int
    phase: int
    """0: an operation begins, 1: one ends, 2: a step ends."""
    operation: int
    at: float
    step_start: float
    uses_ina: bool
    left: int
    """Steps, this one included."""


_State = tuple[_Place, ...]


class _Known(NamedTuple):
    value: float
    """Seconds from now on, or less if not exact."""
    is_exact: bool
    choice: bool


def best_schedule(jobs: Sequence[FiniteJob], *, states_max: int = STATES_MAX) -> Schedule | None:
    """None if it takes more states.

    Raises ``LocalMisuse`` for times that are no multiples and jobs that are too long.
    """
    _require_exact(jobs)
    search = _Search(jobs, states_max)
    known = min(run_schedule(jobs, by_policy(policy)).seconds for policy in Policy)
    try:
        # More than is known, if by little: then the search finds a schedule itself.
        search.least(search.first, known + GRID_SECONDS - search.before)
    except _TooMany:
        return None
    found = run_schedule(jobs, by_list(search.choices()))
    return replace(found, states=len(search.known))


def _require_exact(jobs: Sequence[FiniteJob]) -> None:
    seconds = sum(job.times.step_plain * job.steps for job in jobs) * len(jobs)
    operations = sum(job.times.count * job.steps for job in jobs)
    if min(job.steps for job in jobs) < 1 or operations > OPERATIONS_MAX or seconds > SECONDS_MAX:
        raise LocalMisuse(
            f"a best schedule: at least a step each, at most {OPERATIONS_MAX} operations and {SECONDS_MAX} s"
        )
    for job in jobs:
        times = job.times
        for value in (*times.ready, times.duration, *times.plain, *times.ina):
            if not (value / GRID_SECONDS).is_integer():
                raise LocalMisuse(f"a best schedule: {value} s is no multiple of 2^-40 s; see finite_job")


class _TooMany(Exception):
    pass


class _Search:
    """States are those at which an operation begins while INA is free: its job is the first due."""

    def __init__(self, jobs: Sequence[FiniteJob], states_max: int) -> None:
        self._times = [job.times for job in jobs]
        self._states_max = states_max
        self.known: dict[_State, _Known] = {}
        begin = tuple(
            _Place(number, 0, 0, job.times.ready[0], 0.0, False, job.steps) for number, job in enumerate(jobs)
        )
        self.before, self.first = self._until_choice(begin)

    def least(self, state: _State, budget: float) -> float:
        """Least sum of seconds until jobs end, from now on; where that is not below ``budget``, something
        that is neither, and not above it."""
        if not state:
            return 0.0
        known = self.known.get(state)
        if known is not None and (known.is_exact or known.value >= budget):
            return known.value
        if known is None and len(self.known) >= self._states_max:
            raise _TooMany
        self.known.setdefault(state, _Known(0.0, False, False))
        best, choice = inf, True
        for uses_ina in (True, False):
            seconds, after = self._until_choice(self._begin(state, uses_ina=uses_ina))
            found = seconds + self._bound(after)
            limit = min(best, budget)
            if found < limit:
                found = seconds + self.least(after, limit - seconds)
            if found < best:
                best, choice = found, uses_ina
        self.known[state] = _Known(best, best < budget, choice)
        return best

    def choices(self) -> list[bool]:
        """Choices of the best schedule, once it is found."""
        state, found = self.first, []
        while state:
            choice = self.known[state].choice
            found.append(choice)
            _, state = self._until_choice(self._begin(state, uses_ina=choice))
        return found

    def _begin(self, state: _State, *, uses_ina: bool) -> _State:
        """The operation that is due."""
        due = _due(state)
        place = state[due]
        times = self._times[place.job]
        seconds = (times.ina if uses_ina else times.plain)[place.operation]
        begun = place._replace(phase=1, at=place.at + seconds, uses_ina=uses_ina)
        return (*state[:due], begun, *state[due + 1 :])

    def _until_choice(self, state: _State) -> tuple[float, _State]:
        """All that is decided already: seconds that pass, summed over jobs, and the state then, at its 0."""
        places, now, seconds = list(state), 0.0, 0.0
        while places:
            due = _due(places)
            place = places[due]
            seconds += (place.at - now) * len(places)
            now = place.at
            if place.phase == 0:
                if not any(one.uses_ina for one in places):
                    break
                plain = self._times[place.job].plain[place.operation]
                places[due] = place._replace(phase=1, at=now + plain)
            elif place.phase == 1:
                places[due] = self._ended(place)
            elif place.left == 1:
                del places[due]
            else:
                ready = self._times[place.job].ready[0]
                places[due] = _Place(place.job, 0, 0, now + ready, now, False, place.left - 1)
        return seconds, tuple(
            one._replace(at=one.at - now, step_start=one.step_start - now) for one in places
        )

    def _ended(self, place: _Place) -> _Place:
        times, index = self._times[place.job], place.operation + 1
        if index < times.count:
            at = max(place.at, place.step_start + times.ready[index])
            return place._replace(phase=0, operation=index, at=at, uses_ina=False)
        at = max(place.at, place.step_start + times.duration)
        return place._replace(phase=2, operation=index, at=at, uses_ina=False)

    def _bound(self, state: _State) -> float:
        """All jobs use INA for all that they begin from now on."""
        seconds = 0.0
        for place in state:
            times = self._times[place.job]
            end = place.at
            if place.phase < 2:
                index = place.operation + place.phase
                end = place.step_start + max(
                    place.at - place.step_start + times.tail_ina[index], times.floor_ina[index]
                )
            seconds += end + (place.left - 1) * times.step_ina
        return seconds


def _due(places: Sequence[_Place]) -> int:
    return min(range(len(places)), key=lambda one: places[one].at)


def coarse(trace: ModelTrace, operations: int) -> ModelTrace:
    """The same bytes in that many operations, each of consecutive ones, about equally many: ready when the
    last of them is. Raises ``ConfigError`` for more than it has."""
    count = len(trace.ready)
    if not 1 <= operations <= count:
        raise ConfigError(f"model trace {trace.name}: 1 to {count} operations, not {operations}")
    bounds = [count * number // operations for number in range(operations + 1)]
    return ModelTrace(
        f"{trace.name}/{operations}",
        trace.duration,
        tuple(trace.ready[end - 1] for end in bounds[1:]),
        tuple(sum(trace.nbytes[first:end]) for first, end in pairwise(bounds)),
    )
