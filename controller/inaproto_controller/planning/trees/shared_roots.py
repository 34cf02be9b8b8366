"""At which root each job that takes turns is summed: groups of jobs that are in each other's way least.

MINA, sections III-C and III-D: jobs whose trees conflict share by turns, and which trees they get decides
who meets whom. In our switches a pool of slots is that of one root (:mod:`inaproto.core.switch.slot_pools`),
so jobs meet where they have the same root, and nowhere else: what is chosen here is the grouping.

What two jobs of a group lose by each other is estimated as for trees of their own
(:mod:`inaproto_controller.planning.trees.sticky`): from what each gains by INA, and for how much of its time
it uses it, by its measured step. A job whose step is not known counts as one that does nothing but
all-reduces, so among such jobs groups of equal sizes lose least. A plan keeps what there is, and

- who has no tree gets the one that costs the others and itself least, and who gains most chooses first;
- who has one exchanges it, alone, with another, or to make room for who has none, only where that is worth
  more, in ``horizon`` seconds, than the seconds without INA that each move costs; of equals, fewest move.

Pure, and the same for the same jobs in whatever order they come. What is lost at a root follows from the sums
of rates and duties there, so a move is judged at once, and pairs are judged all together, as matrices.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.planning.trees.sticky import DOWNTIME_S, TURNS

HORIZON_S: Final = 30.0
ROUNDS_MAX: Final = 8
_NOTHING: Final = 1e-9
"""Less is no difference."""
_DIGITS: Final = 10
_FITS_MAX: Final = 1024
"""Exchanges of two roots, best first, of which it is looked whether there is room for them."""


class Option(NamedTuple):
    """A tree that a job could have."""

    root: str
    switches: tuple[str, ...]
    """At which it needs a slot, ascending."""


@dataclass(frozen=True, slots=True)
class Gain:
    """What a job has of INA."""

    rate: float = 1.0
    """Seconds that INA saves, for each second with it."""
    duty: float = 1.0
    """Share of the time with INA that its operations take."""

    @classmethod
    def of(cls, times: StepTimes) -> Gain:
        saved = max(0.0, times.step_plain - times.step_ina)
        return cls(saved / times.step_ina, min(1.0, sum(times.ina[times.suffix :]) / times.step_ina))


UNKNOWN: Final = Gain()


@dataclass(frozen=True, slots=True)
class SharedJob:
    """``current``: index of the tree that it has or gets; None: none. ``options``: nearest roots first.

    ``barred``: trees that it cannot have now. ``pinned``: the root that it is to have, if it can.
    """

    name: str
    options: tuple[Option, ...]
    current: int | None = None
    gain: Gain = UNKNOWN
    barred: frozenset[int] = frozenset()
    pinned: str = ""
    is_settled: bool = True
    """It uses ``current``; else it has that tree because it begins there, and loses little by another one."""

    def allowed(self) -> list[int]:
        """Indexes of the trees that it can have."""
        free = [index for index in range(len(self.options)) if index not in self.barred]
        return [index for index in free if self.options[index].root == self.pinned] or free


@dataclass(frozen=True, slots=True)
class RootConfig:
    downtime: float = DOWNTIME_S
    """Without INA, of a move; seconds."""
    horizon: float = HORIZON_S
    """For so long things are thought to stay as they are."""


class _Step(NamedTuple):
    """Jobs that get other trees, and what that is worth, in seconds saved a second."""

    worth: float
    moves: tuple[tuple[str, int], ...]


class _Movers(NamedTuple):
    """From one root to another: places of jobs in a list, and what each would do."""

    numbers: list[int]
    moves: list[tuple[str, int]]

    def add(self, number: int, move: tuple[str, int]) -> None:
        self.numbers.append(number)
        self.moves.append(move)


class _Draft:
    """Jobs on their trees, room at switches, and what the jobs of each root have of INA in all."""

    def __init__(self, jobs: Mapping[str, SharedJob], room: Mapping[str, int], config: RootConfig) -> None:
        self.jobs, self.room, self.config = jobs, Counter(room), config
        self.trees: dict[str, int] = {}
        """Trees of those that have one."""
        self.allowed = {name: job.allowed() for name, job in jobs.items()}
        self._rate: defaultdict[str, float] = defaultdict(float)
        self._duty: defaultdict[str, float] = defaultdict(float)
        self._crowd: Counter[str] = Counter()
        self._in_vain: set[frozenset[str]] = set()
        """Switches that are full, of which no single move frees all, as things are."""

    def option(self, name: str) -> Option:
        return self.jobs[name].options[self.trees[name]]

    def has_room(self, name: str, index: int) -> bool:
        """For one more; a job that has a tree gives its slots up first."""
        own = self.option(name).switches if name in self.trees else ()
        return all(self.room[at] + (at in own) > 0 for at in self.jobs[name].options[index].switches)

    def put(self, name: str, index: int | None) -> None:
        self._in_vain.clear()
        if name in self.trees:
            self.room.update(self.option(name).switches)
        if index is not None:
            self.room.subtract(self.jobs[name].options[index].switches)
        self._count(name, index)

    def _count(self, name: str, index: int | None) -> None:
        """It is on that tree, as far as losses go."""
        gain = self.jobs[name].gain
        if name in self.trees:
            root = self.option(name).root
            self._rate[root] -= gain.rate
            self._duty[root] -= gain.duty
            self._crowd[root] -= 1
            del self.trees[name]
        if index is not None:
            root = self.jobs[name].options[index].root
            self._rate[root] += gain.rate
            self._duty[root] += gain.duty
            self._crowd[root] += 1
            self.trees[name] = index

    def recount(self) -> None:
        """So that rounding does not add up."""
        placed, self.trees = dict(sorted(self.trees.items())), {}
        self._rate.clear()
        self._duty.clear()
        self._crowd.clear()
        for name, index in placed.items():
            self._count(name, index)

    def loss(self, name: str, index: int) -> float:
        """What the job and those of that root lose by each other; seconds a second."""
        job = self.jobs[name]
        root, gain = job.options[index].root, job.gain
        rate, duty = self._rate[root], self._duty[root]
        if name in self.trees and self.option(name).root == root:
            rate, duty = rate - gain.rate, duty - gain.duty
        return TURNS * (gain.rate * duty + rate * gain.duty)

    def cost(self, name: str) -> float:
        """Cost of a move of it, seconds a second."""
        job = self.jobs[name]
        if job.current is None or self.trees.get(name) != job.current:
            return 0.0
        if not job.is_settled:
            return _NOTHING
        return max(job.gain.rate * self.config.downtime / self.config.horizon, _NOTHING)

    def place(self, name: str) -> bool:
        """Where it costs least, if there is room; of equals where fewest are, then the nearest root."""
        options = self.jobs[name].options
        found = [index for index in self.allowed[name] if self.has_room(name, index)]
        if not found:
            return False
        self.put(
            name,
            min(found, key=lambda one: (_even(self.loss(name, one)), self._crowd[options[one].root], one)),
        )
        return True

    def best(self) -> _Step | None:
        """Best of all exchanges that could be made now; of equals the one that moves fewest."""
        self.recount()
        found = [*self._moves(), *self._swaps()]
        return max(found, key=lambda step: (_even(step.worth), -len(step.moves)), default=None)

    def _moves(self) -> Iterator[_Step]:
        """Moves of one job alone, each its best."""
        for name in sorted(self.trees):
            most = self.loss(name, self.trees[name]) - self.cost(name)
            if most <= _NOTHING:
                continue
            best: tuple[float, int] | None = None
            for index in self.allowed[name]:
                worth = _even(most - self.loss(name, index))
                is_better = worth > (_NOTHING if best is None else best[0])
                if is_better and index != self.trees[name] and self.has_room(name, index):
                    best = worth, index
            if best is not None:
                yield _Step(best[0], ((name, best[1]),))

    def _swaps(self) -> Iterator[_Step]:
        """Swaps of two jobs, each of which goes to the root of the other: the best of each two roots."""
        names = sorted(self.trees)
        movers: dict[tuple[str, str], _Movers] = {}
        for number, name in enumerate(names):
            options = self.jobs[name].options
            at = options[self.trees[name]].root
            for index in self.allowed[name]:
                if (root := options[index].root) != at:
                    movers.setdefault((at, root), _Movers([], [])).add(number, (name, index))
        gains = [self.jobs[name].gain for name in names]
        rate, duty = np.array([gain.rate for gain in gains]), np.array([gain.duty for gain in gains])
        before = np.array([self.loss(name, self.trees[name]) - self.cost(name) for name in names])
        roots = {root: number for number, root in enumerate(sorted({root for _, root in movers}))}
        met = np.outer(rate, [self._duty[root] for root in roots])
        met += np.outer(duty, [self._rate[root] for root in roots])
        alone = before[:, None] - TURNS * met
        for (root, other), ones in movers.items():
            theirs = movers.get((other, root))
            if root > other or theirs is None:
                continue
            here, there = ones.numbers, theirs.numbers
            # What two are worth is what each is alone, and that neither meets the other.
            apart = rate[here][:, None] * duty[there] + duty[here][:, None] * rate[there]
            worth = alone[here, roots[other]][:, None] + alone[there, roots[root]] + 2 * TURNS * apart
            yield from self._best_swap(worth.round(_DIGITS), ones.moves, theirs.moves)

    def _best_swap(
        self, worth: NDArray[np.float64], ones: Sequence[tuple[str, int]], others: Sequence[tuple[str, int]]
    ) -> Iterator[_Step]:
        """The one that is worth most of those for which there is room."""
        if worth.max() <= _NOTHING:
            return
        for place in np.argsort(-worth, axis=None, kind="stable")[:_FITS_MAX].tolist():
            one, other = divmod(place, len(others))
            if worth[one, other] <= _NOTHING:
                return
            if self._fits((ones[one], others[other])):
                yield _Step(float(worth[one, other]), (ones[one], others[other]))
                return

    def _fits(self, moves: Iterable[tuple[str, int]]) -> bool:
        change: Counter[str] = Counter()
        for name, index in moves:
            change.update(self.option(name).switches)
            change.subtract(self.jobs[name].options[index].switches)
        return all(self.room[at] + by >= 0 for at, by in change.items())

    def make_room(self, name: str) -> bool:
        """Move one other job so that this one has a place; the cheapest such move."""
        found: list[tuple[float, str, int, int]] = []
        for index in self.allowed[name]:
            found += self._makes_room(name, index)
        if not found:
            return False
        _, other, way, index = min(found)
        self.put(other, way)
        self.put(name, index)
        return True

    def _makes_room(self, name: str, index: int) -> Iterator[tuple[float, str, int, int]]:
        needed = self.jobs[name].options[index].switches
        full = frozenset(at for at in needed if self.room[at] <= 0)
        if full in self._in_vain:
            return
        is_freed = False
        for other in sorted(self.trees):
            job, old = self.jobs[other], self.trees[other]
            had = job.options[old].switches
            if not full.issubset(had) or (job.pinned and job.options[old].root == job.pinned):
                continue
            for way in self.allowed[other]:
                gets = job.options[way].switches
                if way == old or not full.isdisjoint(gets) or not self.has_room(other, way):
                    continue
                is_freed = True
                if all(self.room[at] + (at in had) - (at in gets) > 0 for at in needed):
                    cost = self.cost(other)
                    self._count(other, way)
                    yield cost + self.loss(other, way) + self.loss(name, index), other, way, index
                    self._count(other, old)
        if not is_freed:
            self._in_vain.add(full)


def _even(value: float) -> float:
    """What differs by less is equal, in whatever order it was added up."""
    return round(value, _DIGITS)


def assign_roots(
    jobs: Sequence[SharedJob], room: Mapping[str, int], config: RootConfig | None = None
) -> dict[str, int | None]:
    """The index of each job's tree; None: there is none that it can have. ``room``: slots of each switch."""
    draft = _Draft({job.name: job for job in jobs}, room, config or RootConfig())
    order = sorted(jobs, key=lambda job: (not job.pinned, -job.gain.rate, job.name))
    for job in order:
        if (
            job.current is not None
            and job.current in draft.allowed[job.name]
            and draft.has_room(job.name, job.current)
        ):
            draft.put(job.name, job.current)
    for job in order:
        if job.name in draft.trees or draft.place(job.name) or draft.make_room(job.name):
            continue
        old = job.current
        if old is not None and old not in job.barred and draft.has_room(job.name, old):
            draft.put(job.name, old)  # it is to be elsewhere, where there is no room
    for _ in range(ROUNDS_MAX):
        best = draft.best()
        if best is None or best.worth <= _NOTHING:
            break
        for name, _index in best.moves:
            draft.put(name, None)
        for name, index in best.moves:
            draft.put(name, index)
    return {job.name: draft.trees.get(job.name) for job in jobs}
