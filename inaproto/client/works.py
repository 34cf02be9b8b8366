"""An all-reduce that was started, as its caller holds it: :class:`Work` in Trio, else :class:`BlockingWork`.

An operation ends when whoever reads the socket finds that it has; then it is *settled*, once: its result is
taken out of shared memory, what waits for it goes on, and what was to be called is called.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

import trio

from inaproto.client.channel import Clock, JobRank, Steps, again
from inaproto.client.completions import COMPLETIONS
from inaproto.client.in_place import InPlace, InPlaceOperation
from inaproto.client.parallel_rings import RankChannel, SlicedOperation, explaining, waiting_for
from inaproto.client.progress import Engine
from inaproto.client.protocol import PendingOperation
from inaproto.client.starting import Call, Operation
from inaproto.client.together import Together
from inaproto.errors import JobError, LocalMisuse, OperationTimeout

T = TypeVar("T")

log = logging.getLogger("inaproto.client")


class Owner(Protocol):
    """The communicator, as far as its works know it."""

    clock: Clock
    channel: RankChannel

    @property
    def who(self) -> JobRank: ...
    @property
    def in_place(self) -> InPlace: ...
    @property
    def called_in_place(self) -> InPlace | None: ...
    def now_ns(self) -> int: ...
    def begin(self, call: Call) -> Operation: ...
    def wait_began(self, now_ns: int) -> None: ...
    def wait_ended(self) -> None: ...
    def note(self, operation: Operation, nbytes: int, submitted_ns: int, wait_ns: int) -> None: ...


class TrioOwner(Owner, Protocol):
    """One for a Trio program."""

    async def drive(self, steps: Steps[T]) -> T: ...
    def look(self) -> None: ...


class BlockingOwner(Owner, Protocol):
    """One for other programs."""

    engine: Engine


class AnyWork:
    """What both kinds share: everything that does not wait."""

    def __init__(self, communicator: Owner, call: Call) -> None:
        self._communicator = communicator
        self._call: Call | None = call
        """Until it is settled and has begun."""
        self._title = call.title
        self.operations = call.operations
        """How many the host daemon hears of."""
        self._nbytes = call.nbytes
        self._result: Any = None
        self._op_index = -1
        self._operation: Operation | None = None
        """None: it is queued."""
        self._failure: JobError | None = None
        """What this work alone has failed with: it could not begin, or its time is over."""
        self._is_settled = False
        self._submitted_ns = communicator.now_ns()
        self._until = None if call.timeout is None else communicator.clock() + call.timeout
        self._timeout = call.timeout

    def __repr__(self) -> str:
        state = "under way; .wait() returns its result"
        error = self._error
        if error is not None:
            state = f"failed: {type(error).__name__}: {error}"
        elif self._has_ended:
            state = "done; .wait() returns its result"
        kind = type(self).__name__
        return f"<{kind} all-reduce {self.op_index} of {self._communicator.who}: {self._title}, {state}>"

    def __reduce__(self) -> Any:
        raise LocalMisuse("an all-reduce under way cannot be pickled; wait for its result and pickle that")

    def __array__(self, *_: object, **__: object) -> Any:
        raise LocalMisuse(f"{self!r} is no array; its result is what .wait() returns")

    @property
    def op_index(self) -> int:
        """Its number among the all-reduces of its communicator that the host daemon is asked for, from 0.

        One that is added in place by the ranks of a host has the number of the next that is not.
        """
        return self._op_index

    @property
    def _has_ended(self) -> bool:
        return self._failure is not None or (self._operation is not None and self._operation.ended)

    @property
    def _error(self) -> JobError | None:
        if self._failure is not None:
            return self._failure
        return None if self._operation is None else self._operation.error

    def begin(self) -> None:
        """Start it. Raises ``JobError``. Whoever reads the socket calls it."""
        assert self._call is not None
        self._operation = self._communicator.begin(self._call)
        self._op_index = self._operation.op_index
        if self._is_settled:  # its time was over before; the other ranks take part in it all the same
            self._call = None

    def _outcome(self) -> Any:
        """The result of one that is settled. Raises its error."""
        error = self._error
        if error is not None:
            raise again(error)
        return self._result

    def _settle(self, wait_ns: int) -> None:
        """Take the result out of shared memory; ``wait_ns``: when the wait for it began."""
        operation, call = self._operation, self._call
        if self._is_settled:
            return
        if self._error is None and operation is not None:
            if call is not None:
                self._result = call.end()
            self._communicator.note(operation, self._nbytes, self._submitted_ns, wait_ns)
        if operation is not None:
            self._call = None
        self._is_settled = True

    def settle(self) -> None:
        """It has ended: whoever reads the socket calls it, once."""
        if not self._is_settled:
            self._settle(self._communicator.now_ns())

    def expire(self, late: JobError | None = None) -> None:
        """Its own time is over; the operation goes on."""
        if not self._has_ended:
            words = f"all-reduce {self.op_index} of {self._communicator.who} did not end within"
            self._failure = late or OperationTimeout(f"{words} {self._timeout:g} s")
            self.settle()

    def _waiting(self, timeout: float | None) -> Steps[Any]:
        """The steps of a wait by whoever reads the socket meanwhile."""
        communicator, operation = self._communicator, self._operation
        if self._is_settled:
            return self._outcome()
        assert operation is not None  # what is queued, is waited for otherwise
        clock = communicator.clock
        until = None if timeout is None else clock() + timeout
        is_own = self._until is not None and (until is None or self._until < until)
        if is_own:
            timeout, until = self._timeout, self._until
        began = communicator.now_ns()
        communicator.wait_began(began)
        try:
            for each in operation.parts if isinstance(operation, Together) else (operation,):
                if isinstance(each, InPlaceOperation):
                    yield from communicator.in_place.waiting(each, timeout, until)
                else:
                    if (added := communicator.called_in_place) is not None:
                        yield from added.advancing(partial(_has_ended, each), until)
                    yield from waiting_for(communicator.channel, each, timeout, clock, until)
        except OperationTimeout as late:
            if is_own and not operation.ended:
                self._failure = late
            raise
        finally:
            communicator.wait_ended()
            if self._has_ended:
                self._settle(began)
        return self._result

    def _explaining(self, timeout: float | None) -> Steps[JobError | None]:
        """Why it has not ended within ``timeout``; None if it has ended meanwhile."""
        operation, communicator = self._operation, self._communicator
        if isinstance(operation, Together):
            operation = next((part for part in operation.parts if not part.ended), operation.parts[0])
        if isinstance(operation, InPlaceOperation):
            return communicator.in_place.late(timeout)
        if operation is None:
            return OperationTimeout(
                f"all-reduce {self.op_index} of {communicator.who} did not end within {timeout:g} s: others, "
                "called before, are under way, as many as the host daemon keeps"
            )
        return (yield from explaining(communicator.channel, operation, timeout, communicator.clock))


def _has_ended(operation: PendingOperation | SlicedOperation) -> bool:
    return operation.ended


# --- Trio


class Work(AnyWork):
    """An all-reduce under way: ``await`` it, as often as you like, from any task of its event loop."""

    _communicator: TrioOwner

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.wait().__await__()

    @property
    def done(self) -> bool:
        """Whether the result, or the error, is here; does not wait, but reads what is there."""
        if not self._has_ended:
            self._communicator.look()
            if self._until is not None and self._communicator.clock() >= self._until:
                self.expire()
        return self._has_ended

    async def wait(self, timeout: float | None = None) -> Any:
        """The result. Raises the job's error, or ``OperationTimeout``: the operation then still runs.

        ``timeout`` is in seconds.
        """
        return await self._communicator.drive(self._waiting(timeout))

    def add_done_callback(self, callback: Callable[[Work], object]) -> None:
        """Have ``callback(work)`` called once, when the result or the error is here, by this event loop.

        It is called in a system task of the loop, also if the work is done already; what it raises is logged.
        """
        trio.lowlevel.spawn_system_task(self._call_back, callback)

    async def _call_back(self, callback: Callable[[Work], object]) -> None:
        try:
            await self.wait()
        except JobError as error:
            log.debug("%r: its callback is called with %r", self, error)
        try:
            callback(self)
        except Exception:
            log.exception("a callback of %r raised", self)


# --- blocking


class BlockingWork(AnyWork):
    """An all-reduce under way: :meth:`wait` for its result.

    Any thread may use it. ``wait`` and ``done`` need no thread of their own; :meth:`add_done_callback`,
    :meth:`future`, :meth:`fileno` and ``await`` start the communicator's progress thread, which reads for all
    as long as something is under way, and, once two threads have met, from then on.
    """

    _communicator: BlockingOwner

    def __init__(self, communicator: BlockingOwner, call: Call) -> None:
        super().__init__(communicator, call)
        self._is_watched = False
        self._event: threading.Event | None = None
        self._future: Future[Any] | None = None
        self._readable: int | None = None
        self._callbacks: list[Callable[[], object]] = []

    def wait(self, timeout: float | None = None) -> Any:
        """The result: a new array, ``out``, or the array itself where it was reduced in place.

        Waits ``timeout`` seconds, by default as long as it takes: the host daemon ends what takes too long
        (``--operation-timeout-ms``). As often as you like, in any order, from any thread. Raises
        ``OperationTimeout``, which says whom the operation waits for: it then still runs, and may be waited
        for again; or what the job failed with, as all ranks get it: ``RankLost``, ``TensorMismatch`` or
        another ``JobError``.
        """
        if self._is_settled:
            return self._outcome()
        return self._communicator.engine.wait(self, timeout)

    result = wait

    def exception(self, timeout: float | None = None) -> JobError | None:
        """What the all-reduce failed with, or None if its result is here; waits as :meth:`wait`.

        Raises ``OperationTimeout`` where it has not ended within ``timeout`` seconds.
        """
        try:
            self.wait(timeout)
        except JobError as error:
            if self._error is not None:
                return error
            raise
        return None

    @property
    def done(self) -> bool:
        """Whether the result, or the error, is here.

        It becomes true by itself. It does not wait; without a progress thread it reads what is there, and
        where the ranks of a host add in place (``in_place=True``) it adds what can be added.
        """
        if not self._has_ended:
            self._communicator.engine.look()
            if self._until is not None:
                self._communicator.engine.expire(self)
        return self._has_ended

    def add_done_callback(self, callback: Callable[[BlockingWork], object]) -> None:
        """Have ``callback(work)`` called once, when the result or the error is here.

        In a completion thread, of which there is always one more than callbacks are under way (from the 65th
        on only after 50 ms in which none ends): it may wait for other all-reduces, also for their futures
        and callbacks, and never keeps the communicator from going on. Those of one work
        are called one after the other, in the order in which they were given; what they raise is logged. The
        work is done then: ``work.exception()`` and ``work.wait()`` return at once. When the interpreter ends,
        what has not been called is not called any more.
        """
        self._listen(partial(callback, self))

    def future(self) -> Future[Any]:
        """A ``concurrent.futures.Future`` of the result, always the same one.

        It cannot be cancelled: all ranks take part in an operation. A completion thread fulfils it.
        """
        engine = self._communicator.engine
        engine.require_process()
        with engine.listening:
            future = self._future
            if future is not None:
                return future
            future = self._future = Future()
            future.set_running_or_notify_cancel()
            if self._is_settled:
                COMPLETIONS.submit(self._fulfil)
                return future
        engine.watch(self)
        return future

    def fileno(self) -> int:
        """A descriptor that becomes readable when the result or the error is here, for ``poll`` and the like.

        It is always the same one, an eventfd, and is closed with this object; do not read it.
        """
        engine = self._communicator.engine
        engine.require_process()
        with engine.listening:
            if self._readable is None:
                self._readable = os.eventfd(int(self._is_settled), os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                weakref.finalize(self, os.close, self._readable)
        engine.watch(self)
        return self._readable

    def __await__(self) -> Generator[Any, Any, Any]:
        if trio.lowlevel.in_trio_run():
            raise LocalMisuse(
                f"{self!r} cannot be awaited in Trio; connect with `await inaproto.connect(...)` there"
            )
        import asyncio  # here alone, as nobody else needs it

        return asyncio.wrap_future(self.future()).__await__()

    # --- for the engine

    def event(self) -> threading.Event:
        """Set when it is settled."""
        with self._communicator.engine.listening:
            if self._event is None:
                self._event = threading.Event()
                if self._is_settled:
                    self._event.set()
            return self._event

    def refuse(self, error: JobError) -> None:
        """It cannot begin."""
        if not self._has_ended:
            self._failure = again(error)
            self.settle()

    def _settle(self, wait_ns: int) -> None:
        if self._is_settled:
            return
        super()._settle(wait_ns)
        with self._communicator.engine.listening:
            callbacks, self._callbacks = self._callbacks, []
            if self._event is not None:
                self._event.set()
            if self._readable is not None:
                os.eventfd_write(self._readable, 1)
            if self._future is not None:  # on its own: a callback may wait for it
                COMPLETIONS.submit(self._fulfil)
            if callbacks:
                COMPLETIONS.submit(partial(_call_all, self, callbacks))

    def _listen(self, callback: Callable[[], object]) -> None:
        engine = self._communicator.engine
        engine.require_process()
        with engine.listening:
            if self._is_settled:
                COMPLETIONS.submit(partial(_call_all, self, [callback]))
                return
            self._callbacks.append(callback)
        engine.watch(self)

    def _fulfil(self) -> None:
        assert self._future is not None
        try:
            self._future.set_result(self._outcome())
        except JobError as error:
            self._future.set_exception(error)


def _call_all(work: BlockingWork, callbacks: list[Callable[[], object]]) -> None:
    for callback in callbacks:
        try:
            callback()
        except Exception:
            log.exception("a callback of %r raised", work)
