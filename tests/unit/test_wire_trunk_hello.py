"""The first frame on a trunk: layout, round trip, and everything that is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.errors import DecodeError, LocalMisuse
from inaproto.wire.trunk_hello import FRAME_BYTES_MIN, TEXT_BYTES_MAX, TrunkHello

MAC = bytes.fromhex("0201a9fe0101")
HELLO = TrunkHello(mac=MAC, switch="leaf0", peer="spine", boot_id="ab")
FRAME = HELLO.encode()
TEXTS = st.text(min_size=1, max_size=TEXT_BYTES_MAX // 4)


def test_the_layout() -> None:
    frame = HELLO.encode()
    assert frame.hex().startswith("0180c200000e" + MAC.hex() + "88b5" + "494e4154" + "01" + "056c65616630")
    assert len(frame) == FRAME_BYTES_MIN


@given(st.binary(min_size=6, max_size=6), TEXTS, TEXTS, TEXTS)
def test_round_trip(mac: bytes, switch: str, peer: str, boot_id: str) -> None:
    hello = TrunkHello(mac=mac, switch=switch, peer=peer, boot_id=boot_id)
    assert TrunkHello.decode(hello.encode()) == hello


def test_texts_of_one_byte_and_of_the_most_are_taken() -> None:
    for text in ("a", "b" * TEXT_BYTES_MAX):
        hello = TrunkHello(mac=MAC, switch=text, peer=text, boot_id=text)
        assert TrunkHello.decode(hello.encode()) == hello


def ends_in(count: int) -> bytes:
    """A frame whose ``count``-th text ends with it; the others would come after."""
    texts = [b"\x80" + b"a" * TEXT_BYTES_MAX] * count
    return FRAME[:19] + b"".join(texts)


@pytest.mark.parametrize(
    ("frame", "why", "offset"),
    [
        (b"", "is 0 bytes, not 60 or more", 0),
        (FRAME[:-1], "is 59 bytes, not 60 or more", 0),
        (FRAME + b"\0", "more follows", 34),
        (FRAME[:-1] + b"\1", "more follows", 34),
        (FRAME[:34] + b"\1" + FRAME[35:], "more follows", 34),
        (ends_in(3) + b"\0", "more follows", 19 + 3 * 129),
        (b"\xff" * 6 + FRAME[6:], "is another frame", 12),
        (FRAME[:5] + b"\0" + FRAME[6:], "is another frame", 12),
        (FRAME[:12] + b"\x08\x00" + FRAME[14:], "is another frame", 12),
        (FRAME[:13] + b"\xb4" + FRAME[14:], "is another frame", 12),
        (FRAME[:14] + b"J" + FRAME[15:], "magic 0x4a4e4154, version 1", 14),
        (FRAME[:18] + b"\2" + FRAME[19:], "magic 0x494e4154, version 2", 14),
        (FRAME[:19] + b"\0" + FRAME[20:], "a text of 0 bytes in a frame of 60", 19),
        (FRAME[:19] + b"\x81" + bytes(200), "a text of 129 bytes in a frame of 220", 19),
        (FRAME[:19] + b"\x29" + FRAME[20:], "a text of 41 bytes in a frame of 60", 19),
        (FRAME[:25] + b"\x40" + FRAME[26:], "a text of 64 bytes in a frame of 60", 25),
        (ends_in(1), "a text of 0 bytes in a frame of 148", 148),
        (ends_in(2), "a text of 0 bytes in a frame of 277", 277),
        (FRAME[:20] + b"\xff" + FRAME[21:], "is not UTF-8", 19),
        (FRAME[:31] + b"\x02\xc3\x28" + FRAME[34:], "is not UTF-8", 31),
    ],
)
def test_what_is_no_hello_is_refused(frame: bytes, why: str, offset: int) -> None:
    with pytest.raises(DecodeError) as refused:
        TrunkHello.decode(frame)
    assert (refused.value.layer, refused.value.reason, refused.value.offset) == ("trunk hello", why, offset)


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (replace(HELLO, mac=b""), "b'' is not 6 bytes"),
        (replace(HELLO, mac=bytes(7)), r"b'\x00\x00\x00\x00\x00\x00\x00' is not 6 bytes"),
        (replace(HELLO, switch=""), "a text of 0 bytes, not 1 to 128"),
        (replace(HELLO, peer=""), "a text of 0 bytes, not 1 to 128"),
        (replace(HELLO, boot_id="c" * 129), "a text of 129 bytes, not 1 to 128"),
    ],
)
def test_misuse_is_refused(hello: TrunkHello, why: str) -> None:
    with pytest.raises(LocalMisuse) as refused:
        hello.encode()
    assert str(refused.value) == f"trunk hello: {why}"
