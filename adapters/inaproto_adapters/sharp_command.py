"""``inaproto sharp``: whether SHARP's library is what the adapter takes it for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from inaproto.errors import ConfigError, Unsupported


@click.group()
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
