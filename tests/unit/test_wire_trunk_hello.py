"""The first frame on a trunk: layout, round trip, and everything that is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.errors import DecodeError, LocalMisuse
from inaproto.wire.trunk_hello import FRAME_BYTES_MIN, TEXT_BYTES_MAX, TrunkHello

MAC = bytes.fromhex("0201a9fe0101")
HELLO = TrunkHello(mac=MAC, switch="leaf0", peer="spine", boot_id="ab")
TEXTS = st.text(min_size=1, max_size=TEXT_BYTES_MAX // 4)


def test_the_layout() -> None:
    frame = HELLO.encode()
    assert frame.hex().startswith("0180c200000e" + MAC.hex() + "88b5" + "494e4154" + "01" + "056c65616630")
    assert len(frame) == FRAME_BYTES_MIN


@given(st.binary(min_size=6, max_size=6), TEXTS, TEXTS, TEXTS)
def test_round_trip(mac: bytes, switch: str, peer: str, boot_id: str) -> None:
    hello = TrunkHello(mac=mac, switch=switch, peer=peer, boot_id=boot_id)
    assert TrunkHello.decode(hello.encode()) == hello


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (HELLO.encode()[:-1], "is 59 bytes, not 60 or more"),
        (HELLO.encode() + b"\0", "more follows"),
        (HELLO.encode()[:-1] + b"\1", "more follows"),
        (b"\xff" * 6 + HELLO.encode()[6:], "is another frame"),
        (HELLO.encode()[:12] + b"\x08\x00" + HELLO.encode()[14:], "is another frame"),
        (HELLO.encode()[:18] + b"\2" + HELLO.encode()[19:], "version 2"),
        (HELLO.encode()[:19] + b"\0" + HELLO.encode()[20:], "a text of 0 bytes"),
        (HELLO.encode()[:19] + b"\x81" + bytes(200), "a text of 129 bytes"),
        (HELLO.encode()[:19] + b"\x40" + HELLO.encode()[20:], "a text of 64 bytes in a frame of 60"),
        (HELLO.encode()[:20] + b"\xff" + HELLO.encode()[21:], "is not UTF-8"),
    ],
)
def test_what_is_no_hello_is_refused(frame: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        TrunkHello.decode(frame)


@pytest.mark.parametrize(
    "hello",
    [
        TrunkHello(mac=b"", switch="a", peer="b", boot_id="c"),
        TrunkHello(mac=MAC, switch="", peer="b", boot_id="c"),
        TrunkHello(mac=MAC, switch="a", peer="b", boot_id="c" * (TEXT_BYTES_MAX + 1)),
    ],
)
def test_misuse_is_refused(hello: TrunkHello) -> None:
    with pytest.raises(LocalMisuse):
        hello.encode()
