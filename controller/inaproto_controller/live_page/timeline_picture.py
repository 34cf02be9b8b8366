"""Who had which pool when, the last moments of it: a row for each job at each pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from inaproto.client.ring_names import parse_ring_job
from inaproto_controller.history_records import TurnSeen
from inaproto_controller.looks import PALE

WIDTH: Final = 1160
LEFT: Final = 220
"""Where time begins: names are left of it."""
RIGHT: Final = 20
TOP: Final = 8
ROW_HEIGHT: Final = 24
AXIS_HEIGHT: Final = 28
ROWS_MAX: Final = 24
BARS_MAX: Final = 2000
_BAR_WIDTH_MIN: Final = 1.0
_TICKS: Final = 6
_LABEL_MAX: Final = 30


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    colour: str
    title: str
    is_open: bool


@dataclass(frozen=True, slots=True)
class Row:
    y: float
    label: str
    title: str


@dataclass(frozen=True, slots=True)
class Tick:
    x: float
    label: str


@dataclass(frozen=True, slots=True)
class TimelinePicture:
    width: int
    height: int
    left: int
    right: int
    """Where time ends: now."""
    rows: Sequence[Row]
    bars: Sequence[Bar]
    ticks: Sequence[Tick]
    left_out: Sequence[str]
    bar_height: int = ROW_HEIGHT - 8


def timeline(
    turns: Sequence[TurnSeen], colours: Mapping[str, str], *, now: float, window_s: float
) -> TimelinePicture:
    """``turns``: that had not ended when the window began; ``colours``: of jobs."""
    begin, scale = now - window_s, (WIDTH - LEFT - RIGHT) / window_s
    keys = sorted({(one.pool, one.job) for one in turns})
    rows = {key: TOP + number * ROW_HEIGHT for number, key in enumerate(keys[:ROWS_MAX])}
    bars = []
    for one in turns:
        y = rows.get((one.pool, one.job))
        if y is None:
            continue
        start = max(one.began_at, begin)
        end = now if one.ended_at is None else min(one.ended_at, now)
        if end < begin or start > now:
            continue
        x = LEFT + (start - begin) * scale
        width = min(max(_BAR_WIDTH_MIN, (end - start) * scale), WIDTH - RIGHT - x)
        until = "on" if one.until is None else f"to {one.until - 1}"
        title = f"{one.job} has {one.pool}, epoch {one.epoch}: operations from {one.first} {until}"
        is_open = one.ended_at is None
        colour = colours.get(parse_ring_job(one.job).job, PALE)
        bars.append(Bar(round(x, 2), y + 4, round(max(0.0, width), 2), colour, title, is_open))
    left_out = []
    if len(keys) > ROWS_MAX:
        left_out.append(f"{len(keys) - ROWS_MAX} of {len(keys)} rows")
    if len(bars) > BARS_MAX:
        left_out.append(f"the first {len(bars) - BARS_MAX} of {len(bars)} turns")
    return TimelinePicture(
        WIDTH,
        TOP + ROW_HEIGHT * max(1, len(rows)) + AXIS_HEIGHT,
        LEFT,
        WIDTH - RIGHT,
        [Row(y, _label(f"{job} at {pool}"), f"{job} at {pool}") for (pool, job), y in rows.items()],
        bars[-BARS_MAX:],
        [_tick(number, window_s) for number in range(_TICKS + 1)],
        left_out,
    )


def _tick(number: int, window_s: float) -> Tick:
    ago = window_s * (_TICKS - number) / _TICKS
    x = LEFT + (WIDTH - LEFT - RIGHT) * number / _TICKS
    return Tick(round(x, 1), f"{ago:g} s ago" if ago else "now")


def _label(text: str) -> str:
    return text if len(text) <= _LABEL_MAX else f"{text[: _LABEL_MAX - 1]}…"
