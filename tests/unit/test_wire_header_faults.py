"""What a refusal of a header says (layer, reason, offset of the fault), and where the limits exactly lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from inaproto.errors import DecodeError, LocalMisuse
from inaproto.wire import icrc
from inaproto.wire.ethernet import EthernetHeader
from inaproto.wire.ina_header import FLAG_LAST, FLAG_RESULT, Dtype, InaHeader, Op, signature
from inaproto.wire.ipv4 import Ipv4Header, internet_checksum
from inaproto.wire.roce import (
    SYNDROME_ACK,
    Aeth,
    Bth,
    Imm,
    Opcode,
    Reth,
    RocePacket,
    extension_bytes,
)
from inaproto.wire.udp import UdpHeader
from tests.unit.wire_strategies import CAPTURED_ACK

ETHERNET = EthernetHeader.decode(CAPTURED_ACK)
IPV4 = Ipv4Header.decode(CAPTURED_ACK[14:])
UDP = UdpHeader.decode(CAPTURED_ACK[34:])
INA = InaHeader(
    dtype=Dtype.F32,
    op=Op.SUM,
    ring_id=1,
    epoch=2,
    op_index=3,
    msg_id=4,
    rank=0,
    ring_size=2,
    msg_len=1,
    signature=5,
    key=6,
)
build = partial(
    RocePacket.build,
    src_mac=ETHERNET.src,
    dst_mac=ETHERNET.dst,
    src_ip=IPV4.src,
    dst_ip=IPV4.dst,
    udp_source_port=0xC000,
)
WRITE = build(
    bth=Bth(opcode=Opcode.RC_WRITE_ONLY_IMM, dest_qp=17, psn=7),
    reth=Reth(va=1 << 40, rkey=3, dma_length=8),
    imm=Imm(9),
    payload=bytes(range(8)),
)
FRAME = WRITE.encode_frame()


def put(data: bytes, offset: int, value: bytes) -> bytes:
    return data[:offset] + value + data[offset + len(value) :]


def long_ip_header() -> bytes:
    """One of 48 bytes in a datagram of 47."""
    return put(put(CAPTURED_ACK[14:], 0, b"\x4c"), 2, b"\0\x2f")


@pytest.mark.parametrize(
    ("decode", "layer", "reason", "offset"),
    [
        (lambda: Ipv4Header.decode(bytes(19)), "IPv4", "19 bytes, needs 20", 19),
        (lambda: Ipv4Header.decode(put(CAPTURED_ACK[14:], 0, b"\x65")), "IPv4", "version 6", 0),
        (
            lambda: Ipv4Header.decode(put(CAPTURED_ACK[14:], 0, b"\x44")),
            "IPv4",
            "header length 16, 48 bytes are there",
            0,
        ),
        (
            lambda: Ipv4Header.decode(long_ip_header()),
            "IPv4",
            "total length 47, header 48, 48 bytes are there",
            2,
        ),
        (
            lambda: Ipv4Header.decode(put(CAPTURED_ACK[14:], 10, b"\0\0"), verify_checksum=True),
            "IPv4",
            "wrong header checksum",
            10,
        ),
        (lambda: UdpHeader.decode(bytes(7)), "UDP", "7 bytes, needs 8", 7),
        (lambda: UdpHeader.decode(bytes(8)), "UDP", "length 0, 8 bytes are there", 4),
        (lambda: icrc.icrc(bytes(57)), "icrc", "frame of 57 bytes is shorter than any RoCEv2 packet", 0),
        (
            lambda: icrc.icrc(put(FRAME, 38, b"\1\7")),
            "icrc",
            f"UDP length ends at {34 + 263} in a frame of {len(FRAME)} bytes",
            38,
        ),
        (
            lambda: icrc.icrc(put(FRAME, 38, b"\0\x17")),
            "icrc",
            f"UDP length ends at 57 in a frame of {len(FRAME)} bytes",
            38,
        ),
        (lambda: InaHeader.decode(bytes(39)), "INA header", "39 bytes, needs 40", 39),
        (lambda: InaHeader.decode(bytes(40)), "INA header", "magic is 0x00000000, not 0x494e4150", 0),
        (lambda: Bth.decode(bytes(11)), "BTH", "11 bytes, needs 12", 11),
        (lambda: Reth.decode(bytes(15)), "RETH", "15 bytes, needs 16", 15),
        (lambda: Imm.decode(bytes(3)), "IMM", "3 bytes, needs 4", 3),
        (lambda: Aeth.decode(bytes(2)), "AETH", "2 bytes, needs 4", 2),
    ],
)
def test_a_header_that_is_refused(decode: Callable[[], object], layer: str, reason: str, offset: int) -> None:
    with pytest.raises(DecodeError) as caught:
        decode()
    assert (caught.value.layer, caught.value.reason, caught.value.offset) == (layer, reason, offset)


@pytest.mark.parametrize(
    ("frame", "reason", "offset"),
    [
        (put(FRAME, 12, b"\x08\x06"), "ethertype 0x0806 is not IPv4", 12),
        (put(FRAME, 23, b"\x06"), "IP options, a fragment, or not UDP", 14),
        (put(FRAME, 36, b"\x12\xb8"), "UDP port 4792 is not 4791", 36),
        (put(FRAME, 38, b"\x00\x30"), "UDP length 48 in 52 bytes of IP payload", 38),
        (put(FRAME, 42, b"\x0c"), "opcode 0x0c is not handled", 42),
        (
            put(put(FRAME, 16, b"\x00\x3c"), 38, b"\x00\x28"),
            "20 bytes after the BTH of RC_WRITE_ONLY_IMM, needs 24",
            54,
        ),
        (put(FRAME, 80, b"\xff"), "wrong ICRC", len(FRAME) - 4),
    ],
)
def test_a_frame_that_is_refused(frame: bytes, reason: str, offset: int) -> None:
    """A right IP checksum, and in most a wrong ICRC, which is looked at last."""
    whole = bytearray(frame)
    whole[24:26] = bytes(2)
    whole[24:26] = internet_checksum(whole[14:34]).to_bytes(2, "big")
    with pytest.raises(DecodeError) as caught:
        RocePacket.decode_frame(whole, verify=True)
    assert (caught.value.layer, caught.value.reason, caught.value.offset) == ("RoCEv2", reason, offset)


def test_verifying_a_frame_takes_in_the_ip_checksum() -> None:
    """The ICRC leaves it out, so only its own check finds it wrong."""
    broken = put(FRAME, 24, bytes(2))
    assert icrc.verify(broken)
    assert RocePacket.decode_frame(broken).payload == WRITE.payload
    with pytest.raises(DecodeError, match="IPv4: wrong header checksum"):
        RocePacket.decode_frame(broken, verify=True)


def test_the_udp_length_is_read_whole() -> None:
    """Both bytes of it say where the ICRC lies."""
    payload = bytes(range(256)) * 2
    packet = build(bth=Bth(opcode=Opcode.RC_WRITE_LAST, dest_qp=17, psn=7), payload=payload)
    frame = packet.encode_frame()
    assert icrc.verify(frame + b"padding")
    assert not icrc.verify(put(frame, 54 + 400, b"\x55") + b"padding")


def test_defaults_of_a_built_packet() -> None:
    packet = build(bth=Bth(opcode=Opcode.RC_WRITE_MIDDLE, dest_qp=17, psn=7))
    assert (packet.payload, packet.ip.identification, packet.ip.ttl) == (b"", 0, 64)
    assert str(packet) == "10.0.0.2 > 10.0.0.1 RC_WRITE_MIDDLE qp 0x11 psn 0x7"
    chosen = build(bth=packet.bth, ip_id=5, ttl=3)
    assert (chosen.ip.identification, chosen.ip.ttl) == (5, 3)


def test_a_payload_without_pad_shows_none() -> None:
    assert str(WRITE).endswith("payload 8")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            replace(ETHERNET, dst=b"12345"),
            "Ethernet: MAC addresses of 5 and 6 bytes, not 6",
        ),
        (replace(ETHERNET, ethertype=0x10000), "Ethernet: ethertype 0x10000 does not fit 16 bits"),
        (replace(IPV4, src=b"12345"), "IPv4: addresses of 5 and 4 bytes, not 4"),
        (replace(IPV4, options=bytes(41)), "IPv4: 41 bytes of options, needs a multiple of 4 up to 40"),
        (replace(IPV4, options=bytes(44)), "IPv4: 44 bytes of options, needs a multiple of 4 up to 40"),
        (replace(IPV4, flags=8), "IPv4: flags = 8 does not fit 3 bits"),
        (replace(IPV4, total_length=19), "IPv4: total length 19 < header of 20 bytes"),
        (replace(UDP, length=7), "UDP: length 7 < 8"),
        (replace(UDP, checksum=0x10000), "UDP: checksum = 65536 does not fit 16 bits"),
        (replace(UDP, src_port=-1), "UDP: src_port = -1 does not fit 16 bits"),
        (replace(INA, flags=4), "INA header: unknown flags 0x04"),
        (replace(INA, rank=2), "INA header: rank 2 in a ring of 2"),
        (Bth(opcode=0, dest_qp=1 << 24, psn=0), "BTH: dest_qp = 16777216 does not fit 24 bits"),
        (Reth(va=1 << 64, rkey=0, dma_length=0), "RETH: va = 18446744073709551616 does not fit 64 bits"),
        (Reth(va=0, rkey=1 << 32, dma_length=0), "RETH: rkey = 4294967296 does not fit 32 bits"),
        (Reth(va=0, rkey=0, dma_length=1 << 32), "RETH: dma_length = 4294967296 does not fit 32 bits"),
        (Imm(1 << 32), "IMM: value = 4294967296 does not fit 32 bits"),
        (Aeth(syndrome=256, msn=0), "AETH: syndrome = 256 does not fit 8 bits"),
        (Aeth(syndrome=0, msn=1 << 24), "AETH: msn = 16777216 does not fit 24 bits"),
    ],
)
def test_a_header_that_cannot_be_encoded(
    wrong: EthernetHeader | Ipv4Header | UdpHeader | InaHeader | Bth | Reth | Imm | Aeth, message: str
) -> None:
    with pytest.raises(LocalMisuse) as caught:
        wrong.encode()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (replace(WRITE, reth=None), "RC_WRITE_ONLY_IMM needs RETH"),
        (replace(WRITE, imm=None), "RC_WRITE_ONLY_IMM needs IMM"),
        (replace(WRITE, aeth=Aeth(syndrome=SYNDROME_ACK, msn=0)), "RC_WRITE_ONLY_IMM has no AETH"),
        (replace(WRITE, bth=replace(WRITE.bth, opcode=0x0C)), "opcode 0x0c is not handled"),
        (
            replace(WRITE, eth=replace(WRITE.eth, ethertype=0x86DD)),
            "RoCEv2 needs ethertype IPv4 and protocol UDP",
        ),
        (
            replace(WRITE, ip=replace(WRITE.ip, protocol=6)),
            "RoCEv2 needs ethertype IPv4 and protocol UDP",
        ),
        *(
            (wrong, "RoCEv2 goes without IP options and fragments, to UDP port 4791")
            for wrong in (
                replace(WRITE, ip=replace(WRITE.ip, options=bytes(4))),
                replace(WRITE, ip=replace(WRITE.ip, fragment_offset=1)),
                replace(WRITE, udp=replace(WRITE.udp, dst_port=4790)),
            )
        ),
    ],
)
def test_a_packet_that_cannot_be_encoded(wrong: RocePacket, message: str) -> None:
    with pytest.raises(LocalMisuse) as caught:
        wrong.encode_frame()
    assert str(caught.value) == message


def test_extension_bytes_of_an_opcode_that_is_none() -> None:
    with pytest.raises(LocalMisuse, match=r"^opcode 0x0c is not handled$"):
        extension_bytes(0x0C)


def test_the_largest_values_that_fit() -> None:
    assert EthernetHeader.decode(replace(ETHERNET, ethertype=0xFFFF).encode()).ethertype == 0xFFFF
    assert UdpHeader.decode(replace(UDP, length=8).encode()).length == 8, "a datagram without data"
    full = replace(IPV4, options=bytes(40), total_length=60)
    assert Ipv4Header.decode(full.encode()).options == bytes(40)


def test_flags_of_the_ina_header() -> None:
    for flags, last, result, text in (
        (0, False, False, "x1 rank"),
        (FLAG_LAST, True, False, "x1 last rank"),
        (FLAG_RESULT, False, True, "x1 result rank"),
        (FLAG_LAST | FLAG_RESULT, True, True, "x1 last result rank"),
    ):
        header = replace(INA, flags=flags)
        assert (header.is_last, header.is_result) == (last, result)
        assert text in str(header)


def test_a_shape_may_have_64_dimensions() -> None:
    assert signature(Dtype.F32, Op.SUM, (1,) * 64) != signature(Dtype.F32, Op.SUM, (1,) * 63)
