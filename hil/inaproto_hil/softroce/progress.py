"""Whether a process hangs: by what it does, not by how long it takes, as its machine may be slow or busy.

One that runs, waits for a processor or for a disk makes progress, however slowly. One all of whose threads
sleep rests: it waits for a timer or for somebody else. That is looked at once in a while, and counted. A
process hangs if it has rested too often, or has used more processor time than what it does can take.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import trio

LOOK_S: Final = 1.0
_SLEEPS: Final = "S"
_STATE, _USER, _SYSTEM = 0, 11, 12
"""Places in ``/proc/PID/stat`` behind the name of the process, which may have any characters."""


async def hangs(pid: int, *, rests_max: int, cpu_s_max: float) -> str:
    """Waits until process ``pid`` hangs, and says what it did; for ever if it does not, or has ended."""
    rests, process = 0, Path(f"/proc/{pid}")
    while True:
        await trio.sleep(LOOK_S)
        try:
            states = {_stat(process / "task" / thread)[_STATE] for thread in os.listdir(process / "task")}
            ticks = sum(map(int, _stat(process)[_USER : _SYSTEM + 1]))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile, or a thread of it has
        rests += states == {_SLEEPS}
        cpu_s = ticks / os.sysconf("SC_CLK_TCK")
        if rests > rests_max or cpu_s > cpu_s_max:
            return f"it used {cpu_s:.0f} s of processor time, and slept {rests} times that it was looked at"


def _stat(process: Path) -> list[str]:
    return (process / "stat").read_text().rpartition(")")[2].split()
