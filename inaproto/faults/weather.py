"""What a wire does to frames: loss, duplication, reordering, corruption, truncation. Pure and seeded.

The same weather falls in the Trio-free world, on the in-memory links and on the ports of a real
switch daemon, so that one seed gives one failure everywhere.

Invariants:

* The fate of a frame depends on the seed, the purpose and its place in the order of arrival. It does
  not depend on how the frames are cut into batches, nor on the other probabilities: every frame draws
  the same ten numbers, used or not, so that more loss leaves the duplicates where they were.
* Draws are raw 53-bit integers compared with integer thresholds: no floating-point rounding and no
  distribution of numpy decides a fate.
* Frames are never changed in place. Weather that does nothing to a batch returns that batch, uncopied.

Reordering is delay: a frame that is hit arrives ``delay`` later, and those behind it overtake. A
duplicate carries what the first copy carries, damage included, and is itself reordered or not.
Corruption flips one bit anywhere in the frame; the wire has no FCS, so a flipped bit in the Ethernet
header arrives, as one does from a faulty bridge. Truncation leaves at least an Ethernet header. The share
``addresses`` of the flipped bits lies where no ICRC looks (Ethernet addresses and type, and what it masks of
IP, UDP and BTH): such a packet is taken for intact, and anywhere in a frame these bits are hit too seldom.
"""

from __future__ import annotations

import heapq
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import ConfigError
from inaproto.faults.streams import Seed, named_bits
from inaproto.units import MS, US, Frames, Instant, S
from inaproto.wire.icrc import MASKED_OFFSETS

DELAY_NS_MAX: Final = 60 * S
HEADER_BYTES: Final = 14
_DRAW_BITS: Final = 53
_PROBABILITIES: Final = ("drop", "duplicate", "reorder", "corrupt", "truncate")
_SHARES: Final = (*_PROBABILITIES, "addresses")
UNCOVERED: Final = (*range(HEADER_BYTES), *MASKED_OFFSETS)
"""Frame offsets that no ICRC covers."""
_DURATION_UNITS: Final = {"ns": 1, "us": US, "ms": MS, "s": S}
_EXAMPLE: Final = "drop=0.01,duplicate=0.001,reorder=0.01,delay=1ms"


@dataclass(frozen=True, slots=True)
class Weather:
    """Probabilities per frame, and how long a reordered frame is late (uniform between the two)."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    truncate: float = 0.0
    delay_min_ns: int = MS
    delay_max_ns: int = MS
    addresses: float = 0.0
    """Share of the flipped bits that lie where no ICRC looks."""

    def __post_init__(self) -> None:
        for field in _SHARES:
            value = getattr(self, field)
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"weather: {field}={value}: a probability lies between 0 and 1")
        if not 1 <= self.delay_min_ns <= self.delay_max_ns <= DELAY_NS_MAX:
            raise ConfigError(
                f"weather: delay={_duration_text(self.delay_min_ns)}..{_duration_text(self.delay_max_ns)}: "
                f"a delay lies between 1ns and {DELAY_NS_MAX // S}s, the shorter one first"
            )

    @property
    def clear(self) -> bool:
        """Nothing ever happens to a frame."""
        return not any(getattr(self, field) for field in _PROBABILITIES)

    @classmethod
    def parse(cls, text: str) -> Self:
        """From ``drop=0.01,duplicate=0.001,reorder=1%,delay=1ms..3ms``; empty or ``clear`` is no weather.

        Raises ``ConfigError`` that names the field.
        """
        values: dict[str, Any] = {}
        words = [] if text.strip() in ("", "clear") else text.split(",")
        for word in words:
            field, equals, value = (part.strip() for part in word.partition("="))
            if not equals or not value:
                raise ConfigError(f"weather: {word.strip()!r} has no value; write for example {_EXAMPLE}")
            if field in values or (field == "delay" and "delay_min_ns" in values):
                raise ConfigError(f"weather: {field} is given twice")
            if field == "delay":
                first, _, last = value.partition("..")
                values["delay_min_ns"] = _parse_duration(first)
                values["delay_max_ns"] = _parse_duration(last or first)
            elif field in _SHARES:
                values[field] = _parse_probability(field, value)
            else:
                known = ", ".join((*_SHARES, "delay"))
                raise ConfigError(f"weather: there is no field {field!r}; the fields are {known}")
        return cls(**values)

    def __str__(self) -> str:
        """The text form; ``parse`` gives the same weather back."""
        words = [f"{field}={getattr(self, field)!r}" for field in _SHARES if getattr(self, field)]
        if not words and self == Weather():
            return "clear"
        delay = _duration_text(self.delay_min_ns)
        if self.delay_max_ns != self.delay_min_ns:
            delay += f"..{_duration_text(self.delay_max_ns)}"
        return ",".join([*words, f"delay={delay}"])


def _parse_probability(field: str, value: str) -> float:
    number, scale = (value[:-1], 0.01) if value.endswith("%") else (value, 1.0)
    try:
        return float(number) * scale
    except ValueError:
        raise ConfigError(f"weather: {field}={value}: not a number; write for example {field}=0.01") from None


def _parse_duration(text: str) -> int:
    text = text.strip()
    number = text.rstrip("nums")
    try:
        return round(float(number) * _DURATION_UNITS[text[len(number) :]])
    except (ValueError, KeyError, OverflowError):
        raise ConfigError(
            f"weather: delay={text}: not a duration; write for example delay=1ms (ns, us, ms, s)"
        ) from None


def _duration_text(duration_ns: int) -> str:
    for unit in ("s", "ms", "us"):
        if duration_ns and duration_ns % _DURATION_UNITS[unit] == 0:
            return f"{duration_ns // _DURATION_UNITS[unit]}{unit}"
    return f"{duration_ns}ns"


@dataclass(slots=True)
class WeatherCounters:
    """Monotonic counters of frames; ``frames`` counts arrivals, ``reordered`` copies that came late."""

    frames: int = 0
    dropped: int = 0
    duplicated: int = 0
    reordered: int = 0
    corrupted: int = 0
    truncated: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class Draw(IntEnum):
    """The ten numbers that each frame draws, in this order; the first five decide whether it is hit."""

    DROP = 0
    DUPLICATE = 1
    REORDER = 2
    CORRUPT = 3
    TRUNCATE = 4
    DELAY = 5
    COPY_REORDER = 6
    COPY_DELAY = 7
    CORRUPT_AT = 8
    TRUNCATE_AT = 9


_AHEAD_FRAMES: Final = 512


def draw(bits: np.random.PCG64, frames: int) -> NDArray[np.uint64]:
    """The numbers of so many frames, shape (frames, 10), in the columns of :class:`Draw`."""
    raw = bits.random_raw(frames * len(Draw)).reshape(frames, len(Draw))
    return np.asarray(raw >> np.uint64(64 - _DRAW_BITS), np.uint64)


def thresholds(weather: Weather) -> NDArray[np.uint64]:
    """Below which the first five numbers of a frame hit it, shape (5,)."""
    return np.array(
        [round(getattr(weather, field) * (1 << _DRAW_BITS)) for field in _PROBABILITIES], np.uint64
    )


def scaled(number: np.uint64 | int, below: int) -> int:
    """A number in ``0 .. below - 1``, in Python integers because the product passes 64 bits."""
    return int(number) * below >> _DRAW_BITS


def corrupt_bit(weather: Weather, number: np.uint64 | int, nbytes: int) -> int:
    """Bit number, within the ``nbytes`` bytes that arrive, that is hit."""
    below: int = round(weather.addresses * (1 << _DRAW_BITS))
    if int(number) >= below:
        return (int(number) - below) * 8 * nbytes // ((1 << _DRAW_BITS) - below)
    uncovered: list[int] = [offset for offset in UNCOVERED if offset < nbytes]
    at = int(number) * 8 * len(uncovered) // below
    bit: int = 8 * uncovered[at >> 3] + (at & 7)
    return bit


class WeatherStream:
    """The weather over one direction of one wire."""

    def __init__(self, weather: Weather, seed: Seed, purpose: str) -> None:
        self.weather = weather
        self.counters = WeatherCounters()
        self._clear = weather.clear
        self._bits = named_bits(seed, purpose)
        self._thresholds = thresholds(weather)
        self._draws = np.empty((0, len(Draw)), np.uint64)  # of frames to come
        self._row = 0  # of the next one
        self._hits: list[int] = []  # rows that hit their frame, the last one first

    def apply(self, frames: Frames, now: Instant) -> list[tuple[Instant, Frames]]:
        """What arrives of ``frames`` (n, frame_bytes) and when.

        First the frames that arrive ``now``, in order, then one entry per late frame. Entries at
        ``now`` may be views of ``frames``; late ones are copies. Deliver by time, equal times in the
        order given (:class:`DelayLine`).
        """
        n = len(frames)
        self.counters.frames += n
        if n == 0:
            return []
        if self._clear:
            return [(now, frames)]
        row, past = self._row, self._row + n
        if past > len(self._draws):
            row, past = self._draw_ahead(n), n
        self._row = past
        if not self._hits or self._hits[-1] >= past:
            return [(now, frames)]
        while self._hits and self._hits[-1] < past:
            self._hits.pop()
        draws = self._draws[row:past]
        hits = draws[:, : len(self._thresholds)] < self._thresholds
        return self._deliver_hit_batch(frames, now, draws, hits)

    def _draw_ahead(self, n: int) -> int:
        """Draw for ``n`` frames at least; the row of the first. Many at once: frames often come singly."""
        left = self._draws[self._row :]
        fresh = draw(self._bits, max(n - len(left), _AHEAD_FRAMES))
        self._draws = np.concatenate([left, fresh])
        hits = (self._draws[:, : len(self._thresholds)] < self._thresholds).any(axis=1)
        self._hits = np.flatnonzero(hits)[::-1].tolist()
        return 0

    def _deliver_hit_batch(
        self, frames: Frames, now: Instant, draws: NDArray[np.uint64], hits: NDArray[np.bool_]
    ) -> list[tuple[Instant, Frames]]:
        alive = ~hits[:, Draw.DROP]
        twice = hits[:, Draw.DUPLICATE] & alive
        late = hits[:, Draw.REORDER] & alive
        copy_late = (draws[:, Draw.COPY_REORDER] < self._thresholds[Draw.REORDER]) & twice
        corrupt = hits[:, Draw.CORRUPT] & alive
        cut = hits[:, Draw.TRUNCATE] & alive & (frames.shape[1] > HEADER_BYTES)
        counters = self.counters
        counters.dropped += len(frames) - int(np.count_nonzero(alive))
        counters.duplicated += int(np.count_nonzero(twice))
        counters.reordered += int(np.count_nonzero(late)) + int(np.count_nonzero(copy_late))
        counters.corrupted += int(np.count_nonzero(corrupt))
        counters.truncated += int(np.count_nonzero(cut))

        copies_now = (alive & ~late).astype(np.intp) + (twice & ~copy_late)
        rows = np.repeat(np.arange(len(frames)), copies_now)
        prompt = frames[rows]
        for at in np.flatnonzero(corrupt[rows]).tolist():
            self._flip_bit(prompt[at], draws[rows[at]], cut=bool(cut[rows[at]]))
        delivered: list[tuple[Instant, Frames]] = []
        done = 0
        for at in np.flatnonzero(cut[rows]).tolist():
            if at > done:
                delivered.append((now, prompt[done:at]))
            delivered.append((now, prompt[at : at + 1, : _cut_bytes(frames.shape[1], draws[rows[at]])]))
            done = at + 1
        if done < len(prompt):
            delivered.append((now, prompt[done:]))

        for row in np.flatnonzero(late | copy_late).tolist():
            frame = frames[row : row + 1].copy()
            if corrupt[row]:
                self._flip_bit(frame[0], draws[row], cut=bool(cut[row]))
            if cut[row]:
                frame = frame[:, : _cut_bytes(frames.shape[1], draws[row])]
            if late[row]:
                delivered.append((self._late(now, draws[row, Draw.DELAY]), frame))
            if copy_late[row]:
                delivered.append((self._late(now, draws[row, Draw.COPY_DELAY]), frame.copy()))
        return delivered

    def _late(self, now: Instant, number: np.uint64) -> Instant:
        weather = self.weather
        return Instant(
            now + weather.delay_min_ns + scaled(number, weather.delay_max_ns - weather.delay_min_ns + 1)
        )

    def _flip_bit(self, frame: NDArray[np.uint8], draws: NDArray[np.uint64], *, cut: bool) -> None:
        # Only bits that arrive are flipped, so that a corrupted and truncated frame is both.
        arriving = _cut_bytes(len(frame), draws) if cut else len(frame)
        bit = corrupt_bit(self.weather, draws[Draw.CORRUPT_AT], arriving)
        frame[bit >> 3] ^= 1 << (bit & 7)


def _cut_bytes(frame_bytes: int, draws: NDArray[np.uint64]) -> int:
    return HEADER_BYTES + scaled(draws[Draw.TRUNCATE_AT], frame_bytes - HEADER_BYTES)


class DelayLine:
    """Frames under way, in the order in which they arrive; equal times keep the order of ``push``.

    Bounded in bytes of frames.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._heap: list[tuple[Instant, int, Frames]] = []
        self._sequence = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def next_at(self) -> Instant | None:
        """When the next frames arrive."""
        return self._heap[0][0] if self._heap else None

    def push(self, at: Instant, frames: Frames) -> bool:
        """Keep ``frames`` (not copied) until ``at``; False, and nothing kept, when they do not fit."""
        if self.bytes + frames.size > self.bytes_max:
            return False
        heapq.heappush(self._heap, (at, self._sequence, frames))
        self._sequence += 1
        self.bytes += frames.size
        return True

    def pop_due(self, now: Instant, bytes_max: int | None = None) -> list[Frames]:
        """Take what has arrived by ``now``, in order; at least one block, if any, and about ``bytes_max``."""
        due: list[Frames] = []
        taken = 0
        while self._heap and self._heap[0][0] <= now and (bytes_max is None or taken < bytes_max):
            frames = heapq.heappop(self._heap)[2]
            taken += frames.size
            due.append(frames)
        self.bytes -= taken
        return due

    def clear(self) -> int:
        """Forget everything; returns how many frames that were."""
        lost = sum(len(frames) for _, _, frames in self._heap)
        self._heap.clear()
        self.bytes = 0
        return lost
