"""VLAN tags of frames in blocks: which are taken off, and that all are put back as they were."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.units import Frames
from inaproto.wire.outer import dress, is_dressed, peel
from inaproto.wire.vlan import vlan_of, with_tag
from tests.unit.test_wire_connection import FRAME, put, tagged

TAG = b"\x81\0\x60\x64"


def block(*frames: bytes) -> Frames:
    return np.frombuffer(b"".join(frames), np.uint8).reshape(len(frames), -1)


def wearing(tag: bytes, frame: bytes = FRAME) -> bytes:
    return frame[:12] + tag + frame[12:]


@pytest.mark.parametrize(
    ("tag", "vlan"), [(b"", 0), (TAG, 100), (b"\x81\0\xff\xff", 4095), (b"\x81\0\xe0\0", 0)]
)
def test_the_number_of_a_vlan(tag: bytes, vlan: int) -> None:
    assert vlan_of(tag) == vlan


@given(st.lists(st.sampled_from([b"", TAG, b"\x81\0\0\1", b"\x88\xa8\0\1"]), max_size=12), st.integers(1, 4))
def test_frames_stay_in_order_and_every_tag_can_be_put_back(tags: list[bytes], together: int) -> None:
    frames = [wearing(tag, FRAME + (bytes(4) if not tag else b"")) for tag in tags]
    blocks = [block(*frames[at : at + together]) for at in range(0, len(frames), together)]
    found = peel(blocks)
    assert [row.tobytes() for tag, parts in found for part in parts for row in dress(part, tag)] == frames
    for tag, parts in found:
        if tag:
            assert {row.tobytes() for part in parts for row in part} == {FRAME}


def test_groups_are_as_long_as_can_be_and_what_is_plain_is_not_copied() -> None:
    plain = block(FRAME, FRAME)
    both = block(wearing(TAG), wearing(TAG), wearing(b"\x81\0\0\1"))
    found = peel([plain, both, plain, plain])
    assert [(tag, [len(part) for part in parts]) for tag, parts in found] == [
        (b"", [2]),
        (TAG, [2]),
        (b"\x81\0\0\1", [1]),
        (b"", [2, 2]),
    ]
    assert found[0][1][0] is plain
    assert dress(plain, b"") is plain
    assert with_tag(plain, b"") is plain
    assert [row.tobytes() for row in with_tag(plain, TAG)] == [wearing(TAG)] * 2


@pytest.mark.parametrize(
    "frame",
    [
        FRAME,
        tagged(FRAME, b"\x88\xa8"),
        tagged(FRAME, b"\x81\0", b"\x81\0"),
        tagged(FRAME, b"\x81\1"),
        wearing(TAG, put(12, b"\x08\x06")),
        wearing(TAG, put(14, b"\x46")),
        wearing(TAG, put(23, b"\x06")),
        wearing(TAG, put(36, b"\x12\xb6")),
        wearing(TAG)[:61],
        b"",
        FRAME[:13],
    ],
)
def test_frames_that_are_left_as_they_are(frame: bytes) -> None:
    assert not is_dressed(block(frame) if frame else np.empty((1, 0), np.uint8))
    if frame:
        assert [(tag, [part.tobytes() for part in parts]) for tag, parts in peel([block(frame)])] == [
            (b"", [frame])
        ]


def test_the_shortest_that_can_have_a_tag_loses_it() -> None:
    shortest = wearing(TAG)[:62]
    assert is_dressed(block(shortest))
    ((tag, (part,)),) = peel([block(shortest)])
    assert (tag, part.tobytes()) == (TAG, FRAME[:58])


def test_frames_of_a_block_are_judged_one_by_one() -> None:
    mixed = block(wearing(TAG), wearing(b"\x88\xa8\0\1"))
    assert is_dressed(mixed), "its first frame is"
    assert [(tag, [len(part) for part in parts]) for tag, parts in peel([mixed])] == [
        (TAG, [1]),
        (b"", [1]),
    ]
