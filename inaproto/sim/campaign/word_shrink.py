"""Reduces a world of words that breaks a rule to a small one that still breaks it.

As in :mod:`inaproto.sim.frames.runs.shrink`: first the structure shrinks (faults, jobs, plans, operations)
while weather is drawn as before; then the fates of messages are written down and reduced too (ddmin), in
turns with the structure, until a round changes nothing. A candidate counts if its run breaks the same rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from inaproto.errors import ConfigError
from inaproto.faults.weather import Weather
from inaproto.sim.campaign.word_worlds import WordsConfig, WordsResult, kind_of_words, world_of
from inaproto.sim.control.config import ControlConfig
from inaproto.sim.frames.runs.shrink import as_link_fates, ddmin, failure_kind
from inaproto.sim.kernel.fates import Fate, LinkFates
from inaproto.sim.models.config import OverlayConfig
from inaproto.sim.models.shrink import size_of, smaller_overlay
from inaproto.sim.trees.config import TreesConfig
from inaproto.sim.trees.shrink import size_of_trees, smaller_trees

ROUNDS_MAX: Final = 6
_CLEAR: Final = Weather()


@dataclass(frozen=True, slots=True)
class ControlShrunk:
    """The smallest world that was found, and the fates with which it fails."""

    config: WordsConfig
    fates: LinkFates
    before: WordsResult
    after: WordsResult
    runs: int
    complete: bool
    """False: the runs were used up while there was more to try."""

    def __str__(self) -> str:
        end = "nothing smaller fails" if self.complete else "runs used up"
        return f"shrunk in {self.runs} runs ({end})\n  from {_size(self.before)}\n  to   {_size(self.after)}"


def _size(result: WordsResult) -> str:
    config = result.config
    match config:
        case OverlayConfig():
            of = size_of(config)
        case TreesConfig():
            of = size_of_trees(config)
        case ControlConfig():
            of = _control_size(config)
        case _:
            assert_never(config)
    return (
        f"{of}, {len(config.faults)} faults, {sum(map(len, result.fates.values()))} messages "
        f"that weather hit, {result.events} events"
    )


def _control_size(config: ControlConfig) -> str:
    return (
        f"{config.hosts} hosts, {len(config.switches)} switches, {len(config.jobs)} jobs, "
        f"{sum(job.operations for job in config.jobs)} operations, {len(config.plan)} plans"
    )


class _RunsUsedUp(Exception):
    pass


@dataclass(slots=True)
class _Search:
    kind: str
    best: WordsResult
    runs_max: int
    runs: int = 0
    tried: set[str] = field(default_factory=set)

    def fails(self, config: WordsConfig, fates: LinkFates | None) -> bool:
        key = repr((config, fates))
        if key in self.tried:
            return False
        if self.runs == self.runs_max:
            raise _RunsUsedUp
        self.tried.add(key)
        self.runs += 1
        result = world_of(config, fates=fates).run()
        if failure_kind(result.violation) != self.kind:
            return False
        self.best = result
        return True

    def reduce_structure(self, fates: Callable[[], LinkFates | None]) -> bool:
        found = False
        while any(self.fails(config, fates()) for config in smaller(self.best.config)):
            found = True
        return found

    def reduce_fates(self) -> bool:
        config, before = self.best.config, _listed(self.best.fates)
        ddmin(before, lambda fates: self.fails(config, as_link_fates(fates)))
        return _listed(self.best.fates) != before


def _listed(fates: LinkFates) -> tuple[tuple[str, int, Fate], ...]:
    return tuple((path, number, fate) for path, of in fates.items() for number, fate in of.items())


def smaller(config: WordsConfig) -> Iterator[WordsConfig]:
    """Configurations with one thing less, the greatest steps first."""
    match config:
        case OverlayConfig():
            return smaller_overlay(config)
        case TreesConfig():
            return smaller_trees(config)
        case ControlConfig():
            return _smaller_control(config)
        case _:
            assert_never(config)


def _smaller_control(config: ControlConfig) -> Iterator[ControlConfig]:
    for number in range(len(config.jobs)):
        if len(config.jobs) > 1:
            jobs = config.jobs[:number] + config.jobs[number + 1 :]
            plan = tuple(
                replace(step, trees=step.trees[:number] + step.trees[number + 1 :]) for step in config.plan
            )
            yield replace(config, jobs=jobs, plan=plan)
    for number in range(len(config.plan)):
        yield replace(config, plan=config.plan[:number] + config.plan[number + 1 :])
    for number in range(len(config.faults)):
        yield replace(config, faults=config.faults[:number] + config.faults[number + 1 :])
    for number, job in enumerate(config.jobs):
        less = []
        if job.operations > 1:
            less += [
                replace(job, operations=job.operations // 2),
                replace(job, operations=job.operations - 1),
            ]
        if len(job.hosts) > 2:
            less.append(replace(job, hosts=job.hosts[:-1]))
        if job.cancelled_ns >= 0:
            less.append(replace(job, cancelled_ns=-1))
        if job.burst_operations > 1:
            less.append(replace(job, burst_operations=1, pause_ns=0))
        for one in less:
            yield replace(config, jobs=(*config.jobs[:number], one, *config.jobs[number + 1 :]))
    used = max((host for job in config.jobs for host in job.hosts), default=0) + 1
    if used < config.hosts:
        yield replace(config, hosts=used)


def shrink_control(config: WordsConfig, *, runs_max: int = 600) -> ControlShrunk:
    """Raises ``ConfigError`` if ``config`` breaks no rule."""
    first = world_of(config).run()
    if first.violation is None:
        raise ConfigError(f"shrink: the {kind_of_words(config)} world of seed {config.seed} breaks no rule")
    search = _Search(failure_kind(first.violation), first, runs_max)
    complete = True
    try:
        search.reduce_structure(lambda: None)
        still = replace(search.best.config, weather=_CLEAR)
        search.fails(still, search.best.fates)
        for _ in range(ROUNDS_MAX):
            changed = search.reduce_fates()
            changed |= search.reduce_structure(lambda: search.best.fates)
            if not changed:
                break
    except _RunsUsedUp:
        complete = False
    best = search.best
    return ControlShrunk(best.config, best.fates, first, best, search.runs, complete)
