"""What the commands ``soak`` and ``replay`` do, and what they print."""

from __future__ import annotations

import os
import re
import statistics
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from inaproto.errors import ConfigError, InaprotoError
from inaproto.sim.campaign.failure import of_kind
from inaproto.sim.campaign.kinds import WORD_KINDS, WorldKind
from inaproto.sim.campaign.log import read_log
from inaproto.sim.campaign.marks import declared_of
from inaproto.sim.campaign.replay import replay as run_again
from inaproto.sim.campaign.sequence_diagram import draw
from inaproto.sim.campaign.worlds import WORDS, any_kind_of, draw_any
from inaproto.sim.frames.draw.swarm import summary
from inaproto.sim.frames.recorder import say_time
from inaproto.sim.kernel.world import RunResult
from inaproto.task_engines import Local, open_engine
from inaproto_hil.soak.block import Block, Telling, Told, run_block, tell
from inaproto_hil.soak.campaign import Asked, Campaign, Plan, parse_seeds, resume_campaign
from inaproto_hil.soak.differences import differences
from inaproto_hil.soak.folder import check_default, check_file, check_folder, claim
from inaproto_hil.soak.parts import PRODUCT, fingerprint, installed, program
from inaproto_hil.soak.stop import EXIT_STOPPED
from inaproto_hil.soak.tally import Failure, Tally
from inaproto_hil.soak.verdict import State, Verdict

SEEDS_DEFAULT: Final = "0:200"
MEASURE_SEEDS: Final = "0:50"
MEASURE_RUNS: Final = 5
OUT_DEFAULT: Final = Path("soak-out")
TOLD_MAX: Final = 20
"""Failing seeds of a campaign whose logs are kept."""
SHRUNK_MAX: Final = 4
"""How many of these are reduced; the first of each rule comes first."""
_LINE_EVERY_S: Final = 60.0
_STYLES: Final = {State.PASSED: "green", State.FAILED: "red", State.OPEN: "yellow", State.NONE: "yellow"}


@dataclass(frozen=True, slots=True)
class Options:
    seeds: str | None
    jobs: int | None
    minutes: float | None
    out: Path | None
    resume: bool
    anew: bool
    engine: str
    shrink: bool
    require_marks: bool | None
    variant: str | None
    world: str | None = None


# --- one seed


def one_seed(
    seed: str,
    world: str | None,
    digest: bool,
    out: Path | None,
    log_at: Path | None,
    shrink: bool,
    variant: str | None,
) -> int:
    if re.fullmatch(r"[\w.+-]{1,64}", seed) is None:
        raise ConfigError(f"--seed {seed!r}: write a number, or a word of letters, digits and . + - _")
    if log_at is not None:
        check_file("--log", log_at)
    if out is not None:
        check_folder("--out", out)
    elif not digest:
        check_default(OUT_DEFAULT)
    kind = WorldKind(world or WorldKind.SINGLE)
    with installed(variant):
        began = time.process_time()
        result = PRODUCT.run(draw_any(seed, kind))
        cpu_s = time.process_time() - began
    if digest:
        click.echo(result.digest)
    else:
        Console(highlight=False, soft_wrap=True).print(_world_table(result, cpu_s))
    if log_at is not None:
        with installed(variant):
            PRODUCT.record(result.config, program(variant)).write(log_at)
        click.echo(f"log: {log_at}", err=True)
    if result.violation is None:
        return 0
    if digest:
        click.echo(f"inaproto: broken rule: {result.violation.rule}: {result.violation.evidence}", err=True)
    else:
        told = tell(Telling(seed, str(out or OUT_DEFAULT), program(variant), shrink, kind))
        click.echo(told.text)
        if told.shrunk_text is not None:
            click.echo(told.shrunk_text)
    return 1


def _world_table(result: RunResult[Any], cpu_s: float) -> Table:
    steps = ", ".join(f"{name} {count}" for name, count in asdict(result.steps).items() if count)
    table = Table(show_header=False, box=None, pad_edge=False)
    words = WORDS.get(any_kind_of(result.config))
    rows = {
        "seed": result.config.seed,
        **(_rows_of(result) if words is None else words.rows(result)),
        "faults": ", ".join(str(fault.kind) for fault in result.config.faults) or "none",
        "weather": f"{sum(map(len, result.fates.values()))} of {result.frames} "
        f"{'frames' if words is None else 'messages'} hit",
        **_operations(result, "all-reduces" if words is None else words.done),
        "virtual time": say_time(result.virtual_ns),
        "events": str(result.events),
        "core steps": f"{result.steps.total} ({steps})",
        "steps/s": f"{result.steps.total / cpu_s:,.0f} in {cpu_s:.2f} s" if cpu_s else "-",
        "digest": result.digest,
        "verdict": "every rule was kept" if result.violation is None else "a rule was broken",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _operations(result: RunResult[Any], what: str) -> dict[str, str]:
    each = ", on all ranks together" if what == "all-reduces" else ", each looked at"
    return {what: f"{result.operations_done} results{each}"}


def _rows_of(result: RunResult[Any]) -> dict[str, str]:
    said = summary(result.config)
    switches = {"switches": f"{said['switches']} ({said['steering']} only steer)"}
    return ({} if result.config.topology is None else switches) | {
        "hosts": str(said["hosts"]),
        "jobs": "; ".join(
            f"{job['ranks']} ranks, {job['operations']} all-reduces, window {job['window']}"
            for job in said["jobs"]
        ),
    }


# --- measuring


def measure(seeds: str | None, world: str | None, variant: str | None) -> int:
    """Steps per second and core: the median of some runs of the same seeds in one process."""
    first, stop = parse_seeds(seeds or MEASURE_SEEDS)
    blocks = [Block(0, first, stop, variant, world or WorldKind.SINGLE)] * MEASURE_RUNS
    rates = []
    failures: list[Failure] = []
    for number, (_, tally) in enumerate(Local(1).outcomes(run_block, blocks), 1):
        rate = tally.steps_per_s or 0.0
        rates.append(rate)
        failures = tally.failures
        click.echo(
            f"run {number} of {MEASURE_RUNS}: {tally.steps_total:,} core steps, {tally.events:,} events, "
            f"{tally.cpu_s:.2f} s CPU: {rate:,.0f} steps/s"
        )
    click.echo(
        f"median {statistics.median(rates):,.0f} core steps/s per core "
        f"({min(rates):,.0f} to {max(rates):,.0f}), seeds {first}:{stop}, one process"
    )
    for failure in failures:
        click.echo(
            f"inaproto: seed {failure.seed}: broken rule: {failure.rule}: {failure.evidence}", err=True
        )
    return 1 if failures else 0


# --- campaigns


def campaign(options: Options) -> int:
    jobs = options.jobs or len(os.sched_getaffinity(0))
    ours = _opened(options)
    options = replace(options, variant=ours.plan.variant)
    with installed(options.variant):  # a wrong name is found here, not in every worker
        pass
    engine = open_engine(options.engine, jobs)
    already = ours.tally.seeds
    began = time.monotonic()
    console = Console(stderr=True, highlight=False)
    with _Watch(console, ours.plan, ours.tally) as watch:
        ours.run(engine, minutes=options.minutes, progress=watch.show)
    wall_s = time.monotonic() - began
    if ours.at_once:
        kept = f"; --resume --out {options.out} goes on" if options.out is not None else ""
        click.echo(f"inaproto: stopped at once after {ours.tally.seeds} seeds{kept}", err=True)
        return EXIT_STOPPED
    told = _tell_failures(ours, options, jobs, console)
    ours.differing = differences(ours.tally.failures, told)
    verdict = Verdict.of(ours, require_marks=options.require_marks)
    _print(ours, verdict, wall_s, ours.tally.seeds - already, told)
    if options.out is not None:
        console.print("drawing the report")
        from inaproto_hil.soak.report import write_report

        path = write_report(options.out, ours, verdict, told, wall_s)
        click.echo(f"report: {path}")
    return verdict.status


def _opened(options: Options) -> Campaign:
    """The campaign that the options mean, in a folder that is its own."""
    seeds: tuple[int, int | None] | None = None if options.seeds is None else parse_seeds(options.seeds)
    out = options.out
    if out is not None and options.resume:
        asked = Asked(version("inaproto"), fingerprint(), seeds, options.variant, options.world)
        ours = resume_campaign(out, asked)
        check_folder("--out", out)
        return ours
    if seeds is None:
        first, stop = parse_seeds(SEEDS_DEFAULT)
        seeds = first, stop if options.minutes is None else None
    if out is None:
        check_default(OUT_DEFAULT)
    else:
        with installed(options.variant):  # before anything is removed
            pass
        check_folder("--out", out)
        claim(out, anew=options.anew)
    kind = options.world or WorldKind.SINGLE
    return Campaign(Plan(*seeds, options.variant, version("inaproto"), fingerprint(), world=kind), out)


class _Watch:
    """Progress on standard error: a bar on a terminal, elsewhere a line a minute."""

    def __init__(self, console: Console, plan: Plan, before: Tally) -> None:
        self._console = console
        self._began = self._line_at = time.monotonic()
        self._before = before.seeds
        self._progress = Progress(
            TextColumn("soak"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rates]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._progress.add_task("", total=plan.seeds, completed=before.seeds, rates="")

    def __enter__(self) -> _Watch:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, tally: Tally) -> None:
        now = time.monotonic()
        rate = (tally.seeds - self._before) / max(1e-9, now - self._began)
        rates = f"{rate:.1f} seeds/s, {tally.steps_per_s or 0:,.0f} steps/s per core"
        rates += f", {len(tally.failures)} failures"
        self._progress.update(self._task, completed=tally.seeds, rates=rates)
        if not self._console.is_terminal and now - self._line_at >= _LINE_EVERY_S:
            self._line_at = now
            self._console.print(f"soak: {tally.seeds} seeds, {rates}")


def _tell_failures(ours: Campaign, options: Options, jobs: int, console: Console) -> list[Told]:
    failures = ours.tally.failures[:TOLD_MAX]
    if not failures:
        return []
    first_of_rule = {failure.rule: failure.seed for failure in reversed(failures)}
    in_turn = sorted(failures, key=lambda failure: failure.seed != first_of_rule[failure.rule])
    shrink = {failure.seed for failure in in_turn[:SHRUNK_MAX]} if options.shrink else set()
    if ours.by_signal:
        shrink = set()
    folder = str(options.out or OUT_DEFAULT)
    who = program(options.variant)
    world = ours.plan.world
    tellings = [Telling(one.seed, folder, who, one.seed in shrink, world) for one in failures]
    said = f"writing the logs of {len(tellings)} failures" + (f", reducing {len(shrink)}" if shrink else "")
    told: list[Told] = []
    with console.status(said) if console.is_terminal else nullcontext():
        try:
            told += Local(jobs).outcomes(tell, tellings)
        except (InaprotoError, RuntimeError) as error:  # the verdict and its reruns are still to be said
            click.echo(f"inaproto: {len(told)} of {len(tellings)} failures have logs: {error}", err=True)
    return sorted(told, key=lambda one: int(one.seed))


def _print(ours: Campaign, verdict: Verdict, wall_s: float, seeds_now: int, told: list[Told]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for one in told[:3]:
        click.echo(one.text)
        if one.shrunk_text is not None:
            click.echo(one.shrunk_text)
        click.echo()
    for seed, said in ours.differing.items():
        console.print(f"seed {seed} is not the same twice: {said}\n", markup=False)
    console.print(_summary_table(ours.tally, ours.plan.world, wall_s, seeds_now))
    for kind_of_fault, stops in ours.tally.longest_stops():
        console.print(
            f"stopped by {kind_of_fault}: {stops.jobs} jobs; seed {stops.seed}, {stops.said}", markup=False
        )
    declared = declared_of(WorldKind(ours.plan.world))
    seen = sum(name in ours.tally.marks for name in declared)
    console.print(f"marks: {seen} of {len(declared)} declared were seen")
    if verdict.marks_required:
        for name in verdict.unseen:
            console.print(f"  never: {name} ({declared[name]})", markup=False)
    elif verdict.unseen:
        console.print(f"  not seen: {'; '.join(verdict.unseen)}", markup=False)
    variant = f" --with {ours.plan.variant}" if ours.plan.variant else ""
    kind = of_kind(WorldKind(ours.plan.world))
    if ours.tally.failures:
        console.print("rerun the failures with:")
    for failure in ours.tally.failures[:100]:
        console.print(
            f"  inaproto soak{kind} --seed {failure.seed}{variant}    # {failure.rule}", markup=False
        )
    if len(ours.tally.failures) > 100:
        console.print(f"  and {len(ours.tally.failures) - 100} more")
    console.print(str(verdict), markup=False, style=_STYLES[verdict.state])


def _summary_table(tally: Tally, world: str, wall_s: float, seeds_now: int) -> Table:
    def rate(value: float | None) -> str:
        return "-" if value is None else f"{value:,.0f}"

    table = Table(show_header=False, box=None, pad_edge=False)
    rows = {
        "seeds": f"{tally.seeds} ({tally.faulted} with faults, {tally.weathered} in bad weather)",
        words.done
        if (words := WORDS.get(WorldKind(world)))
        else "all-reduces": f"{tally.operations:,} results",
        "messages" if world in WORD_KINDS else "frames": f"{tally.frames:,}",
        "virtual time": say_time(tally.virtual_ns),
        "core steps": f"{tally.steps_total:,} ("
        + ", ".join(f"{name} {count:,}" for name, count in tally.steps.items() if count)
        + ")",
        "steps/s per core": f"{rate(tally.steps_per_s)} over all, median of blocks "
        f"{rate(tally.steps_per_s_median)}",
        "wall time": f"{wall_s:.1f} s for {seeds_now} seeds",
        "failures": str(len(tally.failures)),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


# --- replay


def replay_log(path: Path, svg: Path | None, last: int, first: int | None, variant: str | None) -> int:
    log = read_log(path)
    if svg is not None and not log.of_frames:
        kind = any_kind_of(log.config)
        raise ConfigError(f"--svg: {path} is the log of a {kind} world, which has no frames to draw")
    if svg is not None:
        check_file("--svg", svg)
    if first is not None and first > len(log.records):
        raise ConfigError(f"--from {first}: the log ends with event {len(log.records)}")
    with installed(variant):
        done = run_again(log, PRODUCT, program(variant))
    if svg is not None:
        svg.write_text(draw(log, last=last, first=first), encoding="utf-8")
        click.echo(f"drawing: {svg}", err=True)
    click.echo(done.verdict())
    if not done.same and log.program.variant and variant is None:
        click.echo(f"The log was made with a variant: add --with {log.program.variant} to run that.")
    return 0 if done.same else 1
