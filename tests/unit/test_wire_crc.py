"""The linear algebra of CRC-32: tables of one and two bytes, their shape, and that nobody can write them."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.wire import crc


@given(st.binary(min_size=2, max_size=40), st.data())
def test_pair_table_is_the_effect_of_two_neighbouring_bytes(data: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, len(data) - 2))
    difference = draw.draw(st.integers(0, 0xFFFF))
    other = bytearray(data)
    other[at] ^= difference >> 8
    other[at + 1] ^= difference & 0xFF
    table = crc.pair_table(len(data) - 2 - at)
    assert zlib.crc32(other) == zlib.crc32(data) ^ int(table[difference])


@pytest.mark.parametrize(("table", "entries"), [(crc.byte_table, 256), (crc.pair_table, 65536)])
def test_tables_are_shared_so_they_are_read_only(table: object, entries: int) -> None:
    assert callable(table)
    made = table(1234)
    assert made is table(1234), "made once"
    assert made.shape == (entries,)
    assert made.dtype == np.uint32
    assert made[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        made[0] = 1


def test_crc_of_rows() -> None:
    rows = np.arange(3 * 5, dtype=np.uint8).reshape(3, 5)
    assert crc.crc_rows(rows).tolist() == [zlib.crc32(row.tobytes()) for row in rows]
    assert crc.crc_rows(rows).dtype == np.uint32
    assert crc.crc_rows(rows[:0]).tolist() == []


def test_crc_of_rows_that_are_copied() -> None:
    rows = np.arange(3 * 5, dtype=np.uint8).reshape(3, 5)
    target = np.zeros((3, 9), np.uint8)
    assert crc.copy_rows(rows, target[:, 2:7]).tolist() == [zlib.crc32(row.tobytes()) for row in rows]
    assert target[:, 2:7].tolist() == rows.tolist()
    assert not target[:, :2].any()
    assert not target[:, 7:].any()
