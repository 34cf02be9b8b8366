"""A thread that sees to it that ranks come back soon when their host daemons are replaced.

A process may compute for a minute and read none of its sockets meanwhile; its host daemon's successor waits
a few seconds for it. So one thread watches the sockets of all communicators that may return, for nothing but
their ends: no data wakes it up. It dials, and has each channel say what the successor needs to know.

Invariants: it takes nothing that a daemon says, and calls nobody back: whoever drives a channel does
(:mod:`inaproto.client.channel`). It keeps no channel alive, nor any socket open. It ends when no channel is
left, and never keeps the interpreter from ending.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import os
import select
import threading
import weakref
from time import monotonic
from typing import Final, Protocol

from inaproto.client.alarm import Alarm

log = logging.getLogger("inaproto.client")

RETRY_S: Final = 0.03
"""Between two attempts to reach a successor, and before the first: a daemon that is killed may listen for a
moment longer than it is connected."""
_END: Final = select.EPOLLRDHUP | select.EPOLLET


class Returning(Protocol):
    """A channel, as far as the watcher knows it."""

    def fileno(self) -> int: ...
    def look_for_end(self) -> None:
        """Its socket seems to have ended."""
        ...

    def try_to_return(self) -> bool:
        """Look for a successor, once. Whether there is no reason to look again."""
        ...

    def flush(self) -> bool:
        """Write what can be written. Whether that was all."""
        ...


class Watcher:
    """The thread, and the channels for which there is one."""

    def __init__(self) -> None:
        self._changed = threading.RLock()
        self._wanted: Alarm | None = None
        """There is one while there is a thread: a program may close what it has not opened itself."""
        self._epoll: select.epoll | None = None
        self._channels: weakref.WeakSet[Returning] = weakref.WeakSet()
        self._sockets: dict[int, weakref.ref[Returning]] = {}
        self._lost: weakref.WeakKeyDictionary[Returning, float] = weakref.WeakKeyDictionary()
        """Those whose daemon is gone, and when the next attempt is due."""
        self.is_running = False
        """There is a thread."""

    def watch(self, channel: Returning, descriptor: int, *, writes: bool = False) -> None:
        """Until it is closed or nobody has it any more. Its socket is ``descriptor``.

        ``writes``: it has something to write, whether or not anybody drives it.
        """
        with self._changed:
            if channel not in self._channels:
                # First: of what hears of its end, what was registered last hears first.
                weakref.finalize(channel, self._ring).atexit = False
                self._channels.add(channel)
            self._listen(channel, descriptor, _END | (select.EPOLLOUT if writes else 0))

    def look_for_successor(self, channel: Returning) -> None:
        """Its daemon is gone."""
        with self._changed:
            if channel in self._channels and channel not in self._lost:
                self._lost[channel] = monotonic() + RETRY_S
                self._start()
                self._ring()

    def forget(self, channel: Returning) -> None:
        """It is closed."""
        with self._changed:
            if channel in self._channels:
                self._channels.discard(channel)
                self._lost.pop(channel, None)
                self._ring()

    def _listen(self, channel: Returning, descriptor: int, events: int) -> None:
        self._start()
        assert self._epoll is not None
        self._sockets[descriptor] = weakref.ref(channel)
        try:
            self._epoll.register(descriptor, events)
        except FileExistsError:
            self._epoll.modify(descriptor, events)

    def _ring(self) -> None:
        with self._changed:
            if self._wanted is not None:
                self._wanted.ring()

    def _start(self) -> None:
        if not self.is_running:
            self._epoll, self._wanted = select.epoll(), Alarm()
            self._epoll.register(self._wanted, select.EPOLLIN)
            # Not a Thread: to start one is to wait until it runs, with locks held that it may want before
            # that: a thread that begins may collect garbage, and with it channels that have ended.
            _thread.start_new_thread(self._run, ())
            self.is_running = True

    def _run(self) -> None:
        while (watched := self._next()) is not None:
            epoll, wanted = watched
            due = min(self._dues(), default=None)
            for descriptor, events in epoll.poll(None if due is None else max(0.0, due - monotonic())):
                try:
                    if descriptor == wanted.fileno():
                        wanted.quiet()
                    else:
                        self._see(descriptor, events)
                except Exception:  # of one channel: the others are watched on
                    log.exception("the watcher cannot look at a connection")
            self._try_all()

    def _next(self) -> tuple[select.epoll, Alarm] | None:
        """None: nothing is left to be watched, and this thread is to end."""
        with self._changed:
            if not self._channels and self._epoll is not None:
                self._epoll.close()
                self._epoll, self._wanted, self.is_running = None, None, False
                self._sockets.clear()
            return None if self._epoll is None or self._wanted is None else (self._epoll, self._wanted)

    def _dues(self) -> list[float]:
        with self._changed:
            return list(self._lost.values())

    def _see(self, descriptor: int, events: int) -> None:
        with self._changed:
            reference = self._sockets.get(descriptor)
            channel = None if reference is None else reference()
        if channel is None:
            return
        if events & select.EPOLLOUT and channel.flush():
            with self._changed, contextlib.suppress(OSError):  # it has ended, and is closed
                self._listen(channel, descriptor, _END)
        if events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
            channel.look_for_end()

    def _try_all(self) -> None:
        with self._changed:
            now = monotonic()
            due = [channel for channel, at in self._lost.items() if at <= now]
        for channel in due:
            with self._changed:
                self._lost.pop(channel, None)
            try:
                is_over = channel.try_to_return()
            except Exception:
                log.exception("a rank cannot look for its daemon's successor, and tries again")
                is_over = False
            if not is_over:
                self.look_for_successor(channel)


WATCHER: Final = Watcher()
"""The one of this process."""


def _forget_in_child() -> None:
    WATCHER.__init__()  # type: ignore[misc]  # a child of a fork has none of the ranks


os.register_at_fork(after_in_child=_forget_in_child)
