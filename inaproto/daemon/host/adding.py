"""Adds for jobs all of whose ranks are on this host: slices of their tensors, in threads, on all its CPUs.

The event loop hands slices out and takes them back; a thread adds one, block by block. numpy does not hold
Python's lock while it adds, so threads add at the same time, and the loop, which has NICs to look after,
waits for none of them.

Invariant: when a job has ended, nothing is written into its tensors any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol, Self

import trio

from inaproto.core.host.local_reduction import Slice
from inaproto.daemon.host.placement import Placement, unbound
from inaproto.errors import InvariantBroken, LocalMisuse

ADDERS_MAX: Final = 8
"""Slices that are added at a time: beyond, memory and Python's lock are what is short."""
AT_ONCE_BYTES: Final = 512 << 10
"""A slice of so few bytes of all ranks is added by the event loop: a thread would take longer to begin."""


class Adding:
    """A slice that is being added; it can be given up."""

    def __init__(self, part: Slice) -> None:
        self.part = part
        self.fault: Exception | None = None
        """Of this program."""
        self._lock = threading.Lock()
        self._is_given_up = False

    def run(self) -> Self:
        """In any thread, to its end."""
        try:
            while True:
                with self._lock:
                    if self._is_given_up or not self.part.block():
                        return self
        except (InvariantBroken, LocalMisuse) as fault:
            self.fault = fault
            return self

    def give_up(self) -> None:
        """When this returns nothing of it is written any more. It waits for one block."""
        self._is_given_up = True
        with self._lock:
            pass


class UnderWay:
    """The slices of one job that are being added."""

    def __init__(self) -> None:
        self._adding: list[Adding] = []

    def begin(self, part: Slice | None) -> Adding | None:
        if part is None:
            return None
        adding = Adding(part)
        self._adding.append(adding)
        return adding

    def end(self, adding: Adding) -> bool:
        """Whether it still counted."""
        if adding not in self._adding:
            return False
        self._adding.remove(adding)
        return True

    def give_up(self) -> None:
        """From now on nothing of any is written."""
        adding, self._adding = self._adding, []
        for each in adding:
            each.give_up()


class AddingJob(Protocol):
    """A job on this host."""

    def begin_slice(self) -> Adding | None:
        """None: there is nothing to add, now."""

    def end_slice(self, adding: Adding) -> None: ...


class Adders:
    """Add for the jobs ``jobs``, in turn; ``idle`` is called when there is nothing left.

    Without ``threads`` the event loop adds: virtual time goes on while a thread works, and by how much is
    then for the machine to say.
    """

    def __init__(
        self,
        jobs: Callable[[], Sequence[AddingJob]],
        idle: Callable[[], None],
        *,
        threads: bool = True,
        placement: Placement | None = None,
    ) -> None:
        self._jobs = jobs
        self._idle = idle
        self._free = trio.lowlevel.ParkingLot()
        self._threads = threads
        self._placement = placement or unbound()
        self._count = min(len(self._placement.everywhere), ADDERS_MAX) if threads else 1
        self._limiter = trio.CapacityLimiter(self._count)
        self._turn = 0

    async def run(self) -> None:
        """Until it is cancelled; a slice that a thread has is waited for."""
        async with trio.open_nursery() as nursery:
            for _ in range(self._count):
                nursery.start_soon(self._add)

    def look(self) -> None:
        """There may be something to add."""
        self._free.unpark()

    async def _add(self) -> None:
        while True:
            await trio.lowlevel.checkpoint_if_cancelled()
            job, adding = self._next()
            if job is None or adding is None:
                self._idle()
                await self._free.park()
                continue
            self._free.unpark()  # there may be more than one slice
            if not self._threads or adding.part.nbytes * adding.part.ranks <= AT_ONCE_BYTES:
                adding.run()
                job.end_slice(adding)
                await trio.lowlevel.checkpoint()
                continue
            with trio.CancelScope(shield=True):  # what was handed out must come back
                await trio.to_thread.run_sync(self._placement.elsewhere(adding.run), limiter=self._limiter)
            job.end_slice(adding)

    def _next(self) -> tuple[AddingJob, Adding] | tuple[None, None]:
        """Jobs take turns."""
        jobs = self._jobs()
        for _ in jobs:
            self._turn += 1
            job = jobs[self._turn % len(jobs)]
            adding = job.begin_slice()
            if adding is not None:
                return job, adding
        return None, None
