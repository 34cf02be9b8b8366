"""Control messages over a byte stream, with descriptors beside them.

One class serves the three control channels: training process to host daemon, host daemon to switch,
and ``inaproto status`` to either. The bytes are those of :mod:`inaproto.wire.control`.

Invariants: the output queue is bounded, so a peer that does not read costs itself its channel and
nobody else memory; received descriptors are bounded and closed with the stream; the order of
messages is the order of the calls.
"""

from __future__ import annotations

import math
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

import trio

from inaproto.client.foreign_descriptors import discard
from inaproto.client.unix_stream import DESCRIPTORS_MAX, UnixStream, as_stream
from inaproto.daemon.net.many_streams import ManyStreams
from inaproto.daemon.net.tcp_stream import TcpStream
from inaproto.errors import DecodeError
from inaproto.ports import ByteStream
from inaproto.wire.control_messages import Dialogue, Message

OUTPUT_BYTES_MAX = 4 << 20
MESSAGES_MAX = 64
READS_MAX = 2
"""In a row: who always has more to say keeps no other task waiting."""
DEAD_S = 10.0
"""A session from which nothing is heard for this long has ended; both sides ping more often."""
PARTIAL_S = 10.0
"""A peer that falls silent in the middle of a message is cut off after this long."""


class EndOfChannel(Exception):
    """The far side is gone: an outcome, not a fault. ``reason`` says how it went."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ControlStream:
    """Typed control messages in both directions over a connected byte stream (or bare UNIX socket).

    Takes ownership of ``connection``. One task receives; any code may send. ``send`` waits until its
    bytes are with the stream; ``send_nowait`` queues and needs :meth:`run` in a nursery (or a later
    ``send``) to move what the stream did not take at once.
    """

    def __init__(
        self, connection: ByteStream | socket.socket, *, output_bytes_max: int = OUTPUT_BYTES_MAX
    ) -> None:
        self._stream = as_stream(connection)
        self._dialogue = Dialogue()
        self._arrived: deque[Message] = deque()
        self._messages = self._reads = 0
        """Since other tasks could run."""
        self._descriptors: deque[int] = deque()
        self._input_bytes_left = math.inf
        self._waits_first = isinstance(self._stream, UnixStream | TcpStream)
        """Whether the kernel says that there is more to read: else the stream has bytes of its own."""
        self._has_read = False
        """So all is likely to have been read: to ask would cost a call of the system that finds nothing."""
        self._output: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._output_bytes = 0
        self._output_bytes_max = output_bytes_max
        self._output_lock = trio.Lock()
        self._wake_writer = trio.Event()
        self._is_held = False
        self._closed = ""
        self._closing: Callable[[], None] = lambda: None
        self._output_closed = ""

    def peer_pid(self) -> int:
        """The process on the far side, as the kernel vouches for it; 0 if it cannot."""
        return self._stream.peer_pid()

    def peer_is_gone(self) -> bool:
        """Whether the far side has closed, even if messages of it are still to be received."""
        return bool(self._closed) or self._stream.peer_is_gone()

    # --- receiving

    def limit_input(self, nbytes: float) -> None:
        """From now on at most so many bytes come in before the next call; ``math.inf``: any number."""
        self._input_bytes_left = nbytes

    async def receive(self) -> Message:
        """The next message.

        Raises ``EndOfChannel``, or ``DecodeError`` for what no message can be: nothing that follows
        could be trusted, so the caller says why (``Error``) and closes.
        """
        if self._messages >= MESSAGES_MAX or self._reads >= READS_MAX:
            self._messages = self._reads = 0
            await trio.lowlevel.checkpoint()
        self._messages += 1
        while not self._arrived:
            self._arrived.extend(self._decoded(await self._receive_bytes()))
        return self._arrived.popleft()

    async def receive_each(self, many: ManyStreams, take: Callable[[Message], None]) -> NoReturn:
        """Give ``take`` each message, as long as there is one; ``many`` reads for this stream and for others.

        Raises as :meth:`receive`, and what ``take`` raises. It may be cancelled and called again.
        """
        while True:
            take(await self.receive())
            while self._arrived:
                take(self._arrived.popleft())
            # Bytes of TLS that are read already are no news to the kernel; and a message may not come by
            # halves for ever.
            if self._waits_first and not self._dialogue.buffered_bytes:
                self._require_open()
                await many.until(self._stream.fileno(), partial(self._read_now, take), self._on_close)

    def _read_now(self, take: Callable[[Message], None]) -> bool:
        """What there is to read. Whether a message has come in part."""
        self._require_open()
        try:
            data = self._read()
        except BlockingIOError:
            return False
        for message in self._decoded(data):
            take(message)
        return bool(self._dialogue.buffered_bytes)

    def _on_close(self, call: Callable[[], None]) -> None:
        self._closing = call

    async def _receive_bytes(self) -> bytes:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._has_read:
            self._require_open()
            self._has_read, self._messages, self._reads = False, 0, 0
            await self._wait_for_input()
        while True:
            self._require_open()
            try:
                data = self._read()
            except BlockingIOError:
                self._messages = self._reads = 0
                await self._wait_for_input()
                continue
            self._reads += 1
            self._has_read = self._waits_first
            return data

    def _read(self) -> bytes:
        """Raises ``BlockingIOError``."""
        try:
            data, descriptors = self._stream.receive_nowait()
        except BlockingIOError:
            raise
        except OSError as error:
            raise EndOfChannel(f"failed: {error.strerror}") from error
        self._descriptors.extend(descriptors)
        self._input_bytes_left -= len(data)
        if self._input_bytes_left < 0:
            raise DecodeError("control", "more bytes than anybody needs to say who it is")
        if len(self._descriptors) > DESCRIPTORS_MAX:
            raise DecodeError("control", f"more than {DESCRIPTORS_MAX} descriptors at once")
        return data

    def _decoded(self, data: bytes) -> Iterator[Message]:
        if not data:
            self._dialogue.finish()
            raise EndOfChannel("closed by its peer")
        return self._dialogue.decode(data)

    async def _wait_for_input(self) -> None:
        """A peer may be silent for ever between messages, not within one."""
        if not self._dialogue.buffered_bytes:
            await self._receivable()
            return
        with trio.move_on_after(PARTIAL_S) as scope:
            await self._receivable()
        if scope.cancelled_caught:
            raise DecodeError(
                "control",
                f"{self._dialogue.buffered_bytes} bytes of a message, and no more for {PARTIAL_S:g} s",
            )

    async def _receivable(self) -> None:
        try:
            await self._stream.wait_receivable()
        except trio.ClosedResourceError:
            raise EndOfChannel(self._closed or "closed on this side") from None

    def take_descriptor(self) -> int | None:
        """The oldest received descriptor that nobody took yet; the caller closes it.

        A message's descriptor has arrived when the message has, because the sender attaches it to the
        message's first byte.
        """
        return self._descriptors.popleft() if self._descriptors else None

    # --- sending

    def send_nowait(self, message: Message, *, descriptors: Sequence[int] = ()) -> None:
        """Queue a message and write what the stream takes now.

        Raises ``EndOfChannel``; also when the peer has not read for so long that the queue is full: the
        channel is then closed. Descriptors must stay open until they are sent.
        """
        self._queue(message, descriptors)
        if not self._is_held:
            self._write_now()

    @contextmanager
    def held(self) -> Iterator[None]:
        """What ``send_nowait`` is given meanwhile leaves at the end, together: its peer wakes up once for it.

        Raises ``EndOfChannel`` at the end. Nothing may wait meanwhile.
        """
        was_empty, self._is_held = not self._output, True
        try:
            yield
        finally:
            self._is_held = False
        if was_empty:
            self._join_output()
        if self._output:
            self._write_now()

    def _write_now(self) -> None:
        if not self._output_lock.locked():
            self._write_some()
        if self._output:
            self._wake_writer.set()

    async def send(self, message: Message, *, descriptors: Sequence[int] = ()) -> None:
        """Send a message after all that is queued. Raises ``EndOfChannel``."""
        self._queue(message, descriptors)
        await self.flush()

    async def flush(self) -> None:
        """Wait until all queued output is with the stream. Raises ``EndOfChannel``."""
        async with self._output_lock:
            while self._output:
                self._require_open()
                if not self._write_some():
                    try:
                        await self._stream.wait_sendable()
                    except trio.ClosedResourceError:
                        raise EndOfChannel(self._closed or "closed on this side") from None

    async def run(self) -> None:
        """Move what ``send_nowait`` left queued, until the channel takes no more (then returns)."""
        try:
            while not self._closed:
                await self._wake_writer.wait()
                self._wake_writer = trio.Event()
                await self.flush()
        except EndOfChannel:
            return

    def _queue(self, message: Message, descriptors: Sequence[int]) -> None:
        self._require_open()
        if self._output_closed:
            raise EndOfChannel(self._output_closed)
        data = self._dialogue.encode(message)
        if self._output_bytes + len(data) > self._output_bytes_max:
            reason = f"closed: its peer left {self._output_bytes} bytes of messages unread"
            self._close_now(reason)
            raise EndOfChannel(reason)
        self._output.append((memoryview(data), tuple(descriptors)))
        self._output_bytes += len(data)

    def _write_some(self) -> bool:
        """Write until the stream would block; whether the queue is empty now."""
        while self._output:
            data, descriptors = self._output[0]
            try:
                sent = self._stream.send_nowait(data, descriptors)
            except BlockingIOError:
                return False
            except OSError as error:
                # What the peer said before it closed, perhaps why, can still be received.
                self._output_closed = f"closed by its peer ({error.strerror})"
                self._output.clear()
                self._output_bytes = 0
                raise EndOfChannel(self._output_closed) from error
            self._output_bytes -= sent
            if sent == len(data):
                self._output.popleft()
            else:
                self._output[0] = (data[sent:], ())
        return True

    def _join_output(self) -> None:
        """What is queued, for one call of the system; of none of it a part has left."""
        if len(self._output) > 1 and not any(descriptors for _, descriptors in self._output):
            whole = b"".join(data for data, _ in self._output)
            self._output.clear()
            self._output.append((memoryview(whole), ()))

    # --- closing

    def _require_open(self) -> None:
        if self._closed:
            raise EndOfChannel(self._closed)

    def _close_now(self, reason: str) -> None:
        if self._closed:
            return
        self._closed = reason
        self._output.clear()
        self._output_bytes = 0
        while self._descriptors:
            discard(self._descriptors.popleft())
        self._stream.close()
        self._closing()
        self._wake_writer.set()

    def close(self, reason: str = "closed on this side") -> None:
        """Close at once; queued output is lost, a waiting ``receive`` or ``send`` raises ``EndOfChannel``."""
        self._close_now(reason)

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()
