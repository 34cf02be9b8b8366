"""What a process has started, as the system sees it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def children(pid: int) -> set[int]:
    """Those that run; what has ended and is not waited for yet is none."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.add(int(path.parent.name))
    return found
