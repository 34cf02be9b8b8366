"""The command ``inaproto bench congestion``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from inaproto.core.rdma.dcqcn import DcqcnConfig
from inaproto.option_types import ReportFile, write_report
from inaproto.units import MS
from inaproto_hil.bench.congestion.measure import run
from inaproto_hil.bench.congestion.scenarios import Kind, Scenario, Setup
from inaproto_hil.rigs.environment import describe

VERSION: Final = 1
_CAPTION: Final = (
    "Gbit/s: payload to each bottleneck. share: what the compared flow gets, of its fair share. queue: what "
    "frames to a bottleneck find before them, the mean and the 99th of a hundred."
)
OTHERS: Final = 3
"""Plain flows at each bottleneck, beside the one that is compared."""


def scenarios_of(hosts: int, kinds: Sequence[Kind]) -> list[Scenario]:
    """With DCQCN and without. A quarter of the hosts are a ring's where it shares links."""
    ring = max(2, hosts // (1 + OTHERS))
    many = sorted({1, max(1, ring // 4), ring} if ring * (1 + OTHERS) <= hosts else {1})
    found = []
    for kind in kinds:
        if kind in (Kind.PLAIN, Kind.SHARED):
            alike = [
                Scenario(kind=kind, dcqcn=True, bottlenecks=k, others=OTHERS, ring_hosts=ring) for k in many
            ]
        else:
            alike = [Scenario(kind=kind, dcqcn=True, others=0)]
        for one in alike:
            found += [one, Scenario(**{**asdict(one), "kind": kind, "dcqcn": False})]
    return found


@click.command(
    "congestion",
    epilog="Example: inaproto bench congestion --ms 20 --picture congestion.png --json report.json",
)
@click.option(
    "--hosts",
    default=64,
    show_default=True,
    type=click.IntRange(8, 250),
    help="Simulated ones, at one switch.",
)
@click.option(
    "--ms",
    default=10,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Of simulated time that are measured, after 5 in which rates settle. Of scenarios where nothing "
    "settles, 1 at most.",
)
@click.option(
    "--scenario",
    "kinds",
    multiple=True,
    type=click.Choice([str(kind) for kind in Kind]),
    help="One of them; may be given several times. [default: all]",
)
@click.option("--rate-gbit", default=40, show_default=True, type=click.IntRange(1, 400), help="Of each link.")
@click.option("--buffer-kb", default=12_000, show_default=True, type=click.IntRange(10), help="Of each link.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="Of all that is drawn.")
@click.option(
    "--processes",
    default=0,
    type=click.IntRange(0, 256),
    help="Scenarios that run at once. [default: one for each CPU]",
)
@click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path), help="PNG or SVG file, by its name."
)
@click.option("--json", "json_at", type=ReportFile(), help="Report file; - is stdout.")
def congestion(
    hosts: int,
    ms: int,
    kinds: Sequence[str],
    rate_gbit: int,
    buffer_kb: int,
    seed: int,
    processes: int,
    picture: Path | None,
    json_at: str | None,
) -> None:
    """Say what congestion control makes of a ring through a switch, and what the ring does to others.

    Hosts, NICs, links and a switch run in the deterministic world, with DCQCN as it was published for links
    of 40 Gbit/s, and without. No daemon, no network and no privilege is needed, and a seed gives the same
    figures everywhere. With the defaults it takes some minutes of two CPUs.

    \b
    incast  all hosts but one write to that one: no aggregation
    ring    an all-reduce of all hosts, summed by the switch
    racks   the same over two levels of switches
    plain   three flows and a fourth lead to one host: at 1, at some and at all hosts of a ring
    shared  the same, and the fourth is a flow of a ring that the switch sums

    "share" is what the fourth flow gets of what each would get if all got the same. NetReduce says that
    congestion control is the NICs' own and goes on as it did: then the ring's is that of the plain flow.
    """
    names = [Kind(kind) for kind in kinds] or list(Kind)
    setup = Setup(
        hosts=hosts,
        duration_ns=ms * MS,
        rate_bps=rate_gbit * 10**9,
        buffer_bytes=buffer_kb * 1000,
        seed=seed,
        dcqcn=DcqcnConfig(line_rate_bps=rate_gbit * 10**9),
    )
    scenarios = scenarios_of(hosts, names)
    console = Console(stderr=json_at == "-")
    rows = _play(scenarios, setup, processes or os.cpu_count() or 1, console)
    console.print(_table(rows))
    report = {
        "version": VERSION,
        "benchmark": "congestion",
        "config": asdict(setup),
        "environment": describe(),
        "rows": rows,
    }
    write_report(report, json_at)
    if picture is not None:
        from inaproto_hil.bench.congestion.drawing import drawing

        picture.write_bytes(drawing(report, picture.suffix.removeprefix(".").lower() or "png"))


def _play(
    scenarios: Sequence[Scenario], setup: Setup, processes: int, console: Console
) -> list[dict[str, Any]]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    rows: dict[int, dict[str, Any]] = {}
    with (
        Progress(*columns, console=console) as progress,
        ProcessPoolExecutor(min(processes, len(scenarios)), mp_context=get_context("spawn")) as pool,
    ):
        task = progress.add_task("scenarios", total=len(scenarios))
        waiting: dict[Future[dict[str, Any]], int] = {
            pool.submit(run, scenario, setup): number for number, scenario in enumerate(scenarios)
        }
        for done in as_completed(waiting):
            rows[waiting[done]] = done.result()
            progress.update(task, advance=1, description=rows[waiting[done]]["scenario"])
    return [rows[number] for number in range(len(scenarios))]


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), caption=_CAPTION, caption_justify="left")
    table.add_column("scenario", no_wrap=True)
    for name in ("DCQCN", "Gbit/s", "Jain", "share", "queue KB", "99 %", "marked", "CNPs", "lost"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["scenario"],
            "on" if row["dcqcn"] else "off",
            f"{row['goodput_gbit_s']:.1f}",
            f"{row['jain']:.3f}" if row["jain"] else "-",
            f"{row['of_fair_share']:.3f}" if row["of_fair_share"] is not None else "-",
            *(f"{row[name] / 1000:,.0f}" for name in ("queue_bytes_mean", "queue_bytes_99")),
            f"{row['marked']:,}",
            f"{row['cnps']:,}",
            f"{row['lost']:,}",
        )
    return table
