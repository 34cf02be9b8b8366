"""Jobs that share one switch by turns: a sharing group alone, as live hosts and a live controller do it.

As :mod:`inaproto_controller.simulate.shared_switch`, but INA changes hands by turns: what
:func:`~inaproto_controller.planning.turns.turns.next_turn` proposes stands a round trip after it was asked
for, and a round trip after the turn before it has drained. An operation that begins outside a turn that
stands goes without.

:func:`better_rule` tries both rules on a group: once when it, or a pattern in it, changes.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Final, NamedTuple

from inaproto.errors import LocalMisuse
from inaproto.units import JobId, OpIndex
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.planning.turns.job_run import JobRun, Phase
from inaproto_controller.planning.turns.turns import (
    JobFacts,
    Proposal,
    StandingTurn,
    TurnConfig,
    TurnRule,
    next_turn,
)
from inaproto_controller.simulate.shared_switch import Shared

TRIAL_STEPS: Final = 40
"""Steps of the longest job."""


class TurnDone(NamedTuple):
    job: int
    first: int
    until: int
    stands: float
    drained: float


class SharedByTurns:
    """``error``: relative, of what operations take, drawn from ``seed``; plans know what they take without.

    ``heard_after``: how long the planner waits for the news of an operation, seconds. Capacity is 1.
    """

    def __init__(
        self,
        jobs: Sequence[StepTimes],
        config: TurnConfig,
        *,
        error: float = 0.0,
        heard_after: float = 0.0,
        seed: int = 0,
    ) -> None:
        if config.capacity != 1:
            raise LocalMisuse(f"a switch shared by turns serves one job at a time, not {config.capacity}")
        self.config: Final = config
        self.runs: Final = [JobRun(times, start=0.0) for times in jobs]
        self.turns: Final[list[TurnDone]] = []
        """Turns that have ended."""
        self.operations = self.ina_operations = 0
        """Operations of all jobs that have begun."""
        self._error = error
        self._heard_after = heard_after
        self._random = random.Random(f"{seed}/turns")
        self._facts: deque[tuple[float, list[JobFacts]]] = deque()
        self._turn: StandingTurn | None = None
        self._ended: StandingTurn | None = None
        """The one before: news may be older than its end."""
        self._drained = -inf
        self._wake = 0.0

    def run(self, until: float) -> Shared:
        """The first event of a job later than ``until`` is the last."""
        events, now = len(self.runs), 0.0
        while now <= until:
            number = min(range(len(self.runs)), key=lambda one: self.runs[one].at)
            run = self.runs[number]
            if self._wake <= run.at:
                self._plan(self._wake)
                continue
            now = run.at
            events += 1
            self._advance(number, run)
            self._drain(now)
            self._tell(now)
            self._plan(now)
        return Shared(events, now, self.runs)

    def planned(self, now: float, proposal: Proposal | None) -> None:
        """Called for each plan; for tests."""

    def granted(self, turn: StandingTurn) -> None:
        """Called for each turn; for tests."""

    def standing(self, now: float, facts: Sequence[JobFacts], turn: StandingTurn) -> None:
        """Called while a turn stands that ends; for tests."""

    def _advance(self, number: int, run: JobRun) -> None:
        if run.phase is Phase.BEGINS:
            run.begin(uses_ina=self._is_in_turn(number, run))
            self.operations += 1
            self.ina_operations += run.uses_ina
            run.at += (run.at - run.began) * self._random.uniform(-self._error, self._error)
        elif run.phase is Phase.ENDS:
            run.end()
        else:
            run.end_step()

    def _is_in_turn(self, number: int, run: JobRun) -> bool:
        turn, index = self._turn, index_of(run)
        if turn is None or turn.job != name_of(number) or run.at < turn.stands:
            return False
        return turn.first <= index and (turn.until is None or index < turn.until)

    def _drain(self, now: float) -> None:
        turn = self._turn
        if turn is None or turn.until is None:
            return
        run = self.runs[int(turn.job)]
        if index_of(run) >= turn.until and not run.uses_ina:
            self.turns.append(TurnDone(int(turn.job), turn.first, turn.until, turn.stands, now))
            self._turn, self._ended, self._drained = None, turn, now

    def _tell(self, now: float) -> None:
        found = [_facts(number, run) for number, run in enumerate(self.runs)]
        self._facts.append((now + self._heard_after, found))

    def _plan(self, now: float) -> None:
        self._wake = inf
        while len(self._facts) > 1 and self._facts[1][0] <= now:
            self._facts.popleft()
        if not self._facts or self._facts[0][0] > now:
            return
        facts, turn = self._facts[0][1], self._turn
        if turn is not None and turn.until is not None:
            self.standing(now, facts, turn)
            return
        told = turn or self._ended
        found = next_turn(facts, [] if told is None else [told], now, self.config)
        self.planned(now, found)
        if found is None:
            return
        if found.ask_at > now:
            self._wake = found.ask_at
        elif turn is not None:
            self._turn = turn._replace(until=OpIndex(index_of(self.runs[int(turn.job)]) + 1))
        else:
            stands = max(now, self._drained) + self.config.round_trip
            self._turn = StandingTurn(found.job, found.first, found.until, stands)
            self.granted(self._turn)


def better_rule(jobs: Sequence[StepTimes], config: TurnConfig) -> TurnRule:
    """The rule by which the group's steps are shorter, in a trial that starts at once; ``NEED`` if they are
    equal."""
    until = TRIAL_STEPS * max(times.step_plain for times in jobs)
    scores = {
        rule: SharedByTurns(jobs, replace(config, rule=rule)).run(until).score
        for rule in (TurnRule.NEED, TurnRule.SCORE)
    }
    return max(scores, key=lambda rule: scores[rule] or 0.0)


def name_of(number: int) -> JobId:
    return JobId(str(number))


def index_of(run: JobRun) -> int:
    """Index, in the job, of the operation that runs, or is next."""
    return run.steps * run.times.count + run.index


def _facts(number: int, run: JobRun) -> JobFacts:
    """Facts of a step whose operations have ended: the first of the next."""
    is_running, has_ended = run.phase is Phase.ENDS, run.phase is Phase.STEPS
    step_start = run.at if has_ended else run.step_start
    first = OpIndex((run.steps + has_ended) * run.times.count)
    at = step_start + run.times.ready[0] if has_ended else run.at
    return JobFacts(
        name_of(number),
        run.times,
        operation=first if has_ended else OpIndex(index_of(run)),
        step_first=first,
        step_start=step_start,
        at=run.began if is_running else at,
        is_running=is_running,
        uses_ina=run.uses_ina,
    )
