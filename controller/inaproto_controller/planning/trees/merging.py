"""Trees of the published simulator's later revision (generation L): groups that are merged where a trial says
that it pays.

At placements and completions. Candidates are drawn once, at placement. Those of an independent set of their
conflict graph open a group each; a job without tree joins the group with which alone one of its candidates
conflicts; the others, which would join several groups into one, are let in where the group simulated alone
scores better than its parts without them. All others lose their trees.

Departures: draws are ours; conflicts of all candidates are computed anew at each build, which takes less time
than to keep them. Where the published revision is silent, ours: of equal gains the first in order of group
sets; a group that can gain nothing is not merged.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from inaproto_controller.cluster.network import Bools, Network
from inaproto_controller.planning.trees.builder import Changes, TreeJob, changed, integers
from inaproto_controller.planning.trees.candidates import CandidateDraws, Candidates
from inaproto_controller.planning.trees.peeling import peel
from inaproto_controller.planning.trees.rebuild_all import CANDIDATES_MAX
from inaproto_controller.planning.trial.trial import Sums, Trials, plain

GROUP_MAX: Final = 30
"""Jobs of a group that a merger may make."""
TRIALS_BEFORE_GUESSES: Final = 10
SPREAD_MIN: Final = 0.02


class MergedGroups:
    wants_completions = True

    def __init__(self, network: Network, *, seed: int | str, candidates_max: int = CANDIDATES_MAX) -> None:
        self._network = network
        self._draws = CandidateDraws(candidates_max, seed)
        self._roots: dict[int, list[int]] = {}
        """Candidates by the number of the job."""
        self._trials = Trials()

    def build(self, jobs: Sequence[TreeJob], new: Sequence[int], *, now: float, completed: bool) -> Changes:
        candidates = self._candidates(jobs)
        conflicts = self._network.conflicts(candidates.slots, candidates.roots)
        groups = _Groups(jobs, candidates, conflicts, self._trials)
        groups.join_only()
        groups.merge()
        return changed(jobs, groups.trees)

    def _candidates(self, jobs: Sequence[TreeJob]) -> Candidates:
        # What is barred now may come back while the job runs.
        fresh = [replace(job, barred=frozenset()) for job in jobs if job.number not in self._roots]
        drawn = self._draws.draw(fresh)
        self._roots = {job.number: self._roots.get(job.number, []) for job in jobs}
        for place, root in zip(drawn.jobs.tolist(), drawn.roots.tolist(), strict=True):
            self._roots[fresh[place].number].append(root)
        pairs = [
            (place, root)
            for place, job in enumerate(jobs)
            for root in self._roots[job.number]
            if root not in job.barred
        ]
        owners = integers([place for place, _ in pairs])
        slots = integers([job.slot for job in jobs])
        return Candidates(owners, slots[owners], integers([root for _, root in pairs]))


class _Groups:
    """Groups of one build."""

    def __init__(
        self, jobs: Sequence[TreeJob], candidates: Candidates, conflicts: Bools, trials: Trials
    ) -> None:
        self._owners = candidates.jobs.tolist()
        self._roots = candidates.roots.tolist()
        self._conflicts = conflicts
        self._trials = trials
        self._kinds = [(job.hosts, trials.kind(job.times)) for job in jobs]
        self.trees: list[int | None] = [None] * len(jobs)
        opening = np.flatnonzero(peel(conflicts))
        self._members: list[list[int]] = [[] for _ in opening]
        """Jobs by group; none of a group that was merged into another."""
        self._sums: list[Sums | None] = [None] * len(self._members)
        """Sums of each group's trial, once it was asked for."""
        self._plain = [plain(job.times, job.hosts) for job in jobs]
        self._touches = conflicts[:, opening].copy()
        """(candidates, groups): whether a candidate conflicts with any tree of the group."""
        for group, vertex in enumerate(opening.tolist()):
            self._enter(vertex, group)

    def _enter(self, vertex: int, group: int) -> None:
        job = self._owners[vertex]
        self.trees[job] = self._roots[vertex]
        self._members[group].append(job)
        self._sums[group] = None

    def _bundles(self) -> list[tuple[tuple[int, ...], list[int]]]:
        """Candidates of jobs without tree by the groups that they conflict with: few groups first."""
        open_ = [vertex for vertex, job in enumerate(self._owners) if self.trees[job] is None]
        bundles: dict[bytes, list[int]] = {}
        for vertex, touched in zip(open_, np.packbits(self._touches[open_], axis=1), strict=True):
            bundles.setdefault(touched.tobytes(), []).append(vertex)
        found = [
            (tuple(np.flatnonzero(self._touches[vertices[0]]).tolist()), vertices)
            for vertices in bundles.values()
        ]
        return sorted(found, key=lambda bundle: (len(bundle[0]), bundle[0]))

    def join_only(self) -> None:
        """Jobs with a candidate that conflicts with one group alone, as all groups were before any joined."""
        entered: list[tuple[int, int]] = []
        for groups, vertices in self._bundles():
            if len(groups) > 1:
                break
            for vertex in vertices:
                if self.trees[self._owners[vertex]] is None:
                    # A maximal set leaves nobody without conflict.
                    self._enter(vertex, groups[0])
                    entered.append((vertex, groups[0]))
        for vertex, group in entered:
            self._touches[:, group] |= self._conflicts[:, vertex]

    def merge(self) -> None:
        while True:
            best, chosen = 0.0, None
            for groups, vertices in self._bundles():
                gain = self._gain(groups, self._one_each(vertices), best)
                if gain > best:
                    best, chosen = gain, (groups, vertices)
            if chosen is None:
                return
            self._apply(*chosen)

    def _one_each(self, vertices: Sequence[int]) -> dict[int, int]:
        """Jobs, and the first of these candidates of each."""
        first: dict[int, int] = {}
        for vertex in vertices:
            first.setdefault(self._owners[vertex], vertex)
        return first

    def _gain(self, groups: Sequence[int], joining: Collection[int], enough: float) -> float:
        """Score gained by merging ``groups``; 0 if a trial cannot pay."""
        members = [job for group in groups for job in self._members[group]]
        all_jobs = [self._kinds[job] for job in (*members, *joining)]
        if len(all_jobs) > GROUP_MAX:
            return 0.0
        before = Sums(0.0, 0.0, 0.0)
        for group in groups:
            before += self._trial(group)
        for job in joining:
            before += self._plain[job]
        had = before.score
        if had is None:
            return 0.0
        count, mean, deviation = self._trials.scores(len(all_jobs))
        if count >= TRIALS_BEFORE_GUESSES and mean + max(deviation, SPREAD_MIN) - had < enough:
            return 0.0
        after = self._trials.run(all_jobs).score
        return 0.0 if after is None else after - had

    def _trial(self, group: int) -> Sums:
        found = self._sums[group]
        if found is None:
            found = self._sums[group] = self._trials.run(self._kinds[job] for job in self._members[group])
        return found

    def _apply(self, groups: Sequence[int], vertices: Sequence[int]) -> None:
        into, *others = groups
        for group in others:
            self._members[into] += self._members[group]
            self._members[group] = []
            self._touches[:, into] |= self._touches[:, group]
            self._touches[:, group] = False
        for vertex in self._one_each(vertices).values():
            self._enter(vertex, into)
            self._touches[:, into] |= self._conflicts[:, vertex]
