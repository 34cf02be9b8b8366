"""The command ``inaproto bench training``: how long a step of an unchanged PyTorch script takes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from inaproto.errors import InaprotoError
from inaproto.option_types import FiniteRange, ReportFile, parsed, write_report
from inaproto_hil.bench.peers.command import parse_hosts
from inaproto_hil.bench.peers.config import BEFORE, GLOO, parse_rate
from inaproto_hil.bench.peers.options import (
    before_option,
    daemon_options,
    json_option,
    mtu_option,
    rounds_option,
)
from inaproto_hil.bench.peers.table import show_wide
from inaproto_hil.bench.peers.tools import InstallFailed, Tools, find_peers
from inaproto_hil.bench.training.config import (
    CONTENDERS,
    OURS,
    SCRIPT,
    USUAL_MODELS,
    Config,
    parse_contenders,
    parse_models,
)
from inaproto_hil.bench.training.figures import Measured, document
from inaproto_hil.bench.training.measuring import measure
from inaproto_hil.bench.training.places import layers, tools_at, why_no_backend
from inaproto_hil.bench.training.table import show
from inaproto_hil.rigs import environment
from inaproto_hil.rigs.cluster import ClusterError, signals_as_interrupt
from inaproto_hil.rigs.namespaces import check_namespaces


def parse_rates(text: str) -> tuple[int, ...]:
    """``"200M,1G"``."""
    return tuple(map(parse_rate, text.split(",")))


def find_paths(config: Config, tools: Tools, why_not: dict[str, str]) -> dict[str, str]:
    """The ``PYTHONPATH`` of each contender that can be had; of the others ``why_not`` has the reason."""
    found: dict[str, str] = {}
    for name in config.contenders:
        if GLOO in tools.lacks:
            why_not[name] = tools.lacks[GLOO]
        elif name not in OURS:
            found[name] = ""
        else:
            try:
                path = layers(Path(config.before if name == BEFORE else sys.executable))
            except OSError as error:
                why_not[name] = str(error)
                continue
            reason = why_no_backend(tools, path)
            if reason is None:
                found[name] = path
            else:
                why_not[name] = reason
    return found


def run(config: Config, tools: Tools, console: Console) -> dict[str, Any]:
    """The whole measurement as the JSON document of the command."""
    env = environment.describe()
    measured: list[Measured] = []
    versions: dict[str, str] = {}
    failures: list[str] = []
    why_not: dict[str, str] = {}
    with console.status("looking whether torch can load inaproto.torch"):
        paths = find_paths(config, tools, why_not)
    for name, why in why_not.items():
        console.print(f"{name}: {why}", markup=False, soft_wrap=True)
    places = [(count, rate) for rate in config.rates_bps for count in config.ranks] if paths else []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        runs = len(paths) * 2 + 1 if config.has_parts else len(paths)
        total = len(places) * (1 + len(config.models) * (1 + runs * config.rounds))
        bar = progress.add_task("starting", total=total)

        def step(what: str) -> None:
            progress.update(bar, advance=1, description=what)

        for place in places:
            try:
                measure(config, tools, paths, place, versions, step, measured.append)
            except ClusterError as error:  # what was measured before is kept
                failures.append(f"{place[0]} ranks, {place[1] / 1e6:g} Mbit/s: {error}")
    env["load_after"] = [round(value, 2) for value in os.getloadavg()]
    return document(
        config=config, env=env, peers=_peers(config, versions, why_not), measured=measured, failures=failures
    )


def _peers(config: Config, versions: Mapping[str, str], why_not: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: {
            "measured": name in versions,
            "version": versions.get(name),
            "why_not": None if name in versions else why_not.get(name, "it failed"),
        }
        for name in config.contenders
    }


@click.command("training")
@click.option(
    "--ranks", default="2,4,8", show_default=True, callback=parsed(parse_hosts), metavar="W,W,...",
    help="Ranks; each is a machine at a link of its own.",
)  # fmt: skip
@click.option(
    "--link", "rates_bps", default="200M,1G", show_default=True, callback=parsed(parse_rates),
    metavar="RATE,...", help="Rates of each machine's link, each way.",
)  # fmt: skip
@click.option(
    "--models", default=",".join(USUAL_MODELS), show_default=True, callback=parsed(parse_models),
    metavar="NAME,...",
    help="vgg: dense layers have most weights; resnet: convolutions; transformer: both; device: a backward "
    "pass of 0.8 s that takes no processor, as on a GPU.",
)  # fmt: skip
@click.option(
    "--only", default=",".join(CONTENDERS), show_default=True, callback=parsed(parse_contenders),
    metavar="WHO,...", help="Who takes turns.",
)  # fmt: skip
@before_option
@click.option(
    "--batch", type=click.IntRange(1), default=8, show_default=True, help="Samples of a rank in a step."
)
@click.option(
    "--scale", type=FiniteRange(0.05, 100), default=1.0, show_default=True,
    help="Of the models' widths: weights grow with its square.",
)  # fmt: skip
@click.option(
    "--bucket", "bucket_mib", type=FiniteRange(0.01, 1000), metavar="MIB",
    help="Size of DDP's buckets, whose sums hide behind the backward pass but for the last one.  [default: "
    "torch's, 25 MiB; model device: 1 MiB]",
)  # fmt: skip
@rounds_option
@click.option(
    "--turn", "turn_s", type=FiniteRange(0.0, 600.0), default=4.0, show_default=True,
    help="Seconds of a turn, at least.",
)  # fmt: skip
@click.option(
    "--steps", type=click.IntRange(1, 10_000), default=3, show_default=True,
    help="Steps of a turn that count, at least; two more go before them.",
)  # fmt: skip
@click.option(
    "--check", type=click.IntRange(1), default=5, show_default=True,
    help="Steps from one digest of the weights to the next.",
)  # fmt: skip
@click.option(
    "--parts/--no-parts", "has_parts", default=True, show_default=True,
    help="Measure computation and communication alone, too: exposed, overlap.",
)  # fmt: skip
@mtu_option
@click.option(
    "--timeout", "timeout_s", type=FiniteRange(1, 3600), default=120.0, show_default=True,
    help="Seconds one step may take.",
)  # fmt: skip
@daemon_options
@click.option(
    "--script", default=str(SCRIPT), metavar="PATH",
    help="Another script with the same options and lines.  [default: examples/torch/train_models.py]",
)  # fmt: skip
@click.option("--install", "is_install", is_flag=True, help="Get torch first, if it is missing.")
@click.option(
    "--tools-python", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="PATH",
    help="A Python that has torch.  [default: this one, or an environment in the cache]",
)  # fmt: skip
@json_option
@click.option("--plot", type=ReportFile(), metavar="FILE", help="Picture (SVG) of the steps.")
def training_bench(
    *,
    script: str,
    before: str | None,
    is_install: bool,
    tools_python: Path | None,
    json_at: str | None,
    plot: str | None,
    **fields: Any,
) -> None:
    """How long a training step of an unchanged PyTorch script takes: by gloo, and by inaproto.

    Example: sudo inaproto bench training --ranks 4 --link 200M --models vgg --json training.json

    The script is ordinary: it names gloo and wraps its model in DistributedDataParallel. Each rank is a
    machine: a network namespace with a link to the switch, shaped at both ends, with CPUs that all ranks
    and daemons of this machine share. For gloo the switch is a kernel bridge. For inaproto it is the switch
    daemon, each machine has a host daemon, and the environment has INAPROTO_TORCH=gloo; the ranks'
    rendezvous, and what gloo does itself, passes that switch as ordinary TCP.

    In each round every contender has a turn, in which its processes run and all others are stopped. The
    first two steps of a turn do not count. A figure is the median over rounds; x gloo is how many times as
    many steps a second, round by round. "compute" is the same script in as many processes, each alone;
    "comm." is the sum of the same gradients without their computation, "link" what the link needs for it.

    Exit status 1 if the weights of two ranks ever differ in a bit, or a process failed. Where inaproto does
    not help, lines below the table say why. docs/training.md tells when to use it.
    """
    if not Path(script).exists():
        raise click.UsageError(f"there is no script {script}: run this in the source tree, or give --script")
    config = Config(script=str(Path(script).resolve()), before=before or "", **fields)
    tools = tools_at(tools_python)
    console = Console(stderr=True, highlight=False)
    try:
        with signals_as_interrupt():
            check_namespaces()
            find_peers(tools, [GLOO], is_install, console)
            report = run(config, tools, console)
    except (InaprotoError, ClusterError, InstallFailed) as error:
        raise click.ClickException(str(error)) from None
    if not report["rows"] and not report["failures"]:
        raise click.ClickException("nobody could be measured, for the reasons above")
    show_wide(show, report, json_at)
    write_report(report, json_at)
    if plot is not None:
        from inaproto_hil.bench.priorities import write_text
        from inaproto_hil.bench.training.picture import drawing

        write_text(drawing(report), plot)
    sys.exit(1 if report["differing"] or report["failures"] else 0)
