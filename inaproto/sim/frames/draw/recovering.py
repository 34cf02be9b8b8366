"""Worlds whose jobs go on when a ring ends, drawn from a seed: worlds of one switch or of several, changed.

They draw from a stream of their own, so all other worlds stay as they are. What ends rings befalls them more
often: reboots, NICs and control connections that are lost, transports that give up, accelerators without
room. A chain of hosts adds in rank order; where switches are several, the ranks of most jobs are therefore
numbered rack by rack.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from inaproto.faults.streams import Draws, Seed
from inaproto.sim.frames.draw.swarm import (
    Fault,
    FaultKind,
    JobConfig,
    Swarm,
    WorldConfig,
    draw_world,
    with_addresses,
)
from inaproto.units import MS, US, S

SWARM: Final = Swarm(ranks_max=8, packets_max=800)
_ENDS_RINGS: Final = (
    FaultKind.SWITCH_REBOOT,
    FaultKind.SWITCH_REBOOT,
    FaultKind.SESSION_LOSS,
    FaultKind.NIC_RESET,
    FaultKind.PARTITION,
    FaultKind.PARTITION,
    FaultKind.PAUSE,
)


def draw_recovery(seed: Seed, swarm: Swarm | None = None) -> WorldConfig:
    """The world of one switch of ``seed``."""
    return with_addresses(recovering(draw_world(seed, swarm or SWARM), Draws(seed, "swarm/recovery")))


def recovering(config: WorldConfig, draws: Draws) -> WorldConfig:
    """``config``, whose jobs go on."""
    topology = config.topology
    jobs = config.jobs
    if topology is not None and draws.chance(4, 5):
        attached = topology.attached
        jobs = tuple(replace(job, hosts=tuple(sorted(job.hosts, key=lambda h: attached[h]))) for job in jobs)
    jobs = tuple(_draw_job(job, draws) for job in jobs)
    config = replace(config, jobs=jobs, recover_ns=draws.magnitude(100 * MS, 4 * S))
    if draws.chance(1, 4) and all(is_in_rank_order(config, job) for job in jobs):
        config = replace(config, refusing=draws.below(1 if topology is None else len(topology.switches)))
    faults = [_draw_fault(config, draws) for _ in range(draws.below(4))]
    faults = sorted([*config.faults, *faults], key=lambda fault: (fault.at_ns, fault.kind, fault.target))
    return replace(config, faults=tuple(faults))


def _draw_job(job: JobConfig, draws: Draws) -> JobConfig:
    """Half of them with transports that give up soon, some with ranks that disagree."""
    if draws.chance(1, 2):
        job = replace(job, retry_count=draws.between(3, 6), transport_timeout=draws.between(9, 13))
    if draws.chance(1, 12):
        job = replace(job, mismatch=(draws.below(len(job.hosts)), draws.below(len(job.elements))))
    return job


def is_in_rank_order(config: WorldConfig, job: JobConfig) -> bool:
    """A chain of its hosts can follow its plan."""
    hosts = job.positions
    if config.topology is None:
        return True
    return _flat(config.topology.plan(hosts, config.along)) == list(range(len(hosts)))


def _flat(plan: object) -> list[int]:
    if isinstance(plan, int):
        return [plan]
    assert isinstance(plan, list | tuple)
    return [rank for part in plan for rank in _flat(part)]


def _draw_fault(config: WorldConfig, draws: Draws) -> Fault:
    """A fault strikes soon after a job has come to one of its all-reduces."""
    job = draws.below(len(config.jobs))
    operation = draws.below(len(config.jobs[job].elements))
    kind = draws.choice(_ENDS_RINGS)
    target = draws.choice(config.jobs[job].hosts)
    if kind is FaultKind.SWITCH_REBOOT:
        target = draws.below(1 if config.topology is None else len(config.topology.switches))
    duration = draws.magnitude(10 * US, config.weather_until_ns)
    return Fault(draws.magnitude(1, 2 * MS), kind, target, duration, job=job, operation=operation)
