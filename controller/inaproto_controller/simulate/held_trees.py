"""Trees of the running jobs: who has which, who excludes whom, and what becomes of one that is given up.

A tree that is exchanged while an operation with INA runs on it stays in use until that has ended (MINA,
section III-C: live migration). Whoever needs its links waits for that, and where a change has a cost, for
their release.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from inaproto.errors import LocalMisuse
from inaproto_controller.cluster.network import Network
from inaproto_controller.planning.trees.builder import (
    Changes,
    JobColumns,
    JobsInColumns,
    TreeBuilder,
    TreeJob,
)
from inaproto_controller.planning.trial.kernel import Ints
from inaproto_controller.simulate.jobs import Jobs, RunningJob
from inaproto_controller.simulate.rivals import Rivals
from inaproto_controller.simulate.setting import Migration
from inaproto_controller.simulate.turns import Blocks, Counted, count_shared

_ALL_PAIRS_MAX: Final = 512
"""Jobs: of more, pairs are looked for job by job."""


class _Release(NamedTuple):
    """A tree that was given up while its job goes on."""

    slot: int
    tree: int
    until: float
    """Its links are held so long."""


class HeldTrees:
    def __init__(self, network: Network, builder: TreeBuilder, migration: Migration, jobs: Jobs) -> None:
        self._network = network
        self._builder = builder
        self._migration = migration
        self._jobs = jobs
        self._trees: Ints = np.full(jobs.room, -1, np.int64)
        """(slots,): root of each slot's tree; -1 for none."""
        self.rivals = Rivals(jobs.room)
        self.builds = 0
        self._releases: list[_Release] = []
        self._waiting: dict[int, None] = {}
        """Slots whose trees wait for an operation's end, or did at the last build."""

    @property
    def count(self) -> int:
        return int((self._trees >= 0).sum())

    def enter(self, job: RunningJob) -> None:
        more = self._jobs.room - len(self._trees)
        if more:
            self._trees = np.concatenate([self._trees, np.full(more, -1, np.int64)])
            self.rivals.grow()
        self.rivals.enter(job.slot, job.number)

    def leave(self, slot: int) -> None:
        self.rivals.forget(slot)
        self._trees[slot] = -1
        self._waiting.pop(slot, None)
        self._releases = [release for release in self._releases if release.slot != slot]

    def build(self, new: Sequence[int], *, now: float, completed: bool) -> None:
        """``new``: slots placed just now, in order; ``completed``: jobs have ended, or switches failed."""
        if not new and not self._builder.wants_completions:
            return
        self.builds += 1
        jobs = self._tree_jobs()
        placed = range(len(jobs) - len(new), len(jobs))
        changes = self._builder.build(jobs, placed, now=now, completed=completed)
        self._check(changes)
        changed = [slot for slot, tree in changes.items() if self._set(self._jobs[slot], tree, now)]
        for slot in changed:
            self._jobs[slot].granted = self.builds
        self._wait_for_release(changed, now)
        self._exclude(changed)

    def _check(self, changes: Changes) -> None:
        """A network believes any number of a tree."""
        for slot, tree in changes.items():
            if slot not in self._jobs:
                raise LocalMisuse(f"tree builder: tree {tree} for slot {slot}, in which no job runs")
            job = self._jobs[slot]
            if tree is not None and not 0 <= tree < job.roots:
                raise LocalMisuse(
                    f"tree builder: tree {tree} for request {job.request}, which has {job.roots}, from 0"
                )

    def _tree_jobs(self) -> JobsInColumns:
        slots = self._jobs.slots
        for slot in [slot for slot in self._waiting if not slots.waits[slot]]:
            del self._waiting[slot]
            job = self._jobs[slot]
            if job.using != job.tree:
                self._settle(job)
        order = self._jobs.order
        return JobsInColumns(
            JobColumns(
                order,
                self._jobs.numbers[order],
                self._trees[order],
                slots.steps_max[order] - slots.steps[order],
                self._jobs.barred,
                lambda index: self._tree_job(self._jobs[int(order[index])]),
            )
        )

    def _tree_job(self, job: RunningJob) -> TreeJob:
        slots, slot = self._jobs.slots, job.slot
        return TreeJob(
            slot,
            job.number,
            job.asked.hosts,
            job.times,
            job.roots,
            job.tree,
            job.using if slots.uses_ina[slot] else None,
            job.asked.steps - int(slots.steps[slot]),
            job.barred,
        )

    def _settle(self, job: RunningJob) -> None:
        """The operation that its new tree waited for has ended."""
        self._give_up(job, float(self._jobs.slots.changed_at[job.slot]))
        job.using = job.tree

    def _give_up(self, job: RunningJob, at: float) -> None:
        """The tree that was in effect so far."""
        if job.using is not None:
            self._releases.append(_Release(job.slot, job.using, at + self._migration.release))

    def _set(self, job: RunningJob, tree: int | None, now: float) -> bool:
        if tree in job.barred:
            tree = None
        if tree == job.tree:
            return False
        slots, slot = self._jobs.slots, job.slot
        cost = self._migration.total if job.had_tree else 0.0
        switches = 0 if tree is None else self._network.tree_size(slot, tree)[0]
        if slots.waits[slot]:  # it never came into effect
            job.migrations -= 1
            job.downtime -= float(slots.downtime_then[slot])
        job.tree = tree
        self._trees[slot] = -1 if tree is None else tree
        if not (slots.uses_ina[slot] and tree == job.using):
            job.migrations += job.had_tree
            job.downtime += cost
        job.had_tree = True
        if slots.uses_ina[slot]:
            slots.waits[slot] = tree != job.using
            if tree != job.using:
                self._waiting[slot] = None
            slots.has_tree_then[slot] = tree is not None
            slots.switches_then[slot] = switches
            slots.downtime_then[slot] = cost
            return True
        self._give_up(job, now)
        job.using = tree
        slots.has_tree[slot] = tree is not None
        slots.switches[slot] = switches
        if cost:
            slots.no_ina_until[slot] = now + cost
        return True

    def _wait_for_release(self, changed: Sequence[int], now: float) -> None:
        """Nobody is granted links before those who had them have released them."""
        self._releases = [release for release in self._releases if release.until > now]
        slots = np.array([slot for slot in changed if self._trees[slot] >= 0], np.int64)
        roots = self._trees[slots]
        no_ina_until = self._jobs.slots.no_ina_until
        for slot, tree, until in self._releases:
            waiting = slots[self._network.conflicts_with(slot, tree, slots, roots)]
            no_ina_until[waiting] = np.maximum(no_ina_until[waiting], until)

    def _excluded(self, slot: int, tree: int) -> Ints:
        """Slots, ascending, of others whose trees that tree of the slot excludes."""
        near = self._network.near(slot)
        near = near[self._trees[near] >= 0]
        return near[self._network.conflicts_with(slot, tree, near, self._trees[near])]

    def _exclude(self, changed: Sequence[int]) -> None:
        network, trees = self._network, self._trees
        for slot in changed:
            self.rivals.forget(slot)
        if 2 * len(changed) > len(self._jobs) and len(self._jobs) <= _ALL_PAIRS_MAX:
            order = self._jobs.order
            order = order[trees[order] >= 0]
            self.rivals.set_all(order, network.conflicts(order, trees[order]))
            return
        is_done = np.ones(len(trees), np.bool_)
        is_done[list(changed)] = False
        for slot in changed:
            is_done[slot] = True
            if trees[slot] >= 0:
                excluded = self._excluded(slot, int(trees[slot]))
                self.rivals.meet(slot, excluded[is_done[excluded]])

    def lose(self, now: float) -> None:
        """Trees with a switch that is down, now that jobs know which of their roots are barred."""
        barred = sorted((self._jobs[slot] for slot in self._jobs.barred), key=lambda job: job.number)
        self._exclude([job.slot for job in barred if self._lose(job, now)])

    def _lose(self, job: RunningJob, now: float) -> bool:
        """If a switch of it is down. An operation that it carries is begun anew, without INA."""
        slots, slot, tables = self._jobs.slots, job.slot, self._jobs.kinds.tables
        if not slots.waits[slot] and job.using != job.tree:
            self._settle(job)
        if job.using in job.barred:
            if slots.uses_ina[slot]:
                slots.uses_ina[slot] = False
                operation = tables.first[slots.kind[slot]] + slots.operation[slot]
                slots.at[slot] = now + tables.plain[operation]
            if slots.waits[slot]:
                slots.waits[slot] = False
                slots.has_tree[slot] = slots.has_tree_then[slot]
                slots.switches[slot] = slots.switches_then[slot]
                slots.no_ina_until[slot] = max(slots.no_ina_until[slot], now + slots.downtime_then[slot])
                job.using = job.tree
        if job.tree not in job.barred:
            return False
        job.tree = None
        self._trees[slot] = -1
        if slots.waits[slot]:
            slots.has_tree_then[slot] = False
        else:
            job.using = None
            slots.has_tree[slot] = False
        return True

    def blocks(self) -> Blocks:
        """Who waits with a new tree still holds the links of the old one."""
        pairs = []
        for holder in [self._jobs[slot] for slot in np.flatnonzero(self._jobs.slots.waits).tolist()]:
            assert holder.using is not None
            held = self._excluded(holder.slot, holder.using)
            pairs += [
                (holder.slot, slot, self._jobs[slot].granted >= holder.granted) for slot in held.tolist()
            ]
        found = np.array(pairs, np.int64).reshape(-1, 3)
        return Blocks(found[:, 0].copy(), found[:, 1].copy(), found[:, 2].astype(np.bool_))

    def counted(self) -> Counted:
        """What several jobs may use at a time, of which there are more."""
        now: dict[int, Sequence[tuple[int, int]]] = {}
        then: dict[int, Sequence[tuple[int, int]]] = {}
        slots = self._jobs.slots
        for job in self._jobs if self._network.is_counted else ():
            tree = job.using if slots.waits[job.slot] else job.tree
            if tree is not None:
                now[job.slot] = self._network.shared(job.slot, tree)
            if slots.waits[job.slot] and job.tree is not None:
                then[job.slot] = self._network.shared(job.slot, job.tree)
        return count_shared(now, then, slots)
