"""Worlds of one switch with shards, which die: those of recovery, changed.

They draw from a stream of their own, so all other worlds stay as they are.
"""

from __future__ import annotations

from dataclasses import replace

from inaproto.faults.streams import Draws, Seed
from inaproto.sim.frames.draw.recovering import draw_recovery
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, Swarm, WorldConfig
from inaproto.units import MS, US


def draw_shards(seed: Seed, swarm: Swarm | None = None) -> WorldConfig:
    """The world of ``seed``."""
    config = draw_recovery(seed, swarm)
    draws = Draws(seed, "swarm/shards")
    shards = draws.choice((1, 2, 2, 3))
    unsteered = tuple(number for number in range(len(config.links)) if draws.chance(1, 20))
    deaths = [_draw_death(config, draws, shards) for _ in range(draws.between(1, 3))]
    faults = sorted([*config.faults, *deaths], key=lambda fault: (fault.at_ns, fault.kind, fault.target))
    return replace(config, shards=shards, unsteered=unsteered, faults=tuple(faults))


def _draw_death(config: WorldConfig, draws: Draws, shards: int) -> Fault:
    """Soon after a job has come to one of its all-reduces."""
    job = draws.below(len(config.jobs))
    operation = draws.below(len(config.jobs[job].elements))
    duration = draws.magnitude(10 * US, config.weather_until_ns)
    at_ns = draws.magnitude(1, 2 * MS)
    return Fault(at_ns, FaultKind.SHARD_DEATH, draws.below(shards), duration, job=job, operation=operation)
