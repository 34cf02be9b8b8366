"""``inaproto bench sharing``: the two rules of sharing by two-phase commit, over the same control worlds.

``equal-index`` is the paper's (MINA section IV-B): all seats of a group are locked, and a round is aborted
unless the seats of each job are at the same operation. ``by-index`` is ours: a decision names the operation
from which it holds, and nobody is locked. Each seed is one world (:mod:`inaproto.sim.control`), run once by
each rule, without faults and weather and again with them. Their times are virtual: these rows depend on the
seeds and the program alone. With ``--live`` daemons follow, on this machine and in its time, by index: they
know no other rule (:mod:`inaproto_hil.bench.sharing_live`). What is undefined is ``null`` in the JSON and
``-`` in the table.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from inaproto.errors import InvariantBroken
from inaproto.faults.weather import Weather
from inaproto.option_types import FiniteRange, NumberRange, ReportFile, write_report
from inaproto.sim.control.config import RULES, ControlConfig, Rule
from inaproto.sim.control.drawing import draw_control
from inaproto.sim.control.world import ControlResult, ControlWorld
from inaproto.units import MS
from inaproto_hil.rigs import environment

T = TypeVar("T")

VERSION: Final = 2
WEATHERS: Final = ("clear", "faults")
_CLEAR: Final = Weather()
_FURTHER: Final = (
    "lock stalls are counted once for each seat and operation that waited",
    "the live row counts what waits for a decision that concerns it",
)


def world_of(seed: int, rule: Rule, weather: str) -> ControlConfig:
    """The control world of ``seed`` under that rule; its planner only says whose turn is next."""
    config = replace(draw_control(seed), rule=rule, ahead=-1, revoked_ns=-1)
    return config if weather == "faults" else replace(config, faults=(), weather=_CLEAR)


def measure(
    first: int,
    stop: int,
    progress: Callable[[Sequence[tuple[str, int]]], Iterable[tuple[str, int]]] = iter,
) -> dict[str, Any]:
    """The whole measurement as the JSON document of the command."""
    found: dict[tuple[str, Rule], list[ControlResult]] = {
        (weather, rule): [] for weather in WEATHERS for rule in RULES
    }
    for weather, seed in progress([(weather, seed) for weather in WEATHERS for seed in range(first, stop)]):
        for rule in RULES:
            result = ControlWorld(world_of(seed, rule, weather)).run()
            if result.violation is not None:
                raise InvariantBroken(f"seed {seed}, {rule}, {weather}: {result.violation.rule}")
            found[weather, rule].append(result)
    rows = []
    for weather in WEATHERS:
        ended = _ended_by_both(*(found[weather, rule] for rule in RULES))
        rows += [_row(weather, rule, found[weather, rule], ended) for rule in RULES]
    return {
        "version": VERSION,
        "benchmark": "sharing",
        "config": {"seeds": [first, stop], "rules": list(RULES), "weathers": list(WEATHERS)},
        "env": environment.describe(),
        "rows": rows,
        "notes": list(_FURTHER),
    }


def _ended_by_both(one: Sequence[ControlResult], other: Sequence[ControlResult]) -> list[tuple[str, ...]]:
    """For each world, the jobs that ended under both rules: only their times can be compared."""
    return [
        tuple(sorted(mine.measures.durations_ns.keys() & theirs.measures.durations_ns.keys()))
        for mine, theirs in zip(one, other, strict=True)
    ]


def _row(
    weather: str, rule: Rule, results: Sequence[ControlResult], ended: Sequence[tuple[str, ...]]
) -> dict[str, Any]:
    def total(name: str) -> int:
        return sum(getattr(result.measures, name) for result in results)

    rounds, aborted, turns = total("rounds"), total("aborted"), total("turns")
    operations = total("ina_operations") + total("chain_operations")
    stalls, stalled_ns = total("stalls"), total("stalled_ns")
    durations = [
        result.measures.durations_ns[job] / MS
        for result, jobs in zip(results, ended, strict=True)
        for job in jobs
    ]
    return {
        "weather": weather,
        "rule": rule,
        "worlds": len(results),
        "operations": operations,
        "rounds": rounds,
        "committed": total("committed"),
        "aborted": aborted,
        "abort_rate": _ratio(aborted, rounds),
        "turns": turns,
        "rounds_per_turn": _ratio(rounds, turns),
        "doubts": total("doubts"),
        "lock_stalls": stalls,
        "lock_stalled_ms": stalled_ns / MS,
        "lock_stall_mean_us": _ratio(stalled_ns / 1000, stalls),
        "lock_stall_max_ms": max((result.measures.stalled_max_ns for result in results), default=0) / MS,
        "lock_stall_us_per_operation": _ratio(stalled_ns / 1000, operations),
        "ina_share": _ratio(total("ina_operations"), operations),
        "rescued": total("rescued"),
        "jobs": len(durations),
        "job_median_ms": statistics.median(durations) if durations else None,
        "job_mean_ms": statistics.fmean(durations) if durations else None,
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


@click.command("sharing")
@click.option(
    "--seeds",
    default="200",
    show_default=True,
    type=NumberRange(),
    metavar="N|A:B",
    help="Seeds 0 to N-1, or A to B-1: the worlds.",
)
@click.option(
    "--live",
    default=0,
    show_default=True,
    type=click.IntRange(0, 100),
    metavar="N",
    help="Also run real daemons so often, by index; about half a minute a run.",
)
@click.option("--steps", default=12, show_default=True, type=click.IntRange(2), help="Live: of each job.")
@click.option(
    "--slower", default=4.0, show_default=True, type=FiniteRange(0.1, 1000), help="Live: than measured."
)
@click.option(
    "--json",
    "json_at",
    type=ReportFile(),
    metavar="FILE",
    help="Report file; - is stdout (the table: stderr).",
)
def sharing_bench(
    *, seeds: tuple[int, int], live: int, steps: int, slower: float, json_at: str | None
) -> None:
    """The paper's rule of equal indices and ours by index: aborted rounds, and operations that locks stall.

    Examples: inaproto bench sharing --seeds 100 --json -; inaproto bench sharing --live 5

    The same control worlds as of inaproto soak --world control, by each rule, without faults and weather and
    with them. Times are virtual there: those rows depend on the seeds and the program alone. Live, three jobs
    on four hosts and two racks share switches that take one job at a time, by index and this
    machine's clock.
    """
    console = Console(stderr=True, highlight=False)

    def shown(turns: Sequence[T]) -> Iterable[T]:
        return track(turns, "sharing", console=console, disable=not console.is_terminal)

    report = measure(*seeds, shown)
    if live:
        from inaproto_hil.bench.sharing_live import measure_live

        report["rows"].append(measure_live(live, steps, slower, shown))
        report["config"]["live"] = {"runs": live, "steps": steps, "slower": slower}
    console = Console(stderr=json_at == "-", highlight=False)
    _show(console, report)
    write_report(report, json_at)
    wrong = [text for row in report["rows"] for text in wrong_with(row)]
    for text in wrong:
        console.print(text, style="red")
    if wrong:
        raise SystemExit(1)


def wrong_with(row: dict[str, Any]) -> list[str]:
    """Say what is wrong with a live one: results that are not numpy's, or that nothing can be said of it."""
    if row["weather"] != "live":
        return []
    of = f"{row['rule']}, {row['weather']}"
    found = [f"{of}: {row['wrong']} results are wrong"] if row["wrong"] else []
    return found + [f"{of}: no {name} were seen" for name in ("operations", "rounds") if not row[name]]


_COLUMNS: Final = {
    "worlds": ("worlds", "{:,}"),
    "rounds": ("rounds", "{:,}"),
    "abort_rate": ("aborted", "{:.1%}"),
    "rounds_per_turn": ("rounds per turn", "{:.2f}"),
    "doubts": ("doubts", "{:,}"),
    "lock_stalls": ("stalls by locks", "{:,}"),
    "lock_stalled_ms": ("all stalls, ms", "{:,.1f}"),
    "lock_stall_mean_us": ("mean stall, us", "{:,.0f}"),
    "lock_stall_us_per_operation": ("stall/all-reduce, us", "{:,.1f}"),
    "ina_share": ("by INA", "{:.1%}"),
    "rescued": ("rescued", "{:,}"),
    "wrong": ("wrong results", "{:,}"),
    "job_median_ms": ("median of jobs, ms", "{:.1f}"),
    "step_median_ms": ("median of steps, ms", "{:.1f}"),
}
"""What people read, for each name in the report."""


def _show(console: Console, report: dict[str, Any]) -> None:
    """A column for each row of the report: there are more figures than rows, and lines have 80 characters."""
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for row in report["rows"]:
        heading = "\n".join([*row["rule"].split("-"), row["weather"]])
        table.add_column(heading, justify="right", no_wrap=True)
    for name, (text, form) in _COLUMNS.items():
        values = [row.get(name) for row in report["rows"]]
        table.add_row(text, *("-" if value is None else form.format(value) for value in values))
    console.print(table)
