"""Worlds as tests run them: with the userspace NIC, and small."""

from __future__ import annotations

from typing import Any, Final

from inaproto.sim.frames.draw.swarm import Swarm, WorldConfig, draw_world
from inaproto.sim.frames.world import World, WorldResult

SMALL: Final = Swarm(ranks_max=4, jobs_max=2, packets_max=300)


def small(seed: int) -> WorldConfig:
    return draw_world(seed, SMALL)


def run(config: WorldConfig, **options: Any) -> WorldResult:
    return World(config, **options).run()
