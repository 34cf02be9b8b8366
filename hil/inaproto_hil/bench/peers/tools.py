"""Peers that are no dependencies: torch for gloo, Open MPI; an environment of their own in the cache.

Nothing is installed unasked. What is not there is named in the report, with the reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console

from inaproto_hil.bench.peers.config import GLOO, MPI, Config

TORCH: Final = "torch==2.13.0"
PACKAGES: Final = {GLOO: (TORCH, "numpy"), MPI: ("openmpi", "mpi4py", "numpy")}
INSTALL_S: Final = 1800.0
PROBE_S: Final = 120.0
HOW: Final = "inaproto bench peers --install gets it"
_PROBES: Final = {
    GLOO: "import numpy, torch; assert torch.distributed.is_gloo_available(); print(torch.__version__)",
    MPI: "import numpy, mpi4py; print(mpi4py.__version__)",
}


class InstallFailed(Exception):
    """A package could not be had; the message has the ends of what the installer said."""


def default_environment() -> Path:
    """In the user's cache, by version of Python."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "inaproto" / f"peers-{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(slots=True)
class Tools:
    """``python``: that of the environment; ``lacks``: why a peer cannot be had."""

    python: Path
    how: str = HOW
    """What to do where one is missing."""
    versions: dict[str, str] = field(default_factory=dict)
    lacks: dict[str, str] = field(default_factory=dict)

    @property
    def mpirun(self) -> Path:
        return self.python.with_name("mpirun")

    def look(self, peers: list[str]) -> None:
        """Find out which of these peers run here."""
        for peer in peers:
            self.versions.pop(peer, None)
            why = self._why_not(peer)
            if why is None:
                self.lacks.pop(peer, None)
            else:
                self.lacks[peer] = why

    def why_not(self, peer: str, config: Config) -> str | None:
        """None: it takes part."""
        if peer == MPI and config.link is not None:
            return "Open MPI is measured on one machine alone, over shared memory: leave --link out"
        return self.lacks.get(peer)

    def _why_not(self, peer: str) -> str | None:
        package = PACKAGES[peer][0]
        if not self.python.exists():
            return f"{package} is not installed: there is no {self.python}; {self.how}"
        try:
            done = subprocess.run(
                [str(self.python), "-P", "-c", _PROBES[peer]],
                capture_output=True,
                text=True,
                timeout=PROBE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"{package} did not load within {PROBE_S:.0f} s"
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            return f"{package} does not load by {self.python} ({last}); {self.how}"
        if peer == MPI and not self.mpirun.exists():
            return f"there is no {self.mpirun}; {self.how}"
        self.versions[peer] = done.stdout.strip()
        return None


def find_peers(tools: Tools, peers: list[str], is_install: bool, console: Console) -> None:
    """Which of these can be had; with ``is_install`` those that are missing are fetched."""
    with console.status(f"looking for {', '.join(peers)}") if peers else nullcontext():
        tools.look(peers)
    missing = [name for name in peers if name in tools.lacks]
    if is_install and missing:
        install(tools.python.parents[1], missing, lambda what: console.print(what, markup=False))
        tools.look(missing)
    for name in missing:
        if name in tools.lacks:
            console.print(f"{name}: {tools.lacks[name]}", markup=False, soft_wrap=True)


def install(environment: Path, peers: list[str], say: Callable[[str], None]) -> None:
    """Make the environment and put the packages of these peers into it. Raises ``InstallFailed``."""
    python = environment / "bin" / "python"
    if not python.exists():
        say(f"making {environment}")
        _run([sys.executable, "-m", "venv", str(environment)])
    for peer in peers:
        say(f"installing {' '.join(PACKAGES[peer])}, which may take minutes")
        _run([str(python), "-m", "pip", "install", "--no-input", "--quiet", *PACKAGES[peer]])


def _run(words: list[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallFailed(f"{' '.join(words)}: {error}") from None
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise InstallFailed(f"{' '.join(words)}:\n{tail}")
