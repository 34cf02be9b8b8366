"""The command ``inaproto bench controller``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from inaproto.errors import InaprotoError
from inaproto.option_types import FiniteRange, ReportFile, write_report
from inaproto_hil.bench.controller import curves
from inaproto_hil.bench.controller.measure import PHASES, Load, measure
from inaproto_hil.rigs.cluster import ClusterError
from inaproto_hil.rigs.environment import describe
from inaproto_hil.rigs.postgresql_server import running_postgresql
from inaproto_hil.rigs.swarm import quiet_agents


class _Counts(click.ParamType[tuple[int, ...]]):
    name = "N,N,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(int(one) for one in str(value).split(","))
        except ValueError:
            found = ()
        if not found or min(found) < 1 or max(found) > 1 << 16:
            self.fail(f"{value!r}: write for example 1024, or 64,256,1024", param, ctx)
        return found


@click.command(
    "controller",
    epilog="Example: inaproto bench controller --hosts 64,256,1024 --plot curves.svg --json curves.json",
)
@click.option("--hosts", default="1024", show_default=True, type=_Counts(), help="Hosts, by commas.")
@click.option(
    "--jobs", type=_Counts(), help="Jobs that come, for each of --hosts or all; by default a quarter."
)
@click.option(
    "--pair", is_flag=True, help="Two controllers on a PostgreSQL that is started for it; one is killed."
)
@click.option(
    "--per-second", default=100.0, show_default=True, type=FiniteRange(1, 10_000), help="Submissions."
)
@click.option(
    "--rounds", default=5, show_default=True, type=click.IntRange(1, 100), help="Turns, and moves of a tree."
)
@click.option(
    "--restarts",
    default=3,
    show_default=True,
    type=click.IntRange(1, 20),
    help="Controllers that are killed.",
)
@click.option(
    "--batches", default=2, show_default=True, type=click.IntRange(1, 100), help="Times that all jobs come."
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Curves, as SVG.")
@click.option("--json", "json_at", type=ReportFile(), help="Report file; - is stdout.")
def controller_bench(
    hosts: tuple[int, ...],
    jobs: tuple[int, ...] | None,
    pair: bool,
    per_second: float,
    rounds: int,
    restarts: int,
    batches: int,
    plot: Path | None,
    json_at: str | None,
) -> None:
    """Measure a controller whose cluster has many hosts.

    The controller, its store and all conversations are real; the agents are those of host and switch daemons,
    as many as the cluster has, in one process beside it, which takes as much of a CPU as the controller.
    Submissions come at fixed times, whatever becomes of those before. A job is placed when the last of its
    hosts has heard of its seat. A round is from the first host that is asked until the last one has heard
    of its turn, in a job with a seat on every host. All are back when each agent has found the controller
    that was started after one was killed. With several sizes, exponents of costs are shown with their 95 %
    intervals.
    """
    loads = [
        Load(count, wanted, per_second, rounds=rounds, moves=rounds, restarts=restarts, batches=batches)
        for count, wanted in _sizes(hosts, jobs)
    ]
    rows: list[dict[str, Any]] = []
    failed = ""
    console = Console(stderr=json_at == "-")
    bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console)
    try:
        with bar as progress, quiet_agents():
            task = progress.add_task("starts", total=len(loads) * len(PHASES))

            for load in loads:

                def tell(phase: str, load: Load = load) -> None:
                    progress.update(task, advance=1, description=f"{load.hosts} hosts: {phase}")

                with ExitStack() as stack:
                    database = stack.enter_context(running_postgresql()) if pair else ""
                    rows.append(measure(load, database=database, tell=tell))
    except* (ClusterError, InaprotoError, trio.TooSlowError) as errors:
        failed = _told(loads[len(rows)], errors)
    over = "jobs" if len(set(hosts)) == 1 else "hosts"
    growth = curves.exponents(rows, over) if len(rows) > 1 else {}
    if rows:
        console.print(_table(rows))
    if growth:
        console.print(_growth(growth, over))
    if plot is not None and rows:
        plot.write_text(curves.drawing(rows, over), encoding="utf-8")
    config = {"loads": [_config(load) for load in loads], "pair": pair}
    report = {"version": 1, "benchmark": "controller", "config": config, "environment": describe()}
    write_report({**report, "rows": rows, "over": over, "exponents": growth, "failed": failed}, json_at)
    if failed:
        click.echo(f"inaproto: {failed}", err=True)
        sys.exit(1)


def _told(load: Load, errors: BaseExceptionGroup[Exception]) -> str:
    """Why this load was not measured; those before it were."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{load.hosts} hosts, {load.jobs} jobs: {str(error) or type(error).__name__}"


def _config(load: Load) -> dict[str, Any]:
    return {name: getattr(load, name) for name in Load.__dataclass_fields__}


def _sizes(hosts: tuple[int, ...], jobs: tuple[int, ...] | None) -> list[tuple[int, int]]:
    """Raises ``BadParameter``."""
    wanted = jobs or tuple(max(1, one // 4) for one in hosts)
    if len(hosts) == 1:
        hosts *= len(wanted)
    if len(wanted) == 1:
        wanted *= len(hosts)
    if len(wanted) != len(hosts):
        raise click.BadParameter(f"--jobs: {len(wanted)} numbers for {len(hosts)} of --hosts; one is for all")
    for one, count in zip(hosts, wanted, strict=True):
        if count > one:
            raise click.BadParameter(f"--jobs {count}: at most one for each of the {one} hosts")
    return list(zip(hosts, wanted, strict=True))


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="controllers of many hosts" + (", in pairs" if rows[0]["pair"] else ""), box=None)
    for name in (
        *("hosts", "jobs", "durable\np99 ms", "placed\np99 ms", "round\nms", "longest\nms", "move\nms"),
        *("all back\nms", "loop\nms", "RSS\nMiB", "CPU\ns"),
    ):
        table.add_column(name, justify="right")
    for row in rows:
        times = {name: of(row) for name, of in curves.TIMES.items()}
        cpu = [row[name]["controller_cpu_s"] for name in ("arrival", "jobs", "turns", "moves")]
        table.add_row(
            f"{row['hosts']:,}",
            f"{row['jobs']['count']:,}",
            *(f"{times[name]:.0f}" for name in ("durable, p99", "placed, p99", "round of a turn")),
            f"{row['turns']['round_ms']['max']:.0f}",
            *(f"{times[name]:.0f}" for name in ("move of a tree", "all back", "longest step of the loop")),
            f"{row['rss_bytes'] / 2**20:.0f}",
            f"{sum(one or 0.0 for one in cpu):.1f}",
        )
    return table


def _growth(growth: dict[str, Any], over: str) -> Table:
    table = Table(title=f"costs grow with {over} to the power of", box=None)
    table.add_column("cost")
    table.add_column("exponent", justify="right")
    table.add_column("95 %", justify="right")
    for name, one in growth.items():
        width = one["half_width"]
        table.add_row(name, f"{one['exponent']:.2f}", "-" if width is None else f"± {width:.2f}")
    return table
