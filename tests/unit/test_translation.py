"""Headers that a switch makes itself: whole packets, and what both ends of a virtual connection agree on."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from inaproto.core.plan.aggregation_tree import VIRTUAL_QP_BASE
from inaproto.core.switch.message_packets import HEADER_BYTES, LAST, LAST_IMM, ONLY, ONLY_IMM
from inaproto.core.switch.region_kernels import LastPacket
from inaproto.core.switch.tree.translation import (
    VIRTUAL_UDP_PORT,
    MessageHeaders,
    base_header,
    is_virtual,
    packet_header,
    share_of,
    start_psn,
)
from inaproto.units import PortId
from inaproto.wire.crc import crc32
from inaproto.wire.ethernet import EthernetHeader
from inaproto.wire.ipv4 import Ipv4Header
from inaproto.wire.messages.switch import VirtualConnection
from inaproto.wire.roce import Bth, Imm, Opcode, Reth, RocePacket
from inaproto.wire.udp import UdpHeader
from inaproto.wire.vector import BTH_END, RoceRun, decode_runs
from tests.unit.switched_ring import MTU, block, ip, mac, ring_of

PSN0: Final = 0xFF_FFFD
"""Three packets before the PSNs begin again at 0."""
TOLD: Final = RocePacket(
    eth=EthernetHeader(dst=mac(2), src=mac(1)),
    ip=Ipv4Header(src=ip(1), dst=ip(2), total_length=0, identification=0x1234, ttl=9, tos=0x2A),
    udp=UdpHeader(src_port=0xC111, length=0),
    bth=Bth(
        opcode=Opcode.RC_WRITE_ONLY_IMM,
        dest_qp=0x20_0302,
        psn=PSN0,
        pad=1,
        solicited=True,
        migration=True,
        version=5,
        pkey=0x8001,
        congestion=1,
    ),
    reth=Reth(va=0x7000_0000_1000, rkey=0xABCD, dma_length=0x4321),
    imm=Imm(0x0102_0304),
    payload=bytes(47),
)
"""What a host's NIC sent as the first packet of a message, with every field that a NIC may set."""


def headers_of(*, ack: bool, psn_bits: int = 24) -> MessageHeaders:
    """Of the message that ``TOLD`` begins."""
    assert TOLD.reth is not None
    assert TOLD.imm is not None
    mask = (1 << psn_bits) - 1
    base = TOLD.encode_frame()[:BTH_END]
    return MessageHeaders(base, PSN0 & mask, mask, TOLD.reth.encode(), TOLD.imm.value, ack)


def packet_of(opcode: int, psn: int, payload: bytes, *, ack: bool) -> RocePacket:
    """The packet of that message, by the scalar codec."""
    whole = opcode in (ONLY, ONLY_IMM, Opcode.RC_WRITE_FIRST)
    bth = replace(TOLD.bth, opcode=opcode, psn=psn, pad=-len(payload) % 4, ack_request=ack)
    imm = TOLD.imm if opcode in (LAST_IMM, ONLY_IMM) else None
    return replace(TOLD, bth=bth, reth=TOLD.reth if whole else None, imm=imm, payload=payload)


def sealed(header: bytes, payload: bytes) -> bytes:
    """The frame that these headers make, its ICRC put together as the accelerator does."""
    tail = payload + bytes(-len(payload) % 4)
    return header + tail + (share_of(header, len(tail)) ^ crc32(tail)).to_bytes(4, "little")


@pytest.mark.parametrize("ack", [False, True])
def test_first_packets_carry_the_address_of_the_message(*, ack: bool) -> None:
    payload = bytes(range(MTU))
    frame = sealed(headers_of(ack=ack).first(MTU), payload)
    assert frame == packet_of(Opcode.RC_WRITE_FIRST, PSN0, payload, ack=ack).encode_frame()


@pytest.mark.parametrize("ack", [False, True])
@pytest.mark.parametrize("payload_bytes", [64, 50, 49, 47])
@pytest.mark.parametrize(("opcode", "packets"), [(LAST, 5), (LAST_IMM, 5), (ONLY, 1), (ONLY_IMM, 1)])
def test_last_packets_carry_what_their_opcode_asks_for(
    opcode: int, packets: int, payload_bytes: int, *, ack: bool
) -> None:
    payload = bytes(range(payload_bytes))
    layout = LastPacket(opcode, HEADER_BYTES[opcode], payload_bytes, -payload_bytes % 4)
    frame = sealed(headers_of(ack=ack).last(packets, layout), payload)
    psn = PSN0 if packets == 1 else 1  # FFFFFD, FFFFFE, FFFFFF, 0, 1
    assert frame == packet_of(opcode, psn, payload, ack=ack).encode_frame()


@pytest.mark.parametrize("ack", [False, True])
@pytest.mark.parametrize("psn_bits", [24, 18])
def test_packets_in_between_are_made_together(psn_bits: int, *, ack: bool) -> None:
    """Headers and shares in the ICRCs of a vector of packets are those of each packet made alone."""
    packets, payload = 300, bytes(range(MTU))
    rows, shares = headers_of(ack=ack, psn_bits=psn_bits).middles(packets, MTU)
    assert rows.dtype == np.uint8
    assert rows.shape == (packets - 2, BTH_END)
    assert shares.dtype == np.uint32
    assert shares.shape == (packets - 2,)
    for at, (row, share) in enumerate(zip(rows, shares.tolist(), strict=True), 1):
        psn = (PSN0 + at) % (1 << psn_bits)
        frame = row.tobytes() + payload + (share ^ crc32(payload)).to_bytes(4, "little")
        assert frame == packet_of(Opcode.RC_WRITE_MIDDLE, psn, payload, ack=ack).encode_frame()


def test_a_message_of_two_packets_has_none_in_between() -> None:
    rows, shares = headers_of(ack=False).middles(2, MTU)
    assert (rows.shape, shares.shape) == ((0, BTH_END), (0,))


# --- virtual connections

LINK: Final = VirtualConnection(
    "S",
    PortId(2),
    mac(7),
    ip(7),
    mac(8),
    ip(8),
    qp=VIRTUAL_QP_BASE | 0x12_3456,
)


def test_packets_between_switches_have_their_addresses_and_ask_for_no_ack() -> None:
    payload = bytes(range(50))
    frame = sealed(packet_header(base_header(LINK), Opcode.RC_SEND_ONLY, 0xAB_CDEF, 50), payload)
    assert frame == (
        RocePacket.build(
            src_mac=mac(7),
            dst_mac=mac(8),
            src_ip=ip(7),
            dst_ip=ip(8),
            udp_source_port=VIRTUAL_UDP_PORT,
            bth=Bth(opcode=Opcode.RC_SEND_ONLY, dest_qp=LINK.qp, psn=0xAB_CDEF),
            payload=payload,
        ).encode_frame()
    )


def run_of(dest_qp: int, *udp_source_ports: int) -> RoceRun:
    """A row for each source port."""
    bth = replace(TOLD.bth, dest_qp=dest_qp)
    packets = [replace(TOLD, udp=UdpHeader(src_port=port, length=0), bth=bth) for port in udp_source_ports]
    (run,) = decode_runs(block(*(packet.encode_frame() for packet in packets)))
    assert isinstance(run, RoceRun)
    return run


@pytest.mark.parametrize(
    ("dest_qp", "udp_source_port", "virtual"),
    [
        (VIRTUAL_QP_BASE, VIRTUAL_UDP_PORT, True),
        (0xFF_FFFF, VIRTUAL_UDP_PORT, True),
        (0x7F_FFFF, VIRTUAL_UDP_PORT, False),
        (VIRTUAL_QP_BASE | 7, VIRTUAL_UDP_PORT + 1, False),
        (VIRTUAL_QP_BASE | 7, 0x494E ^ 0x8000, False),
        (7, 0xC111, False),
    ],
)
def test_a_packet_is_between_switches_by_queue_pair_and_port_together(
    dest_qp: int, udp_source_port: int, *, virtual: bool
) -> None:
    """A host's NIC may number its queue pairs as it likes, and a host may send from any port."""
    assert is_virtual(run_of(dest_qp, udp_source_port)) is virtual


@pytest.mark.parametrize(
    ("udp_source_ports", "virtual"),
    [
        ((0xC111, VIRTUAL_UDP_PORT), True),
        ((VIRTUAL_UDP_PORT, 0xC111), True),
        ((0xC149, 0x4EC1), False),  # the bytes of the port, but in two rows
    ],
)
def test_one_row_with_the_port_speaks_for_those_whose_port_was_damaged(
    udp_source_ports: tuple[int, ...], *, virtual: bool
) -> None:
    assert is_virtual(run_of(VIRTUAL_QP_BASE | 7, *udp_source_ports)) is virtual


@pytest.mark.parametrize("psn_bits", [24, 16, 8])
def test_psns_of_virtual_connections_begin_where_key_ring_and_epoch_say(psn_bits: int) -> None:
    """The two ends may run different versions, so the rule is fixed: CRC-32 of the three, big-endian."""
    seen = set()
    for key, ring_id, epoch in [
        (0xFEED, 7, 3),
        (0xFEED_0000_0000_0001, 7, 3),
        (0xFFFF_FFFF_FFFF_FFFF, 0xFFFF_FFFF, 0xFFFF_FFFF),
        (0xFEED, 8, 3),
        (0xFEED, 7, 4),
        (0, 0, 0),
    ]:
        spec = ring_of(key=key, ring_id=ring_id, epoch=epoch, psn_bits=psn_bits)
        psn = start_psn(spec)
        assert psn == zlib.crc32(struct.pack(">QII", key, ring_id, epoch)) % (1 << psn_bits)
        seen.add(psn)
    assert len(seen) == 6, "what is left on the way of an earlier ring falls nowhere"
