"""The all-reduces of one process group, in the order of the calls.

Invariants: what was submitted ends once, with its result or an error; after an error everything ends with it;
no call waits for another rank.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inaproto.client.channel import again
from inaproto.client.communicator import BlockingCommunicator, connect_blocking
from inaproto.client.joining import SOCKET_VARIABLE, find_socket
from inaproto.client.stage.waits import HasDescriptor
from inaproto.client.works import BlockingWork
from inaproto.errors import DaemonUnreachable, JobError, LocalMisuse
from inaproto.torch.completion import CompletionThreads
from inaproto.torch.elements import Vector
from inaproto.torch.meeting import Agreed, Patience, Store, meet
from inaproto.torch.record import GroupRecord, say
from inaproto.torch.works import AllReduceWork

JOIN_S: Final = 60.0
"""For ranks that have agreed on a job to have joined it: processes may still be importing."""
DRAIN_S: Final = 5.0
RUN_VARIABLE: Final = "TORCHELASTIC_RUN_ID"

completion = CompletionThreads()


@dataclass(slots=True)
class _Call:
    vector: Vector
    op: str
    work: AllReduceWork
    until: float
    timeout: float
    started: BlockingWork | None = None


class GroupEngine:
    """One group's communicator, joined at its first all-reduce, and the thread that waits for it."""

    def __init__(
        self,
        record: GroupRecord,
        store: Store,
        instead: Callable[[str], Callable[[Vector, str], None]] | None,
    ) -> None:
        """``instead``: makes, of the job's name, what reduces a vector where inaproto cannot; None: that is
        an error.
        """
        self.record = record
        self._store = store
        self._instead = instead
        self._calls: deque[_Call] = deque()
        self._lock = threading.Lock()
        self._running: deque[_Call] = deque()
        self._error: BaseException | None = None
        self._closing = False
        self._leaves = True
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._comm: BlockingCommunicator | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        _engines.append(self)

    # --- any thread

    def submit(self, vector: Vector, op: str, work: AllReduceWork, timeout: float) -> None:
        """Start an all-reduce of ``vector``, in place; ``work`` tells its end."""
        call = _Call(vector, op, work, time.monotonic() + timeout, timeout)
        with self._lock:
            if os.getpid() != self._pid:
                error: BaseException | None = LocalMisuse(
                    f"{self.record.name}: a process group does not survive fork; make one in the new process"
                )
            elif self._closing:
                error = LocalMisuse(f"{self.record.name}: the process group was shut down")
            else:
                error = self._error
                if error is None:
                    self._calls.append(call)
                    if self._thread is None:
                        self._thread = threading.Thread(
                            target=self._serve, name="inaproto all-reduces", daemon=True
                        )
                        self._thread.start()
        if error is not None:
            _end(call, error)
        else:
            self._wake()

    def close(self, *, leaves: bool = True) -> None:
        """Leave the job when what was submitted has ended. Not ``leaves``: the others hear that we are
        lost.
        """
        with self._lock:
            self._closing = True
            self._leaves = leaves
            thread = self._thread
        with contextlib.suppress(ValueError):
            _engines.remove(self)
        self._wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(DRAIN_S + 5)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_in.send(b"\0")

    # --- its thread

    def _serve(self) -> None:
        try:
            reduce = self._open()
            if reduce is not None:
                self._serve_instead(reduce)
            else:
                self._serve_by_inaproto()
        except BaseException as error:  # noqa: BLE001  whoever waits is to hear of it
            self._fail(error)
        finally:
            self._part()

    def _open(self) -> Callable[[Vector, str], None] | None:
        record = self.record
        while not self._calls:
            time.sleep(0)
        first = self._calls[0]
        patience = Patience(first.until, first.timeout, time.monotonic, self._pause)
        why_not = why_not_served(os.environ)
        agreed = meet(
            self._store,
            record.rank,
            record.size,
            group=record.name,
            why_not=why_not,
            run=os.environ.get(RUN_VARIABLE, ""),
            patience=patience,
        )
        record.job = agreed.job
        if agreed.lacks:
            why = _told(agreed, record)
            if self._instead is None:
                raise DaemonUnreachable(why)
            record.carrier, record.why = "gloo", why
            if record.rank == 0:
                say(f"{why}; gloo carries its all-reduces", warns=True)
            return self._instead(agreed.job)
        self._comm = connect_blocking(
            agreed.job, record.rank, size=record.size, key=agreed.key, timeout=JOIN_S
        )
        record.carrier = "inaproto"
        if record.rank == 0:
            say(f"{record.name}: inaproto carries all-reduces of {record.size} ranks, job {agreed.job}")
        return None

    def _pause(self, seconds: float) -> None:
        if self._closing:
            raise JobError(f"{self.record.name}: the process group was shut down")
        time.sleep(seconds)

    def _serve_instead(self, reduce: Callable[[Vector, str], None]) -> None:
        ended_by = None
        while True:
            while self._calls:
                call = self._calls.popleft()
                reduce(call.vector, call.op)
                call.vector.finish(call.op, self.record.size)
                _end(call, None)
            if self._closing and not self._calls:
                return
            select.select([self._wake_out], [], [], ended_by)
            self._drain_wake()

    def _serve_by_inaproto(self) -> None:
        comm = self._comm
        assert comm is not None
        close_at: float | None = None
        while True:
            while self._calls and len(self._running) < 16:
                call = self._calls.popleft()
                array = call.vector.array()
                call.started = comm.all_reduce(array, "sum" if call.op == "avg" else call.op, out=array)
                self._running.append(call)
            comm.channel.pump()
            now = time.monotonic()
            while self._running:
                call = self._running[0]
                assert call.started is not None
                if not call.started.done and now < call.until:
                    break
                call.started.wait(0.0)
                self._running.popleft()
                call.vector.finish(call.op, self.record.size)
                _end(call, None)
            if self._closing:
                close_at = close_at or now + DRAIN_S
                if (not self._running and not self._calls) or now > close_at:
                    return
            if self._calls and len(self._running) < 16:
                continue
            self._wait(comm, close_at)

    def _wait(self, comm: BlockingCommunicator, close_at: float | None) -> None:
        poll = select.poll()
        poll.register(self._wake_out, select.POLLIN)
        for channel in comm.channel.channels:
            poll.register(channel, select.POLLIN | (select.POLLOUT if channel.has_output else 0))
        until = [call.until for call in list(self._running)[:1]] + ([close_at] if close_at else [])
        poll.poll(max(0.0, min(until) - time.monotonic()) * 1000 + 1 if until else None)
        self._drain_wake()

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_out.recv(4096):
                pass

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = error
            calls = [*self._running, *self._calls]
            self._running.clear()
            self._calls.clear()
        for call in calls:
            _end(call, error)

    def _part(self) -> None:
        comm = self._comm
        if comm is not None:
            with contextlib.suppress(JobError):
                if self._leaves and self._error is None:
                    comm.close()
                else:
                    comm.channel.close()

    def forget(self) -> None:
        """In a child process: it must not hold this rank's connection open."""
        channels = [] if self._comm is None else self._comm.channel.channels
        null = os.open(os.devnull, os.O_RDWR)
        held: list[HasDescriptor] = [*channels, self._wake_in, self._wake_out]
        for each in held:
            with contextlib.suppress(OSError, ValueError):
                if each.fileno() >= 0:
                    os.dup2(null, each.fileno())
        os.close(null)


def why_not_served(environment: Mapping[str, str]) -> str:
    """Why no host daemon would serve a rank here; empty: one listens."""
    named = environment.get(SOCKET_VARIABLE, "").split(os.pathsep)
    path, why = (Path(named[0]), "") if named[0] else find_socket(dict(environment))
    if path is None:
        return why
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(JOIN_S)
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


def _end(call: _Call, error: BaseException | None) -> None:
    fresh = again(error) if isinstance(error, JobError) else error
    call.work.end(fresh)
    completion.call(call.work.fulfil)


_engines: list[GroupEngine] = []


def _forget_all() -> None:
    for engine in _engines:
        engine.forget()


os.register_at_fork(after_in_child=_forget_all)


def close_all(*, leaves: bool) -> None:
    """Close every group's engine, as the process ends."""
    for engine in tuple(_engines):
        engine.close(leaves=leaves)
