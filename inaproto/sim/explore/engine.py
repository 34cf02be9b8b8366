"""Breadth-first search of all reachable states of a small world, and of whether each can still finish.

A world is an :class:`Explorable`: its states are hashable values, its steps are all that can happen next.
The engine knows no protocol. It answers three questions:

1. Is a rule broken in any reachable state? Breadth-first, so the run that is printed is a shortest one.
2. Is there a state from which no finished state can be reached *without further faults*? Found backwards,
   from the finished states over the steps that are no faults. This covers deadlock (nothing can happen)
   and livelock (much can happen, and none of it helps). It does not demand fairness: a world in which a
   lucky order finishes, while another order goes round for ever, passes; so a world must make no step
   depend on luck that the real one does not have. The run that is printed is a shortest one as well.
3. How many states are there? A search that would pass ``states_max`` ends with :class:`TooManyStates`,
   never with a verdict; so does one that is interrupted (:class:`Interrupted`).

Memory: a state is kept once, as the key of a dictionary; parents and steps are arrays of 32 bits. So states
should be small tuples of small integers: intern what they are made of (``ring_world`` shows how).

Plugging in another protocol (sharing by two-phase commit, tree migration) takes a class with the seven
methods of ``Explorable``: participants as pure cores whose local states are interned, messages under way as
tuples, crashes and losses as faults with a budget in the state. ``tests/sim/test_explore_engine.py`` has one
of thirty lines (mutual exclusion: right, wrong, with a deadlock, with a livelock).
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

State = TypeVar("State", bound=Hashable)
Step = TypeVar("Step")

PROGRESS_STATES: Final = 20_000
"""States expanded between two calls of ``progress``."""
AFTERMATH_STEPS_MAX: Final = 25


class Explorable(Protocol[State, Step]):
    """A world with finitely many states. All methods are pure functions of their arguments."""

    def initial(self) -> Iterable[State]:
        """Where runs begin."""
        ...

    def successors(self, state: State) -> Iterable[tuple[Step, State]]:
        """All that can happen next; nothing after a state that broke a rule needs an answer."""
        ...

    def violation(self, state: State) -> str | None:
        """The rule that is broken in ``state``, in words; None if none is."""
        ...

    def is_finished(self, state: State) -> bool:
        """Whether all work is done."""
        ...

    def is_fault(self, step: Step) -> bool:
        """Whether the step is bad luck that no run needs in order to finish."""
        ...

    def canonical(self, state: State) -> State:
        """One state for all that differ only by symmetry; ``state`` itself where there is none."""
        ...

    def describe(self, run: Sequence[tuple[State, Step]]) -> list[str]:
        """For people: what happens in each step of a run, given with the state before it."""
        ...


class Kind(Enum):
    BROKEN = "a rule is broken"
    STUCK = "it can never finish"
    ENDLESS = "it can go on for ever"


class TooManyStates(Exception):
    """The world is larger than the caller allowed; nothing is known about the rest."""


class Interrupted(Exception):
    """Somebody stopped the search (Ctrl-C) after ``states`` states; nothing is known about the rest."""

    def __init__(self, states: int) -> None:
        super().__init__(f"interrupted after {states:,} states")
        self.states = states


@dataclass(frozen=True, slots=True)
class Counterexample:
    kind: Kind
    rule: str
    run: list[str]
    """A shortest run, step by step."""
    aftermath: list[str]
    """One way on without faults of a run that is stuck, until nothing new happens or it gets long."""


@dataclass(frozen=True, slots=True)
class Verdict:
    states: int
    transitions: int
    finished: int
    """Finished states."""
    depth: int
    """Steps of the longest of all shortest runs."""
    counterexample: Counterexample | None


@dataclass(frozen=True, slots=True)
class Progress:
    states: int
    expanded: int
    transitions: int
    depth: int


def explore(
    world: Explorable[State, Step],
    *,
    states_max: int,
    progress: Callable[[Progress], None] | None = None,
    must_end: bool = False,
) -> Verdict:
    """Visit every reachable state. ``must_end``: a run without faults that never ends is a counterexample.

    Raises ``TooManyStates`` when there are more than ``states_max`` or than fit memory, and ``Interrupted``.
    """
    search = _Search(world, states_max, progress, must_end=must_end)
    try:
        return search.run()
    except KeyboardInterrupt:
        raise Interrupted(search.states) from None
    except MemoryError:
        raise TooManyStates(
            f"memory ran out after {search.states:,} states: choose a smaller world"
        ) from None


class _Search(Generic[State, Step]):
    """The tables of one search. States are numbered in the order of their discovery."""

    def __init__(
        self,
        world: Explorable[State, Step],
        states_max: int,
        progress: Callable[[Progress], None] | None,
        *,
        must_end: bool = False,
    ) -> None:
        self._world = world
        self._must_end = must_end
        self._states_max = states_max
        self._progress = progress
        self._number: dict[State, int] = {}
        self._states: list[State] = []
        """States by number: the keys of the dictionary once more, as references."""
        self._parent = array("i")
        self._finished = array("i")
        self._from = array("i")
        """Steps that are no faults, as pairs of numbers with ``_to``; faults are only counted."""
        self._to = array("i")
        self._transitions = 0
        self._depth = 0

    @property
    def states(self) -> int:
        """Found so far."""
        return len(self._states)

    def run(self) -> Verdict:
        broken = self._forward()
        if broken is not None:
            number, rule = broken
            return self._verdict(Counterexample(Kind.BROKEN, rule, *self._told(number, [])))
        stuck = self._first_stuck()
        if stuck is None:
            endless = self._first_endless() if self._must_end else None
            return self._verdict(None if endless is None else self._going_on(endless))
        rule = "no finished state can be reached any more, whatever happens next"
        return self._verdict(Counterexample(Kind.STUCK, rule, *self._told(stuck, self._aftermath(stuck))))

    def _verdict(self, counterexample: Counterexample | None) -> Verdict:
        return Verdict(len(self._states), self._transitions, len(self._finished), self._depth, counterexample)

    def _forward(self) -> tuple[int, str] | None:
        """Find all states, or the first one that breaks a rule: (number, rule)."""
        world, number, states = self._world, self._number, self._states
        canonical, violation, is_fault = world.canonical, world.violation, world.is_fault
        add_from, add_to = self._from.append, self._to.append
        for first in world.initial():
            start = canonical(first)
            if start in number:
                continue
            self._add(start, -1)
            broken = violation(start)
            if broken is not None:
                return number[start], broken
        level_end = len(states)
        at = 0
        while at < len(states):
            if at == level_end:
                self._depth += 1
                level_end = len(states)
            state = states[at]
            if world.is_finished(state):
                self._finished.append(at)
            for step, after in world.successors(state):
                self._transitions += 1
                after = canonical(after)
                to = number.get(after)
                if to is None:
                    to = self._add(after, at)
                    broken = violation(after)
                    if broken is not None:
                        return to, broken
                if not is_fault(step):
                    add_from(at)
                    add_to(to)
            at += 1
            if self._progress is not None and at % PROGRESS_STATES == 0:
                self._progress(Progress(len(states), at, self._transitions, self._depth))
        return None

    def _add(self, state: State, parent: int) -> int:
        if len(self._states) >= self._states_max:
            raise TooManyStates(
                f"more than {self._states_max:,} states: choose a smaller world, or a larger states_max"
            )
        number = self._number[state] = len(self._states)
        self._states.append(state)
        self._parent.append(parent)
        return number

    def _edges(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The steps that are no faults, sorted by where they lead: from where, and of each state the first
        that leads there."""
        sources = np.frombuffer(self._from, np.int32) if self._from else np.empty(0, np.int32)
        targets = np.frombuffer(self._to, np.int32) if self._to else np.empty(0, np.int32)
        order = np.argsort(targets, kind="stable")
        return sources[order], np.searchsorted(targets[order], np.arange(len(self._states) + 1))

    def _first_stuck(self) -> int | None:
        """The first state from which no finished one can be reached without further faults."""
        sources, begins = self._edges()
        alive: NDArray[np.bool_] = np.zeros(len(self._states), np.bool_)
        frontier = np.array(self._finished, np.int64)
        alive[frontier] = True
        while len(frontier):
            before = np.unique(_edges_into(frontier, sources, begins))
            frontier = before[~alive[before]].astype(np.int64)
            alive[frontier] = True
        stuck = np.flatnonzero(~alive)
        return int(stuck[0]) if len(stuck) else None

    def _first_endless(self) -> int | None:
        """The first state that is left when those are taken away, again and again, from which no step that is
        no fault leads to one that is left. From it such steps lead on for ever. None: there is none."""
        sources, begins = self._edges()
        ways = np.bincount(sources, minlength=len(self._states))
        frontier = np.flatnonzero(ways == 0)
        while len(frontier):
            before = _edges_into(frontier, sources, begins)
            ways -= np.bincount(before, minlength=len(ways))
            ways[frontier] = -1
            candidates = np.unique(before)
            frontier = candidates[ways[candidates] == 0]
        left = np.flatnonzero(ways > 0)
        return int(left[0]) if len(left) else None

    def _going_on(self, number: int) -> Counterexample:
        rule = "a run without further faults goes on for ever"
        return Counterexample(Kind.ENDLESS, rule, *self._told(number, self._aftermath(number)))

    def _told(self, number: int, aftermath: list[tuple[State, Step]]) -> tuple[list[str], list[str]]:
        """(the run to a state, the way on from there), step by step in words."""
        run = self._run_to(number)
        lines = self._world.describe([*run, *aftermath])
        return lines[: len(run)], lines[len(run) :]

    def _run_to(self, number: int) -> list[tuple[State, Step]]:
        """The run that discovered a state."""
        chain = [number]
        while self._parent[chain[-1]] >= 0:
            chain.append(self._parent[chain[-1]])
        chain.reverse()
        run = []
        for before, after in itertools.pairwise(chain):
            state, wanted = self._states[before], self._states[after]
            step = next(
                step
                for step, following in self._world.successors(state)
                if self._world.canonical(following) == wanted
            )
            run.append((state, step))
        return run

    def _aftermath(self, number: int) -> list[tuple[State, Step]]:
        state = self._states[number]
        seen = {state}
        run: list[tuple[State, Step]] = []
        while len(run) < AFTERMATH_STEPS_MAX:
            for step, after in self._world.successors(state):
                if not self._world.is_fault(step) and after not in seen:
                    break
            else:
                break
            run.append((state, step))
            state = after
            seen.add(state)
        return run


def _edges_into(
    states: NDArray[np.int64], sources: NDArray[np.int32], begins: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Where the steps come from that lead to these states: for each its range of ``sources``."""
    lengths = begins[states + 1] - begins[states]
    offsets = np.repeat(begins[states] - np.cumsum(lengths) + lengths, lengths)
    return sources[offsets + np.arange(len(offsets))]
