"""Framing and limits of control messages: any bytes give records or a ``DecodeError``."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgpack import fallback

from inaproto.errors import DecodeError, LocalMisuse
from inaproto.wire.control import (
    ARRAY_ITEMS_MAX,
    DEPTH_MAX,
    MAP_ITEMS_MAX,
    MESSAGE_BYTES_MAX,
    ControlDecoder,
    decode_control,
    encode_control,
)
from tests.unit.wire_strategies import u

ENVELOPE = {"v": 1, "type": "ping", "id": 7}


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def packed(**fields: Any) -> bytes:
    body: bytes = msgpack.packb(ENVELOPE | fields, use_bin_type=True)
    return body


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=5), below, max_size=4),
    max_leaves=12,
)
field_names = st.text(min_size=1, max_size=8).filter(lambda name: name not in {*ENVELOPE, "v_max"})


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


@given(st.text(min_size=1, max_size=16), u(64), st.dictionaries(field_names, values, max_size=4))
def test_round_trip(kind: str, ident: int, fields: dict[str, Any]) -> None:
    if depth(fields) > DEPTH_MAX:
        with pytest.raises(LocalMisuse, match="nested deeper than 8 levels"):
            encode_control(kind, ident, **fields)
        return
    encoded = encode_control(kind, ident, **fields)
    assert ControlDecoder().feed(encoded) == [{"v": 1, "type": kind, "id": ident} | fields]


class Colour(IntEnum):
    RED = 1


odd_leaves = st.sampled_from(
    [
        bytearray(b"x"),
        memoryview(b"x"),
        Colour.RED,
        msgpack.Timestamp(1, 2),
        msgpack.ExtType(5, b"x"),
        1 << 64,
        -(1 << 63),
        "\ud800",
        {1},
        [0] * (ARRAY_ITEMS_MAX + 1),
        dict.fromkeys(map(str, range(MAP_ITEMS_MAX + 1))),
    ]
)
odd_values = st.recursive(
    st.none() | st.integers(0, 9) | odd_leaves,
    lambda below: (
        st.lists(below, min_size=1, max_size=2)
        | st.tuples(below)
        | st.dictionaries(st.sampled_from(["a", "b", b"a", 3]), below, max_size=2)
    ),
    max_leaves=12,
)


@given(
    st.sampled_from(["ping", "", "x" * 65, 7]),
    st.sampled_from([0, 1 << 64, -1, True, Colour.RED]),
    odd_values,
)
def test_what_is_encoded_is_what_a_peer_takes(kind: Any, ident: Any, value: Any) -> None:
    try:
        packed_record = msgpack.packb({"v": 1, "type": kind, "id": ident, "x": value}, use_bin_type=True)
        taken = decode_control(packed_record)
    except (ValueError, TypeError, OverflowError, DecodeError):
        with pytest.raises(LocalMisuse):
            encode_control(kind, ident, x=value)
    else:
        assert ControlDecoder().feed(encode_control(kind, ident, x=value)) == [taken]


@given(st.lists(st.integers(0, 5), max_size=6), st.data())
def test_how_a_stream_is_cut_makes_no_difference(sizes: list[int], data: st.DataObject) -> None:
    stream = b"".join(encode_control("ping", index, body="x" * size) for index, size in enumerate(sizes))
    decoder = ControlDecoder()
    records = []
    at = 0
    while at < len(stream):
        step = data.draw(st.integers(1, len(stream) - at))
        records += decoder.feed(stream[at : at + step])
        at += step
    decoder.finish()
    assert [record["id"] for record in records] == list(range(len(sizes)))
    assert decoder.buffered_bytes == 0


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xc1", "not msgpack"),
        (b"\x80\x80", "not msgpack"),
        (packed()[:-1], "not msgpack"),
        (b"\xc0", "a message is a map, not NoneType"),
        (b"\x93\x01\x02\x03", "a message is a map, not list"),
        (b"\x80", "v is None, this side speaks 1"),
        (
            packed(v=2),
            "of another release of inaproto: it speaks version 2 of the control protocol, this side 1",
        ),
        (packed(v=0), "v is 0, this side speaks 1"),
        (packed(v=1 << 16), "v is 65536, this side speaks 1"),
        (packed(v=True), "v is True"),
        (packed(v=1.0), "v is 1.0"),
        (packed(type=b"ping"), "type is b'ping', not a text"),
        (packed(type=""), "type is ''"),
        (packed(type="x" * 65), "not a text of 1 to 64 bytes"),
        (packed(id=-1), "id of 'ping' is -1"),
        (packed(id=True), "id of 'ping' is True"),
        (packed(id="7"), "id of 'ping' is '7'"),
        (packed(x=msgpack.ExtType(5, b"abc")), "extension type 5 is not allowed"),
        (packed(x=msgpack.ExtType(5, b"")), "extension type 5 is not allowed"),
        (packed(x=msgpack.Timestamp(1, 2)), "a value of kind Timestamp is not allowed"),
        (b"\x84" + packed()[1:] + b"\xa1x\xd4\xff\x00", "not msgpack"),
        (packed(x={b"key": 1}), "map key b'key' is not text"),
        (packed(x={3: 1}), "not msgpack"),
        (packed(w=[0], x=[msgpack.Timestamp(1, 2)]), "a value of kind Timestamp is not allowed"),
        (b"\x84" + packed()[1:] + b"\xa1v\x01", "map key 'v' comes twice"),
        (b"\x84" + packed()[1:] + b"\xa2id\x01", "map key 'id' comes twice"),
        (b"\x84" + packed()[1:] + b"\xa1x\xa2\xff\xfe", "not msgpack"),
        (b"\x84" + packed()[1:] + b"\xa2\xff\xfe\x01", "not msgpack"),
        (b"\x84" + packed()[1:] + b"\xa1x\xa3\xed\xa0\x80", "not msgpack"),
        (b"\x84" + packed()[1:] + b"\xa1x\xdd\xff\xff\xff\xff", "not msgpack"),
        (b"\x84" + packed()[1:] + b"\xa1x\xdf\xff\xff\xff\xff", "not msgpack"),
        (b"\x84" + packed()[1:] + b"\xa1x\xdb\xff\xff\xff\xff", "not msgpack"),
        (b"\x84" + packed()[1:] + b"\xa1x\xc6\xff\xff\xff\xff", "not msgpack"),
        (packed(x=[0] * 65537), "not msgpack"),
        (b"\x91" * 100_000 + b"\xc0", "not msgpack"),
        (b"\x91" * 700 + b"\xc0", ""),
        (bytes(MESSAGE_BYTES_MAX + 1), "message of 1048577 bytes"),
    ],
)
def test_refused(body: bytes, reason: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_control(body)
    assert caught.value.layer == "control"
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    "container", [lambda below: [below], lambda below: {"k": below}], ids=["array", "map"]
)
def test_depth(container: Any) -> None:
    value: Any = container(1)
    for _ in range(DEPTH_MAX - 2):
        value = container(value)
    assert decode_control(packed(x=value))["x"] == value
    assert ControlDecoder().feed(encode_control("ping", 7, x=value))[0]["x"] == value
    with pytest.raises(DecodeError, match="nested deeper than 8 levels"):
        decode_control(packed(x=container(value)))
    with pytest.raises(LocalMisuse, match="nested deeper than 8 levels"):
        encode_control("ping", 7, x=container(value))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([0] * ARRAY_ITEMS_MAX, ""),
        ([0] * (ARRAY_ITEMS_MAX + 1), "65537 items in one list"),
        (dict.fromkeys(map(str, range(MAP_ITEMS_MAX))), ""),
        (dict.fromkeys(map(str, range(MAP_ITEMS_MAX + 1))), "4097 items in one dict"),
        ([msgpack.Timestamp(1, 2)], "a value of kind Timestamp is not allowed"),
        ({"a": {b"key": 1}}, "map key b'key' is not text"),
    ],
)
def test_why_no_peer_would_take_it(value: Any, reason: str) -> None:
    if not reason:
        assert ControlDecoder().feed(encode_control("ping", 7, x=value))[0]["x"] == value
        return
    with pytest.raises(LocalMisuse) as caught:
        encode_control("ping", 7, x=value)
    assert str(caught.value).endswith(f"control ping: no peer would take it: {reason}")


@pytest.mark.parametrize("prefix", [0, MESSAGE_BYTES_MAX + 1, 0xFFFF_FFFF])
def test_a_bad_length_is_refused_when_its_prefix_arrives(prefix: int) -> None:
    decoder = ControlDecoder()
    assert decoder.feed(struct.pack(">I", prefix)[:3]) == []
    with pytest.raises(DecodeError, match=f"length prefix of {prefix}, not 1 to 1048576 bytes"):
        decoder.feed(struct.pack(">I", prefix)[3:])


def test_the_longest_message() -> None:
    overhead = len(packed(x=bytes(1 << 16))) - (1 << 16)
    longest = packed(x=bytes(MESSAGE_BYTES_MAX - overhead))
    assert len(longest) == MESSAGE_BYTES_MAX
    decoder = ControlDecoder()
    assert decoder.feed(framed(longest)[:-1]) == []
    assert decoder.buffered_bytes == MESSAGE_BYTES_MAX + 3
    (record,) = decoder.feed(longest[-1:])
    assert len(record["x"]) == MESSAGE_BYTES_MAX - overhead
    with pytest.raises(LocalMisuse, match="1048577 bytes, at most 1048576"):
        encode_control("ping", 7, x=bytes(MESSAGE_BYTES_MAX - overhead + 1))


def test_after_an_error_the_stream_is_dead() -> None:
    decoder = ControlDecoder()
    with pytest.raises(DecodeError) as first:
        decoder.feed(framed(b"\xc1"))
    assert decoder.buffered_bytes == 0
    for again in (lambda: decoder.feed(encode_control("ping", 1)), decoder.finish):
        with pytest.raises(DecodeError) as later:
            again()
        assert later.value is first.value


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"\0", "the stream ended after 1 of 4 bytes of a length prefix"),
        (framed(packed())[:-2], f"the stream ended after {len(packed()) - 2} of {len(packed())} bytes"),
    ],
)
def test_a_stream_that_ends_inside_a_message(stream: bytes, reason: str) -> None:
    decoder = ControlDecoder()
    decoder.feed(encode_control("ping", 1))
    decoder.finish()
    decoder.feed(stream)
    with pytest.raises(DecodeError, match=reason):
        decoder.finish()


@pytest.mark.parametrize(
    ("kind", "ident", "fields"),
    [
        ("", 1, {}),
        ("ping", -1, {}),
        ("ping", 1 << 64, {}),
        ("ping", 1, {"v": 2}),
        ("ping", 1, {"x": 1 << 64}),
        ("ping", 1, {"x": object()}),
        ("ping", 1, {"x": {1: 2}}),
        ("ping", 1, {"x": "\ud800"}),
        ("ping", 1, {"x": msgpack.ExtType(5, b"")}),
    ],
)
def test_what_no_peer_would_take_is_the_callers_fault(kind: str, ident: int, fields: dict[str, Any]) -> None:
    with pytest.raises(LocalMisuse):
        encode_control(kind, ident, **fields)


@given(st.binary(max_size=60))
def test_garbage(data: bytes) -> None:
    decoder = ControlDecoder()
    try:
        for record in decoder.feed(framed(data)):
            assert record["v"] == 1
    except DecodeError:
        pass


@pytest.mark.parametrize("depth_of_bomb", [9, 500, 512, 1023, 1025, 5000, 200_000])
def test_msgpacks_pure_python_build_is_refused_alike(
    monkeypatch: pytest.MonkeyPatch, depth_of_bomb: int
) -> None:
    """Where msgpack has no compiled build, its limits differ; ours must not."""
    bombs = [unit * depth_of_bomb + b"\x01" for unit in (b"\x91", b"\x81\xa1k")]
    for _ in range(2):
        for bomb in bombs:
            with pytest.raises(DecodeError):
                decode_control(b"\x84" + packed()[1:] + b"\xa1x" + bomb)
        assert decode_control(packed(x={"y": [1]}))["x"] == {"y": [1]}
        monkeypatch.setattr(msgpack, "unpackb", fallback.unpackb)
