"""The command ``inaproto bench paring-live``."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click
import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from inaproto.option_types import FiniteRange, ReportFile, write_report
from inaproto_controller.planning.paring.planner import Mode
from inaproto_hil.bench.paring_live import drawn
from inaproto_hil.bench.paring_live.drawn import Arrival
from inaproto_hil.bench.paring_live.live import EACH_BYTES, Campaign, play
from inaproto_hil.bench.paring_live.replay import Tally, replayed
from inaproto_hil.rigs.environment import describe
from inaproto_hil.rigs.irregular_network import Network, running_network

VERSION: Final = 1
REPORT_MS: Final = 500
"""Agents that have nothing new say so as often, and all of them share this process."""
EXIT_DIFFERS: Final = 1
EXACT_S: Final = 10.0
"""Time that a proof may take, for each tree."""
PLANNERS: Final = (
    ("together, fast", Mode.FAST, True),
    ("together, exact", Mode.EXACT, True),
    ("hosts first, then the tree", Mode.FAST, False),
)
"""Those that are played again without daemons, on the same arrivals."""


@click.command(
    "paring-live", epilog="Example: inaproto bench paring-live --jobs 200 --seed 1 --json report.json"
)
@click.option("--jobs", default=200, show_default=True, type=click.IntRange(1, 10_000), help="That come.")
@click.option(
    "--seed",
    default=1,
    show_default=True,
    type=click.IntRange(0),
    help="Of all that is drawn.",
)
@click.option("--switches", default=12, show_default=True, type=click.IntRange(3, 64), help="Switch daemons.")
@click.option("--hosts", default=20, show_default=True, type=click.IntRange(2, 200), help="Host daemons.")
@click.option(
    "--deadline-s",
    default=7200.0,
    show_default=True,
    type=FiniteRange(1, 1_000_000),
    help="For the part with daemons.",
)
@click.option("--json", "json_at", type=ReportFile(), help="Report file; - is stdout.")
def paring_live(
    jobs: int, seed: int, switches: int, hosts: int, deadline_s: float, json_at: str | None
) -> None:
    """Place drawn jobs on an irregular network of switch daemons by PARING, and count what its links carry.

    A controller (placement = paring), switch and host daemons run in this process, over sockets. Jobs come
    one after the other, and each leaves after some further ones. Of each, the bytes that its links carried
    towards the root are compared with those of the plan that chose its hosts; after each, what all trees take
    of the switches with their capacities. Then the same arrivals are played again without daemons, by other
    planners.

    Exit status: 0 if all is as planned and no capacity was exceeded, else 1.
    """
    network = drawn.network(seed, switches=switches, hosts=hosts)
    coming = drawn.arrivals(seed, jobs, hosts=hosts)
    console = Console(stderr=json_at == "-")
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    logging.getLogger("inaproto").setLevel(logging.ERROR)
    with (
        tempfile.TemporaryDirectory(prefix="paring-") as place,
        Progress(*columns, console=console) as progress,
    ):
        live = progress.add_task("daemons", total=jobs)
        campaign = trio.run(
            _play, network, coming, Path(place), deadline_s, lambda: progress.update(live, advance=1)
        )
        tallies = {}
        for name, mode, is_joint in PLANNERS:
            again = progress.add_task(name, total=jobs)
            tallies[name] = tally = Tally()
            trees = network.live_trees(Path(place), mode=mode, seconds=EXACT_S)
            for _, tree in replayed(trees, network.hosts, coming, is_joint=is_joint):
                tally.add(tree)
                progress.update(again, advance=1)
    told = summary(campaign)
    rows = {"live": of_live(campaign)} | {name: of_tally(tally) for name, tally in tallies.items()}
    console.print(_table(rows))
    console.print(
        f"{told['as_planned']} of {told['with_tree']} jobs with a tree: every link carried what was planned, "
        f"{told['links']} links, {told['bytes']:,} bytes, for {EACH_BYTES:,} of each host\n"
        f"capacities: {campaign.looks} looks, exceeded {len(campaign.over)} times; {campaign.waited} jobs "
        "waited for hosts"
    )
    config = {"jobs": jobs, "seed": seed, "switches": switches, "hosts": hosts, "exact_s": EXACT_S}
    report = {"version": VERSION, "benchmark": "paring-live", "config": config, "environment": describe()}
    network_told = {"cluster": network.cluster(), "rate_cap_gbit_s": str(network.rate_cap)}
    details = {"over": campaign.over, "jobs": [job.document() for job in campaign.jobs]}
    write_report({**report, "network": network_told, "planners": rows, "summary": told, **details}, json_at)
    if not told["is_right"]:
        sys.exit(EXIT_DIFFERS)


async def _play(
    network: Network,
    coming: Sequence[Arrival],
    place: Path,
    deadline_s: float,
    tell: Callable[[], None],
) -> Campaign:
    async with running_network(
        network, place, deadline_s=deadline_s, placement="paring", report_ms=REPORT_MS
    ) as on:
        return await play(on, coming, tell=lambda job: tell())


def summary(campaign: Campaign) -> dict[str, Any]:
    """Whether all is as it should be, and in how many cases that was seen."""
    planned = [job for job in campaign.jobs if job.has_tree]
    as_planned = sum(job.is_as_planned for job in planned)
    return {
        "jobs": len(campaign.jobs),
        "with_tree": len(planned),
        "as_planned": as_planned,
        "wrong": sum(job.wrong for job in campaign.jobs),
        "links": sum(len(job.expected) for job in planned),
        "bytes": sum(sum((job.measured or {}).values()) for job in planned),
        "looks": campaign.looks,
        "waited": campaign.waited,
        "is_right": as_planned == len(planned)
        and not campaign.over
        and not any(job.wrong for job in campaign.jobs),
    }


def of_live(campaign: Campaign) -> dict[str, Any]:
    tally = Tally(len(campaign.jobs))
    for job in campaign.jobs:
        if job.rate is not None:
            tally.rates.append(job.rate)
            tally.links.append(job.planned["links"])
    return of_tally(tally)


def of_tally(tally: Tally) -> dict[str, Any]:
    return {
        "jobs": tally.jobs,
        "with_tree": len(tally.rates),
        "admitted": tally.admitted,
        "rate_gbit_s": tally.rate,
        "links": tally.links_each,
    }


def _table(rows: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="jobs on an irregular network, by who planned", box=None)
    table.add_column("planner")
    for name in ("jobs", "with a tree", "admitted", "Gbit/s", "links"):
        table.add_column(name, justify="right")
    for name, row in rows.items():
        table.add_row(
            name,
            str(row["jobs"]),
            str(row["with_tree"]),
            _shown(row["admitted"], "{:.1%}"),
            _shown(row["rate_gbit_s"], "{:.3f}"),
            _shown(row["links"], "{:.2f}"),
        )
    return table


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
