"""A communicator's socket, and every wait of the client as a generator that both kinds of client drive.

The generators hold all that a wait means (what ends it, until when, what the error says) and yield
:class:`Wait` when they need the world to move; the blocking client answers with ``poll``, the Trio
client with its event loop. So the two cannot differ in what they do.

No task and no thread: whoever waits reads the socket, for all.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from inaproto.client.memory import SharedMemory
from inaproto.client.protocol import ClientProtocol, PendingOperation
from inaproto.client.run_directory import DIRECTORY_VARIABLE, run_directory
from inaproto.client.unix_stream import as_stream
from inaproto.client.wishes import JobWishes
from inaproto.errors import (
    DaemonUnreachable,
    DecodeError,
    JobError,
    LocalMisuse,
    OperationTimeout,
    SwitchUnreachable,
)
from inaproto.ports import ByteStream, Dial

SOCKET_VARIABLE = "INAPROTO_HOST_SOCKET"
CONNECT_RETRY_S = 0.05
REPORT_AFTER_S = 1.0
"""A daemon that is missing for this long is worth a line in the log."""
EXPLAIN_S = 3.0
"""A wait in vain may take this much longer, to learn what it was for."""
EXPLAIN_AGAIN_S = 0.05
LEAVE_S = 1.0
_SWITCH_SOCKETS = ("control.sock", "ports.sock")

log = logging.getLogger("inaproto.client")

T = TypeVar("T")
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Wait:
    """Go on when ``channel`` can be read (or written, if it has output), or at ``until``."""

    channel: Channel | None
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


class Channel:
    """A connected byte stream (or bare UNIX socket) and the conversation over it."""

    def __init__(self, connection: ByteStream | socket.socket, path: Path, who: JobRank) -> None:
        self.path = path
        self.who = who
        self.protocol = ClientProtocol()
        self.memory = SharedMemory()
        self._stream = as_stream(connection)
        self._pid = os.getpid()
        self._output: deque[tuple[memoryview, int | None]] = deque()
        self._closed = False

    def fileno(self) -> int:
        return self._stream.fileno()

    async def wait_receivable(self) -> None:
        await self._stream.wait_receivable()

    async def wait_sendable(self) -> None:
        await self._stream.wait_sendable()

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def has_output(self) -> bool:
        return bool(self._output)

    def require_usable(self) -> None:
        """Raises the error that the communicator has failed with; ``LocalMisuse`` after a fork."""
        if os.getpid() != self._pid:
            raise LocalMisuse(f"{self.who}: a communicator does not survive fork; connect in the new process")
        if self.protocol.failure is not None:
            raise again(self.protocol.failure)

    def require_room(self) -> None:
        """Raises ``LocalMisuse`` when as many operations as the daemon keeps have not ended."""
        if self.protocol.is_full:
            self.pump()  # some may have ended, unread
            self.require_usable()
            self.protocol.require_room()

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

    def _stop(self, reason: str) -> None:
        self.protocol.end_of_stream(reason)
        self.close()

    def close(self) -> None:
        """Close the socket: without :func:`leaving` before, the daemon takes the rank as lost."""
        if self._closed:
            return
        self._closed = True
        self._stream.close()
        self.protocol.fail(JobError(f"{self.who}: the communicator was closed; connect again"))
        for _, descriptor in self._output:
            if descriptor is not None:
                os.close(descriptor)
        self._output.clear()
        self.memory.close()


# --- waits


def wait_until(channel: Channel, ready: Callable[[], bool], until: float | None, clock: Clock) -> Steps[bool]:
    """Whether ``ready`` became true in time."""
    while True:
        channel.pump()
        if ready():
            return True
        if until is not None and clock() >= until:
            return False
        yield Wait(channel, until)


def connecting(
    path: Path | None, who: JobRank, *, timeout: float | None, clock: Clock, dial: Dial
) -> Steps[Channel]:
    """Find the host daemon, join the job, wait until all ranks have. Raises ``JobError``."""
    until = None if timeout is None else clock() + timeout
    channel = yield from reach_daemon(path, who, until, timeout, clock, dial)
    try:
        yield from joining(channel, until, timeout, clock)
    except BaseException:
        channel.close()
        raise
    return channel


def joining(channel: Channel, until: float | None, timeout: float | None, clock: Clock) -> Steps[None]:
    """Join the job by a channel that is connected, and wait until all ranks have. Raises ``JobError``."""
    who, protocol = channel.who, channel.protocol
    channel.send(
        protocol.join(
            job=who.job,
            rank=who.rank,
            size=who.size,
            key=who.key,
            pid=os.getpid(),
            path=who.wishes.path,
            exact_plan=who.wishes.exact_plan,
            elastic=who.wishes.elastic,
        )
    )
    there = yield from wait_until(
        channel, lambda: protocol.joined is not None or protocol.failure is not None, until, clock
    )
    if protocol.failure is not None:
        raise protocol.failure
    if not there:
        late = yield from explain_join(channel, timeout, clock)
        if late is not None:
            raise late
    if protocol.joined is not None:
        channel.memory.segments_max = protocol.joined.segments_max


def waiting(
    channel: Channel, operation: PendingOperation, timeout: float | None, clock: Clock
) -> Steps[None]:
    """Wait for an operation's end. Raises its error, or ``OperationTimeout``: it then still runs."""
    until = None if timeout is None else clock() + timeout
    ended = yield from wait_until(channel, lambda: operation.ended, until, clock)
    if not ended:
        late = yield from _explain_operation(channel, operation, timeout, clock)
        if late is not None:
            raise late
    if operation.error is not None:
        raise again(operation.error)


def leaving(channel: Channel, clock: Clock) -> Steps[None]:
    """Tell the daemon that this rank is finished, and close.

    The daemon confirms when all ranks have left and the job's name is free again; a rank that leaves
    long before the others does not wait for them.
    """
    try:
        if channel.protocol.failure is None:
            channel.send(channel.protocol.leave())
            yield from wait_until(channel, lambda: channel.protocol.has_left, clock() + LEAVE_S, clock)
    finally:
        channel.close()


def again(error: JobError) -> JobError:
    """A fresh exception of the same kind and words: each waiter raises its own, with its own traceback."""
    fresh = type(error)(*error.args)
    fresh.operations_done = error.operations_done
    return fresh


# --- finding the daemon


def find_socket(environment: dict[str, str]) -> tuple[Path | None, str]:
    """Where the host daemon of this machine listens, or None and why it is not known.

    A directory of another user is not searched, unless it was named: under ``/tmp`` anybody could have
    made it, to be handed the job's key and tensors.
    """
    if environment.get(SOCKET_VARIABLE):
        return Path(environment[SOCKET_VARIABLE]), ""
    directory = run_directory(environment)
    owner = _stranger(directory)
    if owner is not None and not environment.get(DIRECTORY_VARIABLE):
        return None, f"{directory} belongs to user {owner}, not to {os.geteuid()}, and is not trusted"
    found = sorted(path for path in directory.glob("*.sock") if path.name not in _SWITCH_SOCKETS)
    if len(found) == 1:
        return found[0], ""
    if not found:
        return None, f"there is no host daemon's socket in {directory}"
    return None, f"there are several in {directory} ({', '.join(path.name for path in found)}), choose one"


def _stranger(directory: Path) -> int | None:
    """The user whose directory (or link to one) it is, if that is neither this one nor root."""
    try:
        owners = (os.lstat(directory).st_uid, os.stat(directory).st_uid)
    except OSError:
        return None  # there is none, or nothing can be found in it
    return next((owner for owner in owners if owner not in (0, os.geteuid())), None)


def reach_daemon(
    path: Path | None,
    who: JobRank,
    until: float | None,
    timeout: float | None,
    clock: Clock,
    dial: Dial,
) -> Steps[Channel]:
    report_at: float | None = clock() + REPORT_AFTER_S
    while True:
        target, why = (path, "") if path is not None else find_socket(dict(os.environ))
        if target is not None:
            try:
                return Channel(dial(target), target, who)
            except OSError as error:
                why = f"{target}: {error.strerror or error}"
                if error.errno not in (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN):
                    raise _unreachable(who, why) from None
        if until is not None and clock() >= until:
            raise _unreachable(who, f"{why}; waited {timeout:g} s")
        if report_at is not None and clock() >= report_at:
            log.warning("%s", _unreachable(who, f"{why}; still trying"))
            report_at = None
        soon = clock() + CONNECT_RETRY_S
        yield Wait(None, soon if until is None else min(soon, until))


def _unreachable(who: JobRank, why: str) -> DaemonUnreachable:
    return DaemonUnreachable(
        f"{who}: no host daemon answers: {why}. Start one (`inaproto host --help`), and give its socket by "
        f"socket= or {SOCKET_VARIABLE}"
    )


# --- what a wait in vain was for


def _ask(channel: Channel, until: float, clock: Clock) -> Steps[dict[str, Any] | None]:
    """The daemon's status; None if it does not answer in time."""
    protocol = channel.protocol
    channel.send(protocol.ask_status())
    yield from wait_until(
        channel,
        lambda: protocol.status is not None or protocol.failure is not None,
        until,
        clock,
    )
    return protocol.status


def _my_ring(status: dict[str, Any], who: JobRank) -> dict[str, Any]:
    for ring in status.get("rings", []):
        if isinstance(ring, dict) and ring.get("job") == who.job:
            ranks = [rank.get("rank") for rank in ring.get("ranks", [])]
            if who.rank in ranks:
                return ring
    return {}


def _ranks(ring: dict[str, Any]) -> str:
    ranks = [str(rank) for rank in ring.get("waiting_for", [])]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(ranks) if ranks else ""


def explain_join(channel: Channel, timeout: float | None, clock: Clock) -> Steps[JobError | None]:
    """None if the last rank came meanwhile."""
    who = channel.who
    until = clock() + EXPLAIN_S
    status: dict[str, Any] | None = None
    while True:
        status = (yield from _ask(channel, until, clock)) or status  # one that answered once is there
        if channel.protocol.joined is not None or channel.protocol.failure is not None:
            return channel.protocol.failure
        if status is None:
            text = f"{who}: the daemon at {channel.path} takes connections but does not answer"
            return DaemonUnreachable(text)
        ranks = _ranks(_my_ring(status, who))
        if ranks or not status.get("switch", {}).get("connected") or clock() >= until:
            break
        yield Wait(None, clock() + EXPLAIN_AGAIN_S)  # the switch has yet to say who is missing
    switch = status.get("switch", {})
    if not switch.get("connected"):
        return SwitchUnreachable(
            f"{who}: the host daemon {status.get('name')} has no switch: {switch.get('error')}. Start one "
            "(`inaproto switch --help`) with the same --dir"
        )
    ranks = ranks or "other ranks"
    return OperationTimeout(
        f"{who}: joined on host {status.get('name')}, but {ranks} of {who.size} did not within "
        f"{timeout:g} s; start them, or give a longer timeout"
    )


def _explain_operation(
    channel: Channel, operation: PendingOperation, timeout: float | None, clock: Clock
) -> Steps[JobError | None]:
    """None if the operation ended meanwhile."""
    who = channel.who
    what = f"all-reduce {operation.op_index} of {who} did not end within {timeout:g} s"
    status = yield from _ask(channel, clock() + EXPLAIN_S, clock)
    if operation.ended:
        return None
    if status is None:
        return OperationTimeout(f"{what}: the host daemon does not answer either")
    ring = _my_ring(status, who)
    running = ring.get("operation") or {}
    if not ring:
        why = "the host daemon does not know the job any more"
    elif not running:
        why = "it has not started"
    elif running.get("op_index") != operation.op_index:
        why = f"it waits for all-reduce {running.get('op_index')}, submitted before"
    else:
        why = f"{running.get('results')} of {running.get('messages')} result messages are here"
    ranks = _ranks(ring)
    return OperationTimeout(f"{what}: {why}" + (f"; waits for {ranks}" if ranks else ""))
