"""Models that train together on one network, each in rounds: compute, push, pull (MLNet, section 4).

Each phase of a model begins when all flows of the one before have ended: training is synchronous. Priorities
are strict between classes (section 3.3); alone, models share max-min fairly.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inaproto.errors import LocalMisuse
from inaproto_hil.evaluation.flows.paths import Floats, Ints, Paths
from inaproto_hil.evaluation.flows.phase import Load, prepared
from inaproto_hil.evaluation.flows.running import DONE, WAITING, Flows, State, run

_OVER = -1


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """One model."""

    phases: Sequence[Paths]
    """Paths of each phase of communication in a round: push, pull."""
    volume: float
    """Volume of each flow."""
    compute: float
    """Time of a round before its first phase."""
    rounds: int
    priority: int = 0
    """0 is the highest."""


def train(capacities: Floats, trainings: Sequence[Training]) -> list[float]:
    """When each model has ended its last round; all begin at 0."""
    if any(one.rounds < 1 or one.volume <= 0 or not one.phases for one in trainings):
        raise LocalMisuse("a model has rounds, phases, and a volume to carry")
    return _Run(capacities, trainings).ends()


def floors(capacities: Floats, trainings: Sequence[Training]) -> Floats:
    """(models,), ascending: however flows are scheduled, the first model to end ends no sooner than the first
    of these, the second no sooner than the second, and so on.

    For a model ends no sooner than alone; and when i of them have ended, each link has carried, since the
    first began, at least what the i that use it least bring on it.
    """
    loads = [
        [one.rounds * paths.loads(len(capacities), np.full(len(paths), one.volume)) for paths in one.phases]
        for one in trainings
    ]
    needs = [[load / capacities for load in phases] for phases in loads]
    alone = [
        one.rounds * one.compute + sum(float(need.max()) for need in phases)
        for one, phases in zip(trainings, needs, strict=True)
    ]
    least: Floats = np.sort([np.sum(phases, axis=0) for phases in needs], axis=0).cumsum(axis=0)
    begun = min(one.compute for one in trainings)
    highest: Floats = np.maximum(np.sort(alone), begun + least.max(axis=1))
    return highest


class _Run:
    def __init__(self, capacities: Floats, trainings: Sequence[Training]) -> None:
        self._trainings = trainings
        self._groups = [
            (model, phase) for model, one in enumerate(trainings) for phase in range(len(one.phases))
        ]
        load = _load(trainings)
        self._volumes = load.volumes
        self._kinds = int(load.classes.max()) + 1
        self._bounds = np.searchsorted(load.groups, np.arange(len(self._groups) + 1))
        self._flows, self._state = _asleep(capacities, load)
        self._left = [one.rounds for one in trainings]
        self._starts: list[tuple[float, int]] = []
        """When groups start: a heap."""

    def ends(self) -> list[float]:
        ended = [0.0] * len(self._trainings)
        for group, (model, phase) in enumerate(self._groups):
            if phase == 0:
                heapq.heappush(self._starts, (self._trainings[model].compute, group))
        now = 0.0
        while self._starts or self._is_live():
            while self._starts and self._starts[0][0] <= now:
                self._begin(heapq.heappop(self._starts)[1])
            until = self._starts[0][0] if self._starts else np.inf
            now, _ = run(self._flows, self._state, self._kinds, now, until, 0.0, True)
            if not self._is_live() and not (self._state.unended == 0).any():
                now = until
            for group in np.flatnonzero(self._state.unended == 0).tolist():
                self._state.unended[group] = _OVER
                self._follow(group, now, ended)
        return ended

    def _is_live(self) -> bool:
        """Some flows have rates, or need them."""
        in_order, _, opened = self._state.sizes
        return bool(in_order or opened)

    def _begin(self, group: int) -> None:
        state, mine = self._state, slice(self._bounds[group], self._bounds[group + 1])
        state.status[mine] = WAITING
        state.volumes[mine] = self._volumes[mine]
        state.unended[group] = mine.stop - mine.start
        begun = state.sizes[1]
        state.fresh[begun : begun + mine.stop - mine.start] = np.arange(mine.start, mine.stop)
        state.sizes[1] += mine.stop - mine.start

    def _follow(self, group: int, now: float, ended: list[float]) -> None:
        model, phase = self._groups[group]
        one = self._trainings[model]
        if phase + 1 < len(one.phases):
            heapq.heappush(self._starts, (now, group + 1))
            return
        self._left[model] -= 1
        if self._left[model]:
            heapq.heappush(self._starts, (now + one.compute, group - phase))
        else:
            ended[model] = now


def _load(trainings: Sequence[Training]) -> Load:
    """All flows of all phases, group by group."""
    parts = [(one, paths) for one in trainings for paths in one.phases]
    counts = [len(paths) for _, paths in parts]
    first = np.concatenate([[0], np.cumsum(np.concatenate([paths.hops for _, paths in parts]))])
    links = np.concatenate([paths.links for _, paths in parts])
    classes: Ints = np.repeat([one.priority for one, _ in parts], counts)
    return Load.of(
        Paths(first.astype(np.int32), links),
        np.repeat([one.volume for one, _ in parts], counts),
        classes=classes,
        groups=np.repeat(np.arange(len(parts)), counts),
    )


def _asleep(capacities: Floats, load: Load) -> tuple[Flows, State]:
    flows, state = prepared(capacities, load)
    state.status[:] = DONE
    state.unended[:] = _OVER
    return flows, state
