"""Who had which pool when, the last moments of it: a lane for each job at each pool.

Each pool has a lane of its own above those of its jobs, with the rounds of two-phase commit by which turns
are given. Fallbacks and migrations are marked in the lanes of their jobs; jobs without any have lanes of
their own for these. A line through all of it: a controller began to lead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from inaproto.client.ring_names import parse_ring_job
from inaproto_controller.pictures.job_colours import JobColours
from inaproto_controller.pictures.labels import shortened
from inaproto_controller.service.history_records import (
    COMMITTED,
    Fallback,
    Led,
    RoundSeen,
    TreeMove,
    TurnSeen,
)

WIDTH: Final = 1160
LEFT: Final = 240
"""Where time begins: names are left of it."""
RIGHT: Final = 64
"""Right of now: shares of time."""
TOP: Final = 18
LANE_HEIGHT: Final = 26
BAR_HEIGHT: Final = 14
AXIS_HEIGHT: Final = 24
LANES_MAX: Final = 32
BARS_MAX: Final = 2000
MARKS_MAX: Final = 1000
ELSEWHERE: Final = "jobs without a pool"
_BAR_WIDTH_MIN: Final = 1.5
_TICKS_MAX: Final = 6
_STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800)
_TICK_ROOM: Final = 76.0
"""Room of half a tick's label, and of that of now as far as it is left of it."""


@dataclass(frozen=True, slots=True)
class Happened:
    """All that can be in the picture."""

    turns: Sequence[TurnSeen] = ()
    rounds: Sequence[RoundSeen] = ()
    fallbacks: Sequence[Fallback] = ()
    moves: Sequence[TreeMove] = ()
    leaders: Sequence[Led] = ()


@dataclass(frozen=True, slots=True)
class Lane:
    middle: float
    label: str
    title: str
    is_pool: bool
    colour: int | None = None
    share: str = ""
    """Share of the window in which the job had the pool."""


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    colour: int
    title: str
    is_open: bool


@dataclass(frozen=True, slots=True)
class Mark:
    kind: str
    """``committed``, ``aborted``, ``fallback`` or ``move``."""
    x: float
    y: float
    title: str
    width: float = 0.0
    """How long it took; of a migration."""


@dataclass(frozen=True, slots=True)
class Tick:
    x: float
    label: str


@dataclass(slots=True)
class TimelinePicture:
    height: int
    lanes: list[Lane]
    ticks: list[Tick]
    bars: list[Bar] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    leaders: list[Tick] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    width: int = WIDTH
    left: int = LEFT
    right: int = WIDTH - RIGHT
    """Where time ends: now."""
    top: int = TOP
    bar_height: int = BAR_HEIGHT


def timeline(happened: Happened, colours: JobColours, *, now: float, window_s: float) -> TimelinePicture:
    """What had not ended when the window began."""
    return _Drawing(happened, colours, now, window_s).picture


class _Drawing:
    def __init__(self, happened: Happened, colours: JobColours, now: float, window_s: float) -> None:
        self._colours, self._now = colours, now
        self._begin = now - window_s
        self._scale = (WIDTH - LEFT - RIGHT) / window_s
        turns = [one for one in happened.turns if self._is_seen(one.began_at, one.ended_at or now)]
        rounds = [one for one in happened.rounds if self._is_seen(one.ended_at or one.began_at)]
        fallbacks = [one for one in happened.fallbacks if self._is_seen(one.at)]
        moves = [one for one in happened.moves if self._is_seen(one.at, one.ended_at or now)]
        self._middles: dict[tuple[str, str], float] = {}
        """Middles of lanes, by pool and job; of a pool itself: without a job."""
        self._of_jobs: dict[str, list[float]] = {}
        lanes = self._lanes(turns, rounds, {one.job for one in fallbacks} | {one.job for one in moves})
        shown = lanes[:LANES_MAX]
        height = TOP + LANE_HEIGHT * max(1, len(shown)) + AXIS_HEIGHT
        self.picture = TimelinePicture(height, shown, self._ticks(window_s))
        if len(lanes) > len(shown):
            self.picture.left_out.append(f"{len(lanes) - len(shown)} of {len(lanes)} lanes")
        self._draw_turns(turns)
        self._draw_marks(rounds, fallbacks, moves)
        for one in happened.leaders:
            if self._is_seen(one.at):
                self.picture.leaders.append(Tick(self._x(one.at), f"term {one.term}"))

    # --- where

    def _x(self, at: float) -> float:
        return round(LEFT + (min(max(at, self._begin), self._now) - self._begin) * self._scale, 2)

    def _is_seen(self, began: float, ended: float | None = None) -> bool:
        return began <= self._now and (began if ended is None else ended) >= self._begin

    def _lanes(self, turns: Sequence[TurnSeen], rounds: Sequence[RoundSeen], marked: set[str]) -> list[Lane]:
        at = {(one.pool, one.job) for one in turns}
        pools = {pool for pool, _ in at} | {one.pool for one in rounds}
        names = {parse_ring_job(job).job for _, job in at}
        keys = sorted({(pool, "") for pool in pools} | at)
        lost = sorted(job for job in marked if job not in names)
        if lost:
            keys += [(ELSEWHERE, ""), *((ELSEWHERE, job) for job in lost)]
        shares = self._shares(turns)
        lanes = []
        for number, (pool, job) in enumerate(keys):
            middle = TOP + (number + 0.5) * LANE_HEIGHT
            if number < LANES_MAX:
                self._middles[pool, job] = middle
                if job:
                    self._of_jobs.setdefault(parse_ring_job(job).job, []).append(middle)
            if not job:
                text = pool if pool == ELSEWHERE else f"{pool}: rounds"
                lanes.append(Lane(middle, shortened(text, LEFT - 12), text, True))
            else:
                label = shortened(job, LEFT - 40)
                share = shares.get((pool, job), "")
                lanes.append(Lane(middle, label, f"{job} at {pool}", False, self._colours.of(job), share))
        return lanes

    def _shares(self, turns: Sequence[TurnSeen]) -> dict[tuple[str, str], str]:
        had: dict[tuple[str, str], float] = {}
        for one in turns:
            ended = self._now if one.ended_at is None else min(one.ended_at, self._now)
            key = (one.pool, one.job)
            had[key] = had.get(key, 0.0) + max(0.0, ended - max(one.began_at, self._begin))
        return {key: f"{100 * seconds / (self._now - self._begin):.0f} %" for key, seconds in had.items()}

    def _ticks(self, window_s: float) -> list[Tick]:
        """At round times of the clock, and now."""
        step = next((step for step in _STEPS if window_s / step <= _TICKS_MAX), _STEPS[-1])
        step *= math.ceil(window_s / step / _TICKS_MAX)
        first = math.ceil(self._begin / step) * step
        times = [first + number * step for number in range(math.ceil((self._now - first) / step))]
        ticks = [Tick(self._x(at), clock(at)) for at in times]
        last = WIDTH - RIGHT
        return [
            *(one for one in ticks if one.x < last - _TICK_ROOM),
            Tick(last, f"now, {clock(self._now)}"),
        ]

    # --- what

    def _draw_turns(self, turns: Sequence[TurnSeen]) -> None:
        bars = self.picture.bars
        for one in turns:
            middle = self._middles.get((one.pool, one.job))
            if middle is None:
                continue
            x = self._x(one.began_at)
            end = self._x(self._now if one.ended_at is None else one.ended_at)
            width = min(max(_BAR_WIDTH_MIN, end - x), WIDTH - RIGHT - x)
            until = "on" if one.until is None else f"to {one.until - 1}"
            title = (
                f"{one.job} has {one.pool}, turn {one.epoch}: all-reduces from {one.first} {until}; "
                f"{clock(one.began_at)} to {'now' if one.ended_at is None else clock(one.ended_at)}"
            )
            y, colour = middle - BAR_HEIGHT / 2, self._colours.of(one.job)
            bars.append(Bar(x, y, round(max(0.0, width), 2), colour, title, one.ended_at is None))
        if len(bars) > BARS_MAX:
            self.picture.left_out.append(f"the first {len(bars) - BARS_MAX} of {len(bars)} turns")
            del bars[:-BARS_MAX]

    def _draw_marks(
        self, rounds: Sequence[RoundSeen], fallbacks: Sequence[Fallback], moves: Sequence[TreeMove]
    ) -> None:
        marks = []
        for seen in rounds:
            middle = self._middles.get((seen.pool, ""))
            if middle is not None and seen.ended_at is not None:
                is_committed = seen.outcome == COMMITTED
                kind, x = "committed" if is_committed else "aborted", self._x(seen.ended_at)
                title = f"{clock(seen.ended_at)} {seen.pool}: {seen.outcome} {seen.what}".rstrip()
                marks.append(Mark(kind, x, middle, title))
        for move in moves:
            end = self._now if move.ended_at is None else move.ended_at
            x, title = self._x(move.at), f"{clock(move.at)} {move.job} migrates from {move.old} to {move.new}"
            width = round(self._x(end) - x, 2)
            marks += [Mark("move", x, middle, title, width) for middle in self._of_jobs.get(move.job, ())]
        for one in fallbacks:
            x, title = self._x(one.at), f"{clock(one.at)} {one.job}: {one.reason}"
            marks += [Mark("fallback", x, middle, title) for middle in self._of_jobs.get(one.job, ())]
        if len(marks) > MARKS_MAX:
            self.picture.left_out.append(f"{len(marks) - MARKS_MAX} of {len(marks)} rounds and marks")
        self.picture.marks = marks[-MARKS_MAX:]


def moment(at: float, now: float) -> str:
    """The time of a day, with the date if that is not the day of ``now``."""
    is_today = datetime.fromtimestamp(at, UTC).date() == datetime.fromtimestamp(now, UTC).date()
    return clock(at) if is_today else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


def clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")
