"""Cores as finite machines: each step is computed once, by the real core, and then remembered.

A machine is a table ``(local state, event) -> (local state, what came of it)`` that is filled while a
search goes on. What has no influence on a later step is no part of a state: ``tidied`` overwrites it in the
core from which the next step starts, or it is ``left_out``. So merging states is exact for the machine that
is explored.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Set
from typing import Any, Generic, TypeVar

from inaproto.core.contract import fingerprint, fork

Core = TypeVar("Core")
Value = TypeVar("Value", bound=Hashable)

Local = int
"""Number of a local state, from 0."""


class Numbers(Generic[Value]):
    """Values as numbers, from 0, in the order in which they come up."""

    def __init__(self, *first: Value) -> None:
        self.values: list[Value] = []
        self._number: dict[Value, int] = {}
        for value in first:
            self.of(value)

    def __getitem__(self, number: int) -> Value:
        return self.values[number]

    def __len__(self) -> int:
        return len(self.values)

    def of(self, value: Value) -> int:
        number = self._number.get(value)
        if number is None:
            number = self._number[value] = len(self.values)
            self.values.append(value)
        return number


class Machine(Generic[Core]):
    def __init__(self, left_out: Set[str], tidied: Callable[[Core], object], *, ordered: bool = True) -> None:
        """``ordered``: as of :func:`~inaproto.core.contract.fingerprint`."""
        self.cores: list[Core] = []
        self._left_out = left_out
        self._tidied = tidied
        self._ordered = ordered
        self._numbers: dict[Hashable, Local] = {}
        self._steps: dict[tuple[Local, Hashable], tuple[Local, Any]] = {}

    def __len__(self) -> int:
        return len(self.cores)

    def enter(self, core: Core) -> Local:
        self._tidied(core)
        state = fingerprint(core, self._left_out, ordered=self._ordered)
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = len(self.cores)
            self.cores.append(core)
        return number

    def known(self, local: Local, key: Hashable, act: Callable[[Core], Any]) -> tuple[Local, Any]:
        """(the state after it, what ``act`` returns for a copy of the core); ``key`` names what happens."""
        known = self._steps.get((local, key))
        if known is None:
            core = fork(self.cores[local], self._left_out)
            came = act(core)
            known = self._steps[local, key] = self.enter(core), came
        return known
