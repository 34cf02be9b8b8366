"""Hosts behind routers with several links, some of which fail: in a part of all worlds of one switch.

From a stream of its own, so that everything else that is drawn stays as it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from inaproto.faults.streams import Draws
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, WorldConfig
from inaproto.units import MS, US

_LINKS_MAX: Final = 3


def with_routers(config: WorldConfig) -> WorldConfig:
    """``config``; in one world of six that have one switch each host is behind a router."""
    draws = Draws(config.seed, "swarm/routers")
    return routed(config, draws) if config.topology is None and draws.chance(1, 6) else config


def routed(config: WorldConfig, draws: Draws) -> WorldConfig:
    """``config`` with a router for each host, and up to four failures of their links, half of them for good.

    Further links of a router are those of further hosts, on which nothing runs.
    """
    hosts = range(len(config.links))
    further = tuple(host for host in hosts for _ in range(draws.below(_LINKS_MAX)))
    failures = tuple(_draw_failure(draws, config) for _ in range(draws.between(0, 4)))
    faults = sorted((*config.faults, *failures), key=lambda one: (one.at_ns, one.kind, one.target, one.trunk))
    return replace(
        config,
        links=(*config.links, *(config.links[host] for host in further)),
        routers=(*hosts, *further),
        faults=tuple(faults),
    )


def _draw_failure(draws: Draws, config: WorldConfig) -> Fault:
    job = draws.below(len(config.jobs))
    drawn = config.jobs[job]
    return Fault(
        draws.magnitude(1, 2 * MS),
        FaultKind.ROUTER_LINK,
        target=draws.choice(drawn.hosts),
        duration_ns=draws.magnitude(10 * US, config.weather_until_ns) if draws.chance(1, 2) else 0,
        job=job,
        operation=draws.below(len(drawn.elements)),
        process=draws.below(_LINKS_MAX),
    )
