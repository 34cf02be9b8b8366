"""What all cores have: a table of handlers, copies, fingerprints."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import pytest

from inaproto.core.contract import Handlers, fingerprint, fork
from inaproto.errors import LocalMisuse


class Phase(Enum):
    SHUT = "shut"
    OPEN = "open"


def table() -> Handlers[Phase, str, str]:
    handlers: Handlers[Phase, str, str] = Handlers()
    handlers.on(int, lambda door, event: [f"{door}: {event}"], Phase.OPEN)
    handlers.on(str, lambda door, event: [f"{door} hears {event}"], Phase.OPEN, Phase.SHUT)
    return handlers


def test_an_event_goes_to_the_handler_of_its_phase_and_type() -> None:
    assert table().step(Phase.OPEN, "door", 5) == ["door: 5"]
    assert table().step(Phase.SHUT, "door", "a knock") == ["door hears a knock"]
    assert list(table()) == [(Phase.OPEN, int), (Phase.OPEN, str), (Phase.SHUT, str)]


def test_an_event_has_one_handler_in_each_phase() -> None:
    with pytest.raises(LocalMisuse, match=r"int in Phase\.OPEN has two handlers"):
        table().on(int, lambda door, event: [], Phase.SHUT, Phase.OPEN)
    with pytest.raises(KeyError):
        table().step(Phase.SHUT, "door", 5)


def test_where_an_event_may_lead_is_said() -> None:
    handlers = table()
    handlers.on(float, lambda door, event: [], Phase.OPEN, to=(Phase.SHUT, None))
    assert handlers.leads_to(Phase.OPEN, float) == (Phase.SHUT, None)
    assert handlers.leads_to(Phase.OPEN, int) == ()


@dataclass(frozen=True)
class Record:
    name: str
    parts: Any = ()


@dataclass(slots=True)
class Part:
    waiting: deque[int] = field(default_factory=lambda: deque((1, 2), maxlen=3))
    known: dict[str, list[int]] = field(default_factory=lambda: {"a": [1]})


class Machine:
    def __init__(self) -> None:
        self.config = Record("fixed")
        self.part = Part()
        self.same_part = self.part
        self.pair = (self.part, Record("x"))
        self.sums = np.zeros(3)
        self.seen = {3}
        self.counters = {"steps": 0}


def change(machine: Machine) -> None:
    machine.part.waiting.append(7)
    machine.part.known["a"].append(2)
    machine.sums += 1
    machine.seen.add(4)


def test_a_copy_steps_without_touching_the_original() -> None:
    machine = Machine()
    before = fingerprint(machine)
    twin = fork(machine)
    assert fingerprint(twin) == before
    change(twin)
    assert fingerprint(machine) == before != fingerprint(twin)
    assert twin.config is machine.config
    assert list(twin.part.waiting) == [1, 2, 7]
    assert twin.part.waiting.maxlen == 3


def test_what_one_part_is_in_two_places_is_one_part_in_a_copy() -> None:
    twin = fork(Machine())
    assert twin.part is twin.same_part is twin.pair[0]


def test_what_is_left_out_is_shared_and_makes_no_difference() -> None:
    machine = Machine()
    twin = fork(machine, {"counters"})
    twin.counters["steps"] += 1
    assert twin.counters is machine.counters
    machine.counters = {"steps": 5}
    assert fingerprint(twin, {"counters"}) == fingerprint(machine, {"counters"})
    assert fingerprint(twin) != fingerprint(machine)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (Record("a", [1]), Record("a", [2])),
        (Part(), Record("a")),
        (Part(), Part(deque((9,)))),
        (deque((1, 2)), deque((2, 1))),
    ],
)
def test_what_a_core_can_tell_apart_has_two_fingerprints(one: object, other: object) -> None:
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(fork(one))
    assert len({fingerprint(one), fingerprint(other)}) == 2, "a search keeps them in a set"


def test_the_order_of_a_dictionary_may_be_left_out() -> None:
    one, other = {1: {3: 0, 4: 0}, 2: {}}, {2: {}, 1: {4: 0, 3: 0}}
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one, ordered=False) == fingerprint(other, ordered=False)
    assert fingerprint(one, ordered=False) != fingerprint({1: {}, 2: {}}, ordered=False)


class Pair(NamedTuple):
    first: Any
    second: Any = None


class Loose:
    """Has names of its own and others."""

    __slots__ = ("__dict__", "__weakref__", "held")

    def __init__(self, held: Any, counters: int = 0) -> None:
        self.held, self.counters = held, counters


class Single:
    __slots__ = "held"  # noqa: PLC0205

    def __init__(self, held: Any) -> None:
        self.held = held


HOLDERS = [lambda it: (it,), lambda it: [it], lambda it: deque([it]), lambda it: {1: it}, Pair, Loose, Single]


def held_in(holder: Any) -> Any:
    if isinstance(holder, Loose | Single):
        return holder.held
    return holder[1] if isinstance(holder, dict) else holder[0]


@pytest.mark.parametrize("wrap", [*HOLDERS, lambda it: Record("r", [it])])
def test_what_makes_no_difference_makes_none_however_deep_it_lies(wrap: Callable[[Any], Any]) -> None:
    one, other = Machine(), Machine()
    one.part.known, other.part.known = {"a": [1], "b": [2]}, {"b": [2], "a": [1]}
    other.counters = {"steps": 5}
    left_out = {"counters"}
    assert fingerprint(wrap(one), left_out, ordered=False) == fingerprint(
        wrap(other), left_out, ordered=False
    )
    assert fingerprint(wrap(one), left_out) != fingerprint(wrap(other), left_out), "the order counts"
    assert fingerprint(wrap(one), ordered=False) != fingerprint(wrap(other), ordered=False)


@pytest.mark.parametrize("wrap", HOLDERS)
def test_a_copy_shares_what_is_left_out_and_no_more_however_deep_it_lies(wrap: Callable[[Any], Any]) -> None:
    machine = Machine()
    holder = wrap(machine)
    twin = fork(holder, {"counters"})
    assert type(twin) is type(holder)
    assert held_in(twin).counters is machine.counters
    assert held_in(twin).part is not machine.part
    change(held_in(twin))
    assert fingerprint(machine) == fingerprint(Machine())


@pytest.mark.parametrize("part", [[1], {1: 2}, np.zeros(2), Part(), Loose(3), {5}])
def test_what_lies_in_two_places_is_one_in_a_copy_whatever_it_is(part: Any) -> None:
    first, second = fork([part, part])
    assert first is second
    assert first is not part


def test_what_cannot_change_is_shared() -> None:
    fixed = (1, Record("x"), "y")
    assert fork([fixed])[0] is fixed


def test_names_of_an_object_with_slots_and_more_are_left_out_too() -> None:
    assert fingerprint(Loose(1, 2), {"counters"}) == fingerprint(Loose(1, 3), {"counters"})
    assert fingerprint(Loose(1, 2), {"counters"}) != fingerprint(Loose(4, 2), {"counters"})
