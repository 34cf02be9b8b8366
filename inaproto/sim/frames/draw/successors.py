"""Worlds whose host daemons die and are followed by others, under processes that go on, drawn from a seed.

They are worlds in which jobs go on when a ring ends, changed; no job is elastic or has a collective library.
A daemon dies at any moment of what it does: between two orders, or in the middle of copying a result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from inaproto.faults.streams import Draws, Seed
from inaproto.sim.frames.draw.machines import draw_machines
from inaproto.sim.frames.draw.racks import draw_racks
from inaproto.sim.frames.draw.recovering import draw_recovery
from inaproto.sim.frames.draw.shared import draw_shared
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, WorldConfig
from inaproto.units import MS, US

_DRAWN_BY: Final = (draw_recovery, draw_recovery, draw_racks, draw_machines, draw_machines, draw_shared)
ORDERS_MAX: Final = 40
RECOVER_NS_MIN: Final = 100 * MS


def draw_successors(seed: Seed) -> WorldConfig:
    """The world of ``seed``."""
    draws = Draws(seed, "swarm/successors")
    config = draws.choice(_DRAWN_BY)(seed)
    jobs = tuple(replace(job, elastic=False, seated=False, collective=None) for job in config.jobs)
    recover_ns = config.recover_ns or draws.magnitude(RECOVER_NS_MIN, 4000 * MS)
    config = replace(config, jobs=jobs, recover_ns=recover_ns)
    faults = [_draw_death(config, draws) for _ in range(draws.between(1, 4))]
    faults = sorted([*config.faults, *faults], key=lambda fault: (fault.at_ns, fault.kind, fault.target))
    return replace(config, faults=tuple(faults))


def _draw_death(config: WorldConfig, draws: Draws) -> Fault:
    """Soon after a job has come to one of its all-reduces; mostly another daemon begins in time."""
    job = draws.below(len(config.jobs))
    operation = draws.below(len(config.jobs[job].elements))
    target = draws.choice(config.jobs[job].hosts)
    longest = config.recover_ns // 2 if draws.chance(7, 8) else 2 * config.recover_ns
    duration = draws.magnitude(10 * US, longest)
    orders = draws.below(ORDERS_MAX) if draws.chance(3, 4) else 0
    at = draws.magnitude(1, 2 * MS)
    return Fault(at, FaultKind.DAEMON_CRASH, target, duration, job=job, operation=operation, process=orders)
