"""Worlds of trees with one thing less; what tries them is :mod:`inaproto.sim.campaign.word_shrink`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from inaproto.sim.trees.config import TreesConfig


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
    for number in range(len(config.faults)):
        yield replace(config, faults=config.faults[:number] + config.faults[number + 1 :])
    for number in range(len(config.wants)):
        yield replace(config, wants=config.wants[:number] + config.wants[number + 1 :])
    for number in range(len(config.refusals)):
        yield replace(config, refusals=config.refusals[:number] + config.refusals[number + 1 :])
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
