"""Worlds of several switches, drawn from a seed: racks under a spine, or deeper trees; jobs across them.

They draw from a stream of their own, so the worlds of one switch stay as they are. Beside all that befalls
those, trunks between switches are cut, in one direction or both, or have bursts of bad weather, and any
switch may reboot. Some switches only steer: their accelerators have no memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from inaproto.faults.streams import Draws, Seed
from inaproto.sim.frames.draw.recovering import is_in_rank_order, recovering
from inaproto.sim.frames.draw.swarm import (
    Fault,
    FaultKind,
    JobConfig,
    Swarm,
    WorldConfig,
    draw_burst,
    draw_faults,
    draw_job,
    draw_link,
    draw_weather,
    with_addresses,
)
from inaproto.sim.frames.draw.topology import FurtherRoot, SwitchConfig, Topology, map_trunks
from inaproto.units import MS, US, S

RACKS_MAX: Final = 4
SWARM: Final = Swarm(ranks_max=12, jobs_max=3, packets_max=800)
_OF_TRUNKS: Final = (
    FaultKind.PARTITION,
    FaultKind.PARTITION,
    FaultKind.ONE_WAY_PARTITION,
    FaultKind.ONE_WAY_PARTITION,
    FaultKind.BURST,
)


def draw_racks(seed: Seed, swarm: Swarm | None = None) -> WorldConfig:
    """The world of several switches of ``seed``."""
    swarm = swarm or SWARM
    draws = Draws(seed, "swarm/racks")
    racks = draws.between(2, RACKS_MAX)
    sizes = [
        min(swarm.ranks_max, draws.choice((2, 3, 3, 4, 4, 5, 6, 8, draws.between(2, 12))))
        for _ in range(min(swarm.jobs_max, draws.choice((1, 1, 1, 2, 2, 3))))
    ]
    host_count = max(sizes) if draws.chance(2, 3) else min(swarm.ranks_max, sum(sizes))
    packets = draws.magnitude(swarm.packets_max // 8, swarm.packets_max)
    jobs = tuple(
        draw_job(draws, f"job{index}", size, host_count, packets // len(sizes))
        for index, size in enumerate(sizes)
    )
    harsh = draw_weather(draws)
    links = tuple(draw_link(draws, harsh) for _ in range(host_count))
    topology = _draw_topology(draws, racks, host_count)
    topology = map_trunks(topology, lambda _: draw_link(draws, harsh))
    until = draws.between(7 * S, 14 * S) if draws.chance(1, 16) else draws.magnitude(20 * MS, 2 * S)
    faults = draw_faults(draws, swarm, jobs, host_count, until)
    if draws.chance(1, 2):
        faults += _draw_trunk_faults(draws, jobs, topology, until)
    if draws.chance(1, 4):
        faults += (_draw_reboot(draws, jobs, topology, until),)
    config = WorldConfig(
        seed=str(seed),
        jobs=jobs,
        links=links,
        faults=tuple(sorted(faults, key=lambda fault: (fault.at_ns, fault.kind, fault.target, fault.trunk))),
        weather_until_ns=until,
        control_delay_ns=draws.magnitude(10 * US, 2 * MS),
        coalesce_ns=draws.choice((0, 0, 0, 0, 0, 2 * US, 20 * US, 200 * US)),
        tight_switch=draws.chance(1, 4),
        first_psns=draws.choice((0, 16, 16, 256)),
        topology=topology,
    )
    draws = Draws(seed, "swarm/racks/recovery")
    return with_addresses(recovering(config, draws) if draws.chance(3, 5) else config)


def along_a_further_root(config: WorldConfig) -> WorldConfig:
    """``config`` with a second root over the switches below the first, along whose tree all rings go.

    Hosts at the first, to which that tree does not lead, move to the switch that is numbered last. Some of
    the worlds have it reboot.
    """
    topology = config.topology
    assert topology is not None, "a world of several switches"
    draws = Draws(config.seed, "swarm/racks/further root")
    below = tuple(number for number, switch in enumerate(topology.switches) if switch.above == 0)
    root = FurtherRoot("spine1", below, topology.switches[below[0]].trunk)
    attached = tuple(number or len(topology.switches) - 1 for number in topology.attached)
    last = len(topology.switches)
    faults = [
        replace(fault, target=fault.target % last) if fault.kind is FaultKind.SWITCH_REBOOT else fault
        for fault in config.faults
    ]
    if draws.chance(1, 2):
        struck = _draw_during(draws, FaultKind.SWITCH_REBOOT, config.jobs, config.weather_until_ns)
        faults.append(replace(struck, target=last))
    made = replace(
        config,
        along=0,
        faults=tuple(faults),
        topology=replace(topology, attached=attached, further_roots=(root,)),
    )
    if all(is_in_rank_order(made, job) for job in made.jobs):
        return made
    return replace(made, refusing=-1)  # a chain of its hosts could not do without that switch


def _draw_topology(draws: Draws, racks: int, hosts: int) -> Topology:
    """Leaves under a spine; or with switches between; a few hosts may hang higher up."""
    switches = [SwitchConfig("spine")]
    above_leaves = [0]
    if draws.chance(1, 3):
        above_leaves = [1, 2]
        switches += [SwitchConfig(f"mid{n}", 0, aggregates=draws.chance(4, 5)) for n in range(2)]
    leaves = []
    for rack in range(racks):
        leaves.append(len(switches))
        aggregates = draws.chance(4, 5)
        switches.append(SwitchConfig(f"leaf{rack}", draws.choice(above_leaves), aggregates=aggregates))
    first = draws.shuffled(leaves)
    attached = [first[host] if host < racks else draws.choice(leaves) for host in range(hosts)]
    if draws.chance(1, 8):
        attached[draws.below(hosts)] = 0
    return Topology(tuple(switches), tuple(attached))


def _draw_trunk_faults(
    draws: Draws, jobs: tuple[JobConfig, ...], topology: Topology, until_ns: int
) -> tuple[Fault, ...]:
    found = []
    for _ in range(draws.between(1, 3)):
        kind = draws.choice(_OF_TRUNKS)
        struck = replace(_draw_during(draws, kind, jobs, until_ns), is_downward=draws.chance(1, 2))
        if kind is FaultKind.BURST:
            struck = replace(struck, weather=draw_burst(draws))
        found.append(replace(struck, trunk=draws.between(1, len(topology.switches) - 1)))
    return tuple(found)


def _draw_reboot(draws: Draws, jobs: tuple[JobConfig, ...], topology: Topology, until_ns: int) -> Fault:
    struck = _draw_during(draws, FaultKind.SWITCH_REBOOT, jobs, until_ns)
    return replace(struck, target=draws.below(len(topology.switches)))


def _draw_during(draws: Draws, kind: FaultKind, jobs: tuple[JobConfig, ...], until_ns: int) -> Fault:
    """A fault of that kind strikes soon after a job has come to one of its all-reduces."""
    job = draws.below(len(jobs))
    operation = draws.below(len(jobs[job].elements))
    at, duration = draws.magnitude(1, 2 * MS), draws.magnitude(10 * US, until_ns)
    return Fault(at, kind, 0, duration, job=job, operation=operation)
