"""The guard of :mod:`inaproto_hil.rigs.deterministic_trio`: this release of Trio schedules by the seed alone.

When one of these fails after an upgrade of Trio, its run loop has changed: read how it orders a batch of
tasks (``unrolled_run`` in ``trio/_core/_run.py``), change the shim, or pin the release before.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from inaproto_hil.rigs.deterministic_trio import TrioHasChanged, run_deterministically

TASKS = 100
CHANGED = (
    f"trio {trio.__version__} does not schedule as hil/inaproto_hil/rigs/deterministic_trio.py expects; "
    f"see there"
)
REPOSITORY = Path(__file__).parents[2]


def schedule(seed: int) -> str:
    """A digest of the order in which many tasks run that nothing but Trio's choice puts in order."""
    order: list[str] = []

    async def sleeper(name: int) -> None:
        for at in (1, 2, 2.5):  # equal deadlines, in a scope of each task
            await trio.sleep_until(at)
            order.append(f"slept {name}")

    async def waiter(name: int, event: trio.Event, lock: trio.Lock) -> None:
        with trio.move_on_after(3):
            await event.wait()
            order.append(f"heard {name}")
            async with lock:
                order.append(f"held {name}")
                await trio.lowlevel.checkpoint()
            await trio.sleep_forever()
        order.append(f"timed out {name}")
        try:
            await trio.sleep_forever()
        finally:
            order.append(f"cancelled {name}")

    async def idler(name: int) -> None:
        await trio.testing.wait_all_tasks_blocked()
        order.append(f"idle {name}")

    async def main() -> None:
        event, lock = trio.Event(), trio.Lock()
        async with trio.open_nursery() as nursery:
            for name in range(TASKS):
                nursery.start_soon(sleeper, name)
                nursery.start_soon(waiter, name, event, lock)
                nursery.start_soon(idler, name)
            await trio.sleep_until(2)
            event.set()
            await trio.sleep_until(10)
            nursery.cancel_scope.cancel()

    # Objects of an earlier time move the addresses, and so the ids, of those that follow.
    ballast = [bytearray(random.randrange(500)) for _ in range(1000)]
    run_deterministically(seed, main)
    del ballast
    assert len(order) == TASKS * 8
    return hashlib.sha256("\n".join(order).encode()).hexdigest()


def test_equal_deadlines_and_many_tasks_are_ordered_by_the_seed() -> None:
    first = schedule(1)
    for _ in range(3):
        assert schedule(1) == first, CHANGED
    assert schedule(2) != first, f"{CHANGED}: the seed changes nothing"


def test_the_schedule_is_the_same_in_another_process() -> None:
    first = schedule(1)
    program = f"import {__name__} as it; print(it.schedule(1))"
    for hash_seed in ("1", "2"):
        child = subprocess.run(
            [sys.executable, "-c", program],
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert child.stdout.strip() == first, f"{CHANGED} (PYTHONHASHSEED={hash_seed})"


def test_everything_is_put_back() -> None:
    run = trio._core._run
    before = run._ALLOW_DETERMINISTIC_SCHEDULING, run._r.getstate()

    async def fail() -> None:
        assert run._ALLOW_DETERMINISTIC_SCHEDULING
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_deterministically(1, fail)
    assert (run._ALLOW_DETERMINISTIC_SCHEDULING, run._r.getstate()) == before


@pytest.mark.parametrize("name", ["_ALLOW_DETERMINISTIC_SCHEDULING", "_r"])
def test_another_trio_is_refused_in_clear_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(trio._core._run, name)
    with pytest.raises(
        TrioHasChanged, match=r"change hil/inaproto_hil/rigs/deterministic_trio\.py accordingly, or pin"
    ):
        run_deterministically(1, trio.lowlevel.checkpoint)
