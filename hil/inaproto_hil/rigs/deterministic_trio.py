"""Trio runs that repeat: one seed, one schedule, in every process.

Trio orders the tasks that can run by chance, on purpose. Its private switch
``_ALLOW_DETERMINISTIC_SCHEDULING`` sorts each batch of them by the tasks' creation before it is shuffled
by the generator ``_r``; with that generator seeded, the schedule is a function of the seed. What the
switch does not cover, and why it does not matter here:

* Equal deadlines expire in the order of ``id(CancelScope)``, and tasks that wait for an event or hang
  under a cancelled scope are walked in the order of a set. All of them become runnable in the *same*
  batch, which is then sorted. Only abort functions run in between; those of Trio's own waits, and this
  project has no others, only take the task off what it waited for, so their order leaves no trace.
* Tasks in ``wait_all_tasks_blocked`` are told apart by ``id(Task)``, too; they share a batch likewise.
* Readiness of kernel objects is not deterministic. A deterministic run waits for none: connections and
  links are in memory, and the clock is a ``MockClock`` that jumps to the next deadline whenever nothing
  can run.
* The garbage collector runs when enough was allocated, which differs between processes, and finalizers
  of ours give buffers back. It is off during the run; reference counts free what is in no cycle.

Departure: this uses private names of Trio, so its guard (``tests/daemon/test_deterministic_trio.py``)
fails, with what to do, when a release of Trio changes them.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import trio
from trio.testing import MockClock

_FLAG: Final = "_ALLOW_DETERMINISTIC_SCHEDULING"
_GENERATOR: Final = "_r"

T = TypeVar("T")


class TrioHasChanged(Exception):
    """The shim does not fit this release of Trio."""


def require_known_trio() -> None:
    """Raises ``TrioHasChanged`` when the private names that the shim sets are not what they were."""
    run = trio._core._run
    flag, generator = getattr(run, _FLAG, None), getattr(run, _GENERATOR, None)
    if not isinstance(flag, bool) or not isinstance(generator, random.Random):
        raise TrioHasChanged(
            f"trio {trio.__version__}: trio._core._run has {_FLAG}={flag!r} and {_GENERATOR}={generator!r}; "
            "expected a bool and a random.Random. Read how its run loop orders a batch of tasks now, and "
            "change hil/inaproto_hil/rigs/deterministic_trio.py accordingly, or pin the release of trio "
            "before"
        )


@contextmanager
def deterministic_schedule(seed: int | str) -> Iterator[None]:
    """Within, ``trio.run`` schedules by ``seed`` alone; everything is put back at the end."""
    require_known_trio()
    run = trio._core._run
    generator: random.Random = getattr(run, _GENERATOR)
    flag, state, collects = getattr(run, _FLAG), generator.getstate(), gc.isenabled()
    gc.collect()
    gc.disable()
    setattr(run, _FLAG, True)
    generator.seed(f"{seed}/trio schedule")
    try:
        yield
    finally:
        setattr(run, _FLAG, flag)
        generator.setstate(state)
        if collects:
            gc.enable()


def run_deterministically(seed: int | str, main: Callable[[], Awaitable[T]]) -> T:
    """``trio.run(main)`` in virtual time, which begins at 0 and costs no waiting."""
    with deterministic_schedule(seed):
        return trio.run(main, clock=MockClock(autojump_threshold=0))
