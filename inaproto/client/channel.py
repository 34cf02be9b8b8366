"""A communicator's socket, and every wait of the client as a generator that both kinds of client drive.

The generators hold all that a wait means (what ends it, until when, what the error says) and yield
:class:`Wait` when they need the world to move; the blocking client answers with ``poll``, the Trio
client with its event loop. So the two cannot differ in what they do.

No task and no thread: whoever waits reads the socket, for all (:mod:`inaproto.client.connection`, which has a
thread for one case alone). What is waited for is in :mod:`inaproto.client.joining` and
:mod:`inaproto.client.waits`; of several sockets of one rank, in :mod:`inaproto.client.parallel_rings`.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from inaproto.client.connection import Connection
from inaproto.client.memory import Region, SharedMemory, SharedSegment
from inaproto.client.protocol import ClientProtocol, PendingOperation, Waited
from inaproto.client.watcher import RETRY_S
from inaproto.client.wishes import JobWishes
from inaproto.errors import JobError, LocalMisuse
from inaproto.ports import ByteStream, Dial
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
    life: str = field(default_factory=lambda: secrets.token_hex(16), repr=False, compare=False)
    """A successor of its host daemon knows it again by this."""

    def __str__(self) -> str:
        return f"rank {self.rank} of job {self.job!r}"


@dataclass(frozen=True, slots=True)
class ModelWorker(JobRank):
    """Who is no rank of a job but the worker of its host, of a model that is trained by push and pull."""

    def __str__(self) -> str:
        return f"the worker of model {self.job!r}"


class Channel(Connection):
    """The conversation of one rank with its host daemon."""

    def __init__(
        self,
        connection: ByteStream | socket.socket,
        path: Path,
        who: JobRank,
        protocol: ClientProtocol | None = None,
        dial: Dial | None = None,
    ) -> None:
        super().__init__(connection, path, who, protocol or ClientProtocol(), dial)
        self.who = who
        self.memory = SharedMemory()
        self.meeting_places: dict[str, Path] = {}
        """Directories where it could meet other ranks of its host, by what its daemon was told of them."""
        self._pid = os.getpid()

    @property
    def channels(self) -> Sequence[Channel]:
        """What to wait for, in a :class:`Wait`."""
        return (self,)

    @property
    def paths(self) -> Sequence[Path]:
        """Sockets of the host daemons."""
        return (self.path,)

    @property
    def operations_done(self) -> int:
        """All-reduces that have their results, as far as this process has read."""
        return self.protocol.operations_done

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
        for segment in self.memory.take_unannounced():
            self.announce_segment(segment)

    def announce_segment(self, segment: SharedSegment) -> None:
        """Send one, which the daemon has not."""
        with self._lock:
            self._announced.append(segment)
            self.send(self.protocol.buffer(segment.number, segment.nbytes), segment.descriptor)

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
        with self._lock:
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
        with self._lock:
            self.send(self.protocol.filled(operation, nbytes))

    def leave(self, reason: str = "") -> None:
        """Tell the daemon that this rank is finished, or the ``reason`` why it cannot go on."""
        with self._lock:
            self.send(self.protocol.leave(reason))

    def give_up(self, reason: str) -> None:
        """This rank cannot go on: its job is told why, and the communicator fails with that."""
        self.leave(reason)
        self.end_all(JobError(f"{self.who}: {reason}"))
        self.close()

    def close(self) -> None:
        """As :meth:`Connection.close`; and its shared memory."""
        with self._lock:
            if not self.is_closed:
                super().close()
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
        ends = [] if until is None else [until]
        if any(channel.dials_itself for channel in pumped.channels):
            ends.append(clock() + RETRY_S)
        yield Wait(pumped.channels, min(ends, default=None))


def again(error: JobError) -> JobError:
    """A fresh exception of the same kind and words: each waiter raises its own, with its own traceback."""
    fresh = type(error)(*error.args)
    fresh.operations_done = error.operations_done
    return fresh
