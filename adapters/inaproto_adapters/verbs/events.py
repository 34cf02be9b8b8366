"""Asynchronous events of a device (``enum ibv_event_type``): which there are, and which end its use.

A port that goes down ends nothing by itself: queue pairs go on sending again until it is up, or until their
retries are spent, which they say by a completion.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import trio

from inaproto_adapters.verbs.library import verbs

log = logging.getLogger("inaproto.verbs")

NAMES: Final = {
    0: "completion queue error",
    1: "queue pair fatal error",
    2: "queue pair request error",
    3: "queue pair access error",
    4: "communication established",
    5: "send queue drained",
    6: "path migrated",
    7: "path migration error",
    8: "device fatal error",
    9: "port is up",
    10: "port is down",
    11: "LID changed",
    12: "partition keys changed",
    13: "subnet manager changed",
    17: "client reregister",
    18: "GID table changed",
}
_FATAL: Final = frozenset({0, 8})
"""Completions are lost, or the device is."""
_READDRESSED: Final = frozenset({11, 18})
"""Peers know an address of a port on InfiniBand that it has no more."""
_GOOD: Final = frozenset({4, 5, 9})


def name(event: int) -> str:
    return NAMES.get(event, f"event {event}")


def is_fatal(event: int) -> bool:
    return event in _FATAL


def is_worth_a_warning(event: int) -> bool:
    return event not in _GOOD


async def watch(context: Any, fd: int, device: str, *, is_infiniband: bool = False) -> str | None:
    """Say what happens to a device until that ends its use: returns why; None if it cannot be read.

    A port on InfiniBand is opened anew with its new LID or GID.
    """
    while True:
        await trio.lowlevel.wait_readable(fd)
        try:
            event = context.get_async_event()
        except verbs("pyverbs_error").PyverbsError as error:
            log.warning("%s: its events cannot be read any more: %s", device, error)
            return None
        kind = int(event.event_type)
        event.ack()  # a queue pair is not destroyed before all of its events are
        level = logging.WARNING if is_worth_a_warning(kind) else logging.INFO
        log.log(level, "%s: %s", device, name(kind))
        if is_fatal(kind) or (is_infiniband and kind in _READDRESSED):
            return name(kind)
