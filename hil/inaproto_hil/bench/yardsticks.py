"""``inaproto bench yardsticks``: how far each heuristic of planning is from the best there is."""

from __future__ import annotations

import click
from rich.console import Console

from inaproto.option_types import ReportFile, write_report
from inaproto_hil.evaluation.yardsticks.comparison import Instances, report


@click.command("yardsticks")
@click.option("--seed", default=0, show_default=True, help="Of the instances.")
@click.option(
    "--instances",
    type=click.IntRange(1),
    metavar="N",
    help="Of each kind.  [default: 40 to 200]",
)
@click.option(
    "--json",
    "json_at",
    type=ReportFile(),
    metavar="FILE",
    help="Report file; - is stdout (the table: stderr).",
)
def yardsticks(seed: int, instances: int | None, json_at: str | None) -> None:
    """Placement, trees and schedules of small clusters, against exact solutions.

    Example: inaproto bench yardsticks --json - | jq .rows

    Placements are compared with all that there are, trees with an integer program, schedules with the best
    of all decisions about INA. A distance of 0 is as good as the best; of trees it is the share of jobs that
    could have one and go without, of schedules the share of the possible saving that is missed.
    """
    console = Console(stderr=True, highlight=False)
    sizes = Instances() if instances is None else Instances(instances, instances, instances, instances)
    with console.status("solving small instances exactly, some ten seconds"):
        found = report(seed=seed, sizes=sizes)
    Console(stderr=json_at == "-", highlight=False).print(found.table())
    write_report(found.document(), json_at)
