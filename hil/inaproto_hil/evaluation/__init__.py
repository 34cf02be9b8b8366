"""``inaproto reproduce``: the evaluations of the papers, computed anew.

Only the options are here; what runs is imported when it runs, so that ``inaproto --help`` stays fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import click

from inaproto.errors import ConfigError, InaprotoError, InvariantBroken, LocalMisuse, Unsupported
from inaproto.option_types import ReportFile

EXIT_OUTSIDE: Final = 1
EXIT_WRONG: Final = 2
EXIT_STOPPED: Final = 130
FIGURES: Final = ("2", "5", "11", "12", "13", "14", "ours")
TABLES: Final = ("1",)
SEEDS_DEFAULT: Final = 5
PARING_FIGURES: Final = tuple(str(number) for number in range(1, 20))
DRAWS_DEFAULT: Final = 12
MLNET_FIGURES: Final = ("1a", "1b", "2", "3", "ours")

_EPILOG: Final = """
\b
What there is:
  --figure 2    how often first-fit trees conflict
  --figure 5    a training step over the bandwidth
  --figure 11   MINA and its baseline on ten streams of requests
  --figure 12   49 pairs of jobs that share a switch
  --figure 13   placement under oversubscription
  --figure 14   candidate trees of each job
  --figure ours our own trees with the downtime of each change, beside MINA's,
                the published extended revision, and exclusive ones
  --table 1     what placement, trees and sharing add, each row of it, and the
                two rows that the paper leaves out
\b
A score is the share of what INA could save that it saves. It says nothing of
how much that is: beside each score stand the seconds that the mean job saves,
what it waits for hosts, how often its tree is exchanged, and what first-fit
trees score that nobody shares. Candidate trees are drawn: what depends on them
is a mean over --seeds, with its 95 % confidence interval.
\b
Examples:
  inaproto reproduce mina --figure 12          (seconds)
  inaproto reproduce mina --table 1 --json - | jq .outside
  inaproto reproduce mina --report mina-out    (all, half an hour of CPU)
\b
Exit status: 0 all inside their tolerances, 1 some are not, and each is named,
2 wrong options, 130 stopped.
"""
_PARING_EPILOG: Final = """
\b
What there is:
  --figure 1          the example of section II: DeepSys, ATP, PARING
  --figure 2 to 4     traffic, rate and time over workers, partial adding
  --figure 5 to 7     over the switches that add up
  --figure 8 to 10    over the cap of the sending rate
  --figure 11 to 19   the same where a switch adds all that passes it, or none
\b
Which switches add up in the paper is not said, only that the first six are edge
switches: ours are means over --draws of them, with the 95 % confidence
interval, and beside it the switches of the first two pods.
\b
Examples:
  inaproto reproduce paring --figure 1           (seconds)
  inaproto reproduce paring --json - | jq .outside
  inaproto reproduce paring --report paring-out  (all, minutes of CPU)
\b
Exit status: 0 all that is asked is inside its tolerance, 1 some is not, and each
is named, 2 wrong options, 130 stopped.
"""
_MLNET_EPILOG: Final = """
\b
What there is:
  --figure 1a    makespan over the number of parameter servers
  --figure 1b    the same with an oversubscription of 1:4
  --figure 2     traffic of links
  --figure 3     20 models that train together, with priorities
  --figure ours  trees that the paper does not have
\b
Phases are exact, not simulated in steps. The paper does not say how many bytes
a synchronisation has, whether trees are shared by all parameter servers, nor
where it oversubscribes: docs/planning.md has what was chosen.
\b
Examples:
  inaproto reproduce mlnet --figure 2            (seconds)
  inaproto reproduce mlnet --json - | jq .outside
  inaproto reproduce mlnet --report mlnet-out    (all, minutes of CPU)
\b
Exit status: 0 all that is asked is inside its tolerance, or said not to reproduce,
with the reason; 1 some is not, and each is named, 2 wrong options, 130 stopped.
"""


@click.group()
def reproduce() -> None:
    """Compute the papers' evaluations anew, and set ours beside what they print."""


@reproduce.command("mina", epilog=_EPILOG)
@click.option(
    "--figure", "figures", multiple=True, type=click.Choice(FIGURES), help="Only this; may be repeated."
)
@click.option(
    "--table", "tables", multiple=True, type=click.Choice(TABLES), help="Only this; may be repeated."
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=SEEDS_DEFAULT,
    show_default=True,
    help="Draws of candidate trees, for what depends on them. Tolerances are meant for 5 or more.",
)
@click.option(
    "--json", "json_at", type=ReportFile(), metavar="FILE", help="Write all of it there as JSON; - is stdout."
)
@click.option(
    "--report",
    "report_in",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write report.html and report.json there; the page needs nothing from elsewhere.",
)
@click.option("--jobs", type=click.IntRange(1, 1024), help="Processes.  [default: one for each core]")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="ray: on a Ray cluster (the extra 'ray').",
)
def mina(
    figures: tuple[str, ...],
    tables: tuple[str, ...],
    seeds: int,
    json_at: str | None,
    report_in: Path | None,
    jobs: int | None,
    engine: str,
) -> None:
    """Every figure and table of MINA's evaluation: the paper's value, ours, and whether that is inside.

    All requests are those of the published streams, as the paper's revision of the simulator runs them.
    """
    keys = [*figures, *(f"table-{number}" for number in tables)]

    def work() -> int:
        from inaproto_hil.evaluation.mina.command import reproduce_mina

        return reproduce_mina(keys, seeds, json_at, report_in, jobs, engine)

    _end_with(work)


@reproduce.command("paring", epilog=_PARING_EPILOG)
@click.option(
    "--figure",
    "figures",
    multiple=True,
    type=click.Choice(PARING_FIGURES),
    help="Only this; may be repeated.",
)
@click.option(
    "--draws",
    type=click.IntRange(1, 1000),
    default=DRAWS_DEFAULT,
    show_default=True,
    help="Of the switches that add up, for what depends on them.",
)
@click.option(
    "--json", "json_at", type=ReportFile(), metavar="FILE", help="Write all of it there as JSON; - is stdout."
)
@click.option(
    "--report",
    "--out",
    "report_in",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write report.html, report.json and figure-N.svg there; the page needs nothing from elsewhere.",
)
@click.option("--jobs", type=click.IntRange(1, 1024), help="Processes.  [default: one for each core]")
def paring(
    figures: tuple[str, ...], draws: int, json_at: str | None, report_in: Path | None, jobs: int | None
) -> None:
    """Figures 1 to 19 of PARING: what its text says of them, ours beside it, and a verdict on each value.

    Ours are the fast and the exact planner, the algorithm as printed, and all benchmarks. What the paper does
    not say enough for, or cannot mean, is there to compare, with the reason.
    """

    def work() -> int:
        from inaproto_hil.evaluation.paring.command import reproduce_paring

        return reproduce_paring(figures, draws, json_at, report_in, jobs)

    _end_with(work)


@reproduce.command("mlnet", epilog=_MLNET_EPILOG)
@click.option(
    "--figure",
    "figures",
    multiple=True,
    type=click.Choice(MLNET_FIGURES),
    help="Only this; may be repeated.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=SEEDS_DEFAULT,
    show_default=True,
    help="Draws of hosts, trees and paths. Figure 3 has four times as many.",
)
@click.option(
    "--json", "json_at", type=ReportFile(), metavar="FILE", help="Write all of it there as JSON; - is stdout."
)
@click.option(
    "--report",
    "--out",
    "report_in",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write report.html, report.json and figure-N.svg there; the page needs nothing from elsewhere.",
)
@click.option("--jobs", type=click.IntRange(1, 1024), help="Processes.  [default: one for each core]")
def mlnet(
    figures: tuple[str, ...], seeds: int, json_at: str | None, report_in: Path | None, jobs: int | None
) -> None:
    """Figures 1 to 3 of MLNet: what its text says of them, ours beside it, and a verdict on each value.

    Flows of 800 workers on 1,024 servers share links max-min fairly. What the paper does not say enough
    for, or what does not reproduce, is there to compare, with the reason.
    """

    def work() -> int:
        from inaproto_hil.evaluation.mlnet.command import reproduce_mlnet

        return reproduce_mlnet(figures, seeds, json_at, report_in, jobs)

    _end_with(work)


def _end_with(work: Callable[[], int]) -> NoReturn:
    """The process ends with the status of the work, or of what stopped it."""
    from inaproto_hil.soak.stop import end_undisturbed, stopping_at_once

    try:
        with stopping_at_once():
            status = work()
    except (InvariantBroken, LocalMisuse):
        raise
    except InaprotoError as error:
        click.echo(f"inaproto: {error}", err=True)
        status = EXIT_WRONG if isinstance(error, ConfigError | Unsupported) else EXIT_OUTSIDE
    except OSError as error:
        click.echo(f"inaproto: {error}", err=True)
        status = EXIT_WRONG
    except KeyboardInterrupt:
        end_undisturbed()
        click.echo("inaproto: stopped", err=True)
        status = EXIT_STOPPED
    sys.exit(status)
