"""Where the sockets of this machine's daemons lie: one answer for daemons, status and clients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

DIRECTORY_VARIABLE = "INAPROTO_DIR"
SERVER_SOCKETS = "server-"
"""How names of sockets begin that belong to parameter servers, which do not serve training processes."""


def default_run_directory(environment: Mapping[str, str]) -> Path:
    """``$XDG_RUNTIME_DIR/inaproto``, else ``/tmp/inaproto-UID``."""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "inaproto"
    return Path(f"/tmp/inaproto-{os.getuid()}")


def run_directory(environment: Mapping[str, str]) -> Path:
    """``$INAPROTO_DIR``, else the default; a variable that is empty counts as not set."""
    named = environment.get(DIRECTORY_VARIABLE)
    return Path(named) if named else default_run_directory(environment)
