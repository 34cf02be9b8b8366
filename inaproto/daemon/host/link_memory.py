"""Memory for the links of rings (:mod:`inaproto.core.host.link`), made ready before somebody asks for it.

A NIC that pins what it registers needs all pages to be there, and the kernel takes some 0.4 ms to find those
of one MiB. Links are made in one step, in which the event loop serves nobody else: 22 MiB, where 8 messages
of 170 packets of 4 KiB may be on their way. So for such a NIC one piece, as large as the last that was asked
for, is kept ready. Its pages are touched part by part, and others have their turns in between; to pin what
was touched takes a tenth of the time.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Final

import numpy as np
import trio

PART_BYTES: Final = 4 << 20
"""Touched in one turn: 2 ms at most."""


class LinkMemory:
    """Gives memory for links; where :meth:`run` runs, some of it is ready."""

    def __init__(self, expected_bytes: int = 0) -> None:
        """``expected_bytes`` are likely to be asked for first; 0: nobody knows."""
        self._wanted = expected_bytes
        self._spare: mmap.mmap | None = None
        self._asked = trio.Event()

    @property
    def ready_bytes(self) -> int:
        """Of the piece that is ready, if there is one."""
        return 0 if self._spare is None else len(self._spare)

    def allocate(self, nbytes: int) -> memoryview:
        """A mapping of its own, which ends with its last view. Raises ``OSError`` if memory is short."""
        memory, self._spare = self._spare, None
        if memory is None or len(memory) != nbytes:
            memory = mmap.mmap(-1, nbytes)
        self._wanted = nbytes
        self._asked.set()
        return memoryview(memory)

    async def run(self) -> None:
        """Keep a piece ready, until cancelled."""
        while True:
            self._asked = trio.Event()
            if self._wanted and self.ready_bytes != self._wanted:
                await self._prepare(self._wanted)
            else:
                await self._asked.wait()

    async def _prepare(self, nbytes: int) -> None:
        """Touch each of its pages by writing: one that is only read need not be there."""
        self._wanted = 0  # where memory is short nobody tries again by himself
        with contextlib.suppress(OSError):
            memory = mmap.mmap(-1, nbytes)
            pages = np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE]
            step = PART_BYTES // mmap.PAGESIZE
            for at in range(0, len(pages), step):
                pages[at : at + step] = 0
                await trio.lowlevel.checkpoint()
            del pages
            if self._wanted in (0, nbytes):
                self._spare, self._wanted = memory, nbytes
