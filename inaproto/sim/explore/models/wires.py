"""Connections of an explored overlay, one direction each, as numbers: what its target hears next."""

from __future__ import annotations

from typing import Final, NamedTuple

from inaproto.sim.explore.models.machine import Numbers

END: Final = -1
"""End of a connection that its source has closed, after all that it said."""
CUT: Final = -2
"""End of one that broke, or whose source has crashed: its words before that may be lost."""
MEET: Final = -3
"""Beginning of a new connection."""
ABSENT: Final = 0
"""There is no connection that its target knows, and none comes."""
EMPTY: Final = 1


class Wire(NamedTuple):
    is_heard: bool = False
    """Its target takes itself for connected."""
    items: tuple[int, ...] = ()
    """Words, by their numbers, and marks."""

    @property
    def is_joined(self) -> bool:
        """At its source's end."""
        marks = [item for item in self.items if item < 0]
        return marks[-1] == MEET if marks else self.is_heard

    @property
    def is_current(self) -> bool:
        """Its target is connected, and nothing is on its way that would tell it otherwise."""
        return self.is_heard and min(self.items, default=0) >= 0


class Wires:
    def __init__(self) -> None:
        self._wires: Numbers[Wire] = Numbers(Wire(), Wire(is_heard=True))
        self._told: dict[tuple[int, tuple[int, ...]], int] = {}
        self._heard: dict[int, int] = {}
        self._ended: dict[tuple[int, int], int] = {}
        self._current: dict[int, bool] = {}

    def __getitem__(self, number: int) -> Wire:
        return self._wires[number]

    def __len__(self) -> int:
        return len(self._wires)

    def of(self, wire: Wire) -> int:
        return self._wires.of(wire)

    def is_current(self, number: int) -> bool:
        known = self._current.get(number)
        if known is None:
            known = self._current[number] = self[number].is_current
        return known

    def told(self, number: int, items: tuple[int, ...]) -> int:
        after = self._told.get((number, items))
        if after is None:
            wire = self[number]
            after = self.of(wire._replace(items=(*wire.items, *items)))
            self._told[number, items] = after
        return after

    def heard(self, number: int) -> int:
        """Without its first item."""
        after = self._heard.get(number)
        if after is None:
            wire = self[number]
            [first, *rest] = wire.items
            after = self.of(Wire(wire.is_heard if first >= 0 else first == MEET, tuple(rest)))
            self._heard[number] = after
        return after

    def cut_short(self, number: int) -> int:
        """Words before the cut are lost."""
        items = self[number].items
        return self.of(Wire(items=items[items.index(CUT) + 1 :]))

    def ended(self, number: int, mark: int) -> int:
        """At its source, unless it has ended there before."""
        after = self._ended.get((number, mark))
        if after is None:
            after = self.told(number, (mark,)) if self[number].is_joined else number
            self._ended[number, mark] = after
        return after
