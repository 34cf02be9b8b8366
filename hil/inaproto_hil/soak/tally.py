"""What many worlds came to, so small that a long campaign can write it down after every block."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from inaproto.sim.campaign.marks import seen_in
from inaproto.sim.control.world import ControlResult
from inaproto.sim.kernel.world import RunResult


@dataclass(frozen=True, slots=True)
class Failure:
    """A seed whose world broke a rule."""

    seed: int
    rule: str
    evidence: str
    event: int
    at_ns: int
    checker: str


@dataclass(frozen=True, slots=True)
class Stops:
    """Jobs whose longest stop has one cause."""

    jobs: int
    longest_ns: int
    seed: int
    said: str
    """The longest of them, in words."""

    def __add__(self, other: Stops) -> Stops:
        longest = max(self, other, key=lambda stops: (stops.longest_ns, -stops.seed))
        return replace(longest, jobs=self.jobs + other.jobs)


@dataclass(slots=True)
class Tally:
    seeds: int = 0
    faulted: int = 0
    """Worlds with scheduled faults."""
    weathered: int = 0
    """Worlds in which the weather hit a frame."""
    events: int = 0
    frames: int = 0
    """Frames; of worlds of words: messages."""
    operations: int = 0
    virtual_ns: int = 0
    steps: dict[str, int] = field(default_factory=dict)
    """Steps by core."""
    marks: dict[str, list[int]] = field(default_factory=dict)
    """Seeds that saw it, and how often in all."""
    steps_bins: dict[str, int] = field(default_factory=dict)
    """Worlds by half powers of two of their steps."""
    virtual_bins: dict[str, int] = field(default_factory=dict)
    """Worlds by half powers of two of their virtual milliseconds."""
    blocks: list[tuple[int, int, float]] = field(default_factory=list)
    """First seed, steps and CPU seconds of each block."""
    failures: list[Failure] = field(default_factory=list)
    stops: dict[str, Stops] = field(default_factory=dict)
    """By what caused them, in worlds that measure how long jobs stop."""

    def add_world(self, seed: int, result: RunResult[Any]) -> None:
        self.seeds += 1
        self.faulted += bool(result.config.faults)
        self.weathered += bool(result.fates)
        self.events += result.events
        self.frames += result.frames
        self.operations += result.operations_done
        self.virtual_ns += result.virtual_ns
        _add(self.steps, asdict(result.steps))
        for name, times in seen_in(result).items():
            self._mark(name, 1, times)
        _add(self.steps_bins, {_bin(result.steps.total): 1})
        _add(self.virtual_bins, {_bin(result.virtual_ns // 1_000_000): 1})
        if isinstance(result, ControlResult) and result.config.stop_ns >= 0:
            for stop in result.stops:
                self._stop(stop.kind, Stops(1, stop.stopped_ns, seed, str(stop)))
        broken = result.violation
        if broken is not None:
            self.failures.append(
                Failure(seed, broken.rule, broken.evidence, broken.event, broken.at_ns, broken.checker)
            )

    def add(self, other: Tally) -> None:
        """Add the tally of other seeds."""
        for name in ("seeds", "faulted", "weathered", "events", "frames", "operations", "virtual_ns"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("steps", "steps_bins", "virtual_bins"):
            _add(getattr(self, name), getattr(other, name))
        for name, (seeds, times) in other.marks.items():
            self._mark(name, seeds, times)
        for kind, stops in other.stops.items():
            self._stop(kind, stops)
        self.blocks = sorted(self.blocks + other.blocks)
        self.failures = sorted(self.failures + other.failures, key=lambda failure: failure.seed)

    def _mark(self, name: str, seeds: int, times: int) -> None:
        counts = self.marks.setdefault(name, [0, 0])
        counts[0] += seeds
        counts[1] += times

    def _stop(self, kind: str, stops: Stops) -> None:
        self.stops[kind] = self.stops[kind] + stops if kind in self.stops else stops

    def longest_stops(self) -> list[tuple[str, Stops]]:
        """By cause, the longest first."""
        return sorted(self.stops.items(), key=lambda item: (-item[1].longest_ns, item[0]))

    @property
    def steps_total(self) -> int:
        return sum(self.steps.values())

    @property
    def cpu_s(self) -> float:
        return sum(seconds for _, _, seconds in self.blocks)

    @property
    def steps_per_s(self) -> float | None:
        """Core steps per second and core: over all blocks, by the CPU time of their runs."""
        return self.steps_total / self.cpu_s if self.cpu_s > 0 else None

    @property
    def steps_per_s_median(self) -> float | None:
        rates = [steps / seconds for _, steps, seconds in self.blocks if seconds > 0]
        return statistics.median(rates) if rates else None

    def as_record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Tally:
        tally = cls(**record)
        tally.blocks = [(int(first), int(steps), float(seconds)) for first, steps, seconds in tally.blocks]
        tally.failures = [Failure(**failure) for failure in record["failures"]]
        tally.stops = {kind: Stops(**stops) for kind, stops in record.get("stops", {}).items()}
        return tally


def _add(totals: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        totals[name] = totals.get(name, 0) + count


def _bin(value: int) -> str:
    """``2 * log2(value)``, rounded down: bin ``n`` begins at ``bin_start(n)``."""
    number = 2 * (max(1, value).bit_length() - 1)
    return str(number + (bin_start(number + 1) <= value))


def bin_start(number: int) -> float:
    return float(2 ** (number / 2))
