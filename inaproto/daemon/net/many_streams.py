"""One task that reads for many streams: what a thousand sessions say wakes it up, not a thousand tasks.

A task that waits for a socket costs the event loop more than a short message costs whoever reads it: it is
registered, woken, given its turn and timed, for each message. Here the kernel is asked which sockets have
something to read, some at a time, and others have their turn in between.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio

READY_AT_ONCE: Final = 16
"""Streams that are read in one step of the task: a millisecond or so."""


class ManyStreams:
    """:meth:`run` it in a nursery; :meth:`until` waits for one of the streams."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, _Watched] = {}

    async def run(self) -> None:
        """Until cancelled; whoever still waits in :meth:`until` then waits for ever."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for number, _ in self._epoll.poll(0, READY_AT_ONCE):
                    watched = self._watched.get(number)
                    if watched is not None:  # one before it may have closed it
                        watched.look()
        finally:
            self._epoll.close()

    async def until(
        self, number: int, read: Callable[[], bool], closed: Callable[[Callable[[], None]], None]
    ) -> None:
        """Call ``read`` whenever the socket of that number has something, until it returns True or raises,
        which is raised here. ``closed`` is given what to call when the socket is closed on this side."""
        watched = self._watched[number] = _Watched(read)
        try:
            closed(watched.over.set)
            self._epoll.register(number, select.EPOLLIN)
            await watched.over.wait()
        finally:
            closed(_nothing)
            # A socket that was closed leaves its number to the next one, which may be watched by now.
            if self._watched.get(number) is watched:
                del self._watched[number]
                with suppress(OSError, ValueError):  # it is closed, or all is
                    self._epoll.unregister(number)
            # Also where the wait was cancelled: what was read is not there any more.
            if watched.error is not None:
                raise watched.error


class _Watched:
    __slots__ = ("_read", "error", "over")

    def __init__(self, read: Callable[[], bool]) -> None:
        self._read = read
        self.over = trio.Event()
        self.error: Exception | None = None

    def look(self) -> None:
        if self.over.is_set():
            return  # its task has not had its turn yet
        try:
            if self._read():
                self.over.set()
        except Exception as error:  # noqa: BLE001  it is raised where it belongs, in the task of the stream
            self.error = error
            self.over.set()


def _nothing() -> None: ...
