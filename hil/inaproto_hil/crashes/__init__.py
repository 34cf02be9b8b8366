"""``inaproto crashes``: controllers are killed at any moment while jobs train; do they keep their word?"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from inaproto.errors import Unsupported
from inaproto.option_types import FiniteRange, FolderToMake, NumberRange, ReportFile, write_report
from inaproto_hil.soak.stop import EXIT_STOPPED

if TYPE_CHECKING:
    from inaproto_hil.crashes.campaign import Findings, Plan

KILLS: Final = {"file": 200, "postgresql": 50}
SEED_MAX: Final = (1 << 63) - 1
LINE_EVERY: Final = 10
"""Kills, where there is no terminal."""


@click.command(
    short_help="Kill controllers while jobs train.",
    epilog="Examples: inaproto crashes --json crashes.json; inaproto crashes --store postgresql; "
    "inaproto crashes --seed 7 --kills 120:124 --baseline 0",
)
@click.option("--seed", type=click.IntRange(0, SEED_MAX), default=1, show_default=True)
@click.option(
    "--kills",
    type=NumberRange(),
    metavar="N|A:B",
    help="Kills 0 to N-1, or A to B-1: each has its moment by the seed and its number.  [default: 200, of a "
    "pair 50]",
)
@click.option(
    "--store",
    type=click.Choice(["file", "postgresql"]),
    default="file",
    show_default=True,
    help="file: one controller. postgresql: two, of which the leader is killed; the server is started here.",
)
@click.option(
    "--baseline",
    type=click.IntRange(0),
    help="Before that, so many kills of a controller that nobody is connected to.  [default: a quarter]",
)
@click.option(
    "--slower",
    type=FiniteRange(0.1, 1000),
    default=4.0,
    show_default=True,
    help="Training steps, than the models were measured.",
)
@click.option(
    "--lease-ms",
    type=click.IntRange(100, 3_600_000),
    default=3000,
    show_default=True,
    help="A host that the controller does not hear of for so long is lost; more on a busy machine.",
)
@click.option(
    "--agents",
    type=click.IntRange(0, 4096),
    default=0,
    show_default=True,
    help="Hosts beside those that train, each an agent without a daemon, on which more jobs run.",
)
@click.option("--out", type=FolderToMake(), help="Directory of the daemons' logs, kept.")
@click.option(
    "--json",
    "json_at",
    type=ReportFile(),
    metavar="FILE",
    help="Report file; - is stdout (the table: stderr).",
)
def crashes(
    seed: int,
    kills: tuple[int, int] | None,
    store: str,
    baseline: int | None,
    slower: float,
    lease_ms: int,
    agents: int,
    out: Path | None,
    json_at: str | None,
) -> None:
    """Kill controllers of a cluster of its own, at any moment, while jobs train, and check all they promised.

    The cluster is that of inaproto demo sharing: real daemons on this machine, two racks, four jobs that
    share the switches by turns, while clients submit jobs, cancel them and run them. No other controller is
    touched.
    A kill is SIGKILL: some at any moment, others aimed at a vote, a decision, a write of the store or an
    answer to a client; what was on its way is lost. Checked are what clients were answered, what passed
    between controllers and daemons, every result against numpy, how long training stood still against the
    same with nobody's controller killed, and that nothing is anybody's when all jobs are over.

    Exit status 1: a promise was broken; training stood still for longer than the lease of its seats that was
    in force then, and did so more often than without kills; or too little was seen for that to say anything.
    """
    from inaproto_hil.crashes.campaign import Plan

    first, stop = kills or (0, KILLS[store])
    decoys = (stop - first) // 4 if baseline is None else baseline
    plan = Plan(first, stop, decoys, seed, slower, lease_ms, agents=agents)
    try:
        found = _played(plan, store, out)
    except KeyboardInterrupt:
        click.echo("inaproto: stopped", err=True)
        raise SystemExit(EXIT_STOPPED) from None
    _told(found, json_at)


def _played(plan: Plan, store: str, out: Path | None) -> Findings:
    from dataclasses import replace

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from inaproto_hil.crashes import report  # noqa: F401  now: the source may be another one when it ends
    from inaproto_hil.crashes.campaign import run_campaign
    from inaproto_hil.rigs.cluster import ClusterError, signals_as_interrupt
    from inaproto_hil.rigs.postgresql_server import running_postgresql
    from inaproto_hil.rigs.swarm import quiet_agents

    console = Console(stderr=True, highlight=False)
    progress = Progress(
        TextColumn("crashes {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[broken]} broken promises"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    total = plan.decoys + plan.stop - plan.first
    task = progress.add_task(f"seed {plan.seed}", total=total, broken=0)
    with ExitStack() as stack:
        if store == "postgresql":
            try:
                plan = replace(plan, database=stack.enter_context(running_postgresql()))
            except Unsupported as why:
                raise click.ClickException(str(why)) from None
        stack.enter_context(quiet_agents())
        stack.enter_context(signals_as_interrupt())
        stack.enter_context(progress)

        def say(phase: str, done: int, broken: int) -> None:
            progress.update(task, advance=1, broken=broken)
            if not console.is_terminal and done % LINE_EVERY == 0:
                console.print(f"crashes: {phase}: {done}, {broken} broken promises")

        try:
            return run_campaign(plan, out, say)
        except ClusterError as error:
            raise click.ClickException(f"seed {plan.seed}: {error}") from None


def _told(found: Findings, json_at: str | None) -> None:
    from rich.console import Console

    from inaproto_hil.crashes.report import document, rerun, show

    report = document(found)
    console = Console(stderr=json_at == "-", highlight=False, soft_wrap=True)
    show(report, console)
    plan = found.plan
    for one in found.violations:
        console.print(
            f"seed {plan.seed}, kill {one.kill}: {one.text}\n  {rerun(found, one.kill)}", markup=False
        )
    for text in report["too_little"]:
        console.print(f"seed {plan.seed}: this proves too little: {text}", style="red", markup=False)
    if not found.violations:
        console.print(
            f"{plan.stop - plan.first} kills, seed {plan.seed}: no promise was broken",
            style="" if report["too_little"] else "green",
        )
    write_report(report, json_at)
    if found.violations or report["too_little"] or report["training_stops"] == "no":
        raise SystemExit(1)
