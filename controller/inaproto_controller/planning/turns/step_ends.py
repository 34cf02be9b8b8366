"""When a step of a job ends if its operations use INA from some time on, and go without before.

What planning of turns asks again and again (:mod:`inaproto_controller.planning.turns.turns`): of one place in
a step for many times, or of one time for a job that goes on through its step. Either way all questions
together cost about as much as one walk over the step, so that a plan takes time in proportion to its
operations.

Operations without INA from i on, of which i begins at ``at``: with t(k) what k and those after it take, k
begins at ``max(at + t(i), max over i < j <= k of (ready(j) + t(j))) - t(k)``. So the first that begins at a
time or later is found by bisection where ``at`` is what counts, and by a window over the others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Final

from inaproto_controller.planning.turns.job_run import JobRun


def best_end(run: JobRun) -> float:
    """End of the step, if this operation and all after it use INA. ``run``: an operation begins."""
    times, at = run.times, run.at - run.step_start
    return run.step_start + max(at + times.tail_ina[run.index], times.floor_ina[run.index])


def plain_end(run: JobRun) -> float:
    """End of the step, if none does from this one on."""
    times, at = run.times, run.at - run.step_start
    return run.step_start + max(at + times.tail_plain[run.index], times.floor_plain[run.index])


class EndsOfStep:
    """Ends of a step from one place in it, for any times."""

    def __init__(self, run: JobRun) -> None:
        """``run``: an operation begins; not kept."""
        times, at = run.times, run.at - run.step_start
        self.best: Final = best_end(run)
        self._times, self._start, self._index = times, run.step_start, run.index
        self._plain: Final = plain_end(run)
        self._begins: Final[list[float]] = []
        """Beginnings of this operation and those after it, without INA."""
        for ready, plain in zip(times.ready[run.index :], times.plain[run.index :], strict=True):
            self._begins.append(max(at, ready))
            at = self._begins[-1] + plain

    def end(self, ina_from: float) -> float:
        """If operations that begin then or later use INA."""
        place = bisect_left(self._begins, ina_from - self._start)
        if place == len(self._begins):
            return self._plain
        times, number = self._times, self._index + place
        return self._start + max(self._begins[place] + times.tail_ina[number], times.floor_ina[number])


class EndsFrom:
    """Ends from one time, for a run that goes on through its step; no place of it is asked after a later
    one."""

    def __init__(self, run: JobRun, ina_from: float) -> None:
        self._times = run.times
        self._since: Final = ina_from - run.step_start
        self._found = run.index
        """The first, after the place that was asked of last, that begins at the time or later, whenever that
        place begins; as many as there are operations: none does."""
        self._window: Final[deque[int]] = deque()
        """Up to it, those before which none after them is ready later than they are done."""

    def end(self, run: JobRun) -> float:
        """End of the step. ``run``: an operation begins."""
        times, index, at = run.times, run.index, run.at - run.step_start
        tail = times.tail_plain
        self._go_on(index)
        at_once = at + tail[index]
        by_at = bisect_left(range(times.count), self._since - at_once, index, key=lambda k: -tail[k])
        number = min(by_at, self._found)
        if number == times.count:
            return plain_end(run)
        if number == index:
            begin = at
        else:
            begin = (at_once if by_at < self._found else max(at_once, self._done(self._window[0]))) - tail[
                number
            ]
        return run.step_start + max(begin + times.tail_ina[number], times.floor_ina[number])

    def _done(self, number: int) -> float:
        """From when this one is ready on, all from it on without a break."""
        return self._times.ready[number] + self._times.tail_plain[number]

    def _go_on(self, index: int) -> None:
        times, window = self._times, self._window
        self._found = max(self._found, index)
        while window and window[0] <= index:
            window.popleft()
        while self._found < times.count and not self._is_late():
            self._found += 1
            if self._found < times.count:
                while window and self._done(window[-1]) <= self._done(self._found):
                    window.pop()
                window.append(self._found)

    def _is_late(self) -> bool:
        window = self._window
        return bool(window) and self._done(window[0]) >= self._since + self._times.tail_plain[self._found]
