"""Worlds of trees with one thing less, and how large they are; what tries them is
:mod:`inaproto.sim.campaign.shrink`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from inaproto.sim.kernel.config import one_less
from inaproto.sim.kernel.world import RunResult
from inaproto.sim.trees.config import TreesConfig


def trees_rows(result: RunResult[TreesConfig]) -> dict[str, str]:
    """A run in a few rows, for people."""
    config = result.config
    return {
        "switches": "; ".join(f"{slots} slots" for slots in config.slots),
        "trees": "; ".join(f"switches {', '.join(map(str, tree))}" for tree in config.trees),
        "jobs": "; ".join(f"on tree {' or '.join(map(str, job.trees))}" for job in config.jobs),
        "wants": str(len(config.wants)),
        "moves": str(result.marks.get("a move ended: stable", 0)),
    }


def size_of_trees(config: TreesConfig) -> str:
    return (
        f"{len(config.slots)} switches, {len(config.trees)} trees, {len(config.jobs)} jobs, "
        f"{len(config.wants)} wants, {len(config.refusals)} refusals"
    )


def smaller_trees(config: TreesConfig) -> Iterator[TreesConfig]:
    """The greatest steps first."""
    for number in reversed(range(len(config.jobs))):
        if len(config.jobs) > 1:
            yield _without_job(config, number)
    for many in ("faults", "wants", "refusals"):
        yield from one_less(config, many)
    for number, job in enumerate(config.jobs):
        if job.ends_ns >= 0:
            jobs = (*config.jobs[:number], replace(job, ends_ns=-1), *config.jobs[number + 1 :])
            yield replace(config, jobs=jobs)


def _without_job(config: TreesConfig, number: int) -> TreesConfig:
    def moved(job: int) -> int:
        return job - (job > number)

    return replace(
        config,
        jobs=config.jobs[:number] + config.jobs[number + 1 :],
        wants=tuple(replace(one, job=moved(one.job)) for one in config.wants if one.job != number),
        refusals=tuple(replace(one, job=moved(one.job)) for one in config.refusals if one.job != number),
    )
