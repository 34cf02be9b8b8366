"""Types of command-line options, which refuse as words what would be a traceback, or believed, further in."""

from __future__ import annotations

import ipaddress
import math
from typing import Any

import click

from inaproto.core.rc_types import MTUS


class FiniteRange(click.FloatRange):
    """``click.FloatRange`` alone takes NaN, which is below no bound, and infinity where no upper one is."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class Ipv4Address(click.ParamType[str]):
    """Dotted; empty where none is given."""

    name = "IPv4 address"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            return str(ipaddress.IPv4Address(text)) if text else ""
        except ValueError:
            self.fail(f"{text!r} is not an IPv4 address such as 10.0.0.1", param, ctx)


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
