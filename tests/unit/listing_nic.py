"""A NIC without a network: it has room for so much, lists what it is told, and gathers what it is to send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inaproto.core.rdma.verbs import MemoryRegion, QpAddress, QpAttributes, Segment
from inaproto.errors import LocalMisuse
from inaproto.wire.control_messages import IntoAddress, OutAddress

REGION_BYTES_MAX = 1 << 16


class Written(NamedTuple):
    """A write with immediate, and the bytes of each of its segments."""

    qpn: int
    wr_id: int
    remote_va: int
    rkey: int
    imm: int
    data: tuple[bytes, ...]


class ListingNic:
    """Keys and queue pair numbers are never used again."""

    def __init__(self, *, regions_max: int = 99, qps_max: int = 99) -> None:
        self.memory: dict[int, memoryview] = {}
        """Registered, by key."""
        self.qpns: list[int] = []
        """Queue pairs that there are."""
        self.told: list[tuple[int, int | tuple[QpAddress, QpAttributes]]] = []
        """By queue pair: the work request of a receive, or the peer it was connected to."""
        self._posted: list[tuple[int, int, Sequence[Segment], int, int, int]] = []
        self._regions_max, self._qps_max = regions_max, qps_max
        self._next_key, self._next_qpn = 1, 100

    def register_memory(self, buffer: memoryview) -> MemoryRegion:
        if len(self.memory) == self._regions_max:
            raise LocalMisuse("no more regions")
        key = self._next_key
        self._next_key += 1
        self.memory[key] = buffer
        return MemoryRegion(key, key * REGION_BYTES_MAX, len(buffer))

    def deregister_memory(self, region: MemoryRegion) -> None:
        del self.memory[region.key]

    def create_qp(self, *, psn: int) -> QpAddress:
        if len(self.qpns) == self._qps_max:
            raise LocalMisuse("no more queue pairs")
        self.qpns.append(self._next_qpn)
        self._next_qpn += 1
        return address(self.qpns[-1], psn)

    def destroy_qp(self, qpn: int) -> None:
        self.qpns.remove(qpn)
        self._posted = [posted for posted in self._posted if posted[0] != qpn]

    def connect_qp(self, qpn: int, remote: QpAddress, attributes: QpAttributes) -> None:
        self.told.append((qpn, (remote, attributes)))

    def post_receive(self, qpn: int, wr_id: int) -> None:
        assert qpn in self.qpns
        self.told.append((qpn, wr_id))

    def post_write_imm(
        self, qpn: int, wr_id: int, segments: Sequence[Segment], *, remote_va: int, rkey: int, imm: int
    ) -> None:
        assert qpn in self.qpns
        self._posted.append((qpn, wr_id, segments, remote_va, rkey, imm))

    def statistics(self) -> dict[str, int]:
        return {}

    # --- what a network and peers would do

    def write(self, rkey: int, va: int, data: bytes) -> None:
        """A peer writes into registered memory."""
        at = va - rkey * REGION_BYTES_MAX
        self.memory[rkey][at : at + len(data)] = data

    def sent(self) -> list[Written]:
        """All that queue pairs have to send, as the transport would send it now, or again."""
        return [
            Written(qpn, wr_id, va, rkey, imm, tuple(map(self._gathered, segments)))
            for qpn, wr_id, segments, va, rkey, imm in self._posted
        ]

    def _gathered(self, segment: Segment) -> bytes:
        at = segment.va - segment.key * REGION_BYTES_MAX
        found = bytes(self.memory[segment.key][at : at + segment.nbytes])
        assert at >= 0, "before the region"
        assert len(found) == segment.nbytes, "beyond the region"
        return found


def address(qpn: int, psn: int) -> QpAddress:
    return QpAddress(mac=bytes([2, 0, 0, 0, 0, qpn]), ip=bytes([10, 0, 0, qpn]), qpn=qpn, psn=psn)


def out_address(qpn: int, psn: int) -> OutAddress:
    at = address(qpn, psn)
    return OutAddress(mac=at.mac, ip=at.ip, qpn=qpn, psn=psn)


def into_address(
    qpn: int, psn: int, *, va: int = 0x900000, rkey: int = 9, slots: int = 4, slot_bytes: int = 64
) -> IntoAddress:
    at = address(qpn, psn)
    return IntoAddress(
        mac=at.mac, ip=at.ip, qpn=qpn, psn=psn, va=va, rkey=rkey, slots=slots, slot_bytes=slot_bytes
    )
