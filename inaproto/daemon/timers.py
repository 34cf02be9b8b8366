"""A timer of the kernel that is waited for as a descriptor is (``timerfd``).

For who waits often and shortly: Trio ends a wait at a deadline by cancelling it, which takes more of the
processor than the wake-up itself.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

import trio

from inaproto.units import S

_CLOCK_MONOTONIC: Final = 1
_LEAST_NS: Final = 1
"""0 would stop the timer."""


class KernelTimer:
    """One wait at a time. ``close`` it when nobody waits."""

    def __init__(self) -> None:
        """Raises ``OSError`` where there are no such timers."""
        try:
            library = ctypes.CDLL(None, use_errno=True)
            create, self._settime = library.timerfd_create, library.timerfd_settime
        except (OSError, AttributeError):
            raise OSError("the C library has no timerfd") from None
        self._settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._times = (ctypes.c_long * 4)()  # interval and first expiry: seconds and nanoseconds of each
        self._address = ctypes.addressof(self._times)
        self._fd = create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    async def wait(self, seconds: float) -> None:
        """Return so many seconds from now, or at ``end``."""
        self._set(int(seconds * S))
        await trio.lowlevel.wait_readable(self._fd)

    def end(self) -> None:
        """Whoever waits goes on."""
        self._set(_LEAST_NS)

    def _set(self, ns: int) -> None:
        self._times[2], self._times[3] = divmod(max(ns, _LEAST_NS), S)
        self._settime(self._fd, 0, self._address, None)

    def close(self) -> None:
        os.close(self._fd)


def open_timer() -> KernelTimer | None:
    """A timer, or None where the kernel has none or Trio's clock is not the kernel's, as in tests."""
    if type(trio.lowlevel.current_clock()).__name__ != "SystemClock":  # no public name
        return None
    try:
        return KernelTimer()
    except OSError:
        return None
