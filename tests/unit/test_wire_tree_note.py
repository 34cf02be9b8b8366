"""Notes between switches: layout, round trip, and everything that is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inaproto.errors import DecodeError, LocalMisuse
from inaproto.wire.tree_note import NOTE_BYTES, NoteKind, TreeNote
from tests.unit.switched_ring import SwitchedRing

NOTE = TreeNote(
    kind=NoteKind.REPEATS,
    rank=0x0102,
    ring_id=0x0304_0506,
    epoch=0x0708_090A,
    msg_id=0x0B0C_0D0E,
    offset=0x0F10,
    count=0x1112,
    key=0x1314_1516_1718_191A,
)
FIRST = SwitchedRing(2).packet(0, 0, 0)[:70]
ONLY_IMM = SwitchedRing(2).packet(0, 0, 0, packets=1)[:74]
OPENS = replace(NOTE, kind=NoteKind.OPENS, offset=0, count=0, header=FIRST)


def test_the_layout() -> None:
    assert NOTE.encode().hex() == ("494e415401020102030405060708090a0b0c0d0e0f101112131415161718191a")
    assert len(NOTE.encode()) == NOTE_BYTES


@pytest.mark.parametrize(
    "note",
    [
        NOTE,
        OPENS,
        replace(OPENS, header=ONLY_IMM),
        replace(NOTE, kind=NoteKind.GAP, count=0),
        replace(NOTE, offset=0xFFFF, count=1),
    ],
)
def test_round_trip(note: TreeNote) -> None:
    assert TreeNote.decode(note.encode()) == note
    assert TreeNote.decode(memoryview(note.encode())) == note


def test_words_for_a_log_leave_the_secret_out() -> None:
    assert str(NOTE) == "repeats ring 50595078 rank 258 msg 185339150 packets 3856 to 8225"
    assert str(replace(NOTE, kind=NoteKind.GAP, count=0)).endswith("msg 185339150 packet 3856")
    assert str(OPENS) == "opens ring 50595078 rank 258 msg 185339150"
    assert "key" not in repr(NOTE)


@pytest.mark.parametrize(
    ("data", "why", "offset"),
    [
        (NOTE.encode()[:31], "31 bytes, needs 32", 31),
        (b"J" + NOTE.encode()[1:], "magic is 0x4a4e4154", 0),
        (NOTE.encode()[:4] + b"\2" + NOTE.encode()[5:], "version 2", 4),
        (NOTE.encode()[:5] + b"\0" + NOTE.encode()[6:], "unknown kind 0", 5),
        (NOTE.encode()[:5] + b"\4" + NOTE.encode()[6:], "unknown kind 4", 5),
        (NOTE.encode() + b"\0", "1 bytes behind a note without header", 32),
        (NOTE.encode()[:22] + bytes(2) + NOTE.encode()[24:], "0 packets in a note of kind repeats", 22),
        (NOTE.encode()[:5] + b"\3" + NOTE.encode()[6:], "4370 packets in a note of kind gap", 22),
        (NOTE.encode()[:20] + b"\xff\xff\0\2" + NOTE.encode()[24:], "2 packets from packet 65535 on", 20),
        (OPENS.encode()[:20] + b"\0\1" + OPENS.encode()[22:], "a message opens with its first packet", 20),
        (OPENS.encode()[:22] + b"\0\1" + OPENS.encode()[24:], "a message opens with its first packet", 20),
        (OPENS.encode()[:32], "the header opens no RDMA WRITE", 32),
        (OPENS.encode()[:-1], "69 bytes of header, opcode 0x06 has 70", 32),
        (OPENS.encode() + b"\0", "71 bytes of header", 32),
    ],
)
def test_refusals(data: bytes, why: str, offset: int) -> None:
    with pytest.raises(DecodeError) as refused:
        TreeNote.decode(data)
    assert refused.value.layer == "tree note"
    assert why in refused.value.reason
    assert refused.value.offset == offset


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (42, 7, "opens no RDMA WRITE"),
        (12, 0x86, "no plain IPv4 and UDP"),
        (14, 0x46, "no plain IPv4 and UDP"),
        (20, 0x20, "no plain IPv4 and UDP"),
        (21, 1, "no plain IPv4 and UDP"),
        (23, 6, "no plain IPv4 and UDP"),
        (37, 0, "not of RoCEv2"),
    ],
)
def test_headers_that_are_refused(at: int, value: int, why: str) -> None:
    header = bytearray(FIRST)
    header[at] = value
    with pytest.raises(LocalMisuse, match=why):
        replace(OPENS, header=bytes(header)).encode()
    with pytest.raises(DecodeError, match=why):
        TreeNote.decode(
            NOTE.encode()[:5] + b"\1" + NOTE.encode()[6:20] + bytes(4) + NOTE.encode()[24:] + header
        )


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 1 << 16},
        {"ring_id": -1},
        {"epoch": 1 << 32},
        {"msg_id": 1 << 32},
        {"key": 1 << 64},
        {"count": 0},
    ],
)
def test_values_that_no_decoder_takes_are_not_encoded(change: dict[str, Any]) -> None:
    with pytest.raises(LocalMisuse):
        replace(NOTE, **change).encode()
