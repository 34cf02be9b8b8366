"""A byte stream over a queue pair of a NIC: what message channels run over where hosts have RoCE.

Each side has a ring of registered memory, into which the other writes (RDMA WRITE WITH IMMEDIATE), and
one of the same size from which it sends. The immediate says how many bytes a write has put there, or how
many of them the reader has taken (credit), or that there will be no more. The first write is a *proof*: as
long as packets get, and no data; until both have had that of the other, nothing else goes this way.

Another stream goes *beside* it, by which both learned of each other's queue pair. Nothing is said there any
more; but a process that is killed ends it, and a queue pair would say so only after its retries.

Invariants: never more bytes are under way than the other's ring has room for; bytes of the own ring are
written anew only after their write is complete; a completion that is an error ends the stream; what was
given back to the NIC is not used any more, whatever comes.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import trio

from inaproto.core.rdma.reliable_connection import MTUS
from inaproto.daemon.models.channels.message_channel import StreamChannel
from inaproto.daemon.net.control_stream import EndOfChannel
from inaproto.errors import DecodeError, FabricError
from inaproto.ports import (
    Completion,
    CompletionKind,
    MemoryRegion,
    Nic,
    QpAddress,
    QpAttributes,
    Segment,
    Status,
)
from inaproto.wire.messages.model_connections import OverlayQueuePair

RING_BYTES: Final = 1 << 20
WRITE_BYTES_MAX: Final = 64 << 10
WRITES_MAX: Final = 32
"""Most writes of data that are not complete."""
RECEIVES: Final = 128
"""Posted: for those writes, for credits, and the last word."""
PROOF_BYTES: Final = 8 << 10
"""Packets of the largest MTU are among those of the proof."""
PROVE_S: Final = 2.5
"""Less than makes a neighbour seem dead (three heartbeats)."""
GOODBYE_S: Final = 2.0
RETRIES: Final = 6
"""A peer that acknowledges nothing is gone after so many."""
_DATA, _CREDIT, _END, _PROOF = 0, 1, 2, 3
_KIND_AT: Final = 30
_SCRATCH: Final = 64
"""Bytes behind each ring where words without data go."""


class Owner(Protocol):
    """Owns the streams of a NIC."""

    def linger(self, stream: QueuePairStream) -> None:
        """It was closed, and waits to be acknowledged: run :meth:`QueuePairStream.linger`."""
        ...

    def gone(self, stream: QueuePairStream) -> None:
        """It has given everything back to the NIC."""
        ...

    def look(self) -> None:
        """Hand over all completions that are there."""
        ...


class QueuePairStream:
    """:class:`inaproto.ports.ByteStream`; made and connected by :class:`.queue_pairs.QueuePairs`."""

    def __init__(self, nic: Nic, owner: Owner, beside: StreamChannel) -> None:
        """``beside`` is its own from :meth:`keep_beside` on. Raises ``FabricError`` where the NIC has nothing
        left."""
        self._nic = nic
        self._owner = owner
        self._beside = beside
        self._has_beside = False
        self._into, self._out = bytearray(RING_BYTES + _SCRATCH), bytearray(RING_BYTES + _SCRATCH)
        self._regions: list[MemoryRegion] = []
        try:
            for ring in (self._into, self._out):
                self._regions.append(nic.register_memory(memoryview(ring)))
            self.address: QpAddress = nic.create_qp(psn=0)
        except BaseException:
            for region in self._regions:
                nic.deregister_memory(region)
            raise
        self._into_region, self._out_region = self._regions
        for number in range(RECEIVES):
            nic.post_receive(self.address.qpn, number)
        self._remote: OverlayQueuePair | None = None
        self._sent = self._taken_by_peer = 0
        """Bytes, since the beginning."""
        self._writes: deque[int] = deque()
        """Bytes of each write of data that is not complete; -1: a word without data."""
        self._incomplete = 0
        self._arrived = self._read = self._credited = 0
        self._is_proved = self._peer_ended = False
        self._error = ""
        self._is_closed = self._is_released = False
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
            mtu=self._nic.capabilities.mtu_max,
        )

    def connect(self, remote: OverlayQueuePair, *, traffic_class: int = 0) -> None:
        """Raises ``DecodeError`` for a peer that is none, ``FabricError`` where the NIC cannot."""
        if remote.nbytes != RING_BYTES:
            raise DecodeError("overlay", f"a ring of {remote.nbytes} bytes, not {RING_BYTES}")
        if remote.mtu not in MTUS or remote.va + RING_BYTES + _SCRATCH > 1 << 64 or remote.mac[0] & 1:
            raise DecodeError("overlay", f"{remote} is no queue pair")
        if len(remote.ip) != len(self.address.ip):
            why = "its NIC has an address of IPv4, this one of IPv6, or the other way round"
            raise FabricError("connect", self._beside.address, "connecting", why, retryable=True)
        if self._is_released:
            raise FabricError("connect", self._beside.address, "connecting", self._error, retryable=True)
        self._remote = remote
        there = QpAddress(remote.mac, remote.ip, remote.qpn, remote.psn)
        mtu = min(remote.mtu, self._nic.capabilities.mtu_max)
        attributes = QpAttributes(mtu=mtu, retry_count=RETRIES, traffic_class=traffic_class)
        self._nic.connect_qp(self.address.qpn, there, attributes)

    async def prove(self) -> None:
        """Both ways carry packets of any length: the peer does this, too. Raises ``FabricError``."""
        if not self._error:
            self._write(0, PROOF_BYTES, _PROOF << _KIND_AT | PROOF_BYTES)
            self._writes.append(-1)
        with trio.move_on_after(PROVE_S):
            await self._wait_until(lambda: bool(self._error) or (self._is_proved and not self._writes))
        if self._error or not self._is_proved or self._writes:
            what = "nothing comes" if not self._is_proved else "nothing is acknowledged"
            why = self._error or f"{what} by the NIC within {PROVE_S:g} s"
            raise FabricError("prove", self._beside.address, "a first write", why, retryable=True)

    def keep_beside(self) -> None:
        """What the other stream is for from now on; :meth:`watch_beside` meanwhile."""
        self._has_beside = True

    async def watch_beside(self) -> None:
        """Until the peer's process ends, or says there what it has nothing to say any more."""
        try:
            await self._beside.receive()
            why = "its peer goes on by TCP, where it had a queue pair"
        except (EndOfChannel, DecodeError) as end:
            why = f"the stream beside its queue pair was {end.reason}"
        self._owner.look()  # what has arrived counts
        self.fail(why)

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
        self._owner.linger(self)

    async def linger(self) -> None:
        with trio.move_on_after(GOODBYE_S):
            while self._writes and not self._error:
                await self._news.wait()
        self.abort()

    # --- the NIC

    def completed(self, completion: Completion) -> None:
        """Told by its owner."""
        if completion.status is not Status.SUCCESS:
            self.fail(f"the queue pair has failed: {completion.status.value}")
            return
        if self._is_released:
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
        elif kind == _PROOF and not self._is_proved and not self._arrived:
            self._is_proved = True
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
        """Closed, and everything given back, at once."""
        self._is_closed = True
        self.release("closed on this side")
        if self._has_beside:  # given back by the NIC's owner, perhaps, before it was closed
            self._beside.close()

    def release(self, why: str) -> None:
        """Give everything back to the NIC. All that arrived may still be read."""
        if self._is_released:
            return
        self._is_released = True
        self._nic.destroy_qp(self.address.qpn)
        for region in self._regions:
            self._nic.deregister_memory(region)
        self.fail(why)
        self._owner.gone(self)
        if self._is_closed and self._has_beside:
            self._beside.close()

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()

    def _require_open(self) -> None:
        if self._is_closed:
            raise OSError(errno.EBADF, "Bad file descriptor")
