"""Options of the benches that run daemons on links beside others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from inaproto.option_types import ReportFile, path_mtu
from inaproto_hil.bench.peers.config import host_default

Command = Callable[..., Any]


mtu_option = click.option(
    "--mtu", type=int, default=host_default("mtu"), show_default=True, callback=path_mtu,
    help="Payload bytes per packet; the links' MTU is 1500 up to 1024, 3822 at 2048, then 9000.",
)  # fmt: skip
before_option = click.option(
    "--before",
    type=click.Path(exists=True, dir_okay=False),
    metavar="PATH",
    help="Python of an environment with another inaproto, which takes its turns: what a change brings.",
)
rounds_option = click.option(
    "--rounds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Samples of a row."
)
json_option = click.option(
    "--json",
    "json_at",
    type=ReportFile(),
    metavar="FILE",
    help="Report file; - is stdout (the table: stderr).",
)


def daemon_options(command: Command) -> Command:
    """Further words for daemons."""
    command = click.option(
        "--switch-option",
        "switch_options",
        multiple=True,
        metavar="WORD",
        help="The same for inaproto switch.",
    )(command)
    return click.option(
        "--host-option",
        "host_options",
        multiple=True,
        metavar="WORD",
        help="A further word for inaproto host, {n} being its number; repeatable.",
    )(command)
