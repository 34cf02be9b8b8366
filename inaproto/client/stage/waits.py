"""How a stage waits: its steps yield what they need, and a driver, blocking or Trio, waits for it.

So the two differ in how they wait, and in nothing else.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Generator
from typing import Final, NamedTuple, Protocol, TypeVar

import trio

T = TypeVar("T")
Clock = Callable[[], float]


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


class Wait(NamedTuple):
    """Go on when ``source`` can be read, or at ``until``; without a source, at ``until``."""

    source: HasDescriptor | None
    until: float


TURN: Final = Wait(None, float("-inf"))
"""Nothing to wait for, but other tasks may have a turn."""

Steps = Generator[Wait, None, T]


def drive_blocking(steps: Steps[T]) -> T:
    try:
        while True:
            wait = next(steps)
            if wait is not TURN:
                poll = select.poll()
                if wait.source is not None:
                    poll.register(wait.source, select.POLLIN)
                poll.poll(max(0.0, wait.until - time.monotonic()) * 1000 + 1)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


async def drive_trio(steps: Steps[T]) -> T:
    """Raises ``trio.ClosedResourceError`` when another task closes what it waits for."""
    await trio.lowlevel.checkpoint()
    try:
        while True:
            wait = next(steps)
            if wait is TURN:
                await trio.lowlevel.checkpoint()
                continue
            with trio.move_on_at(wait.until):
                if wait.source is None:
                    await trio.sleep_forever()
                else:
                    await trio.lowlevel.wait_readable(wait.source)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()
