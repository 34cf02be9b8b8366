"""What a measurement was made on: a figure without its machine and versions says nothing."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from inaproto.launch.advice import processor_seconds


def describe() -> dict[str, Any]:
    """CPU, cores, kernel, versions, load averages, and the commit where the source is a git tree."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": {
            name: _version(name) for name in ("inaproto", "numpy", "trio", "msgpack", "isal", "ml_dtypes")
        },
        "load": [round(value, 2) for value in os.getloadavg()],
        **_commit(),
    }


def machine_cpu_s() -> float:
    """CPU seconds of all its processors, since it was started; see :func:`processor_seconds`."""
    found = processor_seconds()
    assert found is not None, "Linux"
    return found[0]


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model"):
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _commit() -> dict[str, Any]:
    """``commit`` (None where unknown) and ``modified``: whether the tree differs from that commit."""
    source = Path(__file__).resolve().parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(source), *arguments],
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None or str(Path(sys.prefix).resolve()) in str(
        source
    ):  # an installed copy in someone's tree
        return {"commit": None, "modified": None}
    changes = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "modified": None if changes is None else bool(changes)}
