"""``inaproto nics``: the RDMA devices of this machine, and why one cannot be used."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from inaproto.errors import Unsupported

if TYPE_CHECKING:
    from rich.table import Table

    from inaproto_adapters.verbs.devices import Device


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def nics(as_json: bool) -> None:
    """Show the RDMA devices of this machine.

    One line for each address of each port. A device that cannot be used says why. Use one by its address:
    inaproto host --nic verbs --ip ADDRESS, on InfiniBand --gid ADDRESS. Exit status 1 if none can be used.
    """
    from rich.console import Console  # here: a list of all commands needs none of it

    from inaproto_adapters.verbs import devices as verbs_devices

    try:
        devices = verbs_devices.list_devices()
    except Unsupported as error:
        click.echo(f"inaproto: {error}", err=True)
        if as_json:
            click.echo("[]")
        sys.exit(1)
    if as_json:
        click.echo(json.dumps([_record(device) for device in devices], indent=2))
    elif devices:
        Console().print(_table(devices))
    else:
        click.echo("this machine has no RDMA devices; for one without hardware, which needs root:")
        click.echo("  rdma link add rxe0 type rxe netdev eth0")
    sys.exit(0 if any(not device.why_not for device in devices) else 1)


def _record(device: Device) -> dict[str, Any]:
    """For ``json.dump``."""
    at = device.infiniband
    return {
        "name": device.name,
        "port": device.port,
        "ip": "" if at else device.address,
        "gid": device.address if at else "",
        "lid": at.lid if at else 0,
        "mac": device.mac.hex(":") if device.mac else "",
        "interface": device.interface,
        "gid_index": device.gid_index,
        "mtu": device.mtu,
        "usable": not device.why_not,
        "why_not": device.why_not,
    }


def _table(devices: list[Device]) -> Table:
    from rich.table import Table

    from inaproto.plain_cells import plain

    table = Table("device", "port", "address", "interface", "GID", "MTU", "usable")
    for device in devices:
        cells = plain(
            device.name,
            device.port,
            device.address or "-",
            f"LID {device.infiniband.lid}" if device.infiniband else device.interface or "-",
            device.gid_index if device.address else "-",
            device.mtu,
            f"no: {device.why_not}" if device.why_not else "yes",
        )
        table.add_row(*cells)
    return table
