"""Trees for the jobs that a fabric's root reports: what the planner is given, and what is made of its answer.

A tree that the fabric has refused is left alone for as long as it is barred
(:mod:`inaproto.core.migration.bars`). A switch that is away costs nobody the tree that he has; but nobody
gets one through it, also not who was about to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from inaproto.wire.messages.trees import FabricTree, TreeState
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.planning.fabric_trees import FabricOption, FabricTrees
from inaproto_controller.planning.planned_options import PlannedOptions, Wanting
from inaproto_controller.planning.trees.shared_roots import UNKNOWN, Gain, RootConfig, SharedJob, assign_roots

JOBS_MAX: Final = 512
"""Most jobs that are planned for; the coordinator takes twice as many, for some are yet to end."""


class TreePlan(NamedTuple):
    trees: dict[str, FabricOption | None]
    unserved: tuple[str, ...]
    """Jobs for which all switches are there, and none of them has a slot left."""


@dataclass
class TreePlans:
    known: FabricTrees
    config: RootConfig = field(default_factory=RootConfig)
    planned: PlannedOptions | None = None
    """Planner of trees; None: a job has those of its nearest roots."""
    _gains: dict[str, Gain] = field(default_factory=dict)
    """Gains of jobs whose step was known once."""
    _steps: dict[str, StepTimes] = field(default_factory=dict)
    """From which their gains are."""
    _placed: tuple[list[SharedJob], dict[str, int | None]] | None = None
    """The last jobs that were planned for, and what came of it: the same again does."""

    def plan(
        self,
        states: Mapping[str, TreeState],
        *,
        had: Mapping[str, FabricTree],
        held: frozenset[str],
        roots: Mapping[str, str],
        steps: Mapping[str, StepTimes],
        pins: Mapping[str, str],
        away: frozenset[str],
        barred: Mapping[str, frozenset[FabricTree]],
    ) -> TreePlan:
        """``had``: the tree that each job has, or is getting; ``held``: jobs that have the slots of
        that tree, by all that is known; ``roots``: where those are that have none; ``steps``: what is
        measured; ``away``: switches that cannot lend slots now; ``barred``: trees that the fabric has
        refused."""
        self._measured(states, steps)
        jobs = []
        hosts = {name: states[name].hosts for name in sorted(states)[:JOBS_MAX]}
        if self.planned is None:
            options = {name: self.known.options(its) for name, its in hosts.items()}
        else:
            wanting = Wanting(hosts, had, held, pins, away, barred)
            options = self.planned.options(wanting)
        for name, found in options.items():
            current = _current(found, had.get(name), roots.get(name, ""))
            closed = {
                index
                for index, one in enumerate(found)
                if one.tree in barred.get(name, ())
                or ((name not in held or index != current) and not away.isdisjoint(one.option.switches))
            }
            jobs.append(
                SharedJob(
                    name,
                    tuple(one.option for one in found),
                    current,
                    self._gains.get(name, UNKNOWN),
                    frozenset(closed),
                    pins.get(name, ""),
                    is_settled=name in had,
                )
            )
        placed = self._place(jobs)
        trees = {name: None if index is None else options[name][index] for name, index in placed.items()}
        unserved = tuple(
            job.name for job in jobs if placed[job.name] is None and len(job.barred) < len(job.options)
        )
        return TreePlan(trees, unserved)

    def _measured(self, states: Mapping[str, TreeState], steps: Mapping[str, StepTimes]) -> None:
        self._gains = {job: gain for job, gain in self._gains.items() if job in states}
        for job, times in steps.items():
            if job in states and (job not in self._gains or self._steps.get(job) is not times):
                self._gains[job] = Gain.of(times)
        self._steps = {job: times for job, times in steps.items() if job in states}

    def _place(self, jobs: list[SharedJob]) -> dict[str, int | None]:
        """It is asked after all that happens, and seldom does that make a difference."""
        if self._placed is None or self._placed[0] != jobs:
            self._placed = jobs, assign_roots(jobs, self.known.slots, self.config)
        return self._placed[1]


def _current(options: tuple[FabricOption, ...], had: FabricTree | None, root: str) -> int | None:
    for index, one in enumerate(options):
        if one.tree == had or (had is None and one.tree.root == root):
            return index
    return None
