"""What ``inaproto bench peers`` measures."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from typing import Any, Final

from inaproto.daemon.settings.config import HostSettings
from inaproto_adapters.frames.xdp import mtu_max
from inaproto_hil.rigs.links import Shape

INAPROTO, BUFFER, BEFORE, GLOO, MPI = "inaproto", "buffer", "before", "gloo", "mpi"
CONTENDERS: Final = (INAPROTO, BUFFER, GLOO, MPI)
"""Who can be asked for; ``before`` is asked for by its Python."""
OURS: Final = (INAPROTO, BUFFER)
OTHERS: Final = (BEFORE, GLOO, MPI)
"""What ours are compared with."""
THROUGH_SWITCH: Final = (*OURS, BEFORE)
POOL_BYTES: Final = 64 << 20
"""Arrays of a turn together, of one rank, if more than one fits."""
OPERATIONS_MAX: Final = 64
"""All-reduces of a turn."""
FLOAT_BYTES: Final = 4
NUMBERS: Final = ("mtu", "window", "message_packets", "transport_timeout")
"""Fields that two inaprotos may have apart, with the port."""
PACKET_PORT: Final = "packet:{}"
SHARED_MEMORY: Final = "shm"
SOCKETS: Final = "frames"
ADAPTERS: Final = (SHARED_MEMORY, SOCKETS)
"""Between daemons of one machine, which have no interfaces."""
_LINK_MTUS: Final = ((1024, 1500), (2048, mtu_max()), (4096, 9000))
"""A path MTU and what interfaces have for it. Ports ``xdp:`` have no place for frames of 9000 bytes."""
UNSHAPED: Final = "unshaped"
"""Links as fast as the machine passes frames."""
_PAST_QUEUES: Final = "xdp:"
"""Ports whose frames do not pass by the queue of their interface."""
_RATES: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_TIMES_US: Final = {"us": 1, "ms": 1000, "s": 1_000_000}


@dataclass(frozen=True, slots=True)
class Config:
    hosts: int
    sizes: tuple[int, ...]
    only: tuple[str, ...]
    link: Shape | None = None
    """None: all on this machine."""
    cables: bool = False
    """A piece of cable between the ends of each link, in any case."""
    rounds: int = 5
    turn_s: float = 1.0
    """A turn has as many all-reduces as take about so long."""
    group: int = 1
    """All-reduces that are started together."""
    busy: int = 0
    """Processes beside it that do nothing but use a processor."""
    apart: bool = False
    """Without a link: each rank has a host daemon of its own."""
    mtu: int = 1024
    window: int = 2
    message_packets: int = 170
    transport_timeout: int = 14
    timeout_s: float = 120.0
    port: str = PACKET_PORT
    """Ports of the daemons: on links with the interface for ``{}``; on one machine the name of an adapter."""
    host_options: tuple[str, ...] = ()
    switch_options: tuple[str, ...] = ()
    before: str = ""
    """Python of an environment with another inaproto; empty: none takes part."""
    before_with: tuple[tuple[str, str | int], ...] = ()
    """What is otherwise there: names of fields of this class with their values."""

    def of_before(self) -> Config:
        """Of the other inaproto; its links are like all others. On one machine it has what every one has."""
        known = {} if self.link is not None or self.before == sys.executable else {"port": SOCKETS}
        other = replace(self, **{**known, **dict[str, Any](self.before_with)})
        return replace(other, cables=self.has_cables)

    @property
    def adapter(self) -> str:
        """Of ports between daemons of one machine."""
        return self.port if self.port in ADAPTERS else SOCKETS

    @property
    def link_mtu(self) -> int:
        """Of the interfaces: what a packet of ``mtu`` fits into."""
        return next(mtu for path_mtu, mtu in _LINK_MTUS if self.mtu <= path_mtu)

    @property
    def has_cables(self) -> bool:
        """Whether frames pass between the ends of a link: for delay, loss, and ports that know no queues."""
        if self.link is None:
            return False
        ports = (self.port, str(dict(self.before_with).get("port", "")))
        passes_queues = bool(self.link.rate_bps) and any(port.startswith(_PAST_QUEUES) for port in ports)
        return self.cables or self.link.needs_cables or passes_queues

    @property
    def line_rate_bps(self) -> int | None:
        """Of a link; None without links, and where they have no rate."""
        return None if self.link is None else self.link.rate_bps or None

    @property
    def ranks_per_daemon(self) -> int:
        return 1 if self.link is not None or self.apart else self.hosts

    @property
    def pool_bytes(self) -> int:
        """Largest sum of the arrays of a turn."""
        return max(size * self.operations_max(size) for size in self.sizes)

    def operations_max(self, size: int) -> int:
        """Of a turn."""
        return max(1, min(OPERATIONS_MAX, POOL_BYTES // size))

    def operations(self, size: int, seconds: float) -> int:
        """All-reduces of a turn, if one takes so long; whole groups, where these fit."""
        wanted = min(self.operations_max(size), max(1, round(self.turn_s / seconds)))
        return min(self.operations_max(size), wanted + -wanted % self.group)


def host_default(field: str) -> Any:
    """What a host daemon has that is not told."""
    return HostSettings.model_fields[field].default


def parse_port(text: str) -> str:
    """``"xdp"`` is ``"xdp:{}"``."""
    if text in ADAPTERS:
        return text
    return text if "{}" in text else f"{text}:{{}}"


def parse_settings(text: str) -> tuple[tuple[str, str | int], ...]:
    """``"port=packet,window=2"``."""
    found: list[tuple[str, str | int]] = []
    for part in text.split(","):
        name, _, value = part.partition("=")
        field = name.strip().replace("-", "_")
        if field == "port" and value:
            found.append((field, parse_port(value)))
        elif field in NUMBERS and value.isdecimal():
            found.append((field, int(value)))
        else:
            names = ", ".join(("port", *NUMBERS))
            raise ValueError(f"{part!r}: write NAME=VALUE with one of {names}, for example window=2")
    return tuple(found)


def parse_rate(text: str) -> int:
    """``"200M"``, ``"1G"``: bits per second, with units of 1000."""
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([KMG]?)(?:bit(?:/s)?)?", text.strip(), re.IGNORECASE)
    rate = 0 if found is None else int(float(found[1]) * _RATES[found[2].upper()])
    if rate < 10_000:
        raise ValueError(f"{text!r} is not the rate of a link: write for example 200M or 1G, bits a second")
    return rate


def parse_link(text: str) -> int:
    """A rate, or 0 for links of none."""
    return 0 if text.strip() == UNSHAPED else parse_rate(text)


def parse_delay(text: str) -> int:
    """``"100us"``, ``"2ms"``: microseconds."""
    found = re.fullmatch(r"([0-9]{1,9})(us|ms|s)", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a delay: write for example 100us or 2ms")
    return int(found[1]) * _TIMES_US[found[2]]


def parse_share(text: str) -> float:
    """``"0.1%"`` or ``"0.001"``."""
    digits, percent, rest = text.strip().partition("%")
    try:
        share = float(digits) / (100 if percent else 1)
    except ValueError:
        share = -1.0
    if rest or not 0 <= share < 1:
        raise ValueError(f"{text!r} is not a share of the frames: write for example 0.1% or 0.001")
    return share
