"""Control worlds drawn from seeds: how many hosts, jobs, pools and slots, which rule, and what goes wrong.

Sizes are small and times short, so that turns, rounds, migrations and faults meet often. A good part of
the faults strike right after something has happened for the first time (a vote, a decision that is not yet
on disk, a turn): those at any other time find little.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from inaproto.faults.streams import Draws, Seed
from inaproto.faults.weather import Weather
from inaproto.sim.control.config import (
    NO_TREE,
    RULES,
    ControlConfig,
    ControlFault,
    ControlJob,
    FaultKind,
    PlanStep,
)
from inaproto.sim.kernel.config import CLEAR
from inaproto.sim.kernel.drawing import draw_delays, draw_moment, draw_occurrence, draw_weather
from inaproto.units import MS, US

MOMENTS: Final = (
    "a round began",
    "a seat voted",
    "a decision waits for the disk",
    "a turn stands",
    "an operation by the switches",
    "a job is to drain",
    "a switch granted a slot",
    "a tree stands",
    "a job has drained",
    "what was acquired in part was given back",
    "the controller has started again",
)
"""Marks after which faults may strike."""


def draw_control(seed: Seed) -> ControlConfig:
    """The control world of ``seed``."""
    draws = Draws(seed, "swarm/control")
    hosts = draws.between(2, 6)
    switches = tuple(draws.choice((1, 2, 3, 4, 4)) for _ in range(draws.between(1, 4)))
    trees = _draw_trees(draws, len(switches))
    count = draws.choice((1, 2, 2, 3, 3, 3, 4, 5))
    weather_until = draws.magnitude(40 * MS, 160 * MS)
    delay_min, delay_max = draw_delays(draws)
    jobs = tuple(_draw_job(draws, number, hosts, weather_until) for number in range(count))
    plan = _draw_plan(draws, jobs, switches, trees, weather_until)
    first = _feasible(draws, count, switches, trees)
    jobs = tuple(replace(job, tree=tree) for job, tree in zip(jobs, first, strict=True))
    lease = draws.magnitude(8 * delay_max + MS, 40 * MS)
    faulty = draws.chance(4, 5)
    faults = _draw_faults(draws, hosts + len(switches), weather_until) if faulty else ()
    patience = Draws(seed, "swarm/control/patience")
    if patience.chance(1, 2):
        faults += _draw_silences(patience, hosts, weather_until)
    return ControlConfig(
        seed=str(seed),
        rule=draws.choice(RULES),
        hosts=hosts,
        switches=switches,
        trees=trees,
        pools=tuple(draws.choice((1, 1, 1, 1, 2)) for _ in trees),
        jobs=jobs,
        plan=plan,
        faults=faults,
        weather=draw_weather(draws, delay_max, drop=0.2, duplicate=0.2, reorder=0.3)
        if draws.chance(2, 3)
        else CLEAR,
        delay_min_ns=delay_min,
        delay_max_ns=delay_max,
        fsync_max_ns=draws.magnitude(10 * US, 3 * MS),
        margin=draws.choice((0, 1, 2, 3, 5, 8)),
        turn_operations=draws.choice((0, 0, 0, 1, 2, 4, 8)),
        slice_ns=draws.magnitude(400 * US, 8 * MS),
        lease_ns=lease,
        retry_ns=draws.magnitude(200 * US, 5 * MS),
        slot_lease_ns=draws.magnitude(12 * MS, 150 * MS),
        heartbeat_ns=draws.magnitude(2 * MS, 10 * MS),
        silent_ns=draws.magnitude(30 * MS, 90 * MS),
        weather_until_ns=weather_until,
        end_margin=draws.choice((0, 1, 2, 3, 5, 8)),
        objections_max=draws.choice((1, 2, 3, 3, None)),
        **_draw_planner(Draws(seed, "swarm/control/planner")),
        **_draw_patience(patience),
        host_lease_ns=Draws(seed, "swarm/control/hosts").magnitude(MS, 30 * MS),
        parks_first=Draws(seed, "swarm/control/parks").chance(1, 3),
    )


def _draw_patience(draws: Draws) -> dict[str, Any]:
    """How patient a group is with seats; in one of four worlds as the configuration has it."""
    if draws.chance(1, 4):
        return {}
    return {
        "mute_ns": draws.magnitude(4 * MS, 30 * MS),
        "failed_max": draws.choice((1, 2, 3, 5)),
        "stuck_ns": draws.magnitude(3 * MS, 20 * MS),
    }


def _draw_planner(draws: Draws) -> dict[str, Any]:
    """Draws the planner from a stream of its own: what it does came later than the rest."""
    return {
        "ahead": draws.choice((-1, -1, 0, 1, 4)),
        "revoked_ns": draws.magnitude(50 * US, 10 * MS) if draws.chance(1, 3) else -1,
    }


def _draw_trees(draws: Draws, switches: int) -> tuple[tuple[int, ...], ...]:
    found: dict[tuple[int, ...], None] = {}
    for _ in range(draws.choice((1, 1, 1, 2, 2, 3))):
        size = draws.between(1, min(3, switches))
        found[tuple(sorted(draws.shuffled(range(switches))[:size]))] = None
    return tuple(found)


def _draw_job(draws: Draws, number: int, hosts: int, weather_until: int) -> ControlJob:
    ranks = draws.between(2, min(4, hosts))
    ina = draws.magnitude(150 * US, 1500 * US)
    think = draws.magnitude(50 * US, 2 * MS)
    burst = draws.choice((1, 1, 2, 4, 6))
    return ControlJob(
        name=f"job{number}",
        hosts=tuple(draws.shuffled(range(hosts))[:ranks]),
        tree=NO_TREE,
        arrives_ns=draws.magnitude(1, 12 * MS),
        operations=draws.between(12, 120),
        ina_ns=ina,
        chain_ns=ina * draws.between(2, 4),
        think_ns=think,
        drain_ns=draws.magnitude(5 * US, 500 * US),
        stall_ns=4 * think + draws.magnitude(2 * MS, 12 * MS),
        burst_operations=burst,
        pause_ns=draws.magnitude(100 * US, 4 * MS) if burst > 1 else 0,
        cancelled_ns=draws.below(weather_until) if draws.chance(1, 8) else -1,
    )


def _feasible(
    draws: Draws, jobs: int, switches: tuple[int, ...], trees: tuple[tuple[int, ...], ...]
) -> tuple[int, ...]:
    """A tree for each job for which there are slots; now and then for one more than there are."""
    left = [slots + draws.chance(1, 6) for slots in switches]
    found = [NO_TREE] * jobs
    for job in draws.shuffled(range(jobs)):
        tree = draws.below(len(trees)) if draws.chance(1, 3) else 0
        if draws.chance(7, 8) and all(left[switch] for switch in trees[tree]):
            found[job] = tree
            for switch in trees[tree]:
                left[switch] -= 1
    return tuple(found)


def _draw_plan(
    draws: Draws,
    jobs: tuple[ControlJob, ...],
    switches: tuple[int, ...],
    trees: tuple[tuple[int, ...], ...],
    weather_until: int,
) -> tuple[PlanStep, ...]:
    """Some come right after another, which they replace while it is under way."""
    found = []
    at = draws.below(weather_until)
    for _ in range(draws.choice((0, 0, 1, 2, 3, 4))):
        found.append(PlanStep(at, _feasible(draws, len(jobs), switches, trees)))
        at += draws.magnitude(100 * US, weather_until // 3)
    return tuple(found)


def _draw_silences(draws: Draws, hosts: int, weather_until: int) -> tuple[ControlFault, ...]:
    """Hosts that are heard of, and do not answer or go on."""
    kinds = (FaultKind.MUTE_SEATS, FaultKind.DEAF_SEATS, FaultKind.PROCESS_STOPS)
    found = []
    for _ in range(draws.choice((1, 1, 2, 3))):
        kind = draws.choice(kinds)
        moment, at = draw_moment(draws, MOMENTS, 3 * MS, weather_until)
        duration = draws.magnitude(MS, weather_until)
        occurrence = draw_occurrence(draws, moment, 24)
        target = draws.below(hosts)
        found.append(ControlFault(at, kind, target, duration, moment=moment, occurrence=occurrence))
    return tuple(found)


def _draw_faults(draws: Draws, targets: int, weather_until: int) -> tuple[ControlFault, ...]:
    kinds = (
        *(FaultKind.CONTROLLER_CRASH,) * 5,
        *(FaultKind.HOST_CRASH, FaultKind.SWITCH_RESTART),
        *(FaultKind.PARTITION, FaultKind.PARTITION, FaultKind.ONE_WAY_PARTITION, FaultKind.PEER_PARTITION),
        *(FaultKind.BURST, FaultKind.CLOCK_JUMP),
    )
    found = []
    for _ in range(draws.choice((1, 2, 3, 4, 6, 8))):
        kind = draws.choice(kinds)
        most = weather_until // (8 if kind is FaultKind.CONTROLLER_CRASH else 2)
        duration = draws.magnitude(50 * US, most)
        moment, at = draw_moment(draws, MOMENTS, 3 * MS, weather_until)
        weather = Weather(drop=0.6, duplicate=0.3, reorder=0.5) if kind is FaultKind.BURST else CLEAR
        occurrence = draw_occurrence(draws, moment, 24)
        found.append(ControlFault(at, kind, draws.below(targets), duration, weather, moment, occurrence))
    return tuple(found)
