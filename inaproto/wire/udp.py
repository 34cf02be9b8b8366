"""UDP header (RFC 768). RoCEv2 runs with checksum 0, its ICRC covers more; the field is carried as it is."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Self

from inaproto.errors import DecodeError, LocalMisuse

UDP_HEADER_BYTES: Final = 8
ROCE_PORT: Final = 4791
SHARDS_MAX: Final = 63
_SHARD_PORTS: Final = 0xFFC0

_LAYOUT: Final = struct.Struct(">HHHH")


def shard_port(number: int) -> int:
    """The UDP source port of shard ``number`` of a switch, counted from 1 to ``SHARDS_MAX``.

    It lies among those that RoCE NICs use (0xC000 and above), so any NIC that can be told a port, or a flow
    label, can have it.
    """
    return _SHARD_PORTS + number


@dataclass(frozen=True, slots=True, kw_only=True)
class UdpHeader:
    src_port: int
    dst_port: int = ROCE_PORT
    length: int
    """Header and data, in bytes, as the header says."""
    checksum: int = 0

    def encode(self) -> bytes:
        for name in ("src_port", "dst_port", "length", "checksum"):
            value = getattr(self, name)
            if not 0 <= value <= 0xFFFF:
                raise LocalMisuse(f"UDP: {name} = {value} does not fit 16 bits")
        if self.length < UDP_HEADER_BYTES:
            raise LocalMisuse(f"UDP: length {self.length} < {UDP_HEADER_BYTES}")
        return _LAYOUT.pack(self.src_port, self.dst_port, self.length, self.checksum)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Self:
        """Read the header at the start of ``data``, which holds the whole IP payload and nothing after it."""
        if len(data) < UDP_HEADER_BYTES:
            raise DecodeError("UDP", f"{len(data)} bytes, needs {UDP_HEADER_BYTES}", len(data))
        src_port, dst_port, length, checksum = _LAYOUT.unpack_from(data)
        if not UDP_HEADER_BYTES <= length <= len(data):
            raise DecodeError("UDP", f"length {length}, {len(data)} bytes are there", 4)
        return cls(src_port=src_port, dst_port=dst_port, length=length, checksum=checksum)

    def __str__(self) -> str:
        return f"UDP {self.src_port} > {self.dst_port} length {self.length}"
