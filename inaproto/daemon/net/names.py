"""Names of daemons, and of their sockets in a directory."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from inaproto.ca.identity import NAME
from inaproto.client.run_directory import SERVER_SOCKETS

PORTS_SOCKET: Final = "ports.sock"
CONTROL_SOCKET: Final = "control.sock"
JOBS_SOCKET: Final = "controller.sock"
"""Socket of a controller, for HTTP."""
AGENTS_SOCKET: Final = "controller-agents.sock"
_TRUNK: Final = re.compile(r"trunk-.+\.sock")


def require_name(value: str) -> str:
    """``value``. Raises ``ValueError``, as pydantic wants it."""
    if not NAME.fullmatch(value):
        raise ValueError("must be 1 to 63 letters, digits, '.', '_' or '-', the first a letter or digit")
    return value


def trunk_socket(below: str) -> str:
    """Where a switch listens for the switch ``below`` it."""
    return f"trunk-{below}.sock"


def server_socket(name: str) -> str:
    """Where a parameter server tells its status; training processes have nothing to say there."""
    return f"{SERVER_SOCKETS}{name}.sock"


def in_its_place(path: Path, socket: str) -> Path | None:
    """The ``socket`` of a controller, where ``path`` is its directory or its other socket; else None."""
    if os.path.isdir(path):  # of one that this user may not enter nothing is known
        return path / socket
    others = {JOBS_SOCKET, AGENTS_SOCKET} - {socket}
    return path.with_name(socket) if path.name in others else None


def gives_no_status(socket: str) -> bool:
    """Whether nobody answers a question for the status at a socket of this name: no host may have it."""
    others = (PORTS_SOCKET, JOBS_SOCKET, AGENTS_SOCKET)
    return socket in others or _TRUNK.fullmatch(socket) is not None
