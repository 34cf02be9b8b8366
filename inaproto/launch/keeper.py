"""Ends what a launcher has started when the launcher itself is killed, and removes its directory.

    python -I -S keeper.py MARK DIRECTORY

The launcher holds the other end of the standard input. It writes a byte before it ends in good order; where
the input ends without one, the launcher was killed: all processes that have ``MARK`` in their environment
get SIGTERM, then SIGKILL, and ``DIRECTORY`` (with the sockets of daemons, and their logs) is removed.
Started as a script, without the site packages: it costs a few milliseconds and a few MiB.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time

GRACE_S = 3.0
LOOK_S = 0.05


def marked(mark: str) -> set[int]:
    """The processes that have ``mark`` (``NAME=VALUE``) in the environment with which they were started."""
    wanted = mark.encode()
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as environ:
                if wanted in environ.read().split(b"\0"):
                    found.add(int(name))
    return found


def send(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_all(mark: str, grace_s: float = GRACE_S) -> int:
    """SIGTERM to all that have the mark, SIGKILL to those that are left after the grace; how many they were.

    Processes of another user cannot be ended, and are not waited for longer than that again.
    """
    there = marked(mark)
    count = len(there)
    send(there, signal.SIGTERM)
    until = time.monotonic() + grace_s
    while there:
        time.sleep(LOOK_S)
        there = marked(mark)
        if time.monotonic() >= until:
            send(there, signal.SIGKILL)
        if time.monotonic() >= until + grace_s:
            break
    return count


def main() -> None:
    mark, directory = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it goes when the launcher goes
    if os.read(0, 1):
        return
    end_all(mark)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
