"""The all-reduces of one process group, in the order of the calls, by a communicator of the group's own.

It is joined at the group's first all-reduce, in a thread of its own, so that no call waits for another rank;
what is called meanwhile is queued. From then on calls go to the communicator directly: one that its caller
waits for at once is carried by the caller's thread, another goes on by itself, by the communicator's progress
thread. Where inaproto cannot serve all ranks, that thread stays and has gloo carry what is queued.

Invariants: what was submitted ends once, with its result or an error; after an error everything ends with it.
The engine holds what is under way, so that it ends whether or not anybody else does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from inaproto.client.blocking_communicator import BlockingCommunicator, connect_blocking
from inaproto.client.channel import again
from inaproto.client.joining import SOCKET_VARIABLE, find_socket
from inaproto.client.works import BlockingWork
from inaproto.errors import DaemonUnreachable, JobError, LocalMisuse
from inaproto.torch.elements import Vector
from inaproto.torch.meeting import Agreed, Patience, Store, meet
from inaproto.torch.record import GroupRecord, say
from inaproto.torch.works import CollectiveWork

JOIN_S: Final = 60.0
"""For ranks that have agreed on a job to have joined it: processes may still be importing."""
REACH_S: Final = 10.0
"""For a host daemon to take a connection."""
DRAIN_S: Final = 5.0
"""A group that is shut down waits so long for what is under way."""
RUN_VARIABLE: Final = "TORCHELASTIC_RUN_ID"

Reduce = Callable[[Vector, str, float], None]
"""Reduces a vector in place, by anything but inaproto, and waits, so many seconds at most."""


@dataclass(slots=True)
class Call:
    vector: Vector
    op: str
    work: CollectiveWork
    is_async: bool
    """Nobody waits for it yet."""
    timeout: float
    until: float

    def begin(self, comm: BlockingCommunicator, array: NDArray[Any], timeout: float) -> BlockingWork:
        """All of it, or a piece: an average is a sum to the host daemon, and to the other ranks none."""
        if self.op == "avg":
            return comm.sum_for(array, f"avg of {array.dtype} {array.shape}", timeout)
        return comm.all_reduce(array, self.op, in_place=True, timeout=timeout)


class GroupEngine:
    """One group's communicator, or what does its work instead."""

    def __init__(self, record: GroupRecord, store: Store, instead: Callable[[str], Reduce] | None) -> None:
        """``instead``: makes, of the job's name, what reduces a vector where inaproto cannot; None: that is
        an error."""
        self.record = record
        self._store = store
        self._instead = instead
        self._changed = threading.Condition()
        self._queue: deque[Call] = deque()
        self._begun: deque[CollectiveWork] = deque()
        """In the order of the calls; what has ended is let go of with the next call."""
        self._error: BaseException | None = None
        self._is_closing = False
        self._is_closed = False
        """What was submitted has had its time to end."""
        self._comm: BlockingCommunicator | None = None
        self._takes_calls = False
        """The communicator is there, and what was queued before is called."""
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        _ENGINES.append(self)

    # --- any thread

    def submit(
        self, vector: Vector, op: str, work: CollectiveWork, timeout: float, *, is_async: bool = True
    ) -> None:
        """Start an all-reduce of ``vector``, in place; ``work`` tells its end. ``timeout`` in seconds.

        Not ``is_async``: the caller waits for it before it does anything else.
        """
        call = Call(vector, op, work, is_async, timeout, time.monotonic() + timeout)
        if os.getpid() != self._pid:
            # Locks may be held, and callbacks under way, by threads that this process does not have.
            work.end(
                LocalMisuse(
                    f"{self.record.name}: a process group does not survive fork; make one in the new process"
                )
            )
            return
        with self._changed:
            error = self._error
            if error is None and self._is_closing:
                error = LocalMisuse(f"{self.record.name}: the process group was shut down")
            if error is None:
                self._let_go()
                if self._takes_calls:
                    self._start(call, timeout)
                else:
                    self._queue.append(call)
                    self._changed.notify_all()
                    self._begin(call.until, timeout)
                return
        work.end(fresh(error))

    def carries(self, timeout: float) -> bool:
        """Whether calls are this engine's, by inaproto or else; not: they are the group's own backend's.

        Alike on all ranks of the group.
        """
        return True

    def _begin(self, until: float, timeout: float) -> None:
        """With the lock held: have the ranks agree, until ``until``, once."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._serve, args=(until, timeout), name=f"inaproto {self.record.name}", daemon=True
            )
            self._thread.start()

    def _is_idle(self) -> bool:
        """Nothing waits for the engine's own thread."""
        return not self._queue

    def close(self, *, leaves: bool = True) -> None:
        """Leave the job when what was submitted has ended, also where the ranks have yet to agree.

        Not ``leaves``: at once, and the others hear that we are lost.
        """
        with contextlib.suppress(ValueError):
            _ENGINES.remove(self)
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            until = time.monotonic() + DRAIN_S
            if leaves and self._error is None:
                self._changed.wait_for(self._is_idle, DRAIN_S)
            self._is_closed = True
            comm, begun = self._comm, tuple(self._begun)
            calls = tuple(self._queue) if comm is None else ()
            thread = self._thread
            self._changed.notify_all()
        for call in calls:
            call.work.end(self._was_shut_down())
        if comm is None:
            if thread is not None and not calls and thread is not threading.current_thread():
                # It takes gloo's connections down: a process that ended meanwhile would abort in the middle.
                thread.join(DRAIN_S)
            return  # whoever joins just now sees that
        if leaves:
            with contextlib.suppress(JobError):
                for work in begun:
                    work.settle(max(0.0, until - time.monotonic()))
        self._leave(comm, leaves=leaves)

    def _leave(self, comm: BlockingCommunicator, *, leaves: bool = True) -> None:
        with contextlib.suppress(JobError):
            if leaves:
                comm.close()
            else:
                lost = JobError(f"{self.record.name}: the process ends by an error, or aborts the group")
                comm.__exit__(type(lost), lost, None)

    def _was_shut_down(self) -> JobError:
        return JobError(f"{self.record.name}: the process group was shut down")

    def descriptors(self) -> list[int]:
        """Sockets of this rank."""
        return [] if self._comm is None else [channel.fileno() for channel in self._comm.channel.channels]

    def _start(self, call: Call, timeout: float) -> None:
        """With the lock held: the order of the calls is that of the communicator's operations."""
        assert self._comm is not None
        try:
            if call.op == "avg":
                started = call.begin(self._comm, call.vector.array(), timeout)
            else:  # as there, without one more call of Python's for each
                started = self._comm.all_reduce(call.vector.array(), call.op, in_place=True, timeout=timeout)
            if call.is_async:
                self._comm.engine.watch(started)
        except Exception as error:  # noqa: BLE001  whoever waits is to hear of it
            call.work.end(fresh(error))
            return
        call.work.has_begun(started, lambda: call.vector.finish(call.op, self.record.size))
        self._begun.append(call.work)

    def _let_go(self) -> None:
        """Of what has ended. With the lock held."""
        while self._begun and self._begun[0].is_completed():
            self._begun.popleft()

    # --- its thread

    def _serve(self, until: float, timeout: float) -> None:
        try:
            agreed = self._agree(until, timeout)
            if agreed.lacks:
                self._go_on_without(agreed)
            else:
                self._join(agreed)
                self._hand_over()
        except BaseException as error:  # noqa: BLE001  whoever waits is to hear of it
            with self._changed:
                self._error = error
                calls = tuple(self._queue)
                self._queue.clear()
                self._changed.notify_all()
            for call in calls:
                call.work.end(fresh(error))

    def _agree(self, until: float, timeout: float) -> Agreed:
        record = self.record
        agreed = meet(
            self._store,
            record.rank,
            record.size,
            group=record.name,
            why_not=why_not_served(os.environ),
            run=os.environ.get(RUN_VARIABLE, ""),
            patience=Patience(until, timeout, time.monotonic, self._pause),
        )
        record.job = agreed.job
        if agreed.lacks:
            record.why = _told(agreed, record)
        return agreed

    def _join(self, agreed: Agreed) -> None:
        record = self.record
        comm = connect_blocking(agreed.job, record.rank, size=record.size, key=agreed.key, timeout=JOIN_S)
        with self._changed:
            is_closed = self._is_closed
            if not is_closed:
                self._comm = comm
        if is_closed:
            self._leave(comm, leaves=False)  # the others may wait for the call that has been given up
            raise self._was_shut_down()
        record.carrier = "inaproto"
        if record.rank == 0:
            say(f"{record.name}: inaproto carries all-reduces of {record.size} ranks, job {agreed.job}")

    def _go_on_without(self, agreed: Agreed) -> None:
        """Some rank cannot be served. Raises ``DaemonUnreachable`` where that is an error."""
        record = self.record
        if self._instead is None:
            raise DaemonUnreachable(record.why)
        record.carrier = "gloo"
        if record.rank == 0:
            say(f"{record.why}; gloo carries its all-reduces", warns=True)
        self._serve_instead(self._instead(agreed.job))

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, seconds)
            if self._is_closed:
                raise self._was_shut_down()

    def _hand_over(self) -> None:
        with self._changed:
            while self._queue:
                call = self._queue.popleft()
                self._start(call, max(0.001, round(call.until - time.monotonic(), 3)))
            self._takes_calls = True
            self._changed.notify_all()

    def _serve_instead(self, reduce: Reduce) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closing)
                if not self._queue or self._is_closed:
                    return
                call = self._queue[0]
            reduce(call.vector, call.op, max(0.001, call.until - time.monotonic()))
            call.vector.finish(call.op, self.record.size)
            call.work.end()
            with self._changed:
                self._queue.popleft()
                self._changed.notify_all()


def why_not_served(environment: Mapping[str, str]) -> str:
    """Why no host daemon would serve a rank here; empty: one listens."""
    named = environment.get(SOCKET_VARIABLE, "").split(os.pathsep)
    path, why = find_socket({**environment, SOCKET_VARIABLE: named[0]})
    if path is None:
        return why
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(REACH_S)
            connection.connect(str(path))
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return ""


def _told(agreed: Agreed, record: GroupRecord) -> str:
    rank, why = min(agreed.lacks.items())
    more = f" (and {len(agreed.lacks) - 1} more)" if len(agreed.lacks) > 1 else ""
    return (
        f"{record.name}: inaproto cannot serve rank {rank}{more}: {why}. Start a host daemon there "
        "(`inaproto host --help`), or the script by `inaproto run`"
    )


def fresh(error: BaseException | None) -> BaseException | None:
    """One of its own for each who hears of it."""
    return again(error) if isinstance(error, JobError) else error


_ENGINES: list[GroupEngine] = []


def close_all(*, leaves: bool) -> None:
    """Close every group's engine, as the process ends."""
    for engine in tuple(_ENGINES):
        engine.close(leaves=leaves)
