"""The command ``inaproto bench accelerator``: one accelerator, several shards, or one behind ports."""

from __future__ import annotations

import functools
import sys
from typing import Any

import click
from rich.console import Console
from rich.progress import track

from inaproto.option_types import ReportFile, write_report
from inaproto_hil.bench.accelerator import Config, measure
from inaproto_hil.bench.shards import measure_shards
from inaproto_hil.bench.through_ports import measure_ports


@click.command()
@click.option(
    "--workers", default=4, show_default=True, type=click.IntRange(2, 64), help="Ranks in the ring."
)
@click.option(
    "--rings",
    default=1,
    show_default=True,
    type=click.IntRange(1, 16),
    help="Rings whose packets alternate one by one on every port.",
)
@click.option(
    "--payload", default=1024, show_default=True, type=click.IntRange(64, 4096), help="Path MTU in bytes."
)
@click.option(
    "--packets", default=170, show_default=True, type=click.IntRange(2, 4096), help="Packets a message."
)
@click.option(
    "--window", type=click.IntRange(1, 64), help="Messages in flight.  [default: 2; 8 with --ports]"
)
@click.option(
    "--sets",
    type=click.IntRange(1, 1000),
    help="Sets a round.  [default: 10; 100 with --ports, and with --shards above 1]",
)
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(3, 1000), help="Timed rounds.")
@click.option("--warmup", default=2, show_default=True, type=click.IntRange(0, 100), help="Rounds not timed.")
@click.option("--seed", default=1, show_default=True, help="Of the tensor data.")
@click.option(
    "--shards",
    default=1,
    show_default=True,
    type=click.IntRange(1, 64),
    help="More than 1: that many accelerators at once, each with a process, a CPU and --rings rings of its "
    "own, against one of them alone, in wall time; the naive loop is left out.",
)
@click.option(
    "--ports",
    is_flag=True,
    help="Behind real ports: a switch with memory that it shares with all hosts, which are one process on "
    "another CPU. The rate is by all CPU time of the switch.",
)
@click.option("--json", "json_at", type=ReportFile(), help="Report file; - is stdout.")
def accelerator(
    workers: int,
    rings: int,
    payload: int,
    packets: int,
    window: int | None,
    sets: int | None,
    rounds: int,
    warmup: int,
    seed: int,
    shards: int,
    ports: bool,
    json_at: str | None,
) -> None:
    """Time the accelerator core alone against a per-packet loop.

    Example: inaproto bench accelerator --workers 4 --rings 2 --payload 1024 --json -

    Prints the payload rate of one core in each direction (ICRC verified and remade) and its ratio to
    the naive loop, medians over interleaved rounds with their spread. With several rings the packets of
    all of them alternate on each port: that should cost about as much a packet as one ring does. With
    --shards 2 it prints how many times one accelerator two of them are, each on a CPU of its own; with
    --ports what a core of a switch passes through real ports, and whether it or the hosts were the limit.
    Exits 1 if any sum was wrong.
    """
    console = Console(stderr=True)
    if ports and shards > 1:
        raise click.UsageError("--ports and --shards are two measurements: ask for one")
    window = window or (8 if ports else 2)
    if payload % 8 or window & (window - 1):
        raise click.BadParameter("--payload must be a multiple of 8 and --window a power of two")
    sets = sets or (100 if ports or shards > 1 else 10)  # processes begin some 100 us after each other
    config = Config(workers, rings, payload, packets, window, sets, rounds, warmup, seed)
    progress = functools.partial(
        track, description="accelerator", console=console, disable=not console.is_terminal
    )
    if ports:
        report = measure_ports(config, progress)
        text = _text_of_ports(report)
    elif shards > 1:
        report = measure_shards(config, shards, progress)
        text = _text_of_shards(report)
    else:
        report = measure(config, progress)
        text = _text(report)
    console.print(f"kernels {report['config']['kernels']}: {text}, wrong {report['wrong']}", highlight=False)
    write_report(report, json_at)
    if report["wrong"]:
        sys.exit(1)


def _text(report: dict[str, Any]) -> str:
    low, high = report["gbps_per_core_spread"]
    return (
        f"{report['gbps_per_core']:.2f} Gb/s each way per core ({low:.2f} to {high:.2f}), "
        f"naive {report['naive_gbps_per_core']:.2f}, ratio {report['ratio_to_naive']:.1f}"
    )


def _text_of_ports(report: dict[str, Any]) -> str:
    low, high = report["gbps_per_core_spread"]
    return (
        f"{report['gbps_per_core']:.2f} Gb/s each way per core of the switch ({low:.2f} to {high:.2f}), "
        f"{report['gbps']:.2f} by wall time, hosts {report['hosts_gbps_per_core']:.2f} per core"
    )


def _text_of_shards(report: dict[str, Any]) -> str:
    low, high = report["ratio_to_one_spread"]
    return (
        f"{report['config']['shards']} shards {report['gbps_of_all']:.2f} Gb/s each way in all, "
        f"one alone {report['gbps_of_one']:.2f}, "
        f"ratio {report['ratio_to_one']:.2f} ({low:.2f} to {high:.2f}), "
        f"by CPU time {report['ratio_by_cpu_time']:.2f}"
    )
