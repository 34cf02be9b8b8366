"""What a process has started, as the system sees it."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from inaproto_hil.rigs.fork_server import ForkedProcess

END_S: Final = 600.0


def children(pid: int) -> set[int]:
    """Those that run; what has ended and is not waited for yet is none."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.add(int(path.parent.name))
    return found


def processes_of(pid: int) -> dict[str, int]:
    """Process ids by name (``switch``, ``h0``, ``rank1``) of what it, or its fork server, has started."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(OSError):  # it ends just now
            found[Path(f"/proc/{child}/comm").read_text().strip()] = int(child)
            found |= processes_of(int(child))
    return found


def still_there(processes: dict[str, int]) -> list[str]:
    return [name for name, pid in processes.items() if Path(f"/proc/{pid}").exists()]


def shared_memory() -> list[Path]:
    """Objects of shared memory that a process of ours has left. Folders beside them are of tests that run at
    the same time (``deploy/packages/try_in_root.py``)."""
    return [path for path in Path("/dev/shm").glob("*inaproto*") if path.is_file()]


def end_forked(process: ForkedProcess, number: signal.Signals) -> int:
    """Send it the signal and wait until it has ended; returns its exit status."""
    process.send_signal(number)
    status = process.wait(END_S)
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()
    return status
