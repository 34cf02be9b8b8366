"""How a scenario that is wrong is refused: by key, what is there, and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def problems(error: ValidationError, whole: type[Table]) -> list[str]:
    """One line each: key, what is there, what is allowed."""
    lines = []
    for problem in error.errors(include_url=False, include_context=False):
        location = problem["loc"]
        key = _dotted(location)
        if problem["type"] == "extra_forbidden":
            table = _table_at(location[:-1], whole)
            keys = list(table.model_fields)
            lines.append(
                f"{key}: no such key{did_you_mean(str(location[-1]), keys)}; keys are {', '.join(keys)}"
            )
        elif problem["type"] == "missing":
            lines.append(f"{key}: is missing")
        else:
            reason = problem["msg"].removeprefix("Value error, ").replace("Input should", "it should")
            reason = reason.replace("a valid tuple", "a list")
            if reason.startswith("it should be a valid dictionary"):
                reason = "it should be a table"
            there = "" if problem["type"] == "value_error" else f"{_shown(problem['input'])} is not allowed: "
            lines.append(f"{key}: {there}{reason}")
    return list(dict.fromkeys(lines))


def _dotted(location: tuple[int | str, ...]) -> str:
    key = ""
    for part in location:
        if isinstance(part, int):
            key += f"[{part}]"
        elif not part.startswith(("constrained-", "tuple[", "function-", "[key]")):  # of a union, or a name
            said = part if part and part.isprintable() else repr(part)
            key += f".{said}" if key else said
    return key


def _table_at(location: tuple[int | str, ...], whole: type[Table]) -> type[Table]:
    table = whole
    for part in location:
        if isinstance(part, str) and part in table.model_fields:
            table = next(iter(_tables_within(table.model_fields[part].annotation)), table)
    return table


def _tables_within(annotation: Any) -> list[type[Table]]:
    if get_origin(annotation) in {tuple, dict, Union, UnionType, Annotated}:
        return [table for part in get_args(annotation) for table in _tables_within(part)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, Table) else []


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + " ..."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""
