"""Whose turn is next on a pool of switch memory, and for which operations (MINA, section III-D, by turns).

The paper decides for each operation when it begins: free INA changes hands between two operations, at no
cost. Here INA is had by turns that are agreed (sharing by two-phase commit): one stands a round trip after
the one before it has drained, and an operation that begins sooner goes without. So a turn is a run of
operations, and it is planned ahead, from what is known of each job: its step times and where it is. What
comes of a plan is :class:`Proposal`: the job, operations ``[first, until)``, and when it has to be asked for.

There are two rules. ``SCORE`` is the published one (:func:`may_use`), with what is predicted in place of what
is: a turn is the operations of a job that it gives INA one after the other. With turns that cost nothing it
does what the published simulator does. ``NEED``, ours, gives longer turns; what an operation gains is the
published score's numerator (:meth:`NextOperation.gain`), and beyond it:

- *Need*. The fewest last operations of a step that must use INA for it to end as early as it still can: the
  short paper's suffix partition, from where the job is now. Until it has begun, INA is good for a job, but
  can be done without.
- Of the jobs that gain, that is first whose operation begins first. Its turn goes on while it gains, to the
  end of its step at most.
- It is not begun, or ends sooner, where another's need begins, if the holder then loses nothing, or less than
  ``yield_share`` of what the other would, round trips counted. Where both would lose, the holder stays: jobs
  of equal steps that are in step get out of it by that, and are not in each other's way any more. Giving way
  to who loses a bit more keeps them in step for ever.

A plan is a function of the facts; nothing is remembered. It takes time in proportion to the operations of all
steps, and to those of one times the jobs (:mod:`inaproto_controller.planning.turns.step_ends`). It is asked
for late, a round trip and ``lead`` before its first operation begins, so that what is decided rests on late
facts; a turn that stands is never changed. Where nobody else gains anything, a turn has no end, until
somebody does.

Seconds of the controller's clock. Capacities above one: where several units are free, those who begin next
get the others, and are in nobody's way; where none is, the turn is planned for the one that is free first.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final, NamedTuple

from inaproto.errors import ConfigError, LocalMisuse
from inaproto.units import JobId, OpIndex
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.planning.turns.job_run import JobRun, Phase
from inaproto_controller.planning.turns.policy import may_use
from inaproto_controller.planning.turns.step_ends import EndsFrom, EndsOfStep, best_end

_NOTHING: Final = 1e-9
"""Seconds that make no difference."""
_EVENTS_MAX: Final = 20_000
"""Most events of a job, from what was heard last: whose place is further ahead is not planned for."""
_OPERATIONS_MAX: Final = 256
"""Most operations of a turn by the published rule: what is predicted of later ones is worth little."""


class TurnRule(Enum):
    SCORE = "score"
    NEED = "need"


@dataclass(frozen=True, slots=True)
class TurnConfig:
    round_trip: float = 1e-3
    """Between the coordinator and the hosts."""
    lead: float = 1e-3
    """Time by which a turn is asked for sooner than it must be, for what predictions are wrong by."""
    capacity: int = 1
    rule: TurnRule = TurnRule.NEED
    yield_share: float = 0.5
    round_trips_lost: float = 6.0
    """Round trips lost by a turn that is cut: as many are added to what the holder would lose."""

    def __post_init__(self) -> None:
        if min(self.round_trip, self.lead, self.yield_share, self.round_trips_lost) < 0:
            raise ConfigError(f"turns: a number is negative: {self}")
        if self.capacity < 1:
            raise ConfigError(f"turns: capacity {self.capacity}: must be 1 or more")


class JobFacts(NamedTuple):
    """Where a job is, as was heard last."""

    job: JobId
    times: StepTimes
    operation: OpIndex
    """The last one that has begun, or that which begins next."""
    step_first: OpIndex
    """First operation of its step."""
    step_start: float
    at: float
    """When it began; or the earliest that it can."""
    is_running: bool
    uses_ina: bool = False
    """It runs, with INA."""
    weight: float = 1.0


class StandingTurn(NamedTuple):
    """Given, and not ended when its job was heard last: operations since then are expected to have had it."""

    job: JobId
    first: OpIndex
    until: OpIndex | None
    stands: float
    """From when on operations begin with INA."""


class Proposal(NamedTuple):
    job: JobId
    first: OpIndex
    until: OpIndex | None
    """None: nobody else gains anything."""
    begin: float
    """When ``first`` is expected to begin."""
    ask_at: float
    """Not before that time. Facts that come until then may change the proposal."""


class _Run(NamedTuple):
    """A run of operations, one after the other."""

    job: JobId
    first: OpIndex
    until: OpIndex
    begin: float
    is_alone: bool
    """Nobody else gains."""


def next_turn(
    jobs: Sequence[JobFacts], turns: Sequence[StandingTurn], now: float, config: TurnConfig
) -> Proposal | None:
    """None: nobody gains. ``jobs``: of one group, whoever is earlier first at equal times.

    While a turn stands that ends, this is who comes after it. Raises ``LocalMisuse``: an operation that is
    not of its step.
    """
    lines = _lines(jobs, turns, now)
    held = {line.job: line.turn_end() for line in lines if line.holds()}
    is_free = len(held) < config.capacity
    free_at = now if is_free else min(held.values())
    able = [
        line
        for line in lines
        if line.job not in held or not (is_free or line.is_open or held[line.job] > free_at)
    ]
    find = _scored if config.rule is TurnRule.SCORE else _needed
    found = find(able, free_at + config.round_trip, config, max(config.capacity - len(held), 1))
    if found is None:
        return None
    has_end = not found.is_alone or 1 < config.capacity < len(lines)
    ask_at = max(found.begin - config.round_trip - config.lead, now)
    return Proposal(found.job, found.first, found.until if has_end else None, found.begin, ask_at)


def _lines(jobs: Sequence[JobFacts], turns: Sequence[StandingTurn], now: float) -> list[_Line]:
    """Lines of jobs that gain, and of whom enough was heard."""
    by_job = {one.job: one for one in turns}
    lines = [_Line(one, by_job.get(one.job)) for one in jobs if one.times.step_ina < one.times.step_plain]
    return [line for line in lines if line.advance(now)]


def _needed(lines: Sequence[_Line], earliest: float, config: TurnConfig, units: int) -> _Run | None:
    """``units``: that are free, or will be."""
    found = (_Wish.of(line, earliest) for line in lines)
    wishes = sorted((one for one in found if one is not None), key=lambda one: one.begin)
    if not wishes:
        return None
    is_alone = len(wishes) <= units
    for wish in wishes:
        others = [one for one in wishes if one is not wish]
        until = wish.until(others[units - 1 :], config)
        if until > wish.first:
            return _Run(wish.job, wish.first, until, wish.begin, is_alone)
    wish = min(wishes, key=lambda one: one.need)
    return _Run(wish.job, wish.first, OpIndex(wish.first + 1), wish.begin, is_alone)


def _scored(lines: Sequence[_Line], earliest: float, config: TurnConfig, units: int) -> _Run | None:
    """Operations that the published rule would give INA, until it gave it to another or to none."""
    ahead = [line.copy() for line in lines]
    found: _Run | None = None
    for _ in range(_EVENTS_MAX if ahead else 0):
        line = min(ahead, key=lambda one: one.run.at)
        run = line.run
        if run.phase is not Phase.BEGINS or run.at < earliest - _NOTHING:
            line.move()
            continue
        others = [one.run for one in ahead if one is not line]
        uses_ina = _may_use(run, others, units)
        if uses_ina and found is None:
            found = _Run(line.job, line.operation, line.operation, run.at, is_alone=len(others) < units)
        if found is not None:
            is_own = line.job == found.job
            is_over = uses_ina is not is_own and (is_own or units == 1)
            if is_over or found.until - found.first >= _OPERATIONS_MAX:
                return found
            if is_own:
                found = found._replace(until=OpIndex(line.operation + 1))
        run.begin(uses_ina=uses_ina)
    return found


def _may_use(run: JobRun, others: Sequence[JobRun], units: int) -> bool:
    """If a unit is free that nobody who goes without gains more from. Of one unit: the published rule."""
    mine = run.next_operation()
    rivals = [one.next_operation() for one in others if not one.uses_ina]
    assert mine is not None, "jobs are without end here"
    left = units - (len(others) - len(rivals))
    return left > sum(one is not None and not may_use(mine, [one], run.at) for one in rivals)


class _Line:
    """What a job is expected to do, operation by operation."""

    def __init__(self, facts: JobFacts, turn: StandingTurn | None) -> None:
        self.job = facts.job
        self._turn = turn
        self._first = facts.step_first
        run = JobRun(facts.times, start=facts.step_start, weight=facts.weight)
        run.index = facts.operation - facts.step_first
        if not 0 <= run.index < facts.times.count:
            raise LocalMisuse(
                f"job {facts.job}: operation {facts.operation} of a step from {facts.step_first}"
            )
        ready = facts.step_start + facts.times.ready[run.index]
        run.at = max(facts.at, ready)
        if facts.is_running:
            run.at = facts.at
            run.begin(uses_ina=facts.uses_ina)
        self.run = run

    @property
    def operation(self) -> OpIndex:
        """Operation of the job that runs, or is next."""
        return OpIndex(self.number(self.run))

    def number(self, run: JobRun) -> OpIndex:
        return OpIndex(self._first + run.steps * run.times.count + run.index)

    @property
    def is_open(self) -> bool:
        return self._turn is not None and self._turn.until is None

    def advance(self, until: float) -> bool:
        """False: it is not known what the job does then."""
        for _ in range(_EVENTS_MAX):
            if self.run.at >= until:
                return True
            self.move()
        return False

    def move(self) -> None:
        run, turn = self.run, self._turn
        if run.phase is Phase.BEGINS:
            is_inside = turn is not None and turn.first <= self.operation and not self._is_past(turn)
            run.begin(uses_ina=is_inside and turn is not None and run.at >= turn.stands)
        else:
            _pass(run)

    def _is_past(self, turn: StandingTurn) -> bool:
        return turn.until is not None and self.operation >= turn.until

    def holds(self) -> bool:
        turn = self._turn
        return turn is not None and (self.run.uses_ina or not self._is_past(turn))

    def turn_end(self) -> float:
        """End of the turn of a job that holds. A turn without end is ended for others behind the next
        operation that it may be agreed upon."""
        ahead = self.copy()
        turn = ahead._turn
        assert turn is not None, "asked of holders"
        if turn.until is None:
            ahead._turn = turn._replace(until=OpIndex(max(turn.first, self.operation) + 1))
        for _ in range(_EVENTS_MAX):
            end = ahead.run.at
            ahead.move()
            if not ahead.holds():
                return end
        return inf

    def copy(self) -> _Line:
        found = copy(self)
        found.run = copy(self.run)
        return found


class _Wish:
    """The first operation of a job that begins late enough and gains."""

    def __init__(self, line: _Line, run: JobRun) -> None:
        self._line = line
        self.job = line.job
        self._run = run
        self.first = line.number(run)
        self.begin = run.at
        self.need = _need(run)
        self.weight = run.weight
        self._in_need: EndsOfStep | None = None

    @classmethod
    def of(cls, line: _Line, earliest: float) -> _Wish | None:
        """None: no operation of a whole step gains."""
        ahead = line.copy()
        if not ahead.advance(earliest - _NOTHING):
            return None
        run = ahead.run
        while run.phase is not Phase.BEGINS:
            _pass(run)
        for _ in range(2 * run.times.count):
            if _gain(run) > _NOTHING:
                return cls(ahead, run)
            _go_without(run)
        return None

    def until(self, others: Sequence[_Wish], config: TurnConfig) -> OpIndex:
        """Where its turn would end: at its first operation if it is better given to another."""
        run = copy(self._run)
        rivals = [_Rival(one, config) for one in others if one.need < inf]
        while _gain(run) > _NOTHING:
            end = run.at + run.times.ina[run.index]
            if any(one.goes_first(run, end) for one in rivals):
                return self._line.number(run)
            run.begin(uses_ina=True)
            run.end()
            if run.phase is Phase.STEPS:
                break
        return self._line.number(run)

    def in_need(self) -> EndsOfStep:
        """Where its need begins. Not asked of one without."""
        if self._in_need is None:
            self._in_need = EndsOfStep(_reached(self._run, self.need))
        return self._in_need


class _Rival:
    """Another one's wish, as a turn is planned operation by operation."""

    def __init__(self, wish: _Wish, config: TurnConfig) -> None:
        self._wish, self._config = wish, config
        self._ends: EndsFrom | None = None

    def goes_first(self, holder: JobRun, end: float) -> bool:
        """Before the operation of ``holder`` that would end at ``end``."""
        config, wish = self._config, self._wish
        if end + config.round_trip <= wish.need:
            return False
        own = wish.in_need()
        if self._ends is None:
            self._ends = EndsFrom(holder, own.best + config.round_trip)
        holder_best = best_end(holder)
        holder_loses = holder.weight * (self._ends.end(holder) - holder_best)
        own_loses = wish.weight * (own.end(holder_best + config.round_trip) - own.best)
        if own_loses - holder_loses <= max(wish.weight * config.round_trip, _NOTHING):
            return False
        cut = holder.weight * config.round_trips_lost * config.round_trip
        return holder_loses <= _NOTHING or holder_loses + cut <= config.yield_share * own_loses


def _pass(run: JobRun) -> None:
    """The next event of a job, which is not the beginning of an operation."""
    if run.phase is Phase.ENDS:
        run.end()
    else:
        run.end_step()


def _go_without(run: JobRun) -> None:
    """Go without to the beginning of the next operation."""
    run.begin(uses_ina=False)
    while run.phase is not Phase.BEGINS:
        _pass(run)


def _reached(run: JobRun, begin: float) -> JobRun:
    """Without INA, at the first operation that does not begin before."""
    ahead = copy(run)
    for _ in range(_EVENTS_MAX):
        if ahead.at >= begin - _NOTHING:
            break
        _go_without(ahead)
    return ahead


def _gain(run: JobRun) -> float:
    operation = run.next_operation()
    assert operation is not None, "jobs are without end here"
    return operation.gain()


def _need(run: JobRun) -> float:
    """When the first operation begins that must use INA for its step to end as early as it still can, in this
    step or the next; infinite if there is none."""
    ahead = copy(run)
    for _ in range(2):
        times, at = ahead.times, ahead.at - ahead.step_start
        best = max(at + times.tail_ina[ahead.index], times.floor_ina[ahead.index])
        for number in range(ahead.index, times.count):
            begin = max(at, times.ready[number])
            at = begin + times.plain[number]
            if max(at + times.tail_ina[number + 1], times.floor_ina[number + 1]) > best + _NOTHING:
                return ahead.step_start + begin
        steps = ahead.steps
        while ahead.steps == steps:
            _go_without(ahead)
    return inf
