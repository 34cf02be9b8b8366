"""Our own trees: for those who gain by them, where they are least in the way, and kept.

MINA builds all trees anew whenever jobs are placed (section III-C): a job changes its tree some twenty times
in its life, and each change stops its INA for half a second (section V-D). And it counts jobs with a tree,
though many a job is no faster with one. Here

- who gains nothing by INA asks for no tree;
- a tree costs what its job and those whose trees it excludes lose by taking turns: an estimate, from what
  they gain, for how much of their time they use INA, and for how long they go on together;
- who has none gets the root that costs least, of all its roots, if that is less than it gains;
- who has one keeps it, unless another costs less by more than the change itself, downtime included.

Pairs that take turns are estimated so: if they met by chance, each would go without for the share of time
that the other uses INA. But who loses falls out of step, and of two operations that which gains less gives
way: what pairs of the measured models lose is ``TURNS`` of it (tests/controller/test_sticky_trees.py).

A build is a function of the jobs that it is given, and ties go by number: whoever repeats it gets the same.
It takes some steps of compiled code for each job and each pair of jobs whose trees can meet, and one look at
all roots for each tree in doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import ConfigError
from inaproto_controller.cluster.compiled import jit
from inaproto_controller.cluster.network import FatTreeNetwork, Ints, Network, Relations
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.planning.trees.builder import Changes, JobColumns, TreeJob, columns_of
from inaproto_controller.planning.trees.crowding import Crowds

Floats = NDArray[np.float64]

DOWNTIME_S: Final = 0.559
"""Without INA, when a tree is exchanged (MINA, section V-D)."""
TURNS: Final = 0.35
"""What two jobs that take turns lose, as a share of what they would lose if they met by chance."""
ROUNDS_MAX: Final = 4
"""In which trees are exchanged, in one build."""
_NONE: Final = -1
_GAINS_NOTHING: Final = 0
_FREE: Final = 1
"""Its tree meets nobody's, wherever it is."""
_ASKS: Final = 2
_KINDS_MAX: Final = 4096
_MARGIN_S: Final = 1e-9
"""Less is no difference."""


class Wishes(NamedTuple):
    """Jobs that want a tree, (jobs,) each, in order of placement."""

    slot: Ints
    tree: Ints
    """-1 for none."""
    rate: Floats
    """Seconds that INA saves, for each second with it."""
    duty: Floats
    """Share of the time with INA that its operations take."""
    left: Floats
    """Seconds that the job still takes."""
    place: Ints
    """(slots,): index of the slot's job; -1 if it wants none."""


class Candidates(NamedTuple):
    """Roots that jobs may have."""

    roots: Ints
    """(jobs,): the first so many ..."""
    barred_first: Ints
    """(jobs + 1,): ... but for some: where in ``barred`` a job's begin."""
    barred: Ints


class _Known(NamedTuple):
    """What running jobs are, by slot."""

    number: Ints
    part: Ints
    """What a job has to do with trees: see above."""
    roots: Ints
    rate: Floats
    duty: Floats
    step: Floats
    """Seconds of a step with INA."""

    @classmethod
    def none(cls, slots: int) -> _Known:
        return cls(
            number=np.full(slots, -1, np.int64),
            part=np.zeros(slots, np.int64),
            roots=np.zeros(slots, np.int64),
            rate=np.zeros(slots),
            duty=np.zeros(slots),
            step=np.zeros(slots),
        )

    def grown(self, slots: int) -> _Known:
        more = _Known.none(slots - len(self.number))
        return _Known(*(np.concatenate(pair) for pair in zip(self, more, strict=True)))


@dataclass(frozen=True, slots=True)
class _Asking:
    """Jobs that want a tree and may meet others."""

    columns: JobColumns
    index: Ints
    """Indexes into the columns."""

    def barred(self, one: int) -> frozenset[int]:
        slots = self.columns.slots
        return self.columns.barred.get(int(slots[self.index[one]]), frozenset())


class StickyTrees:
    """Each option is a lever that can be left out.

    ``downtime``: what a change of a tree is thought to cost, seconds. ``only_gainers``: without it those who
    gain nothing ask for trees too, and come last. ``may_share``: without it a tree is exclusive or none.
    ``may_move``: without it trees are for life. ``roots_max``: only so many roots of each job are looked at,
    the first. ``by_hosts``: a second of a job counts as many times as it has hosts. ``suffix_only``: of a
    step, only the operations use INA that need it for the shortest step.
    """

    wants_completions = True

    def __init__(
        self,
        network: Network,
        *,
        downtime: float = DOWNTIME_S,
        only_gainers: bool = True,
        may_share: bool = True,
        may_move: bool = True,
        roots_max: int | None = None,
        by_hosts: bool = False,
        suffix_only: bool = True,
    ) -> None:
        if roots_max is not None and roots_max < 1:
            raise ConfigError(f"roots_max {roots_max}: at least one of each job")
        self._network = network
        self._downtime = downtime
        self._only_gainers = only_gainers
        self._may_share = may_share
        self._may_move = may_move
        self._roots_max = roots_max
        self._by_hosts = by_hosts
        self._suffix_only = suffix_only
        self._known = _Known.none(0)

    def build(self, jobs: Sequence[TreeJob], new: Sequence[int], *, now: float, completed: bool) -> Changes:
        columns = columns_of(jobs)
        self._learn(columns)
        slots = columns.slots
        found: Changes = {}
        barred = np.isin(slots, list(columns.barred)) if columns.barred else np.zeros(len(slots), np.bool_)
        free = (self._known.part[slots] == _FREE) & ((columns.trees == _NONE) | barred)
        for one in np.flatnonzero(free).tolist():
            job = columns.job(one)
            if job.tree is None or job.tree in job.barred:
                root = next((root for root in range(job.roots) if root not in job.barred), None)
                if root != job.tree:
                    found[job.slot] = root
        asking = _Asking(columns, np.flatnonzero(self._known.part[slots] == _ASKS))
        wishes = self._wishes(asking)
        before = wishes.tree.copy()
        for one in np.flatnonzero(barred[asking.index]).tolist():
            if int(before[one]) in asking.barred(one):
                wishes.tree[one] = _NONE
        self._serve(wishes, asking)
        if self._may_move and self._may_share:
            self._move(wishes, asking, before)
        for one in np.flatnonzero(wishes.tree != before).tolist():
            tree = int(wishes.tree[one])
            found[int(wishes.slot[one])] = None if tree == _NONE else tree
        return found

    def _learn(self, columns: JobColumns) -> None:
        """What jobs are that were not there at the last build."""
        slots = columns.slots
        size = int(slots.max(initial=-1)) + 1
        if size > len(self._known.number):
            self._known = self._known.grown(max(size, 2 * len(self._known.number)))
        known = self._known
        for one in np.flatnonzero(known.number[slots] != columns.numbers).tolist():
            job = columns.job(one)
            slot = job.slot
            rate, duty = _kind(job.times, self._suffix_only)
            known.number[slot] = job.number
            known.roots[slot] = job.roots
            known.rate[slot] = rate * job.hosts if self._by_hosts else rate
            known.duty[slot] = duty
            known.step[slot] = job.times.step_ina
            known.part[slot] = self._part(job)

    def _part(self, job: TreeJob) -> int:
        if self._only_gainers and not job.times.step_ina < job.times.step_plain:
            return _GAINS_NOTHING
        if isinstance(self._network, FatTreeNetwork) and self._network.meets_nobody(job.slot):
            return _FREE
        return _ASKS if job.roots else _GAINS_NOTHING

    def _wishes(self, asking: _Asking) -> Wishes:
        known, slots = self._known, asking.columns.slots[asking.index]
        place = np.full(len(known.number), -1, np.int64)
        place[slots] = np.arange(len(slots))
        return Wishes(
            slots,
            asking.columns.trees[asking.index],
            known.rate[slots],
            known.duty[slots],
            known.step[slots] * asking.columns.steps_left[asking.index],
            place,
        )

    def _serve(self, wishes: Wishes, asking: _Asking) -> None:
        """First trees, for who gains most by one first."""
        gains = wishes.rate * wishes.left
        waiting = np.flatnonzero(wishes.tree == _NONE)
        order = waiting[np.argsort(-gains[waiting], kind="stable")]
        if isinstance(self._network, FatTreeNetwork):
            candidates = self._candidates(wishes, asking)
            _serve_in_order(
                self._network.relations, wishes, order, candidates, gains * float(self._may_share)
            )
            return
        for one in order.tolist():
            costs = self._costs(wishes, asking, one)
            root = int(costs.argmin())
            if costs[root] == 0 or (self._may_share and costs[root] < gains[one]):
                wishes.tree[one] = root

    def _move(self, wishes: Wishes, asking: _Asking, before: Ints) -> None:
        """Each change lessens what all lose together, itself included; who loses most comes first."""
        changes = wishes.rate * np.minimum(self._downtime, wishes.left)
        changes[(before == _NONE) | (wishes.tree != before)] = 0.0
        for _ in range(ROUNDS_MAX):
            losses = self._losses(wishes)
            doubtful = np.flatnonzero(losses > changes + _MARGIN_S)
            order = doubtful[np.argsort(-losses[doubtful], kind="stable")]
            if isinstance(self._network, FatTreeNetwork):
                candidates = self._candidates(wishes, asking)
                has_moved = _move_in_order(self._network.relations, wishes, order, candidates, changes)
            else:
                has_moved = self._move_each(wishes, asking, order, changes)
            if not has_moved:
                break

    def _move_each(self, wishes: Wishes, asking: _Asking, order: Ints, changes: Floats) -> bool:
        has_moved = False
        for one in order.tolist():
            costs = self._costs(wishes, asking, one)
            root = int(costs.argmin())
            if costs[wishes.tree[one]] - costs[root] > changes[one] + _MARGIN_S:
                wishes.tree[one] = root
                has_moved = True
        return has_moved

    def _roots(self, wishes: Wishes) -> Ints:
        """(jobs,): so many roots of each job are looked at."""
        roots = self._known.roots[wishes.slot]
        if self._roots_max is None:
            return roots
        return np.minimum(roots, np.maximum(self._roots_max, wishes.tree + 1))

    def _candidates(self, wishes: Wishes, asking: _Asking) -> Candidates:
        barred = (
            [sorted(asking.barred(one)) for one in range(len(wishes.slot))] if asking.columns.barred else []
        )
        first = np.zeros(len(wishes.slot) + 1, np.int64)
        first[1 : len(barred) + 1] = np.cumsum([len(roots) for roots in barred], dtype=np.int64)
        return Candidates(
            self._roots(wishes), first, np.array([root for roots in barred for root in roots], np.int64)
        )

    def _costs(self, wishes: Wishes, asking: _Asking, one: int) -> Floats:
        """(roots,): what that job and others lose by each other if it has that root, seconds."""
        slot, roots = int(wishes.slot[one]), int(self._roots(wishes)[one])
        with_tree = np.flatnonzero(wishes.tree != _NONE)
        slots, trees = wishes.slot[with_tree], wishes.tree[with_tree]
        losses = _losses_by_turns(wishes, one)[with_tree]
        crowds = Crowds(self._network, zip(slots.tolist(), trees.tolist(), strict=True))
        excluded = (self._network.conflicts_with(slot, root, slots, trees) for root in range(roots))
        costs = np.array(
            [
                losses[row | np.isin(slots, list(crowds.met(slot, root)))].sum()
                for root, row in enumerate(excluded)
            ]
        )
        costs[[root for root in sorted(asking.barred(one)) if root < roots]] = np.inf
        return costs

    def _losses(self, wishes: Wishes) -> Floats:
        """(jobs,): what each and others lose by each other, as it is."""
        if isinstance(self._network, FatTreeNetwork):
            return _losses_as_it_is(self._network.relations, wishes)
        with_tree = np.flatnonzero(wishes.tree != _NONE)
        slots, trees = wishes.slot[with_tree], wishes.tree[with_tree]
        excludes = self._network.conflicts(slots, trees)
        crowds = Crowds(self._network, zip(slots.tolist(), trees.tolist(), strict=True))
        found = np.zeros(len(wishes.slot))
        for one, row in zip(with_tree.tolist(), excludes, strict=True):
            met = crowds.met(int(wishes.slot[one]), int(wishes.tree[one]))
            found[one] = _losses_by_turns(wishes, one)[with_tree[row | np.isin(slots, list(met))]].sum()
        return found


@lru_cache(_KINDS_MAX)
def _kind(times: StepTimes, suffix_only: bool) -> tuple[float, float]:
    """Rate and duty."""
    first = times.suffix if suffix_only else 0
    return (times.step_plain - times.step_ina) / times.step_ina, sum(times.ina[first:]) / times.step_ina


def _losses_by_turns(wishes: Wishes, one: int) -> Floats:
    """(jobs,)"""
    met = wishes.rate[one] * wishes.duty + wishes.rate * wishes.duty[one]
    losses: Floats = TURNS * met * np.minimum(wishes.left[one], wishes.left)
    return losses


@jit
def _loss(wishes: Wishes, one: int, other: int) -> float:
    met = wishes.rate[one] * wishes.duty[other] + wishes.rate[other] * wishes.duty[one]
    loss: float = TURNS * met * min(wishes.left[one], wishes.left[other])
    return loss


@jit
def _costs_of_roots(
    known: Relations, wishes: Wishes, candidates: Candidates, one: int, found: Floats
) -> None:
    """``found``: (roots,) what that job and others lose by each other if it has that root."""
    found[:] = 0.0
    slot, roots = wishes.slot[one], len(found)
    for index in range(known.counts[slot]):
        other = wishes.place[known.of[slot, index]]
        if other < 0 or wishes.tree[other] < 0:
            continue
        modulus = known.modulus[slot, index]
        loss = _loss(wishes, one, other)
        for root in range(wishes.tree[other] % modulus, roots, modulus):
            found[root] += loss
    for index in range(candidates.barred_first[one], candidates.barred_first[one + 1]):
        if candidates.barred[index] < roots:
            found[candidates.barred[index]] = np.inf


@jit
def _serve_in_order(
    known: Relations, wishes: Wishes, order: Ints, candidates: Candidates, gains: Floats
) -> None:
    """``gains``: a root may cost a job and others less than that, or nothing at all."""
    room = np.empty(candidates.roots.max() if len(order) else 0)
    for one in order:
        costs = room[: candidates.roots[one]]
        _costs_of_roots(known, wishes, candidates, one, costs)
        root = costs.argmin()
        if costs[root] == 0.0 or costs[root] < gains[one]:
            wishes.tree[one] = root


@jit
def _move_in_order(
    known: Relations, wishes: Wishes, order: Ints, candidates: Candidates, changes: Floats
) -> bool:
    """``changes``: what a change of its tree costs a job. Whether any was changed."""
    room = np.empty(candidates.roots.max() if len(order) else 0)
    has_moved = False
    for one in order:
        costs = room[: candidates.roots[one]]
        _costs_of_roots(known, wishes, candidates, one, costs)
        root = costs.argmin()
        if costs[wishes.tree[one]] - costs[root] > changes[one] + _MARGIN_S:
            wishes.tree[one] = root
            has_moved = True
    return has_moved


@jit
def _losses_as_it_is(known: Relations, wishes: Wishes) -> Floats:
    found = np.zeros(len(wishes.slot))
    for one in range(len(wishes.slot)):
        tree, slot = wishes.tree[one], wishes.slot[one]
        if tree < 0:
            continue
        for index in range(known.counts[slot]):
            other = wishes.place[known.of[slot, index]]
            if other < 0 or wishes.tree[other] < 0:
                continue
            if (tree - wishes.tree[other]) % known.modulus[slot, index] == 0:
                found[one] += _loss(wishes, one, other)
    return found
