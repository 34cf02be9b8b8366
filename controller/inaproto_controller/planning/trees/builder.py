"""Who gives jobs their aggregation trees while they run: what a builder sees and answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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
