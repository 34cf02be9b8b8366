"""Reduces a world that breaks a rule to a small one that still breaks it, for a person to look at.

Two stages. First the world's structure shrinks (faults, jobs, ranks, operations, sizes, delays) while its
weather is drawn as before, since another structure meets other weather. Then the fates that befell frames
are written down, the weather is turned off, and the list of fates is reduced too (ddmin; Zeller and
Hildebrandt, "Simplifying and isolating failure-inducing input", 2002), in turns with the structure, until
a whole round changes nothing. A candidate counts if its run breaks the same rule. No clock and no chance
takes part, so the same world shrinks to the same world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from inaproto.errors import ConfigError
from inaproto.faults.weather import Weather
from inaproto.sim.frames.draw.swarm import WorldConfig
from inaproto.sim.frames.draw.topology import Topology, map_trunks, node_names
from inaproto.sim.frames.runs.reductions import Candidate, Fates, fates_of, simpler_fates, structural
from inaproto.sim.frames.world import WorldResult
from inaproto.sim.kernel.fates import Fate, LinkFates
from inaproto.sim.kernel.violated import Violation

T = TypeVar("T")
Run = Callable[[WorldConfig, LinkFates | None], WorldResult]
ROUNDS_MAX: Final = 8
_CLEAR: Final = Weather()


@dataclass(frozen=True, slots=True)
class Size:
    """How large a world is, for people."""

    switches: int
    hosts: int
    ranks: int
    operations: int
    elements: int
    faults: int
    fates: int
    events: int

    @classmethod
    def of(cls, result: WorldResult) -> Size:
        config = result.config
        return cls(
            switches=len(node_names(config.topology)),
            hosts=len(config.links),
            ranks=sum(len(job.hosts) for job in config.jobs),
            operations=sum(len(job.elements) for job in config.jobs),
            elements=sum(sum(job.elements) for job in config.jobs),
            faults=len(config.faults),
            fates=sum(map(len, result.fates.values())),
            events=result.events,
        )

    def __str__(self) -> str:
        switches = f"{self.switches} switches, " if self.switches > 1 else ""
        return (
            f"{switches}{self.hosts} hosts, {self.ranks} ranks, {self.operations} operations "
            f"of {self.elements} elements, {self.faults} faults, {self.fates} frames that weather hit, "
            f"{self.events} events"
        )


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest world that was found, and the fates with which it fails."""

    config: WorldConfig
    fates: LinkFates
    violation: Violation
    before: Size
    after: Size
    runs: int
    complete: bool
    """False: the runs were used up while there was more to try."""

    def __str__(self) -> str:
        end = "nothing smaller fails" if self.complete else "runs used up"
        return f"shrunk in {self.runs} runs ({end})\n  from {self.before}\n  to   {self.after}"


class _RunsUsedUp(Exception):
    pass


@dataclass(slots=True)
class _Search:
    run: Run
    rule: str
    best: WorldResult
    runs_max: int
    progress: Callable[[int, WorldResult], None]
    runs: int = 0
    tried: set[str] = field(default_factory=set)

    def fails(self, config: WorldConfig, fates: LinkFates | None) -> bool:
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
        for candidate in structural(Candidate(self.best.config, fates)):
            if candidate.fates is None:
                if self.fails(candidate.config, None):
                    return True
            elif self.fails(candidate.config, as_link_fates(candidate.fates)):
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
    config: WorldConfig,
    run: Run,
    *,
    fates: LinkFates | None = None,
    runs_max: int = 2000,
    progress: Callable[[int, WorldResult], None] = lambda runs, best: None,
) -> Shrunk:
    """Raises ``ConfigError`` if ``config`` breaks no rule. ``progress`` is told of each smaller world."""
    first = run(config, fates)
    if first.violation is None:
        raise ConfigError(f"shrink: the world of seed {config.seed} breaks no rule")
    search = _Search(run, failure_kind(first.violation), first, runs_max, progress)
    complete = True
    try:
        if fates is None:
            search.reduce_structure(None)
        still = replace(
            search.best.config,
            links=tuple(replace(link, weather=_CLEAR) for link in search.best.config.links),
            topology=_still(search.best.config.topology),
        )
        # The fates are given, so that no weather is drawn; the weather in the configuration says nothing now.
        search.fails(still, search.best.fates)
        for _ in range(ROUNDS_MAX):
            changed = search.reduce_fates()
            changed |= search.reduce_structure(fates_of(search.best))
            if not changed:
                break
    except _RunsUsedUp:
        complete = False
    best = search.best
    assert best.violation is not None
    return Shrunk(
        config=best.config,
        fates=best.fates,
        violation=best.violation,
        before=Size.of(first),
        after=Size.of(best),
        runs=search.runs,
        complete=complete,
    )


def _still(topology: Topology | None) -> Topology | None:
    if topology is None:
        return None
    return map_trunks(topology, lambda trunk: replace(trunk, weather=_CLEAR))


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
