"""When jobs ask for hosts: all at once (MINA, section V-A), as a Poisson process, or as a log has it.

A log is CSV with the head ``arrival_seconds,model,hosts,steps``, or a JSON list of objects with these fields;
requests in order of arrival.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Final

from inaproto.errors import ConfigError
from inaproto_controller.cluster.input_file import read_bounded
from inaproto_controller.cluster.model import measured_names
from inaproto_controller.cluster.requests import Request

FIELDS: Final = ("arrival_seconds", "model", "hosts", "steps")
BYTES_MAX: Final = 1 << 28
SECONDS_MAX: Final = 1e9
"""From the start of the log; behind them, a double no longer tells short operations apart."""
STEPS_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Log:
    arrivals: tuple[float, ...]
    """Seconds, ascending."""
    requests: tuple[Request, ...]


def at_once(count: int) -> tuple[float, ...]:
    """All at 0."""
    return (0.0,) * count


def poisson(count: int, *, rate: float, seed: int | str) -> tuple[float, ...]:
    """``count`` arrivals, ``rate`` of them a second on average. Raises ``ConfigError`` for a bad rate."""
    if not 0 < rate < inf:
        raise ConfigError(f"rate of arrivals {rate}: requests a second, more than 0")
    draw = Random(f"{seed}/arrivals")
    return tuple(accumulate(draw.expovariate(rate) for _ in range(count)))


def read(path: Path, *, models: Sequence[str] | None = None, hosts_max: int | None = None) -> Log:
    """Read the file, by its ending: .csv or .json. ``models``: those that may be asked for; by default all
    measured ones. ``hosts_max``: those of the cluster.

    Raises ``ConfigError``, which names the line.
    """
    data = read_bounded(path, BYTES_MAX)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: line {1 + data.count(10, 0, error.start)}: no UTF-8") from None
    parsers: dict[str, Callable[..., Log]] = {".csv": parse_csv, ".json": parse_json}
    if path.suffix not in parsers:
        endings = " or ".join(parsers)
        raise ConfigError(f"{path}: is read by the ending of its name, {endings} (docs/cluster-files.md)")
    try:
        return parsers[path.suffix](text, models=models, hosts_max=hosts_max)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_csv(text: str, *, models: Sequence[str] | None = None, hosts_max: int | None = None) -> Log:
    """Columns in any order. Raises ``ConfigError``."""
    rows = csv.reader(text.splitlines(), strict=True)
    try:
        head = [field.strip() for field in next(rows, [])]
        if sorted(head) != sorted(FIELDS):
            raise ConfigError(f"line 1: {','.join(head)}: the columns are {','.join(FIELDS)}")
        return _log(_csv_entries(rows, head), models, hosts_max)
    except csv.Error as error:
        raise ConfigError(f"line {rows.line_num}: {error}") from None


def _csv_entries(rows: Any, head: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for row in rows:
        if not row:
            continue
        if len(row) != len(head):
            raise ConfigError(f"line {rows.line_num}: {len(row)} columns, not {len(head)}")
        fields: dict[str, Any] = dict(zip(head, (field.strip() for field in row), strict=True))
        for name, kind, said in (
            ("arrival_seconds", float, "a number"),
            ("hosts", int, "an integer"),
            ("steps", int, "an integer"),
        ):
            try:
                fields[name] = kind(fields[name])
            except ValueError:
                raise ConfigError(f"line {rows.line_num}: {name} {fields[name]!r}: {said}") from None
        yield rows.line_num, fields


def parse_json(text: str, *, models: Sequence[str] | None = None, hosts_max: int | None = None) -> Log:
    """Raises ``ConfigError``."""
    try:
        return _log(_json_entries(text), models, hosts_max)
    except json.JSONDecodeError as error:
        raise ConfigError(f"line {error.lineno}: {error.msg}") from None
    except RecursionError:
        raise ConfigError("brackets within brackets, too many") from None


def _json_entries(text: str) -> Iterator[tuple[int, Any]]:
    """Each with the line that it begins in, which ``json.loads`` would not tell."""
    decoder, at, line, counted = json.JSONDecoder(), _blank(text, 0), 1, 0
    if text[at : at + 1] != "[":
        raise json.JSONDecodeError("Expecting a list", text, at)
    at = _blank(text, at + 1)
    more = text[at : at + 1] != "]"
    while more:
        line, counted = line + text.count("\n", counted, at), at
        try:
            fields, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            raise
        except ValueError as error:
            raise ConfigError(f"line {line}: {error}") from None  # an integer of too many digits
        yield line, fields
        at = _blank(text, end)
        more = text[at : at + 1] == ","
        if more:
            at = _blank(text, at + 1)
    if text[at : at + 1] != "]":
        raise json.JSONDecodeError("Expecting ',' or ']'", text, at)
    if text[at + 1 :].strip():
        raise json.JSONDecodeError("Extra data", text, at + 1)


def _blank(text: str, at: int) -> int:
    """Where the blanks that begin at ``at`` end."""
    while text[at : at + 1] in {" ", "\t", "\n", "\r"}:
        at += 1
    return at


def _log(entries: Iterator[tuple[int, Any]], models: Sequence[str] | None, hosts_max: int | None) -> Log:
    known = frozenset(measured_names() if models is None else models)
    arrivals: list[float] = []
    requests = []
    for line, fields in entries:
        arrival, request = _entry(line, fields, known)
        if hosts_max is not None and request.hosts > hosts_max:
            raise ConfigError(f"line {line}: hosts {request.hosts}: the cluster has {hosts_max}")
        if arrivals and arrival < arrivals[-1]:
            raise ConfigError(
                f"line {line}: arrival_seconds {arrival}: before that of the request above, {arrivals[-1]}"
            )
        arrivals.append(arrival)
        requests.append(request)
    return Log(tuple(arrivals), tuple(requests))


def _entry(line: int, fields: Any, known: frozenset[str]) -> tuple[float, Request]:
    if not isinstance(fields, dict) or fields.keys() != set(FIELDS):
        raise ConfigError(f"line {line}: an object with {', '.join(FIELDS)}")
    arrival, model, hosts, steps = (fields[name] for name in FIELDS)
    if type(arrival) not in {int, float} or not 0 <= arrival < inf:
        raise ConfigError(f"line {line}: arrival_seconds {arrival!r}: seconds, 0 or more")
    if arrival > SECONDS_MAX:
        raise ConfigError(
            f"line {line}: arrival_seconds {arrival!r}: at most {SECONDS_MAX:g}; "
            "count from the start of the log"
        )
    if not isinstance(model, str) or model not in known:
        raise ConfigError(f"line {line}: no model {model!r}; there are {', '.join(sorted(known))}")
    for name, value in (("hosts", hosts), ("steps", steps)):
        if type(value) is not int or value < 1:
            raise ConfigError(f"line {line}: {name} {value!r}: an integer, 1 or more")
    if steps > STEPS_MAX:
        raise ConfigError(f"line {line}: steps {steps}: at most {STEPS_MAX}")
    return float(arrival), Request(model, hosts, steps)
