"""A scenario ready to run: jobs fit the cluster, models are there, variants have names of their own.

What is drawn depends on a run's seed alone, so all variants of a seed get the same jobs at the same times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from inaproto.core.sharing.model_trace import ModelTrace
from inaproto.errors import ConfigError
from inaproto_controller.cluster import capacity, graph_file
from inaproto_controller.cluster.model import EVALUATED, measured_names
from inaproto_controller.cluster.requests import Request, draw_requests
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.planning.placement.occupancy import Cluster
from inaproto_controller.simulate.arrivals import SECONDS_MAX, at_once, poisson, read
from inaproto_controller.simulate.failures import FailureEvent, Part, Reliability, draw_failures, parse
from inaproto_controller.simulate.outages import parts_of
from inaproto_controller.simulate.presets import make_setting
from inaproto_controller.simulate.scenario.file import (
    HOSTS_MAX,
    JOBS_MAX,
    ScenarioFile,
    VariantTable,
    model_named,
    read_models,
    read_scenario_file,
    read_text,
)
from inaproto_controller.simulate.setting import Setting

_SEEDS: Final = (1 << 31) - 2
"""Number of seeds of the generator of requests."""


class Workload(NamedTuple):
    """Jobs in the order of arrival."""

    requests: Sequence[Request]
    arrivals: Sequence[float]


@dataclass(frozen=True, slots=True)
class Scenario:
    path: Path
    file: ScenarioFile
    cluster: Cluster
    own_models: Mapping[str, ModelTrace]
    logged: Workload | None = None
    """Jobs of the arrival log."""
    listed_failures: tuple[FailureEvent, ...] = ()
    """Failures of the file of failures."""

    @property
    def variants(self) -> Sequence[VariantTable]:
        return self.file.compare

    @property
    def model_names(self) -> list[str]:
        """Models that jobs may have, in the order of the file."""
        stream = () if self.file.stream is None else self.file.stream.models or EVALUATED
        logged = () if self.logged is None else (request.model for request in self.logged.requests)
        return list(dict.fromkeys([*(jobs.model for jobs in self.file.jobs), *stream, *logged]))

    def trace(self, name: str) -> ModelTrace:
        return model_named(name, self.own_models, "model")

    def times(self, name: str) -> StepTimes:
        """Times of jobs with several hosts."""
        return StepTimes(self.trace(name), self.file.speeds.speeds(), hosts=2)

    def workload(self, seed: int) -> Workload:
        if self.logged is not None:
            return self.logged
        asked: list[tuple[Request, float | None]] = [
            (Request(jobs.model, jobs.hosts, jobs.steps), jobs.arrival)
            for jobs in self.file.jobs
            for _ in range(jobs.count)
        ]
        asked += [(request, None) for request in self._drawn(seed)]
        times = self._times(sum(arrival is None for _, arrival in asked), seed)
        at = [next(times) if arrival is None else arrival for _, arrival in asked]
        order = sorted(range(len(asked)), key=lambda place: at[place])
        return Workload([asked[place][0] for place in order], [at[place] for place in order])

    def _drawn(self, seed: int) -> list[Request]:
        stream = self.file.stream
        if stream is None:
            return []
        drawn = Random(f"{seed}/requests").randint(1, _SEEDS) if stream.seed is None else stream.seed
        return draw_requests(stream.histogram(), stream.count, seed=drawn, models=stream.models or EVALUATED)

    def _times(self, count: int, seed: int) -> Iterator[float]:
        """Arrivals of ``count`` jobs, ascending."""
        arrivals = self.file.arrivals
        if arrivals.rate is None:
            return iter(at_once(count))
        return iter(poisson(count, rate=arrivals.rate, seed=seed))

    def failures(self, setting: Setting, seed: int) -> tuple[FailureEvent, ...]:
        """Alike for all variants of a seed."""
        table = self.file.failures
        if table is None or table.file is not None:
            return self.listed_failures
        reliability = {
            part: Reliability(mtbf, mttr)
            for part, mtbf, mttr in (
                (Part.HOST, table.host_mtbf, table.host_mttr),
                (Part.SWITCH, table.switch_mtbf, table.switch_mttr),
                (Part.ROW, table.row_mtbf, table.row_mttr),
            )
            if mtbf is not None and mttr is not None
        }
        assert self.file.until is not None
        parts = parts_of(setting.network, self.row_racks)
        return draw_failures(parts, reliability, until=self.file.until, seed=seed)

    @property
    def row_racks(self) -> int | None:
        return None if self.file.failures is None else self.file.failures.row_racks

    def setting(self, variant: VariantTable, seed: int) -> Setting:
        """For one simulation. Raises ``ConfigError`` for options that its tree builder has not."""
        migration = self.file.migration.migration()
        options = dict(variant.tree_options)
        if variant.trees == "sticky":  # it weighs what a change costs
            options.setdefault("downtime", migration.total)
        _check_options(variant)
        try:
            return make_setting(
                self.cluster,
                quota=self.file.cluster.quota_or_default,
                placement=variant.placement,
                trees=variant.trees,
                policy=variant.policy,
                speeds=self.file.speeds.speeds(),
                order=variant.order,
                migration=migration,
                is_weighted=variant.weighted,
                suffix_only=variant.suffix,
                is_pairwise=variant.pairwise,
                jitter=variant.jitter,
                seed=seed,
                models=self.own_models,
                tree_options=options,
            )
        except TypeError as error:
            unknown = re.search(r"unexpected keyword argument ('\w+')", str(error))
            if unknown is None or not variant.tree_options:
                raise
            raise ConfigError(f"tree_options: trees {variant.trees!r} has no option {unknown[1]}") from None


def _check_options(variant: VariantTable) -> None:
    """What Python would take, or take for something else. Raises ``ConfigError``."""
    for name, value in variant.tree_options.items():
        if name in ("network", "seed"):
            raise ConfigError(f"tree_options: trees {variant.trees!r} has no option {name!r}")
        if isinstance(value, str) or not isfinite(value):
            raise ConfigError(f"tree_options: {name} {value!r}: a finite number, true or false")
        if name.endswith("_max") and name != "seconds_max" and type(value) is not int:
            raise ConfigError(f"tree_options: {name} {value!r}: an integer")


def load_scenario(path: Path) -> Scenario:
    """Read and check all of it. Raises ``ConfigError`` that names file and key."""
    file = read_scenario_file(path)
    try:
        cluster = _cluster(file, path.parent)
        own = read_models(file, path.parent)
        scenario = Scenario(path, file, cluster, own, _logged(file, path.parent, own, cluster.hosts))
        _check(scenario)
        scenario = replace(scenario, listed_failures=_listed_failures(scenario))
    except ConfigError as error:
        raise ConfigError("\n".join(f"scenario {path}: {line}" for line in str(error).splitlines())) from None
    return scenario


def _cluster(file: ScenarioFile, folder: Path) -> Cluster:
    if file.cluster.graph is None:
        return file.cluster.tree()
    path = folder / file.cluster.graph
    try:
        topology = graph_file.read(path)
    except ConfigError as error:
        raise ConfigError(f"cluster.graph: {error}") from None
    if topology.hosts > HOSTS_MAX:
        raise ConfigError(f"cluster.graph: {path}: {topology.hosts} hosts, at most {HOSTS_MAX}")
    model = file.cluster.capacity_model
    return topology if model is None else capacity.limited(topology, model)


def _logged(file: ScenarioFile, folder: Path, own: Mapping[str, ModelTrace], hosts: int) -> Workload | None:
    if file.arrivals.file is None:
        return None
    try:
        log = read(folder / file.arrivals.file, models=[*own, *measured_names()], hosts_max=hosts)
    except ConfigError as error:
        raise ConfigError(f"arrivals.file: {error}") from None
    if not log.requests:
        raise ConfigError(f"arrivals.file: {folder / file.arrivals.file}: there are no jobs in it")
    return Workload(log.requests, log.arrivals)


def _listed_failures(scenario: Scenario) -> tuple[FailureEvent, ...]:
    table = scenario.file.failures
    if table is None:
        return ()
    if table.file is None:
        if scenario.file.until is None:
            raise ConfigError("failures: are drawn up to a limit; give until, too")
        return ()
    path = scenario.path.parent / table.file
    parts = parts_of(scenario.setting(scenario.variants[0], 0).network, table.row_racks)
    try:
        return parse(read_text(path, "failures.file:"), parts)
    except ConfigError as error:
        said = str(error)
        raise ConfigError(
            said if said.startswith("failures.file") else f"failures.file: {path}: {said}"
        ) from None


def _check(scenario: Scenario) -> None:
    file = scenario.file
    _check_jobs(scenario)
    for number, variant in enumerate(file.compare):
        key = f"compare[{number}]"
        if any(variant.label == other.label for other in file.compare[:number]):
            raise ConfigError(f"{key}: another one is called {variant.label!r}, too; give each a name")
        try:
            scenario.setting(variant, seed=0)
        except ConfigError as error:
            raise ConfigError(f"{key}.{error}") from None
    if not file.compare:
        raise ConfigError("compare: at least one variant, or leave it out")
    if len(set(file.seed_list())) < len(file.seed_list()) or not file.seed_list():
        raise ConfigError("seeds: at least one, each once")


def _check_jobs(scenario: Scenario) -> None:
    file, hosts = scenario.file, scenario.cluster.hosts
    listed = bool(file.jobs) or file.stream is not None
    if (file.arrivals.process == "log") == listed:
        raise ConfigError(
            "jobs: there are none; give [[jobs]], [stream], or an arrival log"
            if not listed
            else "arrivals.file: the log says which jobs there are; leave [[jobs]] and [stream] out"
        )
    for number, jobs in enumerate(file.jobs):
        model_named(jobs.model, scenario.own_models, f"jobs[{number}].model")
        if jobs.hosts > hosts:
            raise ConfigError(f"jobs[{number}].hosts: {jobs.hosts} is not allowed: the cluster has {hosts}")
    if file.stream is not None:
        for place, name in enumerate(file.stream.models or ()):
            model_named(name, scenario.own_models, f"stream.models[{place}]")
        largest = max(file.stream.histogram())
        if largest > hosts:
            key = "hosts" if file.stream.trace is None else "trace"
            raise ConfigError(
                f"stream.{key}: draws jobs of up to {largest} hosts, but the cluster has {hosts}; "
                "write the weights of smaller jobs yourself: hosts = {4 = 2, 8 = 1}"
            )
    count = sum(jobs.count for jobs in file.jobs) + (file.stream.count if file.stream else 0)
    if count > JOBS_MAX:
        raise ConfigError(f"jobs: {count} in all, at most {JOBS_MAX}")
    for name in scenario.own_models:
        if name not in scenario.model_names:
            raise ConfigError(f"models.{name}: no job has it")
    for name in scenario.model_names:
        times = scenario.times(name)
        for said, seconds in (("without", times.step_plain), ("with", times.step_ina)):
            if not 0 < seconds <= SECONDS_MAX:
                raise ConfigError(
                    f"speeds: a step of {name} takes {seconds:g} s {said} INA; more than 0 and at most "
                    f"{SECONDS_MAX:g}"
                )
