"""The invariant CRC of RoCEv2, on whole Ethernet frames.

CRC-32 over eight bytes of ones (the absent local route header), then IPv4, UDP, BTH and all that
follows up to the ICRC itself, with the fields that routers may change taken as ones: type of
service, time to live, IP checksum, UDP checksum and the reserved byte of the BTH (FECN/BECN). It is
stored little-endian. Source: InfiniBand Architecture Specification, annex A17 (RoCEv2); verified
against captures of a kernel's RoCE stack (tests/unit/test_wire_icrc.py).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from inaproto.errors import DecodeError
from inaproto.wire.crc import crc32

IP_OFFSET: Final = 14
UDP_OFFSET: Final = 34
BTH_OFFSET: Final = 42
ICRC_BYTES: Final = 4
MASKED_OFFSETS: Final = (15, 22, 24, 25, 40, 41, 46)
"""Frame offsets that count as 0xff: TOS, TTL, IP checksum (2), UDP checksum (2), BTH reserved byte."""

_LRH_ONES: Final = b"\xff" * 8
_FRAME_BYTES_MIN: Final = BTH_OFFSET + 12 + ICRC_BYTES

Bytes = bytes | bytearray | memoryview


@lru_cache(maxsize=32)
def _mask(header_bytes: int) -> int:
    """The masked bytes of a header as one number, to be ORed in: far quicker than byte by byte."""
    mask = bytearray(header_bytes - IP_OFFSET)
    for offset in MASKED_OFFSETS:
        mask[offset - IP_OFFSET] = 0xFF
    return int.from_bytes(_LRH_ONES + mask, "big")


def masked_header(frame: Bytes, header_bytes: int) -> bytes:
    """The bytes that the ICRC covers before the payload: eight ones, then the masked header."""
    header = int.from_bytes(frame[IP_OFFSET:header_bytes], "big")
    return (header | _mask(header_bytes)).to_bytes(len(_LRH_ONES) + header_bytes - IP_OFFSET, "big")


def _end(frame: Bytes) -> int:
    """Offset just past the ICRC, from the UDP length, checked against the frame."""
    if len(frame) < _FRAME_BYTES_MIN:
        raise DecodeError("icrc", f"frame of {len(frame)} bytes is shorter than any RoCEv2 packet")
    end = UDP_OFFSET + int.from_bytes(frame[38:40], "big")
    if end < _FRAME_BYTES_MIN or end > len(frame):
        raise DecodeError("icrc", f"UDP length ends at {end} in a frame of {len(frame)} bytes", 38)
    return end


def icrc(frame: Bytes) -> int:
    """ICRC that an IPv4 RoCEv2 frame (no IP options, no FCS) should carry; the present one is ignored."""
    end = _end(frame)
    view = memoryview(frame)
    return crc32(view[BTH_OFFSET + 12 : end - ICRC_BYTES], crc32(masked_header(view, BTH_OFFSET + 12)))


def seal(frame: bytearray) -> None:
    """Write the right ICRC into ``frame``."""
    end = _end(frame)
    frame[end - ICRC_BYTES : end] = icrc(frame).to_bytes(4, "little")


def verify(frame: Bytes) -> bool:
    """Whether ``frame`` carries the right ICRC. Raises ``DecodeError`` when no ICRC can be found."""
    end = _end(frame)
    return int.from_bytes(frame[end - ICRC_BYTES : end], "little") == icrc(frame)
