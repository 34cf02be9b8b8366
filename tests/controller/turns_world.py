"""Jobs that share a pool by turns, operation by operation: what :mod:`inaproto.core.sharing_turns` proposes
is agreed a round trip later, and stands no sooner than a round trip after the turn before it has drained."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from inaproto.core.job_run import JobRun, Phase
from inaproto.core.sharing_turns import JobFacts, Proposal, StandingTurn, TurnConfig, next_turn
from inaproto.core.step_times import StepTimes
from inaproto.units import JobId, OpIndex
from inaproto_controller.simulate.shared_switch import Shared


class TurnDone(NamedTuple):
    job: int
    first: int
    until: int | None
    stands: float
    drained: float


@dataclass
class TurnsWorld:
    """``error``: relative, of each operation's time, drawn; what is planned with are the times without."""

    times: Sequence[StepTimes]
    config: TurnConfig
    starts: Sequence[float] = ()
    error: float = 0.0
    seed: int = 0
    heard_after: float = 0.0
    """How long the planner waits for the news that an operation has begun or ended."""
    looks_ahead: bool = False
    """What comes next is planned while the last operation of a turn runs, too; it is only noted."""
    turns: list[TurnDone] = field(default_factory=list)
    proposals: list[tuple[float, Proposal | None]] = field(default_factory=list)
    plans: int = 0
    foretold: int = 0
    """Turns that were proposed while the one before stood."""

    def __post_init__(self) -> None:
        starts = self.starts or [0.0] * len(self.times)
        self.runs = [JobRun(one, start=start) for one, start in zip(self.times, starts, strict=True)]
        self._facts: list[tuple[float, list[JobFacts]]] = []
        self._random = random.Random(f"{self.seed}/turns")
        self._turn: StandingTurn | None = None
        self._freed = -1.0
        self._wake = 0.0
        self._next: Proposal | None = None
        self._granted: set[tuple[JobId, OpIndex]] = set()

    def is_granted(self, proposal: Proposal) -> bool:
        return (proposal.job, proposal.first) in self._granted

    def run(self, until: float) -> Shared:
        events = len(self.runs)
        now = 0.0
        while now <= until:
            number = min(range(len(self.runs)), key=lambda one: self.runs[one].at)
            run = self.runs[number]
            if self._wake <= run.at:
                now = self._wake
                self._plan(now)
                continue
            now = run.at
            events += 1
            self._advance(number, run)
            self._drain(now)
            self._tell(now)
            self._plan(now)
        return Shared(events, now, self.runs)

    def _advance(self, number: int, run: JobRun) -> None:
        turn = self._turn
        if run.phase is Phase.BEGINS:
            index = self._index(run)
            run.begin(
                uses_ina=turn is not None
                and turn.job == name(number)
                and turn.first <= index
                and (turn.until is None or index < turn.until)
                and turn.stands <= run.at
            )
            if self.error:
                run.at += (run.at - run.began) * self._random.uniform(-self.error, self.error)
        elif run.phase is Phase.ENDS:
            run.end()
        else:
            run.end_step()

    def _index(self, run: JobRun) -> int:
        return run.steps * run.times.count + run.index

    def _drain(self, now: float) -> None:
        turn = self._turn
        if turn is None or turn.until is None:
            return
        number = int(turn.job)
        run = self.runs[number]
        if self._index(run) >= turn.until and not run.uses_ina:
            self.turns.append(TurnDone(number, turn.first, turn.until, turn.stands, now))
            self._turn, self._freed = None, now

    def _tell(self, now: float) -> None:
        found = [
            JobFacts(
                name(number),
                run.times,
                operation=OpIndex(self._index(run)),
                step_first=OpIndex(run.steps * run.times.count),
                step_start=run.step_start,
                at=run.began if run.phase is Phase.ENDS else run.at,
                is_running=run.phase is Phase.ENDS,
                uses_ina=run.uses_ina,
            )
            for number, run in enumerate(self.runs)
            if run.phase is not Phase.STEPS
        ]
        if len(found) == len(self.runs):
            self._facts.append((now + self.heard_after, found))

    def _plan(self, now: float) -> None:
        while len(self._facts) > 1 and self._facts[1][0] <= now:
            self._facts.pop(0)
        self._wake = float("inf")
        if not self._facts or self._facts[0][0] > now:
            return
        turn = self._turn
        if turn is not None and turn.until is not None:
            run = self.runs[int(turn.job)]
            if self.looks_ahead and self._index(run) == turn.until - 1 and run.uses_ina:
                self._next = next_turn(self._facts[0][1], [turn], now, self.config)
            return
        self.plans += 1
        found = next_turn(self._facts[0][1], [] if turn is None else [turn], now, self.config)
        self.proposals.append((now, found))
        if found is None:
            return
        if found.ask_at > now:
            self._wake = found.ask_at
            return
        if turn is not None:  # it had no end: its holder is told one, a round trip away
            run = self.runs[int(turn.job)]
            self._turn = turn._replace(until=OpIndex(self._index(run) + 1))
            return
        if self._next is not None and (self._next.job, self._next.first) == (found.job, found.first):
            self.foretold += 1
        self._granted.add((found.job, found.first))
        stands = max(now, self._freed) + self.config.round_trip
        self._turn = StandingTurn(found.job, found.first, found.until, stands)


def name(number: int) -> JobId:
    return JobId(str(number))
