"""The one tree that PARING plans for each job that has none: an option beside which there is no other.

The first are jobs that have trees, or to which one was promised with their hosts: what these take is not
free, and they keep them as long as they can be had. Then one job after the other, by name, gets the best tree
that is left. Where PARING has none, the job has the options that it would have without, and the reason is
told.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inaproto.core.rendezvous.rules import gone_on
from inaproto.errors import Infeasible
from inaproto.wire.messages.trees import FabricTree
from inaproto_controller.planning.fabric_trees import FabricOption, FabricTrees
from inaproto_controller.planning.paring.live_tree import LivePlace, LiveTree
from inaproto_controller.planning.trees.shared_roots import Option

if TYPE_CHECKING:  # it takes long to load
    from inaproto_controller.planning.paring.live_trees import LiveTrees

log = logging.getLogger("inaproto.controller")


@dataclass(frozen=True, slots=True)
class Wanting:
    """Jobs with their hosts, and what each may have."""

    hosts: Mapping[str, tuple[str, ...]]
    had: Mapping[str, FabricTree]
    """The tree that a job has, or is getting."""
    held: frozenset[str]
    """Jobs that have the slots of it."""
    pins: Mapping[str, str]
    """The root that a person wants."""
    away: frozenset[str]
    """Switches that cannot lend slots now."""
    barred: Mapping[str, frozenset[FabricTree]]
    """Trees that the fabric has refused to a job."""


class PlannedOptions:
    def __init__(self, known: FabricTrees, live: LiveTrees) -> None:
        self._known, self._live = known, live
        self.promised: Mapping[str, LivePlace] = {}
        """Trees that were planned together with the hosts of jobs, whose rings may be yet to come."""
        self._hosts: Mapping[str, tuple[str, ...]] = {}
        self._trees: dict[str, LiveTree] = {}
        """Trees that jobs have, or get."""
        self._reasons: dict[str, str] = {}
        """Reasons of jobs for which PARING had none, when last asked."""
        self._asked: dict[str, tuple[Any, LiveTree | Infeasible]] = {}
        """What was asked last of each job, and the answer: the same again has the same."""

    def options(self, wanting: Wanting) -> dict[str, tuple[FabricOption, ...]]:
        """Options of each job."""
        jobs = wanting.hosts.keys()
        self._reasons = {job: reason for job, reason in self._reasons.items() if job in jobs}
        self._asked = {job: asked for job, asked in self._asked.items() if job in jobs}
        found: dict[str, tuple[FabricOption, ...]] = {}
        taken = self._kept(wanting)
        to_come = {job: taken.pop(job) for job in taken.keys() - jobs}
        for job in sorted(jobs):
            own = taken.pop(job, None)
            can_stay = own is not None and _can_stay(job, own, wanting)
            pin = wanting.pins.get(job, "")
            options = [] if own is None else [_option(own)]
            if own is None or not can_stay or pin not in ("", own.tree.root):
                new = self._new(job, wanting, {**taken, **to_come}, pin)
                if new is None and not can_stay:
                    options += self._known.options(wanting.hosts[job])
                elif new is not None:
                    options.append(_option(new))
                    own = own if can_stay and new.tree.root != pin else new
            if own is not None:
                taken[job] = own
            found[job] = tuple({one.tree: one for one in options}.values())
        self._hosts, self._trees = wanting.hosts, taken
        return found

    def rings(self) -> dict[str, LivePlace]:
        """Trees of the jobs whose options were asked for last."""
        return {
            job: LivePlace(self._hosts[job], tree, self._reasons.get(job, ""))
            for job, tree in self._trees.items()
        }

    def document(self, job: str) -> dict[str, Any]:
        """Document of the tree of a job, and who planned it; if not PARING, why."""
        tree, reason = self._trees.get(job), self._reasons.get(job, "")
        measures = {} if tree is None else tree.document()
        return {"by": "roots" if reason else "paring", "reason": reason, **measures}

    def _kept(self, wanting: Wanting) -> dict[str, LiveTree]:
        """Trees that jobs have, in the order in which they got them, after a restart by name; and those that
        are promised to jobs that have none."""
        taken = {job: tree for job, tree in self._trees.items() if wanting.had.get(job) == tree.tree}
        taken = {job: tree for job, tree in taken.items() if job in wanting.hosts}
        followed = gone_on(wanting.hosts)
        for job, promise in self.promised.items():
            if job in followed and job not in wanting.hosts:
                continue  # what follows it has a ring, and its own tree
            has = wanting.had.get(job, promise.tree.tree)
            if job not in taken and promise.hosts == wanting.hosts.get(job, promise.hosts):
                taken |= {job: promise.tree} if has == promise.tree.tree else {}
        for job in sorted(wanting.had.keys() & wanting.hosts.keys()):
            if job not in taken:
                free = self._live.free(taken.values())
                taken[job] = self._live.of(wanting.had[job], wanting.hosts[job], free)
        return taken

    def _new(self, job: str, wanting: Wanting, taken: Mapping[str, LiveTree], pin: str) -> LiveTree | None:
        free = self._live.free(taken.values(), without=wanting.away)
        hosts, barred = wanting.hosts[job], wanting.barred.get(job, frozenset())
        key = hosts, free, pin, barred
        known = self._asked.get(job)
        if known is None or known[0] != key:
            answer = self._live.planned(hosts, free, root=pin, barred=barred)
            if pin and isinstance(answer, Infeasible) and job not in wanting.had:
                answer = self._live.planned(hosts, free, barred=barred)
            self._asked[job] = known = key, answer
        self._tell(job, known[1])
        return None if isinstance(known[1], Infeasible) else known[1]

    def _tell(self, job: str, answer: LiveTree | Infeasible) -> None:
        if not isinstance(answer, Infeasible):
            self._reasons.pop(job, None)
            old = self._trees.get(job)
            if old is None or old.tree != answer.tree:
                where = f"planned at {answer.tree.root}"
                log.info("job %s: %s, %s Gbit/s over %d links", job, where, answer.rate, answer.links)
            return
        reason = str(answer)
        if self._reasons.get(job) != reason:
            log.warning("job %s: PARING has no tree for it, its root is chosen without: %s", job, reason)
        self._reasons[job] = reason


def _can_stay(job: str, own: LiveTree, wanting: Wanting) -> bool:
    if own.tree in wanting.barred.get(job, ()):
        return False
    return job in wanting.held or wanting.away.isdisjoint(own.adders)


def _option(one: LiveTree) -> FabricOption:
    return FabricOption(one.tree, Option(one.tree.root, one.adders))
