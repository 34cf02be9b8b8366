"""What one rank holds of a NIC for one ring: two queue pairs, and slots (NetReduce section 3.1).

"Each worker in a ring sets up one RDMA connection to its successor and also accepts one RDMA
connection from its predecessor": ``out`` and ``into``. Slot ``msg_id mod 2N`` of each kind belongs to
message ``msg_id``: results are written into the receive slots by the predecessor's RDMA WRITEs; a
header slot holds the INA header of a message from its posting until its send is complete. A *staging* slot
holds a payload that is not the tensor's: what the chain has added up so far, or what a ring that takes over
from another repeats; a message has the slot of its header, or one that its engine names.

Invariant: a link that was made has all its resources, and :meth:`RingLink.close` gives all back.
"""

from __future__ import annotations

import contextlib
import mmap

import trio

from inaproto.errors import LocalMisuse
from inaproto.ports import MemoryRegion, Nic, QpAddress, QpAttributes, RandomBits, Segment
from inaproto.units import PSN_BITS
from inaproto.wire.control_messages import IntoAddress, OutAddress
from inaproto.wire.ina_header import INA_HEADER_BYTES

RECEIVES_SPARE = 2
"""Receives posted beyond the 2N that a correct predecessor can use."""


class RingLink:
    """``slots`` receive slots of ``slot_bytes``, as many header slots, and the queue pairs of one rank."""

    def __init__(self, nic: Nic, *, slots: int, slot_bytes: int, random_bits: RandomBits) -> None:
        """Raises ``LocalMisuse`` if the NIC is full, ``OSError`` if memory is short."""
        self.nic = nic
        self.slots = slots
        self.slot_bytes = slot_bytes
        self._successor: IntoAddress | None = None
        self.is_connecting = False
        self.early_failure = ""
        """What its completions told of it before it was connected."""
        self._connecting = trio.CancelScope()
        with contextlib.ExitStack() as undo:
            self._memory = mmap.mmap(-1, slots * (2 * slot_bytes + INA_HEADER_BYTES))
            with memoryview(self._memory) as whole:
                self._results = whole[: slots * slot_bytes]
                self._staged = whole[slots * slot_bytes : 2 * slots * slot_bytes]
                self._headers = whole[2 * slots * slot_bytes :]
            undo.callback(self._close_memory)
            self._results_region: MemoryRegion = nic.register_memory(self._results)
            undo.callback(nic.deregister_memory, self._results_region)
            self._staged_region: MemoryRegion = nic.register_memory(self._staged.toreadonly())
            undo.callback(nic.deregister_memory, self._staged_region)
            self._headers_region: MemoryRegion = nic.register_memory(self._headers.toreadonly())
            undo.callback(nic.deregister_memory, self._headers_region)
            self._out: QpAddress = nic.create_qp(psn=random_bits(PSN_BITS))
            undo.callback(nic.destroy_qp, self._out.qpn)
            self._into: QpAddress = nic.create_qp(psn=random_bits(PSN_BITS))
            undo.callback(nic.destroy_qp, self._into.qpn)
            self._undo = undo.pop_all()

    @property
    def qpns(self) -> list[int]:
        return [self._out.qpn, self._into.qpn]

    def has(self, qpn: int) -> bool:
        """Whether one of its queue pairs has this number."""
        return qpn in (self._out.qpn, self._into.qpn)

    @property
    def out(self) -> OutAddress:
        """For the successor."""
        qp = self._out
        return OutAddress(mac=qp.mac, ip=qp.ip, qpn=qp.qpn, psn=qp.psn)

    @property
    def into(self) -> IntoAddress:
        """For the predecessor."""
        qp, region = self._into, self._results_region
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
        """Raises ``LocalMisuse`` for addresses or attributes that cannot be used.

        Receives first: a predecessor that is ready sooner must find them posted.
        """
        if (successor.slots, successor.slot_bytes) != (self.slots, self.slot_bytes):
            raise LocalMisuse("the successor's receive slots differ in number or size")
        self._successor = successor
        for receive in range(self.slots + RECEIVES_SPARE):
            self.post_receive(receive)
        for qp, peer in ((self._into, predecessor), (self._out, successor)):
            self.nic.connect_qp(qp.qpn, QpAddress(peer.mac, peer.ip, peer.qpn, peer.psn), attributes)
        self.is_connecting = True

    async def wait_connected(self) -> None:
        """Once, after ``connect``: until the predecessor may send. Returns at once when the link is closed.

        Raises ``FabricError`` if one of the neighbours cannot be reached, ``PortClosed``.
        """
        try:
            with self._connecting:
                for qp in (self._into, self._out):
                    await self.nic.wait_connected(qp.qpn)
        finally:
            self.is_connecting = False

    def post_receive(self, wr_id: int) -> None:
        self.nic.post_receive(self._into.qpn, wr_id)

    def post_message(self, msg_id: int, slot: int, header: bytes, payload: Segment) -> None:
        """Send a message: its header, which is kept in its slot, and ``payload``, which is not copied."""
        if self._successor is None:
            raise LocalMisuse("a message before the queue pairs were connected")
        at = slot * INA_HEADER_BYTES
        self._headers[at : at + INA_HEADER_BYTES] = header
        head = Segment(self._headers_region.key, self._headers_region.va + at, INA_HEADER_BYTES)
        self.nic.post_write_imm(
            self._out.qpn,
            msg_id,
            (head, payload),
            remote_va=self._successor.va + slot * self.slot_bytes,
            rkey=self._successor.rkey,
            imm=msg_id,
        )

    def post_staged(self, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        """Send ``nbytes`` of staging slot ``at`` as a message."""
        self.post_message(msg_id, slot, header, self._payload(self._staged_region, at, nbytes))

    def post_received(self, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        """Send ``nbytes`` of receive slot ``at`` on as a message."""
        self.post_message(msg_id, slot, header, self._payload(self._results_region, at, nbytes))

    def _payload(self, region: MemoryRegion, slot: int, nbytes: int) -> Segment:
        return Segment(region.key, region.va + slot * self.slot_bytes + INA_HEADER_BYTES, nbytes)

    def staged(self, slot: int, nbytes: int) -> memoryview:
        """Of staging slot ``slot``, to be written."""
        at = slot * self.slot_bytes + INA_HEADER_BYTES
        return self._staged[at : at + nbytes]

    def result_header(self, msg_id: int, nbytes: int) -> bytes:
        """The header of the message of ``nbytes`` bytes in the receive slot of ``msg_id``."""
        at = msg_id % self.slots * self.slot_bytes
        return bytes(self._results[at : at + min(INA_HEADER_BYTES, nbytes)])

    def result(self, slot: int, nbytes: int) -> memoryview:
        """The ``nbytes`` of tensor behind the header in receive slot ``slot``."""
        at = slot * self.slot_bytes + INA_HEADER_BYTES
        return self._results[at : at + nbytes]

    def close(self) -> None:
        """Give everything back."""
        self._connecting.cancel()
        self._undo.close()

    def _close_memory(self) -> None:
        # Where the NIC still holds a view (BufferError), the mapping ends with that view.
        with contextlib.suppress(BufferError):
            self._results.release()
            self._staged.release()
            self._headers.release()
            self._memory.close()
