"""What the ledger lets pass of a switch that answers NAKs (docs/protocol.md 6.14.3), and what it does not."""

from __future__ import annotations

import pytest

from inaproto.core.rdma.reliable_connection import ACK, NAK_SEQUENCE
from inaproto.sim.frames.checkers.ledger import Ledger
from inaproto.sim.frames.world import World
from inaproto.sim.kernel.violated import Violated
from inaproto.units import Frames, PortId
from inaproto.wire.packet import PacketBuilder
from inaproto.wire.roce import Opcode
from inaproto.wire.vector import FlowTemplate
from tests.sim.test_world import calm
from tests.unit.switched_ring import block

RECEIVER, SENDER = PortId(0), PortId(1)
QP = 7
MISSING, OTHER = 0, 500
"""PSNs: of a NAK, and of what its receiver sends to the same queue pair."""


class Switch:
    """One with two hosts, of which its books say what comes and what leaves."""

    def __init__(self) -> None:
        self.world = World(calm())
        self.switch = self.world.switch
        for port, host in zip((RECEIVER, SENDER), self.world.hosts, strict=True):
            self.switch._ports[port] = host  # which are not powered on yet
        self.ledger = Ledger()
        self.ledger.begin(self.world)
        here, there = self.world.hosts
        self._builder = PacketBuilder(
            FlowTemplate(
                src_mac=here.mac,
                dst_mac=there.mac,
                src_ip=here.ip,
                dst_ip=there.ip,
                udp_source_port=0xC000,
                dest_qp=QP,
            )
        )

    def packet(self, opcode: Opcode, psn: int, payload: bytes = b"", *, syndrome: int | None = None) -> bytes:
        return self._builder.build(
            opcode=opcode,
            psn=psn & 0xFF_FFFF,
            ack_requests=(False,),
            ip_id=0,
            payload=payload,
            aeth=None if syndrome is None else (syndrome, 0),
            imm=5 if opcode == Opcode.RC_WRITE_LAST_IMM else None,
        ).tobytes()

    @property
    def nak(self) -> bytes:
        return self.packet(Opcode.RC_ACK, MISSING, bytes(8), syndrome=NAK_SEQUENCE)

    @property
    def data(self) -> bytes:
        """A packet as long as the NAK."""
        return self.packet(Opcode.RC_WRITE_LAST_IMM, OTHER, bytes(8))

    def receives(self, frames: Frames) -> None:
        self.ledger.switch_received(self.switch, RECEIVER, [frames])

    def acknowledges(self, psn: int) -> None:
        self.ledger.switch_sent(self.switch, SENDER, block(self.packet(Opcode.RC_ACK, psn, syndrome=ACK)))


@pytest.mark.parametrize("data_first", [True, False])
def test_an_ack_in_place_of_a_nak_that_came_with_data_as_long(*, data_first: bool) -> None:
    """Frames of one length may come as one block, whatever they are."""
    books = Switch()
    frames = [books.nak, books.data]
    books.receives(block(*(reversed(frames) if data_first else frames)))
    books.acknowledges(MISSING - 1)


@pytest.mark.parametrize("psn", [OTHER - 1, MISSING, MISSING - 2])
def test_no_ack_in_place_of_anything_else(psn: int) -> None:
    books = Switch()
    books.receives(block(books.nak, books.data))
    with pytest.raises(Violated, match="sent an ACK at port 1 that did not come in"):
        books.acknowledges(psn)


def test_no_ack_when_no_nak_came() -> None:
    books = Switch()
    books.receives(block(books.data))
    with pytest.raises(Violated, match="sent an ACK at port 1 that did not come in"):
        books.acknowledges(MISSING - 1)
