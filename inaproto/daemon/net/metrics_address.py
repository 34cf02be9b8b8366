"""Where a daemon tells its metrics: ADDRESS:PORT, or the path of a UNIX socket."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator


class TcpAddress(NamedTuple):
    host: str
    port: int
    """0: any that is free; the log says which."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_metrics(value: str) -> TcpAddress | Path:
    """Raises ``ValueError``, as pydantic wants it."""
    if "/" in value:
        path = Path(value).expanduser().absolute()
        if path.suffix == ".sock":  # such a one inaproto status asks, which speaks no HTTP
            raise ValueError("must be a socket whose name does not end in .sock, such as h0.metrics")
        return path
    host, colon, port = value.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        address = None
    if address is None or not colon or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ValueError("must be an address and a port such as 127.0.0.1:9464, or the path of a socket")
    return TcpAddress(str(address), int(port))


def _metrics(value: str) -> str:
    return str(parse_metrics(value)) if value else value


MetricsAddress = Annotated[str, AfterValidator(_metrics)]
"""Empty: nowhere."""
