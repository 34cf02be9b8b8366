"""Packets one at a time, by hand: acknowledgements, values at their edges, checksums that fold twice."""

from __future__ import annotations

from typing import Any

import pytest

from inaproto.units import PSN_MASK
from inaproto.wire.ipv4 import internet_checksum
from inaproto.wire.packet import PacketBuilder, decode_packet
from inaproto.wire.roce import Aeth, Imm, Opcode, Reth, RocePacket
from inaproto.wire.vector import FlowTemplate

FLOW = FlowTemplate(
    b"\x52\x54\0\0\0\1", b"\x52\x54\0\0\0\2", b"\xc0\xa8\0\1", b"\xc0\xa8\0\2", 0xC123, 0xABCDEF
)


def built(opcode: Opcode, **changes: Any) -> bytes:
    arguments: dict[str, Any] = {"psn": 5, "ack_requests": [True], "ip_id": 1, "payload": b""} | changes
    (row,) = PacketBuilder(FLOW).build(opcode=opcode, **arguments)
    return bytes(row)


@pytest.mark.parametrize("syndrome", [0x00, 0x1F, 0x60, 0xFF])
@pytest.mark.parametrize("msn", [0, 1, 0xABCDEF, 0xFF_FFFF])
def test_acknowledgements(syndrome: int, msn: int) -> None:
    frame = built(Opcode.RC_ACK, aeth=(syndrome, msn))
    record = RocePacket.decode_frame(frame, verify=True)
    assert record.aeth == Aeth(syndrome=syndrome, msn=msn)
    assert (record.bth.dest_qp, record.payload) == (0xABCDEF, b"")
    packet = decode_packet(frame)
    assert packet is not None
    assert packet.extensions() == (None, None, (syndrome, msn))
    assert packet.intact()


@pytest.mark.parametrize("psn", [0, 1, PSN_MASK - 1, PSN_MASK])
@pytest.mark.parametrize("asks", [True, False])
def test_psn_and_ack_request_share_a_word(psn: int, asks: bool) -> None:
    packet = decode_packet(built(Opcode.RC_WRITE_MIDDLE, psn=psn, ack_requests=[asks], payload=b"1234"))
    assert packet is not None
    assert (packet.psn, packet.ack_request) == (psn, asks)
    assert packet.extensions() == (None, None, None)


def test_a_write_with_all_its_headers() -> None:
    reth = (0x0123_4567_89AB_CDEF, 0x1357_9BDF, 0x7654_3210)
    frame = built(Opcode.RC_WRITE_ONLY_IMM, reth=reth, imm=0xFEDC_BA98, payload=b"12345")
    record = RocePacket.decode_frame(frame, verify=True)
    assert record.reth == Reth(va=reth[0], rkey=reth[1], dma_length=reth[2])
    assert record.imm == Imm(0xFEDC_BA98)
    packet = decode_packet(frame)
    assert packet is not None
    assert packet.extensions() == (reth, 0xFEDC_BA98, None)
    assert (bytes(packet.payload()), bytes(packet.tail), packet.pad) == (b"12345", b"12345\0\0\0", 3)


def test_an_ip_checksum_whose_carry_carries() -> None:
    """The first fold of the sum fills 16 bits exactly and carries, so the second has to add one more."""
    plain = bytearray(built(Opcode.RC_WRITE_MIDDLE, ip_id=0, payload=b"1234")[14:34])
    plain[10:12] = bytes(2)
    words = sum(int.from_bytes(plain[at : at + 2], "big") for at in range(0, 20, 2))
    twice = (0xFFFF - words) & 0xFFFF
    assert words + twice > 0xFFFF
    for ip_id in (twice - 1, twice, twice + 1):
        header = built(Opcode.RC_WRITE_MIDDLE, ip_id=ip_id, payload=b"1234")[14:34]
        assert internet_checksum(header) == 0


def test_psns_and_ip_ids_count_up_and_wrap() -> None:
    rows = PacketBuilder(FLOW).build(
        opcode=Opcode.RC_WRITE_MIDDLE,
        psn=PSN_MASK,
        ack_requests=[False, True, False],
        ip_id=0xFFFF,
        payload=b"aaaabbbbcccc",
    )
    records = [RocePacket.decode_frame(bytes(row), verify=True) for row in rows]
    assert [record.bth.psn for record in records] == [PSN_MASK, 0, 1]
    assert [record.bth.ack_request for record in records] == [False, True, False]
    assert [record.ip.identification for record in records] == [0xFFFF, 0, 1]
    assert [record.payload for record in records] == [b"aaaa", b"bbbb", b"cccc"]


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (12, b"\x86\xdd"),
        (14, b"\x46"),
        (16, b"\0\x2f"),
        (20, b"\x20\0"),
        (20, b"\0\1"),
        (23, b"\6"),
        (36, b"\x12\xb6"),
        (38, b"\0\x1b"),
        (42, b"\x0c"),
        (43, b"\x30"),
    ],
)
def test_what_a_nic_does_not_emit_is_left_to_the_vector_decoder(at: int, value: bytes) -> None:
    frame = built(Opcode.RC_WRITE_MIDDLE)
    assert len(frame) == 58, "the shortest packet"
    assert decode_packet(frame) is not None
    assert decode_packet(frame[:at] + value + frame[at + len(value) :]) is None
    assert decode_packet(frame[:-1]) is None
    assert decode_packet(frame + b"\0") is None
