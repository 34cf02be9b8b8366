"""The cores of an explored tree of hosts as finite machines: each step is computed once, then remembered.

A local state is all that a core holds, less its configuration and its counters. Clocks stand still: waits are
of no length, and a wait that ends is an event of its own (``Woke``), so there is no time in a state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from copy import deepcopy
from enum import Enum
from typing import Any, Final, Generic, TypeVar

import numpy as np

from inaproto.core.push_pull.clocks import Clocks
from inaproto.core.push_pull.node import ShardNode
from inaproto.core.push_pull.shard import ShardRoot
from inaproto.units import Instant

NOW: Final = Instant(0)
_LEFT_OUT: Final = frozenset(("_config", "_counters", "_token", "_ancestors", "_patience", "_shard"))

Core = TypeVar("Core", ShardNode, ShardRoot)
Value = TypeVar("Value", bound=Hashable)


class Numbers(Generic[Value]):
    """Values as numbers, from 0, in the order in which they come up."""

    def __init__(self) -> None:
        self._values: list[Value] = []
        self._number: dict[Value, int] = {}

    def __getitem__(self, number: int) -> Value:
        return self._values[number]

    def of(self, value: Value) -> int:
        number = self._number.get(value)
        if number is None:
            number = self._number[value] = len(self._values)
            self._values.append(value)
        return number


class Machine(Generic[Core]):
    """States are numbers from 0; events are hashable."""

    def __init__(self) -> None:
        self.cores: list[Core] = []
        self._numbers: dict[Hashable, int] = {}
        self._steps: dict[tuple[int, Hashable], tuple[int, tuple[Any, ...]]] = {}

    def enter(self, core: Core) -> int:
        frozen = freeze(core)
        number = self._numbers.get(frozen)
        if number is None:
            number = self._numbers[frozen] = len(self.cores)
            self.cores.append(core)
        return number

    def step(self, state: int, event: Any, key: Hashable) -> tuple[int, tuple[Any, ...]]:
        """(state after it, actions)."""
        known = self._steps.get((state, key))
        if known is None:
            core = fork(self.cores[state])
            actions = tuple(core.step(event, NOW))
            known = self._steps[state, key] = self.enter(core), actions
        return known


def fork(core: Core) -> Core:
    """A copy that can change without the original; what never changes is shared."""
    return deepcopy(core, {id(one): one for one in _shared(core)})


def _shared(core: Any) -> list[Any]:
    return [core._config, core._config.shard, core._config.patience]


def freeze(value: Any) -> Hashable:
    """All of it, as values that compare."""
    if value is None or isinstance(value, int | str | Enum | Clocks):
        return value
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return tuple((freeze(key), freeze(one)) for key, one in sorted(value.items()))
    if isinstance(value, set | frozenset):
        return tuple(sorted(freeze(one) for one in value))  # type: ignore[type-var]
    if isinstance(value, list | tuple | deque):
        return tuple(freeze(one) for one in value)
    names = _names(value)
    return (type(value).__name__, *(freeze(getattr(value, name)) for name in names if name not in _LEFT_OUT))


def _names(value: Any) -> tuple[str, ...]:
    fields = getattr(value, "__dataclass_fields__", None)
    return tuple(fields) if fields is not None else tuple(vars(value))
