"""``inaproto explore``: every interleaving of a small ring, every fault within a budget.

A thin shell around ``inaproto.sim.explore``. What searches is imported when the command runs or tells of
its variants, so that ``inaproto --help`` stays fast.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from inaproto.errors import ConfigError
from inaproto.option_types import ReportFile, write_report

INTERRUPTED: Final = 130
"""Exit status, as shells have it for SIGINT."""


class _Explore(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)  # the parser takes its words out
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            from inaproto_hil.explore.worlds import WORLDS

            named = [word for word in given if word in ("ring", "sharing", *WORLDS)]
            if "unexpected extra argument" not in error.message.lower() or not named:
                raise
            raise click.UsageError(f"did you mean --world {named[0]}?", ctx) from None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from inaproto_hil.explore.help_text import epilog

        self.epilog = epilog()
        super().format_epilog(ctx, formatter)


@click.command(cls=_Explore)
@click.option(
    "--world",
    default="ring",
    show_default=True,
    metavar="NAME",
    help="What is explored: ring, a ring of hosts and a switch; sharing, jobs that share a pool by two-phase "
    "commit (MINA IV-B); or one of the worlds below, whose sizes are given by --set.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A size, or how often something may fail, in a world that is not the ring.",
)
@click.option(
    "--variant",
    default="product",
    show_default=True,
    metavar="NAME",
    help="What sums in the switch, or leaves a rule out: one of the names below.",
)
@click.option("--ranks", type=int, metavar="W", help="Ranks of the ring.")
@click.option("--window", type=int, metavar="N", help="Messages in flight, a power of two.")
@click.option("--length", type=int, metavar="L", help="Packets of a message.")
@click.option(
    "--messages",
    type=int,
    metavar="M",
    help="Messages of the all-reduce.  [default: enough that every slot and every PSN is used again]",
)
@click.option("--last-packets", type=int, default=0, metavar="K", help="A last message of K packets only.")
@click.option("--psn-bits", type=int, metavar="BITS", help="Width of a PSN.  [default: as few as can be]")
@click.option("--losses", type=int, metavar="K", help="Packets lost, anywhere.")
@click.option("--duplicates", type=int, metavar="K", help="Packets duplicated, anywhere.")
@click.option(
    "--reorder",
    is_flag=True,
    help="Instead of being duplicated in place, a packet or its copy arrives any time later. "
    "Implies --duplicates 1 and --losses 0, unless given.",
)
@click.option("--early-timers", type=int, metavar="K", help="Retransmission timers that expire too early.")
@click.option(
    "--spare-acks",
    is_flag=True,
    help="Faults never strike acknowledgements, only data and results: what breaks then, breaks by these.",
)
@click.option(
    "--ack-every",
    type=int,
    metavar="K",
    help="A rank asks for an acknowledgement after each K packets of a message, and after the last; at least "
    "K may be unacknowledged after a go-back, which halves the window. Small: more acknowledgements, smaller "
    "windows, more states.  [default: as many as the transport window has]",
)
@click.option(
    "--transport-window",
    type=int,
    metavar="K",
    help="Packets unacknowledged at most.  [default: as many as PSNs of this width allow]",
)
@click.option("--jobs", type=int, metavar="J", help="Sharing: jobs on one pool.")
@click.option("--hosts", type=int, metavar="H", help="Sharing: hosts, each with a seat of each job.")
@click.option("--operations", type=int, metavar="K", help="Sharing: all-reduces of each job.")
@click.option("--margin", type=int, metavar="K", help="Sharing: operations, of the rule by-index.")
@click.option("--turn", type=int, metavar="K", help="Sharing: operations of a turn; 0: until the next wish.")
@click.option("--first", type=int, metavar="K", help="Sharing: the earliest operation of any turn.")
@click.option("--until", type=int, metavar="K", help="Sharing: the operation no turn goes past; 0: none.")
@click.option("--capacity", type=int, metavar="C", help="Sharing: turns that may stand at once.")
@click.option("--turns", type=int, metavar="K", help="Sharing: wishes of the planner.")
@click.option("--rounds", type=int, metavar="K", help="Sharing: rounds that may be tried in vain.")
@click.option("--crashes", type=int, metavar="K", help="Sharing: of the coordinator.")
@click.option("--host-crashes", type=int, metavar="K", help="Sharing: of hosts.")
@click.option("--full", is_flag=True, help="Without the reductions named below: slower, the same verdict.")
@click.option("--states-max", type=int, default=10_000_000, show_default=True, help="Give up beyond.")
@click.option(
    "--json",
    "json_at",
    type=ReportFile(),
    metavar="FILE",
    help="Write the verdict there as JSON; with - to stdout, and the table to stderr.",
)
def explore(
    world: str,
    settings: tuple[str, ...],
    variant: str,
    full: bool,
    states_max: int,
    json_at: str | None,
    **sizes: Any,
) -> None:
    """Explore a small ring exhaustively: all interleavings of its packets, all faults within a budget.

    Hosts and accelerator are the product's own cores, exchanging real RoCEv2 frames with PSNs of a few
    bits; a variant has another accelerator. In every reachable state it is checked that no rank took a
    wrong sum or took one twice, that no window was passed, that results leave the accelerator in PSN order,
    that slots belong to one message, that nobody blames anybody, and that without further faults everybody
    can still finish.
    """
    try:
        of_ring = {name: value for name, value in sizes.items() if name not in _OF_SHARING}
        if world in ("ring", "sharing") and settings:
            raise click.UsageError(
                "--set is for worlds that are not the ring, nor sharing: these have options of their own"
            )
        if world == "sharing":
            status = _explore_sharing(variant, full, states_max, json_at, sizes)
        elif world == "ring":
            status = _explore(variant, full, states_max, json_at, of_ring)
        else:
            given = [name for name, value in sizes.items() if value]
            if given:
                whose = "of sharing" if given[0] in _OF_SHARING else "of the ring"
                raise click.UsageError(f"--{given[0].replace('_', '-')} is {whose}; use --set")
            status = _explore_named(world, variant, settings, full, states_max, json_at)
    except KeyboardInterrupt:  # outside of the search, which counts its states
        click.echo("inaproto: interrupted: no verdict", err=True)
        status = INTERRUPTED
    sys.exit(status)


def _explore_sharing(
    variant: str, full: bool, states_max: int, json_at: str | None, sizes: dict[str, Any]
) -> int:
    from inaproto_hil.explore.sharing_report import explore_sharing

    given = {name: value for name, value in sizes.items() if name in (*_OF_SHARING, *_OF_BOTH)}
    if full:
        given["reduced"] = False
    return explore_sharing(variant, states_max, json_at, given)


_OF_SHARING: Final = (
    "jobs",
    "hosts",
    "operations",
    "margin",
    "turn",
    "first",
    "until",
    "capacity",
    "turns",
    "rounds",
    "crashes",
    "host_crashes",
)
_OF_BOTH: Final = ("losses", "duplicates", "early_timers")


def _explore(variant: str, full: bool, states_max: int, json_at: str | None, sizes: dict[str, Any]) -> int:
    """The exit status."""
    from rich.console import Console

    from inaproto.sim.explore.engine import Interrupted, TooManyStates
    from inaproto.sim.explore.ring.variants import ring_config
    from inaproto_hil.explore.report import report_of, search, shortest, show

    try:
        if states_max < 1:
            raise ConfigError(f"states_max must be at least 1, not {states_max}")
        config = ring_config(variant, reduced=not full, **sizes)
    except ConfigError as error:
        raise click.UsageError(_by_option(str(error), {"variant", "states_max", *sizes})) from None
    try:
        done = search(variant, config, states_max)
    except TooManyStates as error:
        told = str(error).replace("states_max", "--states-max")
        click.echo(f"inaproto: no verdict: {told}", err=True)
        return 2
    except Interrupted as error:
        click.echo(f"inaproto: {error}: no verdict", err=True)
        return INTERRUPTED
    found = shortest(variant, done, states_max)
    report = report_of(variant, done, found)
    show(Console(stderr=json_at == "-"), variant, done, found)
    write_report(report, json_at)
    if found is not None and found.interrupted:
        click.echo("inaproto: interrupted in the search for a shorter run than this one", err=True)
        return INTERRUPTED
    return 0 if found is None else 1


def _explore_named(
    world: str,
    variant: str,
    settings: tuple[str, ...],
    full: bool,
    states_max: int,
    json_at: str | None,
) -> int:
    """The exit status."""
    from rich.console import Console

    from inaproto.sim.explore.engine import Interrupted, TooManyStates
    from inaproto_hil.explore.worlds import NamedReport, search_named, show_named, variants_of

    console = Console(stderr=json_at == "-")
    reports: list[NamedReport] = []
    try:
        if states_max < 1:
            raise ConfigError(f"states_max must be at least 1, not {states_max}")
        variants = variants_of(world, variant)
        for name in variants:
            reports.append(search_named(world, name, settings, states_max, reduced=not full))
            show_named(console, reports[-1])
    except ConfigError as error:
        raise click.UsageError(_by_option(str(error), {"variant", "states_max"})) from None
    except TooManyStates as error:
        click.echo(f"inaproto: no verdict: {str(error).replace('states_max', '--states-max')}", err=True)
        return 2
    except Interrupted as error:
        click.echo(f"inaproto: {error}: no verdict", err=True)
        return INTERRUPTED
    found = [report.as_json() for report in reports]
    write_report(found[0] if len(found) == 1 else {"version": found[0]["version"], "worlds": found}, json_at)
    return 0 if all(report.counterexample is None for report in reports) else 1


def _by_option(error: str, fields: set[str]) -> str:
    """The error with the option's name in place of the field's, which it begins with."""
    field, _, rest = error.partition(" ")
    return f"--{field.replace('_', '-')} {rest}" if field in fields else error
