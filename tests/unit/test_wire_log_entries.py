"""Entries of a log: there and back, cut anywhere, damaged anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inaproto.errors import DecodeError, LocalMisuse
from inaproto.wire.files.log_entries import ALIGNMENT, HEAD_BYTES, decode_entries, encode_entry


def written(bodies: list[bytes], synced: list[int]) -> tuple[bytes, list[int]]:
    """A file and where each entry ends. ``synced``: how many of the entries before it were on disk."""
    data, ends = b"", [0]
    for index, body in enumerate(bodies):
        parts = encode_entry([memoryview(body[:3]), memoryview(body[3:])], ends[synced[index]])
        data += b"".join(parts)
        ends.append(len(data))
    return data, ends


def bodies_of(data: bytes) -> list[bytes]:
    return [bytes(body) for body in decode_entries(memoryview(data)).bodies]


BODIES = [b"first", b"", b"iPLe" * 9, bytes(17), b"last"]


@given(st.lists(st.binary(max_size=40), max_size=5))
@settings(max_examples=50)
def test_there_and_back(bodies: list[bytes]) -> None:
    data, ends = written(bodies, list(range(len(bodies))))
    entries = decode_entries(memoryview(data))
    assert [bytes(body) for body in entries.bodies] == bodies
    assert entries.end == len(data) == ends[-1]
    assert len(data) % ALIGNMENT == 0


def test_a_log_that_was_cut_ends_at_its_last_whole_entry() -> None:
    data, ends = written(BODIES, list(range(len(BODIES))))
    for cut in range(len(data) + 1):
        entries = decode_entries(memoryview(data[:cut]))
        whole = sum(end <= cut for end in ends[1:])
        assert [bytes(body) for body in entries.bodies] == BODIES[:whole]
        assert entries.end == ends[whole]


def test_any_damage_to_what_was_on_disk_is_told_and_never_read() -> None:
    """All but the last entry were on disk when the next was written."""
    data, ends = written(BODIES, list(range(len(BODIES))))
    for at in range(ends[-2]):
        bad = bytearray(data)
        bad[at] ^= 0x41
        with pytest.raises(DecodeError, match="the file is damaged") as caught:
            decode_entries(memoryview(bad))
        assert caught.value.offset in ends
        assert caught.value.offset <= at


def test_damage_to_what_was_not_on_disk_is_a_torn_end() -> None:
    """Three entries were written without a sync between them: any of them may be torn."""
    data, ends = written(BODIES, [0, 1, 2, 2, 2])
    for at in range(ends[2], ends[-1]):
        bad = bytearray(data)
        bad[at] ^= 0x41
        entries = decode_entries(memoryview(bad))
        torn = next(index for index, end in enumerate(ends[1:]) if at < end)
        assert [bytes(body) for body in entries.bodies] == BODIES[:torn]
        assert entries.end == ends[torn]


def test_an_entry_cannot_have_known_more_on_disk_than_was_there() -> None:
    assert bodies_of(b"".join(encode_entry([memoryview(b"x")], 8))) == []


def test_an_entry_with_a_huge_length_is_none() -> None:
    head = bytearray(b"".join(encode_entry([memoryview(b"x")], 0)))
    head[8:16] = b"\xff" * 8
    assert bodies_of(bytes(head)) == []
    assert len(head) == HEAD_BYTES + 8


def test_padding_is_zeros() -> None:
    data = bytearray(written([b"x"], [0])[0])
    data[-1] = 1
    assert bodies_of(bytes(data)) == []


def test_a_file_is_bytes() -> None:
    with pytest.raises(LocalMisuse, match="contiguous view of bytes"):
        decode_entries(memoryview(bytes(16)).cast("I"))
    with pytest.raises(LocalMisuse, match="contiguous view of bytes"):
        decode_entries(memoryview(bytes(16))[::2])
