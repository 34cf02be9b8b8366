"""What one host holds of a NIC in a tree of hosts (:mod:`inaproto.core.overlay_engine`): queue pairs and
slots.

A queue pair for its parent and one for each host from which it gathers, each for both ways, and for each an
area of ``window`` receive slots, written by the RDMA WRITEs of the host at its other end: that of the first
is for results. There are as many header slots, and ``window`` staging slots for what goes up. Slot numbers
are those of messages, of which one half is of results and the other of what goes up: two of them are one
slot.

Invariant: a link that was made has all its resources, and :meth:`TreeLink.close` gives all back.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence

import trio

from inaproto.core.overlay_engine import UP
from inaproto.daemon.ring_link import RECEIVES_SPARE
from inaproto.errors import LocalMisuse
from inaproto.ports import MemoryRegion, Nic, QpAddress, QpAttributes, RandomBits, Segment
from inaproto.units import PSN_BITS
from inaproto.wire.control_messages import IntoAddress, OutAddress
from inaproto.wire.ina_header import INA_HEADER_BYTES


class TreeLink:
    """Of one host that gathers from ``children``; connections are ``UP`` and 0, 1, ... as its engine has
    them."""

    def __init__(
        self, nic: Nic, *, window: int, slot_bytes: int, children: int, random_bits: RandomBits
    ) -> None:
        """Raises ``LocalMisuse`` if the NIC is full, ``OSError`` if memory is short."""
        self.nic = nic
        self.slots = window
        self.slot_bytes = slot_bytes
        self.is_connecting = False
        self.early_failure = ""
        """What its completions told of it before it was connected."""
        self._peers: list[IntoAddress | None] = []
        self._connecting = trio.CancelScope()
        areas = children + 1
        with contextlib.ExitStack() as undo:
            staged_at = areas * window * slot_bytes
            headers_at = staged_at + window * slot_bytes
            self._memory = mmap.mmap(-1, headers_at + areas * window * INA_HEADER_BYTES)
            with memoryview(self._memory) as whole:
                self._areas = whole[:staged_at]
                self._staged = whole[staged_at:headers_at]
                self._headers = whole[headers_at:]
            undo.callback(self._close_memory)
            self._areas_region: MemoryRegion = nic.register_memory(self._areas)
            undo.callback(nic.deregister_memory, self._areas_region)
            self._staged_region: MemoryRegion = nic.register_memory(self._staged.toreadonly())
            undo.callback(nic.deregister_memory, self._staged_region)
            self._headers_region: MemoryRegion = nic.register_memory(self._headers.toreadonly())
            undo.callback(nic.deregister_memory, self._headers_region)
            self._qps: list[QpAddress] = []
            for _ in range(areas):
                qp = nic.create_qp(psn=random_bits(PSN_BITS))
                undo.callback(nic.destroy_qp, qp.qpn)
                self._qps.append(qp)
            self._undo = undo.pop_all()

    @property
    def qpns(self) -> list[int]:
        return [qp.qpn for qp in self._qps]

    def has(self, qpn: int) -> bool:
        """Whether one of its queue pairs has this number."""
        return qpn in self.qpns

    def edge_of(self, qpn: int) -> int:
        """Which connection it is."""
        return self.qpns.index(qpn) + UP

    @property
    def out(self) -> OutAddress:
        """For the parent, as ``into``."""
        qp = self._qps[0]
        return OutAddress(mac=qp.mac, ip=qp.ip, qpn=qp.qpn, psn=qp.psn)

    @property
    def into(self) -> IntoAddress:
        """For the parent."""
        return self._address(0)

    @property
    def below(self) -> tuple[IntoAddress, ...]:
        """For those from which it gathers, in their order."""
        return tuple(self._address(area) for area in range(1, len(self._qps)))

    def _address(self, area: int) -> IntoAddress:
        qp, region = self._qps[area], self._areas_region
        return IntoAddress(
            mac=qp.mac,
            ip=qp.ip,
            qpn=qp.qpn,
            psn=qp.psn,
            va=region.va + area * self.slots * self.slot_bytes,
            rkey=region.key,
            slots=self.slots,
            slot_bytes=self.slot_bytes,
        )

    def connect(
        self, parent: IntoAddress | None, children: Sequence[IntoAddress], attributes: QpAttributes
    ) -> None:
        """``parent`` is None at the root. Raises ``LocalMisuse`` for addresses that cannot be used.

        Receives first: a peer that is ready sooner must find them posted.
        """
        peers = [parent, *children]
        if len(peers) != len(self._qps):
            raise LocalMisuse(f"{len(children)} hosts to gather from, and links to {len(self._qps) - 1}")
        for peer in peers:
            if peer is not None and (peer.slots, peer.slot_bytes) != (self.slots, self.slot_bytes):
                raise LocalMisuse("the receive slots of a host beside this one differ in number or size")
        self._peers = peers
        for edge, (qp, peer) in enumerate(zip(self._qps, peers, strict=True), UP):
            if peer is None:
                continue
            for receive in range(self.slots + RECEIVES_SPARE):
                self.post_receive(receive, edge)
            self.nic.connect_qp(qp.qpn, QpAddress(peer.mac, peer.ip, peer.qpn, peer.psn), attributes)
        self.is_connecting = True

    async def wait_connected(self) -> None:
        """Once, after ``connect``: until those beside it may send. Returns at once when the link is closed.

        Raises ``FabricError`` if one of them cannot be reached, ``PortClosed``.
        """
        try:
            with self._connecting:
                for qp, peer in zip(self._qps, self._peers, strict=True):
                    if peer is not None:
                        await self.nic.wait_connected(qp.qpn)
        finally:
            self.is_connecting = False

    def post_receive(self, wr_id: int, edge: int) -> None:
        self.nic.post_receive(self._qps[edge - UP].qpn, wr_id)

    def post_message(self, msg_id: int, slot: int, header: bytes, payload: Segment) -> None:
        """Send a message up: its header, which is kept in its slot, and ``payload``, which is not copied."""
        self._post(0, msg_id, slot, header, payload)

    def post_staged(self, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        """Send ``nbytes`` of staging slot ``at`` up as a message."""
        self._post(0, msg_id, slot, header, self._payload(self._staged_region, at, nbytes))

    def post_received(self, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        """Send ``nbytes`` of the result in slot ``at`` up as a message."""
        self._post(0, msg_id, slot, header, self._payload(self._areas_region, at, nbytes))

    def post_down(self, child: int, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        """Send ``nbytes`` of the result in slot ``at`` down to that child."""
        self._post(child - UP, msg_id, slot, header, self._payload(self._areas_region, at, nbytes))

    def _post(self, area: int, msg_id: int, slot: int, header: bytes, payload: Segment) -> None:
        peer = self._peers[area] if self._peers else None
        if peer is None:
            raise LocalMisuse("a message before the queue pairs were connected, or up from the root")
        at = (area * self.slots + slot // 2) * INA_HEADER_BYTES
        self._headers[at : at + INA_HEADER_BYTES] = header
        head = Segment(self._headers_region.key, self._headers_region.va + at, INA_HEADER_BYTES)
        self.nic.post_write_imm(
            self._qps[area].qpn,
            msg_id,
            (head, payload),
            remote_va=peer.va + slot // 2 * self.slot_bytes,
            rkey=peer.rkey,
            imm=msg_id,
        )

    def _payload(self, region: MemoryRegion, slot: int, nbytes: int) -> Segment:
        return Segment(region.key, region.va + slot // 2 * self.slot_bytes + INA_HEADER_BYTES, nbytes)

    def header(self, edge: int, msg_id: int, nbytes: int) -> bytes:
        """Of the message of ``nbytes`` bytes that has come from there."""
        at = ((edge - UP) * self.slots + msg_id % (2 * self.slots) // 2) * self.slot_bytes
        return bytes(self._areas[at : at + min(INA_HEADER_BYTES, nbytes)])

    def result(self, slot: int, nbytes: int) -> memoryview:
        """The ``nbytes`` behind the header of the result in receive slot ``slot``."""
        return self._behind(self._areas, slot // 2, nbytes)

    def came(self, child: int, slot: int, nbytes: int) -> memoryview:
        """The same of what that child has passed up."""
        return self._behind(self._areas, (child - UP) * self.slots + slot // 2, nbytes)

    def staged(self, slot: int, nbytes: int) -> memoryview:
        """Of staging slot ``slot``, to be written."""
        return self._behind(self._staged, slot // 2, nbytes)

    def _behind(self, memory: memoryview, slot: int, nbytes: int) -> memoryview:
        at = slot * self.slot_bytes + INA_HEADER_BYTES
        return memory[at : at + nbytes]

    def close(self) -> None:
        """Give everything back."""
        self._connecting.cancel()
        self._undo.close()

    def _close_memory(self) -> None:
        # Where the NIC still holds a view (BufferError), the mapping ends with that view.
        with contextlib.suppress(BufferError):
            self._areas.release()
            self._staged.release()
            self._headers.release()
            self._memory.close()
