"""``inaproto capture``: what crosses the ports of a running switch, as pcapng."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import click

from inaproto.errors import InaprotoError
from inaproto.option_types import FiniteRange

_EPILOG = """
Examples.

\b
  inaproto capture /run/inaproto --seconds 10 -o trouble.pcapng
  inaproto capture /run/inaproto --port port-3 --frames 1000 | inaproto inspect -
  inaproto capture /run/inaproto | wireshark -k -i -

The file has an interface for each port, and says of each frame whether it came into the switch or left it.
The switch does not wait for who reads: what does not fit its queue is left out and counted.
"""


@click.command(epilog=_EPILOG, short_help="Record what crosses the ports of a switch.")
@click.argument("socket", required=False, type=click.Path(path_type=Path))
@click.option("--port", "ports", multiple=True, help="This port alone (names: inaproto status); repeatable.")
@click.option(
    "--seconds", type=FiniteRange(0, 4_000_000), default=0.0, help="End after this time; 0: no end."
)
@click.option(
    "--frames", type=click.IntRange(0, 2**63), default=0, help="End after so many frames; 0: no end."
)
@click.option("-o", "--output", default="-", show_default=True, help="File; - is standard output.")
def capture(socket: Path | None, ports: tuple[str, ...], seconds: float, frames: int, output: str) -> None:
    """Record what crosses the ports of a running switch, as pcapng.

    SOCKET is the switch's control.sock or its directory; by default where inaproto status looks. It goes on
    until --seconds, --frames, Ctrl-C, or nobody reads it any more.
    """
    if output == "-" and sys.stdout.isatty():
        raise click.UsageError("pcapng is nothing for a terminal: give -o FILE, or pipe it")

    import trio  # here: a list of all commands needs none of it

    from inaproto.client.run_directory import run_directory
    from inaproto.daemon.capture.client import control_socket
    from inaproto.daemon.capture.run import run_capture
    from inaproto.wire.messages.capture import Capture

    asked = Capture(id=1, ports=ports, frames_max=frames, duration_ms=math.ceil(seconds * 1000))
    try:
        path = control_socket(socket if socket is not None else run_directory(os.environ))
        if output == "-":
            ended = trio.run(run_capture, path, asked, sys.stdout.buffer, False)
        else:
            with Path(output).open("ab") as file:  # what is in it is lost when the switch has given its word
                ended = trio.run(run_capture, path, asked, file, True)
    except InaprotoError as error:
        click.echo(f"inaproto: {error}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter complains
        return
    except OSError as error:
        click.echo(f"inaproto: {output}: {error.strerror}", err=True)
        sys.exit(1)
    lost = f", {ended.lost} did not fit the switch's queue" if ended.lost else ""
    click.echo(f"inaproto capture: {ended.frames} frames{lost}; it ended: {ended.reason}", err=True)
