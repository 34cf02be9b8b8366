"""Failures of hosts, switches and rows of racks over time: drawn, or given. What they do is the simulator's.

Each host, switch and row fails by itself: it is up for a time drawn about its mean time between failures,
then down for one drawn about its mean time to repair, both exponential. Each has a random stream of its own,
so a larger cluster, or switches that fail as well, change nothing for those that were there. Events at the
same time are in the order of their records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf, isfinite
from random import Random
from typing import Any, Final, NamedTuple

from inaproto.errors import ConfigError

VERSION: Final = 1
EVENTS_MAX: Final = 10_000_000


class Part(Enum):
    HOST = "host"
    SWITCH = "switch"
    ROW = "row"
    """Racks that lose their power together, with their hosts and their switches."""


class FailureEvent(NamedTuple):
    seconds: float
    part: Part
    number: int
    """Among the hosts, among the switches of all layers, or among the rows."""
    up: bool
    """Works again; else it has failed."""

    @property
    def order(self) -> tuple[float, str, int, bool]:
        return self.seconds, self.part.value, self.number, self.up


@dataclass(frozen=True, slots=True)
class Reliability:
    """Means, seconds. Raises ``ConfigError``."""

    mtbf: float
    """From repair to the next failure; infinite for what never fails."""
    mttr: float
    """From failure to repair."""

    def __post_init__(self) -> None:
        if not self.mtbf > 0:
            raise ConfigError(f"mtbf {self.mtbf}: seconds, more than 0")
        if not 0 < self.mttr < inf:
            raise ConfigError(f"mttr {self.mttr}: seconds, more than 0")

    @property
    def availability(self) -> float:
        """Share of time that it is up."""
        return 1.0 if self.mtbf == inf else self.mtbf / (self.mtbf + self.mttr)


def draw_failures(
    counts: Mapping[Part, int], reliability: Mapping[Part, Reliability], *, until: float, seed: int | str
) -> tuple[FailureEvent, ...]:
    """All events before ``until``, in order; all are up at 0, and a part without reliability never fails.

    Raises ``ConfigError`` for more than ``EVENTS_MAX``, expected or drawn.
    """
    if not 0 <= until < inf:
        raise ConfigError(f"failures until {until}: seconds, 0 or more")
    kinds = [(part, counts.get(part, 0), reliability[part]) for part in Part if part in reliability]
    expected = sum(2 * count * until / (kind.mtbf + kind.mttr) for _, count, kind in kinds)
    if expected > EVENTS_MAX:
        raise ConfigError(f"some {expected:.3g} failures and repairs until {until} s: more than {EVENTS_MAX}")
    drawn = (
        event
        for part, count, kind in kinds
        for number in range(count)
        for event in _of_one(part, number, kind, until, seed)
    )
    return tuple(sorted(drawn, key=lambda event: event.order))


def _of_one(
    part: Part, number: int, kind: Reliability, until: float, seed: int | str
) -> Iterator[FailureEvent]:
    if kind.mtbf == inf:
        return
    draw, now, up = Random(f"{seed}/failures/{part.value} {number}"), 0.0, True
    while True:
        now += draw.expovariate(1 / (kind.mtbf if up else kind.mttr))
        if now >= until:
            return
        up = not up
        yield FailureEvent(now, part, number, up)


def checked(events: Iterable[FailureEvent], counts: Mapping[Part, int]) -> tuple[FailureEvent, ...]:
    """A given list, if it can happen: in order of time, of parts that there are, each down and up by turns.

    Raises ``ConfigError``, which says which event cannot.
    """
    given, last = tuple(events), 0.0
    down: set[tuple[Part, int]] = set()
    for place, event in enumerate(given):
        where = f"failure event {place}"
        if not isfinite(event.seconds) or event.seconds < last:
            raise ConfigError(f"{where}: at {event.seconds} s; times ascend from 0, the last is {last}")
        count = counts.get(event.part, 0)
        if not 0 <= event.number < count:
            is_unknown = event.part is Part.ROW and not count
            remedy = ": say with row_racks how many racks a row has" if is_unknown else ""
            raise ConfigError(f"{where}: no {event.part.value} {event.number}; there are {count}{remedy}")
        one = (event.part, event.number)
        if event.up != (one in down):
            state = "down" if one in down else "up"
            raise ConfigError(f"{where}: {event.part.value} {event.number} is {state} already")
        (down.discard if event.up else down.add)(one)
        last = event.seconds
    return given


def document(events: Iterable[FailureEvent]) -> dict[str, Any]:
    """For ``json.dump``."""
    return {
        "version": VERSION,
        "events": [
            {"seconds": one.seconds, "part": one.part.value, "number": one.number, "up": one.up}
            for one in events
        ],
    }


def parse(text: str, counts: Mapping[Part, int]) -> tuple[FailureEvent, ...]:
    """What ``document`` wrote, or somebody else; checked. Raises ``ConfigError``."""
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"failures: line {error.lineno}: {error.msg}") from None
    except ValueError as error:
        raise ConfigError(f"failures: {error}") from None  # an integer of too many digits
    except RecursionError:
        raise ConfigError("failures: brackets within brackets, too many") from None
    if not isinstance(fields, dict) or fields.keys() != {"version", "events"}:
        raise ConfigError("failures: an object with version and events")
    if fields["version"] != VERSION or not isinstance(fields["events"], list):
        raise ConfigError(f"failures: version {fields['version']!r} is not {VERSION}, or events are no list")
    return checked([_event(place, one) for place, one in enumerate(fields["events"])], counts)


def _event(place: int, fields: Any) -> FailureEvent:
    names = FailureEvent._fields
    if not isinstance(fields, dict) or fields.keys() != set(names):
        raise ConfigError(f"failure event {place}: an object with {', '.join(names)}")
    seconds, part, number, up = (fields[name] for name in names)
    if type(seconds) not in {int, float} or type(number) is not int or type(up) is not bool:
        raise ConfigError(f"failure event {place}: seconds a number, number an integer, up true or false")
    try:
        return FailureEvent(float(seconds), Part(part), number, up)
    except ValueError:
        raise ConfigError(f"failure event {place}: part {part!r}: host, switch or row") from None
