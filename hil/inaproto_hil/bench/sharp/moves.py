"""The command ``inaproto bench sharp-moves``: what it costs to give a tree of SHARP back and to get another.

Two jobs under load swap their trees again and again, as a controller orders it (MINA, section IV-A). The
library is the double, which waits as long in ``init`` and ``finalize`` as an acquisition and a release took
in the paper (section V-D), times a scale. So what stands above these times is ours.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import click
import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from inaproto.errors import Unsupported
from inaproto.option_types import FiniteRange, ReportFile, write_report
from inaproto_hil.demo.sharp import Config, Play, swap
from inaproto_hil.rigs.cluster import ClusterError
from inaproto_hil.rigs.environment import describe
from inaproto_hil.rigs.sharp_cluster import SharpCluster
from inaproto_hil.rigs.sharp_jobs import PATH

PAPER_MS: Final = {"release_s": 125.0, "acquire_s": 294.0, "total_s": 559.0}
"""Means of 500 runs on four hosts and five HDR switches (MINA, section V-D)."""
PATIENCE_MS: Final = 60_000
"""So long an all-reduce by SHARP may take: on a machine that is busy none is redone for being slow."""
STEPS: Final = 10
"""All-reduces by SHARP of each job between two swaps."""


@click.command("sharp-moves")
@click.option(
    "--swaps", default=20, show_default=True, type=click.IntRange(1, 10_000), help="Two moves each."
)
@click.option(
    "--scale", default=1.0, show_default=True, type=FiniteRange(0.0, 10.0), help="Of the paper's times."
)
@click.option("--json", "json_at", type=ReportFile(), help="Report file; - is stdout.")
def sharp_moves(swaps: int, scale: float, json_at: str | None) -> None:
    """Time how two running jobs swap their trees in a double of SHARP, again and again.

    Beside each time stands the paper's, on switches. Every all-reduce in between is checked.
    """
    console = Console(stderr=True)
    columns = TextColumn("swaps"), BarColumn(), TextColumn("{task.completed}/{task.total}")
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
            task = bar.add_task("swaps", total=swaps)
            report = measure(swaps, scale, lambda done: bar.update(task, completed=done))
    except (Unsupported, ClusterError) as error:
        click.echo(f"inaproto: {error}", err=True)
        sys.exit(1)
    Console(stderr=json_at == "-").print(_table(report))
    write_report(report, json_at)
    sys.exit(0 if report["is_right"] else 1)


def measure(swaps: int, scale: float, progress: Callable[[int], object]) -> dict[str, Any]:
    """The report. Raises ``Unsupported`` without a C compiler or outside of a checkout, ``ClusterError``."""
    with SharpCluster(patience_ms=PATIENCE_MS) as cluster:
        found = trio.run(partial(_run, cluster, swaps, scale, progress))
    moves = found.pop("moves")
    return {
        "version": 1,
        "config": {"swaps": swaps, "scale": scale, "jobs": 2, "hosts_of_a_job": 2},
        "environment": describe(),
        **found,
        "moves": moves,
        "rows": [_row(name, [move[name] for move in moves], scale) for name in PAPER_MS],
    }


async def _run(
    cluster: SharpCluster, swaps: int, scale: float, progress: Callable[[int], object]
) -> dict[str, Any]:
    play = Play(cluster, Config(steps=STEPS, scale=scale), lambda line: None)
    cluster.double.set(delay_permille=round(1000 * scale))
    moves: list[Mapping[str, Any]] = []
    async with trio.open_nursery() as nursery:
        jobs = await play.begin(nursery, "red"), await play.begin(nursery, "blue")
        for done in range(swaps):
            for job in jobs:
                await job.until_by(PATH, steps=STEPS)
            await swap(cluster, jobs)
            moves += (await play.status())["places"]["moves"][-2:]
            progress(done + 1)
        for job in jobs:
            await play.note(job)
            job.finish()
    result = await play.result()
    is_right = result["equal_on_all_ranks"] and not result["hangs"] and not result["silent"]
    kept = (
        "equal_on_all_ranks",
        "all_reduces",
        "sharp_share",
        "fallbacks",
        "redone_by_code",
        "hangs",
        "silent",
    )
    return {"moves": moves, "is_right": is_right and len(moves) == 2 * swaps} | {
        name: result[name] for name in kept
    }


def _row(name: str, seconds: Sequence[float], scale: float) -> dict[str, Any]:
    ms = sorted(1000 * each for each in seconds)
    cuts = statistics.quantiles(ms, n=100, method="inclusive") if len(ms) > 1 else ms * 99
    return {
        "what": name.removesuffix("_s"),
        "samples": len(ms),
        "mean_ms": statistics.fmean(ms),
        "p50_ms": cuts[49],
        "p95_ms": cuts[94],
        "p99_ms": cuts[98],
        "paper_ms": PAPER_MS[name],
        "library_ms": {"release_s": 125.0, "acquire_s": 294.0, "total_s": 419.0}[name] * scale,
    }


def _table(report: Mapping[str, Any]) -> Table:
    title = (
        f"{report['all_reduces']} all-reduces, {report['fallbacks']} of them not by SHARP, "
        f"{sum(map(len, report['redone_by_code'].values()))} redone, hangs {report['hangs']}"
    )
    table = Table("", "mean (ms)", "p50", "p95", "p99", "library alone", "paper, mean", title=title)
    for row in report["rows"]:
        figures = (row[name] for name in ("mean_ms", "p50_ms", "p95_ms", "p99_ms", "library_ms", "paper_ms"))
        table.add_row(row["what"], *(f"{figure:.0f}" for figure in figures))
    return table
