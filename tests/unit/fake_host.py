"""A host daemon at a UNIX socket, as far as a rank sees it, and its successors; the test says what it says.

It speaks the wire and maps the segments: the sum is twice the array, as of two ranks that have the same.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from inaproto.client.blocking_communicator import BlockingCommunicator, connect_blocking
from inaproto.client.channel import Channel
from inaproto.wire.control import ControlDecoder
from inaproto.wire.control_messages import Message, decode_message, encode_message
from inaproto.wire.ina_header import Dtype
from inaproto.wire.messages.client import AllReduce, Buffer, Done, Join, Joined, Leave, Ok, Rejoin

DEADLINE_S = 60.0
"""For what takes milliseconds: only a hang meets it."""
SUCCESSOR_MS = 60_000

M = TypeVar("M", bound=Message)
T = TypeVar("T")


def until(ready: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + DEADLINE_S
    while not ready():
        assert time.monotonic() < end, "it has not come"
        time.sleep(0.001)


class Connection:
    """One rank's, at the daemon's end."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.came: list[Message] = []
        """What was not taken."""
        self.files: list[int] = []
        self.segments: dict[int, mmap.mmap] = {}
        self.journal = -1
        """What came with a ``Rejoin``."""
        self._decoder = ControlDecoder()

    def receive(self) -> bool:
        """Wait for something. False: the rank has closed it."""
        readable, _, _ = select.select([self.sock], [], [], DEADLINE_S)
        assert readable, "the rank says nothing"
        try:
            data, descriptors, _, _ = socket.recv_fds(self.sock, 1 << 16, 4)
        except ConnectionResetError:
            return False
        self.files += descriptors
        self.came += [decode_message(record) for record in self._decoder.feed(data)]
        return bool(data)

    def take(self, kind: type[M]) -> M:
        """The next message, which is of this kind."""
        while not self.came:
            assert self.receive(), "the rank has closed the connection"
        message = self.came.pop(0)
        assert isinstance(message, kind), message
        if isinstance(message, Rejoin):
            self.journal = self.files.pop(0)
        if isinstance(message, Buffer):
            descriptor = self.files.pop(0)
            self.segments[message.segment] = mmap.mmap(descriptor, message.nbytes)
            os.close(descriptor)
        return message

    def wait_closed(self) -> None:
        while self.receive():
            pass

    def say(self, *messages: Message) -> None:
        self.sock.sendall(b"".join(encode_message(message) for message in messages))

    def sum(self, asked: AllReduce) -> Done:
        """Do it, and return what is to be said."""
        array = np.ndarray(
            (asked.nbytes // Dtype(asked.dtype).itemsize,),
            np.float32,
            self.segments[asked.segment],
            asked.offset,
        )
        array += array
        return Done(op_index=asked.op_index, path="switch", ns=7)

    def end(self, count: int) -> None:
        """Take so many operations, and give their results."""
        for _ in range(count):
            self.say(self.sum(self.take(AllReduce)))

    def rejoined(self, segments: int, operations: int) -> tuple[Rejoin, list[AllReduce]]:
        """What a rank says that comes back, in its order."""
        rejoin = self.take(Rejoin)
        for _ in range(segments):
            self.take(Buffer)
        return rejoin, [self.take(AllReduce) for _ in range(operations)]

    def close(self) -> None:
        self.sock.close()
        files, self.files, self.journal = [*self.files, self.journal], [], -1
        for descriptor in files:
            if descriptor >= 0:
                os.close(descriptor)


class Host:
    """A daemon that listens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connections: list[Connection] = []
        self.journal = -1
        with suppress(FileNotFoundError):
            path.unlink()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(16)

    @property
    def is_dialled(self) -> bool:
        """Somebody waits to be accepted."""
        return bool(select.select([self._listener], [], [], 0)[0])

    def accept(self) -> Connection:
        readable, _, _ = select.select([self._listener], [], [], DEADLINE_S)
        assert readable, "nobody connects"
        made = Connection(self._listener.accept()[0])
        self.connections.append(made)
        return made

    def join(self, **said: Any) -> tuple[Join, Connection]:
        """Take a rank on, and give it a journal."""
        connection = self.accept()
        join = connection.take(Join)
        self.say_joined(connection, join, **said)
        return join, connection

    def say_joined(
        self, connection: Connection, join: Join, *, gives_journal: bool = True, **said: Any
    ) -> None:
        values = {"ring_id": 3, "named": True, "fills": True, "successor_ms": SUCCESSOR_MS} | said
        joined = Joined(id=join.id, rank=join.rank, size=join.size, **values)
        self.journal = os.memfd_create("journal")
        socket.send_fds(connection.sock, [encode_message(joined)], [self.journal] if gives_journal else [])

    def kill(self) -> None:
        """As SIGKILL: all its sockets are closed, and the path stays."""
        self._listener.close()
        for connection in self.connections:
            connection.close()
        if self.journal >= 0:
            os.close(self.journal)

    def followed(self) -> Host:
        """Killed, and a successor listens."""
        self.kill()
        return Host(self.path)


def in_thread(call: Callable[..., T], *args: Any, **options: Any) -> Future[T]:
    """What waits, while the test plays the daemon."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call, *args, **options)
    pool.shutdown(wait=False)
    return future


@contextmanager
def joined(path: Path, **said: Any) -> Generator[tuple[Host, Connection, BlockingCommunicator], None, None]:
    """A rank of two that has joined, and its daemon. Whatever is left at the end is closed."""
    host = Host(path)
    connecting = in_thread(connect_blocking, "j", 0, size=2, key="k", socket=path, timeout=DEADLINE_S)
    _, connection = host.join(**said)
    comm = connecting.result(DEADLINE_S)
    try:
        yield host, connection, comm
    finally:
        comm.engine.channel.close()


def leave(connection: Connection, comm: BlockingCommunicator) -> None:
    """In good order."""
    closing = in_thread(comm.close)
    connection.say(Ok(id=connection.take(Leave).id))
    closing.result(DEADLINE_S)


def results(works: Sequence[Any]) -> list[list[float]]:
    return [work.wait(DEADLINE_S).tolist() for work in works]


def one(comm: BlockingCommunicator) -> Channel:
    assert isinstance(comm.channel, Channel)
    return comm.channel


def ones(value: float = 1) -> NDArray[np.float32]:
    return np.full(3, value, np.float32)
