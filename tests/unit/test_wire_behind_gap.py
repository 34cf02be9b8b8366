"""What a NAK says of packets behind a gap, as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.wire.behind_gap import BEHIND_PACKETS_MAX, AtSwitch, BehindGap, decode_behind


@given(reach=st.integers(1, BEHIND_PACKETS_MAX), seed=st.integers(0))
def test_what_is_encoded_is_decoded(reach: int, seed: int) -> None:
    told = BehindGap(reach, seed & (1 << reach) - 1)
    data = told.encode()
    assert len(data) % 4 == 0
    assert len(data) <= 4 + BEHIND_PACKETS_MAX // 8
    assert BehindGap.decode(data) == told


def test_the_layout() -> None:
    told = BehindGap(reach=40, arrived=0b110 | 1 << 39)
    assert told.encode() == bytes.fromhex("00000028 06000000 80000000")
    assert BehindGap(1, 0).encode() == bytes.fromhex("00000001")


@pytest.mark.parametrize(
    ("reach", "arrived"),
    [
        (BEHIND_PACKETS_MAX, (1 << BEHIND_PACKETS_MAX) - 1),
        (BEHIND_PACKETS_MAX, 1),
        (33, 1 << 32),
        (36, 1 << 35),
    ],
)
def test_the_longest_and_those_of_just_one_more_word(reach: int, arrived: int) -> None:
    told = BehindGap(reach, arrived)
    assert len(told.encode()) == 4 + 4 * -(-arrived.bit_length() // 32)
    assert BehindGap.decode(told.encode()) == told


@pytest.mark.parametrize(
    "data",
    [
        "",
        "000001",
        "0000000001",
        "00000000",
        "00001001",
        "00000001 02000000",
        "00000000 01000000",
        "00000001" + "00" * 516,
    ],
)
def test_what_no_receiver_sends_is_nothing(data: str) -> None:
    assert BehindGap.decode(bytes.fromhex(data)) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    told = BehindGap.decode(data)
    assert told is None or told.arrived.bit_length() <= told.reach <= BEHIND_PACKETS_MAX


# ---- of a switch (docs/protocol.md 6.14) -------------------------------------------------------------


@given(reach=st.integers(0, BEHIND_PACKETS_MAX), seed=st.integers(0))
def test_what_a_switch_says_is_decoded(reach: int, seed: int) -> None:
    told = AtSwitch(reach, seed & (1 << reach + 1) - 2)
    data = told.encode()
    assert len(data) % 4 == 0
    assert decode_behind(data) == AtSwitch.decode(data) == told
    assert BehindGap.decode(data) is None


def test_the_layout_of_what_a_switch_says() -> None:
    assert AtSwitch(reach=40, arrived=0b110 | 1 << 40).encode() == bytes.fromhex("80000028 06000000 00010000")
    assert AtSwitch(0, 0).encode() == bytes.fromhex("80000000")


@pytest.mark.parametrize(
    "data",
    [
        "800000",
        "8000000001",
        "80001001",
        "80000001 01000000",
        "80000001 04000000",
        "80000000 02000000",
        "80010001",
        "80001000" + "00" * 520,
    ],
)
def test_what_no_switch_says_is_nothing(data: str) -> None:
    assert decode_behind(bytes.fromhex(data)) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_nothing(data: bytes) -> None:
    told = decode_behind(b"\x80" + data)
    assert told is None or isinstance(told, AtSwitch)
    assert decode_behind(data) in (AtSwitch.decode(data), BehindGap.decode(data))


def test_a_receiver_and_a_switch_are_told_apart() -> None:
    assert decode_behind(BehindGap(3, 0b110).encode()) == BehindGap(3, 0b110)
    assert decode_behind(AtSwitch(3, 0b110).encode()) == AtSwitch(3, 0b110)
    assert decode_behind(b"") is None
