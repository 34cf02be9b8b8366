"""What one host holds of a NIC for one ring or tree of a job: queue pairs and slots (NetReduce section 3.1).

"Each worker in a ring sets up one RDMA connection to its successor and also accepts one RDMA connection from
its predecessor": ``out`` and ``into`` of a :class:`RingLink`. Slot ``msg_id mod 2N`` of each kind belongs to
message ``msg_id``: results are written into the receive slots by the predecessor's RDMA WRITEs; a header slot
holds the INA header of a message from its posting until its send is complete. A *staging* slot holds a
payload that is not the tensor's: what the chain has added up so far, or what a ring that takes over from
another repeats; a message has the slot of its header, or one that its engine names.

In a tree of hosts (:mod:`inaproto.core.host.engines.host_tree`) a :class:`TreeLink` has a queue pair for the
parent and one for each host from which it gathers, each for both ways, and for each an area of ``window``
receive slots, written by the host at its other end: that of the first is for results. Slot numbers are those
of messages, of which one half is of results and the other of what goes up: two of them are one slot.

NIC and memory are handed in: daemons and simulated hosts share this module.

Invariants: a link that was made has all its resources, one that could not be made has none, and ``close``
gives all back, once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from inaproto.core.host.journal import Arena, PrivateArena
from inaproto.core.host.operations import UP
from inaproto.core.rdma.verbs import MemoryRegion, QpAddress, QpAttributes, Segment, Verbs
from inaproto.errors import LocalMisuse
from inaproto.wire.control_messages import IntoAddress, OutAddress
from inaproto.wire.ina_header import INA_HEADER_BYTES

RECEIVES_SPARE: Final = 2
"""Receives posted beyond those that a correct peer can use."""


class LinkNic(Verbs, Protocol):
    """What a link needs of a NIC. Calls are synchronous and never block."""

    def post_write_imm(
        self, qpn: int, wr_id: int, segments: Sequence[Segment], *, remote_va: int, rkey: int, imm: int
    ) -> None: ...


Allocate = Callable[[int], memoryview]
"""Gives zeroed memory of so many bytes, which is freed with its last view. May raise ``OSError``."""


def _out_address(qp: QpAddress) -> OutAddress:
    return OutAddress(
        mac=qp.mac,
        ip=qp.ip,
        qpn=qp.qpn,
        psn=qp.psn,
        selective=qp.selective,
        repaired=qp.repaired,
        infiniband=qp.infiniband,
    )


def memory_bytes(*, slots: int, slot_bytes: int, areas: int) -> int:
    """What a link allocates beside its receive slots: staging slots, and header slots in each area."""
    return slots * slot_bytes + areas * slots * INA_HEADER_BYTES


class _HostLink:
    """Memory in ``areas`` areas of ``slots`` receive slots, and ``qps`` queue pairs."""

    def __init__(
        self,
        nic: LinkNic,
        *,
        slots: int,
        slot_bytes: int,
        areas: int,
        qps: int,
        allocate: Allocate,
        first_psn: Callable[[], int],
        arena: Arena | None = None,
    ) -> None:
        """Receive slots are in ``arena``, if there is one. Raises ``LocalMisuse`` if the NIC is full,
        ``OSError`` if memory is short."""
        self.nic = nic
        self.slots = slots
        self.slot_bytes = slot_bytes
        self.is_open = True
        self._receives_max = qps * (2 * slots + RECEIVES_SPARE)
        with contextlib.ExitStack() as undo:
            received_bytes, staged_bytes = areas * slots * slot_bytes, slots * slot_bytes
            area = (PrivateArena() if arena is None else arena).allocate(received_bytes)
            undo.callback(area.free)
            self.received_at = area.at
            """Where the receive slots begin in the arena."""
            self._received = area.view[:]
            with allocate(memory_bytes(slots=slots, slot_bytes=slot_bytes, areas=areas)) as whole:
                self._staged = whole[:staged_bytes]
                self._headers = whole[staged_bytes:]
            self._received_heads = [
                self._received[at : at + INA_HEADER_BYTES] for at in range(0, received_bytes, slot_bytes)
            ]
            """Where headers come, by receive slot."""
            undo.callback(self._release_memory)
            self._received_region = self._register(self._received, undo)
            self._staged_region = self._register(self._staged.toreadonly(), undo)
            self._headers_region = self._register(self._headers.toreadonly(), undo)
            self._qps: list[QpAddress] = []
            for _ in range(qps):
                qp = nic.create_qp(psn=first_psn())
                undo.callback(nic.destroy_qp, qp.qpn)
                self._qps.append(qp)
            self._undo = undo.pop_all()
        self.qpns = tuple(qp.qpn for qp in self._qps)
        heads = self._headers_region
        self._heads = [
            Segment(heads.key, heads.va + at, INA_HEADER_BYTES)
            for at in range(0, areas * slots * INA_HEADER_BYTES, INA_HEADER_BYTES)
        ]
        """Header slots."""

    def _register(self, memory: memoryview, undo: contextlib.ExitStack) -> MemoryRegion:
        region = self.nic.register_memory(memory)
        undo.callback(self.nic.deregister_memory, region)
        return region

    @property
    def work_requests_max(self) -> int:
        """For each slot a send and a receive, and the spare ones."""
        return self._receives_max

    def _address(self, qp: int, area: int) -> IntoAddress:
        address, region = self._qps[qp], self._received_region
        return IntoAddress(
            mac=address.mac,
            ip=address.ip,
            qpn=address.qpn,
            psn=address.psn,
            va=region.va + area * self.slots * self.slot_bytes,
            rkey=region.key,
            slots=self.slots,
            slot_bytes=self.slot_bytes,
            selective=address.selective,
            infiniband=address.infiniband,
        )

    def _connect(
        self, qp: int, peer: OutAddress | IntoAddress, attributes: QpAttributes, window: int
    ) -> None:
        """With room for ``window`` messages that are not acknowledged yet."""
        fitting = attributes.for_messages(window, self.slot_bytes)
        remote = QpAddress(peer.mac, peer.ip, peer.qpn, peer.psn, peer.selective, infiniband=peer.infiniband)
        self.nic.connect_qp(self.qpns[qp], remote, fitting)

    def _takes_alike(self, peer: IntoAddress) -> bool:
        return (peer.slots, peer.slot_bytes) == (self.slots, self.slot_bytes)

    def _write(self, qp: int, peer: IntoAddress, msg_id: int, slot: int, *, header: bytes, area: int,
               payload: Segment) -> None:  # fmt: skip
        """``slot``: here, and the receive slot of the peer."""
        head = area * self.slots + slot
        at = head * INA_HEADER_BYTES
        self._headers[at : at + INA_HEADER_BYTES] = header
        self.nic.post_write_imm(
            self.qpns[qp],
            msg_id,
            (self._heads[head], payload),
            remote_va=peer.va + slot * self.slot_bytes,
            rkey=peer.rkey,
            imm=msg_id,
        )

    def _payload(self, region: MemoryRegion, slot: int, nbytes: int) -> Segment:
        return Segment(region.key, region.va + slot * self.slot_bytes + INA_HEADER_BYTES, nbytes)

    def _header(self, slot: int, nbytes: int) -> bytes:
        return self._received_heads[slot].tobytes()[:nbytes]

    def _behind(self, memory: memoryview, slot: int, nbytes: int) -> memoryview:
        at = slot * self.slot_bytes + INA_HEADER_BYTES
        return memory[at : at + nbytes]

    def close(self) -> None:
        """Give everything back."""
        if self.is_open:
            self.is_open = False
            self._undo.close()

    def _release_memory(self) -> None:
        # Where the NIC still holds a view (BufferError), the memory ends with that view.
        with contextlib.suppress(BufferError):
            for header in self._received_heads:
                header.release()
            self._received.release()
            self._staged.release()
            self._headers.release()


_OUT: Final = 0
_INTO: Final = 1


class RingLink(_HostLink):
    """``slots`` receive slots of ``slot_bytes``, as many header and staging slots, and two queue pairs."""

    def __init__(
        self,
        nic: LinkNic,
        *,
        slots: int,
        slot_bytes: int,
        allocate: Allocate,
        first_psn: Callable[[], int],
        arena: Arena | None = None,
    ) -> None:
        super().__init__(
            nic,
            slots=slots,
            slot_bytes=slot_bytes,
            areas=1,
            qps=2,
            allocate=allocate,
            first_psn=first_psn,
            arena=arena,
        )
        self._receives_max = 2 * slots + RECEIVES_SPARE
        self._successor: IntoAddress | None = None

    @property
    def out(self) -> OutAddress:
        """For the successor."""
        qp = self._qps[_OUT]
        return _out_address(qp)

    @property
    def into(self) -> IntoAddress:
        """For the predecessor."""
        return self._address(_INTO, 0)

    @property
    def below(self) -> tuple[IntoAddress, ...]:
        """Nobody is, in a ring."""
        return ()

    def connect(self, successor: IntoAddress, predecessor: OutAddress, attributes: QpAttributes) -> None:
        """Raises ``LocalMisuse`` for addresses or attributes that cannot be used.

        Receives first: a predecessor that is ready sooner must find them posted.
        """
        if not self._takes_alike(successor):
            raise LocalMisuse("the successor's receive slots differ in number or size")
        self._successor = successor
        self.post_receives(range(self.slots + RECEIVES_SPARE))
        for qp, peer in ((_INTO, predecessor), (_OUT, successor)):
            self._connect(qp, peer, attributes, self.slots // 2)  # of each two slots one is on the way

    @property
    def connecting(self) -> list[int]:
        """Queue pairs that ``connect`` has begun to connect: who is sent to first, first."""
        return [] if self._successor is None else [self.qpns[_INTO], self.qpns[_OUT]]

    def edge_of(self, qpn: int) -> int:
        """A ring has no connections of a tree."""
        return UP

    def post_receives(self, wr_ids: Iterable[int], edge: int = UP) -> None:
        qpn, post = self.qpns[_INTO], self.nic.post_receive
        for wr_id in wr_ids:
            post(qpn, wr_id)

    def post_message(self, msg_id: int, slot: int, header: bytes, payload: Segment) -> None:
        """Send a message: its header, which is kept in its slot, and ``payload``, which is not copied."""
        successor = self._successor
        if successor is None:
            raise LocalMisuse("a message before the queue pairs were connected")
        at = slot * INA_HEADER_BYTES
        self._headers[at : at + INA_HEADER_BYTES] = header
        self.nic.post_write_imm(
            self.qpns[_OUT],
            msg_id,
            (self._heads[slot], payload),
            remote_va=successor.va + slot * self.slot_bytes,
            rkey=successor.rkey,
            imm=msg_id,
        )

    def post_staged(self, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        """Send ``nbytes`` of staging slot ``at`` as a message."""
        self.post_message(msg_id, slot, header, self._payload(self._staged_region, at, nbytes))

    def post_received(self, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        """Send ``nbytes`` of receive slot ``at`` on as a message."""
        self.post_message(msg_id, slot, header, self._payload(self._received_region, at, nbytes))

    def header(self, edge: int, msg_id: int, nbytes: int) -> bytes:
        """The header of the message of ``nbytes`` bytes in the receive slot of ``msg_id``."""
        return self._received_heads[msg_id % self.slots].tobytes()[:nbytes]

    def result(self, slot: int, nbytes: int) -> memoryview:
        """The ``nbytes`` of tensor behind the header in receive slot ``slot``."""
        at = slot * self.slot_bytes + INA_HEADER_BYTES
        return self._received[at : at + nbytes]

    def result_at(self, slot: int) -> int:
        """Where that is in the arena."""
        return self.received_at + slot * self.slot_bytes + INA_HEADER_BYTES

    def staged(self, slot: int, nbytes: int) -> memoryview:
        """The ``nbytes`` of staging slot ``slot``, to be written."""
        return self._behind(self._staged, slot, nbytes)


class TreeLink(_HostLink):
    """The link of one host that gathers from ``children``; connections are ``UP`` and 0, 1, ... as its engine
    has them."""

    def __init__(
        self,
        nic: LinkNic,
        *,
        window: int,
        slot_bytes: int,
        children: int,
        allocate: Allocate,
        first_psn: Callable[[], int],
        arena: Arena | None = None,
    ) -> None:
        areas = children + 1
        super().__init__(
            nic,
            slots=window,
            slot_bytes=slot_bytes,
            areas=areas,
            qps=areas,
            allocate=allocate,
            first_psn=first_psn,
            arena=arena,
        )
        self._peers: list[IntoAddress | None] = []

    @property
    def out(self) -> OutAddress:
        """For the parent, as ``into``."""
        qp = self._qps[0]
        return _out_address(qp)

    @property
    def into(self) -> IntoAddress:
        """For the parent."""
        return self._address(0, 0)

    @property
    def below(self) -> tuple[IntoAddress, ...]:
        """For those from which it gathers, in their order."""
        return tuple(self._address(area, area) for area in range(1, len(self._qps)))

    def connect(
        self, parent: IntoAddress | None, children: Sequence[IntoAddress], attributes: QpAttributes
    ) -> None:
        """``parent`` is None at the root. Raises ``LocalMisuse`` for addresses that cannot be used.

        Receives first: a peer that is ready sooner must find them posted.
        """
        peers = [parent, *children]
        if len(peers) != len(self._qps):
            raise LocalMisuse(f"{len(children)} hosts to gather from, and links to {len(self._qps) - 1}")
        if not all(self._takes_alike(peer) for peer in peers if peer is not None):
            raise LocalMisuse("the receive slots of a host beside this one differ in number or size")
        self._peers = peers
        for edge, peer in enumerate(peers, UP):
            if peer is None:
                continue
            self.post_receives(range(self.slots + RECEIVES_SPARE), edge)
            self._connect(edge - UP, peer, attributes, self.slots)

    @property
    def connecting(self) -> list[int]:
        """Queue pairs that ``connect`` has begun to connect."""
        return [qpn for qpn, peer in zip(self.qpns, self._peers, strict=False) if peer is not None]

    def edge_of(self, qpn: int) -> int:
        """The connection of that queue pair."""
        return self.qpns.index(qpn) + UP

    def post_receives(self, wr_ids: Iterable[int], edge: int) -> None:
        qpn, post = self.qpns[edge - UP], self.nic.post_receive
        for wr_id in wr_ids:
            post(qpn, wr_id)

    def post_message(self, msg_id: int, slot: int, header: bytes, payload: Segment) -> None:
        """Send a message up: its header, which is kept in its slot, and ``payload``, which is not copied."""
        self._post(0, msg_id, slot, header, payload)

    def post_staged(self, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        """Send ``nbytes`` of staging slot ``at`` up as a message."""
        self._post(0, msg_id, slot, header, self._payload(self._staged_region, at // 2, nbytes))

    def post_received(self, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        """Send ``nbytes`` of the result in slot ``at`` up as a message."""
        self._post(0, msg_id, slot, header, self._payload(self._received_region, at // 2, nbytes))

    def post_down(self, child: int, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        """Send ``nbytes`` of the result in slot ``at`` down to that child."""
        payload = self._payload(self._received_region, at // 2, nbytes)
        self._post(child - UP, msg_id, slot, header, payload)

    def _post(self, area: int, msg_id: int, slot: int, header: bytes, payload: Segment) -> None:
        peer = self._peers[area] if self._peers else None
        if peer is None:
            raise LocalMisuse("a message before the queue pairs were connected, or up from the root")
        self._write(area, peer, msg_id, slot // 2, header=header, area=area, payload=payload)

    def header(self, edge: int, msg_id: int, nbytes: int) -> bytes:
        """The header of the message of ``nbytes`` bytes that has come from there."""
        return self._header((edge - UP) * self.slots + msg_id % (2 * self.slots) // 2, nbytes)

    def result(self, slot: int, nbytes: int) -> memoryview:
        """The ``nbytes`` behind the header of the result in receive slot ``slot``."""
        return self._behind(self._received, slot // 2, nbytes)

    def result_at(self, slot: int) -> int:
        """Where that is in the arena."""
        return self.received_at + slot // 2 * self.slot_bytes + INA_HEADER_BYTES

    def came(self, child: int, slot: int, nbytes: int) -> memoryview:
        """The same of what that child has passed up."""
        return self._behind(self._received, (child - UP) * self.slots + slot // 2, nbytes)

    def staged(self, slot: int, nbytes: int) -> memoryview:
        """The ``nbytes`` of staging slot ``slot``, to be written."""
        return self._behind(self._staged, slot // 2, nbytes)


Link = RingLink | TreeLink
