"""``inaproto model netreduce``: the cost models of NetReduce's section 3.4, and what follows from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from inaproto.cli import guarded
from inaproto.option_types import ReportFile, write_report

if TYPE_CHECKING:
    from inaproto_controller.cost_model.netreduce_simulation import Simulation

_EPILOG: Final = """
\b
The algorithms, all for one all-reduce of M bytes by P GPUs, n in a machine:
  FR  flat ring: one ring of all GPUs.
  TA  Tencent all-reduce: each machine reduces to a master GPU, the masters
      form a ring, each broadcasts in its machine.
  PN  parallel NetReduce: reduce-scatter in the machine, then n sums in the
      network, each of 1/n of the tensor, then all-gather in the machine.
  PR  parallel rings: as PN, with n rings of machines for the sums.
\b
Where the formulas come from (alpha: latency of a hop; lg: log2 n):
  FR  2(P-1) alpha + 2 (P-1)/P M/B_inter                     equation (1)
  TA  (2P/n + 3 lg + n - 3) alpha + 4 (n-1)/n M/B_intra
      + 2 (P-n)/P M/B_inter                                  equation (2)
  PN  (2n-1) alpha + 2 (n-1)/n M/B_intra + M/B_inter         equation (3)
  PR  2(n-1) alpha + 2 (n-1)/n M/B_intra
      + 2 (P/n-1) alpha + 2 (P-n)/P M/B_inter                ours
\b
TA is the paper's closed form. Of the three brackets that it is the sum of, the
paper prints the first with M/(n B_intra) for M/B_intra; tables and JSON show
both. Thresholds are the exact ones, with the paper's (6) beside them, which is
sufficient but asks for more. PR is named in the paper, without a formula.
\b
Units: 1 MB is 1e6 bytes, 1 GB/s is 1e9 bytes a second. All arithmetic is in
fractions; figures are rounded when they are printed.
\b
Examples:
  inaproto model netreduce
  inaproto model netreduce --json - | jq .crossovers
  inaproto model netreduce --plot out
  inaproto model netreduce --simulate --plot out    (half a minute)
  inaproto model netreduce --simulate --gpus-max 64 (a few seconds)
\b
--simulate runs the schedules that hosts run on a network of latency and
bandwidth, segment by segment: each point of the sweeps with at most 128 GPUs,
and a flat ring against a sum in the network, one GPU per machine, to 1024.
Stage by stage is what the model adds up; with stages that overlap, a segment
goes on as soon as it is there. FR has no stages. Additions take no time.
"""


@click.command("netreduce", epilog=_EPILOG)
@click.option(
    "--json",
    "json_at",
    type=ReportFile(),
    metavar="FILE",
    help="Write all of it there as JSON; with - to stdout, and the tables to stderr.",
)
@click.option(
    "--plot",
    "plot_folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Draw Figure 7 A, B and C there, as SVG, and with --simulate the ring against the network; "
    "the folder is made if it is not there.",
)
@click.option(
    "--simulate", "simulated", is_flag=True, help="Time the algorithms on a simulated network as well."
)
@click.option(
    "--gpus-max",
    type=click.IntRange(min=2),
    default=1024,
    show_default=True,
    metavar="P",
    help="With --simulate: leave larger jobs out. A ring of 1024 takes 15 seconds and half a GB.",
)
def netreduce_command(json_at: str | None, plot_folder: Path | None, simulated: bool, gpus_max: int) -> None:
    """Flat ring, Tencent all-reduce and parallel NetReduce by the paper's cost model.

    The sweeps of Figure 7 (n = 8, 100 Gbit/s between machines, M = 100 MB, which the paper does not state),
    the bandwidths and sizes at which one algorithm passes another, and the places where the paper's text
    says something else than its equations.
    """
    guarded(lambda: _netreduce(json_at, plot_folder, simulated, gpus_max))


def _netreduce(json_at: str | None, plot_folder: Path | None, simulated: bool, gpus_max: int) -> None:
    from rich.console import Console

    from inaproto_controller.cost_model.netreduce_report import document, show

    simulation = _simulate(gpus_max) if simulated else None
    to_stdout = json_at == "-"
    show(Console(stderr=to_stdout), simulation)
    if json_at is not None:
        write_report(document(simulation), json_at)
    if plot_folder is not None:
        from inaproto_controller.cost_model.netreduce_plots import draw

        try:
            plot_folder.mkdir(parents=True, exist_ok=True)
            paths = draw(plot_folder, simulation)
        except OSError as error:
            raise click.ClickException(f"--plot {plot_folder}: {error.strerror}") from None
        for path in paths:
            click.echo(f"wrote {path}", err=to_stdout)


def _simulate(gpus_max: int) -> Simulation:
    """Simulate, with a line on a terminal that says what is being timed."""
    from rich.console import Console

    from inaproto_controller.cost_model.netreduce_simulation import simulate

    console = Console(stderr=True)
    if not console.is_terminal:
        return simulate(gpus_max=gpus_max)
    with console.status("timing") as status:
        return simulate(gpus_max=gpus_max, tell=lambda what: status.update(f"timing {what}"))
