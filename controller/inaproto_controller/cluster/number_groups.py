"""Numbers by a key, carried from one value to the next: what changes one group copies that one alone."""

from __future__ import annotations

from collections.abc import Hashable, KeysView
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Groups(Generic[K]):
    """Numbers by key, in the order in which they came."""

    def __init__(self, of: dict[K, dict[int, None]] | None = None) -> None:
        self._of: dict[K, dict[int, None]] = of or {}
        self._own: set[K] = set()
        """Keys whose numbers no other one has."""

    def copy(self) -> Groups[K]:
        """Both may be changed afterwards."""
        self._own = set()
        return Groups(dict(self._of))

    def of(self, key: K) -> KeysView[int]:
        return self._of.get(key, {}).keys()

    def keys(self) -> KeysView[K]:
        """Those that have numbers."""
        return self._of.keys()

    def add(self, key: K, number: int) -> None:
        self._numbers(key)[number] = None

    def remove(self, key: K, number: int) -> None:
        numbers = self._numbers(key)
        del numbers[number]
        if not numbers:
            del self._of[key]
            self._own.discard(key)

    def _numbers(self, key: K) -> dict[int, None]:
        if key not in self._own:
            self._of[key] = dict(self._of.get(key, {}))
            self._own.add(key)
        return self._of[key]
