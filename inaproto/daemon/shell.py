"""Where a core meets Trio: events one after the other, and the one loop that waits for a deadline.

A shell owns one task for each core: it waits for an event or for the core's deadline, steps the core, and
performs its actions, which may only enqueue. :class:`~inaproto.core.steps.Steps` keeps a step from beginning
inside another one; :class:`Alarm` is the loop. :class:`Rest` is for who looks less often at what comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import trio

from inaproto.daemon.timers import KernelTimer, open_timer
from inaproto.units import US, Instant, S

_LATE_NS: Final = US
"""Trio's clock is a float: so much after a deadline it is past for sure."""
REST_LATE_S: Final = 0.008
"""A process that runs so much later than it asked for has not got the processor."""
RESTLESS_S: Final = 0.5


def current_instant() -> Instant:
    """Return the time of Trio's clock, in nanoseconds; in tests that may be virtual time."""
    return Instant(int(trio.current_time() * S))


class Alarm:
    """Calls ``wake`` whenever ``deadline()`` has passed; :meth:`run` it.

    Call :meth:`look` when the deadline may have changed. ``wake`` must not wait; the deadline may still be
    there after it, then it is called again.
    """

    def __init__(
        self,
        deadline: Callable[[], Instant | None],
        wake: Callable[[], None],
        clock: Callable[[], Instant] = current_instant,
    ) -> None:
        self._deadline = deadline
        self._wake = wake
        self._clock = clock
        self._changed = trio.Event()
        self._due: Instant | None = None

    def look(self) -> None:
        """Ask for the deadline again."""
        self._changed.set()

    def look_if_sooner(self) -> None:
        """As :meth:`look`, where the deadline costs less to ask for than a task to wake: a deadline that has
        become a later one wakes nobody, before the earlier one has passed."""
        at = self._deadline()
        if at is not None:
            self.look_before(at)

    def look_before(self, at: Instant) -> None:
        """There may be a deadline at ``at``, or later: ask again if none is waited for as early.

        Cheaper than :meth:`look` where it is called for each operation: it wakes nobody who wakes in time.
        """
        if self._due is None or at < self._due:
            self._changed.set()

    async def run(self) -> None:
        """Wait and wake, until cancelled."""
        while True:
            self._changed = trio.Event()
            self._due = due = self._deadline()
            with trio.move_on_at(math.inf if due is None else (due + _LATE_NS) / S):
                await self._changed.wait()
            due = self._deadline()
            if due is not None and due <= self._clock():
                self._wake()


class Rest:
    """A task that leaves something alone for a while.

    It does not, for some time after a rest from which this process came back late: others want the processor
    then, and who sleeps is the last to have it, while peers wait. ``close`` it when the task is done with it;
    the next rest opens it again.
    """

    def __init__(self) -> None:
        self.lasts = False
        """Whether the task rests now."""
        self._timer: KernelTimer | None = None
        self._scope: trio.CancelScope | None = None
        """Without a timer of the kernel."""
        self._restless_until = -math.inf

    async def until(self, time: float) -> bool:
        """Rest until a time of Trio's clock, or ``end``; False, with no checkpoint: there is no rest now."""
        if time < self._restless_until:
            return False
        if self._timer is None:
            self._timer = open_timer()
        self.lasts = True
        try:
            if self._timer is not None:
                await self._timer.wait(time - trio.current_time())
            else:
                with trio.CancelScope(deadline=time) as self._scope:
                    await trio.sleep_forever()
        finally:
            self.lasts = False
        now = trio.current_time()
        if now > time + REST_LATE_S:
            self._restless_until = now + RESTLESS_S
        return True

    def end(self) -> None:
        """The task goes on, if it rests."""
        if not self.lasts:
            return
        if self._timer is not None:
            self._timer.end()
        elif self._scope is not None:
            self._scope.cancel()

    def close(self) -> None:
        """Give the timer back; the task does not rest."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.close()
