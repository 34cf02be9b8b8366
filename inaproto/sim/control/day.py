"""A virtual day of a cluster: 64 hosts in 8 racks, 8 jobs that share pools, and the weather of it.

Times are those of a cluster, and not as in other control worlds: a job trains for a quarter of an hour
between its steps, hosts are heard of every few minutes, and a turn lasts about an hour. What is hit is hit
for minutes to hours: links that flap, slow hosts, half-open links and sessions, racks without power, a
controller and switches that restart, and clocks that drift all day long.

A rack has a switch, and two spines join all racks. Jobs are on pairs of racks, two on each pair: each in
a rack, or both in both. They share the pool of a tree of the switches of both racks and a spine.
"""

from __future__ import annotations

from typing import Final

from inaproto.faults.streams import Draws, Seed
from inaproto.faults.weather import Weather
from inaproto.sim.control.config import (
    RULES,
    ControlFault,
    ControlJob,
    FaultKind,
    PlanStep,
    WeatherConfig,
)
from inaproto.units import MS, US, S

RACKS: Final = 8
RACK_HOSTS: Final = 8
JOBS: Final = 8
MINUTE: Final = 60 * S
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
_SPINES: Final = 2
_DRIFT_PPM: Final = 400
_BURST_OPERATIONS: Final = 2


def draw_day(seed: Seed) -> WeatherConfig:
    """The day of ``seed``."""
    draws = Draws(seed, "swarm/weather")
    heartbeat = draws.between(5 * MINUTE, 8 * MINUTE)
    racks = draws.shuffled(range(RACKS))
    pairs = tuple(tuple(sorted(racks[first : first + 2])) for first in range(0, RACKS, 2))
    spines = range(RACKS, RACKS + _SPINES)
    trees = tuple((*pair, spine) for pair in pairs for spine in spines)
    firsts = [draws.below(_SPINES) for _ in pairs]
    apart = [draws.chance(1, 2) for _ in pairs]
    jobs = tuple(
        _draw_job(
            draws,
            number,
            _hosts_of(pairs[number // 2], number % 2, apart=apart[number // 2]),
            _SPINES * (number // 2) + firsts[number // 2],
        )
        for number in range(JOBS)
    )
    lease = draws.between(10 * S, 40 * S)
    stuck = draws.between(25 * MINUTE, 50 * MINUTE)
    return WeatherConfig(
        seed=str(seed),
        rule=draws.choice(RULES),
        hosts=RACKS * RACK_HOSTS,
        switches=(*(draws.between(2, 4) for _ in range(RACKS)), *(draws.between(6, 8) for _ in spines)),
        trees=trees,
        pools=(1,) * len(trees),
        jobs=jobs,
        plan=_draw_plan(draws, jobs),
        faults=(*_draw_faults(draws), *_draw_drifts(draws)),
        weather=Weather(
            drop=draws.below(100) / 10_000,
            duplicate=draws.below(100) / 10_000,
            reorder=draws.below(300) / 10_000,
            delay_min_ns=10 * MS,
            delay_max_ns=3 * S,
        ),
        delay_min_ns=50 * US,
        delay_max_ns=20 * MS,
        fsync_max_ns=50 * MS,
        weather_until_ns=DAY,
        heal_ns=DAY,
        events_max=5_000_000,
        sample_events=96,
        margin=draws.choice((0, 1, 2)),
        end_margin=draws.choice((0, 1, 2)),
        turn_operations=draws.choice((0, 4, 8)),
        slice_ns=draws.between(30 * MINUTE, 90 * MINUTE),
        lease_ns=lease,
        retry_ns=lease // 4,
        resend_ns=2 * heartbeat,
        slot_lease_ns=2 * HOUR,
        heartbeat_ns=heartbeat,
        silent_ns=6 * heartbeat,
        host_lease_ns=draws.between(heartbeat // 2, 2 * heartbeat),
        keepalive_ns=draws.between(2 * heartbeat, 4 * heartbeat),
        mute_ns=draws.between(20 * MINUTE, 40 * MINUTE),
        failed_max=draws.choice((3, 8)),
        stuck_ns=stuck,
        rack_hosts=RACK_HOSTS,
        again_ns=MINUTE,
        chain_by_links=True,
        tells_changes=True,
        stop_ns=10 * MINUTE,
        parks_first=draws.chance(1, 3),
    )


def _hosts_of(racks: tuple[int, ...], number: int, *, apart: bool) -> tuple[int, ...]:
    """Of one of two jobs: the hosts of a rack of its own, or half of those of both."""
    if apart:
        return tuple(racks[number] * RACK_HOSTS + host for host in range(RACK_HOSTS))
    half = RACK_HOSTS // 2
    return tuple(rack * RACK_HOSTS + number * half + host for rack in racks for host in range(half))


def _draw_job(draws: Draws, number: int, hosts: tuple[int, ...], tree: int) -> ControlJob:
    ina = draws.between(2 * S, 20 * S)
    pause = draws.between(10 * MINUTE, 18 * MINUTE)
    steps = draws.between(DAY // 2, 9 * DAY // 10) // pause
    return ControlJob(
        name=f"job{number}",
        hosts=hosts,
        tree=tree,
        arrives_ns=draws.between(S, 10 * MINUTE),
        operations=_BURST_OPERATIONS * steps,
        ina_ns=ina,
        chain_ns=3 * ina,
        think_ns=20 * S,
        drain_ns=S,
        stall_ns=draws.between(2 * MINUTE, 5 * MINUTE),
        burst_operations=_BURST_OPERATIONS,
        pause_ns=pause,
    )


def _draw_plan(draws: Draws, jobs: tuple[ControlJob, ...]) -> tuple[PlanStep, ...]:
    """Now and then the jobs of some pairs move to another spine."""
    found = []
    trees = [job.tree for job in jobs]
    for _ in range(draws.between(0, 3)):
        for pair in range(JOBS // 2):
            if draws.chance(1, 2):
                tree = _SPINES * pair + draws.below(_SPINES)
                trees[2 * pair : 2 * pair + 2] = [tree, tree]
        found.append(PlanStep(draws.below(DAY), tuple(trees)))
    return tuple(sorted(found, key=lambda step: step.at_ns))


def _draw_faults(draws: Draws) -> tuple[ControlFault, ...]:
    """Of each kind of weather some, none sooner than jobs have begun."""
    kinds = (
        *(FaultKind.FLAPPING_LINK,) * draws.between(1, 6),
        *(FaultKind.SLOW_HOST,) * draws.between(1, 5),
        *(FaultKind.HALF_OPEN_LINK,) * draws.between(0, 4),
        *(FaultKind.HALF_OPEN_SESSION,) * draws.between(1, 6),
        *(FaultKind.RACK_POWER,) * draws.between(0, 2),
        *(FaultKind.HOST_CRASH,) * draws.between(0, 2),
        *(FaultKind.SWITCH_RESTART,) * draws.between(0, 2),
        *(FaultKind.CONTROLLER_CRASH,) * draws.between(0, 2),
    )
    return tuple(_draw_fault(draws, kind) for kind in draws.shuffled(kinds))


def _draw_fault(draws: Draws, kind: FaultKind) -> ControlFault:
    target, at, amount = draws.below(RACKS * RACK_HOSTS), draws.between(20 * MINUTE, DAY - HOUR), 0
    match kind:
        case FaultKind.FLAPPING_LINK:
            lasts, amount = draws.between(2 * MINUTE, 40 * MINUTE), draws.between(2 * S, 60 * S)
        case FaultKind.SLOW_HOST:
            lasts, amount = draws.between(20 * MINUTE, 4 * HOUR), draws.between(3, 10)
        case FaultKind.HALF_OPEN_LINK:
            lasts, amount = draws.between(5 * MINUTE, 90 * MINUTE), draws.below(2)
        case FaultKind.HALF_OPEN_SESSION:
            lasts, amount = draws.between(5 * MINUTE, 6 * HOUR), draws.below(2)
        case FaultKind.RACK_POWER:
            lasts = draws.between(5 * MINUTE, 2 * HOUR)
        case FaultKind.HOST_CRASH:
            lasts = draws.between(2 * MINUTE, 30 * MINUTE)
        case _:
            lasts = draws.between(5 * S, 5 * MINUTE)
    return ControlFault(at, kind, target, lasts, amount=amount)


def _draw_drifts(draws: Draws) -> tuple[ControlFault, ...]:
    """Every clock has its own, all day long."""
    nodes = 1 + RACKS * RACK_HOSTS + RACKS + _SPINES
    return tuple(
        ControlFault(0, FaultKind.CLOCK_DRIFT, node, DAY, amount=draws.between(-_DRIFT_PPM, _DRIFT_PPM))
        for node in range(nodes)
    )
