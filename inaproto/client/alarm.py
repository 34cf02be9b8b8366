"""A descriptor by which one thread wakes up another that polls."""

from __future__ import annotations

import contextlib
import os
from typing import Final

import trio


class Alarm:
    """Wakes up whoever polls it."""

    has_output: Final = False

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._descriptor

    async def wait(self) -> None:
        """Until it rings; for a task of Trio."""
        await trio.lowlevel.wait_readable(self._descriptor)

    def ring(self) -> None:
        os.eventfd_write(self._descriptor, 1)

    def quiet(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def __del__(self) -> None:
        os.close(self._descriptor)
