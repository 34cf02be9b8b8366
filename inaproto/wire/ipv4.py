"""IPv4 header (RFC 791): options are carried as bytes, the checksum is computed.

Invariants: ``20 <= header bytes <= total_length <= len(data)`` for every header that decodes;
``encode(decode(b)) == b`` if b's checksum is right.

``decode`` verifies the checksum only when asked: the RoCE ICRC leaves it out, routers rewrite it,
and NICs deliver frames to themselves with it unfilled.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Self

from inaproto.errors import DecodeError, LocalMisuse

IPV4_HEADER_BYTES: Final = 20
"""Without options."""
PROTOCOL_UDP: Final = 17
FLAG_DONT_FRAGMENT: Final = 2
FLAG_MORE_FRAGMENTS: Final = 1

_LAYOUT: Final = struct.Struct(">BBHHHBBH4s4s")
_RANGES: Final = (
    ("tos", 8),
    ("total_length", 16),
    ("identification", 16),
    ("flags", 3),
    ("fragment_offset", 13),
    ("ttl", 8),
    ("protocol", 8),
)


def ip_text(ip: bytes) -> str:
    """``10.0.0.1``."""
    return ".".join(map(str, ip))


def internet_checksum(data: bytes | bytearray | memoryview) -> int:
    """RFC 1071: ones' complement of the ones' complement sum of big-endian 16-bit words."""
    even = len(data) & ~1
    total: int = sum(struct.unpack(f">{even // 2}H", data[:even]))
    if len(data) & 1:
        total += data[-1] << 8
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Ipv4Header:
    src: bytes
    dst: bytes
    total_length: int
    """Header and everything behind it, in bytes, as the header says."""
    protocol: int = PROTOCOL_UDP
    identification: int = 0
    flags: int = FLAG_DONT_FRAGMENT
    fragment_offset: int = 0
    """In units of 8 bytes."""
    ttl: int = 64
    tos: int = 0
    options: bytes = b""
    """Raw option bytes, a multiple of 4, at most 40."""

    @property
    def header_bytes(self) -> int:
        return IPV4_HEADER_BYTES + len(self.options)

    @property
    def is_fragment(self) -> bool:
        return bool(self.flags & FLAG_MORE_FRAGMENTS) or self.fragment_offset != 0

    def encode(self) -> bytes:
        """The header with its checksum."""
        if len(self.src) != 4 or len(self.dst) != 4:
            raise LocalMisuse(f"IPv4: addresses of {len(self.src)} and {len(self.dst)} bytes, not 4")
        if len(self.options) > 40 or len(self.options) % 4:
            raise LocalMisuse(f"IPv4: {len(self.options)} bytes of options, needs a multiple of 4 up to 40")
        for name, bits in _RANGES:
            value = getattr(self, name)
            if not 0 <= value < 1 << bits:
                raise LocalMisuse(f"IPv4: {name} = {value} does not fit {bits} bits")
        if self.total_length < self.header_bytes:
            raise LocalMisuse(f"IPv4: total length {self.total_length} < header of {self.header_bytes} bytes")
        header = bytearray(
            _LAYOUT.pack(
                0x40 | self.header_bytes // 4,
                self.tos,
                self.total_length,
                self.identification,
                self.flags << 13 | self.fragment_offset,
                self.ttl,
                self.protocol,
                0,
                self.src,
                self.dst,
            )
        )
        header += self.options
        header[10:12] = internet_checksum(header).to_bytes(2, "big")
        return bytes(header)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, *, verify_checksum: bool = False) -> Self:
        """Read the header at the start of ``data``: the whole datagram, Ethernet padding allowed after it."""
        if len(data) < IPV4_HEADER_BYTES:
            raise DecodeError("IPv4", f"{len(data)} bytes, needs {IPV4_HEADER_BYTES}", len(data))
        version_ihl, tos, total_length, identification, fragment, ttl, protocol, _, src, dst = (
            _LAYOUT.unpack_from(data)
        )
        if version_ihl >> 4 != 4:
            raise DecodeError("IPv4", f"version {version_ihl >> 4}", 0)
        header_bytes = (version_ihl & 15) * 4
        if not IPV4_HEADER_BYTES <= header_bytes <= len(data):
            raise DecodeError("IPv4", f"header length {header_bytes}, {len(data)} bytes are there", 0)
        if not header_bytes <= total_length <= len(data):
            raise DecodeError(
                "IPv4", f"total length {total_length}, header {header_bytes}, {len(data)} bytes are there", 2
            )
        if verify_checksum and internet_checksum(data[:header_bytes]) != 0:
            raise DecodeError("IPv4", "wrong header checksum", 10)
        return cls(
            src=src,
            dst=dst,
            total_length=total_length,
            protocol=protocol,
            identification=identification,
            flags=fragment >> 13,
            fragment_offset=fragment & 0x1FFF,
            ttl=ttl,
            tos=tos,
            options=bytes(data[IPV4_HEADER_BYTES:header_bytes]),
        )

    def __str__(self) -> str:
        return f"{ip_text(self.src)} > {ip_text(self.dst)} protocol {self.protocol} bytes {self.total_length}"
