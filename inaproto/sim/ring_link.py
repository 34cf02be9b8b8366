"""What a simulated host holds of its NIC for a job: queue pairs, slots, and its ranks' tensors.

As ``inaproto.daemon.ring_link`` and the client's shared memory on real hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

from inaproto.errors import InvariantBroken
from inaproto.ports import QpAddress, QpAttributes, Segment
from inaproto.sim.nic import NicEngine
from inaproto.units import Instant
from inaproto.wire.control_messages import IntoAddress, OutAddress
from inaproto.wire.ina_header import INA_HEADER_BYTES

RECEIVES_SPARE: Final = 2


class RankTensors:
    """One for each all-reduce that the rank will call, each its input and then its result."""

    def __init__(self, sizes: Sequence[int], nic: NicEngine) -> None:
        ends = list(accumulate(sizes))
        self._offsets = [end - size for end, size in zip(ends, sizes, strict=True)]
        self._memory = memoryview(bytearray(max(1, sum(sizes))))
        self.whole = [self._memory[end - size : end] for end, size in zip(ends, sizes, strict=True)]
        self.register(nic)

    def register(self, nic: NicEngine) -> None:
        self._nic = nic
        self._region = nic.register_memory(self._memory)

    def deregister(self) -> None:
        self._nic.deregister_memory(self._region)

    def segment(self, op_index: int, offset: int, nbytes: int) -> Segment:
        return Segment(self._region.key, self._region.va + self._offsets[op_index] + offset, nbytes)


class HostTensors:
    """Those of all ranks of a job on one host, in rank order."""

    def __init__(self, of_ranks: Sequence[RankTensors]) -> None:
        self.ranks = len(of_ranks)
        self._of_ranks = of_ranks
        self._ended: set[int] = set()

    def register(self, nic: NicEngine) -> None:
        for tensors in self._of_ranks:
            tensors.register(nic)

    def deregister(self) -> None:
        for tensors in self._of_ranks:
            tensors.deregister()

    def end(self, op_index: int) -> None:
        """Its result is the processes' now: nobody may come back to it."""
        self._ended.add(op_index)

    def _live(self, op_index: int) -> None:
        if op_index in self._ended:
            raise InvariantBroken(f"all-reduce {op_index} has ended, and its tensor is used")

    def views(self, op_index: int, offset: int, nbytes: int) -> list[memoryview]:
        self._live(op_index)
        return [tensors.whole[op_index][offset : offset + nbytes] for tensors in self._of_ranks]

    def payload(self, op_index: int, offset: int, nbytes: int) -> Segment:
        self._live(op_index)
        (tensors,) = self._of_ranks
        return tensors.segment(op_index, offset, nbytes)


class RingLink:
    """``slots`` receive slots of ``slot_bytes``, as many header slots and, if ``stages``, staging slots."""

    def __init__(
        self,
        nic: NicEngine,
        *,
        slots: int,
        slot_bytes: int,
        stages: bool,
        first_psn: Callable[[], int],
        clock: Callable[[], Instant],
    ) -> None:
        self.nic = nic
        self.slots = slots
        self.slot_bytes = slot_bytes
        self.is_open = True
        self._clock = clock
        self._results = memoryview(bytearray(slots * slot_bytes))
        self._headers = bytearray(slots * INA_HEADER_BYTES)
        self._regions = [
            nic.register_memory(self._results),
            nic.register_memory(memoryview(self._headers).toreadonly()),
        ]
        self._staged = memoryview(bytearray(slots * slot_bytes if stages else 0))
        if stages:
            self._regions.append(nic.register_memory(self._staged.toreadonly()))
        self._out, self._into = nic.create_qp(psn=first_psn()), nic.create_qp(psn=first_psn())
        self.qpns = self._out.qpn, self._into.qpn
        self._successor: IntoAddress

    @property
    def work_requests_max(self) -> int:
        """A send for each header slot, a receive for each slot and the spare ones."""
        return 2 * self.slots + RECEIVES_SPARE

    @property
    def out(self) -> OutAddress:
        """For the successor."""
        qp = self._out
        return OutAddress(mac=qp.mac, ip=qp.ip, qpn=qp.qpn, psn=qp.psn)

    @property
    def into(self) -> IntoAddress:
        """For the predecessor."""
        qp, region = self._into, self._regions[0]
        return IntoAddress(
            mac=qp.mac,
            ip=qp.ip,
            qpn=qp.qpn,
            psn=qp.psn,
            va=region.va,
            rkey=region.key,
            slots=self.slots,
            slot_bytes=self.slot_bytes,
        )

    def connect(self, successor: IntoAddress, predecessor: OutAddress, attributes: QpAttributes) -> None:
        if (successor.slots, successor.slot_bytes) != (self.slots, self.slot_bytes):
            raise InvariantBroken("the successor's receive slots differ in number or size")
        self._successor = successor
        for receive in range(self.slots + RECEIVES_SPARE):
            self.post_receive(receive)
        for qpn, peer in ((self._into.qpn, predecessor), (self._out.qpn, successor)):
            self.nic.connect_qp(qpn, QpAddress(peer.mac, peer.ip, peer.qpn, peer.psn), attributes)

    def post_receive(self, wr_id: int) -> None:
        self.nic.post_receive(self._into.qpn, wr_id)

    def post_message(self, msg_id: int, slot: int, header: bytes, payload: Segment) -> None:
        at = slot * INA_HEADER_BYTES
        self._headers[at : at + INA_HEADER_BYTES] = header
        heads = self._regions[1]
        self.nic.post_write_imm(
            self._out.qpn,
            msg_id,
            (Segment(heads.key, heads.va + at, INA_HEADER_BYTES), payload),
            remote_va=self._successor.va + slot * self.slot_bytes,
            rkey=self._successor.rkey,
            imm=msg_id,
            now=self._clock(),
        )

    def post_staged(self, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        self.post_message(msg_id, slot, header, self._payload(2, at, nbytes))

    def post_received(self, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        self.post_message(msg_id, slot, header, self._payload(0, at, nbytes))

    def _payload(self, region: int, slot: int, nbytes: int) -> Segment:
        of = self._regions[region]
        return Segment(of.key, of.va + slot * self.slot_bytes + INA_HEADER_BYTES, nbytes)

    def result_header(self, msg_id: int, nbytes: int) -> bytes:
        at = msg_id % self.slots * self.slot_bytes
        return self._results[at : at + min(INA_HEADER_BYTES, nbytes)].tobytes()

    def result(self, slot: int, nbytes: int) -> memoryview:
        at = slot * self.slot_bytes + INA_HEADER_BYTES
        return self._results[at : at + nbytes]

    def staged(self, slot: int, nbytes: int) -> memoryview:
        at = slot * self.slot_bytes + INA_HEADER_BYTES
        return self._staged[at : at + nbytes]

    def close(self) -> None:
        """Give everything back, once."""
        if self.is_open:
            self.is_open = False
            for qpn in self.qpns:
                self.nic.destroy_qp(qpn)
            for region in self._regions:
                self.nic.deregister_memory(region)
