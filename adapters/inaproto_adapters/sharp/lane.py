"""The one thread of a context: all of its calls into the library, and the progress of its operations.

The library sees a single thread, whose calls are in the order in which they were asked for. What blocks,
blocks here; what an operation's end causes happens in Trio. A call that does not return cannot be
interrupted: then the lane is abandoned, with its thread, which keeps no process from ending.

Invariant: an operation ends once, in Trio: complete, refused, or not at all where the lane was abandoned.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final

import trio

from inaproto_adapters.sharp.bell import Bell
from inaproto_adapters.sharp.library import SharpLibrary

SPINS: Final = 3000
"""Tests of outstanding operations before the thread begins to rest between two of them."""
REST_S: Final = 50e-6


@dataclass(slots=True, eq=False)
class Operation:
    """An all-reduce under way. ``buffers`` keeps its memory and its struct alive until it has ended."""

    comm: Any
    spec: Any
    buffers: tuple[object, ...]
    ended: Callable[[Operation, int], None]
    """Called in Trio with the code; 0: complete."""
    bell: Bell | None = None
    """Rung in place of calling ``ended``, as long as somebody waits for it."""
    handle: int | None = None
    code: int | None = None
    """Set before the bell is rung. Who has left looks whether it is there: one of the two sees the other."""
    is_left: bool = False


@dataclass(frozen=True, slots=True)
class _Job:
    run: Callable[[], Any]
    ended: Callable[[Any, BaseException | None], None]


class Lane:
    """See the module. Its methods are called in Trio."""

    def __init__(self, library: SharpLibrary, name: str) -> None:
        self._library = library
        self._begin_one = library.function("do_allreduce_nb")
        self._test = library.function("req_test")
        self._free = library.function("req_free")
        self._progress_context = library.function("progress")
        self._token = trio.lowlevel.current_trio_token()
        self._asked: SimpleQueue[_Job | Operation | None] = SimpleQueue()
        self._outstanding: list[Operation] = []
        self._is_abandoned = False
        self.context: Any = None
        """Progressed between two tests, once there is one."""
        self._ended = trio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, run: Callable[[], Any], ended: Callable[[Any, BaseException | None], None]) -> None:
        """Have the thread run it, after all that was asked for before; ``ended`` is called in Trio."""
        self._asked.put(_Job(run, ended))

    def post(self, operation: Operation) -> None:
        """Begin an operation."""
        self._asked.put(operation)

    def forget(self) -> None:
        """Test no operation any more: none of them ends."""
        self.call(self._outstanding.clear, lambda result, error: None)

    def close(self) -> None:
        """End the thread, once it has done what it was asked for."""
        self._asked.put(None)

    def abandon(self) -> None:
        """End the thread as soon as it returns from the library, if it ever does; operations do not end."""
        self._is_abandoned = True
        self._asked.put(None)

    async def wait_ended(self) -> None:
        """Until the thread has ended, which an abandoned one may never do."""
        await self._ended.wait()
        self._thread.join()  # it has no more to do

    # --- in the thread

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self._tell(self._ended.set)

    def _serve(self) -> None:
        idle = 0
        while not self._is_abandoned:
            try:
                asked = self._asked.get(block=not self._outstanding)
            except Empty:
                idle = 0 if self._progress() else idle + 1
                if idle > SPINS:
                    time.sleep(REST_S)
                continue
            if asked is None:
                return
            idle = 0
            if isinstance(asked, Operation):
                self._begin(asked)
            else:
                self._do(asked)

    def _do(self, job: _Job) -> None:
        result, error = None, None
        try:
            result = job.run()
        except BaseException as raised:  # noqa: BLE001  whoever asked for the call is told
            error = raised
        self._tell(job.ended, result, error)

    def _begin(self, operation: Operation) -> None:
        handle = ctypes.c_void_p()
        code = self._begin_one(operation.comm, ctypes.byref(operation.spec), ctypes.byref(handle))
        if code == 0 and handle.value is None:
            code = -1  # a request that cannot be waited for
        if code:
            self._end(operation, code)
            return
        operation.handle = handle.value
        self._outstanding.append(operation)

    def _progress(self) -> bool:
        """Whether an operation has ended."""
        if self.context is not None:
            self._progress_context(self.context)
        ended = [(its, code) for its in self._outstanding if (code := self._test(its.handle))]
        for operation, code in ended:
            self._outstanding.remove(operation)
            freed = self._free(operation.handle)
            # The interface promises no code here, and calls all but 0 complete; what says as other calls do
            # that it has failed is not taken for a sum.
            self._end(operation, code if code < 0 else freed)
        return bool(ended)

    def _end(self, operation: Operation, code: int) -> None:
        if self._is_abandoned:
            return
        operation.code = code
        if operation.bell is None or operation.is_left:
            self._tell(operation.ended, operation, code)
        else:
            operation.bell.ring()

    def _tell(self, what: Callable[..., object], *about: object) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(what, *about)
