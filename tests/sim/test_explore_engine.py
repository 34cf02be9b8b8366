"""The search engine on toy worlds: what is right passes, each kind of wrong is found by a shortest run.

The world is mutual exclusion between two processes, in thirty lines: how another protocol is plugged in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest

from inaproto.sim.explore.engine import Interrupted, Kind, Progress, TooManyStates, explore

State = tuple[int, int, int]
"""Place of each process (0 away, 1 wanting, 2 inside, 3 done), and whose turn it is."""
Step = tuple[int, str]


@dataclass(frozen=True)
class Mutex:
    """Two processes that go inside once each. ``rule`` decides when one may enter."""

    rule: str
    symmetric: bool = False

    def initial(self) -> Iterable[State]:
        return [(0, 0, 0)]

    def successors(self, state: State) -> Iterable[tuple[Step, State]]:
        for me in (0, 1):
            place, other, turn = state[me], state[1 - me], state[2]
            if place == 0:
                yield self._go(state, me, 1, turn if self.rule == "retreat" else 1 - me, "wants in")
            elif place == 1 and self._may_enter(other, turn, me):
                yield self._go(state, me, 2, turn, "enters")
            elif place == 1 and self.rule == "retreat":
                yield self._go(state, me, 0, turn, "gives way")
            elif place == 2:
                yield self._go(state, me, 3, 1 - me, "leaves")

    def _may_enter(self, other: int, turn: int, me: int) -> bool:
        match self.rule:
            case "peterson":
                return other in (0, 3) or turn == me
            case "blind":
                return True
            case "polite":
                return other in (0, 3)
            case _:
                return other == 3 and turn == me

    @staticmethod
    def _go(state: State, me: int, place: int, turn: int, word: str) -> tuple[Step, State]:
        places = (place, state[1]) if me == 0 else (state[0], place)
        return (me, word), (*places, turn)

    def violation(self, state: State) -> str | None:
        return "both are inside" if state[:2] == (2, 2) else None

    def is_finished(self, state: State) -> bool:
        return state[:2] == (3, 3)

    def is_fault(self, step: Step) -> bool:
        return False

    def canonical(self, state: State) -> State:
        return min(state, (state[1], state[0], 1 - state[2])) if self.symmetric else state

    def describe(self, run: Sequence[tuple[State, Step]]) -> list[str]:
        return [f"process {me} {word}" for _, (me, word) in run]


def test_a_right_world_passes() -> None:
    verdict = explore(Mutex("peterson"), states_max=100)
    assert verdict.counterexample is None
    assert verdict.finished >= 1
    assert verdict.depth == 6


def test_a_broken_rule_is_shown_by_a_shortest_run() -> None:
    found = explore(Mutex("blind"), states_max=100).counterexample
    assert found is not None
    assert (found.kind, found.rule) == (Kind.BROKEN, "both are inside")
    assert len(found.run) == 4
    assert sorted(found.run[:2] + found.run[2:]) == sorted(
        ["process 0 wants in", "process 1 wants in", "process 0 enters", "process 1 enters"]
    )


def test_a_deadlock_is_stuck() -> None:
    found = explore(Mutex("polite"), states_max=100).counterexample
    assert found is not None
    assert found.kind is Kind.STUCK
    assert found.run == ["process 0 wants in", "process 1 wants in"]


def test_a_livelock_is_stuck_from_the_beginning() -> None:
    """Both can go round for ever and never get inside: there is always a step, and no end."""
    verdict = explore(Mutex("retreat"), states_max=100)
    assert verdict.finished == 0
    assert verdict.counterexample is not None
    assert verdict.counterexample.kind is Kind.STUCK
    assert verdict.counterexample.run == []
    assert verdict.counterexample.aftermath[:2] == ["process 0 wants in", "process 0 gives way"] or (
        len(verdict.counterexample.aftermath) == 3
    )


def test_symmetry_halves_the_states_and_keeps_the_verdicts() -> None:
    for rule in ("peterson", "blind", "polite"):
        whole = explore(Mutex(rule), states_max=100)
        folded = explore(Mutex(rule, symmetric=True), states_max=100)
        assert folded.states < whole.states
        assert (folded.counterexample is None) == (whole.counterexample is None)
        if whole.counterexample is not None and folded.counterexample is not None:
            assert whole.counterexample.kind is folded.counterexample.kind
            assert len(whole.counterexample.run) == len(folded.counterexample.run)


@dataclass(frozen=True)
class Counter:
    """Counts to ``end``; a fault may throw it into a hole, from which only another fault helps."""

    end: int

    def initial(self) -> Iterable[int]:
        return [0]

    def successors(self, state: int) -> Iterable[tuple[str, int]]:
        if state == -1:
            yield "lucky fault", self.end
        elif state < self.end:
            yield "count", state + 1
            if state == 3:
                yield "fault", -1

    def violation(self, state: int) -> str | None:
        return None

    def is_finished(self, state: int) -> bool:
        return state == self.end

    def is_fault(self, step: str) -> bool:
        return "fault" in step

    def canonical(self, state: int) -> int:
        return state

    def describe(self, run: Sequence[tuple[int, str]]) -> list[str]:
        return [f"{before}: {step}" for before, step in run]


def test_a_state_that_only_another_fault_can_save_is_stuck() -> None:
    found = explore(Counter(6), states_max=100).counterexample
    assert found is not None
    assert found.kind is Kind.STUCK
    assert found.run == ["0: count", "1: count", "2: count", "3: fault"]


def test_too_many_states_are_no_verdict() -> None:
    with pytest.raises(TooManyStates, match="more than 5 states"):
        explore(Counter(10), states_max=5)
    assert explore(Counter(2), states_max=3).states == 3


def test_an_interrupt_is_no_verdict_and_tells_how_far_it_came() -> None:
    def stop(now: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="after 20,001 states"):
        explore(Counter(45_000), states_max=50_000, progress=stop)


def test_progress_is_told_and_nothing_depends_on_it() -> None:
    told: list[Progress] = []
    verdict = explore(Counter(45_000), states_max=50_000, progress=told.append)
    assert [now.expanded for now in told] == [20_000, 40_000]
    assert verdict.transitions == 45_002
