"""Worlds whose hosts have several ranks of a job, drawn from a seed: other worlds, changed.

They draw from streams of their own, so all other worlds stay as they are. Ranks are added on the hosts that a
job has: the order of its hosts stays, their ranks may be numbered in any way. Some jobs are on one host; some
want their hosts to sum, in a chain, a tree or an ordinary ring. Beside all that befalls other worlds,
training processes die alone. Three in ten worlds have several switches; in half of all, jobs go on when a
ring ends. Half of these jobs are elastic: they go on without ranks that are lost. The hosts of half of those
have seats by a controller.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from inaproto.faults.streams import Draws, Seed
from inaproto.sim.frames.draw.racks import draw_racks
from inaproto.sim.frames.draw.recovering import draw_recovery, is_in_rank_order
from inaproto.sim.frames.draw.swarm import (
    Fault,
    FaultKind,
    JobConfig,
    Swarm,
    WorldConfig,
    draw_world,
    with_addresses,
)
from inaproto.units import MS, US

RANKS_MAX: Final = 16
_MEANWHILE: Final = (
    *(FaultKind.SWITCH_REBOOT, FaultKind.SWITCH_REBOOT, FaultKind.HOST_CRASH),
    *(FaultKind.SESSION_LOSS, FaultKind.NIC_RESET, FaultKind.PAUSE),
)
SWARM: Final = Swarm(ranks_max=6, jobs_max=2, packets_max=600)
"""The worlds that are changed: at most so many hosts of a job."""


def draw_machines(seed: Seed, swarm: Swarm | None = None) -> WorldConfig:
    """The world of ``seed``; at least one host has several ranks of a job."""
    draws = Draws(seed, "swarm/machines")
    draw = draws.choice((draw_world,) * 3 + (draw_recovery,) * 4 + (draw_racks,) * 3)
    config = with_addresses(with_machines(draw(seed, swarm or SWARM), draws))
    draws = Draws(seed, "swarm/machines/paths")
    config = replace(config, jobs=tuple(_draw_path(job, config, draws) for job in config.jobs))
    draws = Draws(seed, "swarm/machines/overlays")
    config = replace(config, jobs=tuple(_draw_overlay(job, draws) for job in config.jobs))
    config = with_elastic(config, Draws(seed, "swarm/machines/elastic"))
    draws = Draws(seed, "swarm/machines/seats")
    return replace(
        config, jobs=tuple(replace(job, seated=job.elastic and draws.chance(1, 2)) for job in config.jobs)
    )


def with_elastic(config: WorldConfig, draws: Draws) -> WorldConfig:
    """``config``; where jobs go on when a ring ends, half of them also go on without ranks that are lost."""
    if not config.recover_ns:
        return config
    jobs = tuple(replace(job, elastic=draws.chance(1, 2)) for job in config.jobs)
    config = replace(config, jobs=jobs)
    losses = [_draw_losses(config, index, draws) for index, job in enumerate(jobs) if job.elastic]
    faults = [*config.faults, *(fault for found in losses for fault in found)]
    faults.sort(key=lambda fault: (fault.at_ns, fault.kind, fault.target))
    return replace(config, faults=tuple(faults))


def _draw_losses(config: WorldConfig, job: int, draws: Draws) -> list[Fault]:
    """Processes that die one soon after another; something else may happen while the others agree."""
    of = config.jobs[job]
    operation, at = draws.below(len(of.elements)), draws.magnitude(1, 2 * MS)
    meanwhile_ns = 8 * config.control_delay_ns + of.think_ns + 4 * MS
    kinds = [FaultKind.PROCESS_DEATH] * draws.choice((0, 1, 1, 1, 2, 2, 3))
    if kinds and draws.chance(1, 3):
        kinds.append(draws.choice(_MEANWHILE))
    found = []
    for kind in kinds:
        duration = draws.magnitude(10 * US, min(config.weather_until_ns // 2, 200 * MS))
        host, process = draws.choice(of.hosts), draws.below(RANKS_MAX)
        target = 0 if kind is FaultKind.SWITCH_REBOOT else host
        found.append(Fault(at, kind, target, duration, job=job, operation=operation, process=process))
        at += draws.magnitude(1, meanwhile_ns)
    return found


def with_machines(config: WorldConfig, draws: Draws) -> WorldConfig:
    """``config``, with more ranks on its hosts and processes that die alone."""
    crowded = draws.below(len(config.jobs))
    jobs = tuple(
        _draw_job(job, draws) if index == crowded or draws.chance(2, 3) else job
        for index, job in enumerate(config.jobs)
    )
    config = replace(config, jobs=jobs)
    deaths = [_draw_death(config, draws) for _ in range(draws.choice((0, 0, 0, 1, 1, 2)))]
    faults = sorted([*config.faults, *deaths], key=lambda fault: (fault.at_ns, fault.kind, fault.target))
    return replace(config, faults=tuple(faults))


def _draw_job(job: JobConfig, draws: Draws) -> JobConfig:
    """The job with more ranks."""
    if draws.chance(1, 8):
        hosts = job.hosts[:1] * draws.between(2, 6)
    else:
        more = draws.between(1, max(1, min(8, RANKS_MAX - len(job.hosts))))
        hosts = _crowded(job.hosts, more, draws)
    ranks = len(hosts)
    slow, mismatch = job.slow_rank, job.mismatch
    if mismatch is not None or draws.chance(1, 15):
        mismatch = draws.below(ranks), draws.below(len(job.elements))
    return replace(
        job,
        hosts=hosts,
        slow_rank=draws.below(ranks) if slow >= 0 or draws.chance(1, 3) else -1,
        mismatch=mismatch,
        stall_ns=draws.magnitude(MS, 20 * MS) if draws.chance(1, 3) else job.stall_ns,
    )


def _draw_path(job: JobConfig, config: WorldConfig, draws: Draws) -> JobConfig:
    """One in six wants a ring of its hosts, some a chain, some anything that goes."""
    if draws.chance(1, 6):
        return replace(job, path="ring")
    if draws.chance(1, 12) and is_in_rank_order(config, job):
        return replace(job, path="chain")
    return replace(job, exact_plan=False) if draws.chance(1, 3) else job


def _draw_overlay(job: JobConfig, draws: Draws) -> JobConfig:
    """One in four of those that want nothing else wants a tree of its hosts."""
    wants = draws.chance(1, 4)
    return replace(job, path="overlay", exact_plan=True) if wants and job.path == "auto" else job


def _crowded(hosts: tuple[int, ...], more: int, draws: Draws) -> tuple[int, ...]:
    """``more`` ranks behind the first of a host: next to it, at the end, or anywhere between."""
    found = list(hosts)
    style = draws.choice(("beside", "around", "anywhere"))
    only = draws.choice(hosts) if draws.chance(1, 4) else None
    for _ in range(more):
        host = draws.choice(hosts) if only is None else only
        first = found.index(host)
        behind = {"beside": first + 1, "around": len(found), "anywhere": draws.between(first + 1, len(found))}
        found.insert(behind[style], host)
    return tuple(found)


def _draw_death(config: WorldConfig, draws: Draws) -> Fault:
    """A process dies soon after a job has come to one of its all-reduces, or while it joins."""
    job = draws.below(len(config.jobs))
    of = config.jobs[job]
    until = config.weather_until_ns
    target, process = draws.choice(of.hosts), draws.below(RANKS_MAX)
    duration = draws.magnitude(10 * US, min(until // 2, 200 * MS))
    if draws.chance(1, 3):
        at = draws.between(MS, 5 * MS)
        return Fault(at, FaultKind.PROCESS_DEATH, target, duration, process=process)
    at, operation = draws.magnitude(1, 2 * MS), draws.below(len(of.elements))
    return Fault(at, FaultKind.PROCESS_DEATH, target, duration, job=job, operation=operation, process=process)
