"""Where torch is, and where the inaproto is that its processes shall load.

torch is in an environment of its own, as for ``inaproto bench peers``; inaproto is laid beside it by
``PYTHONPATH``, with its metadata, so that torch finds the entry point by which it loads backends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from inaproto_hil.bench.peers.tools import PROBE_S, Tools, default_environment

HOW: Final = "inaproto bench training --install gets it"
_WHERE: Final = """
import importlib.metadata, pathlib, inaproto
print(pathlib.Path(inaproto.__file__).parents[1])
print(importlib.metadata.distribution("inaproto").locate_file(""))
"""
_BACKEND: Final = """
import importlib.metadata, sys, torch, inaproto.torch
found = importlib.metadata.entry_points(group="torch.backends")
if not any(one.value.startswith("inaproto") for one in found):
    sys.exit("torch finds no entry point of inaproto in the group torch.backends")
"""


def tools_at(asked: Path | None) -> Tools:
    """``asked``: a Python with torch. Without it ours, if it has torch, else that of the peers."""
    if asked is not None:
        return Tools(asked, HOW)
    own = Path(sys.executable) if find_spec("torch") is not None else None
    return Tools(own or default_environment() / "bin" / "python", HOW)


def layers(python: Path) -> str:
    """What to put into ``PYTHONPATH`` for the inaproto of that Python. Raises ``OSError`` with the reason."""
    package, metadata = _said(python, _WHERE, {}).splitlines()
    return os.pathsep.join(dict.fromkeys([package, metadata.rstrip("/")]))


def why_no_backend(tools: Tools, path: str) -> str | None:
    """Why torch cannot load ``inaproto.torch`` with this ``PYTHONPATH``; None: it can."""
    try:
        _said(tools.python, _BACKEND, {"PYTHONPATH": path})
    except OSError as error:
        return f"torch does not load inaproto.torch: {error}"
    return None


def _said(python: Path, code: str, extra: dict[str, str]) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("INAPROTO_")}
    try:
        done = subprocess.run(
            [str(python), "-P", "-c", code],
            capture_output=True,
            text=True,
            timeout=PROBE_S,
            check=False,
            env=environment | extra,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"{python} did not answer within {PROBE_S:.0f} s") from None
    if done.returncode != 0:
        raise OSError((done.stderr.strip().splitlines() or [f"{python} ended with {done.returncode}"])[-1])
    return done.stdout
