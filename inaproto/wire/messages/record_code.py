"""Functions that take and give the fields of one record class, written out and compiled.

A control plane of a thousand hosts spends a good part of its time between msgpack's maps and records. What
is done to a field is said by its kind (:mod:`inaproto.wire.messages.fields`), and stays there: written out
is only when a value is as it should be *for certain*, by :func:`_fits`; of any other value the kind itself
is asked. So who is refused here is refused by the same rule, without the name of the field, which
:func:`inaproto.wire.messages.fields.take_fields` and ``give_fields`` find then by going through all again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

from inaproto.wire.messages.fields import (
    ABSENT,
    NO_PAYLOAD,
    Behind,
    Blob,
    Boolean,
    Choice,
    Integer,
    Kind,
    Many,
    Octets,
    OneOf,
    Record,
    Refused,
    Text,
    Words,
    field_kinds,
    travels_as,
)

Taker = Callable[[Mapping[str, Any], memoryview], Any]
Giver = Callable[[Any], dict[str, Any]]
_TAKERS: Final[dict[type[Any], Taker]] = {}
_GIVERS: Final[dict[type[Any], Giver]] = {}


def taker_of(cls: type[Any]) -> Taker:
    """What makes a record of that class from a map and the array behind it; it raises ``Refused``."""
    found = _TAKERS.get(cls)
    if found is None:
        found = _TAKERS[cls] = _Code(cls).taker()
    return found


def giver_of(cls: type[Any]) -> Giver:
    """What makes a map, of what travels, from a record of that class; it raises ``Refused``."""
    found = _GIVERS.get(cls)
    if found is None:
        found = _GIVERS[cls] = _Code(cls).giver()
    return found


class _Code:
    """Text of a function, and the names that it uses."""

    def __init__(self, cls: type[Any]) -> None:
        self._cls = cls
        self._names: dict[str, Any] = {
            "CLS": cls,
            "ABSENT": ABSENT,
            "NO_PAYLOAD": NO_PAYLOAD,
            "Refused": Refused,
        }
        self._lines: list[str] = []

    def taker(self) -> Taker:
        self._lines.append("def function(record, payload):")
        self._lines.append("    get = record.get")
        defaults = {one.name: one.default for one in fields(self._cls)}
        given = []
        for name, (kind, may_be_absent) in field_kinds(self._cls).items():
            value = f"v_{name}"
            given.append(f"{name}={value}")
            self._lines.append(f"    {value} = get({travels_as(name, kind)!r}, ABSENT)")
            if may_be_absent:
                self._lines.append(f"    if {value} is ABSENT: {value} = {self._named(defaults[name])}")
                self._lines.append("    else:")
            else:
                self._lines.append(f"    if {value} is ABSENT: raise Refused('is missing')")
                self._lines.append("    if True:")
            self._lines += [f"        {line}" for line in self._taken(kind, value)]
        self._lines.append(f"    return CLS({', '.join(given)})")
        taker: Taker = self._function()
        return taker

    def giver(self) -> Giver:
        self._lines += ["def function(record):", "    given = {}"]
        for name, (kind, may_be_absent) in field_kinds(self._cls).items():
            value = f"v_{name}"
            self._lines.append(f"    {value} = record.{name}")
            self._lines.append(f"    if {f'{value} is not None' if may_be_absent else 'True'}:")
            self._lines += [f"        {line}" for line in self._given(kind, value)]
            self._lines.append(f"        given[{travels_as(name, kind)!r}] = {value}")
        self._lines.append("    return given")
        giver: Giver = self._function()
        return giver

    def _taken(self, kind: Kind, value: str) -> Iterable[str]:
        """Lines after which ``value`` is what was taken."""
        if isinstance(kind, Behind):
            return [f"{value} = {self._named(kind.take)}({value}, payload)"]
        if type(kind) is Record:
            take, whole = self._named(taker_of(kind.cls)), self._named(kind.take)
            return [f"{value} = {take}({value}, NO_PAYLOAD) if type({value}) is dict else {whole}({value})"]
        if type(kind) is Choice:
            known, whole = self._named({one.value: one for one in kind.among}), self._named(kind.take)
            is_one = f"type({value}) is str and {value} in {known}"
            return [f"{value} = {known}[{value}] if {is_one} else {whole}({value})"]
        if type(kind) is Many:
            return self._each(kind, value, self._taken(kind.item, f"{value}_"), "list", kind.take, "tuple")
        return self._asked(kind, value, kind.take)

    def _given(self, kind: Kind, value: str) -> Iterable[str]:
        """Lines after which ``value`` is what travels."""
        if type(kind) is Record:
            give, cls = self._named(giver_of(kind.cls)), self._named(kind.cls)
            whole = self._named(kind.give)
            return [f"{value} = {give}({value}) if type({value}) is {cls} else {whole}({value})"]
        if type(kind) is Many:
            return self._each(kind, value, self._given(kind.item, f"{value}_"), "tuple", kind.give, "")
        return self._asked(kind, value, kind.give)

    def _asked(self, kind: Kind, value: str, ask: Callable[[Any], Any]) -> Iterable[str]:
        fits, asked = _fits(kind, value), f"{value} = {self._named(ask)}({value})"
        return [f"if not ({fits}): {asked}" if fits else asked]

    def _each(
        self, kind: Many, value: str, lines: Iterable[str], usual: str, whole: Callable[[Any], Any], made: str
    ) -> Iterable[str]:
        """``usual``: type of what nearly always comes; of any other ``whole`` is asked."""
        item, items = f"{value}_", f"{value}_all"
        return [
            f"if type({value}) is {usual} and len({value}) <= {kind.items_max}:",
            f"    {items} = []",
            f"    for {item} in {value}:",
            *(f"        {line}" for line in lines),
            f"        {items}.append({item})",
            f"    {value} = {made}({items})",
            f"else: {value} = {self._named(whole)}({value})",
        ]

    def _named(self, thing: Any) -> str:
        name = f"n{len(self._names)}"
        self._names[name] = thing
        return name

    def _function(self) -> Any:
        text = "\n".join(self._lines)
        # Text of ours alone: names of fields, which are identifiers, and numbers and words of their kinds.
        exec(compile(text, f"<fields of {self._cls.__name__}>", "exec"), self._names)
        return self._names["function"]


def _fits(kind: Kind, value: str) -> str:
    """Expression that is true of nothing but what the kind takes and gives as it is; empty: there is none."""
    if type(kind) is Integer:
        return f"type({value}) is int and {kind.low} <= {value} <= {kind.high}"
    if type(kind) is Text or type(kind) is Words:
        length = f"{kind.bytes_min} <= len({value}) <= {kind.bytes_max}"
        return f"type({value}) is str and {length} and {value}.isascii()"
    if type(kind) is OneOf:
        return f"type({value}) is str and {value} in {kind.values!r}"
    if type(kind) is Boolean:
        return f"{value} is True or {value} is False"
    if type(kind) is Octets:
        lengths = {kind.nbytes, kind.or_nbytes or kind.nbytes}
        return f"type({value}) is bytes and len({value}) in {tuple(sorted(lengths))!r}"
    if type(kind) is Blob:
        return f"type({value}) is bytes and len({value}) <= {kind.bytes_max}"
    return ""
