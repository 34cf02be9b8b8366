"""Each field of each control message and record: at its limits, one beyond, of another type, absent.

The limits themselves are compared with the page's tables in ``test_docs_protocol``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Final

import numpy as np
import pytest

from inaproto.errors import DecodeError, JobError, LocalMisuse, RankLost
from inaproto.units import Epoch, JobId, OpIndex
from inaproto.wire.control import decode_control
from inaproto.wire.control_messages import (
    MESSAGES,
    Message,
    UnknownMessage,
    decode_message,
    decode_with_arrays,
    encode_message,
    encode_with_arrays,
    error_message,
    failed_message,
    job_error,
)
from inaproto.wire.messages.array_frames import Frame, FrameDecoder
from inaproto.wire.messages.clocks import CLOCK_MAX, ClocksKind
from inaproto.wire.messages.fields import (
    ARRAYS,
    Behind,
    Blob,
    Boolean,
    Choice,
    FreeMap,
    Integer,
    Kind,
    Many,
    Octets,
    OneOf,
    Record,
    Refused,
    Text,
    field_kinds,
    give_fields,
    is_bounded,
    take_fields,
)
from inaproto.wire.messages.models import EpochKind
from inaproto.wire.messages.sharing import Turn
from inaproto.wire.messages.switch import (
    InputKind,
    InputRecord,
    PoolSpec,
    RingRemove,
    Role,
    VirtualConnection,
)
from inaproto.wire.messages.trees import AssignedTree, FabricTree, TreeKind
from inaproto.wire.messages.types import messages_of

RECORDS_TRIED: Final = 1 << 12
"""Longer arrays of records are tried one beyond their limit alone."""


def edges(kind: Kind) -> list[Any]:
    """Values as they travel, the least first; for a record, as few fields as it may have, and all."""
    match kind:
        case Integer(low, high):
            return [int(low), int(high)]
        case Text(most, least):
            return ["x" * least, "\N{SNOWMAN}" * (most // 3) + "x" * (most % 3)]
        case Boolean():
            return [False, True]
        case Choice() | OneOf():
            return list(kind.values)
        case Octets(nbytes, other):
            return [bytes(nbytes), b"\xff" * (other or nbytes)]
        case Blob(most):
            return [b"", b"\xff" * most]
        case Behind(least):
            return [least, 1]
        case ClocksKind():
            return [[], [[0, CLOCK_MAX], [CLOCK_MAX, 0]]]
        case EpochKind():
            return [[0] * 4, [CLOCK_MAX] * 4]
        case InputKind():
            return [{"rank": 0}, {"link": least_of(VirtualConnection)}]
        case Many(item, most):
            return [[], edges(item)[:most]]
        case Record(cls):
            return [least_of(cls), {name: edges(one)[-1] for name, (one, _) in field_kinds(cls).items()}]
        case FreeMap():
            return [{}, {"a": 1}]
        case _:
            raise AssertionError(kind)


def least_of(cls: type[Any]) -> dict[str, Any]:
    """A record with the fields that must travel alone."""
    return {
        key_of(name, kind): edges(kind)[0]
        for name, (kind, optional) in field_kinds(cls).items()
        if not optional
    }


def wrong(kind: Kind) -> Iterator[tuple[Any, str]]:
    """Values that are one beyond a limit or of another type, and what is said of them."""
    value: Any
    match kind:
        case Integer(low, high):
            for value in (low - 1, high + 1, True, 1.5, "1", None):
                yield value, f" is {value!r}, not an integer from {low} to {high}"
        case Text(most, least):
            for size in {least - 1, most + 1} - {-1}:
                yield "x" * size, f" is a text of {size} bytes, not {least} to {most}"
            yield b"x", " is b'x', not text"
        case Boolean():
            yield 1, " is 1, not true or false"
        case Choice() | OneOf():
            for value in ("", kind.values[0].upper(), 0):
                yield value, f" is {value!r}, not one of {', '.join(kind.values)}"
        case Octets(nbytes, other):
            lengths = f"{nbytes} or {other}" if other else f"{nbytes}"
            for value in (bytes(nbytes - 1), bytes(nbytes + 1), bytes((other or nbytes) + 1), "x" * nbytes):
                yield value, f" is {value!r:.60}, not {lengths} bytes"
        case Blob(most):
            for value in (bytes(most + 1), "x"):
                yield value, f" is {value!r:.60}, not up to {most} bytes"
        case Behind(least):
            yield 2, f" is 2, not an integer from {least} to 1"
            yield least - 1, f" is {least - 1}, not an integer from {least} to 1"
        case Many(item, most):
            yield {}, " is {}, not an array"
            yield [edges(item)[0]] * (most + 1), f" has {most + 1} items, at most {most}"
            for value, said in wrong(item):
                yield [edges(item)[0], value], f"[1]{said}"
        case InputKind():
            said = " is wrong: an input of a ring is a rank or a connection, just one of them"
            yield {}, said
            yield {"rank": 0, "link": least_of(VirtualConnection)}, said
        case Record(cls):
            yield [], " is [], not a map"
            for name in least_of(cls):
                yield (
                    {key: value for key, value in least_of(cls).items() if key != name},
                    f".{name} is missing",
                )
        case FreeMap():
            yield [], " is [], not a map"
        case ClocksKind() | EpochKind():
            yield {}, " is {}, not an array"
        case _:
            raise AssertionError(kind)


def key_of(name: str, kind: Kind) -> str:
    return ARRAYS if isinstance(kind, Behind) else name


def taken(cls: type[Any], record: dict[str, Any]) -> Any:
    """What has come, or what is said of it."""
    try:
        if issubclass(cls, Message):
            return decode_message({"v": 1, "type": cls.TYPE} | record)
        return cls(**take_fields(cls, record))
    except DecodeError as error:
        return f".{error.reason}" if error.layer == f"control {cls.TYPE}" else error
    except Refused as refused:
        return str(refused)


def says(given: Any, record: Any) -> bool:
    """All of the record; a field that has a default may have come into it."""
    if isinstance(record, dict):
        return record.keys() <= given.keys() and all(says(given[key], record[key]) for key in record)
    if isinstance(record, list):
        return len(given) == len(record) and all(map(says, given, record))
    return type(given) is type(record) and given == record


def records() -> dict[str, type[Any]]:
    """All messages, and the records within them at any depth."""
    found: dict[str, type[Any]] = {}

    def look(cls: type[Any]) -> None:
        if cls.__name__ not in found:
            found[cls.__name__] = cls
            for kind, _ in field_kinds(cls).values():
                while isinstance(kind, Many):
                    kind = kind.item
                if isinstance(kind, Record):
                    look(kind.cls)

    for message in MESSAGES.values():
        look(message)
    assert len(found) > len(MESSAGES)
    del found[InputRecord.__name__]  # it has both of its fields or none, and its kind allows just one
    return found


@pytest.mark.parametrize("cls", records().values(), ids=records())
def test_each_field_at_its_limits_and_beyond(cls: type[Any]) -> None:
    least = least_of(cls)
    bare = taken(cls, least)
    for item in fields(cls):
        kind, optional = field_kinds(cls)[item.name]
        key = key_of(item.name, kind)
        for value in edges(kind):
            record = least | {key: value}
            assert says(give_fields(taken(cls, record)), record), (item.name, value)
        if isinstance(kind, Many):
            is_short = isinstance(kind.item, Integer | Text | Many) or kind.items_max <= RECORDS_TRIED
            most = kind.items_max if is_short else RECORDS_TRIED
            record = least | {key: [edges(kind.item)[0]] * most}
            assert len(getattr(taken(cls, record), item.name)) == most
        for value, said in wrong(kind):
            assert taken(cls, least | {key: value}) == f".{key}{said}"
        if optional:
            assert getattr(bare, item.name) == item.default
        else:
            absent = {name: value for name, value in least.items() if name != key}
            assert taken(cls, absent) == f".{key} is missing"
    assert taken(cls, least | {"colour": "blue"}) == bare


@pytest.mark.parametrize("cls", MESSAGES.values(), ids=MESSAGES)
def test_each_message_with_few_fields_and_with_all_there_and_back(cls: type[Message]) -> None:
    for number, record in enumerate(edges(Record(cls))):
        record = (
            {key_of(name, field_kinds(cls)[name][0]): record[name] for name in record} if number else record
        )
        message = taken(cls, record | {"id": 7 + number})
        assert (message.TYPE, message.id) == (cls.TYPE, 7 + number)
        framed = encode_message(message)
        assert int.from_bytes(framed[:4], "big") == len(framed) - 4
        again = decode_control(framed[4:])
        assert (again["v"], again["type"], again["id"]) == (1, cls.TYPE, 7 + number)
        assert decode_message(again) == message


def test_arrays_travel_behind_their_message_and_behind_no_other() -> None:
    array = np.arange(3, dtype=np.float32)
    message = taken(MESSAGES["push_pull_push"], least_of(MESSAGES["push_pull_push"]))
    parts = encode_with_arrays(replace(message, delta=array))
    assert [part.nbytes for part in parts[1:]] == [12]
    (frame,) = FrameDecoder(12).feed(b"".join(parts))
    heard = decode_with_arrays(frame)
    assert heard == replace(message, delta=array.view(np.uint8))
    (bare,) = FrameDecoder(0).feed(b"".join(encode_with_arrays(message)))
    assert decode_with_arrays(bare) == message
    with pytest.raises(DecodeError) as caught:
        decode_with_arrays(Frame(bare.record, memoryview(b"1234")))
    told = caught.value.layer, caught.value.reason
    assert told == ("frame", "4 bytes behind 'push_pull_push', and no array")


def test_what_is_no_message_to_be_sent_is_told_in_full() -> None:
    for message, words in (
        (UnknownMessage(type="ping"), "UnknownMessage is not a message to be sent"),
        (Message(), "Message is not a message to be sent"),
        (RingRemove(ring_id=-1), "control ring_remove.ring_id is -1, not an integer from 0 to 4294967295"),
    ):
        with pytest.raises(LocalMisuse) as caught:
            encode_message(message)
        assert str(caught.value) == words
    assert decode_message({"v": 1, "type": "teleport", "id": 9}) == UnknownMessage(type="teleport", id=9)


def test_errors_of_jobs_travel_with_their_code_and_words() -> None:
    error = RankLost("rank 3 is gone")
    said = error_message(error, of=8, op_index=2)
    assert (said.id, said.of, said.op_index, said.code, said.message) == (8, 8, 2, error.code, str(error))
    assert (error_message(error).id, error_message(error).of, error_message(error).op_index) == (0, 0, None)
    failed = failed_message("a", error, ring_id=5, id=6)
    assert (failed.id, failed.job, failed.ring_id, failed.code, failed.message) == (
        6,
        "a",
        5,
        error.code,
        str(error),
    )
    assert (failed_message("a", error).id, failed_message("a", error).ring_id) == (0, 0)
    for message in (said, failed):
        back = job_error(message)
        assert (type(back), str(back)) == (RankLost, "rank 3 is gone")
    stranger = job_error(replace(said, code="quota"))
    assert (type(stranger), str(stranger)) == (JobError, "quota: rank 3 is gone")


# --- what the records say of themselves


@pytest.mark.parametrize(
    ("until", "covered"), [(None, (False, True, True, True)), (5, (False, True, True, False))]
)
def test_a_turn_covers_from_its_first_operation_to_before_its_end(
    until: OpIndex | None, covered: tuple[bool, ...]
) -> None:
    turn = Turn(JobId("a"), Epoch(1), OpIndex(3), until)
    assert tuple(turn.covers(index) for index in (2, 3, 4, 5)) == covered
    assert not Turn(JobId("a"), Epoch(1), OpIndex(3), OpIndex(3)).covers(3), "an empty one"


def test_what_a_role_says_of_its_inputs() -> None:
    child = taken(VirtualConnection, least_of(VirtualConnection))
    role = Role(inputs=(4, child, 2), delivers=(4, 9, 2, 7))
    assert (role.children, role.ranks, role.learns) == ((child,), (4, 2), (9, 7))


@pytest.mark.parametrize(("name", "capacity"), [("", 1), ("a", 0), ("", 0)])
def test_a_pool_has_a_name_and_a_place(name: str, capacity: int) -> None:
    assert (PoolSpec("a").capacity, PoolSpec("a", 1)) == (1, PoolSpec("a"))
    with pytest.raises(LocalMisuse) as caught:
        PoolSpec(name, capacity)
    assert str(caught.value) == f"a pool named {name!r} that takes {capacity} rings at once"


def test_a_tree_comes_in_any_order_and_is_kept_sorted() -> None:
    kind = TreeKind(AssignedTree)
    links = [{"switch": low, "above": high} for low, high in (("b", "a"), ("a", "r"), ("c", "a"))]
    tree = kind.take({"root": "r", "above": links, "passing": ["c", "a", "c"]})
    assert tree == FabricTree("r", (("a", "r"), ("b", "a"), ("c", "a")), ("a", "c"))
    given = {"root": "r", "above": [links[1], links[0], links[2]], "passing": ["a", "c"]}
    assert (kind.give(tree), kind.take(given)) == (given, tree)


def test_only_messages_that_have_a_name_are_those_of_a_module() -> None:
    class Nameless(Message):
        pass

    class Named(Nameless, type="named"):
        pass

    assert (Message.TYPE, Nameless.TYPE, Named.TYPE) == ("", "", "named")
    assert messages_of(
        {"b": Named, "root": Message, "c": Nameless}, {"text": "x", "pool": PoolSpec, "a": MESSAGES["ping"]}
    ) == [
        Named,
        MESSAGES["ping"],
    ]


@dataclass(frozen=True)
class _Own:
    own: Annotated[Mapping[str, Any], FreeMap()]


@dataclass(frozen=True)
class _OwnWithin:
    name: Annotated[str, Text(8)]
    many: Annotated[tuple[_Own, ...], Many(Record(_Own), 4)]


@dataclass(frozen=True)
class _NothingOwn:
    many: Annotated[tuple[str, ...], Many(Text(8), 4)]


def test_what_may_hold_anything_is_known() -> None:
    """Such a message is looked at as a whole before it is sent."""
    assert [is_bounded(cls) for cls in (_Own, _OwnWithin, _NothingOwn)] == [False, False, True]
    assert [is_bounded(cls) for cls in (_Own, _OwnWithin, _NothingOwn)] == [False, False, True]
