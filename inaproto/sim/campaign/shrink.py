"""Reduces a world that breaks a rule to a small one that still breaks it, for a person to look at.

Two stages. First the world's structure shrinks (faults, jobs, ranks, operations, sizes, delays) while its
weather is drawn as before, since another structure meets other weather. Then the fates that befell frames
are written down, the weather is turned off, and the list of fates is reduced too (ddmin; Zeller and
Hildebrandt, "Simplifying and isolating failure-inducing input", 2002), in turns with the structure, until
a whole round changes nothing. A candidate counts if its run breaks the same rule. No clock and no chance
takes part, so the same world shrinks to the same world.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from inaproto.errors import ConfigError
from inaproto.sim.campaign.worlds import WORDS, any_kind_of
from inaproto.sim.frames.draw.swarm import WorldConfig
from inaproto.sim.frames.draw.topology import map_trunks, node_names
from inaproto.sim.frames.shrink import Candidate, Fates, fates_of, simpler_fates, structural
from inaproto.sim.kernel.config import CLEAR, WordsConfig
from inaproto.sim.kernel.fates import Fate, LinkFates
from inaproto.sim.kernel.violated import Violation
from inaproto.sim.kernel.world import RunResult

T = TypeVar("T")
AnyConfig = WorldConfig | WordsConfig
Result = RunResult[Any]
Run = Callable[[AnyConfig, LinkFates | None], Result]
ROUNDS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest world that was found, and the fates with which it fails."""

    before: Result
    after: Result
    runs: int
    complete: bool
    """False: the runs were used up while there was more to try."""

    @property
    def config(self) -> Any:
        return self.after.config

    @property
    def fates(self) -> LinkFates:
        return self.after.fates

    def __str__(self) -> str:
        end = "nothing smaller fails" if self.complete else "runs used up"
        return f"shrunk in {self.runs} runs ({end})\n  from {_size(self.before)}\n  to   {_size(self.after)}"


def _size(result: Result) -> str:
    config, hit = result.config, sum(map(len, result.fates.values()))
    if not isinstance(config, WorldConfig):
        said, what = WORDS[any_kind_of(config)].size(config), "messages"
    else:
        said, what = _size_of_frames(config), "frames"
    return f"{said}, {len(config.faults)} faults, {hit} {what} that weather hit, {result.events} events"


def _size_of_frames(config: WorldConfig) -> str:
    switches, jobs = len(node_names(config.topology)), config.jobs
    return (f"{switches} switches, " if switches > 1 else "") + (
        f"{len(config.links)} hosts, {sum(len(job.hosts) for job in jobs)} ranks, "
        f"{sum(len(job.elements) for job in jobs)} operations "
        f"of {sum(sum(job.elements) for job in jobs)} elements"
    )


def _smaller(config: Any, fates: Fates | None) -> Iterator[tuple[AnyConfig, Fates | None]]:
    """Worlds with one thing less, and the fates that belong to them."""
    if isinstance(config, WorldConfig):
        for candidate in structural(Candidate(config, fates)):
            yield candidate.config, candidate.fates
    else:
        for smaller in WORDS[any_kind_of(config)].smaller(config):
            yield smaller, fates


class _RunsUsedUp(Exception):
    pass


@dataclass(slots=True)
class _Search:
    run: Run
    rule: str
    best: Result
    runs_max: int
    progress: Callable[[int, Result], None]
    runs: int = 0
    tried: set[str] = field(default_factory=set)

    def fails(self, config: AnyConfig, fates: LinkFates | None) -> bool:
        """Run it; if it breaks the rule, it is the best so far."""
        key = repr((config, fates))
        if key in self.tried:
            return False
        if self.runs == self.runs_max:
            raise _RunsUsedUp
        self.tried.add(key)
        self.runs += 1
        result = self.run(config, fates)
        if failure_kind(result.violation) != self.rule:
            return False
        self.best = result
        self.progress(self.runs, result)
        return True

    def reduce_structure(self, fates: Fates | None) -> bool:
        """Take one reduction after another for as long as any works; whether one did."""
        found = False
        while self._one_reduction(fates):
            found = True
            if fates is not None:
                fates = fates_of(self.best)
        return found

    def _one_reduction(self, fates: Fates | None) -> bool:
        for config, left in _smaller(self.best.config, fates):
            if self.fails(config, None if left is None else as_link_fates(left)):
                return True
        return False

    def reduce_fates(self) -> bool:
        before = fates_of(self.best)
        config = self.best.config
        ddmin(before, lambda fates: self.fails(config, as_link_fates(fates)))
        position = 0
        while position < len(fates := fates_of(self.best)):
            link, number, fate = fates[position]
            for simpler in simpler_fates(fate):
                changed = (*fates[:position], (link, number, simpler), *fates[position + 1 :])
                if self.fails(config, as_link_fates(changed)):
                    break
            position += 1
        return fates_of(self.best) != before


def shrink(
    config: AnyConfig,
    run: Run,
    *,
    fates: LinkFates | None = None,
    runs_max: int = 2000,
    progress: Callable[[int, Result], None] = lambda runs, best: None,
) -> Shrunk:
    """Raises ``ConfigError`` if ``config`` breaks no rule. ``progress`` is told of each smaller world."""
    first = run(config, fates)
    if first.violation is None:
        raise ConfigError(f"shrink: the {any_kind_of(config)} world of seed {config.seed} breaks no rule")
    search = _Search(run, failure_kind(first.violation), first, runs_max, progress)
    complete = True
    try:
        if fates is None:
            search.reduce_structure(None)
        still = _still(search.best.config)
        # The fates are given, so that no weather is drawn; the weather in the configuration says nothing now.
        search.fails(still, search.best.fates)
        for _ in range(ROUNDS_MAX):
            changed = search.reduce_fates()
            changed |= search.reduce_structure(fates_of(search.best))
            if not changed:
                break
    except _RunsUsedUp:
        complete = False
    return Shrunk(first, search.best, search.runs, complete)


def _still(config: Any) -> AnyConfig:
    """Without weather."""
    if not isinstance(config, WorldConfig):
        still: WordsConfig = replace(config, weather=CLEAR)
        return still
    links = tuple(replace(link, weather=CLEAR) for link in config.links)
    topology = config.topology and map_trunks(config.topology, lambda trunk: replace(trunk, weather=CLEAR))
    return replace(config, links=links, topology=topology)


def failure_kind(violation: Violation | None) -> str:
    """Two failures of one kind are taken for one fault: the rule, and what was raised if a part raised."""
    if violation is None:
        return ""
    if violation.rule == "no part raises":
        return f"{violation.rule}: {violation.evidence.partition(':')[0]}"
    return violation.rule


def as_link_fates(fates: Sequence[tuple[str, int, Fate]]) -> dict[str, dict[int, Fate]]:
    by_link: dict[str, dict[int, Fate]] = {}
    for link, number, fate in fates:
        by_link.setdefault(link, {})[number] = fate
    return by_link


def ddmin(items: Sequence[T], fails: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """A part of ``items`` that fails and of which no single item can be left out.

    ``items`` itself is known to fail. Order is kept.
    """
    items = tuple(items)
    if items and fails(()):
        return ()
    chunks = 2
    while len(items) >= 2:
        size = -(-len(items) // chunks)
        for start in range(0, len(items), size):
            rest = items[:start] + items[start + size :]
            if rest and fails(rest):
                items = rest
                chunks = max(chunks - 1, 2)
                break
        else:
            if size == 1:
                break
            chunks = min(2 * chunks, len(items))
    return items
