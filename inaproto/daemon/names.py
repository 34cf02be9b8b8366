"""Names of daemons, and of their sockets in a directory."""

from __future__ import annotations

import re
from typing import Final

from inaproto.ca.identity import NAME

PORTS_SOCKET: Final = "ports.sock"
CONTROL_SOCKET: Final = "control.sock"
_TRUNK: Final = re.compile(r"trunk-.+\.sock")


def require_name(value: str) -> str:
    """``value``. Raises ``ValueError``, as pydantic wants it."""
    if not NAME.fullmatch(value):
        raise ValueError("must be 1 to 63 letters, digits, '.', '_' or '-', the first a letter or digit")
    return value


def trunk_socket(below: str) -> str:
    """Where a switch listens for the switch ``below`` it."""
    return f"trunk-{below}.sock"


def carries_frames(socket: str) -> bool:
    """Whether nobody answers control messages at a socket of this name."""
    return socket == PORTS_SOCKET or _TRUNK.fullmatch(socket) is not None
