"""The cores of an explored tree of hosts as finite machines: each step is computed once, then remembered.

A local state is all that a core holds, less its configuration and its counters. Clocks stand still; how a
wait ends is in :mod:`~inaproto.sim.explore.models.waits`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from copy import deepcopy
from dataclasses import replace
from enum import Enum
from typing import Any, Final, Generic, TypeVar

import numpy as np

from inaproto.core.models.children import Bond, Child
from inaproto.core.models.node import ShardNode
from inaproto.core.models.pending import Pending
from inaproto.core.models.shard import ShardRoot
from inaproto.core.models.updates import Update
from inaproto.sim.explore.models.config import NOW
from inaproto.wire.messages.clocks import NO_CLOCKS, Clocks

_LEFT_OUT: Final = frozenset(("_config", "_counters", "_token", "_ancestors", "_patience", "_shard"))
_UNUSED: Final = _LEFT_OUT | {"_last_window", "_met"}
"""Fields left out, and what only notes for the log, and starts that take time, are made from."""
_WHILE_ASKING: Final = frozenset(("known", "_floor"))
"""Fields of :class:`~inaproto.core.models.asking.Asking` that count before the parent has answered."""
_WHILE_ATTACHED: Final = frozenset(("_asked", "_requests"))
"""Fields of :class:`~inaproto.core.models.node.ShardNode` that the parent's answer sets anew."""

Core = TypeVar("Core", ShardNode, ShardRoot)
Value = TypeVar("Value", bound=Hashable)


class Numbers(Generic[Value]):
    """Values as numbers, from 0, in the order in which they come up."""

    def __init__(self, *first: Value) -> None:
        self._values: list[Value] = []
        self._number: dict[Value, int] = {}
        for value in first:
            self.of(value)

    def __getitem__(self, number: int) -> Value:
        return self._values[number]

    def __len__(self) -> int:
        return len(self._values)

    def of(self, value: Value) -> int:
        number = self._number.get(value)
        if number is None:
            number = self._number[value] = len(self._values)
            self._values.append(value)
        return number


class Machine(Generic[Core]):
    """States are numbers from 0; ``key`` says which event it is."""

    def __init__(self, *, reduced: bool, left_out: Iterable[str] = ()) -> None:
        """``left_out``: attributes that make no difference."""
        self.cores: list[Core] = []
        self._reduced = reduced
        self._left_out = frozenset((*(_UNUSED if reduced else _LEFT_OUT), *left_out))
        self._numbers: dict[Hashable, int] = {}
        self._steps: dict[tuple[int, Hashable], tuple[int, tuple[Any, ...]]] = {}

    def enter(self, core: Core) -> int:
        frozen = freeze(core, self._left_out, tidied=self._reduced)
        number = self._numbers.get(frozen)
        if number is None:
            number = self._numbers[frozen] = len(self.cores)
            self.cores.append(core)
        return number

    def step(
        self, state: int, event: Any, key: Hashable, before: Callable[[Core], None] | None = None
    ) -> tuple[int, tuple[Any, ...]]:
        """(state after it, actions). ``before``: what is done to the core first."""
        known = self._steps.get((state, key))
        if known is None:
            core = fork(self.cores[state])
            if before is not None:
                before(core)
            actions = tuple(core.step(event, NOW))
            known = self._steps[state, key] = self.enter(core), actions
        return known


def fork(core: Core) -> Core:
    """A copy that can change without the original; what never changes is shared."""
    copy: Core = _copied(core)
    return copy


_SHARED: Final = (int, str, bytes, Enum, Clocks, np.ndarray, Update, frozenset, type(None))


def _copied(value: Any) -> Any:
    """As ``deepcopy``, of the few kinds of things that cores are made of."""
    if isinstance(value, _SHARED):
        return value
    if isinstance(value, list):
        return [_copied(one) for one in value]
    if isinstance(value, tuple):
        return tuple(_copied(one) for one in value)
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, set):
        return set(value)
    if getattr(type(value), "__dataclass_params__", None) is not None:
        if type(value).__dataclass_params__.frozen:
            return value
        copy = object.__new__(type(value))
        for name in type(value).__dataclass_fields__:
            setattr(copy, name, _copied(getattr(value, name)))
        return copy
    if type(value).__module__.startswith("inaproto.core."):
        copy = object.__new__(type(value))
        for name, one in vars(value).items():
            setattr(copy, name, _copied(one))
        return copy
    return deepcopy(value)


def freeze(value: Any, left_out: frozenset[str], *, tidied: bool) -> Hashable:
    """All of it, as values that compare; ``tidied``: alike where nobody can tell two apart."""
    if value is None or isinstance(value, int | str | Enum | Clocks):
        return value
    if isinstance(value, np.ndarray):
        return value.tobytes()

    if tidied and isinstance(value, ShardNode):
        left_out |= frozenset() if value._link.is_asking else _WHILE_ASKING
        left_out |= frozenset() if value._link.is_attached else _WHILE_ATTACHED

    def frozen(one: Any) -> Hashable:
        return freeze(one, left_out, tidied=tidied)

    if isinstance(value, dict):
        return tuple((frozen(key), frozen(one)) for key, one in sorted(value.items()))
    if isinstance(value, set | frozenset):
        return tuple(sorted(frozen(one) for one in value))  # type: ignore[type-var]
    if isinstance(value, list | tuple | deque):
        return tuple(frozen(one) for one in value)
    if tidied and isinstance(value, Pending) and value.by_windows:
        # Parts of a window are added in the order of their places, whatever the order in which they came.
        taken = sorted(value._taken, key=lambda one: (one[1].clock, one[0]))
        return tuple((place, frozen(update)) for place, update in taken)
    if tidied and isinstance(value, Child):
        value = _tidied(value)
    names = (name for name in _names(value) if name not in left_out)
    return (type(value).__name__, *(frozen(getattr(value, name)) for name in names))


def _tidied(child: Child) -> Child:
    """Without what is not looked at before it is set again: that it came once is all that counts of a session
    that is over, and what it knows of the root only while it is not answered."""
    if child.bond is Bond.NONE:
        return replace(child, session=min(child.session, 1), floor=NO_CLOCKS, told=NO_CLOCKS)
    return replace(child, floor=NO_CLOCKS) if child.bond is Bond.ATTACHED else child


def _names(value: Any) -> tuple[str, ...]:
    fields = getattr(value, "__dataclass_fields__", None)
    return tuple(fields) if fields is not None else tuple(vars(value))
