"""The command ``inaproto inspect``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from inaproto.option_types import ReportFile

if TYPE_CHECKING:
    from inaproto_hil.inspect.findings import Broken
    from inaproto_hil.inspect.inspector import Inspector

EXIT_BROKEN: Final = 1
EXIT_UNUSABLE: Final = 2
_PIECE_BYTES: Final = 1 << 20
_PROGRESS_FRAMES: Final = 100_000
_BROKEN_MAX: Final = 1000
"""Kept for the report as JSON."""

_EPILOG: Final = """
\b
What it needs. Best is a capture of all ports of a switch, one interface a port, each frame with its
direction: then sums are computed again and compared. A capture of one port, or by tcpdump on a host, shows
less; the report says which rules could not be applied.
\b
Losses, duplicates and late packets are the network's doing: they are counted under "noted".
\b
Examples:
  inaproto inspect switch.pcapng                  the first packet that breaks a rule
  inaproto inspect --all switch.pcapng            all of them, one line each
  inaproto inspect --packet 4711 switch.pcapng    one packet, decoded
  inaproto inspect --json - switch.pcapng         for programs
  tcpdump -i eth0 -U -w - udp port 4791 | inaproto inspect -
\b
In Wireshark, headers of INA messages are shown by a script:
  wireshark -X lua_script:$(inaproto inspect --dissector-path) switch.pcapng
\b
Exit status: 0 no rule is broken; 1 one is; 2 the file cannot be used.
"""


def _dissector(ctx: click.Context, parameter: click.Parameter, *, value: bool) -> None:
    if value:
        import inaproto_hil

        click.echo(Path(inaproto_hil.__file__).parent / "wireshark" / "inaproto.lua")
        ctx.exit()


@click.command(short_help="Find the first packet of a capture that breaks a rule.", epilog=_EPILOG)
@click.argument("file", type=click.File("rb"))
@click.option("--all", "show_all", is_flag=True, help="Every packet that breaks a rule, a line each.")
@click.option("--connections/--no-connections", default=True, help="The table of connections.")
@click.option("--packet", type=click.IntRange(1), metavar="N", help="Show frame N, decoded, and no more.")
@click.option(
    "--json",
    "json_file",
    type=ReportFile(),
    metavar="OUT",
    help="Write the report there; - is standard output.",
)
@click.option(
    "--dissector-path",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda ctx, parameter, value: _dissector(ctx, parameter, value=value),
    help="Print where the Wireshark dissector of the INA header is.",
)
def inspect(
    file: BinaryIO, *, show_all: bool, connections: bool, packet: int | None, json_file: str | None
) -> None:
    """Find the first packet of a capture that breaks a rule of RoCEv2 or of in-network aggregation.

    FILE is a pcapng or pcap file, or - for standard input, which is read as it comes. Every packet is decoded
    and its ICRC checked; connections are followed, and what an accelerator knows of a ring is rebuilt from
    what it was sent. A packet that breaks a rule is shown with what was expected and where that is written.
    """
    if packet is not None:
        if json_file is not None:
            raise click.UsageError("--packet shows one frame, and --json is the report on all: not both")
        sys.exit(_show_packet(file, packet))
    sys.exit(_inspect(file, show_all=show_all, connections=connections, json_file=json_file))


class _Unreadable(Exception):
    """The file cannot be read on; the text says which and why."""


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """As they come: a pipe is not waited for until it has filled a piece. Raises ``_Unreadable``."""
    read = getattr(file, "read1", file.read)
    while True:
        try:
            piece = read(_PIECE_BYTES)
        except OSError as error:
            raise _Unreadable(f"{file.name} cannot be read: {error.strerror or error}") from None
        if not piece:
            return
        yield piece


def _show_packet(file: BinaryIO, number: int) -> int:
    from inaproto.errors import DecodeError
    from inaproto.wire.files.capture_reader import CaptureReader
    from inaproto_hil.inspect.report import packet_lines, time_text

    reader, frames = CaptureReader(), 0
    try:
        for piece in _pieces(file):
            for frame in reader.feed(piece):
                frames = frame.number
                if frame.number == number:
                    click.echo(f"frame {number}, {time_text(frame)}, port {frame.interface.name or '?'}")
                    click.echo("\n".join(packet_lines(frame)))
                    return 0
        reader.finish()
    except (DecodeError, _Unreadable) as error:
        click.echo(f"inaproto inspect: {error}", err=True)
        return EXIT_UNUSABLE
    click.echo(f"inaproto inspect: there is no frame {number}; the last is {frames}", err=True)
    return EXIT_UNUSABLE


def _inspect(file: BinaryIO, *, show_all: bool, connections: bool, json_file: str | None) -> int:
    from inaproto.errors import DecodeError
    from inaproto.wire.files.capture_reader import CaptureReader
    from inaproto_hil.inspect.inspector import Inspector
    from inaproto_hil.inspect.report import broken_lines, document

    inspector, reader = Inspector(), CaptureReader()
    found: list[Broken] = []
    problem: str | None = None
    unwritten = False
    out_is_json = json_file == "-"
    shows_progress = sys.stderr.isatty()
    try:
        for piece in _pieces(file):
            for frame in reader.feed(piece):
                broken = inspector.feed(frame)
                if shows_progress and frame.number % _PROGRESS_FRAMES == 0:
                    click.echo(f"\r{frame.number:,} frames", err=True, nl=False)
                if broken is None:
                    continue
                if len(found) < _BROKEN_MAX:
                    found.append(broken)
                if len(found) == 1 and inspector.broken == 1:
                    click.echo("\n".join(broken_lines(broken)), err=out_is_json)
                elif show_all:
                    click.echo(_line(broken), err=out_is_json)
        reader.finish()
    except (DecodeError, _Unreadable) as error:
        problem = str(error)
    except KeyboardInterrupt:
        problem = None  # what was read is reported
    if shows_progress and inspector.frames >= _PROGRESS_FRAMES:
        click.echo(err=True)
    if json_file is not None:
        text = json.dumps(document(inspector, found, problem=problem), indent=2) + "\n"
        if out_is_json:
            click.echo(text, nl=False)
        else:
            try:
                Path(json_file).write_text(text, encoding="utf-8")
            except OSError as error:
                click.echo(f"inaproto inspect: {json_file} cannot be written: {error.strerror}", err=True)
                unwritten = True
    if not out_is_json:
        _summary(inspector, problem, connections=connections, lost=sum(reader.lost.values()))
    if problem is not None:
        click.echo(f"inaproto inspect: {problem}; {inspector.frames} frames before it were read", err=True)
    if inspector.broken:
        return EXIT_BROKEN
    return EXIT_UNUSABLE if problem is not None or unwritten or not inspector.roce else 0


def _line(broken: Broken) -> str:
    where = f"{broken.frame.interface.name} {broken.frame.direction.name.lower()}"
    return (
        f"frame {broken.frame.number} ({where}), {broken.connection}: {broken.rule.name}: "
        f"expected {broken.expected}; got {broken.got}"
    )


def _summary(inspector: Inspector, problem: str | None, *, connections: bool, lost: int) -> None:
    from rich.console import Console

    from inaproto_hil.inspect.report import connections_table, rules_lines

    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
    counts = inspector.counts()
    if connections and inspector.flows:
        console.print(connections_table(inspector))
    for what, times in sorted(inspector.books.notes.items()):
        console.print(f"noted: {times:,} {what}", markup=False)
    lost = max(lost, inspector.captures_lost)
    if lost:
        console.print(f"noted: {lost:,} frames were lost by the capture itself")
    for line in rules_lines(inspector):
        console.print(line, markup=False)
    if not inspector.roce:
        console.print(f"{counts.frames:,} frames, none of them RoCEv2")
        return
    verdict = f"{counts.broken:,} packets break a rule" if counts.broken > 1 else "one packet breaks a rule"
    if not counts.broken:
        verdict = "no rule is broken"
    if problem is not None:
        verdict += ", as far as the file can be read"
    console.print(f"{counts.frames:,} frames, {counts.roce:,} RoCEv2 packets: {verdict}")
