"""A byte stream over a queue pair of a NIC: what message channels run over where hosts have RoCE.

Each side has a ring of registered memory, into which the other writes (RDMA WRITE WITH IMMEDIATE), and
one of the same size from which it sends. The immediate says how many bytes a write has put there, or how
many of them the reader has taken (credit), or that there will be no more. The first exchange goes over
another stream, by which both learn of each other's queue pair.

Invariants: never more bytes are under way than the other's ring has room for; bytes of the own ring are
written anew only after their write is complete; a completion that is an error ends the stream.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import trio

from inaproto.daemon.overlay.message_channel import StreamChannel
from inaproto.errors import DecodeError, FabricError
from inaproto.ports import (
    Completion,
    CompletionKind,
    Nic,
    PortClosed,
    QpAddress,
    QpAttributes,
    Segment,
    Status,
)
from inaproto.wire.push_pull_messages import OverlayQueuePair, OverlayQueuePairReady

RING_BYTES: Final = 1 << 20
WRITE_BYTES_MAX: Final = 64 << 10
WRITES_MAX: Final = 32
"""Of data, not complete."""
RECEIVES: Final = 128
"""Posted: for those writes, for credits, and the last word."""
READY_S: Final = 10.0
GOODBYE_S: Final = 2.0
ATTRIBUTES: Final = QpAttributes(retry_count=6)
"""A peer that acknowledges nothing is gone after some retries."""
_DATA, _CREDIT, _END = 0, 1, 2
_KIND_AT: Final = 30
_SCRATCH: Final = 64
"""Bytes behind each ring where words without data go."""


class QueuePairs:
    """All streams of a NIC, whose completions this takes; :meth:`run` it as long as there are any."""

    def __init__(self, nic: Nic) -> None:
        self.nic = nic
        self._streams: dict[int, QueuePairStream] = {}
        self._lost = ""

    async def run(self) -> None:
        """Until the NIC has lost its link (then all streams have failed), or cancelled."""
        try:
            while True:
                for completion in await self.nic.wait_completions():
                    stream = self._streams.get(completion.qpn)
                    if stream is not None:
                        stream.completed(completion)
        except PortClosed as closed:
            self._lost = closed.reason
            for stream in list(self._streams.values()):
                stream.fail(f"the NIC has lost its link: {closed.reason}")

    async def open(self, other: StreamChannel) -> QueuePairStream:
        """The far side of ``other`` does the same. Raises ``FabricError`` and what ``other`` raises."""
        stream = QueuePairStream(self.nic, self._gone)
        self._streams[stream.address.qpn] = stream
        try:
            with trio.fail_after(READY_S):
                other.send_nowait(stream.offer())
                offer, _ = await other.receive()
                if not isinstance(offer, OverlayQueuePair):
                    raise DecodeError("overlay", f"{offer.TYPE!r}, where a queue pair was to be named")
                stream.connect(offer)
                await self.nic.wait_connected(stream.address.qpn)
                other.send_nowait(OverlayQueuePairReady())
                ready, _ = await other.receive()
                if not isinstance(ready, OverlayQueuePairReady):
                    raise DecodeError("overlay", f"{ready.TYPE!r}, where a queue pair was to be ready")
        except trio.TooSlowError:
            stream.abort()
            raise FabricError(
                "connect",
                other.address,
                "exchanging queue pairs",
                f"not ready within {READY_S:g} s",
                retryable=True,
            ) from None
        except BaseException:
            stream.abort()
            raise
        return stream

    def _gone(self, stream: QueuePairStream) -> None:
        self._streams.pop(stream.address.qpn, None)


class QueuePairStream:
    """:class:`inaproto.ports.ByteStream`; made by :meth:`QueuePairs.open`."""

    def __init__(self, nic: Nic, gone: Callable[[QueuePairStream], None]) -> None:
        self._nic = nic
        self._gone = gone
        self._into, self._out = bytearray(RING_BYTES + _SCRATCH), bytearray(RING_BYTES + _SCRATCH)
        self._into_region = nic.register_memory(memoryview(self._into))
        self._out_region = nic.register_memory(memoryview(self._out))
        self.address: QpAddress = nic.create_qp(psn=0)
        for number in range(RECEIVES):
            nic.post_receive(self.address.qpn, number)
        self._remote: OverlayQueuePair | None = None
        self._sent = self._taken_by_peer = 0
        """Bytes, since the beginning."""
        self._writes: deque[int] = deque()
        """Bytes of each write of data that is not complete; -1: a word without data."""
        self._incomplete = 0
        self._arrived = self._read = self._credited = 0
        self._peer_ended = False
        self._error = ""
        self._is_closed = self._is_destroyed = False
        self._news = trio.Event()

    # --- connecting

    def offer(self) -> OverlayQueuePair:
        address, region = self.address, self._into_region
        return OverlayQueuePair(
            mac=address.mac,
            ip=address.ip,
            qpn=address.qpn,
            psn=address.psn,
            va=region.va,
            rkey=region.key,
            nbytes=RING_BYTES,
        )

    def connect(self, remote: OverlayQueuePair) -> None:
        if remote.nbytes != RING_BYTES:
            raise DecodeError("overlay", f"a ring of {remote.nbytes} bytes, not {RING_BYTES}")
        self._remote = remote
        there = QpAddress(remote.mac, remote.ip, remote.qpn, remote.psn)
        self._nic.connect_qp(self.address.qpn, there, ATTRIBUTES)

    # --- ByteStream

    def receive_nowait(self) -> tuple[bytes, Sequence[int]]:
        self._require_open()
        waiting = self._arrived - self._read
        if not waiting:
            if self._error:
                raise OSError(errno.ECONNRESET, self._error)
            if self._peer_ended:
                return b"", ()
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        at = self._read % RING_BYTES
        nbytes = min(waiting, RING_BYTES - at, WRITE_BYTES_MAX)
        data = bytes(memoryview(self._into)[at : at + nbytes])
        self._read += nbytes
        if self._read - self._credited >= RING_BYTES // 4 and not self._error:
            self._say(_CREDIT, self._read - self._credited)
            self._credited = self._read
        return data, ()

    def send_nowait(self, data: memoryview, descriptors: Sequence[int] = ()) -> int:
        self._require_open()
        if descriptors:
            raise OSError(errno.EOPNOTSUPP, "descriptors do not leave their machine")
        if self._error or self._peer_ended:
            raise OSError(errno.EPIPE, self._error or "its peer has closed")
        nbytes = min(data.nbytes, self._room())
        if not nbytes:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        at = self._sent % RING_BYTES
        self._out[at : at + nbytes] = data[:nbytes]
        self._write(at, nbytes, _DATA << _KIND_AT | nbytes)
        self._writes.append(nbytes)
        self._sent += nbytes
        self._incomplete += nbytes
        return nbytes

    def _room(self) -> int:
        if sum(nbytes >= 0 for nbytes in self._writes) >= WRITES_MAX:
            return 0
        at = self._sent % RING_BYTES
        free = RING_BYTES - max(self._sent - self._taken_by_peer, self._incomplete)
        return min(free, RING_BYTES - at, WRITE_BYTES_MAX)

    async def wait_receivable(self) -> None:
        await self._wait_until(lambda: self._arrived > self._read or self._peer_ended or bool(self._error))

    async def wait_sendable(self) -> None:
        await self._wait_until(lambda: self._room() > 0 or self._peer_ended or bool(self._error))

    async def _wait_until(self, ready: Callable[[], bool]) -> None:
        await trio.lowlevel.checkpoint()
        while True:
            if self._is_closed:
                raise trio.ClosedResourceError
            if ready():
                return
            await self._news.wait()

    def fileno(self) -> int:
        raise OSError(errno.EOPNOTSUPP, "a queue pair has no descriptor")

    def peer_pid(self) -> int:
        return 0

    def peer_is_gone(self) -> bool:
        return self._peer_ended or bool(self._error)

    def close(self) -> None:
        """What was sent arrives, and then the peer is told; the queue pair goes once that is done."""
        if self._is_closed:
            return
        self._is_closed = True
        self._tell()
        if self._error or self._remote is None:
            self.abort()
            return
        self._say(_END, 0)
        if trio.lowlevel.in_trio_run():
            trio.lowlevel.spawn_system_task(self._linger)

    async def _linger(self) -> None:
        with trio.move_on_after(GOODBYE_S):
            while self._writes and not self._error:
                await self._news.wait()
        self.abort()

    # --- the NIC

    def completed(self, completion: Completion) -> None:
        """Told by :class:`QueuePairs`."""
        if completion.status is not Status.SUCCESS:
            self.fail(f"the queue pair has failed: {completion.status.value}")
            return
        if completion.kind is CompletionKind.SEND:
            nbytes = self._writes.popleft()
            self._incomplete -= max(nbytes, 0)
        else:
            self._nic.post_receive(self.address.qpn, completion.wr_id)
            kind, number = completion.imm >> _KIND_AT, completion.imm & ((1 << _KIND_AT) - 1)
            self._heard(kind, number)
        self._tell()

    def _heard(self, kind: int, number: int) -> None:
        if kind == _DATA and 0 < number <= RING_BYTES - (self._arrived - self._read):
            self._arrived += number
        elif kind == _CREDIT and 0 < number <= self._sent - self._taken_by_peer:
            self._taken_by_peer += number
        elif kind == _END:
            self._peer_ended = True
        else:
            self.fail(f"its peer said what cannot be: {kind}, {number}")

    def _say(self, kind: int, number: int) -> None:
        self._write(RING_BYTES, 1, kind << _KIND_AT | number)
        self._writes.append(-1)

    def _write(self, at: int, nbytes: int, imm: int) -> None:
        remote = self._remote
        assert remote is not None
        segment = Segment(self._out_region.key, self._out_region.va + at, nbytes)
        self._nic.post_write_imm(
            self.address.qpn, 0, [segment], remote_va=remote.va + at, rkey=remote.rkey, imm=imm
        )

    def fail(self, why: str) -> None:
        """All that arrived may still be read."""
        self._error = self._error or why
        self._tell()

    def abort(self) -> None:
        """Give everything back to the NIC, at once."""
        self._is_closed = True
        if self._is_destroyed:
            return
        self._is_destroyed = True
        self._nic.destroy_qp(self.address.qpn)
        self._nic.deregister_memory(self._into_region)
        self._nic.deregister_memory(self._out_region)
        self._gone(self)
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()

    def _require_open(self) -> None:
        if self._is_closed:
            raise OSError(errno.EBADF, "Bad file descriptor")
