"""Where the limits of control messages exactly lie, and what their refusals say."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Annotated, Any

import msgpack  # type: ignore[import-untyped]
import pytest

from inaproto.errors import DecodeError, JobError, LocalMisuse, RankLost
from inaproto.wire.control import (
    ARRAY_ITEMS_MAX,
    DEPTH_MAX,
    LENGTH_BYTES,
    MAP_ITEMS_MAX,
    MESSAGE_BYTES_MAX,
    TYPE_BYTES_MAX,
    ControlDecoder,
    decode_control,
    encode_control,
)
from inaproto.wire.control_messages import (
    Error,
    decode_message,
    error_message,
    failed_message,
)
from inaproto.wire.messages import fields as control_fields
from inaproto.wire.messages.fields import Integer, Many, OneOf, Refused, Text
from inaproto.wire.messages.sharing import Decision, Seat


def packed(**fields: Any) -> bytes:
    body: bytes = msgpack.packb({"v": 1, "type": "ping", "id": 7} | fields)
    return body


def test_a_type_of_the_longest_name() -> None:
    longest = "x" * TYPE_BYTES_MAX
    assert decode_control(packed(type=longest))["type"] == longest


def test_a_map_and_an_array_of_the_most_items() -> None:
    fullest = {f"{index}": 0 for index in range(MAP_ITEMS_MAX)}
    assert decode_control(packed(x=fullest))["x"] == fullest
    with pytest.raises(DecodeError, match="not msgpack"):
        decode_control(packed(x=fullest | {"one more": 0}))
    assert decode_control(packed(x=[0] * ARRAY_ITEMS_MAX))["x"] == [0] * ARRAY_ITEMS_MAX


def test_a_map_is_bounded_by_its_own_limit() -> None:
    """Not by that of arrays, which is larger, nor by the bytes of the message."""
    crowded = {f"{index}": 0 for index in range(MAP_ITEMS_MAX * 2)}
    with pytest.raises(DecodeError, match=r"^control: not msgpack: .*max_map_len"):
        decode_control(packed(x=crowded))


@pytest.mark.parametrize("size", [MESSAGE_BYTES_MAX // 2, MESSAGE_BYTES_MAX - 100])
def test_long_texts_and_bytes_travel(size: int) -> None:
    assert decode_control(packed(x="t" * size))["x"] == "t" * size
    assert decode_control(packed(x=b"b" * size))["x"] == b"b" * size


def test_a_refusal_by_msgpack_says_which() -> None:
    with pytest.raises(DecodeError) as caught:
        decode_control(packed() + b"\0")
    assert caught.value.reason == "not msgpack: unpack(b) received extra data."


def test_the_longest_message_can_be_sent() -> None:
    overhead = len(packed(x=bytes(1 << 16))) - (1 << 16)
    framed = encode_control("ping", 7, x=bytes(MESSAGE_BYTES_MAX - overhead))
    assert len(framed) == LENGTH_BYTES + MESSAGE_BYTES_MAX


def test_texts_and_bytes_stay_apart() -> None:
    (record,) = ControlDecoder().feed(encode_control("ping", 1, text="a", octets=b"a"))
    assert (record["text"], record["octets"]) == ("a", b"a")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"v": 2}, "control ping: the field name 'v' is taken by the envelope"),
        ({"v_max": 2}, "control ping: the field name 'v_max' is taken by the envelope"),
        ({"x": {1, 2}}, "control ping: cannot be encoded: can not serialize 'set' object"),
    ],
)
def test_misuse_says_what_is_wrong(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LocalMisuse) as caught:
        encode_control("ping", 1, **fields)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"\0\0\0", "the stream ended after 3 of 4 bytes of a length prefix"),
        (b"\0\0\1\2", "the stream ended after 0 of 258 bytes of a message"),
        (b"\0\0\1\2abc", "the stream ended after 3 of 258 bytes of a message"),
    ],
)
def test_a_stream_that_ends_early_says_where(stream: bytes, reason: str) -> None:
    decoder = ControlDecoder()
    decoder.feed(stream)
    with pytest.raises(DecodeError) as caught:
        decoder.finish()
    assert (caught.value.layer, caught.value.reason) == ("control", reason)
    assert caught.value.offset == len(stream)


def test_a_length_prefix_that_is_refused_names_its_layer() -> None:
    with pytest.raises(DecodeError) as caught:
        ControlDecoder().feed(struct.pack(">I", MESSAGE_BYTES_MAX + 1))
    assert caught.value.layer == "control"


def test_a_message_of_one_byte_is_refused_for_what_it_holds() -> None:
    with pytest.raises(DecodeError, match="a message is a map, not int"):
        ControlDecoder().feed(b"\0\0\0\1\7")


def test_a_depth_that_is_refused_names_its_layer() -> None:
    value: Any = 1
    for _ in range(DEPTH_MAX):
        value = [value]
    with pytest.raises(DecodeError) as caught:
        decode_control(packed(x=value))
    assert caught.value.layer == "control"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A record that no message has: its fields are read when it is first used."""

    first: Annotated[int, Integer(0, 9)] = 3
    second: Annotated[str, Text(4, 1)] | None = None
    third: Annotated[str, OneOf(("a", "b"))]
    last: Annotated[tuple[int, ...], Many(Integer(0, 9), 2)] = ()


def test_fields_of_a_record_and_which_may_be_absent() -> None:
    @dataclass(frozen=True)
    class Fresh:
        must: Annotated[int, Integer(0, 9)]
        may: Annotated[int, Integer(1, 8)] | None = None

    # Names of a local class cannot be looked up by their text.
    Fresh.__annotations__ = {
        "must": Annotated[int, Integer(0, 9)],
        "may": Annotated[int, Integer(1, 8)] | None,
    }
    kinds = control_fields.field_kinds(Fresh)
    assert kinds == {"must": (Integer(0, 9), False), "may": (Integer(1, 8), True)}
    assert control_fields.field_kinds(Fresh) is kinds, "read once"


def test_a_field_that_has_a_default_here_may_have_to_travel_all_the_same() -> None:
    with pytest.raises(Refused, match=r"^\.life is missing$"):
        control_fields.take_fields(Seat, {"job": "a", "host": "h0"})
    with pytest.raises(Refused, match=r"^\.until is missing$"):
        control_fields.take_fields(Decision, {"ended": 3})
    assert control_fields.give_fields(Decision()) == {"until": 0}


def test_absent_fields_do_not_hide_those_that_follow() -> None:
    assert control_fields.take_fields(Trial, {"third": "b", "last": [1]}) == {"third": "b", "last": (1,)}
    assert control_fields.give_fields(Trial(third="b", last=(1,))) == {
        "first": 3,
        "third": "b",
        "last": [1],
    }
    with pytest.raises(Refused, match=r"^\.third is missing$"):
        control_fields.take_fields(Trial, {"first": 1, "last": []})


def test_texts_and_arrays_as_long_as_allowed() -> None:
    taken = control_fields.take_fields(Trial, {"second": "wide", "third": "a", "last": [1, 2]})
    assert (taken["second"], taken["last"]) == ("wide", (1, 2))
    with pytest.raises(Refused, match=r"^\.last has 3 items, at most 2$"):
        control_fields.take_fields(Trial, {"third": "a", "last": [1, 2, 3]})
    with pytest.raises(Refused, match=r"^\.second is a text of 5 bytes, not 1 to 4$"):
        control_fields.take_fields(Trial, {"third": "a", "second": "wider"})


def test_a_refusal_loses_no_letter_of_a_field_name() -> None:
    """Only the dot before it: names that begin with any letter keep it."""
    with pytest.raises(DecodeError) as caught:
        decode_message({"v": 1, "type": "error", "id": 1, "message": "late"})
    assert caught.value.reason == "code is missing"
    with pytest.raises(DecodeError) as caught:
        decode_message({"v": 1, "type": "status_reply", "id": 1, "body": 3})
    assert caught.value.reason == "body is 3, not a map"


def test_what_a_job_error_answers() -> None:
    assert error_message(JobError("no")) == Error(id=0, of=0, code=JobError("no").code, message="no")
    failed = failed_message("digits", RankLost("rank 3 is gone"))
    assert (failed.id, failed.ring_id) == (0, 0)
    failed = failed_message("digits", RankLost("rank 3 is gone"), ring_id=5, id=6)
    assert (failed.id, failed.ring_id, failed.job) == (6, 5, "digits")


def test_an_error_of_msgpack_without_words_is_named_by_its_type() -> None:
    with pytest.raises(DecodeError) as caught:
        decode_control(b"\xc1")
    assert caught.value.reason == "not msgpack: FormatError"
