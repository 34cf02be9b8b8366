"""A communicator's socket, and every wait of the client as a generator that both kinds of client drive.

The generators hold all that a wait means (what ends it, until when, what the error says) and yield
:class:`Wait` when they need the world to move; the blocking client answers with ``poll``, the Trio
client with its event loop. So the two cannot differ in what they do.

No task and no thread: whoever waits reads the socket, for all. What is waited for is in
:mod:`inaproto.client.joining` and :mod:`inaproto.client.waits`; of several sockets of one rank, in
:mod:`inaproto.client.parallel_rings`.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from inaproto.client.forks import keep_from_children
from inaproto.client.memory import Region, SharedMemory
from inaproto.client.protocol import ClientProtocol, PendingOperation, Waited
from inaproto.client.unix_stream import as_stream
from inaproto.client.wishes import JobWishes
from inaproto.errors import DecodeError, JobError, LocalMisuse
from inaproto.ports import ByteStream
from inaproto.wire.ina_header import Dtype, Op

T = TypeVar("T")
Clock = Callable[[], float]


class Pollable(Protocol):
    """A channel, or something else with a descriptor that a rank waits for."""

    @property
    def has_output(self) -> bool: ...
    def fileno(self) -> int: ...
    async def wait_receivable(self) -> None: ...
    async def wait_sendable(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Wait:
    """Go on when one of ``channels`` can be read (or written, if it has output), or at ``until``."""

    channels: Sequence[Pollable]
    until: float | None


Steps = Generator[Wait, None, T]


@dataclass(frozen=True, slots=True)
class JobRank:
    job: str
    rank: int
    size: int
    key: str = field(default="", repr=False)
    wishes: JobWishes = field(default_factory=JobWishes)

    def __str__(self) -> str:
        return f"rank {self.rank} of job {self.job!r}"


@dataclass(frozen=True, slots=True)
class ModelWorker(JobRank):
    """Who is no rank of a job but the worker of its host, of a model that is trained by push and pull."""

    def __str__(self) -> str:
        return f"the worker of model {self.job!r}"


def _nothing() -> None:
    pass


class Channel:
    """A connected byte stream (or bare UNIX socket) and the conversation over it."""

    def __init__(
        self,
        connection: ByteStream | socket.socket,
        path: Path,
        who: JobRank,
        protocol: ClientProtocol | None = None,
    ) -> None:
        self.path = path
        self.who = who
        self.protocol = protocol or ClientProtocol()
        self.memory = SharedMemory()
        self._stream = as_stream(connection)
        self._pid = os.getpid()
        self._output: deque[tuple[memoryview, int | None]] = deque()
        self._closed = False
        self.on_news: Callable[[], None] = _nothing
        """Called when something was read, or the channel closed: whoever else waits looks again."""
        keep_from_children(self)

    def fileno(self) -> int:
        return self._stream.fileno()

    async def wait_receivable(self) -> None:
        await self._stream.wait_receivable()

    async def wait_sendable(self) -> None:
        await self._stream.wait_sendable()

    @property
    def channels(self) -> Sequence[Channel]:
        """What to wait for, in a :class:`Wait`."""
        return (self,)

    @property
    def paths(self) -> Sequence[Path]:
        """Sockets of the host daemons."""
        return (self.path,)

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def operations_done(self) -> int:
        """All-reduces that have their results, as far as this process has read."""
        return self.protocol.operations_done

    @property
    def has_output(self) -> bool:
        return bool(self._output)

    @property
    def failure(self) -> JobError | None:
        """What the communicator has failed with."""
        return self.protocol.failure

    @property
    def operations_called(self) -> int:
        """All-reduces that the daemon was asked for."""
        return self.protocol.operations_called

    def has_room(self, operations: int) -> bool:
        """The daemon keeps so many more, as far as this process has read."""
        return self.protocol.has_room(operations)

    def vital_descriptors(self) -> Sequence[int]:
        """As :class:`inaproto.client.forks.Inherited`: by the socket's end the daemon knows of ours."""
        try:
            return (self._stream.fileno(),)
        except OSError:  # no kernel object is behind it
            return ()

    def require_usable(self) -> None:
        """Raises the error that the communicator has failed with; ``LocalMisuse`` after a fork."""
        if os.getpid() != self._pid:
            raise LocalMisuse(f"{self.who}: a communicator does not survive fork; connect in the new process")
        if self.protocol.failure is not None:
            raise again(self.protocol.failure)

    def require_room(self, operations: int = 1) -> None:
        """Raises ``LocalMisuse`` when the daemon does not keep so many more: others have not ended."""
        if not self.protocol.has_room(operations):
            self.pump()  # some may have ended, unread
            self.require_usable()
            self.protocol.require_room(operations)

    # --- requests

    def announce(self) -> None:
        """Send new segments to the daemon, before the first operation that uses them."""
        for segment, descriptor in self.memory.take_unannounced():
            self.send(self.protocol.buffer(segment.number, segment.nbytes), descriptor)

    def all_reduce(
        self,
        region: Region,
        nbytes: int,
        dtype: Dtype,
        op: Op,
        shape: tuple[int, ...],
        *,
        at: int = 0,
        whole: tuple[int, ...] | None = None,
        waited: Waited | None = None,
        filled: int | None = None,
        call: str = "",
    ) -> PendingOperation:
        """Submit ``nbytes`` at byte ``at`` of ``region``. Raises ``LocalMisuse`` where there is no room.

        ``whole``: the shape of the tensor of which that is a slice. ``waited``: since the last one.
        ``filled``: bytes that are there by now; :meth:`filled` says when more are. ``call``: what it is, if
        not an all-reduce of one tensor.
        """
        operation, data = self.protocol.all_reduce(
            segment=region.segment.number,
            offset=region.offset + at,
            nbytes=nbytes,
            dtype=dtype,
            op=op,
            shape=shape,
            memory=region,
            whole=whole,
            waited=waited,
            filled=filled,
            call=call,
        )
        self.send(data)
        return operation

    def filled(self, operation: PendingOperation, nbytes: int) -> None:
        """The first ``nbytes`` of what ``operation`` reduces are there."""
        self.send(self.protocol.filled(operation, nbytes))

    def give_up(self, reason: str) -> None:
        """This rank cannot go on: its job is told why, and the communicator fails with that."""
        self.send(self.protocol.leave(reason))
        self.protocol.fail(JobError(f"{self.who}: {reason}"))
        self.close()

    # --- bytes

    def send(self, data: bytes, descriptor: int | None = None) -> None:
        """Queue a message (and a descriptor, which is closed in any case), and write what can be written."""
        if self._closed:
            if descriptor is not None:
                os.close(descriptor)
            return
        self._output.append((memoryview(data), descriptor))
        self._write()

    def pump(self) -> None:
        """Write and read all that does not block."""
        self._write()
        self._read()

    def _write(self) -> None:
        while self._output and not self._closed:
            data, descriptor = self._output[0]
            try:
                sent = self._stream.send_nowait(data, () if descriptor is None else (descriptor,))
            except BlockingIOError:
                return
            except OSError as error:
                self._read()  # what the daemon said before it went is the better reason
                self._stop(error.strerror or str(error))
                return
            if descriptor is not None:
                os.close(descriptor)
            if sent == len(data):
                self._output.popleft()
            else:
                self._output[0] = (data[sent:], None)

    def _read(self) -> None:
        while not self._closed:
            try:
                data, descriptors = self._stream.receive_nowait()
            except BlockingIOError:
                return
            except OSError as error:
                self._stop(error.strerror or str(error))
                return
            except DecodeError as error:
                self._stop(str(error))
                return
            for descriptor in descriptors:  # no daemon sends any
                os.close(descriptor)
            if not data:
                self._stop("it closed the connection")
                return
            self.protocol.receive(data)
            self.on_news()

    def _stop(self, reason: str) -> None:
        self.protocol.end_of_stream(f"{reason}: {self.path}")
        self.close()

    def close(self) -> None:
        """Close the socket: the daemon takes a rank that has not left before as lost."""
        if self._closed:
            return
        self._closed = True
        self.on_news()
        self._stream.close()
        self.protocol.fail(JobError(f"{self.who}: the communicator was closed; connect again"))
        for _, descriptor in self._output:
            if descriptor is not None:
                os.close(descriptor)
        self._output.clear()
        self.memory.close()


# --- waits


class Pumped(Protocol):
    """One channel, or those of parallel rings."""

    @property
    def channels(self) -> Sequence[Channel]: ...
    def pump(self) -> None: ...


def wait_until(pumped: Pumped, ready: Callable[[], bool], until: float | None, clock: Clock) -> Steps[bool]:
    """Whether ``ready`` became true in time."""
    while True:
        pumped.pump()
        if ready():
            return True
        if until is not None and clock() >= until:
            return False
        yield Wait(pumped.channels, until)


def again(error: JobError) -> JobError:
    """A fresh exception of the same kind and words: each waiter raises its own, with its own traceback."""
    fresh = type(error)(*error.args)
    fresh.operations_done = error.operations_done
    return fresh
