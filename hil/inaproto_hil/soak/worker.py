"""A worker process: does one task after another for the process that made it, and never outlives that.

It takes no Ctrl-C, which a terminal sends to the whole process group: who hands out the work ends it in good
order. It ends when its pipe is closed, and in the middle of a task as soon as its parent is gone, whatever
that died of.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from inaproto.errors import ConfigError, InaprotoError
from inaproto_hil.compiled.choice import require

Task = TypeVar("Task")
_DIED = "a worker process died without an answer; was it killed for want of memory? Try fewer --jobs"


class WorkerDied(InaprotoError):
    """A worker process ended without an answer; usually the system killed it for want of memory."""


class Worker:
    def __init__(self, compiled: Path | None = None) -> None:
        """``compiled``: folder of the compiled copy that it is to run instead of the source."""
        context = multiprocessing.get_context("spawn")
        self.channel, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, compiled), daemon=True)
        resource_tracker.ensure_running()  # else it would be started next, and let the signal through
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited until it is ignored
        try:
            with _first_on_path(compiled):
                self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def ask(self, work: Callable[[Task], Any], task: Task) -> None:
        try:
            self.channel.send((work, task))
        except OSError:
            raise WorkerDied(_DIED) from None

    def answer(self) -> Any:
        """Of the task, once ``channel`` can be read. Raises if the work did, or ``WorkerDied``."""
        try:
            kind, answer = self.channel.recv()
        except (EOFError, OSError):
            raise WorkerDied(_DIED) from None
        if kind is not None:
            raise kind(answer)
        return answer

    def kill(self) -> None:
        self._process.kill()

    def join(self) -> None:
        self._process.join()
        self.channel.close()


@contextmanager
def _first_on_path(folder: Path | None) -> Iterator[None]:
    """A process that is started meanwhile has this process's path, and imports from there first."""
    if folder is None:
        yield
        return
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _serve(channel: Connection, compiled: Path | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            work, task = channel.recv()
        except EOFError:
            return
        try:
            if compiled is not None:
                require(compiled)
            answer: tuple[Any, Any] = None, work(task)
        except ConfigError as error:
            answer = ConfigError, str(error)
        except OSError as error:
            answer = InaprotoError, str(error)
        except Exception:  # noqa: BLE001  whatever it is, it is raised in the parent
            answer = RuntimeError, f"in a worker process:\n{traceback.format_exc()}"
        channel.send(answer)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
