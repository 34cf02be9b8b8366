"""Where a job is not faster by inaproto than by gloo, as far as its launcher can see: said aloud.

docs/training.md has the whole of it, and ``inaproto bench training`` measures it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

WHERE: Final = "docs/training.md says when it helps"
BUSY_SHARE: Final = 0.85
"""Of a machine's processors: from there on they limit, and not the links."""
SILENT_S: Final = 120.0
"""For so long ranks may load data before anybody wonders."""
SECONDS_MIN: Final = 10.0
"""A shorter time says little of a training: scripts begin and end in it."""


def about_ranks(ranks: int, hosts: int) -> str:
    """What to know of a job of so many ranks on so many hosts before it begins; mostly nothing.

    Several ranks on each of two hosts do gain: a ring of all ranks sends more than each byte once.
    """
    if ranks != 2 or hosts != 2:
        return ""
    return (
        "two ranks on two hosts: a ring of two sends each byte once, as it is with a switch, so steps are no "
        f"shorter than with gloo, and longer where processors are busy; {WHERE}"
    )


def about_silence(ranks: int) -> str:
    """What to know when none of so many ranks has come to a daemon for long: others hide it, by waiting too.

    A framework may take its own number of ranks for that of the job, and torch waits half an hour for them.
    """
    started = "1 rank that was" if ranks == 1 else f"{ranks} ranks that were"
    return (
        f"no rank has joined a job in {SILENT_S:g} s. Where they neither load nor compute: does the script "
        f"wait for more than the {started} started? (docs/torch.md#frameworks)"
    )


class Processors:
    """How busy the processors of this machine are while a job sums."""

    def __init__(self, read: Callable[[], tuple[float, float] | None] | None = None) -> None:
        """``read``: seconds of all processors in use since the machine began, and idle; None: not known."""
        self._read = read or processor_seconds
        self._first: tuple[float, float, float] | None = None
        self._last: tuple[float, float, float] | None = None

    def look(self, now: float) -> None:
        """The job sums at ``now``, in seconds."""
        found = self._read()
        if found is not None:
            self._last = now, *found
            self._first = self._first or self._last

    @property
    def share(self) -> float | None:
        """In use, between the first look and the last one; None: not known, or too short a time."""
        if self._first is None or self._last is None or self._last[0] - self._first[0] < SECONDS_MIN:
            return None
        used, idle = self._last[1] - self._first[1], self._last[2] - self._first[2]
        return used / (used + idle) if used + idle > 0 else None

    def advice(self) -> str:
        """What to know of them after the job; mostly nothing."""
        share = self.share
        if share is None or share < BUSY_SHARE:
            return ""
        return (
            f"{share:.0%} of this machine's processors were in use: they limit this job, not its links. "
            f"Daemons take more of them than gloo, which may be faster here; {WHERE}"
        )


def processor_seconds(path: Path = Path("/proc/stat")) -> tuple[float, float] | None:
    """Seconds of all processors since the machine began: in use and idle; None where the kernel does not say.

    In use: user, nice, system, irq, softirq; what a hypervisor gave to others is neither.
    """
    try:
        with path.open() as lines:
            name, *ticks = lines.readline().split()
        counts = [int(each) for each in ticks]
    except (OSError, ValueError):
        return None
    if name != "cpu" or len(counts) < 7:
        return None
    idle = counts[3] + counts[4]  # and waiting for disks
    second = os.sysconf("SC_CLK_TCK")
    return (sum(counts[:7]) - idle) / second, idle / second
