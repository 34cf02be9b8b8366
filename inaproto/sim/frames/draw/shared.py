"""Worlds whose jobs have two rings at once, drawn from a seed: other worlds, changed.

In a third of them the ring through the switches moves under its job, now and then, where there are several
switches also to the tree of a further root.

They draw from a stream of their own, so all other worlds stay as they are. Most jobs ask for the path
``shared``: each all-reduce is bound to the base ring or to that in the switches, in runs as turns make them;
some bindings are known late, and now and then one host has another than the others. All jobs go on when a
ring ends; where switches are several, ranks are numbered rack by rank, as a chain needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from inaproto.faults.streams import Draws, Seed
from inaproto.sim.frames.draw.machines import draw_machines
from inaproto.sim.frames.draw.racks import along_a_further_root, draw_racks
from inaproto.sim.frames.draw.recovering import draw_recovery, is_in_rank_order
from inaproto.sim.frames.draw.swarm import JobConfig, Swarm, TreeMove, WorldConfig
from inaproto.units import MS, US, S

SWARM: Final = Swarm(ranks_max=6, jobs_max=2, packets_max=600)
"""The worlds that are changed."""


def draw_shared(seed: Seed, swarm: Swarm | None = None) -> WorldConfig:
    """The world of ``seed``; at least one job has two rings."""
    draws = Draws(seed, "swarm/shared")
    draw = draws.choice((draw_recovery,) * 5 + (draw_racks,) * 3 + (draw_machines,) * 2)
    config = draw(seed, swarm or SWARM)
    if not config.recover_ns:
        config = replace(config, recover_ns=draws.magnitude(100 * MS, 4 * S))
    moves = Draws(seed, "swarm/shared/moves")
    has_moves = moves.chance(1, 3)
    if has_moves and config.topology is not None:
        config = replace(along_a_further_root(config), along=-1)
    if config.topology is not None:
        attached = config.topology.attached
        config = replace(config, jobs=tuple(_by_rack(job, attached) for job in config.jobs))
    jobs = [_draw_job(job, draws) if draws.chance(5, 6) else job for job in config.jobs]
    if all(job.path != "shared" for job in jobs):
        jobs[0] = _draw_job(config.jobs[0], draws)
    if any(not is_in_rank_order(config, job) for job in jobs):
        config = replace(config, refusing=-1)
        jobs = [job if is_in_rank_order(config, job) else replace(job, path="auto") for job in jobs]
    config = replace(config, jobs=tuple(jobs))
    return replace(config, moves=_draw_moves(config, moves)) if has_moves else config


def _draw_moves(config: WorldConfig, draws: Draws) -> tuple[TreeMove, ...]:
    """Most while the weather lasts."""
    able = [number for number, job in enumerate(config.jobs) if job.path == "shared" and not job.elastic]
    if not able:
        return ()
    roots = 2 if config.topology is None else len(config.topology.further_roots)
    until_ns = max(config.weather_until_ns, 10 * MS)
    moves = [
        TreeMove(
            draws.magnitude(1 * MS, 2 * until_ns),
            draws.choice(able),
            draws.between(-1, roots - 1),
            at_once=draws.chance(1, 3),
        )
        for _ in range(draws.choice((1, 2, 4, 8)))
    ]
    return tuple(sorted(moves, key=lambda move: move.at_ns))


def _by_rack(job: JobConfig, attached: Sequence[int]) -> JobConfig:
    return replace(job, hosts=tuple(sorted(job.hosts, key=lambda host: attached[host])))


def _draw_job(job: JobConfig, draws: Draws) -> JobConfig:
    """The job with runs of all-reduces by either ring."""
    count = len(job.elements)
    run_max = draws.choice((1, 2, 4, 16))
    ina: list[int] = []
    is_ina = draws.chance(1, 2)
    at = 0
    while at < count:
        run = draws.between(1, run_max)
        if is_ina:
            ina += range(at, min(at + run, count))
        is_ina, at = not is_ina, at + run
    strays: tuple[tuple[int, int], ...] = ()
    if draws.chance(1, 6):
        strays = ((draws.choice(job.hosts), draws.below(count)),)
    return replace(
        job,
        path="shared",
        exact_plan=True,
        ina=tuple(ina),
        strays=strays,
        binding_ns=draws.choice((0, 0, 100 * US, 3 * MS, 30 * MS)),
    )
