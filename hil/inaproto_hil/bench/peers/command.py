"""The command ``inaproto bench peers``: how fast all-reduces are, beside those of other systems."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from inaproto.errors import InaprotoError
from inaproto.option_types import FiniteRange, ReportFile, parsed, write_report
from inaproto_hil.bench.peers.config import (
    ADAPTERS,
    BEFORE,
    BUFFER,
    CONTENDERS,
    FLOAT_BYTES,
    GLOO,
    INAPROTO,
    MPI,
    PACKET_PORT,
    SHARED_MEMORY,
    Config,
    host_default,
    parse_delay,
    parse_link,
    parse_port,
    parse_settings,
    parse_share,
)  # fmt: skip
from inaproto_hil.bench.peers.figures import Entry, document
from inaproto_hil.bench.peers.measuring import measure
from inaproto_hil.bench.peers.options import (
    before_option,
    daemon_options,
    json_option,
    mtu_option,
    rounds_option,
)
from inaproto_hil.bench.peers.table import show, show_wide
from inaproto_hil.bench.peers.tools import PACKAGES, InstallFailed, Tools, default_environment, find_peers
from inaproto_hil.bench.report import parse_size
from inaproto_hil.ranks.predictable import RANKS_MAX
from inaproto_hil.rigs import environment
from inaproto_hil.rigs.cluster import ClusterError, signals_as_interrupt
from inaproto_hil.rigs.links import Shape
from inaproto_hil.rigs.namespaces import check_namespaces

DEFAULT_SIZES: Final = "64K,1M,4M,16M,64M"
ON_LINKS: Final = (INAPROTO, GLOO)
ON_ONE_MACHINE: Final = (INAPROTO, BUFFER, GLOO, MPI)


def parse_hosts(text: str) -> tuple[int, ...]:
    found = tuple(int(part) if part.isdecimal() else 0 for part in text.split(","))
    if not all(2 <= hosts <= RANKS_MAX for hosts in found):
        raise ValueError(f"{text!r}: write numbers of hosts from 2 to {RANKS_MAX}, for example 2,4,8")
    return found


def _sizes(text: str) -> tuple[int, ...]:
    found = tuple(map(parse_size, text.split(",")))
    if any(size % FLOAT_BYTES for size in found):
        raise ValueError(f"{text!r}: arrays are of float32, so sizes are multiples of {FLOAT_BYTES}")
    return found


def _only(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(text.split(",")))
    if not set(found) <= set(CONTENDERS):
        raise ValueError(f"{text!r}: there are {', '.join(CONTENDERS)}")
    return found


def _run(config: Config, hosts: Sequence[int], tools: Tools, console: Console) -> dict[str, Any]:
    """The whole measurement as the JSON document of the command."""
    env = environment.describe()
    entries: list[Entry] = []
    versions: dict[str, str] = {}
    failures: list[str] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        takes_part = sum(tools.why_not(name, config) is None for name in config.only) + bool(config.before)
        total = len(hosts) * (1 + len(config.sizes) * takes_part * (1 + config.rounds))
        bar = progress.add_task("starting", total=total)

        def step(what: str) -> None:
            progress.update(bar, advance=1, description=what)

        for count in hosts:
            try:
                measure(replace(config, hosts=count), tools, versions, step, entries.append)
            except ClusterError as error:  # what was measured before is kept
                failures.append(f"{count} hosts: {error}")
    env["load_after"] = [round(value, 2) for value in os.getloadavg()]
    peers = {
        name: {
            "measured": name in versions,
            "version": versions.get(name),
            "why_not": tools.why_not(name, config) or (None if name in versions else "it failed"),
        }
        for name in (*config.only, *([BEFORE] if config.before else []))
    }
    return document(config=config, hosts=hosts, env=env, peers=peers, entries=entries, failures=failures)


@click.command("peers")
@click.option(
    "--hosts", default="4", show_default=True, callback=parsed(parse_hosts), metavar="W,W,...",
    help="Ranks; on links each is a machine.",
)  # fmt: skip
@click.option(
    "--link", "rate_bps", callback=parsed(parse_link), metavar="RATE",
    help="Rate of each machine's link, each way: 200M, 1G, unshaped; takes root.  [default: one machine]",
)  # fmt: skip
@click.option(
    "--delay", "delay_us", default="0us", callback=parsed(parse_delay), metavar="TIME",
    help="Of each link, one way: 100us; takes a kernel with netem.",
)  # fmt: skip
@click.option(
    "--loss", default="0", callback=parsed(parse_share), metavar="SHARE",
    help="Of the frames on each link, each way: 0.1%.",
)  # fmt: skip
@click.option("--cables", is_flag=True, help="Links as --loss makes them, to compare with these.")
@click.option(
    "--sizes", default=DEFAULT_SIZES, show_default=True, callback=parsed(_sizes), metavar="S,S,...",
    help="Bytes of vector (K, M: 1024).",
)  # fmt: skip
@click.option(
    "--only", callback=parsed(_only), metavar="WHO,...",
    help=f"Of {', '.join(CONTENDERS)}; buffer: inaproto with memory shared with its daemon.  "
    f"[default: {','.join(ON_LINKS)} on links, else all]",
)  # fmt: skip
@before_option
@click.option(
    "--before-with",
    callback=parsed(parse_settings),
    metavar="NAME=VALUE,...",
    help="Its settings that are other than those of this one: port=packet,window=2. Without --before: of "
    "this inaproto, twice.",
)
@rounds_option
@click.option(
    "--turn", "turn_s", type=FiniteRange(0.0, 600.0), default=1.0, show_default=True,
    help="Seconds of all-reduces of a contender in a round; at least one, 64 or 64 MiB at most.",
)  # fmt: skip
@click.option(
    "--group", type=click.IntRange(1, 64), default=1, show_default=True,
    help="All-reduces that are started together.",
)  # fmt: skip
@click.option(
    "--busy", type=click.IntRange(0, 256), default=0, show_default=True,
    help="Busy loops beside all of it.",
)  # fmt: skip
@click.option("--apart", is_flag=True, help="Without --link: a host daemon for each rank, not one for all.")
@mtu_option
@click.option(
    "--window", type=int, default=host_default("window_messages"), show_default=True,
    help="Messages in flight.",
)  # fmt: skip
@click.option(
    "--message-packets", type=int, default=host_default("message_packets"), show_default=True,
    help="Packets per message.",
)  # fmt: skip
@click.option(
    "--transport-timeout", type=int, default=host_default("transport_timeout"), show_default=True,
    help="Exponent of the retransmission timer.",
)  # fmt: skip
@click.option(
    "--timeout", "timeout_s", type=FiniteRange(1, 3600), default=120.0, show_default=True,
    help="Seconds one all-reduce may take.",
)  # fmt: skip
@click.option(
    "--port", callback=parsed(parse_port), metavar="KIND",
    help="Ports of the daemons on links, as inaproto host --port takes them; {} is the interface. With "
    "--apart: shm or frames.  [default: packet on links, else shm]",
)  # fmt: skip
@daemon_options
@click.option(
    "--install", "is_install", is_flag=True, help="Get torch and Open MPI first, if they are missing."
)
@click.option(
    "--tools-python", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="PATH",
    help="A Python that has torch, or mpi4py with mpirun beside it.  [default: an environment in the cache]",
)  # fmt: skip
@json_option
@click.option("--plot", type=ReportFile(), metavar="FILE", help="Picture (SVG) of the bandwidths.")
def peers_bench(
    *,
    hosts: tuple[int, ...],
    rate_bps: int | None,
    delay_us: int,
    loss: float,
    only: tuple[str, ...] | None,
    is_install: bool,
    tools_python: Path | None,
    before: str | None,
    before_with: tuple[tuple[str, str | int], ...] | None,
    json_at: str | None,
    plot: str | None,
    **fields: Any,
) -> None:
    """All-reduces by inaproto's daemons beside those of gloo and Open MPI, in turns.

    Example: sudo inaproto bench peers --hosts 4 --link 200M --sizes 1M,4M,16M --only inaproto,gloo

    With --link each rank is a machine: a network namespace with a link to the switch, shaped at both
    ends. The switch daemon and the host daemons have AF_PACKET ports there; gloo has links of its own, all
    alike, to a bridge. Without --link all is on this machine: the ranks at one host daemon, gloo by TCP
    over loopback, Open MPI by shared memory.

    In each round every contender has a turn of some all-reduces, on equal data. Time is that of the slowest
    rank, the median over rounds. CPU is that of all processes, daemons included, for 1e9 bytes of vector.
    Every element is checked; exit status 1 if one is wrong, or a process failed.

    torch and Open MPI are no dependencies of inaproto: --install gets them into an environment of their
    own. A peer that is not there is named below the table, and the others are measured.
    """
    if rate_bps is None and (delay_us or loss or fields["cables"]):
        raise click.UsageError("--delay, --loss and --cables are of links: give --link, too")
    if rate_bps is not None and fields["apart"]:
        raise click.UsageError("--apart is for one machine: leave --link out")
    fields["port"] = fields["port"] or (SHARED_MEMORY if rate_bps is None else PACKET_PORT)
    if (fields["port"] in ADAPTERS) != (rate_bps is None):
        raise click.UsageError(
            f"--port {fields['port']}: with --link it is of interfaces, else shm or frames"
        )
    link = None if rate_bps is None else Shape(rate_bps, delay_us=delay_us, loss=loss)
    asked = only or (ON_ONE_MACHINE if link is None else ON_LINKS)
    config = Config(
        hosts=hosts[0],
        only=asked,
        link=link,
        before=before or (sys.executable if before_with else ""),
        before_with=before_with or (),
        **fields,
    )
    tools = Tools(tools_python or default_environment() / "bin" / "python")
    console = Console(stderr=True, highlight=False)
    try:
        with signals_as_interrupt():
            if link is not None:
                check_namespaces()
            wanted = [
                name for name in config.only if name in PACKAGES and tools.why_not(name, config) is None
            ]
            find_peers(tools, wanted, is_install, console)
            report = _run(config, hosts, tools, console)
    except (InaprotoError, ClusterError, InstallFailed) as error:
        raise click.ClickException(str(error)) from None
    show_wide(show, report, json_at)
    write_report(report, json_at)
    if plot is not None:
        from inaproto_hil.bench.peers.picture import drawing
        from inaproto_hil.bench.priorities import write_text

        write_text(drawing(report), plot)
    sys.exit(1 if report["wrong"] or report["failures"] else 0)
