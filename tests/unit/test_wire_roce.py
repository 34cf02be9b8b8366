"""RoCEv2 records: exact bytes of a kernel's stack, round trips, and frames that are none."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.errors import DecodeError, LocalMisuse
from inaproto.wire import icrc
from inaproto.wire.roce import (
    SYNDROME_ACK,
    SYNDROME_NAK,
    SYNDROME_RNR,
    Aeth,
    Bth,
    Imm,
    NakCode,
    Opcode,
    Reth,
    RocePacket,
    extension_bytes,
)
from tests.unit.wire_strategies import (
    CAPTURED_ACK,
    CAPTURED_NAK,
    aeths,
    bths,
    has_imm,
    has_reth,
    imms,
    packets,
    reths,
)

build = partial(
    RocePacket.build,
    src_mac=bytes.fromhex("525400000002"),
    dst_mac=bytes.fromhex("525400000001"),
    src_ip=bytes([10, 0, 0, 2]),
    dst_ip=bytes([10, 0, 0, 1]),
)


def make(opcode: Opcode, payload: bytes = b"", *, psn: int = 7, ack_request: bool = False) -> RocePacket:
    return build(
        udp_source_port=0xC000,
        bth=Bth(opcode=opcode, dest_qp=17, psn=psn, ack_request=ack_request),
        reth=Reth(va=0x7F00_0000_1000, rkey=0x1234, dma_length=len(payload)) if has_reth(opcode) else None,
        imm=Imm(42) if has_imm(opcode) else None,
        aeth=Aeth(syndrome=SYNDROME_ACK, msn=3) if opcode == Opcode.RC_ACK else None,
        payload=payload,
    )


@pytest.mark.parametrize(
    ("frame", "packet", "text"),
    [
        (
            CAPTURED_ACK,
            build(
                udp_source_port=0xC121,
                ip_id=0x8C45,
                bth=Bth(opcode=Opcode.RC_ACK, dest_qp=0x11, psn=0x13F),
                aeth=Aeth(syndrome=SYNDROME_ACK, msn=1),
            ),
            "10.0.0.2 > 10.0.0.1 RC_ACK qp 0x11 psn 0x13f, ack msn 1",
        ),
        (
            CAPTURED_NAK,
            build(
                udp_source_port=0xC190,
                ip_id=0x904F,
                bth=Bth(opcode=Opcode.RC_ACK, dest_qp=0x14, psn=0x10A),
                aeth=Aeth(syndrome=SYNDROME_NAK | NakCode.PSN_SEQUENCE_ERROR, msn=0),
            ),
            "10.0.0.2 > 10.0.0.1 RC_ACK qp 0x14 psn 0x10a, nak psn_sequence_error msn 0",
        ),
    ],
    ids=["ack", "nak"],
)
def test_captured_frames(frame: bytes, packet: RocePacket, text: str) -> None:
    assert RocePacket.decode_frame(frame, verify=True) == packet
    assert packet.encode_frame() == frame
    assert packet.icrc == int.from_bytes(frame[-4:], "little")
    assert str(packet) == text


@given(bths)
def test_bth_round_trip(bth: Bth) -> None:
    assert Bth.decode(bth.encode()) == bth


@given(st.binary(min_size=12, max_size=12))
def test_bth_keeps_every_bit(data: bytes) -> None:
    assert Bth.decode(data).encode() == data


@given(reths, imms, aeths)
def test_extension_headers_round_trip(reth: Reth, imm: Imm, aeth: Aeth) -> None:
    assert Reth.decode(reth.encode()) == reth
    assert Imm.decode(imm.encode()) == imm
    assert Aeth.decode(aeth.encode()) == aeth


@pytest.mark.parametrize(("record", "nbytes"), [(Bth, 12), (Reth, 16), (Imm, 4), (Aeth, 4)])
def test_truncated_headers(record: type[Bth | Reth | Imm | Aeth], nbytes: int) -> None:
    for length in range(nbytes):
        with pytest.raises(DecodeError, match=f"{record.__name__.upper()}: {length} bytes, needs {nbytes}"):
            record.decode(bytes(length))


@given(packets())
def test_a_whole_frame_round_trip(packet: RocePacket) -> None:
    frame = packet.encode_frame()
    assert RocePacket.decode_frame(memoryview(frame), verify=True) == packet
    assert icrc.verify(frame)
    headers = extension_bytes(packet.opcode)
    assert len(frame) == 58 + headers + len(packet.payload) + packet.pad
    assert str(packet)


@given(packets(), st.binary(max_size=20))
def test_ethernet_padding_is_ignored(packet: RocePacket, padding: bytes) -> None:
    assert RocePacket.decode_frame(packet.encode_frame() + padding, verify=True) == packet


@pytest.mark.parametrize(
    ("opcode", "nbytes"),
    [
        (Opcode.RC_WRITE_FIRST, 1098),
        (Opcode.RC_WRITE_MIDDLE, 1082),
        (Opcode.RC_WRITE_LAST, 1082),
        (Opcode.RC_WRITE_LAST_IMM, 1086),
        (Opcode.RC_WRITE_ONLY, 1098),
        (Opcode.RC_WRITE_ONLY_IMM, 1102),
    ],
)
def test_frame_sizes_of_a_kernels_stack(opcode: Opcode, nbytes: int) -> None:
    assert len(make(opcode, bytes(1024)).encode_frame()) == nbytes


@pytest.mark.parametrize(("nbytes", "pad"), [(1020, 0), (1021, 3), (1022, 2), (1023, 1), (1024, 0), (0, 0)])
def test_pad(nbytes: int, pad: int) -> None:
    frame = make(Opcode.RC_WRITE_LAST, b"\xee" * nbytes).encode_frame()
    packet = RocePacket.decode_frame(frame)
    assert (packet.pad, len(packet.payload)) == (pad, nbytes)
    assert frame[43] == pad << 4
    assert frame[54 + nbytes : -4] == bytes(pad)


def test_a_packet_for_a_log() -> None:
    packet = make(Opcode.RC_WRITE_ONLY_IMM, bytes(5), psn=0x10, ack_request=True)
    assert str(packet) == (
        "10.0.0.2 > 10.0.0.1 RC_WRITE_ONLY_IMM qp 0x11 psn 0x10 ackreq, "
        "va 0x7f0000001000 rkey 0x1234 length 5, imm 42, payload 5 pad 3"
    )


@pytest.mark.parametrize(
    ("syndrome", "kind", "value", "text"),
    [
        (SYNDROME_ACK, "is_ack", 31, "ack msn 9"),
        (SYNDROME_NAK | NakCode.REMOTE_ACCESS_ERROR, "is_nak", 2, "nak remote_access_error msn 9"),
        (SYNDROME_NAK | 30, "is_nak", 30, "nak 30 msn 9"),
        (SYNDROME_RNR | 1, "is_rnr", 1, "rnr timer 1 msn 9"),
        (0x45, "", 5, "reserved syndrome 0x45 msn 9"),
    ],
)
def test_syndromes(syndrome: int, kind: str, value: int, text: str) -> None:
    aeth = Aeth(syndrome=syndrome, msn=9)
    assert [name for name in ("is_ack", "is_nak", "is_rnr") if getattr(aeth, name)] == (
        [kind] if kind else []
    )
    assert aeth.value == value
    assert str(aeth) == text


def changed(frame: bytes, offset: int, value: bytes) -> bytes:
    return frame[:offset] + value + frame[offset + len(value) :]


FRAME = make(Opcode.RC_WRITE_ONLY_IMM, bytes(8)).encode_frame()


NOT_PACKETS = (
    (b"", "Ethernet: 0 bytes"),
    (FRAME[:33], "IPv4: 19 bytes"),
    (changed(FRAME, 12, b"\x08\x06"), "ethertype 0x0806 is not IPv4"),
    (changed(FRAME, 14, b"\x46"), "IP options, a fragment, or not UDP"),
    (changed(FRAME, 20, b"\x20"), "IP options, a fragment, or not UDP"),
    (changed(FRAME, 20, b"\x40\x01"), "IP options, a fragment, or not UDP"),
    (changed(FRAME, 23, b"\x06"), "IP options, a fragment, or not UDP"),
    (changed(FRAME, 16, (len(FRAME) - 13).to_bytes(2, "big")), "IPv4: total length"),
    (changed(FRAME, 16, b"\x00\x1b"), "UDP: 7 bytes"),
    (changed(FRAME, 36, b"\x12\xb8"), "UDP port 4792 is not 4791"),
    (changed(FRAME, 38, b"\x00\x30"), "UDP length 48 in 52 bytes of IP payload"),
    (changed(FRAME, 38, b"\x00\x38"), "UDP: length 56, 52 bytes are there"),
    (changed(changed(FRAME, 16, b"\x00\x24"), 38, b"\x00\x10"), "BTH: 8 bytes, needs 12"),
    (changed(FRAME, 42, b"\x0c"), "opcode 0x0c is not handled"),
    (changed(FRAME, 42, b"\x64"), "opcode 0x64 is not handled"),
    (changed(changed(FRAME, 16, b"\x00\x3c"), 38, b"\x00\x28"), "needs 24"),
    (make(Opcode.RC_ACK).encode_frame()[:43] + b"\x10" + CAPTURED_ACK[44:], "needs 9"),
)


@pytest.mark.parametrize(("frame", "reason"), NOT_PACKETS)
def test_what_is_no_packet(frame: bytes, reason: str) -> None:
    with pytest.raises(DecodeError) as caught:
        RocePacket.decode_frame(frame)
    assert reason in str(caught.value)


def test_every_truncation_is_refused() -> None:
    for length in range(len(FRAME)):
        with pytest.raises(DecodeError):
            RocePacket.decode_frame(FRAME[:length])


def test_a_corrupted_packet_decodes_but_does_not_verify() -> None:
    broken = changed(FRAME, 80, b"\xff")
    assert RocePacket.decode_frame(broken).payload != RocePacket.decode_frame(FRAME).payload
    with pytest.raises(DecodeError, match="wrong ICRC"):
        RocePacket.decode_frame(broken, verify=True)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(make(Opcode.RC_WRITE_FIRST), reth=None),
        replace(make(Opcode.RC_WRITE_MIDDLE), imm=Imm(1)),
        replace(make(Opcode.RC_ACK), aeth=None),
        replace(make(Opcode.RC_ACK), bth=Bth(opcode=0x0C, dest_qp=1, psn=1)),
        replace(make(Opcode.RC_WRITE_LAST), bth=Bth(opcode=Opcode.RC_WRITE_LAST, dest_qp=1 << 24, psn=1)),
        replace(make(Opcode.RC_WRITE_LAST), bth=Bth(opcode=Opcode.RC_WRITE_LAST, dest_qp=1, psn=-1)),
        replace(make(Opcode.RC_WRITE_LAST), payload=bytes(65536)),
        replace(make(Opcode.RC_WRITE_LAST), eth=replace(make(Opcode.RC_WRITE_LAST).eth, ethertype=0x86DD)),
        replace(make(Opcode.RC_WRITE_LAST), udp=replace(make(Opcode.RC_WRITE_LAST).udp, dst_port=53)),
        replace(make(Opcode.RC_WRITE_FIRST), reth=Reth(va=1 << 64, rkey=0, dma_length=0)),
        replace(make(Opcode.RC_WRITE_LAST_IMM), imm=Imm(1 << 32)),
    ],
)
def test_what_cannot_be_encoded_is_the_callers_fault(wrong: RocePacket) -> None:
    with pytest.raises(LocalMisuse):
        wrong.encode_frame()
