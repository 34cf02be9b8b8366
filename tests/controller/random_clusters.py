"""Small clusters drawn from a seed: jobs that tie, trees that are exchanged while operations run.

As a program it prints what the simulation of some seeds gives, in full.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from inaproto_controller.cluster.compiled import IS_COMPILED
from inaproto_controller.cluster.model import CLUSTER, SHARING
from inaproto_controller.cluster.network import FatTreeNetwork
from inaproto_controller.cluster.requests import Request
from inaproto_controller.cluster.step_times import Speeds
from inaproto_controller.cluster.topology import FatTree, Quota
from inaproto_controller.planning.placement.occupancy import Occupancy
from inaproto_controller.planning.placement.simple import FirstFit
from inaproto_controller.planning.trees.builder import Changes, TreeJob
from inaproto_controller.planning.turns.policy import Policy
from inaproto_controller.simulate.cluster import simulate
from inaproto_controller.simulate.results import Operation, Result
from inaproto_controller.simulate.setting import FREE, Migration, Setting

MODELS = ("opt-125m-4", "bert-base-4", "vit-base-4", "opt-125m-16")
TREES = (FatTree((2, 2, 4), (1, 2, 2)), FatTree((4, 2, 2), (1, 2, 1)), FatTree((2, 8), (1, 3)))
MIGRATIONS = (FREE, Migration(), Migration(0.02, 0.05), Migration(0.0, 0.03))


@dataclass
class Restless:
    """Gives some jobs any tree, or takes it away, whoever it conflicts with; remembers what it was shown."""

    draw: random.Random
    share: float
    """Of the jobs, those that are changed each time."""
    shown: list[Any] = field(default_factory=list)
    wants_completions: bool = True

    def build(self, jobs: Sequence[TreeJob], new: Sequence[int], *, now: float, completed: bool) -> Changes:
        seen = [(job.slot, job.number, job.tree, job.using, job.steps_left) for job in jobs]
        self.shown.append((now, completed, seen, tuple(new)))
        found: Changes = {}
        for index, job in enumerate(jobs):
            if index in new or self.draw.random() < self.share:
                found[job.slot] = None if self.draw.random() < 0.15 else self.draw.randrange(job.roots)
        return found


@dataclass(frozen=True, slots=True)
class Drawn:
    seed: int
    tree: FatTree
    quota: Quota
    policy: Policy
    speeds: Speeds
    migration: Migration
    is_weighted: bool
    share: float
    requests: tuple[Request, ...]

    def builder(self) -> Restless:
        return Restless(random.Random(f"{self.seed}/trees"), self.share)

    def setting(self, builder: Restless) -> Setting:
        return Setting(
            FatTreeNetwork(self.tree, self.quota),
            Occupancy(self.tree),
            FirstFit(),
            builder,
            self.policy,
            self.speeds,
            migration=self.migration,
            is_weighted=self.is_weighted,
        )

    def simulated(
        self, on_operation: Callable[[Operation], None] | None = None, *, jitter: float = 0.0
    ) -> tuple[Result, Restless]:
        builder = self.builder()
        setting = replace(self.setting(builder), jitter=jitter, seed=self.seed)
        return simulate(setting, self.requests, on_operation=on_operation), builder


def draw_cluster(seed: int) -> Drawn:
    draw = random.Random(f"{seed}/cluster")
    tree = draw.choice(TREES)
    models = draw.sample(MODELS, draw.randint(1, 3))
    requests = tuple(
        Request(draw.choice(models), draw.choice([1, 2, 3, 4, 6, tree.hosts]), draw.randint(1, 5))
        for _ in range(draw.randint(2, 14))
    )
    return Drawn(
        seed,
        tree,
        draw.choice(list(Quota)),
        draw.choice([Policy.SCORE, Policy.SCORE, Policy.GREEDY, Policy.NONE]),
        draw.choice([SHARING, SHARING, CLUSTER]),
        draw.choice(MIGRATIONS),
        draw.random() < 0.3,
        draw.choice([0.0, 0.3, 0.8]),
        requests,
    )


def said(seeds: Sequence[int]) -> str:
    return "\n".join(
        repr(draw_cluster(seed).simulated(jitter=jitter)[0]) for seed in seeds for jitter in (0.0, 0.1)
    )


if __name__ == "__main__":
    from inaproto_controller.planning.trial.kernel import advance

    print("compiled" if IS_COMPILED and hasattr(advance, "signatures") else "interpreted")
    print(said([int(word) for word in sys.argv[1:]]))
