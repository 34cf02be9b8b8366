"""A rank's connection to its host daemon, and to the successors of that.

Where the daemon is gone and a successor may come, the connection *returns* to it (docs/protocol.md 11, rule
11): until then nothing is written, and what is called is kept; then all that has not ended is said anew. A
thread dials, whatever the program does (:mod:`inaproto.client.watcher`); where no descriptor is behind the
stream, or the rank still joins, whoever drives the connection does.

Invariants: the thread takes nothing of what a daemon says, and calls nobody back; it holds the lock whenever
it touches what the connection knows. What is said anew is what has not ended at that moment; after it nothing
of the stream before is taken. Only who drives the connection closes streams that others may wait for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

import trio

from inaproto.client.alarm import Alarm
from inaproto.client.forks import keep_from_children
from inaproto.client.memory import SharedSegment
from inaproto.client.protocol import ClientProtocol
from inaproto.client.unix_stream import DESCRIPTORS_MAX, as_stream
from inaproto.client.watcher import RETRY_S, WATCHER
from inaproto.errors import DecodeError, JobError
from inaproto.ports import ByteStream, Dial
from inaproto.units import UNIX_PATH_BYTES_MAX

TELL_S: Final = 1.0
"""The log has at most one line in this time of daemons that go."""
_CLOSED: Final = "it closed the connection"

log = logging.getLogger("inaproto.client")


def _nothing() -> None:
    pass


@dataclass(slots=True)
class _Absence:
    """The host daemon is gone, and its successor awaited."""

    reason: str
    since: float
    until: float
    """Infinite while the rank joins: then whoever joins says how long it waits."""
    next_try: float
    """Where no thread tries."""
    why_not: str = ""
    """Why the last attempt to reach one was in vain."""
    is_told: bool = False
    """The log has a line of it."""


class Connection:
    """A connected byte stream (or bare UNIX socket), and what is written to it and read.

    ``dial``: connects to a successor of the host daemon; None: none is of use.
    """

    def __init__(
        self,
        connection: ByteStream | socket.socket,
        path: Path,
        owner: object,
        protocol: ClientProtocol,
        dial: Dial | None,
    ) -> None:
        self.path = path
        self._owner = owner
        self.protocol = protocol
        self._stream = as_stream(connection)
        self._has_descriptor = _descriptor(self._stream) >= 0
        self._dial = dial
        self._address = _lasting(path)
        self._lock = threading.RLock()
        self._output: deque[tuple[memoryview, int | None]] = deque()
        """Messages, and descriptors that go with them and are not closed."""
        self._announced: list[SharedSegment] = []
        self._came: list[int] = []
        """Descriptors whose message has not come."""
        self._journal = -1
        """What the successor needs to have of the daemon before; -1: there will be none."""
        self._forget_journal: Callable[[], object] = _nothing
        self._absence: _Absence | None = None
        self._successor_s = 0.0
        """How long it waits for a successor."""
        self._left_s = 0.0
        """How much of that is left, while the last one has not taken it on."""
        self._tells_again = float("-inf")
        self._ended: list[ByteStream] = []
        """Streams that others may still wait for."""
        self._alarm: Alarm | None = None
        """Rings when an absence is over."""
        self._closed = False
        self.on_news: Callable[[], None] = _nothing
        """Called when something was read, or the channel closed: whoever else waits looks again."""
        keep_from_children(self)

    def fileno(self) -> int:
        if self._absence is not None and self._alarm is not None:
            return self._alarm.fileno()
        return self._stream.fileno()

    async def wait_receivable(self) -> None:
        if self._absence is None:
            await self._stream.wait_receivable()
        elif self._alarm is not None and not self.dials_itself:
            await self._alarm.wait()
        else:
            await trio.sleep(RETRY_S)

    async def wait_sendable(self) -> None:
        if self._absence is None:  # else there is nothing to be written any more
            await self._stream.wait_sendable()

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def has_output(self) -> bool:
        return bool(self._output)

    @property
    def is_returning(self) -> bool:
        """The host daemon is gone, and its successor awaited."""
        return self._absence is not None

    @property
    def returns(self) -> int:
        """How often a successor of the host daemon has taken this rank on."""
        return self.protocol.returns

    def vital_descriptors(self) -> Sequence[int]:
        """As :class:`inaproto.client.forks.Inherited`: by the socket's end the daemon knows of ours."""
        return [number for stream in (self._stream, *self._ended) if (number := _descriptor(stream)) >= 0]

    def after_fork(self) -> None:
        """As :class:`inaproto.client.forks.Inherited`: who had the lock is not here."""
        self._lock = threading.RLock()

    def send(self, data: bytes, descriptor: int | None = None) -> None:
        """Queue a message (and a descriptor, which stays the caller's), and write what can be written.

        While a successor of the daemon is awaited, what it has to know is said when it is there.
        """
        with self._lock:
            if self._closed or self._absence is not None:
                return
            self._output.append((memoryview(data), descriptor))
            self._write()

    def pump(self) -> None:
        """Write and read all that does not block."""
        with self._lock:
            self._close_ended()
            if self.protocol.read():
                self.on_news()
            if self._absence is not None:
                self._look_for_successor(self._absence)
            self._write()
            self._read()

    def _write(self, *, reads: bool = True) -> None:
        """``reads``: also what a daemon said before it went."""
        while self._output and not self._closed:
            data, descriptor = self._output[0]
            stream = self._stream
            try:
                sent = stream.send_nowait(data, () if descriptor is None else (descriptor,))
            except BlockingIOError:
                return
            except OSError as error:
                if reads:
                    self._read()  # what the daemon said before it went is the better reason
                    self._end(stream, error.strerror or str(error))
                else:
                    self.look_for_end()
                    if stream is self._stream and self._absence is None and self._may_return:
                        self._lose(error.strerror or str(error))
                return
            if sent == len(data):
                self._output.popleft()
            else:
                self._output[0] = (data[sent:], None)

    def _read(self) -> None:
        while not self._closed and self._absence is None:
            stream = self._stream
            try:
                data, descriptors = stream.receive_nowait()
            except BlockingIOError:
                return
            except OSError as error:
                self._end(stream, error.strerror or str(error))
                return
            except DecodeError as error:
                self._stop(str(error))
                return
            self._came += descriptors
            if not data:
                self._end(stream, _CLOSED)
                return
            has_joined = self.protocol.joined is not None
            self.protocol.receive(data)
            if self.protocol.joined is not None:
                if not has_joined:
                    self._take_journal(self.protocol.joined.successor_ms)
                self._close_came()
            self._close_came(but=DESCRIPTORS_MAX)
            self.on_news()

    def _close_came(self, but: int = 0) -> None:
        while len(self._came) > but:
            os.close(self._came.pop())

    def end_all(self, error: JobError) -> None:
        """The rank cannot go on: all that is pending ends with that."""
        with self._lock:
            self.protocol.fail(error)

    def _stop(self, reason: str, waited: str = "") -> None:
        self.protocol.end_of_stream(f"{reason}: {self.path}", waited)
        self.close()

    def close(self) -> None:
        """Close the socket: the daemon takes a rank that has not left before as lost."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._absence = None
            WATCHER.forget(self)
            self.on_news()
            self._stream.close()
            self._close_ended()
            self.protocol.fail(JobError(f"{self._owner}: the communicator was closed; connect again"))
            self._output.clear()
            self._announced.clear()
            self._close_came()
            self._forget_journal()
            if self._alarm is not None:
                self._alarm.ring()

    # --- a successor of the daemon

    def _take_journal(self, successor_ms: int) -> None:
        """The daemon may be replaced, if it has given what the successor needs."""
        if not successor_ms or not self._came or self._dial is None:
            return
        self._journal = self._came.pop(0)
        self._forget_journal = forget = weakref.finalize(self, os.close, self._journal)
        forget.atexit = False
        self._successor_s = successor_ms / 1000
        if self._has_descriptor:
            self._alarm = self._alarm or Alarm()  # now: later there may be no descriptor for it
            WATCHER.watch(self, self._stream.fileno())

    @property
    def _is_watched(self) -> bool:
        """A thread looks for the successor."""
        return self._journal >= 0 and self._has_descriptor

    @property
    def dials_itself(self) -> bool:
        """Whoever drives it has to pump now and then, for it to return."""
        return self._absence is not None and not self._is_watched

    @property
    def _may_return(self) -> bool:
        known = self._journal >= 0 or self.protocol.is_joining
        return known and self._dial is not None and self.protocol.may_return

    def _now(self) -> float:
        return monotonic() if self._has_descriptor else trio.current_time()

    def _end(self, stream: ByteStream, reason: str) -> None:
        """Whoever drives the channel has found that ``stream`` has ended."""
        if stream is not self._stream or self._closed or self._absence is not None:
            return
        if self._may_return:
            self._lose(reason)
            self._close_ended()
        else:
            self._stop(reason)

    def _lose(self, reason: str) -> None:
        now, is_joining = self._now(), self._journal < 0
        if not self.protocol.is_rejoining:
            self._left_s = float("inf") if is_joining else self._successor_s
        self._absence = _Absence(reason, now, now + self._left_s, now + RETRY_S)
        self._ended.append(self._stream)
        self._output.clear()
        self._close_came()
        if self._has_descriptor:
            if self._alarm is None:
                self._alarm = Alarm()
            self._alarm.quiet()
        self._absence.is_told = now >= self._tells_again
        if self._absence.is_told:  # but not of each, where they follow each other fast
            self._tells_again = now + TELL_S
            gone = f"{self._owner}: the host daemon is gone ({reason}: {self.path})"
            if is_joining:
                log.warning("%s before all ranks have joined; joins again by the next one there", gone)
            else:
                log.warning("%s; waits up to %.3g s for its successor", gone, self._left_s)
        if self._is_watched:
            WATCHER.look_for_successor(self)

    def _close_ended(self) -> None:
        while self._ended:
            self._ended.pop().close()

    def _look_for_successor(self, absence: _Absence) -> None:
        """Whoever drives the channel does, if no thread."""
        if not self._is_watched and self._now() >= absence.next_try:
            absence.next_try = self._now() + RETRY_S
            self.try_to_return()
        if absence is self._absence and self._now() >= absence.until:
            waited = f"{self._successor_s:.3g} s{absence.why_not}"
            self._stop(absence.reason, f", and no successor there has taken this rank on within {waited}")

    def look_for_end(self) -> None:
        """For the watcher, as all below: it reads what the daemon said, and leaves the rest to who drives."""
        with self._lock:
            stream = self._stream
            if self._closed or self._absence is not None or not stream.peer_is_gone():
                return
            with contextlib.suppress(OSError, DecodeError):  # nothing more will come, whatever the reason
                while True:
                    data, descriptors = stream.receive_nowait()
                    self._came += descriptors
                    if not data:
                        break
                    self.protocol.keep(data)
            if self._may_return:
                self._lose(_CLOSED)

    def try_to_return(self) -> bool:
        """Look for a successor, once. Whether there is no reason to look again."""
        absence, dial = self._absence, self._dial
        if absence is None or dial is None:
            return True
        if self._now() >= absence.until:
            with self._lock:
                if absence is self._absence and self._alarm is not None:
                    self._alarm.ring()  # whoever drives it sees that none has come in time
            return True
        try:
            stream = dial(self._address)
        except OSError as error:
            absence.why_not = f" ({error.strerror or error})"
            return False
        with self._lock:
            if absence is self._absence:
                self._go_on(absence, stream)
            else:  # closed meanwhile
                stream.close()
        return True

    def _go_on(self, absence: _Absence, stream: ByteStream) -> None:
        now = self._now()
        self._stream, self._absence = stream, None
        if self._journal < 0:
            self._output.append((memoryview(self.protocol.join_again()), None))
        else:
            self._left_s = max(0.0, absence.until - now)
            self._output.append((memoryview(self.protocol.rejoin()), self._journal))
            for segment in self._announced:
                said = self.protocol.buffer(segment.number, segment.nbytes)
                self._output.append((memoryview(said), segment.descriptor))
            self._output.extend((memoryview(said), None) for said in self.protocol.call_again())
        if absence.is_told:
            log.warning(
                "%s: the successor of its host daemon answers at %s after %.3g s; it goes on through that",
                self._owner,
                self.path,
                now - absence.since,
            )
        if self._alarm is not None:
            self._alarm.ring()
        self._write(reads=False)
        if self._is_watched and self._absence is None:
            WATCHER.watch(self, stream.fileno(), writes=self.has_output)

    def flush(self) -> bool:
        """Write what can be written. Whether that was all."""
        with self._lock:
            self._write(reads=False)
            return not self._output


def _descriptor(stream: ByteStream) -> int:
    """-1: it is closed, or no kernel object is behind it."""
    try:
        return stream.fileno()
    except OSError:
        return -1


def _lasting(path: Path) -> Path:
    """``path``, whatever the process makes its working directory, if it is not too long so."""
    absolute = path.absolute()
    return absolute if len(os.fsencode(absolute)) <= UNIX_PATH_BYTES_MAX else path
