"""Links whose far ends ask for silence: in a part of all worlds, whatever else befalls them.

From a stream of its own, so that everything else that is drawn stays as it is.
"""

from __future__ import annotations

from dataclasses import replace

from inaproto.faults.streams import Draws
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, WorldConfig
from inaproto.sim.frames.link_pauses import PAUSE_KINDS
from inaproto.units import MS, US


def with_pauses(config: WorldConfig) -> WorldConfig:
    """``config``; in one world of six some links are paused, mostly while a job comes to an all-reduce."""
    draws = Draws(config.seed, "swarm/pauses")
    return paused(config, draws) if draws.chance(1, 6) else config


def paused(config: WorldConfig, draws: Draws) -> WorldConfig:
    """``config`` with one to three pauses of links."""
    pauses = tuple(_draw_pause(draws, config) for _ in range(draws.between(1, 3)))
    faults = sorted((*config.faults, *pauses), key=lambda one: (one.at_ns, one.kind, one.target, one.trunk))
    return replace(config, faults=tuple(faults))


def _draw_pause(draws: Draws, config: WorldConfig) -> Fault:
    until_ns = config.weather_until_ns
    job = draws.below(len(config.jobs))
    drawn = config.jobs[job]
    trunks = 0 if config.topology is None else len(config.topology.switches) - 1
    return Fault(
        draws.magnitude(1, 2 * MS),
        FaultKind.LINK_PAUSE,
        target=draws.choice(drawn.hosts),
        duration_ns=draws.magnitude(10 * US, until_ns),
        job=job,
        operation=draws.below(len(drawn.elements)),
        trunk=draws.between(1, trunks) if trunks and draws.chance(1, 2) else -1,
        is_downward=draws.chance(1, 2),
        process=draws.below(PAUSE_KINDS),
    )
