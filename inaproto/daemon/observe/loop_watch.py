"""How long one step of a task keeps all others of its process waiting: the event loop's longest calls.

A daemon is one thread, in which tasks take turns: what one does between two waits, nobody interrupts. A
controller that works something out for a second hears nobody for a second. So each step is timed, from when
a task goes on until it waits again, and the long ones are counted and named.
"""

from __future__ import annotations

import logging
from time import perf_counter, thread_time
from typing import Any, Final

import trio

log = logging.getLogger("inaproto.loop")

LONG_S: Final = 0.020
"""Of a step that is told of."""
BOUNDS_S: Final = (0.001, 0.002, 0.005, 0.010, 0.020, 0.050, 0.100, 0.250, 0.500, 1.0, 2.5, 5.0)


class LoopWatch(trio.abc.Instrument):
    """Add it with ``trio.lowlevel.add_instrument``.

    ``longest_s`` counts what the machine took from the thread as well: on one that is busy with other work it
    says more of that. ``longest_cpu_s`` is what the steps themselves took.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.seconds = 0.0
        """All steps together."""
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        """Steps by how long they took: up to each of the bounds, and longer."""
        self.longest_s = self.longest_cpu_s = 0.0
        self.longest_task = ""
        self.long = 0
        """Steps whose own work took longer than :data:`LONG_S`."""
        self._began = self._began_cpu = 0.0
        self._is_in_step = False
        """Not in the one in which it was added: of that the beginning was not seen."""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._is_in_step = True
        self._began_cpu = thread_time()
        self._began = perf_counter()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if not self._is_in_step:
            return
        took = perf_counter() - self._began
        self.steps += 1
        self.seconds += took
        if took <= BOUNDS_S[0]:
            self.buckets[0] += 1
            return
        place = next((place for place, bound in enumerate(BOUNDS_S) if took <= bound), len(BOUNDS_S))
        self.buckets[place] += 1
        worked = thread_time() - self._began_cpu
        # The two clocks are read one after the other and tick apart: a step took what it worked, at least.
        self.longest_s = max(self.longest_s, took, worked)
        if worked > self.longest_cpu_s:
            self.longest_cpu_s, self.longest_task = worked, task.name
        if worked > LONG_S:
            self.long += 1
            log.debug("%s kept the event loop for %.0f ms", task.name, 1e3 * worked)

    def status(self) -> dict[str, Any]:
        """For people and their programs; fields may be added. Times in seconds."""
        return {
            "steps": self.steps,
            "busy_s": round(self.seconds, 6),
            "longest_s": round(self.longest_s, 6),
            "longest_cpu_s": round(self.longest_cpu_s, 6),
            "longest_task": self.longest_task,
            "long": self.long,
            "buckets": {
                **{str(bound): count for bound, count in zip(BOUNDS_S, self.buckets, strict=False)},
                "inf": self.buckets[-1],
            },
        }
