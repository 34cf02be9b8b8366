"""The list of known survivors, ``survivors.json``: read it, compare a campaign with it, write it anew.

The list is a ratchet: a survivor that is not on it fails the campaign, and so does a score below
``SCORE_MIN``. A survivor on it either is ``equivalent`` (no test could tell it from the original, by what
the reason says, and it leaves the score) or is an accepted gap with its reason.

Score = (killed + timeout) / (mutants - equivalent), of a module or of a package.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tests.mutation.results import KILLED, STILLBORN, TIMEOUT, Change, Result

ROOT: Final = Path(__file__).resolve().parents[2]
SURVIVORS: Final = Path(__file__).with_name("survivors.json")
SCORE_MIN: Final = 0.85
TO_SAY: Final = "TO SAY: why no test kills it"
"""Stands for the reason of a survivor that is new in the list; the well-formed list has none."""


@dataclass(frozen=True, slots=True)
class Survivor:
    change: Change
    reason: str
    equivalent: bool = False


@dataclass(frozen=True, slots=True)
class ModuleRecord:
    """What is known of a module since its last complete campaign."""

    source: str
    """Digest of the source that was mutated."""
    mutants: int = 0
    killed: int = 0
    timeout: int = 0
    survivors: tuple[Survivor, ...] = ()
    of: int = 0
    """Mutants that the module has, where only a sample of them was tried; 0: all were."""

    @property
    def equivalent(self) -> int:
        return sum(survivor.equivalent for survivor in self.survivors)

    @property
    def survived(self) -> int:
        """Those that a test could kill."""
        return len(self.survivors) - self.equivalent

    @property
    def score(self) -> float | None:
        """None where there is nothing to kill."""
        return score([self])


@dataclass(frozen=True, slots=True)
class Comparison:
    record: ModuleRecord
    """The campaign, with the reasons of the list."""
    new: tuple[Survivor, ...] = ()
    gone: tuple[Survivor, ...] = ()
    """On the list, but killed now or no longer there."""


@dataclass(slots=True)
class SurvivorList:
    modules: dict[str, ModuleRecord] = field(default_factory=dict)


def score(records: Iterable[ModuleRecord]) -> float | None:
    together = list(records)
    tried = sum(record.mutants - record.equivalent for record in together)
    return sum(record.killed + record.timeout for record in together) / tried if tried else None


def source_path(module: str) -> Path:
    return ROOT.joinpath("inaproto", *module.split(".")).with_suffix(".py")


def source_digest(module: str) -> str:
    return hashlib.sha256(source_path(module).read_bytes()).hexdigest()[:16]


def compare(
    module: str, results: Mapping[Change, Result], known: ModuleRecord | None, of: int = 0
) -> Comparison:
    """Put the results of a complete campaign of ``module`` beside what the list says of it."""
    reasons = {survivor.change: survivor for survivor in known.survivors} if known else {}
    counted = [result for result in results.values() if result.status != STILLBORN]
    alive = [result.change for result in counted if result.status not in {KILLED, TIMEOUT}]
    survivors = tuple(reasons.get(change, Survivor(change, TO_SAY)) for change in sorted(alive))
    record = ModuleRecord(
        source_digest(module),
        len(counted),
        sum(result.status == KILLED for result in counted),
        sum(result.status == TIMEOUT for result in counted),
        survivors,
        of if of > len(results) else 0,
    )
    new = tuple(survivor for survivor in survivors if survivor.change not in reasons)
    gone = tuple(survivor for survivor in reasons.values() if survivor.change not in set(alive))
    return Comparison(record, new, gone)


def read_survivors(path: Path = SURVIVORS) -> SurvivorList:
    if not path.exists():
        return SurvivorList()
    raw = json.loads(path.read_text())
    return SurvivorList({name: _record(module) for name, module in raw["modules"].items()})


def _record(raw: Mapping[str, Any]) -> ModuleRecord:
    survivors = tuple(
        Survivor(
            Change(item["function"], tuple(item["removed"]), tuple(item["added"]), item.get("nth", 0)),
            item["reason"],
            item["equivalent"],
        )
        for item in raw["survivors"]
    )
    source, mutants, killed, timeout = (raw[key] for key in ("source", "mutants", "killed", "timeout"))
    return ModuleRecord(source, mutants, killed, timeout, survivors, raw.get("sampled_of", 0))


def as_json(module: ModuleRecord) -> dict[str, Any]:
    survivors = []
    for survivor in module.survivors:
        change = survivor.change
        item: dict[str, Any] = {"function": change.function, "removed": list(change.removed)}
        item["added"] = list(change.added)
        if change.nth:
            item["nth"] = change.nth
        survivors.append({**item, "equivalent": survivor.equivalent, "reason": survivor.reason})
    counts = {"source": module.source, "mutants": module.mutants, "killed": module.killed}
    if module.of:
        counts["sampled_of"] = module.of
    counts |= {"timeout": module.timeout, "equivalent": module.equivalent, "survived": module.survived}
    return {
        **counts,
        "score": None if module.score is None else round(module.score, 4),
        "survivors": survivors,
    }


def write_survivors(survivors: SurvivorList, path: Path = SURVIVORS) -> None:
    modules = {name: as_json(record) for name, record in sorted(survivors.modules.items())}
    path.write_text(
        json.dumps({"score_min": SCORE_MIN, "modules": modules}, indent=1, ensure_ascii=False) + "\n"
    )


def lines_missing(module: str, survivors: Iterable[Survivor]) -> list[Change]:
    """Changes whose lines the module does not have any more."""
    lines = {line.strip() for line in source_path(module).read_text().splitlines()}
    return [survivor.change for survivor in survivors if not set(survivor.change.removed) <= lines]


def with_reason(record: ModuleRecord, reasons: Mapping[Change, tuple[str, bool]]) -> ModuleRecord:
    """The record with other reasons for some survivors."""
    survivors = []
    for survivor in record.survivors:
        reason, equivalent = reasons.get(survivor.change, (survivor.reason, survivor.equivalent))
        survivors.append(Survivor(survivor.change, reason, equivalent))
    return replace(record, survivors=tuple(survivors))
