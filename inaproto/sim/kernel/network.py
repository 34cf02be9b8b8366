"""What words of a world go by: directions between two nodes, each with delays and fates of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

from inaproto.faults.streams import Draws, Seed
from inaproto.faults.weather import Weather
from inaproto.sim.kernel.fates import DrawnFates, Fate, FateSource, LinkFates, RecordedFates

_WORD_BYTES: Final = 256
_HARMLESS: Final = Fate()
World = TypeVar("World", bound=Any)


class Way:
    """One direction between two nodes: how long words take, and what the weather does to them."""

    def __init__(self, name: str, seed: Seed, weather: Weather, fates: LinkFates | None) -> None:
        self.name = name
        self.delays = Draws(seed, f"delay/{name}")
        self.fates: FateSource
        if fates is None:
            self.fates = DrawnFates(weather, seed, f"weather/{name}")
        else:
            self.fates = RecordedFates(fates.get(name, {}))

    def next_fate(self) -> Fate:
        return self.fates.next(_WORD_BYTES) or _HARMLESS


class Ways(Generic[World]):
    """All directions of a world; each is made when it is first used. A log's fates replay its run."""

    def __init__(self, world: World, fates: LinkFates | None) -> None:
        self._world = world
        self._given = fates
        self._ways: dict[str, Way] = {}
        self.words = 0

    @property
    def fates(self) -> LinkFates:
        """All that were not harmless."""
        return {way.name: way.fates.recorded for way in self._ways.values() if way.fates.recorded}

    def set_weather(self, weather: Weather) -> None:
        for way in self._ways.values():
            way.fates.set_weather(weather)

    def way(self, name: str) -> Way:
        found = self._ways.get(name)
        if found is None:
            world = self._world
            found = self._ways[name] = Way(name, world.config.seed, world.weather, self._given)
        return found

    def delay(self, way: Way) -> int:
        """Draw the delay of something on its way, without weather."""
        return way.delays.between(self._world.config.delay_min_ns, self._world.config.delay_max_ns)


class Cuts:
    """Says which directions between machines are stopped, by how many partitions at once."""

    def __init__(self) -> None:
        self._cuts: dict[tuple[int, int], int] = {}

    def cut(self, directions: Sequence[tuple[int, int]]) -> None:
        for each in directions:
            self._cuts[each] = self._cuts.get(each, 0) + 1

    def join(self, directions: Sequence[tuple[int, int]]) -> None:
        for each in directions:
            self._cuts[each] -= 1

    def between(self, source: int, target: int) -> bool:
        return self._cuts.get((source, target), 0) > 0
