"""How the two kinds of client wait: the steps are the same (:mod:`inaproto.client.channel`)."""

from __future__ import annotations

import select
import time
from collections.abc import Awaitable, Callable, Sequence, Set
from contextlib import suppress
from typing import TypeVar

import trio

from inaproto.client.channel import Pollable, Steps, Wait

T = TypeVar("T")

Way = tuple[Pollable, bool]
"""A descriptor, and whether it is waited for to be written to; else to be read."""


class TrioDriver:
    """Whoever waits for a descriptor first waits for all; the others sleep until there is news.

    A task waits itself for what nobody waits for yet: another one's operation may be added by ranks of the
    host, and have descriptors of its own. It holds them until its wait is over or needs them no more; then
    those are woken up that do. Whoever reads, or does a part of an operation, may have taken from under the
    others what they wait for: they all look again (:meth:`note_news`).
    """

    def __init__(self) -> None:
        self._held: set[Way] = set()
        self._asleep: dict[trio.CancelScope, set[Way]] = {}
        """The tasks that wait, and what others wait for in their stead; cancelled to be woken."""

    def note_news(self) -> None:
        """Something was read or done: the waits of all may be over."""
        for scope in self._asleep:
            scope.cancel()

    async def drive(self, steps: Steps[T]) -> T:
        await trio.lowlevel.checkpoint()
        held: set[Way] = set()
        try:
            while True:
                await self._wait(next(steps), held)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            self._release(held, held)
            steps.close()

    def _release(self, held: set[Way], released: Set[Way]) -> None:
        """Let others wait for these."""
        for scope, lacking in self._asleep.items():
            if not lacking.isdisjoint(released):
                scope.cancel()
        self._held -= released
        held -= released

    async def _wait(self, wait: Wait, held: set[Way]) -> None:
        ways = [(channel, False) for channel in wait.channels]
        ways += [(channel, True) for channel in wait.channels if channel.has_output]
        self._release(held, held.difference(ways))
        mine = [way for way in ways if way in held or way not in self._held]
        held.update(mine)
        self._held.update(mine)
        until = float("inf") if wait.until is None else wait.until
        with trio.move_on_at(until) as scope:
            self._asleep[scope] = set(ways) - held
            try:
                await _any_ready(mine)
            except trio.ClosedResourceError:
                pass  # closed by another task: the next step finds the error that this leaves
            finally:
                del self._asleep[scope]


async def _any_ready(ways: Sequence[Way]) -> None:
    events = [channel.wait_sendable if writes else channel.wait_receivable for channel, writes in ways]
    if not events:
        await trio.sleep_forever()
    elif len(events) == 1:
        await events[0]()
    else:
        async with trio.open_nursery() as nursery:
            for event in events:
                nursery.start_soon(_first, event, nursery.cancel_scope)


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
