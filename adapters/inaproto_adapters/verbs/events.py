"""Asynchronous events of a device (``enum ibv_event_type``): which there are, and which end its use.

A port that goes down ends nothing by itself: queue pairs go on sending again until it is up, or until their
retries are spent, which they say by a completion.
"""

from __future__ import annotations

from typing import Final

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
_GOOD: Final = frozenset({4, 5, 9})


def name(event: int) -> str:
    return NAMES.get(event, f"event {event}")


def is_fatal(event: int) -> bool:
    return event in _FATAL


def is_worth_a_warning(event: int) -> bool:
    return event not in _GOOD
