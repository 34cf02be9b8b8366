"""``inaproto reproduce``: the evaluations of the papers, computed anew.

Only the options are here; what runs is imported when it runs, so that ``inaproto --help`` stays fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from inaproto.errors import ConfigError, InaprotoError, InvariantBroken, LocalMisuse, Unsupported
from inaproto.option_types import FolderToMake, ReportFile, WholeGroup

if TYPE_CHECKING:
    from inaproto_hil.evaluation.paper import Paper

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


@click.group(cls=WholeGroup)
def reproduce() -> None:
    """Compute the papers' evaluations anew, and set ours beside what they print."""


Options = Callable[[Callable[..., None]], Callable[..., None]]


def _options(
    figures: Sequence[str], drawn: str, default: int, help_of_drawn: str, tables: Sequence[str] = ()
) -> Options:
    """The options of every paper; ``drawn`` is the one that says how often what is drawn is drawn."""
    choices = [("--figure", "figures", figures), ("--table", "tables", tables)]
    only, many = "Only this; may be repeated.", click.IntRange(1, 1000)
    written = "Write report.html, report.json and figure-N.svg there; the page needs nothing from elsewhere."
    folder, engines = FolderToMake(), click.Choice(["local", "ray"])
    options = [
        *(
            click.option(flag, name, multiple=True, type=click.Choice(of), help=only)
            for flag, name, of in choices
            if of
        ),
        click.option(drawn, "count", type=many, default=default, show_default=True, help=help_of_drawn),
        click.option(
            "--json",
            "json_at",
            type=ReportFile(),
            metavar="FILE",
            help="Write all of it there as JSON; - is stdout.",
        ),
        click.option("--report", "--out", "report_in", type=folder, metavar="DIR", help=written),
        click.option("--jobs", type=click.IntRange(1, 1024), help="Processes.  [default: one for each core]"),
        click.option(
            "--engine",
            type=engines,
            default="local",
            show_default=True,
            help="ray: on a Ray cluster (the extra 'ray').",
        ),
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@reproduce.command("mina", epilog=_EPILOG)
@_options(
    FIGURES,
    "--seeds",
    SEEDS_DEFAULT,
    "Draws of candidate trees, for what depends on them. Tolerances are meant for 5 or more.",
    TABLES,
)
def mina(**asked: Any) -> None:
    """Every figure and table of MINA's evaluation: the paper's value, ours, and whether that is inside.

    All requests are those of the published streams, as the paper's revision of the simulator runs them.
    """

    def paper() -> Paper[Any, Any]:
        from inaproto_hil.evaluation.mina.paper import PAPER

        return PAPER

    _reproduce(paper, asked)


@reproduce.command("paring", epilog=_PARING_EPILOG)
@_options(
    PARING_FIGURES,
    "--draws",
    DRAWS_DEFAULT,
    "Draws of the switches that add up, for what depends on them.",
)
def paring(**asked: Any) -> None:
    """Figures 1 to 19 of PARING: what its text says of them, ours beside it, and a verdict on each value.

    Ours are the fast and the exact planner, the algorithm as printed, and all benchmarks. What the paper does
    not say enough for, or cannot mean, is there to compare, with the reason.
    """

    def paper() -> Paper[Any, Any]:
        from inaproto_hil.evaluation.paring.paper import PAPER

        return PAPER

    _reproduce(paper, asked)


@reproduce.command("mlnet", epilog=_MLNET_EPILOG)
@_options(
    MLNET_FIGURES,
    "--seeds",
    SEEDS_DEFAULT,
    "Draws of hosts, trees and paths. Figure 3 has four times as many.",
)
def mlnet(**asked: Any) -> None:
    """Figures 1 to 3 of MLNet: what its text says of them, ours beside it, and a verdict on each value.

    Flows of 800 workers on 1,024 servers share links max-min fairly. What the paper does not say enough
    for, or what does not reproduce, is there to compare, with the reason.
    """

    def paper() -> Paper[Any, Any]:
        from inaproto_hil.evaluation.mlnet.paper import PAPER

        return PAPER

    _reproduce(paper, asked)


def _reproduce(paper: Callable[[], Paper[Any, Any]], asked: Mapping[str, Any]) -> NoReturn:
    def work() -> int:
        from inaproto_hil.evaluation.command import Asked, reproduce_paper

        return reproduce_paper(paper(), Asked(**asked))

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
