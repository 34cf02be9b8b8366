"""What a daemon says to the service manager that started it: sd_notify(3) of systemd, without its library.

A unit of ``Type=notify`` is started when its daemon says so, and not when its process is there; with
``WatchdogSec=`` a daemon whose event loop stands still is killed and started anew. Where no manager asks for
any of this, as in a shell, nothing is said.

A variable that another process was meant to read is none of ours: training processes, and daemons that
``inaproto run`` starts, inherit the environment of a unit that is not theirs.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

import trio

ADDRESS_VARIABLE: Final = "NOTIFY_SOCKET"
PERIOD_VARIABLE: Final = "WATCHDOG_USEC"
READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
ALIVE: Final = "WATCHDOG=1"


def tell(*lines: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send these assignments to the manager, if there is one. That it does not listen ends no daemon."""
    address = environment.get(ADDRESS_VARIABLE, "")
    if not address.startswith(("/", "@")) or not _meant("SYSTEMD_EXEC_PID", environment):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        try:
            channel.sendto("\n".join(lines).encode(), address.replace("@", "\0", 1))
        except OSError as error:
            logging.getLogger("inaproto").warning(
                "the service manager does not listen at %s: %s", address, error
            )


def watchdog_period_s(environment: Mapping[str, str] = os.environ) -> float | None:
    """How often the manager wants a sign of life at least; None: it wants none."""
    text = environment.get(PERIOD_VARIABLE, "")
    if not text.isdecimal() or int(text) == 0 or not _meant("WATCHDOG_PID", environment):
        return None
    return int(text) / 1e6


def _meant(variable: str, environment: Mapping[str, str]) -> bool:
    """Whether this very process is the one that the manager started."""
    return environment.get(variable, str(os.getpid())) == str(os.getpid())


async def give_signs_of_life() -> None:
    """Give twice as many as the manager wants, from the event loop, until cancelled."""
    period = watchdog_period_s()
    if period is None:
        return
    while True:
        tell(ALIVE)
        await trio.sleep(period / 2)
