"""``inaproto explore``: every interleaving of a small ring, every fault within a budget.

A thin shell around ``inaproto.sim.explore``. What searches is imported when the command runs or tells of
its variants, so that ``inaproto --help`` stays fast.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final, TextIO

import click

from inaproto.errors import ConfigError

_EXAMPLES: Final = """
\b
Examples, each a few seconds:
  inaproto explore
  inaproto explore --ranks 2 --window 1 --length 2 --losses 2
  inaproto explore --ranks 3 --window 2 --length 1 --losses 1    (half a minute)
  inaproto explore --length 1 --losses 1 --duplicates 1 --reorder
  inaproto explore --length 1 --losses 1 --early-timers 1
\b
What the paper's rules do, read literally (each variant has a size that shows it):
  inaproto explore --variant free-whole-slot
  inaproto explore --variant free-own-bit --reorder
  inaproto explore --variant free-own-bit
  inaproto explore --variant free-own-bit --spare-acks
  inaproto explore --variant single-entry-lookup
\b
Variants:
"""
_ADVICE: Final = """

A world grows quickly: by a factor of about ten for each fault more, and by more than that for each rank or
message in flight more. Begin small. A search that would need more than --states-max states ends without a
verdict.

Exit status: 0 if every state is right and can still finish, 1 if not (a shortest run that shows it is
printed), 2 if the command is wrong or the world too large.
"""


class _Explore(click.Command):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from inaproto.sim.explore.variants import VARIANTS

        told = "\n".join(f"  {variant.name}:\n      {variant.text}" for variant in VARIANTS.values())
        self.epilog = _EXAMPLES + told + _ADVICE
        super().format_epilog(ctx, formatter)


@click.command(cls=_Explore)
@click.option(
    "--variant",
    default="product",
    show_default=True,
    metavar="NAME",
    help="What sums in the switch: one of the names below.",
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
    help="A duplicate's copy, or the packet itself, arrives any time later. Implies --duplicates 1.",
)
@click.option("--early-timers", type=int, metavar="K", help="Retransmission timers that expire too early.")
@click.option("--spare-acks", is_flag=True, help="Losses and duplicates strike data and results only.")
@click.option("--ack-every", type=int, metavar="K", help="Packets of an acknowledgement group; 1 narrows it.")
@click.option(
    "--transport-window",
    type=int,
    metavar="K",
    help="Packets unacknowledged at most.  [default: as many as PSNs of this width allow]",
)
@click.option("--full", is_flag=True, help="Without reductions: slower, the same verdict.")
@click.option("--states-max", type=int, default=10_000_000, show_default=True, help="Give up beyond.")
@click.option(
    "--json",
    "json_file",
    type=click.File("w", lazy=False),
    metavar="FILE",
    help="Write the verdict there as JSON.",
)
def explore(variant: str, full: bool, states_max: int, json_file: TextIO | None, **sizes: Any) -> None:
    """Explore a small ring exhaustively: all interleavings of its packets, all faults within a budget.

    Hosts and accelerator are the product's own cores, exchanging real RoCEv2 frames with PSNs of a few
    bits. In every reachable state it is checked that no rank took a wrong sum or took one twice, that no
    window was passed, that results leave the accelerator in PSN order, that slots belong to one message,
    that nobody blames anybody, and that without further faults everybody can still finish.
    """
    from rich.console import Console

    from inaproto.sim.explore.engine import TooManyStates
    from inaproto.sim.explore.variants import ring_config
    from inaproto_hil.explore.report import report_of, search, shortest, show

    try:
        if states_max < 1:
            raise ConfigError(f"--states-max must be at least 1, not {states_max}")
        config = ring_config(variant, reduced=not full, **sizes)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    try:
        done = search(variant, config, states_max)
        found = shortest(variant, done, states_max)
    except TooManyStates as error:
        click.echo(f"inaproto: no verdict: {error} (--states-max)", err=True)
        sys.exit(2)
    if json_file is not None:
        json_file.write(json.dumps(report_of(variant, done, found), indent=2) + "\n")
    show(Console(), variant, done, found)
    sys.exit(0 if found is None else 1)
