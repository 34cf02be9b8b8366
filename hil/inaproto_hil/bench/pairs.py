"""``inaproto bench pairs``: what two jobs gain on one slot pool, live in virtual time, beside the simulator.

See :mod:`inaproto_hil.evaluation.shared_pool.pairs` for what is compared. What is undefined is ``null`` in
the JSON and ``-`` in the table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from inaproto.option_types import FiniteRange, FolderToMake, ReportFile, write_report
from inaproto_controller.cluster.model import EVALUATED
from inaproto_hil.evaluation.shared_pool.pairs import PAIRS, Pair, PairsConfig, measure
from inaproto_hil.evaluation.shared_pool.world import GroupRun


def _pair(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[Pair, ...]:
    found = []
    for value in values:
        one, _, other = value.partition("+")
        if one not in EVALUATED or other not in EVALUATED:
            raise click.BadParameter(f"{value!r}: write two of {', '.join(EVALUATED)}, with + between them")
        found.append((one, other))
    return tuple(found)


@click.command("pairs")
@click.option("--pair", "pairs", multiple=True, callback=_pair, metavar="A+B", help="These alone.")
@click.option("--steps", default=60, show_default=True, type=click.IntRange(12), help="Of the longer job.")
@click.option("--hosts", default=2, show_default=True, type=click.IntRange(2, 64), help="Of each job.")
@click.option("--error", default=0.0, show_default=True, type=FiniteRange(0, 0.5), help="Of times.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="Of errors and schedule.")
@click.option("--timeline", type=FolderToMake(), metavar="DIR", help="A picture for each pair.")
@click.option(
    "--json",
    "json_at",
    type=ReportFile(),
    metavar="FILE",
    help="Report file; - is stdout (the table: stderr).",
)
def pairs_bench(
    pairs: tuple[Pair, ...],
    steps: int,
    hosts: int,
    error: float,
    seed: int,
    timeline: Path | None,
    json_at: str | None,
) -> None:
    """Two jobs share one slot pool: their INA efficiency score, and what the simulator predicts.

    Example: inaproto bench pairs --pair bert-base-4+bert-large-4 --timeline out --json -

    All pairs of MINA's Figure 12, unless some are named. Hosts' seats, the controller's planner and
    coordinator, and the pool of the switch are the product's; training, the network and the clock are not.
    Times are virtual: a report depends on its options and the program alone.
    """
    console = Console(stderr=True, highlight=False)
    config = PairsConfig(steps=steps, hosts=hosts, error=error, seed=seed)

    def played(pair: Pair, run: GroupRun) -> None:
        if timeline is not None:
            from inaproto_hil.evaluation.shared_pool.timeline import draw_timeline

            timeline.mkdir(parents=True, exist_ok=True)
            draw_timeline(
                run, pair, f"{pair[0]} and {pair[1]} on one pool", timeline / f"{'+'.join(pair)}.svg"
            )

    report = measure(
        pairs or PAIRS,
        config,
        lambda turns: track(turns, "pairs", console=console, disable=not console.is_terminal),
        played,
    )
    _show(Console(stderr=json_at == "-", highlight=False), report)
    write_report(report, json_at)


_COLUMNS: Final = {
    "at_once": ("at\nonce", "{:.3f}"),
    "predicted": ("by turns,\npredicted", "{:.3f}"),
    "live": ("live", "{:.3f}"),
    "difference": ("off by", "{:+.1%}"),
    "ina_share": ("by\nINA", "{:.0%}"),
    "bound": ("bound\nby time", "{:.3f}"),
    "best_of_few": ("best\nof few", "{:.3f}"),
}


def _show(console: Console, report: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("jobs", no_wrap=True)
    for head, _ in _COLUMNS.values():
        table.add_column(head, justify="right", no_wrap=True)
    for row in report["rows"]:
        few = row["best_of_few"]
        shown = row | {"best_of_few": None if few is None else few["best"]}
        cells = [_cell(shown[name], form) for name, (_, form) in _COLUMNS.items()]
        table.add_row(" + ".join(row["pair"]), *cells)
    console.print(table)
    found = report["summary"]
    live, goal = found["live"], found["reach_the_goal"]
    console.print(
        f"{found['pairs']} pairs: live {live['min']:.3f} to {live['max']:.3f}, median {live['median']:.3f}, "
        f"mean {live['mean']:.3f} (predicted {found['predicted']['mean']:.3f}, at once "
        f"{found['at_once']['mean']:.3f})"
    )
    console.print(
        f"at least {found['goal']}: live {goal['live']:.0%}, predicted {goal['predicted']:.0%}, at once "
        f"{goal['at_once']:.0%}; at most possible {goal['bound']:.0%}"
    )
    if found["difference"] is not None:
        off = found["difference"]
        console.print(
            f"predicted within 3 %: {found['within_3_percent']:.0%} of the pairs; off by {off['median']:.1%} "
            f"(median), {off['max']:.1%} at most"
        )


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
