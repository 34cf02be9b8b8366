"""Messages with arrays between processes of an overlay tree: what a channel is, and one over byte streams.

A channel keeps the order of messages and loses none unless it ends. The first byte of a connection is its
priority (MLNet, section 3.3): whoever accepts it may let more urgent ones go first before it reads on.

Invariants: the output queue is bounded, so a peer that does not read costs itself its channel; arrays that
are in messages given to ``send_nowait`` are read until they are sent, and not copied: their owner does not
change them. Those of messages that come are of bytes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import trio

from inaproto.daemon.models.channels.pacing import Meter, Paces
from inaproto.daemon.net.control_stream import EndOfChannel
from inaproto.errors import DecodeError
from inaproto.ports import BoundsBuffers, ByteStream
from inaproto.wire.control_messages import Message, decode_with_arrays, encode_with_arrays
from inaproto.wire.messages.array_frames import FrameDecoder

PRIORITY_MAX: Final = 255
"""The most urgent."""
OUTPUT_BYTES_MIN: Final = 16 << 20
ARRAYS_MAX: Final = 4
"""In the queue of output, by default: of weights, which are made anew for each answer."""
PARTIAL_S: Final = 30.0
"""A peer that falls silent in the middle of a message is cut off after this long."""
READS_MAX: Final = 16
"""In a row: who always has more to say keeps no other task waiting."""


class MessageChannel(Protocol):
    """Takes and gives messages in order; ``EndOfChannel`` is how it ends."""

    @property
    def address(self) -> str:
        """Address of the far side, for people."""
        ...

    def allow_payload(self, nbytes_max: int, arrays_max: int = ARRAYS_MAX) -> None:
        """From now on; before, a message may have none. ``arrays_max``: so many may wait to be sent."""
        ...

    def send_nowait(self, message: Message) -> None:
        """Queue it. Raises ``EndOfChannel``, also when the peer has left too much unread."""
        ...

    async def flush(self) -> None:
        """Wait until all that is queued has been given to the transport."""
        ...

    async def receive(self) -> Message:
        """The next one. Raises ``EndOfChannel``, or ``DecodeError`` for what no message can be."""
        ...

    async def run(self) -> None:
        """Move queued output until the channel ends (then returns); run it in a nursery."""
        ...

    def close(self, reason: str = "closed on this side") -> None: ...


class StreamChannel:
    """:class:`MessageChannel` over a connected byte stream, of which it takes ownership."""

    def __init__(self, stream: ByteStream, address: str, *, output_bytes_max: int = OUTPUT_BYTES_MIN) -> None:
        self._stream = stream
        self._address = address
        self._decoder = FrameDecoder(0)
        self._arrived: deque[Message] = deque()
        self._reads = 0
        self._output: deque[memoryview] = deque()
        self._output_bytes = 0
        self._output_bytes_max = output_bytes_max
        self._output_lock = trio.Lock()
        self._wake_writer = trio.Event()
        self._closed = ""
        self._incoming: Meter | None = None
        self._outgoing: Meter | None = None
        self._on_piece: Callable[[], None] | None = None
        self._piece_period_s = self._piece_told_at = 0.0
        self.bytes_in = self.bytes_out = 0

    @property
    def address(self) -> str:
        return self._address

    @property
    def stream(self) -> ByteStream:
        return self._stream

    def allow_payload(self, nbytes_max: int, arrays_max: int = ARRAYS_MAX) -> None:
        self._decoder.payload_bytes_max = nbytes_max
        self._output_bytes_max = max(OUTPUT_BYTES_MIN, arrays_max * nbytes_max)

    def pace(self, paces: Paces, priority: int) -> None:
        """From now on: as fast as the link and more important channels let it."""
        self._incoming = paces.incoming.meter(priority)
        self._outgoing = paces.outgoing.meter(priority)
        if priority < paces.highest and isinstance(self._stream, BoundsBuffers):
            self._stream.bound_buffers(paces.held_bytes)

    def tell_of_pieces(self, period_s: float, on_piece: Callable[[], None]) -> None:
        """Called while a message comes in that is not whole, no more often than once in ``period_s``: its
        sender lives, though what it says after it is not to be heard yet."""
        self._on_piece, self._piece_period_s = on_piece, period_s
        self._piece_told_at = trio.current_time()

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """Bytes/s in and out; None: as fast as it can."""
        return (
            None if self._incoming is None else self._incoming.limit,
            None if self._outgoing is None else self._outgoing.limit,
        )

    # --- the first byte

    def send_priority(self, priority: int) -> None:
        """Before anything else."""
        self._enqueue([memoryview(bytes([priority]))])

    async def receive_priority(self) -> int:
        """Before anything else; nothing behind it is read. Raises ``EndOfChannel``."""
        data = await self._receive_bytes()
        if not data:
            raise EndOfChannel("closed by its peer")
        self._feed(memoryview(data)[1:])
        return data[0]

    # --- receiving

    async def receive(self) -> Message:
        if self._reads >= READS_MAX:
            self._reads = 0
            await trio.lowlevel.checkpoint()
        while not self._arrived:
            data = await self._receive_bytes()
            if not data:
                self._decoder.finish()
                raise EndOfChannel("closed by its peer")
            self._feed(memoryview(data))
        return self._arrived.popleft()

    def _feed(self, data: memoryview) -> None:
        self._arrived.extend(map(decode_with_arrays, self._decoder.feed(data)))
        self._tell_of_piece()
        if self._incoming is not None:
            self._incoming.moved(data.nbytes)
            (self._incoming.began if self._decoder.is_in_payload else self._incoming.ended)()

    def _tell_of_piece(self) -> None:
        at = trio.current_time()
        if self._on_piece is None or at < self._piece_told_at + self._piece_period_s:
            return
        if self._decoder.buffered_bytes:
            self._piece_told_at = at
            self._on_piece()

    async def _receive_bytes(self) -> bytes:
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            while self._incoming is not None and not self._incoming.has_room:
                with trio.move_on_after(self._piece_period_s or math.inf):
                    await self._incoming.wait_for_room()
                self._tell_of_piece()  # who is held back is not silent
            self._require_open()
            try:
                data, _ = self._stream.receive_nowait()
            except BlockingIOError:
                self._reads = 0
                await self._wait_for_input()
                continue
            except OSError as error:
                raise EndOfChannel(f"failed: {error.strerror}") from error
            self._reads += 1
            self.bytes_in += len(data)
            return data

    async def _wait_for_input(self) -> None:
        """A peer may be silent between messages, not within one."""
        limit = PARTIAL_S if self._decoder.buffered_bytes else math.inf
        with trio.move_on_after(limit) as scope:
            try:
                await self._stream.wait_receivable()
            except trio.ClosedResourceError:
                raise EndOfChannel(self._closed or "closed on this side") from None
        if scope.cancelled_caught:
            raise DecodeError("frame", f"a part of a message, and no more for {PARTIAL_S:g} s")

    # --- sending

    def send_nowait(self, message: Message) -> None:
        self._enqueue(encode_with_arrays(message))

    def _enqueue(self, parts: Sequence[memoryview]) -> None:
        self._require_open()
        nbytes = sum(part.nbytes for part in parts)
        if self._output and self._output_bytes + nbytes > self._output_bytes_max:
            reason = f"closed: its peer left {self._output_bytes} bytes of messages unread"
            self.close(reason)
            raise EndOfChannel(reason)
        self._output.extend(parts)
        self._output_bytes += nbytes
        if self._outgoing is not None and len(parts) > 1:
            self._outgoing.began()
        if not self._output_lock.locked():
            self._write_some()
        if self._output:
            self._wake_writer.set()

    def _write_some(self) -> bool:
        """Write until the stream would block; whether the queue is empty now."""
        meter = self._outgoing
        while self._output:
            data = self._output[0]
            if meter is not None and not meter.has_room:
                return False
            try:
                sent = self._stream.send_nowait(data if meter is None else data[: meter.write_bytes])
            except BlockingIOError:
                return False
            except OSError as error:
                reason = f"closed by its peer ({error.strerror})"
                self.close(reason)
                raise EndOfChannel(reason) from error
            self._output_bytes -= sent
            self.bytes_out += sent
            if meter is not None:
                meter.moved(sent)
            if sent == data.nbytes:
                self._output.popleft()
            else:
                self._output[0] = data[sent:]
        if meter is not None:
            meter.ended()
        return True

    async def flush(self) -> None:
        async with self._output_lock:
            while self._output:
                self._require_open()
                if not self._write_some():
                    if self._outgoing is not None and not self._outgoing.has_room:
                        await self._outgoing.wait_for_room()
                        continue
                    try:
                        await self._stream.wait_sendable()
                    except trio.ClosedResourceError:
                        raise EndOfChannel(self._closed or "closed on this side") from None
                await trio.lowlevel.checkpoint()

    async def run(self) -> None:
        try:
            while not self._closed:
                await self._wake_writer.wait()
                self._wake_writer = trio.Event()
                await self.flush()
        except EndOfChannel:
            return

    # --- closing

    def _require_open(self) -> None:
        if self._closed:
            raise EndOfChannel(self._closed)

    def close(self, reason: str = "closed on this side") -> None:
        if self._closed:
            return
        self._closed = reason
        self._output.clear()
        self._output_bytes = 0
        for meter in (self._incoming, self._outgoing):
            if meter is not None:
                meter.ended()
        self._stream.close()
        self._wake_writer.set()
