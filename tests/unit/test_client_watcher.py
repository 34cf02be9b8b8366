"""The thread that watches connections: what else happens while it begins."""

from __future__ import annotations

import _thread
import gc
import socket
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from inaproto.client.watcher import Watcher
from tests.unit.fake_host import DEADLINE_S, until


class Channel:
    """Of a watcher; it has nothing to say. ``itself``: garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self
        self.near, self._far = socket.socketpair()

    def fileno(self) -> int:
        return self.near.fileno()

    def look_for_end(self) -> None:
        """It never ends."""

    def try_to_return(self) -> bool:
        return True

    def flush(self) -> bool:
        return True

    def close(self) -> None:
        self.near.close()
        self._far.close()


def test_a_thread_that_begins_may_find_a_channel_among_the_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector runs in any thread at any time, and the end of a channel rings for the watcher."""
    watcher = Watcher()
    old = Channel()
    watcher.watch(old, old.fileno())
    watcher.forget(old)
    until(lambda: not watcher.is_running)
    old.close()
    gone = weakref.ref(old)
    begin = _thread.start_new_thread

    def collecting_first(run: Callable[..., Any], args: tuple[Any, ...], *more: Any) -> int:
        def collected(*given: Any) -> Any:
            gc.collect()
            return run(*given)

        return begin(collected, args, *more)

    new = Channel()

    def watch() -> None:
        for module, name in ((threading, "_start_new_thread"), (_thread, "start_new_thread")):
            monkeypatch.setattr(module, name, collecting_first)
        watcher.watch(new, new.fileno())

    watching = threading.Thread(target=watch, daemon=True)
    gc.disable()
    try:
        del old
        watching.start()
        watching.join(DEADLINE_S)
    finally:
        monkeypatch.undo()
        gc.enable()
    assert not watching.is_alive()
    until(lambda: gone() is None)
    watcher.forget(new)
    until(lambda: not watcher.is_running)
    new.close()
