"""``inaproto soak`` and ``inaproto replay``: many simulated worlds, and one of them once more.

Only the options are here; what runs is imported when it runs, so that ``inaproto --help`` stays fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click

from inaproto.errors import ConfigError, InaprotoError, InvariantBroken, LocalMisuse, Unsupported

EXIT_FAILED = 1
EXIT_WRONG = 2

_VARIANT = click.option(
    "--with",
    "variant",
    metavar="MODULE:FUNCTION",
    help="Context manager, or function that gives one, to hold meanwhile: a variant of the program.",
)


def _guarded(command: Callable[[], int]) -> None:
    """Errors that a person can act on become messages."""
    try:
        status = command()
    except (InvariantBroken, LocalMisuse):
        raise
    except InaprotoError as error:
        for line in str(error).splitlines():
            click.echo(f"inaproto: {line}", err=True)
        status = EXIT_WRONG if isinstance(error, ConfigError | Unsupported) else EXIT_FAILED
    sys.exit(status)


@click.command(
    short_help="Simulate many clusters under faults.",
    epilog="Examples: inaproto soak --seeds 2000 --out soak-out; inaproto soak --seed 17 --shrink",
)
@click.option("--seeds", metavar="N|A:B", help="Seeds 0 to N-1, or A to B-1.  [default: 0:200]")
@click.option("--seed", help="One seed, told in full.")
@click.option("--digest", is_flag=True, help="With --seed: print only the digest of its events.")
@click.option("--measure", is_flag=True, help="Time the seeds five times in one process; print the median.")
@click.option("--jobs", type=click.IntRange(1, 4096), help="Worker processes.  [default: all cores]")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), help="Begin no seeds after that time.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for report.html, report.json and logs.  [default: soak-out, made only if a seed fails]",
)
@click.option(
    "--log", type=click.Path(dir_okay=False, path_type=Path), help="With --seed: write its event log."
)
@click.option("--resume", is_flag=True, help="Go on with the campaign in --out.")
@click.option(
    "--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True, help="What runs it."
)
@click.option(
    "--shrink/--no-shrink",
    default=None,
    help="Reduce failing worlds.  [default: yes in campaigns, no with --seed]",
)
@click.option(
    "--require-marks/--no-require-marks",
    default=None,
    help="Fail if a declared mark was never seen.  [default: from 2000 seeds on]",
)
@_VARIANT
def soak(
    seeds: str | None,
    seed: str | None,
    digest: bool,
    measure: bool,
    jobs: int | None,
    minutes: float | None,
    out: Path | None,
    log: Path | None,
    resume: bool,
    engine: str,
    shrink: bool | None,
    require_marks: bool | None,
    variant: str | None,
) -> None:
    """Simulate clusters drawn from seeds, under weather and faults, and check every rule in each.

    A world is hosts, links, a switch and jobs in virtual time around the very protocol code that the
    daemons run. Exits 1 if a rule was broken anywhere; a log of each failure is kept, with the line that
    replays it, and a smaller world that fails alike.
    """
    from inaproto_hil.soak import command

    if seed is not None:
        if seeds is not None or minutes is not None or resume or measure:
            raise click.UsageError("--seed is one seed: leave --seeds, --minutes, --resume and --measure out")
        _guarded(lambda: command.one_seed(seed, digest, out, log, bool(shrink), variant))
    if digest or log is not None:
        raise click.UsageError("--digest and --log are for one seed: add --seed")
    if measure:
        _guarded(lambda: command.measure(seeds, variant))
    if resume and out is None:
        raise click.UsageError("--resume needs --out, the folder of the campaign")
    options = command.Options(
        seeds=seeds,
        jobs=jobs,
        minutes=minutes,
        out=out,
        resume=resume,
        engine=engine,
        shrink=shrink is not False,
        require_marks=require_marks,
        variant=variant,
    )
    _guarded(lambda: command.campaign(options))


@click.command(
    short_help="Run the event log of a simulated cluster again.",
    epilog="Example: inaproto replay soak-out/seed-17.jsonl --svg out.svg",
)
@click.argument("log", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the last moments as a sequence diagram.",
)
@click.option(
    "--last", type=click.IntRange(1, 2000), default=60, show_default=True, help="Lines in the diagram."
)
@_VARIANT
def replay(log: Path, svg: Path | None, last: int, variant: str | None) -> None:
    """Run an event log again, compare event by event, and draw what happened last.

    Exits 0 if this run does what the log says, failure included, and 1 if the two differ.
    """
    from inaproto_hil.soak import command

    _guarded(lambda: command.replay_log(log, svg, last, variant))
