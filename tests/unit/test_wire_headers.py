"""Ethernet, IPv4 and UDP headers: exact bytes, round trips, and lengths that lie."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.errors import DecodeError, LocalMisuse
from inaproto.wire.ethernet import EthernetHeader
from inaproto.wire.ipv4 import Ipv4Header, internet_checksum
from inaproto.wire.udp import UdpHeader
from tests.unit.wire_strategies import CAPTURED_ACK, ips, macs, u

ETHERNET = EthernetHeader(dst=bytes.fromhex("525400000001"), src=bytes.fromhex("525400000002"))
IPV4 = Ipv4Header(src=bytes([10, 0, 0, 2]), dst=bytes([10, 0, 0, 1]), total_length=48, identification=0x8C45)
UDP = UdpHeader(src_port=0xC121, length=28)


def test_the_captured_headers() -> None:
    assert ETHERNET.encode() == CAPTURED_ACK[:14]
    assert IPV4.encode() == CAPTURED_ACK[14:34]
    assert UDP.encode() == CAPTURED_ACK[34:42]
    assert EthernetHeader.decode(CAPTURED_ACK) == ETHERNET
    assert Ipv4Header.decode(CAPTURED_ACK[14:], verify_checksum=True) == IPV4
    assert UdpHeader.decode(CAPTURED_ACK[34:]) == UDP


def test_headers_are_readable() -> None:
    assert str(ETHERNET) == "52:54:00:00:00:02 > 52:54:00:00:00:01 0x0800"
    assert str(IPV4) == "10.0.0.2 > 10.0.0.1 protocol 17 bytes 48"
    assert str(UDP) == "UDP 49441 > 4791 length 28"


@given(st.builds(EthernetHeader, dst=macs, src=macs, ethertype=u(16)), st.binary(max_size=9))
def test_ethernet_round_trip(header: EthernetHeader, rest: bytes) -> None:
    assert EthernetHeader.decode(memoryview(header.encode() + rest)) == header


@pytest.mark.parametrize("nbytes", range(14))
def test_a_frame_too_short_for_ethernet(nbytes: int) -> None:
    with pytest.raises(DecodeError, match=rf"Ethernet: {nbytes} bytes, needs 14 \(at byte {nbytes}\)"):
        EthernetHeader.decode(bytes(nbytes))


@st.composite
def ipv4_datagrams(draw: st.DrawFn) -> tuple[Ipv4Header, bytes]:
    options = bytes(draw(st.binary(max_size=10))) * 4
    payload = draw(st.binary(max_size=40))
    header = Ipv4Header(
        src=draw(ips),
        dst=draw(ips),
        total_length=20 + len(options) + len(payload),
        protocol=draw(u(8)),
        identification=draw(u(16)),
        flags=draw(u(3)),
        fragment_offset=draw(u(13)),
        ttl=draw(u(8)),
        tos=draw(u(8)),
        options=options,
    )
    return header, payload


@given(ipv4_datagrams(), st.binary(max_size=9))
def test_ipv4_round_trip(datagram: tuple[Ipv4Header, bytes], ethernet_padding: bytes) -> None:
    header, payload = datagram
    encoded = header.encode()
    assert internet_checksum(encoded) == 0
    assert Ipv4Header.decode(encoded + payload + ethernet_padding, verify_checksum=True) == header


@given(st.binary(max_size=41))
def test_the_checksum_sums_to_zero(data: bytes) -> None:
    even = data + bytes(len(data) % 2)
    assert internet_checksum(even + struct.pack(">H", internet_checksum(data))) == 0


def test_a_wrong_ip_checksum_matters_only_when_asked() -> None:
    datagram = bytearray(CAPTURED_ACK[14:])
    datagram[10] ^= 1
    assert Ipv4Header.decode(datagram) == IPV4
    with pytest.raises(DecodeError, match="wrong header checksum"):
        Ipv4Header.decode(datagram, verify_checksum=True)


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (0, b"\x65", "version 6"),
        (0, b"\x44", "header length 16"),
        (0, b"\x4f", "header length 60, 48 bytes are there"),
        (0, b"\x4c", "total length 47, header 48"),
        (2, b"\x00\x13", "total length 19"),
        (2, b"\x00\x31", "total length 49, header 20, 48 bytes are there"),
        (2, b"\xff\xff", "total length 65535"),
    ],
)
def test_ipv4_lengths_that_lie(offset: int, value: bytes, reason: str) -> None:
    datagram = bytearray(CAPTURED_ACK[14:])
    if value == b"\x4c":
        datagram[2:4] = b"\x00\x2f"
    datagram[offset : offset + len(value)] = value
    with pytest.raises(DecodeError, match=f"IPv4: {reason}"):
        Ipv4Header.decode(datagram)


def test_udp_lengths_that_lie() -> None:
    for length in (0, 7, 29, 65535):
        lying = struct.pack(">HHHH", 1, 2, length, 0) + bytes(20)
        with pytest.raises(DecodeError, match=f"UDP: length {length}, 28 bytes are there"):
            UdpHeader.decode(lying)
    with pytest.raises(DecodeError, match="UDP: 7 bytes, needs 8"):
        UdpHeader.decode(bytes(7))


@given(u(16), u(16), st.integers(8, 90), u(16))
def test_udp_round_trip(src_port: int, dst_port: int, length: int, checksum: int) -> None:
    header = UdpHeader(src_port=src_port, dst_port=dst_port, length=length, checksum=checksum)
    assert UdpHeader.decode(header.encode() + bytes(82)) == header


@pytest.mark.parametrize(
    "wrong",
    [
        replace(ETHERNET, dst=b"12345"),
        replace(ETHERNET, ethertype=0x10000),
        replace(IPV4, src=b"12345"),
        replace(IPV4, options=b"123"),
        replace(IPV4, options=bytes(44)),
        replace(IPV4, identification=0x10000),
        replace(IPV4, flags=8),
        replace(IPV4, total_length=19),
        replace(UDP, length=7),
        replace(UDP, src_port=-1),
    ],
    ids=str,
)
def test_what_cannot_be_encoded_is_the_callers_fault(wrong: EthernetHeader | Ipv4Header | UdpHeader) -> None:
    with pytest.raises(LocalMisuse):
        wrong.encode()


def test_fragments_are_recognised() -> None:
    assert not IPV4.is_fragment
    assert replace(IPV4, flags=1).is_fragment
    assert replace(IPV4, flags=0, fragment_offset=1).is_fragment
