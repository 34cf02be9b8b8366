"""Hosts and trees by rules of one's own, in the cluster and with the jobs of a scenario (docs/planning.md).

Prints CSV, a row for each seed of each variant of the scenario, and of ours:

    python examples/own_policies.py examples/cluster.toml > own.csv
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from inaproto_controller.cluster.network import Network
from inaproto_controller.planning.placement.occupancy import Occupancy
from inaproto_controller.planning.trees.builder import Changes, TreeJob
from inaproto_controller.simulate.scenario.measures import MEASURES, measured_of
from inaproto_controller.simulate.scenario.runs import simulated
from inaproto_controller.simulate.scenario.scenario import load_scenario


class LastFit:
    """Hosts: the highest that are free."""

    def place(self, occupancy: Occupancy, count: int) -> tuple[int, ...] | None:
        """As many hosts as are wanted, ascending, or None: the job waits, and those behind it do, too."""
        free = np.flatnonzero(occupancy.free)
        return tuple(free[-count:].tolist()) if len(free) >= count else None


class FewestExcluded:
    """Trees, for life: of the candidates of a job the one that excludes fewest trees of others."""

    wants_completions = False
    """``build`` is of no use when a job has ended and nobody was placed."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def build(self, jobs: Sequence[TreeJob], new: Sequence[int], *, now: float, completed: bool) -> Changes:
        """``jobs``: all that run; ``new``: indexes of those placed just now. Others keep their trees."""
        trees = {job.slot: job.tree for job in jobs if job.tree is not None}
        changes: Changes = {}
        for job in (jobs[index] for index in new):
            if not job.roots:
                continue  # no tree can be had on its hosts
            others = np.array([*trees], np.int64), np.array([*trees.values()], np.int64)
            excluded = [
                self._network.conflicts_with(job.slot, tree, *others).sum() for tree in range(job.roots)
            ]
            changes[job.slot] = trees[job.slot] = int(np.argmin(excluded))
        return changes


def main(path: Path) -> None:
    scenario = load_scenario(path)
    table = csv.writer(sys.stdout)
    table.writerow(["variant", "seed", *(measure.key for measure in MEASURES)])
    for seed in scenario.file.seed_list():
        # A setting serves one simulation, as networks and builders have a state.
        settings = {variant.label: scenario.setting(variant, seed) for variant in scenario.variants}
        ours = scenario.setting(scenario.variants[-1], seed)
        settings["ours"] = replace(ours, placement=LastFit(), trees=FewestExcluded(ours.network))
        for name, setting in settings.items():
            table.writerow([name, seed, *measured_of(simulated(scenario, setting, seed)).values()])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
