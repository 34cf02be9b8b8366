"""Which tree each job is to have: jobs by name, each keeps what it has as long as it can.

A stand-in for :mod:`inaproto_controller.service.trees.plans`: what is planned is no subject of these worlds,
but that it may be anything, that wishes of people count, and that a plan is never asked twice for the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from inaproto.core.migration.service_events import PlannedTree, PlanTrees, TreesPlanned
from inaproto.sim.trees.config import TreesConfig, switch_name


class Planner:
    def __init__(self, config: TreesConfig) -> None:
        self._slots = {switch_name(at): slots for at, slots in enumerate(config.slots)}
        self._options = {
            job.name: tuple(planned_tree(config, tree) for tree in job.trees) for job in config.jobs
        }

    def plan(self, asked: PlanTrees) -> TreesPlanned:
        left = dict(self._slots)
        found: dict[str, PlannedTree | None] = {}
        for stays in (True, False):
            for job in sorted(asked.states):
                if job not in found and (its := self._find(job, asked, left, stays=stays)) is not None:
                    found[job] = its
                    for name in its.switches:
                        left[name] -= 1
        trees = {job: found.get(job) for job in sorted(asked.states)}
        return TreesPlanned(trees, tuple(job for job in trees if self._is_unserved(job, asked, trees)))

    def _find(
        self, job: str, asked: PlanTrees, left: Mapping[str, int], *, stays: bool
    ) -> PlannedTree | None:
        """The tree that it has, where it is wanted; else any that it can have, the wanted one before
        others."""
        wanted, had = asked.wanted.get(job, ""), asked.had.get(job)
        options = [one for one in self._options[job] if self._can_have(job, one, asked, left)]
        at_root = [one for one in options if one.tree.root == wanted]
        if stays:
            kept = [one for one in options if one.tree == had]
            return kept[0] if kept and (not at_root or kept == at_root) else None
        return next(iter([*at_root, *options]), None)

    def _can_have(self, job: str, one: PlannedTree, asked: PlanTrees, left: Mapping[str, int]) -> bool:
        if one.tree in asked.barred.get(job, ()) or any(not left[name] for name in one.switches):
            return False
        is_held = job in asked.held and one.tree == asked.had.get(job)
        return is_held or asked.away.isdisjoint(one.switches)

    def _is_unserved(self, job: str, asked: PlanTrees, trees: Mapping[str, PlannedTree | None]) -> bool:
        barred = asked.barred.get(job, ())
        return trees[job] is None and any(
            one.tree not in barred and asked.away.isdisjoint(one.switches) for one in self._options[job]
        )


def planned_tree(config: TreesConfig, tree: int) -> PlannedTree:
    switches = tuple(sorted(switch_name(at) for at in config.trees[tree]))
    return PlannedTree(config.fabric_tree(tree), switches)
