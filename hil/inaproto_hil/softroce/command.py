"""``inaproto hil softroce``: all-reduces of kernel RoCE hosts through the switch daemon."""

from __future__ import annotations

import sys
from typing import Any, Final

import click
import trio
from rich.console import Console
from rich.table import Table

from inaproto.core.rdma.reliable_connection import MTUS
from inaproto.errors import InaprotoError
from inaproto.option_types import ReportFile, write_report
from inaproto_hil.bench.report import parse_size
from inaproto_hil.rigs.environment import describe
from inaproto_hil.softroce.guest import guest_failure_alone
from inaproto_hil.softroce.image import Image, open_image
from inaproto_hil.softroce.network import HOSTS_MAX
from inaproto_hil.softroce.switched import Switched, SwitchedConfig, run_switched

VERSION: Final = 1
DTYPES: Final = ("float32",)


def _sizes(ctx: click.Context, parameter: click.Parameter, value: str) -> list[int]:
    try:
        return [parse_size(one) for one in value.split(",")]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _mtus(ctx: click.Context, parameter: click.Parameter, value: str) -> list[int]:
    texts = value.split(",")
    if not all(one.isdigit() and int(one) in MTUS for one in texts):
        raise click.BadParameter(f"{value!r}: of {', '.join(map(str, MTUS))}, with commas between them")
    return [int(one) for one in texts]


@click.command()
@click.option(
    "--hosts", type=click.IntRange(2, HOSTS_MAX), default=2, show_default=True, help="RoCE devices."
)
@click.option("--sizes", callback=_sizes, default="64K,1M", show_default=True, help="Bytes of a tensor.")
@click.option("--mtu", "mtus", callback=_mtus, default="1024", show_default=True, help="Of the RoCE path.")
@click.option("--iterations", type=click.IntRange(1), default=3, show_default=True, help="Of each size.")
@click.option(
    "--timeout",
    type=click.IntRange(0, 31),
    default=17,
    show_default=True,
    help="Exponent of the NICs' timer: 4.096 us * 2**TIMEOUT. Emulated hosts need 17 or more.",
)
@click.option(
    "--json",
    "json_file",
    type=ReportFile(),
    metavar="FILE",
    help="Write the report there; - is standard output.",
)
def softroce(
    hosts: int, sizes: list[int], mtus: list[int], iterations: int, timeout: int, json_file: str | None
) -> None:
    """All-reduces of kernel RoCE hosts, summed by the switch daemon.

    The hosts are Soft-RoCE devices in a small virtual machine that is emulated: no hardware, no root. Their
    frames cross the switch daemon, which runs here and sums them on their way. Each element of each result is
    checked. Exit status 1 if any is wrong, or a NIC gave up.

    The first run makes the virtual machine out of the distribution's kernel package (ten seconds, 70 MB,
    kept in ~/.cache/inaproto); what has to be installed is said if it is missing.
    """
    console = Console(stderr=json_file == "-")
    try:
        image = open_image(lambda text: console.print(text, soft_wrap=True, highlight=False, markup=False))
        found = {}
        for mtu in mtus:
            config = SwitchedConfig(
                hosts=hosts,
                mtu=mtu,
                rows=[(dtype, size) for dtype in DTYPES for size in sizes],
                iterations=iterations,
                timeout=timeout,
            )
            with guest_failure_alone():
                found[mtu] = trio.run(_measure, image, config, console)
    except InaprotoError as error:
        click.echo(f"inaproto: {error}", err=True)
        sys.exit(1)
    report = document(found, image, hosts=hosts, iterations=iterations, timeout=timeout)
    console.print(_table(report))
    write_report(report, json_file)
    sys.exit(1 if report["wrong"] or report["retry_exceeded"] else 0)


async def _measure(image: Image, config: SwitchedConfig, console: Console) -> Switched:
    with console.status(f"{config.hosts} RoCE hosts, MTU {config.mtu}: booting, then all-reduces"):
        return await run_switched(image, config)


def document(found: dict[int, Switched], image: Image, **config: Any) -> dict[str, Any]:
    """For ``json.dump``."""
    devices = [counters for one in found.values() for counters in one.devices]
    rows = [{"mtu": mtu, **row} for mtu, one in found.items() for row in one.rows]
    return {
        "version": VERSION,
        "benchmark": "softroce",
        "config": config,
        "env": {**describe(), "guest_kernel": image.version},
        "wrong": sum(row["wrong"] for row in rows),
        "retry_exceeded": sum(one["retry_exceeded"] for one in devices),
        "retransmissions": sum(one["retransmits"] for one in devices),
        "rows": rows,
        "devices": {str(mtu): one.devices for mtu, one in found.items()},
    }


def _table(report: dict[str, Any]) -> Table:
    table = Table("MTU", "bytes", "ms, median", "wrong", "summed by", title="Soft-RoCE hosts")
    for row in report["rows"]:
        seconds = sorted(row["seconds"])
        median = f"{seconds[len(seconds) // 2] * 1000:.1f}"
        table.add_row(
            str(row["mtu"]), f"{row['bytes']:,}", median, str(row["wrong"]), " + ".join(row["paths"])
        )
    table.caption = f"wrong {report['wrong']}, retransmissions {report['retransmissions']}"
    return table
