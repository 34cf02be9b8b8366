"""At which root each job that takes turns is summed: groups of jobs that are in each other's way least.

MINA, sections III-C and III-D: jobs whose trees conflict share by turns, and which trees they get decides
who meets whom. In our switches a pool of slots is that of one root (:mod:`inaproto.core.slot_pools`), so jobs
meet where they have the same root, and nowhere else: what is chosen here is the grouping.

What two jobs of a group lose by each other is estimated as for trees of their own
(:mod:`inaproto_controller.trees.sticky`): from what each gains by INA, and for how much of its time it uses
it, by its measured step. A job whose step is not known counts as one that does nothing but all-reduces, so
among such jobs groups of equal sizes lose least. A plan keeps what there is, and

- who has no tree gets the one that costs the others and itself least, and who gains most chooses first;
- who has one exchanges it, alone, with another, or to make room for who has none, only where that is worth
  more, in ``horizon`` seconds, than the seconds without INA that each move costs; of equals, fewest move.

Pure, and the same for the same jobs in whatever order they come. Its time grows with the square of the jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from inaproto.core.step_times import StepTimes
from inaproto_controller.trees.sticky import DOWNTIME_S, TURNS

HORIZON_S: Final = 30.0
ROUNDS_MAX: Final = 8
_NOTHING: Final = 1e-9
"""Less is no difference."""


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


@dataclass
class _Draft:
    jobs: dict[str, SharedJob]
    room: Counter[str]
    config: RootConfig
    trees: dict[str, int] = field(default_factory=dict)
    """Those that have one."""

    def option(self, name: str) -> Option:
        return self.jobs[name].options[self.trees[name]]

    def has_room(self, name: str, index: int) -> bool:
        """For one more; a job that has a tree gives its slots up first."""
        own = Counter(self.option(name).switches if name in self.trees else ())
        return all(self.room[at] + own[at] > 0 for at in self.jobs[name].options[index].switches)

    def put(self, name: str, index: int | None) -> None:
        if name in self.trees:
            self.room.update(self.option(name).switches)
            del self.trees[name]
        if index is not None:
            self.room.subtract(self.jobs[name].options[index].switches)
            self.trees[name] = index

    def loss(self, name: str, index: int) -> float:
        """What the job and those of that root lose by each other; seconds a second."""
        root, gain = self.jobs[name].options[index].root, self.jobs[name].gain
        return sum(
            TURNS * (gain.rate * other.duty + other.rate * gain.duty)
            for one, other in ((one, self.jobs[one].gain) for one in self.trees if one != name)
            if self.option(one).root == root
        )

    def cost(self, name: str) -> float:
        """Of a move of it, seconds a second."""
        job = self.jobs[name]
        if job.current is None or self.trees.get(name) != job.current:
            return 0.0
        if not job.is_settled:
            return _NOTHING
        return max(job.gain.rate * self.config.downtime / self.config.horizon, _NOTHING)

    def place(self, name: str) -> bool:
        """Where it costs least, if there is room; of equals where fewest are, then the nearest root."""
        job = self.jobs[name]
        found = [index for index in job.allowed() if self.has_room(name, index)]
        if not found:
            return False
        crowd = Counter(self.option(one).root for one in self.trees)
        self.put(name, min(found, key=lambda one: (self.loss(name, one), crowd[job.options[one].root], one)))
        return True

    def steps(self) -> Iterator[_Step]:
        """All exchanges that could be made now."""
        names = sorted(self.trees)
        for name in names:
            for index in self.jobs[name].allowed():
                if index != self.trees[name] and self.has_room(name, index):
                    yield self._worth((name, index))
        for place, one in enumerate(names):
            for other in names[place + 1 :]:
                yield from self._swaps(one, other)

    def _swaps(self, one: str, other: str) -> Iterator[_Step]:
        """Each goes to the root of the other."""
        root, other_root = self.option(one).root, self.option(other).root
        if root == other_root:
            return
        ways = [
            (index, other_index)
            for index in self.jobs[one].allowed()
            if self.jobs[one].options[index].root == other_root
            for other_index in self.jobs[other].allowed()
            if self.jobs[other].options[other_index].root == root
        ]
        for index, other_index in ways:
            step = self._worth((one, index), (other, other_index))
            if step.worth > _NOTHING and self._fits(step.moves):
                yield step

    def _fits(self, moves: Iterable[tuple[str, int]]) -> bool:
        room = self.room.copy()
        for name, index in moves:
            room.update(self.option(name).switches)
            room.subtract(self.jobs[name].options[index].switches)
        return min(room.values(), default=0) >= 0

    def _worth(self, *moves: tuple[str, int]) -> _Step:
        before = {name: self.trees[name] for name, _ in moves}
        worth = -sum(self.cost(name) for name, _ in moves)
        for name, index in moves:
            worth += self.loss(name, self.trees[name])
            self.trees[name] = index
            worth -= self.loss(name, index)
        self.trees.update(before)
        return _Step(worth, moves)

    def make_room(self, name: str) -> bool:
        """Move one other job so that this one has a place; the cheapest such move."""
        found: list[tuple[float, str, int, int]] = []
        for index in self.jobs[name].allowed():
            needed = self.jobs[name].options[index].switches
            for other in sorted(self.trees):
                job, old = self.jobs[other], self.trees[other]
                for way in job.allowed():
                    if way == old or (job.pinned and job.options[old].root == job.pinned):
                        continue
                    if not self.has_room(other, way):
                        continue
                    cost = self.cost(other)
                    self.put(other, way)
                    if all(self.room[at] > 0 for at in needed):
                        found.append(
                            (cost + self.loss(other, way) + self.loss(name, index), other, way, index)
                        )
                    self.put(other, old)
        if not found:
            return False
        _, other, way, index = min(found)
        self.put(other, way)
        self.put(name, index)
        return True


def assign_roots(
    jobs: Sequence[SharedJob], room: Mapping[str, int], config: RootConfig | None = None
) -> dict[str, int | None]:
    """The index of each job's tree; None: there is none that it can have. ``room``: slots of each switch."""
    draft = _Draft({job.name: job for job in jobs}, Counter(room), config or RootConfig())
    order = sorted(jobs, key=lambda job: (not job.pinned, -job.gain.rate, job.name))
    for job in order:
        if job.current is not None and job.current in job.allowed() and draft.has_room(job.name, job.current):
            draft.put(job.name, job.current)
    for job in order:
        if job.name in draft.trees or draft.place(job.name) or draft.make_room(job.name):
            continue
        old = job.current
        if old is not None and old not in job.barred and draft.has_room(job.name, old):
            draft.put(job.name, old)  # it is to be elsewhere, where there is no room
    for _ in range(ROUNDS_MAX):
        best = max(draft.steps(), key=lambda step: (step.worth, -len(step.moves)), default=None)
        if best is None or best.worth <= _NOTHING:
            break
        for name, _index in best.moves:
            draft.put(name, None)
        for name, index in best.moves:
            draft.put(name, index)
    return {job.name: draft.trees.get(job.name) for job in jobs}
