"""What is written out of the fields of a record takes, gives and refuses just what their kinds do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from enum import IntEnum
from typing import Any, Final

import pytest

from inaproto.errors import LocalMisuse
from inaproto.wire.messages.fields import NO_PAYLOAD, Refused, field_kinds, give_fields, take_fields
from inaproto.wire.messages.record_code import giver_of, taker_of
from tests.unit.test_wire_message_limits import edges, key_of, least_of, records, wrong


class Number(IntEnum):
    ONE = 1


class Text(str):
    __slots__ = ()


OF_OTHER_TYPES: Final[tuple[Any, ...]] = (
    *(None, 1.5, True, Number.ONE, Text("auto"), "\N{SNOWMAN}", "\ud800"),
    *(b"", bytearray(6), [], (), {}),
)
"""Some fit a field, and are no plain values of its type."""


def outcome(call: Callable[..., Any], *given: Any) -> Any:
    try:
        return call(*given)
    except (Refused, LocalMisuse):  # the latter by a record that looks at itself
        return Refused
    except (AttributeError, TypeError) as error:  # by a kind of its own or a record, given what nobody makes
        return str(error)


@pytest.mark.parametrize("cls", records().values(), ids=records())
def test_a_record_is_taken_as_its_kinds_take_it(cls: type[Any]) -> None:
    take = taker_of(cls)
    least = least_of(cls)
    for name, (kind, _) in field_kinds(cls).items():
        key = key_of(name, kind)
        for value in (*edges(kind), *(one for one, _ in wrong(kind)), *OF_OTHER_TYPES):
            record = least | {key: value}
            by_kinds = outcome(lambda said=record: cls(**take_fields(cls, said)))
            assert repr(outcome(take, record, NO_PAYLOAD)) == repr(by_kinds), (name, value)
        absent = {other: value for other, value in least.items() if other != key}
        by_kinds = outcome(lambda said=absent: cls(**take_fields(cls, said)))
        assert repr(outcome(take, absent, NO_PAYLOAD)) == repr(by_kinds)


@pytest.mark.parametrize("cls", records().values(), ids=records())
def test_a_record_is_given_as_its_kinds_give_it(cls: type[Any]) -> None:
    give = giver_of(cls)
    least = cls(**take_fields(cls, least_of(cls)))
    for item in fields(cls):
        kind, _ = field_kinds(cls)[item.name]
        for value in (*edges(kind), *(one for one, _ in wrong(kind)), *OF_OTHER_TYPES):
            values = {one.name: getattr(least, one.name) for one in fields(cls)} | {item.name: value}
            made = outcome(lambda given=values: cls(**given))
            if isinstance(made, cls):
                assert repr(outcome(give, made)) == repr(outcome(give_fields, made)), (item.name, value)


@pytest.mark.parametrize("cls", records().values(), ids=records())
def test_what_is_given_has_its_fields_in_their_order(cls: type[Any]) -> None:
    """So the bytes are the same."""
    record = {key_of(name, kind): edges(kind)[-1] for name, (kind, _) in field_kinds(cls).items()}
    made = cls(**take_fields(cls, record))
    assert list(giver_of(cls)(made)) == list(give_fields(made))
