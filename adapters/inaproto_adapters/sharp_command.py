"""``inaproto sharp``: whether SHARP's library is what the adapter takes it for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from inaproto.errors import ConfigError, FabricError, LocalMisuse, Unsupported
from inaproto.option_types import ReportFile, WholeGroup, write_report


@click.group(cls=WholeGroup)
def sharp() -> None:
    """Check SHARP's library and headers at a site.

    The adapter was checked against the documented interface and a test double, and has never run on SHARP
    hardware.
    """


@sharp.command("abi-check")
@click.option(
    "--include",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder that has sharp/api/sharp_coll.h.",
)
@click.option(
    "--cc", default="", metavar="CC", help="C compiler; else CC of the environment, cc, gcc, clang."
)
@click.option(
    "--library",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The library of these headers: a passing check is recorded for its bytes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def abi_check(include: Path, cc: str, library: Path | None, as_json: bool) -> None:
    """Compare a site's SHARP header with the layout that the adapter uses.

    Prints each struct member, constant or function that differs; then the exit status is 1. Nothing of the
    library is called.
    """
    from inaproto_adapters.sharp import abi

    try:
        report = abi.check(include, cc)
        recorded = abi.record_passed(library, report) if library is not None and report.passes else None
    except ConfigError as error:
        click.echo(f"inaproto: {error}", err=True)
        sys.exit(2)
    except (Unsupported, OSError) as error:
        click.echo(f"inaproto: {error}", err=True)
        sys.exit(1)
    if as_json:
        click.echo(json.dumps({**report.record(), "recorded": str(recorded or "")}, indent=2))
    else:
        for mismatch in report.mismatches:
            click.echo(str(mismatch))
        for name in report.absent:
            click.echo(f"{name}: not in this header; what needs it is not offered")
        verdict = "as the adapter takes it" if report.passes else f"{len(report.mismatches)} differ"
        click.echo(f"{report.asked} facts of {include}: {verdict}")
        if recorded is not None:
            click.echo(f"recorded in {recorded}")
    sys.exit(0 if report.passes else 1)


@sharp.command("probe")
@click.option("--hub", required=True, metavar="HOST:PORT", help="Where rank 0 listens for the other ranks.")
@click.option("--key", default="", envvar="INAPROTO_KEY", help="A word that all ranks know.")
@click.option("--rank", type=click.IntRange(0), help="By default the launcher's.")
@click.option("--size", type=click.IntRange(1), help="By default the launcher's.")
@click.option("--library", default="", metavar="FILE", help="By default the one that the system finds.")
@click.option("--include", metavar="DIR", type=click.Path(path_type=Path), help="Its headers, to be checked.")
@click.option("--devices", default="", help="Devices, as mlx5_0:1; by default the library's choice.")
@click.option(
    "--cycles", default=5, show_default=True, type=click.IntRange(1, 1000), help="Jobs that come and go."
)
@click.option("--size-max", default="512M", show_default=True, help="Longest all-reduce that is timed.")
@click.option("--locks", is_flag=True, help="Also start a second job on the same devices.")
@click.option(
    "--json", "json_at", type=ReportFile(), default="-", show_default=True, help="Rank 0's file; - is stdout."
)
def probe(
    hub: str,
    key: str,
    rank: int | None,
    size: int | None,
    library: str,
    include: Path | None,
    devices: str,
    cycles: int,
    size_max: str,
    locks: bool,
    json_at: str,
) -> None:
    """Measure SHARP at a site, with one process a host: all of them run this, under any launcher.

    Rank 0 writes one JSON: library and headers, configuration, what the switches do, how long a job takes to
    come and go, whether sums are right, how long they take. Only such a record says anything of hardware.
    """
    try:
        record = _probed(hub, key, rank, size, library, include, devices, cycles, size_max, locks)
    except (ConfigError, LocalMisuse, ValueError) as error:
        click.echo(f"inaproto: {error}", err=True)
        sys.exit(2)
    except (Unsupported, FabricError) as error:
        click.echo(f"inaproto: {error}", err=True)
        sys.exit(1)
    if record:
        write_report(record, json_at)
        sys.exit(0 if all("caps" in each for each in record["ranks"]) else 1)


def _probed(
    hub: str,
    key: str,
    rank: int | None,
    size: int | None,
    library: str,
    include: Path | None,
    devices: str,
    cycles: int,
    size_max: str,
    locks: bool,
) -> dict[str, Any]:
    import os

    import trio

    from inaproto.client.environment import discover
    from inaproto_adapters.sharp.hub import met
    from inaproto_adapters.sharp.library import load
    from inaproto_adapters.sharp.probe import Probe, ProbeWish, require_sane

    if rank is None or size is None:
        found = discover(os.environ)
        rank, size = found.rank if rank is None else rank, found.size if size is None else size
    if rank is None or size is None or rank >= size:
        raise ConfigError(f"rank {rank} of size {size}: start this by a launcher, or give --rank and --size")
    wish = ProbeWish(devices, include, cycles, _bytes(size_max), locks)
    require_sane(wish)
    loaded = load(library)

    async def run(rank: int, size: int) -> dict[str, Any]:
        async with met(hub, rank, size, key) as others:
            record = await Probe(loaded, wish, others).run()
            await others.all_gather(b"done")
            return record

    try:
        return trio.run(run, rank, size)
    except BaseExceptionGroup as group:
        _, rest = group.split((ConfigError, FabricError, Unsupported))
        if rest is not None:
            raise
        raise _first(group) from None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _bytes(text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    if not number.isdecimal() or unit not in units:
        raise ConfigError(f"size-max: {text!r} is not a size: write for example 64K or 512M")
    return int(number) * units[unit]
