"""The ICRC against captures of a kernel's stack, and what it must not and must cover."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.errors import DecodeError
from inaproto.wire import crc, icrc
from inaproto.wire.roce import RocePacket
from tests.unit.wire_strategies import CAPTURED_ACK, CAPTURED_NAK, packets


def reference(frame: bytes) -> int:
    """The definition in a few lines, bytewise, sharing no code with the package."""
    end = 34 + int.from_bytes(frame[38:40], "big")
    covered = bytearray(b"\xff" * 8 + frame[14 : end - 4])
    for offset in (1, 8, 10, 11, 26, 27, 32):
        covered[8 + offset] = 0xFF
    return zlib.crc32(covered)


@pytest.mark.parametrize("frame", [CAPTURED_ACK, CAPTURED_NAK])
def test_captured_icrc(frame: bytes) -> None:
    assert icrc.icrc(frame) == int.from_bytes(frame[-4:], "little")
    assert icrc.verify(frame)
    unsealed = bytearray(frame[:-4] + bytes(4))
    assert not icrc.verify(unsealed)
    icrc.seal(unsealed)
    assert unsealed == frame


@given(packets())
def test_the_definition(packet: RocePacket) -> None:
    assert packet.icrc == reference(packet.encode_frame())


@given(packets(), st.data())
def test_every_covered_bit_counts_and_no_other(packet: RocePacket, data: st.DataObject) -> None:
    frame = bytearray(packet.encode_frame())
    offset = data.draw(st.integers(0, len(frame) - 1))
    if 38 <= offset < 40:
        return  # the UDP length says where the ICRC lies
    frame[offset] ^= 1 << data.draw(st.integers(0, 7))
    covered = offset >= 14 and offset not in icrc.MASKED_OFFSETS
    assert icrc.verify(frame) is not covered


@given(st.binary(max_size=70))
def test_any_bytes_get_an_answer_or_a_decode_error(data: bytes) -> None:
    try:
        icrc.verify(data)
    except DecodeError:
        assert len(data) < 58 or int.from_bytes(data[38:40], "big") != len(data) - 34


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_shift_is_the_share_of_the_first_part(a: bytes, b: bytes) -> None:
    assert crc.crc32(a + b) == crc.shift(crc.crc32(a), len(b)) ^ crc.crc32(b)
    assert crc.crc32(a) == zlib.crc32(a)


@given(st.binary(min_size=1, max_size=200), st.data())
def test_byte_table_is_the_effect_of_one_byte(data: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, len(data) - 1))
    difference = draw.draw(st.integers(0, 255))
    other = bytearray(data)
    other[at] ^= difference
    table = crc.byte_table(len(data) - 1 - at)
    assert crc.crc32(bytes(other)) == crc.crc32(data) ^ int(table[difference])
