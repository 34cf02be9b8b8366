"""Types of command-line options, which refuse as words what would be a traceback, or believed, further in."""

from __future__ import annotations

import ipaddress
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from inaproto.core.rdma.reliable_connection import MTUS

T = TypeVar("T")
_HELP_LETTERS: Final = 200
"""Of a command's short help, which goes on in the next line."""


def parsed(parse: Callable[[str], T]) -> Callable[..., T | None]:
    """The callback of an option whose words ``parse`` understands, or refuses by ``ValueError``."""

    def callback(context: click.Context, parameter: click.Parameter, value: str | None) -> T | None:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return callback


class WholeGroup(click.Group):
    """A group that lists its commands with all of their short help, where click ends it in dots."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if rows := self.rows(ctx, self.list_commands(ctx)):
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def rows(self, ctx: click.Context, names: Iterable[str]) -> list[tuple[str, str]]:
        """Of those of ``names`` that are there, with what they do."""
        found = ((name, self.get_command(ctx, name)) for name in names)
        return [
            (name, command.get_short_help_str(_HELP_LETTERS))
            for name, command in found
            if command is not None and not command.hidden
        ]


class FiniteRange(click.FloatRange):
    """``click.FloatRange`` alone takes NaN, which is below no bound, and infinity where no upper one is."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class IpAddress(click.ParamType[str]):
    """Of IPv4 or IPv6, in its usual form; empty where none is given."""

    name = "IP address"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            return str(ipaddress.ip_address(text)) if text else ""
        except ValueError:
            self.fail(f"{text!r} is not an address such as 10.0.0.1 or fd00::1", param, ctx)


class ReportFile(click.ParamType[str]):
    """Where a report goes when the work is done, or ``-``; a wrong place is refused before it begins."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        path = Path(value)
        if value == "-":
            return "-"
        if path.is_dir():
            self.fail(f"{value} is a directory", param, ctx)
        if not path.parent.is_dir():
            self.fail(f"{value}: there is no directory {path.parent}", param, ctx)
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            self.fail(f"{value} cannot be written: permission denied", param, ctx)
        return str(value)


class FolderToMake(click.Path):
    """A folder that need not be there yet; one that cannot be made is refused before the work begins."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            there = next(one for one in (path, *path.absolute().parents) if one.exists())
        except OSError as error:
            self.fail(f"{value} cannot be made: {error.strerror}", param, ctx)
        if not there.is_dir():
            self.fail(f"{value} cannot be made: {there} is no directory", param, ctx)
        if not os.access(there, os.W_OK):
            self.fail(f"{value} cannot be made: permission denied", param, ctx)
        return path


def write_text(at: Path, text: str) -> None:
    """Raises ``click.ClickException`` where that cannot be, as on a disk that is full."""
    try:
        at.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{at} cannot be written: {error.strerror or error}") from None


def write_report(report: Mapping[str, Any], at: str | None) -> None:
    """As JSON to where a :class:`ReportFile` says, ``-`` being stdout; nowhere for None.

    Raises ``click.ClickException`` where it cannot be written after all, as on a disk that is full. So what
    people are to read is shown before.
    """
    if at is None:
        return
    text = json.dumps(report, indent=1)
    if at == "-":
        click.echo(text)
    else:
        write_text(Path(at), text + "\n")


class NumberRange(click.ParamType[tuple[int, int]]):
    """``N`` or ``A:B``, as the first number and the one behind the last; never empty."""

    name = "range"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        found = number_range(value)
        if found is None:
            self.fail(f"{value!r}: write a count (200), or first:behind-last (200:400)", param, ctx)
        return found


def number_range(text: str) -> tuple[int, int] | None:
    """As :class:`NumberRange`; None: it is none."""
    first, colon, stop = text.rpartition(":")
    try:
        begin, end = int(first) if colon else 0, int(stop)
    except ValueError:
        return None
    return (begin, end) if 0 <= begin < end else None


def path_mtu(ctx: click.Context, param: click.Parameter, value: int) -> int:
    """A callback; 0 is *not given*."""
    if value and value not in MTUS:
        raise click.BadParameter(f"{value} is none; there are {', '.join(map(str, MTUS))}", ctx, param)
    return value


def power_of_two(ctx: click.Context, param: click.Parameter, value: int) -> int:
    """A callback; 0 is *not given*."""
    if value & (value - 1):
        raise click.BadParameter(f"{value} is not a power of two (1, 2, 4, ...)", ctx, param)
    return value
