"""Who gives jobs their aggregation trees while they run: what a builder sees and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, overload

import numpy as np

from inaproto_controller.cluster.network import Ints
from inaproto_controller.cluster.step_times import StepTimes


@dataclass(frozen=True, slots=True)
class TreeJob:
    """A running job."""

    slot: int
    number: int
    """Order of placement: unique."""
    hosts: int
    times: StepTimes
    roots: int
    """Candidates; its trees are 0 to this less one."""
    tree: int | None = None
    """Assigned root, also if it waits for the end of an operation."""
    using: int | None = None
    """Root of the tree that an operation with INA uses at this instant."""
    steps_left: int = 0
    barred: frozenset[int] = frozenset()
    """Roots whose trees have a switch that is down."""


@dataclass(frozen=True, slots=True)
class JobColumns:
    """Running jobs as columns, for builders that look at all of them at each build: (jobs,) each, by number.

    What a job always is, is asked for once, by ``job``.
    """

    slots: Ints
    numbers: Ints
    trees: Ints
    """-1 for none."""
    steps_left: Ints
    barred: Mapping[int, frozenset[int]]
    """Of the slots that have any."""
    job: Callable[[int], TreeJob]
    """By index."""

    @classmethod
    def of(cls, jobs: Sequence[TreeJob]) -> JobColumns:
        return cls(
            integers([job.slot for job in jobs]),
            integers([job.number for job in jobs]),
            integers([-1 if job.tree is None else job.tree for job in jobs]),
            integers([job.steps_left for job in jobs]),
            {job.slot: job.barred for job in jobs if job.barred},
            jobs.__getitem__,
        )


class JobsInColumns(Sequence[TreeJob]):
    """Jobs that are made, once, when a builder looks at them: most are asked for in columns alone."""

    def __init__(self, columns: JobColumns) -> None:
        self.columns = columns
        self._made: list[TreeJob | None] = [None] * len(columns.slots)

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, index: int) -> TreeJob: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TreeJob]: ...
    def __getitem__(self, index: int | slice) -> TreeJob | Sequence[TreeJob]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        found = self._made[index]
        if found is None:
            found = self._made[index] = self.columns.job(index % len(self))
        return found


def columns_of(jobs: Sequence[TreeJob]) -> JobColumns:
    return jobs.columns if isinstance(jobs, JobsInColumns) else JobColumns.of(jobs)


Changes = dict[int, int | None]
"""Tree that a job is to have from now on, or None, by slot. Slots that keep theirs are not named."""


class TreeBuilder(Protocol):
    @property
    def wants_completions(self) -> bool:
        """Whether ``build`` is to be called after completions that placed nobody, too."""
        ...

    def build(self, jobs: Sequence[TreeJob], new: Sequence[int], *, now: float, completed: bool) -> Changes:
        """After each round of placements. ``jobs``: all that run, by number; ``new``: their indexes of those
        placed just now; ``completed``: whether a job has ended since the last call."""
        ...


def changed(jobs: Sequence[TreeJob], trees: Sequence[int | None]) -> Changes:
    """``trees``: what each job is to have."""
    return {job.slot: tree for job, tree in zip(jobs, trees, strict=True) if job.tree != tree}


def integers(values: Sequence[int]) -> Ints:
    return np.array(values, np.int64)
