"""Threads in which works become complete.

What is chained to a future of torch runs in the thread that fulfils it, and may wait for another all-reduce,
as PowerSGD's hook does. So no future is fulfilled in a thread that reads sockets, and there is always a
thread that nobody holds up, up to a limit.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

THREADS_MAX: Final = 64

log = logging.getLogger("inaproto.torch")


class CompletionThreads:
    """Calls what it is given, in the order given as long as nothing blocks."""

    def __init__(self, threads_max: int = THREADS_MAX) -> None:
        self._threads_max = threads_max
        self._condition = threading.Condition()
        self._calls: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._idle = 0

    @property
    def threads(self) -> int:
        return self._threads

    def call(self, what: Callable[[], None]) -> None:
        """Call it soon, in another thread; ``what`` must not raise."""
        with self._condition:
            self._calls.append(what)
            if self._idle >= len(self._calls) or self._threads >= self._threads_max:
                self._condition.notify()
                return
            self._threads += 1
        threading.Thread(target=self._serve, name="inaproto completion", daemon=True).start()

    def _serve(self) -> None:
        while True:
            with self._condition:
                while not self._calls:
                    self._idle += 1
                    self._condition.wait()
                    self._idle -= 1
                what = self._calls.popleft()
            try:
                what()
            except Exception:
                log.exception("inaproto: what follows an all-reduce failed")
            del what
