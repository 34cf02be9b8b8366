"""``inaproto doctor``: is this machine fit to run hosts or a switch, and how to mend what is not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import click

from inaproto.doctor.site import Asked
from inaproto.errors import InaprotoError
from inaproto.option_types import FiniteRange, IpAddress, path_mtu, power_of_two
from inaproto.pasted import pasted_again

BANDWIDTH_GBIT_MAX: Final = 1e6
RTT_US_MAX: Final = 1e7
SKEW_MS_MAX: Final = 3.6e6
TENSOR_MIB_MAX: Final = 1 << 30

_EPILOG = """
Examples.

\b
  inaproto doctor                                       what can be seen without a word
  inaproto doctor --dir /run/inaproto                   and of the daemons that run here
  inaproto doctor --ip 10.0.0.1 --peer 10.0.0.2         and the link and the way to another host
  inaproto doctor --sharp /opt/mellanox/sharp/lib/libsharp_coll.so
                                                        and whether SHARP finds what it needs
  inaproto doctor --bandwidth-gbit 100 --rtt-us 12      window and timer for that network

Exit status 0 if nothing failed (warnings do not count), 1 if something did, 2 if an option is wrong.
docs/operating.md has the list.
"""


@click.command(epilog=_EPILOG, short_help="Check this machine, and say how to mend it.")
@click.option(
    "--ip",
    type=IpAddress(),
    default="",
    help="Address of the NIC to look at; by default those of --dir's hosts.",
)
@click.option(
    "--peer", type=IpAddress(), default="", help="Address of another host: route, neighbour, round trip."
)
@click.option("--interface", default="", help="Interface to look at, where none has the address.")
@click.option(
    "--nic",
    type=click.Choice(["auto", "verbs", "softnic"]),
    default="auto",
    show_default=True,
    help="What hosts here use; auto: verbs if there is an RDMA device.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Ask the daemons whose sockets are here.  [default: as inaproto status]",
)
@click.option(
    "--socket",
    "sockets",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Ask this daemon (a switch: its control.sock); repeatable.",
)
@click.option(
    "--mtu",
    type=click.IntRange(0, 4096),
    callback=path_mtu,
    default=0,
    help="RoCE path MTU wanted.  [default: of the hosts, 1024]",
)
@click.option(
    "--message-packets",
    type=click.IntRange(0, 65535),
    default=0,
    help="Packets of a message.  [default: 170]",
)
@click.option(
    "--window-messages",
    type=click.IntRange(0, 1024),
    callback=power_of_two,
    default=0,
    help="Window in use.  [default: of the hosts]",
)
@click.option(
    "--transport-timeout",
    type=click.IntRange(-1, 31),
    default=-1,
    help="Timeout exponent in use.  [default: of the hosts]",
)
@click.option(
    "--bandwidth-gbit",
    type=FiniteRange(0, BANDWIDTH_GBIT_MAX),
    default=0.0,
    help="Of the link.  [default: as its driver says]",
)
@click.option(
    "--rtt-us",
    type=FiniteRange(0, RTT_US_MAX),
    default=0.0,
    help="Round trip.  [default: measured to --peer]",
)
@click.option(
    "--skew-ms",
    type=FiniteRange(0, SKEW_MS_MAX),
    default=500.0,
    show_default=True,
    help="By how much the slowest rank may be late.",
)
@click.option(
    "--tensor-mib", type=click.IntRange(0, TENSOR_MIB_MAX), default=0, help="Tensors of one rank at a time."
)
@click.option(
    "--sharp",
    is_flag=False,
    flag_value="sharp",
    default="",
    metavar="[LIBRARY]",
    help="Look at SHARP though no host here has it; also as in collective: sharp:library=FILE;devices=...",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON list: check, outcome, found, why, mend.")
@click.pass_context
def doctor(
    context: click.Context,
    *,
    ip: str,
    peer: str,
    interface: str,
    nic: str,
    directory: Path | None,
    sockets: tuple[Path, ...],
    mtu: int,
    message_packets: int,
    window_messages: int,
    transport_timeout: int,
    bandwidth_gbit: float,
    rtt_us: float,
    skew_ms: float,
    tensor_mib: int,
    sharp: str,
    as_json: bool,
) -> None:
    """Check this machine: NICs, network, limits, daemons; say what is wrong and how to mend it.

    Nothing is changed. What cannot be seen from here is said to be so, with what would help.
    """
    from inaproto.doctor import report  # here: a list of all commands needs none of it
    from inaproto.doctor.checklist import all_checks, examine, has_failed

    asked = Asked(
        ip=ip,
        peer=peer,
        interface=interface,
        nic=nic,
        mtu=mtu,
        message_packets=message_packets,
        window_messages=window_messages,
        transport_timeout=transport_timeout,
        bandwidth=round(bandwidth_gbit * 1e9),
        round_trip_ns=round(rtt_us * 1e3),
        skew_ns=round(skew_ms * 1e6),
        tensor_bytes=tensor_mib << 20,
        collective=sharp if not sharp or sharp.partition(":")[0] == "sharp" else f"sharp:library={sharp}",
    )
    if directory is None and not sockets:
        directory = report.usual_directory()
        again = pasted_again("doctor", context, dir=directory)  # another user has another one
    else:
        again = pasted_again("doctor", context)
    try:
        site = report.site(asked, directory, sockets)
        site.again = again
        answers = examine(site, all_checks())
    except InaprotoError as error:
        click.echo(f"inaproto: {error}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(json.dumps(report.records(answers), indent=2))
    else:
        report.show(answers)
    sys.exit(1 if has_failed(answers) else 0)
