"""Hosts and tree of a job that comes, chosen together (PARING section III), with what other jobs leave.

The question is that of :meth:`inaproto_controller.planning.paring.live_trees.LiveTrees.placed`; here is who
asks it for a cluster's plan. The same question has the same answer: what is remembered saves time alone.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from inaproto.errors import Infeasible
from inaproto_controller.cluster.desired import Job
from inaproto_controller.planning.paring.live_tree import LivePlace, LiveTree

if TYPE_CHECKING:  # it takes long to load
    from inaproto_controller.planning.paring.live_trees import LiveTrees

TREES_MAX: Final = 4096
KNOWN_MAX: Final = 64
"""Answers that are remembered: the jobs that wait ask again at each look."""


class JointPlacement:
    def __init__(self, live: LiveTrees) -> None:
        self._live = live
        self._known: dict[Hashable, LivePlace | Infeasible] = {}
        self._trees: dict[Hashable, LiveTree | None] = {}

    def placed(
        self,
        idle: Collection[str],
        instead: Sequence[str],
        taken: Iterable[LiveTree],
        away: Collection[str],
    ) -> LivePlace | Infeasible:
        """As many hosts as ``instead`` has, which are those without a tree in mind. ``taken``: trees of other
        jobs; ``away``: switches that cannot be had now."""
        free = self._live.free(taken, without=away)
        key = frozenset(idle), tuple(instead), tuple(free.items())
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            found = self._known[key] = self._live.placed(len(instead), idle, free, instead)
        return found

    def planned(
        self, hosts: Sequence[str], taken: Iterable[LiveTree], away: Collection[str]
    ) -> LiveTree | Infeasible:
        """The tree of a job that names its hosts."""
        return self._live.planned(hosts, self._live.free(taken, without=away))

    def ranked(self, hosts: Sequence[str]) -> tuple[str, ...]:
        """Hosts of a job without a tree, in an order in which the fabric's own tree adds them."""
        return self._live.ranked(hosts)

    def tree(self, job: Job) -> LiveTree | None:
        """What a job's route takes of capacities and links; None: nothing."""
        route = job.route
        if route is None or route.tree is None:
            return None
        key = route, job.hosts
        if key not in self._trees:
            if len(self._trees) >= TREES_MAX:
                self._trees.clear()
            self._trees[key] = self._live.again(route.tree, job.hosts, route.rate)
        return self._trees[key]

    def promised(self, jobs: Iterable[Job]) -> dict[str, LivePlace]:
        """Hosts and trees of those that have both, by name."""
        found = ((job, self.tree(job)) for job in jobs)
        return {job.spec.name: LivePlace(job.hosts, tree) for job, tree in found if tree is not None}
