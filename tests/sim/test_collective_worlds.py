"""Worlds whose hosts have a collective library with faults beside their rings: one result all the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from inaproto.core.host.collective import CollectiveCalls
from inaproto.core.host.collective_terms import Code
from inaproto.core.host.operations import Operation
from inaproto.faults.collective import NO_FAULTS, CollectiveFaults
from inaproto.sim.frames.draw.recovering import draw_recovery
from inaproto.sim.frames.draw.swarm import JobConfig, WorldConfig
from tests.seeds import all_seeds
from tests.sim.worlds import SMALL, run, small

FAULTS: Final = CollectiveFaults(
    refused=100, refused_at_one=100, failed=60, failed_at_some=60, never=30, lost=60, wrong=40
)
DRAWS: dict[str, Callable[[int], WorldConfig]] = {
    "single": small,
    "recovery": lambda seed: draw_recovery(seed, SMALL),
}
MARKS: Final = (
    "an all-reduce by a collective library",
    "a collective library stood again",
    *(f"an all-reduce was redone without a collective library: {code.name.lower()}" for code in Code),
)


def with_library(config: WorldConfig, faults: CollectiveFaults = FAULTS) -> WorldConfig:
    """Its jobs have more all-reduces, so that what is lost can return."""

    def beside(job: JobConfig) -> JobConfig:
        elements = (job.elements * 12)[:24]
        mismatch = None if job.mismatch is None else (job.mismatch[0], min(job.mismatch[1], 23))
        return replace(
            job, elements=elements, mismatch=mismatch, path="auto", exact_plan=False, collective=faults
        )

    return replace(config, jobs=tuple(map(beside, config.jobs)))


@pytest.mark.parametrize("world", DRAWS)
def test_every_rule_holds(world: str) -> None:
    marks: Counter[str] = Counter()
    for seed in all_seeds(24):
        result = run(with_library(DRAWS[world](seed)))
        assert result.violation is None, f"{result.violation}; rerun: INAPROTO_SEEDS={seed}:{seed + 1}"
        marks.update(result.marks)
    assert not [mark for mark in MARKS if not marks[mark]], marks


def test_a_library_without_faults_sums_what_it_takes() -> None:
    result = run(with_library(small(3), NO_FAULTS))
    assert result.violation is None
    assert result.marks["an all-reduce by a collective library"]


def test_a_host_that_takes_its_result_without_the_others_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    decided = CollectiveCalls._decided

    def alone(self: CollectiveCalls, operation: Operation, least: int, most: int, stays: bool) -> None:
        decided(self, operation, most, most, stays)

    monkeypatch.setattr(CollectiveCalls, "_decided", alone)
    rules = set()
    for seed in range(12):
        violation = run(with_library(small(seed))).violation
        if violation is not None:
            rules.add(violation.rule)
    assert "one result" in rules


# --- a controller that gives places in the library, and takes them back (MINA, section IV-A)

PLACES: Final = CollectiveFaults(refused=30, refused_at_one=30, failed=20, failed_at_some=20, lost=20)
MARKS_OF_PLACES: Final = (
    "an all-reduce by a collective library",
    "a collective library stood again",
    "a place was taken back from a host that was attached",
    "a host left a collective library, for it had no place any more",
    "wishes for places came after later ones",
    "wishes for places were of a term that is over",
)


def with_places(config: WorldConfig, moves: int = 6) -> WorldConfig:
    config = with_library(config, PLACES)
    return replace(config, jobs=tuple(replace(job, place_moves=moves) for job in config.jobs))


@pytest.mark.parametrize("world", DRAWS)
def test_every_rule_holds_while_places_are_given_and_taken_back(world: str) -> None:
    marks: Counter[str] = Counter()
    for seed in all_seeds(24):
        result = run(with_places(DRAWS[world](seed)))
        assert result.violation is None, f"{result.violation}; rerun: INAPROTO_SEEDS={seed}:{seed + 1}"
        marks.update(result.marks)
    assert not [mark for mark in MARKS_OF_PLACES if not marks[mark]], marks
