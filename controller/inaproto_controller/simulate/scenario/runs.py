"""Each variant with each seed, and what becomes of it: records small enough to keep all of them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from inaproto.task_engines import open_engine
from inaproto_controller.cluster.compiled import IS_COMPILED
from inaproto_controller.simulate.cluster import simulate
from inaproto_controller.simulate.results import Moment, Result
from inaproto_controller.simulate.scenario.measures import measured_of
from inaproto_controller.simulate.scenario.scenario import Scenario
from inaproto_controller.simulate.setting import Setting

MOMENTS_MAX: Final = 1000
"""Most moments that are kept of a run, for pictures."""
_WORTH_PROCESSES: Final = 20_000_000
"""Events: fewer are done before another process has started."""


@dataclass(frozen=True, slots=True)
class Task:
    scenario: Scenario
    variant: int
    seed: int
    with_jobs: bool
    """Its jobs and moments are wanted, too."""


@dataclass(frozen=True, slots=True)
class Run:
    variant: int
    seed: int
    measures: dict[str, Any]
    by_model: dict[str, dict[str, Any]]
    jobs: list[dict[str, Any]] | None
    moments: list[dict[str, Any]] | None


def run_all(
    scenario: Scenario,
    seeds: tuple[int, ...],
    *,
    jobs: int | None = None,
    engine: str = "local",
    with_all_jobs: bool = False,
    on_progress: Callable[[float], None] | None = None,
) -> list[Run]:
    """Run all, by variant, then seed.

    ``jobs``: processes, by default one for each core if there is enough to do; ``with_all_jobs``: not only
    those of the first seed; ``on_progress`` gets the share that is done. Raises ``ConfigError`` and
    ``Unsupported``.
    """
    tasks = [
        Task(scenario, variant, seed, with_all_jobs or place == 0)
        for place, seed in enumerate(seeds)
        for variant in range(len(scenario.variants))
    ]
    processes = min(_processes(scenario, len(tasks)) if jobs is None else jobs, len(tasks))
    found: list[Run] = []
    work: Callable[[Task], Run] = run_one
    if on_progress is not None and processes == 1 and engine == "local":
        work = partial(run_one, on_share=lambda share: on_progress((len(found) + share) / len(tasks)))
    with closing(open_engine(engine, processes).outcomes(work, tasks)) as outcomes:
        for run in outcomes:
            found.append(run)
            if on_progress is not None:
                on_progress(len(found) / len(tasks))
    places = {seed: place for place, seed in enumerate(seeds)}
    return sorted(found, key=lambda run: (run.variant, places[run.seed]))


def _processes(scenario: Scenario, tasks: int) -> int:
    if IS_COMPILED and tasks * events(scenario) < _WORTH_PROCESSES:
        return 1
    return len(os.sched_getaffinity(0))


def events(scenario: Scenario) -> int:
    """Events of one run, of the first seed's jobs: two of each operation, one of each step (MINA's
    simulator)."""
    operations = {name: len(scenario.trace(name).nbytes) for name in scenario.model_names}
    requests = scenario.workload(scenario.file.seed_list()[0]).requests
    return sum(1 + request.steps * (2 * operations[request.model] + 1) for request in requests)


def simulated(
    scenario: Scenario, setting: Setting, seed: int, *, on_share: Callable[[float], None] | None = None
) -> Result:
    """The scenario's jobs and failures of a seed, in a setting that has served no simulation yet, such as
    one of its own with another placement. ``on_share`` gets the share of the jobs that have ended."""
    workload = scenario.workload(seed)
    return simulate(
        setting,
        workload.requests,
        arrivals=workload.arrivals,
        failures=scenario.failures(setting, seed),
        checkpoint_steps=scenario.file.failures.checkpoint_steps if scenario.file.failures else 1,
        row_racks=scenario.row_racks,
        until=math.inf if scenario.file.until is None else scenario.file.until,
        on_progress=on_share and (lambda ended: on_share(ended / len(workload.requests))),
    )


def run_one(task: Task, *, on_share: Callable[[float], None] | None = None) -> Run:
    """``on_share``: as in ``simulated``."""
    scenario = task.scenario
    setting = scenario.setting(scenario.variants[task.variant], task.seed)
    result = simulated(scenario, setting, task.seed, on_share=on_share)
    by_model = {model: {"jobs": len(part.jobs), **_gains(part)} for model, part in result.by_model().items()}
    return Run(
        task.variant,
        task.seed,
        {**_counts(result), **measured_of(result)},
        by_model,
        [job.as_dict() for job in result.jobs] if task.with_jobs else None,
        [_moment(moment) for moment in _thinned(result)] if task.with_jobs else None,
    )


def _counts(result: Result) -> dict[str, Any]:
    return {
        "jobs": len(result.jobs),
        "unfinished": sum(not job.is_finished for job in result.jobs),
        "unplaced": result.unplaced,
        "events": result.events,
        "tree_builds": result.tree_builds,
        "migrations": result.migrations,
        "migrations_counted": result.migrations_counted,
        "downtime_s": result.downtime,
        "restarts": sum(job.restarts for job in result.jobs),
        "steps_lost": sum(job.steps_lost for job in result.jobs),
        "plain_s_mean": result.plain_mean,
    }


def _gains(result: Result) -> dict[str, Any]:
    return {
        "score": result.score,
        "saved_s_mean": result.saved_mean,
        "saved_share": result.saved_share,
        "jct_s_mean": result.seconds_mean,
        "queued_s_mean": result.queued_mean,
        "migrations": result.migrations,
        "downtime_s": result.downtime,
        "utilisation": result.utilisation,
    }


def _thinned(result: Result) -> list[Moment]:
    """The last of each of MOMENTS_MAX spans of time."""
    if len(result.moments) <= MOMENTS_MAX or result.end <= 0:
        return list(result.moments)
    spans = {int(moment.at / result.end * (MOMENTS_MAX - 1)): moment for moment in result.moments}
    return list(spans.values())


def _moment(moment: Moment) -> dict[str, Any]:
    return {
        "at_s": moment.at,
        "running": moment.running,
        "hosts_busy": moment.hosts_busy,
        "with_tree": moment.with_tree,
        "groups": moment.groups,
        "largest_group": moment.largest_group,
        "queued": moment.queued,
    }
