"""Mutation testing of ``inaproto.wire`` and ``inaproto.core``: ``python tests/mutation/run.py --help``.

Small changes are made in the code, one at a time; a change that no test notices is a survivor. The known
ones are listed with reasons in ``survivors.json``; a new one fails the run, and so does a score below 85 %.

A run that was interrupted, or ended by ``--minutes``, goes on where it stopped when it is started again;
what is known lies in ``.mutation/`` and holds as long as package and tests stay as they are.

    python tests/mutation/run.py                       everything
    python tests/mutation/run.py --changed             modules whose source changed since the list was made
    python tests/mutation/run.py --module wire.crc     one module; may be repeated
    python tests/mutation/run.py --module wire.crc --update     write what came out into survivors.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import click  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from tests.mutation.results import read_results  # noqa: E402
from tests.mutation.survivors import (  # noqa: E402
    SCORE_MIN,
    SURVIVORS,
    Comparison,
    ModuleRecord,
    as_json,
    compare,
    read_survivors,
    score,
    source_digest,
    write_survivors,
)

CAMPAIGN = Path(__file__).with_name("campaign.toml")
STATE = ROOT / ".mutation"
PACKAGES = ("wire", "core")


@dataclass(frozen=True, slots=True)
class Outcome:
    module: str
    comparison: Comparison | None
    """None when the campaign of the module did not come to its end."""
    seconds: float
    trouble: str = ""


def campaign() -> dict[str, list[str]]:
    """Module -> test files that judge its mutants."""
    raw = tomllib.loads(CAMPAIGN.read_text())
    judged: dict[str, str | list[str]] = raw["modules"] | raw["sampled"]
    named: dict[str, list[str]] = raw["judges"]
    return {name: named[tests] if isinstance(tests, str) else tests for name, tests in judged.items()}


def sample_size(module: str) -> int:
    """How many mutants of the module are tried, drawn by their identities; 0: all."""
    raw = tomllib.loads(CAMPAIGN.read_text())
    size: int = raw["sample"] if module in raw["sampled"] else 0
    return size


def unmeasured() -> dict[str, str]:
    """Modules that have no campaign yet -> what they wait for."""
    modules: dict[str, str] = tomllib.loads(CAMPAIGN.read_text()).get("unmeasured", {})
    return modules


def try_modules(
    modules: Sequence[str], tests: Sequence[str], *, state: Path, jobs: int, seconds: float, again: bool
) -> list[Outcome]:
    """The outcome of each; all have the same tests."""
    state.mkdir(exist_ok=True)
    command = [sys.executable, str(Path(__file__).with_name("session.py")), *tests]
    command += [f"--deselect={test}" for test in tomllib.loads(CAMPAIGN.read_text())["deselect"]]
    command += ["--jobs", str(jobs), "--seconds", f"{seconds:.0f}", *(["--again"] if again else [])]
    command += [f"--module={module}:{sample_size(module)}" for module in modules]
    done = subprocess.run(
        [*command, f"--state={state}"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    outcomes = []
    for module in modules:
        heading, found = read_results(state / f"{module}.jsonl")
        spent = heading.get("seconds", 0.0)
        if done.returncode:
            outcomes.append(Outcome(module, None, spent, done.stdout[-3000:]))
        elif not heading.get("complete"):
            stopped = f"stopped after {len(found)} mutants; run again to go on"
            outcomes.append(Outcome(module, None, spent, stopped))
        else:
            known = read_survivors().modules.get(module)
            outcomes.append(Outcome(module, compare(module, found, known, heading["mutants"]), spent))
    return outcomes


def table(records: dict[str, ModuleRecord], seconds: dict[str, float]) -> Table:
    shown = Table(title="Mutants of inaproto")
    for name in ("module", "mutants", "killed", "timeout", "equivalent", "survived", "score", "seconds"):
        shown.add_column(name, justify="left" if name == "module" else "right")

    def row(name: str, together: list[ModuleRecord], spent: float | None) -> None:
        counts = (sum(getattr(record, key) for record in together) for key in _COUNTS)
        shown.add_row(
            name, *map(str, counts), percent(score(together)), "" if spent is None else f"{spent:.0f}"
        )

    for name, record in sorted(records.items()):
        row(f"{name} (sampled)" if record.of else name, [record], seconds.get(name))
    for package in PACKAGES:
        together = [record for name, record in records.items() if name.startswith(f"{package}.")]
        if together:
            row(f"all of {package}", together, None)
    return shown


_COUNTS = ("mutants", "killed", "timeout", "equivalent", "survived")


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def faults_of(outcomes: Sequence[Outcome], minimum: float) -> list[str]:
    """What makes the run fail."""
    faults = []
    for outcome in outcomes:
        if outcome.comparison is None:
            faults.append(f"{outcome.module}: {outcome.trouble}")
            continue
        faults += [f"{outcome.module}: new survivor {new.change}" for new in outcome.comparison.new]
        reached = outcome.comparison.record.score
        if reached is not None and reached < minimum:
            faults.append(
                f"{outcome.module}: score {percent(reached)}, at least {percent(minimum)} is wanted"
            )
    return faults


@click.command(help=(__doc__ or "").replace("\n    python", "\n\n\b\n    python", 1))
@click.option("--module", "modules", multiple=True, metavar="NAME", help="Only this one, such as wire.crc.")
@click.option("--changed", is_flag=True, help="Only modules that changed since survivors.json was written.")
@click.option("--jobs", type=click.IntRange(1), default=len(os.sched_getaffinity(0)), show_default=True)
@click.option("--minutes", type=float, default=float("inf"), help="Stop then; the next run goes on.")
@click.option("--again", is_flag=True, help="Trust known kills though tests changed; try survivors again.")
@click.option("--state", default=STATE, type=click.Path(path_type=Path), help="Where what is known lies.")
@click.option("--update", is_flag=True, help="Write the outcome into survivors.json; reasons stay.")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write counts and survivors there."
)
def main(
    modules: tuple[str, ...],
    changed: bool,
    jobs: int,
    minutes: float,
    again: bool,
    update: bool,
    state: Path,
    json_path: Path | None,
) -> None:
    tests = campaign()
    listed = read_survivors()
    unknown = [name for name in modules if name not in tests]
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)} not in {CAMPAIGN.name}, which has {', '.join(tests)}")
    chosen = list(modules or tests)
    if changed:
        sources = {name: record.source for name, record in listed.modules.items()}
        chosen = [name for name in chosen if sources.get(name) != source_digest(name)]
    console = Console()
    console.width = max(console.width, 100)
    end = time.monotonic() + 60 * min(minutes, 1e6)
    outcomes: list[Outcome] = []
    groups: dict[tuple[str, ...], list[str]] = {}
    for module in chosen:
        groups.setdefault(tuple(tests[module]), []).append(module)
    for judges, together in groups.items():
        left = max(0.0, end - time.monotonic())
        found = try_modules(together, judges, state=state, jobs=jobs, seconds=left, again=again)
        outcomes += found
        for outcome in found:
            record = outcome.comparison.record if outcome.comparison else None
            told = f"{percent(record.score)} of {record.mutants}" if record else outcome.trouble
            told += f", drawn from {record.of}" if record and record.of else ""
            console.print(f"{outcome.module}: {told}, {outcome.seconds:.0f} s", highlight=False, markup=False)
    records = {o.module: o.comparison.record for o in outcomes if o.comparison}
    seconds = {outcome.module: outcome.seconds for outcome in outcomes}
    console.print(table(records, seconds))
    for outcome in outcomes:
        for survivor in outcome.comparison.gone if outcome.comparison else ():
            text = f"{outcome.module}: no survivor any more: {survivor.change}"
            console.print(text, highlight=False, markup=False)
    if json_path is not None:
        shown = {name: {**as_json(record), "seconds": seconds[name]} for name, record in records.items()}
        json_path.write_text(json.dumps({"score_min": SCORE_MIN, "modules": shown}, indent=1) + "\n")
    if update:
        listed.modules.update(records)
        for name in listed.modules.keys() - tests.keys():
            del listed.modules[name]
        write_survivors(listed)
        console.print(f"wrote {SURVIVORS.relative_to(ROOT)}; give every survivor in it a reason")
    faults = faults_of(outcomes, SCORE_MIN)
    for fault in faults:
        console.print(fault, highlight=False, markup=False)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
