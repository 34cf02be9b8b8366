"""What a simulated host holds of its NIC in a tree of hosts, as ``inaproto.daemon.tree_link`` on real hosts.

A queue pair for its parent and one for each host from which it gathers, each for both ways; an area of
``window`` receive slots for each: that of the first is for results. Slot numbers are those of messages, of
which one half is of results, the other of what is passed up: two of them are one slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inaproto.core.overlay_engine import UP
from inaproto.errors import InvariantBroken
from inaproto.ports import QpAddress, QpAttributes, Segment
from inaproto.sim.nic import NicEngine
from inaproto.sim.ring_link import RECEIVES_SPARE
from inaproto.units import Instant
from inaproto.wire.control_messages import IntoAddress, OutAddress
from inaproto.wire.ina_header import INA_HEADER_BYTES


class TreeLink:
    """Of one host; connections are ``UP`` and 0, 1, ... as its engine has them."""

    def __init__(
        self,
        nic: NicEngine,
        *,
        window: int,
        slot_bytes: int,
        children: int,
        first_psn: Callable[[], int],
        clock: Callable[[], Instant],
    ) -> None:
        self.nic = nic
        self.slots = window
        self.slot_bytes = slot_bytes
        self.is_open = True
        self._clock = clock
        areas = children + 1
        self._areas = memoryview(bytearray(areas * window * slot_bytes))
        self._staged = memoryview(bytearray(window * slot_bytes))
        self._headers = bytearray(areas * window * INA_HEADER_BYTES)
        self._regions = [
            nic.register_memory(self._areas),
            nic.register_memory(memoryview(self._headers).toreadonly()),
            nic.register_memory(self._staged.toreadonly()),
        ]
        self._qps = [nic.create_qp(psn=first_psn()) for _ in range(areas)]
        self.qpns = tuple(qp.qpn for qp in self._qps)
        self._peers: list[IntoAddress | None] = []

    def edge_of(self, qpn: int) -> int:
        return self.qpns.index(qpn) + UP

    @property
    def work_requests_max(self) -> int:
        """For each queue pair a send for each header slot, a receive for each slot and the spare ones."""
        return len(self.qpns) * (2 * self.slots + RECEIVES_SPARE)

    @property
    def out(self) -> OutAddress:
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
        qp, region = self._qps[area], self._regions[0]
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
        self._peers = [parent, *children]
        if len(self._peers) != len(self._qps):
            raise InvariantBroken(f"{len(children)} hosts to gather from, and links to {len(self._qps) - 1}")
        for qp, peer in zip(self._qps, self._peers, strict=True):
            if peer is None:
                continue
            if (peer.slots, peer.slot_bytes) != (self.slots, self.slot_bytes):
                raise InvariantBroken("receive slots of two hosts of a tree differ in number or size")
            for receive in range(self.slots + RECEIVES_SPARE):
                self.nic.post_receive(qp.qpn, receive)
            self.nic.connect_qp(qp.qpn, QpAddress(peer.mac, peer.ip, peer.qpn, peer.psn), attributes)

    def post_receive(self, wr_id: int, edge: int) -> None:
        self.nic.post_receive(self._qps[edge - UP].qpn, wr_id)

    def post_message(self, msg_id: int, slot: int, header: bytes, payload: Segment) -> None:
        self._post(0, msg_id, slot, header, payload)

    def post_staged(self, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        self._post(0, msg_id, slot, header, self._payload(2, at, nbytes))

    def post_received(self, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        self._post(0, msg_id, slot, header, self._payload(0, at, nbytes))

    def post_down(self, child: int, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        self._post(child - UP, msg_id, slot, header, self._payload(0, at, nbytes))

    def _post(self, area: int, msg_id: int, slot: int, header: bytes, payload: Segment) -> None:
        peer = self._peers[area]
        if peer is None:
            raise InvariantBroken("the root of a tree has no parent to send to")
        at = (area * self.slots + slot // 2) * INA_HEADER_BYTES
        self._headers[at : at + INA_HEADER_BYTES] = header
        heads = self._regions[1]
        self.nic.post_write_imm(
            self._qps[area].qpn,
            msg_id,
            (Segment(heads.key, heads.va + at, INA_HEADER_BYTES), payload),
            remote_va=peer.va + slot // 2 * self.slot_bytes,
            rkey=peer.rkey,
            imm=msg_id,
            now=self._clock(),
        )

    def _payload(self, region: int, slot: int, nbytes: int) -> Segment:
        of = self._regions[region]
        return Segment(of.key, of.va + slot // 2 * self.slot_bytes + INA_HEADER_BYTES, nbytes)

    def header(self, edge: int, msg_id: int, nbytes: int) -> bytes:
        """Of the message of ``nbytes`` bytes that has come from there."""
        at = ((edge - UP) * self.slots + msg_id % (2 * self.slots) // 2) * self.slot_bytes
        return self._areas[at : at + min(INA_HEADER_BYTES, nbytes)].tobytes()

    def result(self, slot: int, nbytes: int) -> memoryview:
        return self._behind(self._areas, slot // 2, nbytes)

    def came(self, child: int, slot: int, nbytes: int) -> memoryview:
        return self._behind(self._areas, (child - UP) * self.slots + slot // 2, nbytes)

    def staged(self, slot: int, nbytes: int) -> memoryview:
        return self._behind(self._staged, slot // 2, nbytes)

    def _behind(self, memory: memoryview, slot: int, nbytes: int) -> memoryview:
        at = slot * self.slot_bytes + INA_HEADER_BYTES
        return memory[at : at + nbytes]

    def close(self) -> None:
        """Give everything back, once."""
        if self.is_open:
            self.is_open = False
            for qpn in self.qpns:
                self.nic.destroy_qp(qpn)
            for region in self._regions:
                self.nic.deregister_memory(region)
