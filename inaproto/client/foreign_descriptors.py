"""Descriptors that another process has sent: what they are open for is its choice."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from typing import Final

_NO_LINGER: Final = struct.pack("ii", 0, 0)


def discard(descriptor: int) -> None:
    """Close it at once. The last close of a socket may wait for its peer for as long as its owner has set
    (``SO_LINGER``), also of one that never blocks, and nothing else of this process would run meanwhile."""
    try:
        found = socket.socket(fileno=descriptor)
    except OSError:  # it is no socket
        os.close(descriptor)
        return
    discard_socket(found)


def discard_socket(foreign: socket.socket) -> None:
    """As :func:`discard`."""
    with suppress(OSError):
        foreign.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    foreign.close()
