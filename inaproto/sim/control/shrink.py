"""Control worlds with one thing less, and how large they are; what tries them is
:mod:`inaproto.sim.campaign.shrink`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from inaproto.sim.control.config import ControlConfig
from inaproto.sim.control.world import ControlResult
from inaproto.sim.kernel.config import one_less


def control_rows(result: ControlResult) -> dict[str, str]:
    """A run in a few rows, for people."""
    config, measures = result.config, result.measures
    return {
        "rule": config.rule,
        "hosts": str(config.hosts),
        "switches": "; ".join(f"{slots} slots" for slots in config.switches),
        "trees": "; ".join(
            f"switches {', '.join(map(str, tree))}, pool for {pool}"
            for tree, pool in zip(config.trees, config.pools, strict=True)
        ),
        "jobs": "; ".join(f"{len(job.hosts)} seats, {job.operations} all-reduces" for job in config.jobs),
        "plans": str(len(config.plan)),
        "rounds": f"{measures.rounds} ({measures.committed} committed, {measures.aborted} aborted)",
        "operations": f"{measures.ina_operations} by the switches, {measures.chain_operations} by the chain, "
        f"{measures.rescued} rescued",
        **({"longest stops": "\n".join(map(str, result.stops))} if config.stop_ns >= 0 else {}),
    }


def size_of_control(config: ControlConfig) -> str:
    return (
        f"{config.hosts} hosts, {len(config.switches)} switches, {len(config.jobs)} jobs, "
        f"{sum(job.operations for job in config.jobs)} operations, {len(config.plan)} plans"
    )


def smaller_control(config: ControlConfig) -> Iterator[ControlConfig]:
    """The greatest steps first."""
    for number in range(len(config.jobs)):
        if len(config.jobs) > 1:
            jobs = config.jobs[:number] + config.jobs[number + 1 :]
            plan = tuple(
                replace(step, trees=step.trees[:number] + step.trees[number + 1 :]) for step in config.plan
            )
            yield replace(config, jobs=jobs, plan=plan)
    yield from one_less(config, "plan")
    yield from one_less(config, "faults")
    for number, job in enumerate(config.jobs):
        less = []
        if job.operations > 1:
            less += [
                replace(job, operations=job.operations // 2),
                replace(job, operations=job.operations - 1),
            ]
        if len(job.hosts) > 2:
            less.append(replace(job, hosts=job.hosts[:-1]))
        if job.cancelled_ns >= 0:
            less.append(replace(job, cancelled_ns=-1))
        if job.burst_operations > 1:
            less.append(replace(job, burst_operations=1, pause_ns=0))
        for one in less:
            yield replace(config, jobs=(*config.jobs[:number], one, *config.jobs[number + 1 :]))
    used = max((host for job in config.jobs for host in job.hosts), default=0) + 1
    if used < config.hosts:
        yield replace(config, hosts=used)
