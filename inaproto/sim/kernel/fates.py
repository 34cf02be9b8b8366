"""The fate of each frame on one direction of a link, frame by frame: drawn from a seed, or as recorded.

It is the weather of :mod:`inaproto.faults.weather`, with the same ten draws for each frame, for a world
that moves frames singly. Fates other than "passes unharmed" are few and are always recorded; a run
that is given recorded fates draws nothing at all, so its log replays it whatever the generator does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

import numpy as np

from inaproto.faults.streams import Seed, named_bits
from inaproto.faults.weather import HEADER_BYTES, Draw, Weather, corrupt_bit, draw, scaled, thresholds

_BLOCK_FRAMES: Final = 256


class Fate(NamedTuple):
    """What befalls one frame. Delays are on top of the link's own; -1 and empty stand for "does not"."""

    drop: bool = False
    delay_ns: int = 0
    copy_delay_ns: int = -1
    """Delay of a duplicate; 0: right behind the frame."""
    corrupt_bit: int = -1
    cut_bytes: int = -1
    """Bytes that are left of it."""


LinkFates = Mapping[str, Mapping[int, Fate]]
"""Fates by link direction, then by the frame's number on it."""


class FateSource(Protocol):
    recorded: dict[int, Fate]
    """Fates by the frame's number on this link direction, from 0."""

    def next(self, frame_bytes: int) -> Fate | None:
        """The fate of the next frame; None: it passes unharmed."""
        ...

    def set_weather(self, weather: Weather) -> None:
        """From the next frame on."""


class DrawnFates:
    """Fates as the weather has them. Every frame takes its ten draws, whatever the weather is then."""

    def __init__(self, weather: Weather, seed: Seed, purpose: str) -> None:
        self.recorded: dict[int, Fate] = {}
        self._bits = named_bits(seed, purpose)
        self._blocks = -1
        self._row = _BLOCK_FRAMES
        self._draws = np.empty((0, len(Draw)), np.uint64)
        self._hit: list[bool] = []
        self.set_weather(weather)

    def set_weather(self, weather: Weather) -> None:
        self._weather = weather
        self._thresholds = thresholds(weather)
        self._find_hits()

    def _find_hits(self) -> None:
        hits = np.asarray((self._draws[:, : len(self._thresholds)] < self._thresholds).any(axis=1))
        self._hit = hits.tolist()

    def next(self, frame_bytes: int) -> Fate | None:
        row = self._row
        if row == _BLOCK_FRAMES:
            self._draws = draw(self._bits, _BLOCK_FRAMES)
            self._blocks += 1
            row = 0
            self._find_hits()
        self._row = row + 1
        if not self._hit[row]:
            return None
        fate = self._fate(self._draws[row].tolist(), frame_bytes)
        self.recorded[self._blocks * _BLOCK_FRAMES + row] = fate
        return fate

    def _fate(self, draws: list[int], frame_bytes: int) -> Fate:
        drop, twice, late, corrupt, cut = (
            draw < threshold for draw, threshold in zip(draws, self._thresholds.tolist(), strict=False)
        )
        if drop:
            return Fate(drop=True)
        shorter = bool(cut) and frame_bytes > HEADER_BYTES
        left = (
            HEADER_BYTES + scaled(draws[Draw.TRUNCATE_AT], frame_bytes - HEADER_BYTES)
            if shorter
            else frame_bytes
        )
        copy_late = draws[Draw.COPY_REORDER] < int(self._thresholds[Draw.REORDER])
        return Fate(
            delay_ns=self._delay(draws[Draw.DELAY]) if late else 0,
            copy_delay_ns=(self._delay(draws[Draw.COPY_DELAY]) if copy_late else 0) if twice else -1,
            corrupt_bit=corrupt_bit(self._weather, draws[Draw.CORRUPT_AT], left) if corrupt else -1,
            cut_bytes=left if shorter else -1,
        )

    def _delay(self, number: int) -> int:
        weather = self._weather
        return weather.delay_min_ns + scaled(number, weather.delay_max_ns - weather.delay_min_ns + 1)


class RecordedFates:
    """Fates of an earlier run, or of part of them."""

    def __init__(self, recorded: Mapping[int, Fate]) -> None:
        self.recorded = dict(recorded)
        self._number = -1

    def set_weather(self, weather: Weather) -> None:
        """The fates are known already."""

    def next(self, frame_bytes: int) -> Fate | None:
        self._number += 1
        return self.recorded.get(self._number)
