"""Threads that call what users want called when an operation has ended.

Never in the thread that reads the sockets: a callback may take its time, raise, and wait for another
operation of the same communicator, which that thread has to bring about.

A callback may also wait for another callback, or for a future, which such a thread fulfils. So the number of
threads is no limit that callbacks could be stuck at: where none of them has ended for ``STALL_S``, and more
are to be called, they may all wait for those, which get more threads.

Invariants: as long as fewer than ``threads_max`` callbacks are under way, one more finds a thread at once,
and as long as fewer than ``THREADS_LIMIT`` are, after a while; a callback that raises ends nobody but itself;
the threads do not keep the interpreter from ending.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic, sleep
from typing import Final

THREADS_MAX: Final = 64
"""Callbacks that are begun at once, however many have not ended."""
THREADS_LIMIT: Final = 4096
"""Callbacks that may wait for each other: a program that nests them without end is told so."""
STALL_S: Final = 0.05
"""Callbacks of which none has ended for so long are taken to wait for others."""
IDLE_S: Final = 5.0
"""A thread that has nothing to do ends after so long, but for one."""

log = logging.getLogger("inaproto.client")


class CompletionThreads:
    """Call what is submitted, begun in that order, in ``threads_max`` threads at a time.

    In more, up to ``threads_limit``, where these wait for each other.
    """

    def __init__(
        self, threads_max: int = THREADS_MAX, idle_s: float = IDLE_S, threads_limit: int = THREADS_LIMIT
    ) -> None:
        self._threads_max = threads_max
        self._threads_limit = threads_limit
        self._idle_s = idle_s
        self._changed = threading.Condition()
        self._calls: deque[Callable[[], object]] = deque()
        self._threads: set[int] = set()
        self._starting = 0
        self._idle = 0
        self._came = 0
        """How often a thread has come for a call."""
        self._is_watched = False

    @property
    def threads(self) -> int:
        """How many there are, idle ones included."""
        return len(self._threads) + self._starting

    def submit(self, call: Callable[[], object]) -> None:
        """Have it called soon; from any thread, and without waiting."""
        with self._changed:
            self._calls.append(call)
            if self._idle + self._starting < len(self._calls):
                self._start_one()
            self._changed.notify()

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is left to be called and nothing is under way. False: it took too long.

        One of these threads does not wait for itself.
        """
        until = monotonic() + timeout
        with self._changed:
            if threading.get_ident() in self._threads:
                return False
            while self._calls or self._idle < self.threads:
                if not self._changed.wait(until - monotonic()) and monotonic() >= until:
                    return False
        return True

    def _start_one(self) -> None:
        if self.threads < self._threads_max:
            self._start_thread()
        elif not self._is_watched:
            self._is_watched = True
            threading.Thread(target=self._watch, name="inaproto-completions watch", daemon=True).start()

    def _start_thread(self) -> None:
        self._starting += 1
        threading.Thread(target=self._serve, name="inaproto-completions", daemon=True).start()

    def _watch(self) -> None:
        """Start more threads where those that there are seem to wait for what is to be called."""
        came, is_told = -1, False
        while True:
            with self._changed:
                if not self._calls:
                    self._is_watched = False
                    return
                if came == self._came and not self._idle + self._starting:
                    if self.threads < self._threads_limit:
                        self._start_thread()
                    elif not is_told:
                        is_told = True
                        log.error(
                            "%d callbacks of operations that have ended are under way, and none ends; "
                            "%d more wait for a thread. A callback that needs another result calls that "
                            "work's wait(), which waits for no callback",
                            self.threads,
                            len(self._calls),
                        )
                came = self._came
            sleep(STALL_S)

    def _serve(self) -> None:
        with self._changed:
            self._starting -= 1
            self._threads.add(threading.get_ident())
        while (call := self._next()) is not None:
            try:
                call()
            except BaseException:
                log.exception("a callback of an operation that has ended raised")
            del call  # and with it what it keeps alive, before this thread waits for the next one

    def _next(self) -> Callable[[], object] | None:
        """None: this thread is not needed any more."""
        with self._changed:
            self._came += 1
            self._idle += 1
            self._changed.notify_all()  # perhaps somebody waits until all are idle
            while not self._calls:
                if not self._changed.wait(self._idle_s) and not self._calls and self._idle > 1:
                    self._idle -= 1
                    self._threads.discard(threading.get_ident())
                    return None
            self._idle -= 1
            call = self._calls.popleft()
            if not self._idle + self._starting:
                self._start_one()  # by this thread rather than by the one that reads the sockets
            return call


COMPLETIONS: Final = CompletionThreads()
"""Those of this process, for all its communicators."""


def _forget_in_child() -> None:
    COMPLETIONS.__init__()  # type: ignore[misc]  # a child of a fork has none of the threads


os.register_at_fork(after_in_child=_forget_in_child)
