"""Congestion notification packets and marks, as bytes (docs/protocol.md 4.5)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from inaproto.units import Frames
from inaproto.wire.cnp import Cnp, build_cnp, decode_cnp, mark
from inaproto.wire.icrc import seal, verify
from inaproto.wire.ipv4 import internet_checksum

HERE, THERE = bytes.fromhex("52540000000a"), bytes.fromhex("52540000000b")
SRC, DST = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
QP = 0x123456


def header(tos: int = 0xBA, ip_id: int = 0) -> bytearray:
    """Of a packet of a message: DSCP 46, ECT(0)."""
    ip = bytearray(b"\x45" + bytes([tos]) + b"\x04\x00" + ip_id.to_bytes(2, "big") + b"\x40\0\x40\x11\0\0")
    ip += SRC + DST
    ip[10:12] = internet_checksum(ip).to_bytes(2, "big")
    udp = b"\xc0\0\x12\xb7\x03\xec\0\0"
    bth = b"\x07\x40\xff\xff\0" + QP.to_bytes(3, "big") + b"\x80\0\1\7"
    return bytearray(THERE + HERE + b"\x08\0" + ip + udp + bth)


def built() -> bytes:
    return build_cnp(bytes(header()), 0x1234).tobytes()


def test_the_layout() -> None:
    """Annex A17.9.3; DSCP is that of the connection, and the packet is not capable of ECN."""
    assert build_cnp(bytes(header()), 0).shape == (1, 74)
    frame = built()
    assert frame[:16].hex() == "52540000000b52540000000a080045b8"
    assert frame[16:24].hex() == "003c123440004011"
    assert internet_checksum(frame[14:34]) == 0
    assert frame[26:42] == SRC + DST + bytes.fromhex("c00012b700280000")
    assert frame[42:70] == bytes.fromhex("8100ffff40123456") + bytes(20)
    assert len(frame) == 74
    assert verify(frame)


def test_what_is_built_is_decoded() -> None:
    assert decode_cnp(built()) == Cnp(THERE, SRC, DST, QP)


def changed(at: int, value: int) -> bytes:
    """Sealed again, where the length lets that be."""
    frame = bytearray(built())
    frame[at] = value
    if at not in (38, 39):
        seal(frame)
    return bytes(frame)


@pytest.mark.parametrize(
    "frame",
    [
        built()[:-1],
        built() + b"\0",
        changed(42, 0x11),
        changed(14, 0x46),
        changed(23, 6),
        changed(37, 0xB8),
        changed(39, 0x27),
        changed(38, 1),
        built()[:-1] + bytes([built()[-1] ^ 1]),
        built()[:5] + b"",
    ],
    ids=["cut", "longer", "opcode", "options", "no UDP", "port", "length", "long", "damaged", "no header"],
)
def test_what_is_no_notification_says_nothing(frame: bytes) -> None:
    assert decode_cnp(frame) is None


def row(frame: bytes | bytearray) -> Frames:
    return np.frombuffer(bytearray(frame), np.uint8).reshape(1, -1)


def test_a_mark_keeps_dscp_and_a_right_checksum() -> None:
    """Also where the checksum is carried round."""
    carried = int.from_bytes(header()[24:26], "big")
    for ip_id in (0, 1, carried, carried - 1, 0xFFFF):
        frames = row(header(ip_id=ip_id)[:34])
        assert mark(frames)
        assert frames[0, 15] == 0xBB
        assert internet_checksum(frames[0, 14:].tobytes()) == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame[:33],
        lambda frame: frame[:12] + b"\x86\xdd\x60" + frame[15:],
        lambda frame: frame[:15] + b"\xb8" + frame[16:],
        lambda frame: frame[:15] + b"\xbb" + frame[16:],
    ],
    ids=["cut", "IPv6", "not capable", "marked"],
)
def test_what_cannot_be_marked_stays_as_it_is(change: Callable[[bytes], bytes]) -> None:
    frames = row(change(bytes(header())))
    before = frames.tobytes()
    assert not mark(frames)
    assert frames.tobytes() == before
