"""``inaproto soak`` and ``inaproto replay``: many simulated worlds, and one of them once more.

Only the options are here; what runs is imported when it runs, so that ``inaproto --help`` stays fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import click

from inaproto.errors import (
    ConfigError,
    DecodeError,
    InaprotoError,
    InvariantBroken,
    LocalMisuse,
    Unsupported,
)
from inaproto.option_types import FiniteRange, FolderToMake

EXIT_FAILED = 1
EXIT_WRONG = 2

_WORLDS = (
    *("single", "racks", "recovery", "machines", "shared", "successors"),
    *("control", "weather", "trees", "overlay"),
)
_VARIANT = click.option(
    "--with",
    "variant",
    metavar="MODULE:FUNCTION",
    help="Context manager, or function that gives one, to hold meanwhile: a variant of the program.",
)


def _guarded(command: Callable[[], int]) -> None:
    """Errors that a person can act on become messages, and so does being stopped."""
    from inaproto_hil.soak.stop import EXIT_STOPPED, end_undisturbed, stopping_at_once

    try:
        with stopping_at_once():
            status = command()
            if status == EXIT_STOPPED:
                end_undisturbed()
    except (InvariantBroken, LocalMisuse):
        raise
    except InaprotoError as error:
        for line in str(error).splitlines():
            click.echo(f"inaproto: {line}", err=True)
        status = EXIT_WRONG if isinstance(error, ConfigError | Unsupported | DecodeError) else EXIT_FAILED
    except OSError as error:
        click.echo(f"inaproto: {error}", err=True)
        status = EXIT_FAILED
    except KeyboardInterrupt:
        click.echo("inaproto: stopped", err=True)
        status = EXIT_STOPPED
    sys.exit(status)


def _refuse(rule: str, given: Mapping[str, object]) -> None:
    """Options that would change nothing are an error, not silently nothing."""
    wrong = [name for name, value in given.items() if value not in (None, False, "local")]
    if wrong:
        raise click.UsageError(f"{rule}: leave {' and '.join(wrong)} out")


@click.command(
    short_help="Simulate many clusters under faults.",
    epilog="Examples: inaproto soak --seeds 2000 --out soak-out; inaproto soak --seed 17 --shrink; "
    "inaproto soak --world racks --seeds 1000",
)
@click.option("--seeds", metavar="N|A:B", help="Seeds 0 to N-1, or A to B-1.  [default: 0:200]")
@click.option("--seed", help="One seed, told in full.")
@click.option(
    "--world",
    type=click.Choice(_WORLDS),
    help="single: one switch. racks: trees of switches, jobs across them. recovery: one switch, and jobs "
    "that go on when a ring ends, as most do in racks. machines: hosts with several ranks of a job, by one "
    "switch or several. shared: jobs with two rings, each all-reduce by one of them. successors: host "
    "daemons that die under processes that go on. control: who may use the switches when: two-phase commit "
    "and tree migration. weather: a day of 64 hosts and 8 jobs, with links that flap, slow hosts, half-open "
    "sessions and racks without power. trees: trees that move under jobs. overlay: push, pull and clock "
    "over trees of hosts.  [default: single]",
)
@click.option("--digest", is_flag=True, help="With --seed: print only the digest of its events.")
@click.option("--measure", is_flag=True, help="Time the seeds five times in one process; print the median.")
@click.option("--jobs", type=click.IntRange(1, 4096), help="Worker processes.  [default: all cores]")
@click.option("--minutes", type=FiniteRange(0, min_open=True), help="Begin no seeds after that time.")
@click.option(
    "--out",
    type=FolderToMake(),
    help="Folder for report.html, report.json and logs.  [default: soak-out, made only if a seed fails]",
)
@click.option(
    "--log", type=click.Path(dir_okay=False, path_type=Path), help="With --seed: write its event log."
)
@click.option("--resume", is_flag=True, help="Go on with the campaign in --out; --seeds may extend it.")
@click.option("--anew", is_flag=True, help="Remove the results of another campaign from --out first.")
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
    help="Fail if a declared mark was never seen.  [default: from 2000 seeds on, of racks 1000]",
)
@_VARIANT
def soak(
    seeds: str | None,
    seed: str | None,
    world: str | None,
    digest: bool,
    measure: bool,
    jobs: int | None,
    minutes: float | None,
    out: Path | None,
    log: Path | None,
    resume: bool,
    anew: bool,
    engine: str,
    shrink: bool | None,
    require_marks: bool | None,
    variant: str | None,
) -> None:
    """Simulate clusters drawn from seeds, under weather and faults, and check every rule in each.

    A world is hosts, links, switches and jobs in virtual time around the very protocol code that the
    daemons run. Exits 1 if a rule was broken anywhere; a log of each failure is kept, with the line that
    replays it, and a smaller world that fails alike.
    """
    of_campaigns = {
        "--seeds": seeds,
        "--jobs": jobs,
        "--minutes": minutes,
        "--resume": resume,
        "--anew": anew,
        "--engine": engine,
        "--require-marks": require_marks,
    }
    of_one_seed = {"--digest": digest, "--log": log}
    if seed is not None:
        if ":" in seed:
            raise click.UsageError(f"--seed is one seed; for a range write --seeds {seed}")
        _refuse("--seed is one seed", of_campaigns | {"--measure": measure})
        if digest:
            _refuse("--digest only prints a digest", {"--shrink": shrink, "--log": log, "--out": out})
        _guarded(lambda: _command().one_seed(seed, world, digest, out, log, bool(shrink), variant))
    if digest or log is not None:
        raise click.UsageError("--digest and --log are for one seed: add --seed")
    if measure:
        del of_campaigns["--seeds"]
        _refuse("--measure only measures", of_campaigns | of_one_seed | {"--out": out, "--shrink": shrink})
        _guarded(lambda: _command().measure(seeds, world, variant))
    for option, is_given in (("--resume", resume), ("--anew", anew)):
        if is_given and out is None:
            raise click.UsageError(f"{option} needs --out, the folder of the campaign")
    if resume and anew:
        raise click.UsageError("--resume goes on with a campaign, --anew removes it: leave one out")
    _guarded(
        lambda: _command().campaign(
            _command().Options(
                seeds=seeds,
                jobs=jobs,
                minutes=minutes,
                out=out,
                resume=resume,
                anew=anew,
                engine=engine,
                shrink=shrink is not False,
                require_marks=require_marks,
                variant=variant,
                world=world,
            )
        )
    )


def _command() -> ModuleType:
    """Imported when it runs, where being stopped is seen to."""
    from inaproto_hil.soak import command

    return command


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
@click.option(
    "--from",
    "first",
    metavar="EVENT",
    type=click.IntRange(1),
    help="With --svg: the event at which the diagram begins.  [default: --last lines before the end]",
)
@_VARIANT
def replay(log: Path, svg: Path | None, last: int, first: int | None, variant: str | None) -> None:
    """Run an event log again, compare event by event, and draw what happened last.

    Exits 0 if this run does what the log says, failure included, and 1 if the two differ.
    """
    if first is not None and svg is None:
        raise click.UsageError("--from says where the drawing begins: add --svg")
    _guarded(lambda: _command().replay_log(log, svg, last, first, variant))
