"""Two jobs on one pool, live in virtual time, beside what the simulator says (MINA, Figure 12).

Which pairs: all of the paper's Figure 12. Its jobs are under one switch that sums for one at a time, so all
of them are in conflict by the model of trees, and MINA's grouping puts any two of them in one sharing group
(section III-C). No pair is chosen by its result.

For each pair, as INA efficiency scores (section V): what the published simulator gives, where INA changes
hands at once; what ours predicts for turns of a round trip; what came of the product's own hosts, controller
and pool (:mod:`inaproto_hil.evaluation.shared_pool.world`), from when the steps of both jobs were known, and
from the beginning. Beside it an upper bound, by the time that there is to share, and how much of what the
best of all schedules saves a greedy score rule does, for a few coarse operations, where that can be searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations_with_replacement
from statistics import fmean, median
from typing import Any, Final

from inaproto_controller.cluster.model import EVALUATED, SHARING, measured
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.planning.turns.policy import Policy
from inaproto_controller.planning.turns.turns import TurnConfig
from inaproto_controller.service.turns.planner import ROUND_TRIP_SHARE, PlannerConfig
from inaproto_controller.simulate.shared_by_turns import SharedByTurns
from inaproto_controller.simulate.shared_switch import share
from inaproto_hil.evaluation.shared_pool.world import GroupRun, WorldConfig, play
from inaproto_hil.evaluation.yardsticks.pool_time import score_bound
from inaproto_hil.evaluation.yardsticks.schedules import (
    best_schedule,
    by_policy,
    coarse,
    finite_job,
    run_schedule,
)
from inaproto_hil.rigs import environment

VERSION: Final = 1
GOAL: Final = 0.95
"""INA efficiency score that two jobs are to reach."""
NEAR: Final = 0.03
"""Tolerance around the simulator's result, relative."""
_COARSE: Final = (6, 5)
"""Operations and steps of schedules that are searched."""
_STATES_MAX: Final = 30_000

Pair = tuple[str, str]
PAIRS: Final[Sequence[Pair]] = tuple(combinations_with_replacement(EVALUATED, 2))


@dataclass(frozen=True, slots=True)
class PairsConfig:
    steps: int = 60
    """Steps of the longer job, without INA."""
    hosts: int = 2
    message: float = 100e-6
    """Seconds; between the controller and a host, one way."""
    disk: float = 500e-6
    error: float = 0.0
    """Relative, of what all-reduces and computing take."""
    seed: int = 1

    @property
    def turns(self) -> TurnConfig:
        """What a change of turns is taken for: as the planner measures it."""
        return TurnConfig(round_trip=ROUND_TRIP_SHARE * (3 * self.message + self.disk))


def times_of(model: str, config: PairsConfig) -> StepTimes:
    return StepTimes(measured(model), SHARING, hosts=config.hosts)


def run_pair(pair: Sequence[str], config: PairsConfig) -> GroupRun:
    """Live."""
    jobs = [times_of(model, config) for model in pair]
    world = WorldConfig(
        until=config.steps * max(times.step_plain for times in jobs),
        hosts=config.hosts,
        message=config.message,
        disk=config.disk,
        error=config.error,
        seed=config.seed,
        planning=PlannerConfig(ina_ratio=SHARING.ina_ratio, latency=SHARING.latency),
    )
    return play(jobs, [measured(model).nbytes for model in pair], world)


def score_of(run: GroupRun, since: float = 0.0) -> float | None:
    """INA efficiency score of steps that began since then."""
    plain = ina = seconds = 0.0
    for times, starts in zip(run.times, run.steps, strict=True):
        counted = [at for at in starts if at >= since]
        if len(counted) > 1:
            steps = len(counted) - 1
            plain += steps * times.step_plain
            ina += steps * times.step_ina
            seconds += counted[-1] - counted[0]
    return (plain - seconds) / (plain - ina) if plain > ina else None


def row_of(pair: Pair, config: PairsConfig, run: GroupRun) -> dict[str, Any]:
    jobs = [times_of(model, config) for model in pair]
    until = config.steps * max(times.step_plain for times in jobs)
    since = until if run.known_at is None else run.known_at
    predicted = SharedByTurns(jobs, config.turns).run(until).score
    live = score_of(run, since)
    begun = [one for one in run.operations if one.begin >= since]
    return {
        "pair": list(pair),
        "at_once": share(jobs, Policy.SCORE, until=until).score,
        "predicted": predicted,
        "live": live,
        "difference": None if not predicted or live is None else live / predicted - 1,
        "live_from_the_beginning": score_of(run),
        "bound": score_bound(jobs),
        "best_of_few": _best_of_few(pair, config),
        "ina_share": sum(one.uses_ina for one in begun) / len(begun) if begun else None,
        "operations": len(run.operations),
        "turns": len({turn.epoch for turn in run.turns}),
        "seconds": until,
        "known_at": run.known_at,
        "patterns_lost": run.lost,
        "rescued": run.rescued,
        "aborted": sum(count for name, count in run.counters.items() if name.startswith("round aborted")),
    }


def _best_of_few(pair: Pair, config: PairsConfig) -> dict[str, float] | None:
    """Scores of jobs that begin at once, of the published rule and of the best schedule there is; None if
    that takes too long to search."""
    operations, steps = _COARSE
    jobs = [
        finite_job(coarse(measured(model), operations), SHARING, hosts=config.hosts, steps=steps)
        for model in pair
    ]
    best = best_schedule(jobs, states_max=_STATES_MAX)
    if best is None:
        return None
    plain = sum(job.times.step_plain * steps for job in jobs)
    possible = plain - sum(job.times.step_ina * steps for job in jobs)
    rule = run_schedule(jobs, by_policy(Policy.SCORE)).seconds
    return {"best": (plain - best.seconds) / possible, "rule": (plain - rule) / possible}


def measure(
    pairs: Sequence[Pair],
    config: PairsConfig,
    progress: Callable[[Sequence[Pair]], Iterable[Pair]] = iter,
    played: Callable[[Pair, GroupRun], None] = lambda pair, run: None,
) -> dict[str, Any]:
    """The whole measurement as the JSON document of the command."""
    rows = []
    for pair in progress(pairs):
        run = run_pair(pair, config)
        played(pair, run)
        rows.append(row_of(pair, config, run))
    return {
        "version": VERSION,
        "benchmark": "pairs",
        "config": asdict(config),
        "env": environment.describe(),
        "rows": rows,
        "summary": summary(rows),
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """``share``: of ordered pairs, as in Figure 12: two that differ count twice."""
    weights = [1 if len(set(row["pair"])) == 1 else 2 for row in rows]
    total = sum(weights)

    def spread(name: str) -> dict[str, float]:
        values = [row[name] or 0.0 for row in rows]
        mean = sum(value * weight for value, weight in zip(values, weights, strict=True)) / total
        return {"min": min(values), "median": median(values), "mean": mean, "max": max(values)}

    def shared(name: str, least: float) -> float:
        return (
            sum(weight for row, weight in zip(rows, weights, strict=True) if (row[name] or 0.0) >= least)
            / total
        )

    off = [abs(row["difference"]) for row in rows if row["difference"] is not None]
    return {
        "goal": GOAL,
        "pairs": total,
        **{name: spread(name) for name in ("live", "predicted", "at_once", "bound")},
        "reach_the_goal": {name: shared(name, GOAL) for name in ("live", "predicted", "at_once", "bound")},
        "difference": {"mean": fmean(off), "median": median(off), "max": max(off)} if off else None,
        "within_3_percent": sum(one <= NEAR for one in off) / len(off) if off else None,
        "rescued": sum(row["rescued"] for row in rows),
    }
