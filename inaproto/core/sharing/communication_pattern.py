"""The communication pattern of a job, found in what its processes call: nothing of the model is known (MINA,
section IV-B, "communication pattern collection").

A pattern is the trace of one training step: how many bytes each all-reduce has, the earliest that it can
start, and when the framework begins to wait for results, all from the start of the step. An all-reduce starts
when it is submitted, not when it runs: one that stands behind another of its job counts from its own
submission.

*The step.* Calls are cut into segments, each some submissions and the waits that follow them. A step is the
fewest segments that repeat; if these are several (a framework that waits in mid-step) it begins after the
wait behind which the longest time passes before the next submission. Of periods that repeat often enough
that one is taken which explains most of what was seen last: eight equal segments and a ninth that differs are
a step of nine, once it was seen often enough. Times are medians over some steps.

*Where a step starts.* The paper takes starts alone. A step starts where the last wait before it ended; that
is the return of a call to us, so it may be told (``WaitEnded``). Where it is not, a step starts at the last
wait's beginning: what is between operations, and from each to the wait, is the same; the first operation then
stands later by what was waited.

*Drift.* Another size, another number of operations: the pattern is lost at once, and searched again.
Starts that have moved: when the medians over as many steps as it was measured over have, by more than they
scatter (on a busy machine they do, and a pattern that is lost by that is known for a part of the time only).
These steps are then the new pattern's measurement.

Invariants: what is kept is bounded by ``history_operations_max`` operations and ``history_segments_max``
segments, beside one open segment that is; starts of a pattern ascend; a pattern is found only when there is
none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median
from typing import Final, Self, assert_never

from inaproto.core.sharing.model_trace import ModelTrace
from inaproto.errors import ConfigError, LocalMisuse
from inaproto.units import MS, Instant, S


@dataclass(frozen=True, slots=True)
class PatternConfig:
    """Raises ``ConfigError`` for values that cannot be."""

    warmup_steps: int = 3
    """Steps at the beginning of a job that no pattern is taken from."""
    steps: int = 5
    """Steps that a pattern is the median over; it must have repeated in all of them."""
    moved_ns: int = 2 * MS
    """A start that moves by more is another pattern, if also by more than ``moved_share``."""
    moved_share: float = 0.05
    """Share of the step's duration by which a start must move, at least, to be another pattern."""
    moved_scatter: float = 4.0
    """How many times its usual distance from its median a start must move, at least; usual is the median over
    the steps."""
    history_operations_max: int = 16_384
    history_segments_max: int = 2_048

    def __post_init__(self) -> None:
        if min(self.warmup_steps, self.moved_ns, self.moved_share, self.moved_scatter) < 0:
            raise ConfigError("warmup_steps, moved_ns, moved_share, moved_scatter: must be 0 or more")
        if self.steps < 2:
            raise ConfigError(f"steps {self.steps}: a step is what repeats, so at least 2")
        if self.history_segments_max < self.steps or self.history_operations_max < self.steps:
            raise ConfigError("history_segments_max, history_operations_max: must hold so many steps")


@dataclass(frozen=True, slots=True)
class Pattern:
    """One training step: times in nanoseconds from its start, sizes in bytes."""

    nbytes: tuple[int, ...]
    ready_ns: tuple[int, ...]
    """The earliest that each operation can start, ascending."""
    duration_ns: int
    """Until the framework begins to wait."""
    waits_inside: int = 0
    """Waits that begin before the last submission. Such a step depends on its operations in more places than
    its end, so a prediction of it is worth less."""

    @classmethod
    def of_job(cls, hosts: Sequence[Pattern]) -> Self | None:
        """From those of its hosts: an operation starts when the last is ready. None if they do not fit."""
        if len({one.nbytes for one in hosts}) != 1:
            return None
        return cls(
            hosts[0].nbytes,
            tuple(map(max, zip(*(one.ready_ns for one in hosts), strict=True))),
            max(one.duration_ns for one in hosts),
            max(one.waits_inside for one in hosts),
        )

    def trace(self, name: str) -> ModelTrace:
        """For predictions of step times."""
        ready = tuple(start / S for start in self.ready_ns)
        return ModelTrace(name, self.duration_ns / S, ready, self.nbytes)

    def moved_by(self, other: Pattern) -> int:
        """The most that a start, or the wait, is elsewhere in ``other``, of the same operations."""
        starts = zip(self.ready_ns, other.ready_ns, strict=True)
        return max(abs(self.duration_ns - other.duration_ns), *(abs(one - two) for one, two in starts))


@dataclass(frozen=True, slots=True)
class Submitted:
    """An all-reduce was scheduled."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class WaitBegan:
    """The framework waits for results, of any operations."""


@dataclass(frozen=True, slots=True)
class WaitEnded:
    """It has them."""


PatternEvent = Submitted | WaitBegan | WaitEnded


class Loss(Enum):
    """How a job differs from its pattern."""

    SIZE = "an all-reduce of another size"
    EARLY_WAIT = "a wait before the operations of a step were submitted"
    MORE = "an all-reduce more than a step has"
    MOVED = "starts have moved"


@dataclass(frozen=True, slots=True)
class PatternFound:
    pattern: Pattern
    step: int
    """Operations of the job before the step that begins now: the first of that step has this number."""


@dataclass(frozen=True, slots=True)
class PatternLost:
    """It is measured again."""

    pattern: Pattern
    loss: Loss
    operation: int
    """Index in the job of the first operation that differs; if starts moved, of the next one."""


PatternAction = PatternFound | PatternLost


@dataclass(frozen=True, slots=True)
class PatternView:
    pattern: Pattern | None
    operations: int
    """How many were submitted."""
    segments_kept: int
    operations_kept: int
    """In segments that have ended."""
    found: int
    lost: int


@dataclass(slots=True)
class _Segment:
    origin: Instant
    """When a step begins that begins here."""
    nbytes: list[int] = field(default_factory=list)
    submitted: list[Instant] = field(default_factory=list)
    waited: Instant | None = None

    @property
    def lead(self) -> int:
        return self.submitted[0] - self.origin


class PatternWatch:
    """Pure core; see the module. Operations of one job, as one host submits them."""

    def __init__(self, config: PatternConfig) -> None:
        self._config: Final = config
        self._history: deque[_Segment] = deque()
        self._kept = 0
        self._segments = 0
        self._operations = 0
        self._open: _Segment | None = None
        self._origin: Instant | None = None
        """Where the last wait ended, as far as is known."""
        self._is_cut = True
        """The open segment began before we saw it, or before what was forgotten."""
        self._pattern: Pattern | None = None
        self._shape: list[tuple[int, ...]] = []
        """Sizes of the segments of a step."""
        self._place = 0
        """In ``_shape``, of the open segment, or of that which comes next."""
        self._fresh = 0
        """Segments since starts were compared last."""
        self._found = self._lost = 0

    @property
    def deadline(self) -> Instant | None:
        return None

    def step(self, event: PatternEvent, now: Instant) -> list[PatternAction]:
        """Raises ``LocalMisuse``: an operation of no bytes."""
        match event:
            case Submitted():
                return self._submit(event.nbytes, now)
            case WaitBegan():
                return self._wait(now)
            case WaitEnded():
                if self._open is None or self._open.waited is not None:
                    self._origin = now
                return []
            case _:
                assert_never(event)

    def view(self) -> PatternView:
        return PatternView(
            self._pattern, self._operations, len(self._history), self._kept, self._found, self._lost
        )

    def _submit(self, nbytes: int, now: Instant) -> list[PatternAction]:
        if nbytes <= 0:
            raise LocalMisuse(f"an all-reduce of {nbytes} bytes")
        actions: list[PatternAction] = []
        if self._open is not None and self._open.waited is not None:
            actions += self._close(self._open)
            self._open = None
        if self._open is None:
            self._open = _Segment(now if self._origin is None else self._origin)
        one = self._open
        one.nbytes.append(nbytes)
        one.submitted.append(now)
        if self._pattern is not None:
            expected = self._shape[self._place]
            count = len(one.nbytes)
            if count > len(expected):
                actions.append(self._lose(Loss.MORE))
            elif expected[count - 1] != nbytes:
                actions.append(self._lose(Loss.SIZE))
        self._operations += 1
        if len(one.nbytes) > self._config.history_operations_max:
            assert self._pattern is None, "several steps are kept, so one has fewer operations"
            self._forget()
        return actions

    def _wait(self, now: Instant) -> list[PatternAction]:
        self._origin = now
        one = self._open
        if one is None or one.waited is not None:
            return []
        one.waited = now
        if self._pattern is not None and len(one.nbytes) < len(self._shape[self._place]):
            return [self._lose(Loss.EARLY_WAIT)]
        return []

    def _forget(self) -> None:
        """All that was seen: it cannot be cut into steps."""
        self._history.clear()
        self._kept = 0
        self._open = None
        self._is_cut = True

    def _lose(self, loss: Loss) -> PatternLost:
        assert self._pattern is not None
        lost = PatternLost(self._pattern, loss, self._operations)
        self._pattern = None
        self._lost += 1
        return lost

    def _close(self, one: _Segment) -> list[PatternAction]:
        """A segment has ended: one more is submitted behind its waits."""
        self._segments += 1
        if self._is_cut:
            self._is_cut = False
            return []
        self._history.append(one)
        self._kept += len(one.nbytes)
        while (
            self._kept > self._config.history_operations_max
            or len(self._history) > self._config.history_segments_max
        ):
            self._kept -= len(self._history.popleft().nbytes)
        if self._pattern is None:
            return self._search()
        self._place = (self._place + 1) % len(self._shape)
        self._fresh += 1
        if self._place or self._fresh < self._config.steps * len(self._shape):
            return []
        self._fresh = 0
        steps = self._steps(len(self._shape), 0)
        found = self._measured(steps)
        config, scatter = self._config, _scatter(steps)
        share = config.moved_share * self._pattern.duration_ns
        if found.moved_by(self._pattern) <= max(config.moved_ns, share, config.moved_scatter * scatter):
            return []
        lost = self._lose(Loss.MOVED)
        self._pattern = found
        self._found += 1
        return [lost, PatternFound(found, self._operations)]

    def _search(self) -> list[PatternAction]:
        """A step among the segments that were seen last."""
        shapes = [one.nbytes for one in self._history]
        best, explains = 0, 0
        for period in range(1, len(shapes) // self._config.steps + 1):
            length = period
            while length < len(shapes) and shapes[-length - 1] == shapes[-length - 1 + period]:
                length += 1
            usable = min(length, self._segments - self._config.warmup_steps * period)
            if usable >= self._config.steps * period and length > explains:
                best, explains = period, length
                if length == len(shapes):
                    break
        if not best:
            return []
        before = self._before(best)
        if explains - before < self._config.steps * best:
            return []
        steps = self._steps(best, before)
        self._pattern = self._measured(steps)
        self._shape = [tuple(one.nbytes) for one in steps[0]]
        self._place = before
        self._fresh = 0
        self._found += 1
        begun = sum(len(shape) for shape in self._shape[:before])
        return [PatternFound(self._pattern, self._operations - begun)]

    def _before(self, period: int) -> int:
        """How many segments of a step that has not ended are the last ones."""
        recent = list(self._history)[-self._config.steps * period :]
        leads = [median(one.lead for one in recent[place::period]) for place in range(period)]
        first = leads.index(max(leads))
        return (period - first) % period

    def _steps(self, period: int, before: int) -> list[list[_Segment]]:
        """The last whole steps, so many as a pattern is measured over."""
        whole = list(self._history)
        whole = whole[: len(whole) - before][-self._config.steps * period :]
        return [whole[first : first + period] for first in range(0, len(whole), period)]

    def _measured(self, steps: Sequence[Sequence[_Segment]]) -> Pattern:
        middle = [int(median(values)) for values in _columns(steps)]
        nbytes = tuple(size for one in steps[0] for size in one.nbytes)
        return Pattern(nbytes, tuple(middle[:-1]), middle[-1], len(steps[0]) - 1)


def _columns(steps: Sequence[Sequence[_Segment]]) -> list[tuple[int, ...]]:
    """When each operation, and the wait, was in each step, counted from the step's start."""
    rows: list[tuple[int, ...]] = []
    for step in steps:
        origin = step[0].origin
        waited = step[-1].waited
        assert waited is not None, "a segment ends by a wait"
        rows.append((*(at - origin for one in step for at in one.submitted), waited - origin))
    return list(zip(*rows, strict=True))


def _scatter(steps: Sequence[Sequence[_Segment]]) -> float:
    """How far a start is off its median, in the median of the steps; of that which scatters most."""
    found = []
    for values in _columns(steps):
        middle = median(values)
        found.append(median(abs(value - middle) for value in values))
    return max(found)
