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
It takes the square of the jobs that gain, of cheap steps, and one look at all roots for each tree in doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import ConfigError
from inaproto_controller.cluster.compiled import jit
from inaproto_controller.cluster.network import FatTreeNetwork, Ints, Network
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.planning.trees.builder import Changes, TreeJob
from inaproto_controller.planning.trees.crowding import Crowds

Floats = NDArray[np.float64]

DOWNTIME_S: Final = 0.559
"""Without INA, when a tree is exchanged (MINA, section V-D)."""
TURNS: Final = 0.35
"""What two jobs that take turns lose, as a share of what they would lose if they met by chance."""
ROUNDS_MAX: Final = 4
"""In which trees are exchanged, in one build."""
_NONE: Final = -1
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

    def build(self, jobs: Sequence[TreeJob], new: Sequence[int], *, now: float, completed: bool) -> Changes:
        everyone = not self._only_gainers
        gaining = (job for job in jobs if everyone or job.times.step_ina < job.times.step_plain)
        found: Changes = {}
        asking: list[TreeJob] = []
        for job in gaining:
            if isinstance(self._network, FatTreeNetwork) and self._network.meets_nobody(job.slot):
                if job.tree is None or job.tree in job.barred:
                    root = next((root for root in range(job.roots) if root not in job.barred), None)
                    if root != job.tree:
                        found[job.slot] = root
            elif job.roots:
                asking.append(job)
        wishes = self._wishes(asking)
        before = wishes.tree.copy()
        for one, job in enumerate(asking):
            if job.tree in job.barred:
                wishes.tree[one] = _NONE
        self._serve(wishes, asking)
        if self._may_move and self._may_share:
            self._move(wishes, asking, before)
        trees = wishes.tree.tolist()
        for one in np.flatnonzero(wishes.tree != before).tolist():
            found[asking[one].slot] = None if trees[one] == _NONE else trees[one]
        return found

    def _wishes(self, jobs: Sequence[TreeJob]) -> Wishes:
        rates, duties, lefts = [], [], []
        for job in jobs:
            rate, duty = _kind(job.times, self._suffix_only)
            rates.append(rate * job.hosts if self._by_hosts else rate)
            duties.append(duty)
            lefts.append(job.times.step_ina * job.steps_left)
        return Wishes(
            np.array([job.slot for job in jobs], np.int64),
            np.array([_NONE if job.tree is None else job.tree for job in jobs], np.int64),
            np.array(rates, np.float64),
            np.array(duties, np.float64),
            np.array(lefts, np.float64),
        )

    def _serve(self, wishes: Wishes, jobs: Sequence[TreeJob]) -> None:
        """First trees, for who gains most by one first."""
        gains = wishes.rate * wishes.left
        waiting = np.flatnonzero(wishes.tree == _NONE)
        for one in waiting[np.argsort(-gains[waiting], kind="stable")].tolist():
            costs = self._costs(wishes, jobs, one)
            root = int(costs.argmin())
            if costs[root] == 0 or (self._may_share and costs[root] < gains[one]):
                wishes.tree[one] = root

    def _move(self, wishes: Wishes, jobs: Sequence[TreeJob], before: Ints) -> None:
        """Each change lessens what all lose together, itself included; who loses most comes first."""
        changes = wishes.rate * np.minimum(self._downtime, wishes.left)
        changes[(before == _NONE) | (wishes.tree != before)] = 0.0
        for _ in range(ROUNDS_MAX):
            losses = self._losses(wishes)
            doubtful = np.flatnonzero(losses > changes + _MARGIN_S)
            has_moved = False
            for one in doubtful[np.argsort(-losses[doubtful], kind="stable")].tolist():
                costs = self._costs(wishes, jobs, one)
                root = int(costs.argmin())
                if costs[wishes.tree[one]] - costs[root] > changes[one] + _MARGIN_S:
                    wishes.tree[one] = root
                    has_moved = True
            if not has_moved:
                break

    def _costs(self, wishes: Wishes, jobs: Sequence[TreeJob], one: int) -> Floats:
        """(roots,): what that job and others lose by each other if it has that root, seconds."""
        job = jobs[one]
        roots = job.roots
        if self._roots_max is not None:
            roots = min(roots, max(self._roots_max, int(wishes.tree[one]) + 1))
        if isinstance(self._network, FatTreeNetwork):
            costs = _costs_of_roots(self._network.moduli, wishes, one, roots)
        else:
            with_tree = np.flatnonzero(wishes.tree != _NONE)
            slots, trees = wishes.slot[with_tree], wishes.tree[with_tree]
            losses = _losses_by_turns(wishes, one)[with_tree]
            crowds = Crowds(self._network, zip(slots.tolist(), trees.tolist(), strict=True))
            excluded = (self._network.conflicts_with(job.slot, root, slots, trees) for root in range(roots))
            costs = np.array(
                [
                    losses[row | np.isin(slots, list(crowds.met(job.slot, root)))].sum()
                    for root, row in enumerate(excluded)
                ]
            )
        costs[[root for root in sorted(job.barred) if root < roots]] = np.inf
        return costs

    def _losses(self, wishes: Wishes) -> Floats:
        """(jobs,): what each and others lose by each other, as it is."""
        if isinstance(self._network, FatTreeNetwork):
            return _losses_as_it_is(self._network.moduli, wishes)
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
def _costs_of_roots(moduli: Ints, wishes: Wishes, one: int, roots: int) -> Floats:
    found = np.zeros(roots)
    slot = wishes.slot[one]
    for other in range(len(wishes.slot)):
        tree, modulus = wishes.tree[other], moduli[slot, wishes.slot[other]]
        if other == one or tree < 0 or modulus == 0:
            continue
        loss = _loss(wishes, one, other)
        for root in range(tree % modulus, roots, modulus):
            found[root] += loss
    return found


@jit
def _losses_as_it_is(moduli: Ints, wishes: Wishes) -> Floats:
    found = np.zeros(len(wishes.slot))
    for one in range(len(wishes.slot)):
        tree, slot = wishes.tree[one], wishes.slot[one]
        if tree < 0:
            continue
        for other in range(one):
            modulus = moduli[slot, wishes.slot[other]]
            if wishes.tree[other] < 0 or modulus == 0 or (tree - wishes.tree[other]) % modulus != 0:
                continue
            loss = _loss(wishes, one, other)
            found[one] += loss
            found[other] += loss
    return found
