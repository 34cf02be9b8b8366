"""How the two kinds of client wait: the steps are the same (:mod:`inaproto.client.channel`)."""

from __future__ import annotations

import select
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import trio

from inaproto.client.channel import Pollable, Steps, Wait

T = TypeVar("T")


class TrioDriver:
    """Whoever waits first reads for all; the others park until it has read."""

    def __init__(self) -> None:
        self._reading = False
        self._followers = trio.lowlevel.ParkingLot()

    @property
    def is_reading(self) -> bool:
        """A task waits for what is to be read."""
        return self._reading

    async def drive(self, steps: Steps[T]) -> T:
        await trio.lowlevel.checkpoint()
        try:
            while True:
                await self._wait(next(steps))
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            steps.close()

    async def _wait(self, wait: Wait) -> None:
        until = float("inf") if wait.until is None else wait.until
        with trio.move_on_at(until):
            if not wait.channels:
                await trio.sleep_forever()
            elif self._reading:
                await self._followers.park()
            else:
                self._reading = True
                try:
                    await _any_ready(wait.channels)
                except trio.ClosedResourceError:
                    pass  # closed by another task: the next step finds the error that this leaves
                finally:
                    self._reading = False
                    self._followers.unpark_all()


async def _any_ready(channels: Sequence[Pollable]) -> None:
    if len(channels) == 1 and not channels[0].has_output:
        await channels[0].wait_receivable()
        return
    async with trio.open_nursery() as nursery:
        for channel in channels:
            nursery.start_soon(_first, channel.wait_receivable, nursery.cancel_scope)
            if channel.has_output:
                nursery.start_soon(_first, channel.wait_sendable, nursery.cancel_scope)


async def _first(ready: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
    with suppress(trio.ClosedResourceError):  # which is news, too
        await ready()
    scope.cancel()


def drive_blocking(steps: Steps[T]) -> T:
    """Drive it with ``poll``, in this thread."""
    try:
        while True:
            wait = next(steps)
            left = None if wait.until is None else max(0.0, wait.until - time.monotonic())
            poll = select.poll()
            for channel in wait.channels:
                poll.register(channel, select.POLLIN | (select.POLLOUT if channel.has_output else 0))
            poll.poll(None if left is None else left * 1000 + 1)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()
