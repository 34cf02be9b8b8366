"""The round trip to a peer, without rights: how long it takes to refuse or accept a TCP connection."""

from __future__ import annotations

import socket
import time
from typing import Final

_PORT: Final = 9
"""Discard: hardly ever open, so that the peer's kernel refuses at once."""
_TRIES: Final = 5
_WAIT_S: Final = 0.5


def measure_round_trip(own: str, peer: str, *, port: int = _PORT) -> int | None:
    """ns, the shortest of a few; None where no answer comes, or ``own`` is no address of this machine."""
    found: list[int] = []
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    for _ in range(_TRIES):
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(_WAIT_S)
            begun = time.perf_counter_ns()
            try:
                sock.bind((own, 0))
                sock.connect((peer, port))
            except ConnectionRefusedError:
                pass
            except OSError:
                return min(found, default=None)
            found.append(time.perf_counter_ns() - begun)
    return min(found)
