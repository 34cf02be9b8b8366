"""Limits of the fields of control messages, and the step between records and maps that they drive.

A record is a dataclass whose fields are annotated ``Annotated[type, kind]``; the kind checks what
came from a peer (``take``) and what goes to one (``give``). Checks are of form alone. A refusal names
the path of the field: ``.out.mac is b'', not 6 bytes``. A field with a default may be absent, unless its
annotation ends with ``ALWAYS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from typing import Any, Final, Protocol, cast, get_type_hints

import numpy as np
from numpy.typing import NDArray

ARRAYS: Final = "arrays"
NO_PAYLOAD: Final = memoryview(b"")
ALWAYS: Final = "travels always"
"""Marks a field that has a default for who makes the record, and for no peer."""


class Kind(Protocol):
    """Limits of a field: turns what msgpack gave into the field's value, or says why not."""

    def take(self, value: Any) -> Any:
        """The value. Raises ``Refused``."""
        ...

    def give(self, value: Any) -> Any:
        """What msgpack can carry. Raises ``Refused``."""
        ...


class Refused(Exception):
    """A value does not fit its field."""


@dataclass(frozen=True, slots=True)
class Integer:
    low: int
    high: int

    def take(self, value: Any) -> int:
        is_one = type(value) is int or (isinstance(value, int) and not isinstance(value, bool))
        if not is_one or not self.low <= value <= self.high:
            raise Refused(f"is {value!r:.60}, not an integer from {self.low} to {self.high}")
        return int(value)

    give = take


@dataclass(frozen=True, slots=True)
class Text:
    bytes_max: int
    bytes_min: int = 0

    def take(self, value: Any) -> str:
        if not isinstance(value, str):
            raise Refused(f"is {value!r:.60}, not text")
        try:
            nbytes = len(value) if value.isascii() else len(value.encode())
        except UnicodeEncodeError:
            raise Refused("is not valid Unicode") from None
        if not self.bytes_min <= nbytes <= self.bytes_max:
            raise Refused(f"is a text of {nbytes} bytes, not {self.bytes_min} to {self.bytes_max}")
        return value

    give = take


@dataclass(frozen=True, slots=True)
class Words(Text):
    """For people. Who sends more cuts it: a long reason must not keep a message from being sent."""

    def give(self, value: Any) -> str:
        if isinstance(value, str):
            value = value.encode("utf-8", "replace")[: self.bytes_max].decode("utf-8", "ignore")
        return self.take(value)


@dataclass(frozen=True, slots=True)
class OneOf:
    values: tuple[str, ...]

    def take(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.values:
            raise Refused(f"is {value!r:.60}, not one of {', '.join(self.values)}")
        return value

    give = take


@dataclass(frozen=True, slots=True)
class Choice:
    """A member of an enumeration, which travels as its value."""

    among: type[Enum]

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(one.value for one in self.among)

    def take(self, value: Any) -> Enum:
        try:
            return self.among(value)
        except ValueError:
            OneOf(self.values).take(value)
            raise

    def give(self, value: Any) -> str:
        if isinstance(value, self.among):
            known: str = value.value
            return known
        return OneOf(self.values).take(value)


@dataclass(frozen=True, slots=True)
class Boolean:
    def take(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise Refused(f"is {value!r:.60}, not true or false")
        return value

    give = take


@dataclass(frozen=True, slots=True)
class Octets:
    nbytes: int
    or_nbytes: int = 0
    """Another length that is right, too; 0: none."""

    def take(self, value: Any) -> bytes:
        if not isinstance(value, bytes) or (len(value) not in (self.nbytes, self.or_nbytes or self.nbytes)):
            lengths = f"{self.nbytes} or {self.or_nbytes}" if self.or_nbytes else f"{self.nbytes}"
            raise Refused(f"is {value!r:.60}, not {lengths} bytes")
        return value

    give = take


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that mean nothing to who passes them on."""

    bytes_max: int

    def take(self, value: Any) -> bytes:
        if not isinstance(value, bytes) or len(value) > self.bytes_max:
            raise Refused(f"is {value!r:.60}, not up to {self.bytes_max} bytes")
        return value

    give = take


@dataclass(frozen=True, slots=True)
class Many:
    item: Kind
    items_max: int

    def take(self, value: Any) -> tuple[Any, ...]:
        return tuple(self._each(value, self.item.take))

    def give(self, value: Any) -> list[Any]:
        return self._each(value, self.item.give)

    def _each(self, value: Any, step: Callable[[Any], Any]) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise Refused(f"is {value!r:.60}, not an array")
        if len(value) > self.items_max:
            raise Refused(f"has {len(value)} items, at most {self.items_max}")
        taken: list[Any] = []
        try:
            taken.extend(map(step, value))
        except Refused as refused:
            raise Refused(_at(f"[{len(taken)}]", refused)) from None
        return taken


@dataclass(frozen=True, slots=True)
class Record:
    cls: type[Any]

    def take(self, value: Any) -> Any:
        if not isinstance(value, dict):
            raise Refused(f"is {value!r:.60}, not a map")
        return self.cls(**take_fields(self.cls, value))

    def give(self, value: Any) -> Any:
        if not isinstance(value, self.cls):
            raise Refused(f"is {value!r:.60}, not {self.cls.__name__}")
        return give_fields(value)


@dataclass(frozen=True, slots=True)
class FreeMap:
    """A map whose content is not the protocol's business (status reports)."""

    def take(self, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise Refused(f"is {value!r:.60}, not a map")
        return value

    give = take


@dataclass(frozen=True, slots=True)
class Behind:
    """An array that travels behind its message, not in it: there ``arrays`` says how many there are.

    What comes is an array of bytes; who knows the model knows of what they are.
    """

    arrays_min: int = 0

    def take(self, value: Any, payload: memoryview = NO_PAYLOAD) -> NDArray[Any] | None:
        if not Integer(self.arrays_min, 1).take(value):
            return None
        array = np.frombuffer(payload, np.uint8)
        array.flags.writeable = False
        return array

    def give(self, value: NDArray[Any] | None) -> int:
        if value is not None and not isinstance(value, np.ndarray):
            raise Refused(f"is {value!r:.60}, not an array")
        return Integer(self.arrays_min, 1).give(0 if value is None else 1)


_FIELD_KINDS: dict[type[Any], dict[str, tuple[Kind, bool]]] = {}
_TAKES: dict[type[Any], list[tuple[str, str, Callable[..., Any], bool, bool]]] = {}
_GIVES: dict[type[Any], list[tuple[str, str, Callable[[Any], Any], bool]]] = {}
_BOUNDED: dict[type[Any], bool] = {}
ABSENT: Final = object()
"""In place of a field that did not come."""


def field_kinds(cls: type[Any]) -> Mapping[str, tuple[Kind, bool]]:
    """Limits of each field of a record class, and whether it may be absent. Read once per class."""
    kinds = _FIELD_KINDS.get(cls)
    if kinds is None:
        kinds = {}
        hints = get_type_hints(cls, include_extras=True)
        for item in fields(cls):
            annotation = hints[item.name]
            # ``X | None`` is a union whose members carry the metadata.
            candidates = (annotation, *getattr(annotation, "__args__", ()))
            metadata = next(c.__metadata__ for c in candidates if hasattr(c, "__metadata__"))
            may_be_absent = item.default is not MISSING and ALWAYS not in metadata
            kinds[item.name] = (cast("Kind", metadata[0]), may_be_absent)
        _FIELD_KINDS[cls] = kinds
    return kinds


def _takes(cls: type[Any]) -> list[tuple[str, str, Callable[..., Any], bool, bool]]:
    """Name, key that it travels under, what takes it, whether it may be absent, and whether it is behind the
    message, of each field."""
    takes = _TAKES[cls] = [
        (name, travels_as(name, kind), kind.take, may_be_absent, isinstance(kind, Behind))
        for name, (kind, may_be_absent) in field_kinds(cls).items()
    ]
    return takes


def _gives(cls: type[Any]) -> list[tuple[str, str, Callable[[Any], Any], bool]]:
    """Name, key that it travels under, what gives it, and whether it may be absent, of each field."""
    gives = _GIVES[cls] = [
        (name, travels_as(name, kind), kind.give, may_be_absent)
        for name, (kind, may_be_absent) in field_kinds(cls).items()
    ]
    return gives


def travels_as(name: str, kind: Kind) -> str:
    """Key of a field in the map."""
    return ARRAYS if isinstance(kind, Behind) else name


def take_fields(
    cls: type[Any], record: Mapping[str, Any], payload: memoryview = NO_PAYLOAD
) -> dict[str, Any]:
    """Fields of the class, as the record and the array behind it say. Raises ``Refused``."""
    taken = {}
    key = ""
    get = record.get
    try:
        for name, key, take, optional, is_behind in _TAKES.get(cls) or _takes(cls):
            value = get(key, ABSENT)
            if value is not ABSENT:
                taken[name] = take(value, payload) if is_behind else take(value)
            elif not optional:
                raise Refused("is missing")
    except Refused as refused:
        raise Refused(_at(f".{key}", refused)) from None
    return taken


def give_fields(message: Any) -> dict[str, Any]:
    """What travels of the message. Raises ``Refused``."""
    given = {}
    name = ""
    cls = type(message)
    try:
        for name, key, give, optional in _GIVES.get(cls) or _gives(cls):
            value = getattr(message, name)
            if value is not None or not optional:
                given[key] = give(value)
    except Refused as refused:
        raise Refused(_at(f".{name}", refused)) from None
    return given


def is_bounded(cls: type[Any]) -> bool:
    """Whether all that its fields give is what their kinds let through: nothing is of anybody's own."""
    found = _BOUNDED.get(cls)
    if found is None:
        found = _BOUNDED[cls] = all(_is_bounded(kind) for kind, _ in field_kinds(cls).values())
    return found


def _is_bounded(kind: Kind) -> bool:
    if isinstance(kind, Many):
        return _is_bounded(kind.item)
    if isinstance(kind, Record):
        return is_bounded(kind.cls)
    return not isinstance(kind, FreeMap)


def arrays_behind(message: Any) -> tuple[memoryview, ...]:
    """What travels behind the message; not copied."""
    kinds = field_kinds(type(message)).items()
    arrays = [getattr(message, name) for name, (kind, _) in kinds if isinstance(kind, Behind)]
    return tuple(np.ascontiguousarray(array).data for array in arrays if array is not None)


def _at(place: str, refused: Refused) -> str:
    """``.out`` and ``.mac is ...`` make ``.out.mac is ...``."""
    text = str(refused)
    return f"{place}{text}" if text.startswith((".", "[")) else f"{place} {text}"
