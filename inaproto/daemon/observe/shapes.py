"""What a document has to be like that another process or another release has written: fields, kinds, bounds.

A shape is one of these: a type; ``[shape]``, a list of such values; a mapping of names to shapes, where one
whose name ends in ``?`` may be missing, and further fields may be there; or one of the classes below. Who
looks goes as deep as the shape does, however deep the document is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias


@dataclass(frozen=True, slots=True)
class Maybe:
    """None, or of that shape."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class Each:
    """A mapping of any names to values of that shape."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer from ``low`` to ``high``."""

    low: int = 0
    high: int = (1 << 64) - 1


Shape: TypeAlias = "type | Sequence[Any] | Mapping[str, Any] | Maybe | Each | Whole"

_NUMBER_MAX: Final = 1e30
_KINDS: Final[Mapping[type, str]] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    dict: "an object",
    list: "a list",
}


def misfit(value: object, shape: Shape, at: str = "it") -> str:
    """Where ``value`` is not of that shape, and what should be there; empty: it is."""
    match shape:
        case Maybe(inner):
            return "" if value is None else misfit(value, inner, at)
        case Each(inner):
            if not isinstance(value, dict):
                return f"{at} is not an object"
            named = ((name, misfit(name, str, f"{at}: a name")) for name in value)
            wrong = next((why for _, why in named if why), "")
            return wrong or _first(misfit(one, inner, f"{at}.{name}") for name, one in value.items())
        case Whole(low, high):
            fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
            return "" if fits else f"{at} is not a whole number from {low} to {high}"
        case type():
            return "" if _is_of(value, shape) else f"{at} is not {_KINDS.get(shape, shape.__name__)}"
        case Mapping():
            return _fields(value, shape, at)
        case _:
            if not isinstance(value, list | tuple):
                return f"{at} is not a list"
            return _first(misfit(one, shape[0], f"{at}[{number}]") for number, one in enumerate(value))


def _fields(value: object, shape: Mapping[str, Any], at: str) -> str:
    if not isinstance(value, dict):
        return f"{at} is not an object"
    for name, inner in shape.items():
        key = name.removesuffix("?")
        if key in value:
            wrong = misfit(value[key], inner, f"{at}.{key}")
        else:
            wrong = "" if key != name else f"{at}.{key} is not there"
        if wrong:
            return wrong
    return ""


def _first(found: Any) -> str:
    return next((why for why in found if why), "")


def _is_of(value: object, kind: type) -> bool:
    if kind is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return -_NUMBER_MAX <= value <= _NUMBER_MAX  # not so of NaN
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is str:
        return isinstance(value, str) and _is_unicode(value)
    return isinstance(value, kind)


def _is_unicode(text: str) -> bool:
    """JSON can say halves of a character, which no output takes."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
