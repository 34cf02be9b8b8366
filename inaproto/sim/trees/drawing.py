"""Worlds of trees drawn from seeds: spines and leaves, jobs, who wants what where, and what goes wrong.

Sizes are small and times short, so that moves and faults meet often. A good part of the faults strike right
after something has happened: those at any other time find little.
"""

from __future__ import annotations

from typing import Final

from inaproto.faults.streams import Draws, Seed
from inaproto.faults.weather import Weather
from inaproto.sim.kernel.config import CLEAR
from inaproto.sim.kernel.drawing import draw_delays, draw_moment, draw_occurrence, draw_weather
from inaproto.sim.trees.config import FaultKind, Refusal, TreesConfig, TreesFault, TreesJob, Want
from inaproto.units import MS, US

MOMENTS: Final = (
    "a record waits for the disk",
    "a switch granted a slot",
    "a tree has its slots",
    "a ring was parked",
    "a ring stands",
    "a ring was refused",
    "a move is draining",
    "a move is acquiring",
    "a move is installing",
    "a person wants a job to be elsewhere",
    "the controller has started again",
)
"""Marks after which faults may strike."""


def draw_trees(seed: Seed) -> TreesConfig:
    """The world of trees of ``seed``."""
    draws = Draws(seed, "swarm/trees")
    spines, leaves = draws.between(2, 3), draws.between(1, 2)
    slots = tuple(draws.choice((1, 1, 2, 2, 3)) for _ in range(spines + leaves))
    below = tuple(range(spines, spines + leaves))
    trees = tuple((spine, *below) for spine in range(spines))
    weather_until = draws.magnitude(150 * MS, 900 * MS)
    jobs = tuple(
        _draw_job(draws, number, spines, weather_until) for number in range(draws.choice((1, 2, 2, 3, 4)))
    )
    delay_min, delay_max = draw_delays(draws)
    faulty = draws.chance(4, 5)
    lease = draws.magnitude(80 * MS, 400 * MS)
    return TreesConfig(
        seed=str(seed),
        slots=slots,
        trees=trees,
        jobs=jobs,
        wants=_draw_wants(draws, jobs, weather_until),
        refusals=_draw_refusals(draws, jobs, weather_until) if draws.chance(1, 3) else (),
        faults=_draw_faults(draws, weather_until, lease) if faulty else (),
        weather=draw_weather(draws, delay_max, drop=0.05, reorder=0.3) if draws.chance(1, 2) else CLEAR,
        delay_min_ns=delay_min,
        delay_max_ns=delay_max,
        fsync_max_ns=draws.magnitude(50 * US, 8 * MS),
        redial_ns=draws.magnitude(500 * US, 10 * MS),
        silent_ns=draws.magnitude(5 * MS, 60 * MS),
        page=draws.choice((1, 1, 2, 8)),
        park_ns=draws.magnitude(500 * US, 20 * MS),
        lay_ns=draws.magnitude(200 * US, 6 * MS),
        generation_ns=draws.magnitude(2 * MS, 30 * MS),
        switch_resend_ns=draws.magnitude(4 * delay_max, 8 * delay_max + 5 * MS),
        tries_max=draws.choice((5, 10, 20, 50)),
        audit_ns=draws.magnitude(20 * MS, 200 * MS),
        backoff_ns=draws.magnitude(500 * US, 4 * MS),
        look_ns=draws.magnitude(5 * MS, 40 * MS),
        resend_ns=draws.magnitude(10 * MS, 80 * MS),
        bar_ns=draws.magnitude(5 * MS, 40 * MS),
        absent_ns=draws.magnitude(60 * MS, 400 * MS),
        slot_lease_ns=lease,
        weather_until_ns=weather_until,
    )


def _draw_job(draws: Draws, number: int, trees: int, weather_until: int) -> TreesJob:
    others = draws.shuffled(range(1, trees))[: draws.between(0, trees - 1)]
    arrives = draws.below(weather_until // 2) if draws.chance(1, 2) else draws.below(2 * MS)
    ends = draws.between(arrives, weather_until) if draws.chance(1, 4) else -1
    return TreesJob(f"job{number}", tuple(sorted((0, *others))), arrives, ends)


def _draw_wants(draws: Draws, jobs: tuple[TreesJob, ...], weather_until: int) -> tuple[Want, ...]:
    """Some come right after another, which they take back while it is under way."""
    found = []
    at = draws.below(weather_until // 4)
    for _ in range(draws.choice((0, 1, 2, 4, 6, 10))):
        job = draws.below(len(jobs))
        tree = -1 if draws.chance(1, 8) else draws.choice(jobs[job].trees)
        found.append(Want(at, job, tree))
        at += draws.magnitude(500 * US, weather_until // 3)
    return tuple(one for one in found if one.at_ns < weather_until)


def _draw_refusals(draws: Draws, jobs: tuple[TreesJob, ...], weather_until: int) -> tuple[Refusal, ...]:
    found = []
    for _ in range(draws.between(1, 3)):
        job = draws.below(len(jobs))
        found.append(Refusal(job, draws.choice(jobs[job].trees), draws.below(weather_until)))
    return tuple(found)


def _draw_faults(draws: Draws, weather_until: int, lease: int) -> tuple[TreesFault, ...]:
    kinds = (
        *(FaultKind.CONTROLLER_CRASH,) * 5,
        *(FaultKind.SWITCH_RESTART, FaultKind.SWITCH_RESTART),
        *(FaultKind.SWITCH_STANDS_STILL, FaultKind.SWITCH_STANDS_STILL),
        *(FaultKind.PARTITION, FaultKind.RESET, FaultKind.RESET, FaultKind.RESET),
        *(FaultKind.JOB_AWAY, FaultKind.JOB_AWAY, FaultKind.BURST),
        *(FaultKind.CHANGE_OF_MIND,) * 4,
    )
    found = []
    for _ in range(draws.choice((1, 2, 3, 4, 6, 8, 12))):
        kind = draws.choice(kinds)
        duration = draws.magnitude(
            100 * US, weather_until // (8 if kind is FaultKind.CONTROLLER_CRASH else 2)
        )
        if kind is FaultKind.SWITCH_STANDS_STILL:
            duration = draws.magnitude(lease // 4, 3 * lease)
        moment, at = draw_moment(draws, MOMENTS, 10 * MS, weather_until)
        weather = Weather(drop=0.2, reorder=0.5, delay_max_ns=MS) if kind is FaultKind.BURST else CLEAR
        occurrence = draw_occurrence(draws, moment, 12)
        found.append(TreesFault(at, kind, draws.below(24), duration, weather, moment, occurrence))
    return tuple(found)
