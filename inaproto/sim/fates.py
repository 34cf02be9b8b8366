"""The fate of each frame on one direction of a link, frame by frame: drawn from a seed, or as recorded.

It is the weather of :mod:`inaproto.sim.weather`, with the same ten draws for each frame, for a world
that moves frames singly. Fates other than "passes unharmed" are few and are always recorded; a run
that is given recorded fates draws nothing at all, so its log replays it whatever the generator does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

import numpy as np

from inaproto.sim.streams import Seed, named_bits
from inaproto.sim.weather import Weather

_DRAWS: Final = 10
_DRAW_BITS: Final = 53
_BLOCK_FRAMES: Final = 256
_HEADER_BYTES: Final = 14
_PROBABILITIES: Final = ("drop", "duplicate", "reorder", "corrupt", "truncate")


class Fate(NamedTuple):
    """What befalls one frame. Delays are on top of the link's own; -1 and empty stand for "does not"."""

    drop: bool = False
    delay_ns: int = 0
    copy_delay_ns: int = -1
    """Of a duplicate; 0: right behind the frame."""
    corrupt_bit: int = -1
    cut_bytes: int = -1
    """Bytes that are left of it."""


class FateSource(Protocol):
    recorded: dict[int, Fate]
    """By the frame's number on this link direction, from 0."""

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
        self._draws = np.empty((0, _DRAWS), np.uint64)
        self._hit: list[bool] = []
        self.set_weather(weather)

    def set_weather(self, weather: Weather) -> None:
        self._weather = weather
        self._thresholds = np.array(
            [round(getattr(weather, field) * (1 << _DRAW_BITS)) for field in _PROBABILITIES], np.uint64
        )
        self._find_hits()

    def _find_hits(self) -> None:
        hits = np.asarray((self._draws[:, : len(_PROBABILITIES)] < self._thresholds).any(axis=1))
        self._hit = hits.tolist()

    def next(self, frame_bytes: int) -> Fate | None:
        row = self._row
        if row == _BLOCK_FRAMES:
            raw = self._bits.random_raw(_BLOCK_FRAMES * _DRAWS).reshape(_BLOCK_FRAMES, _DRAWS)
            self._draws = raw >> np.uint64(64 - _DRAW_BITS)
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
        shorter = bool(cut) and frame_bytes > _HEADER_BYTES
        left = _HEADER_BYTES + _scaled(draws[9], frame_bytes - _HEADER_BYTES) if shorter else frame_bytes
        copy_late = draws[6] < int(self._thresholds[2])
        return Fate(
            delay_ns=self._delay(draws[5]) if late else 0,
            copy_delay_ns=(self._delay(draws[7]) if copy_late else 0) if twice else -1,
            corrupt_bit=_scaled(draws[8], 8 * left) if corrupt else -1,
            cut_bytes=left if shorter else -1,
        )

    def _delay(self, draw: int) -> int:
        weather = self._weather
        return weather.delay_min_ns + _scaled(draw, weather.delay_max_ns - weather.delay_min_ns + 1)


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


def _scaled(draw: int, below: int) -> int:
    return draw * below >> _DRAW_BITS
