"""The NIC of an explored host: what is sent is gathered at once, and on its way until the world lets it land.

A connection is reliable and in order; data are in the memory of the receiver, whole, before it hears of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

from inaproto.core.rdma.verbs import (
    Completion,
    CompletionKind,
    MemoryRegion,
    QpAddress,
    QpAttributes,
    Segment,
    Status,
)
from inaproto.errors import InvariantBroken
from inaproto.units import MsgId

QPNS: Final = 1 << 16
"""Queue pairs of a host have numbers from this on, times one more than its own number."""
LIFE_QPNS: Final = 1 << 8
_REGION_BYTES: Final = 1 << 20


class Sent(NamedTuple):
    """A message on its way."""

    qpn: int
    to: int
    """Queue pair of the receiver."""
    wr_id: int
    va: int
    rkey: int
    imm: int
    data: bytes
    is_sum: bool = False
    """A switch has summed it."""


def host_of(qpn: int) -> int:
    return qpn // QPNS - 1


class ExploredNic:
    def __init__(self, number: int, life: int) -> None:
        self._next_qpn = (number + 1) * QPNS + life * LIFE_QPNS
        self._next_key = 1
        self._memory: dict[int, memoryview] = {}
        self._peers: dict[int, int] = {}
        """Of each queue pair, the one that it is connected to; 0: it is not."""
        self._receives: dict[int, deque[int]] = {}
        self.sent: list[Sent] = []
        """Since the world has looked last."""

    @property
    def state(self) -> Hashable:
        """All that makes a difference later."""
        receives = tuple((qpn, tuple(posted)) for qpn, posted in self._receives.items() if posted)
        return self._next_qpn, self._next_key, tuple(self._peers.items()), receives

    @property
    def peers(self) -> dict[int, int]:
        """By queue pair that there is: from whom a message may come, 0 where none may yet."""
        return {qpn: peer if self._receives[qpn] else 0 for qpn, peer in self._peers.items()}

    def register_memory(self, buffer: memoryview) -> MemoryRegion:
        key = self._next_key
        self._next_key += 1
        self._memory[key] = buffer
        return MemoryRegion(key, key * _REGION_BYTES, len(buffer))

    def deregister_memory(self, region: MemoryRegion) -> None:
        del self._memory[region.key]

    def create_qp(self, *, psn: int) -> QpAddress:
        qpn = self._next_qpn
        self._next_qpn += 1
        self._peers[qpn], self._receives[qpn] = 0, deque()
        host = host_of(qpn)
        return QpAddress(bytes([2, 0, 0, 0, 0, host + 1]), bytes([10, 0, 0, host + 1]), qpn, psn)

    def connect_qp(self, qpn: int, remote: QpAddress, attributes: QpAttributes) -> None:
        self._peers[qpn] = remote.qpn

    def post_receive(self, qpn: int, wr_id: int) -> None:
        self._receives[qpn].append(wr_id)

    def destroy_qp(self, qpn: int) -> None:
        del self._peers[qpn], self._receives[qpn]

    def statistics(self) -> dict[str, int]:
        return {}

    def post_write_imm(
        self, qpn: int, wr_id: int, segments: Sequence[Segment], *, remote_va: int, rkey: int, imm: int
    ) -> None:
        data = b"".join(self._look(*segment) for segment in segments)
        self.sent.append(Sent(qpn, self._peers[qpn], MsgId(wr_id), remote_va, rkey, imm, data))

    def _look(self, key: int, va: int, nbytes: int) -> memoryview:
        at = va - key * _REGION_BYTES
        memory = self._memory[key]
        if not 0 <= at <= at + nbytes <= len(memory):
            raise InvariantBroken(f"{nbytes} bytes at {at} of {len(memory)}")
        return memory[at : at + nbytes]

    def lands(self, sent: Sent) -> Completion:
        """Its data are there; what is to be told then."""
        self._look(sent.rkey, sent.va, len(sent.data))[:] = sent.data
        wr_id = self._receives[sent.to].popleft()
        return Completion(
            sent.to, CompletionKind.RECEIVE_IMM, wr_id, Status.SUCCESS, sent.imm, len(sent.data)
        )
