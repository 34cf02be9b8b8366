"""Roots at which people want jobs to be summed: on disk, as long as the job is there.

A job that is not reported for a while is over, and one that comes later by the same name is another; whoever
wants that somewhere says so again. For as long as the fabric's root is started anew, nobody is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

import trio

from inaproto_controller.core_runner import PutRecord
from inaproto_controller.tree_store import encode_pins

PINS: Final = "tree-roots"
PINS_MAX: Final = 1024
"""One more takes the place of that which was wished for longest ago."""
ABSENT_S: Final = 60.0
"""A job that is not reported for so long is over."""
LOOK_S: Final = 5.0


class TreePins:
    def __init__(self, roots: Mapping[str, str]) -> None:
        self.roots = roots
        """By job, in the order in which people have wished for them."""
        self._one = trio.Lock()
        self._absent: dict[str, float] = {}

    async def put(self, job: str, root: str, put_record: PutRecord) -> None:
        """On disk when this returns; an empty root: wherever the plan has it."""
        async with self._one:
            self._absent.pop(job, None)
            await self._make({**self._without({job}), **({job: root} if root else {})}, put_record)

    async def forget_jobs(self, there: Callable[[], Collection[str] | None], put_record: PutRecord) -> None:
        """That are over, until cancelled. ``there``: jobs that are; None: that is not known."""
        while True:
            await trio.sleep(LOOK_S)
            if (jobs := there()) is not None:
                await self._forget(jobs, put_record)

    async def _forget(self, jobs: Collection[str], put_record: PutRecord) -> None:
        now = trio.current_time()
        self._absent = {job: self._absent.get(job, now) for job in self.roots if job not in jobs}
        over = {job for job, since in self._absent.items() if now - since >= ABSENT_S}
        if over:
            async with self._one:
                await self._make(self._without(over & self._absent.keys()), put_record)

    def _without(self, jobs: set[str]) -> dict[str, str]:
        return {job: root for job, root in self.roots.items() if job not in jobs}

    async def _make(self, roots: dict[str, str], put_record: PutRecord) -> None:
        while len(roots) > PINS_MAX:
            del roots[next(iter(roots))]
        await put_record(PINS, encode_pins(roots))
        self.roots = roots
