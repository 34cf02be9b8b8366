"""``inaproto reproduce``: the evaluations of the papers, computed anew.

Only the options are here; what runs is imported when it runs, so that ``inaproto --help`` stays fast.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from inaproto.errors import ConfigError, InaprotoError, InvariantBroken, LocalMisuse, Unsupported
from inaproto.option_types import ReportFile

EXIT_OUTSIDE: Final = 1
EXIT_WRONG: Final = 2
EXIT_STOPPED: Final = 130
FIGURES: Final = ("2", "5", "11", "12", "13", "14", "ours")
TABLES: Final = ("1",)
SEEDS_DEFAULT: Final = 5

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
    from inaproto_hil.soak.stop import end_undisturbed, stopping_at_once

    keys = [*figures, *(f"table-{number}" for number in tables)]
    try:
        with stopping_at_once():
            from inaproto_hil.reproduce.mina import reproduce_mina

            status = reproduce_mina(keys, seeds, json_at, report_in, jobs, engine)
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
