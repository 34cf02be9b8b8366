"""Congestion notification packets (CNP) of RoCEv2: what a receiver of marked packets says to their sender.

InfiniBand Architecture Specification, annex A17.9.3: a BTH of opcode 0x81 with BECN set and PSN 0, to the
queue pair whose packets were marked, and 16 bytes that are 0. It is not capable of ECN, so it gets no mark.
Congestion marks are the ECN bits of the traffic class (RFC 3168): 3, "congestion experienced".
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from inaproto.units import Frames
from inaproto.wire.icrc import ICRC_BYTES, seal, verify
from inaproto.wire.ipv4 import internet_checksum

OPCODE_CNP: Final = 0x81
ECN_MASK: Final = 3
ECN_CAPABLE: Final = 2
"""ECT(0)."""
ECN_MARK: Final = 3
TOS_AT: Final = 15
_IP, _UDP, _BTH, _BTH_END = 14, 34, 42, 54
_IP_CHECKSUM: Final = slice(24, 26)
_BECN: Final = 0x40
_RESERVED_BYTES: Final = 16
CNP_BYTES: Final = _BTH_END + _RESERVED_BYTES + ICRC_BYTES
_IPV4: Final = b"\x08\x00\x45"
_ROCE: Final = (4791).to_bytes(2, "big")


class Cnp(NamedTuple):
    dst_mac: bytes
    src_ip: bytes
    dst_ip: bytes
    dest_qp: int


def build_cnp(header: bytes, ip_id: int) -> Frames:
    """One frame. ``header``: that of any packet to the same queue pair, 54 bytes."""
    frame = bytearray(header[:_BTH_END] + bytes(_RESERVED_BYTES + ICRC_BYTES))
    frame[TOS_AT] &= ~ECN_MASK & 0xFF
    frame[16:18] = (CNP_BYTES - _IP).to_bytes(2, "big")
    frame[18:20] = ip_id.to_bytes(2, "big")
    frame[38:40] = (CNP_BYTES - _UDP).to_bytes(2, "big")
    frame[_BTH : _BTH + 2] = bytes((OPCODE_CNP, 0))
    frame[_BTH + 4] = _BECN
    frame[_BTH + 8 : _BTH_END] = bytes(4)
    frame[_IP_CHECKSUM] = bytes(2)
    frame[_IP_CHECKSUM] = internet_checksum(frame[_IP:_UDP]).to_bytes(2, "big")
    seal(frame)
    return np.frombuffer(frame, np.uint8).reshape(1, CNP_BYTES)


def decode_cnp(frame: bytes) -> Cnp | None:
    """None: it is none, or damaged."""
    if len(frame) != CNP_BYTES or frame[_BTH] != OPCODE_CNP:
        return None
    if frame[12:15] != _IPV4 or frame[23] != 17 or frame[36:38] != _ROCE:
        return None
    if int.from_bytes(frame[38:40], "big") != CNP_BYTES - _UDP or not verify(frame):
        return None
    return Cnp(frame[:6], frame[26:30], frame[30:34], int.from_bytes(frame[47:50], "big"))


def mark(frames: Frames) -> bool:
    """Mark IPv4 frames of one row as a congested port does; False: it is not capable of ECN, or marked."""
    row = frames[0]
    if len(row) < _UDP or row[12:15].tobytes() != _IPV4:
        return False
    ecn = int(row[TOS_AT]) & ECN_MASK
    if ecn in (0, ECN_MARK):
        return False
    row[TOS_AT] |= ECN_MARK
    more = ECN_MARK - ecn
    total = (~int.from_bytes(row[_IP_CHECKSUM].tobytes(), "big") & 0xFFFF) + more
    total = (total & 0xFFFF) + (total >> 16)
    row[_IP_CHECKSUM] = np.frombuffer((~total & 0xFFFF).to_bytes(2, "big"), np.uint8)
    return True
