"""Output towards an interface: a system call per frame, and a bounded queue for what the kernel cannot take.

The kernel's own batches (``sendmmsg``, a transmit ring) were measured to gain 1.0 to 1.3 times, and were not
worth their weight; AF_XDP has an output of its own (``xdp``).

Invariants: frames leave in the order in which they came; each one leaves, waits, or is counted under a rule.
"""

from __future__ import annotations

import errno
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from inaproto.errors import LocalMisuse
from inaproto.ports import PortCounters
from inaproto.units import FRAME_BYTES_MAX, Frames
from inaproto.wire.ethernet import ETHERNET_HEADER_BYTES

_FULL_PAUSE_S: Final = 0.001
"""The interface's queue tells nobody when it has room again."""
_RULES: Final = {
    errno.EMSGSIZE: "longer than the link's MTU",
    errno.ENETDOWN: "link down",
    errno.ENXIO: "link down",
    errno.ENODEV: "link down",
    errno.EIO: "link down",
    errno.EBADF: "link down",
    errno.EBADFD: "link down",
}


class LinkOutput:
    """``write`` hands one frame to the kernel, or raises ``OSError``."""

    def __init__(
        self,
        name: str,
        write: Callable[[memoryview], object],
        counters: PortCounters,
        *,
        queue_bytes_max: int,
    ) -> None:
        """``name``: of the port, for errors."""
        self._name = name
        self._write = write
        self._counters = counters
        self._bytes_max = queue_bytes_max
        self._queue: deque[Frames] = deque()
        self.bytes = 0
        self._is_closed = False
        self._wait_writable = False
        self._work = trio.lowlevel.ParkingLot()

    def push(self, frames: Frames) -> int:
        """See ``FramePort.send_nowait``. Raises ``LocalMisuse`` for frames that are too short or too long."""
        n, length = frames.shape
        if not ETHERNET_HEADER_BYTES <= length <= FRAME_BYTES_MAX:
            raise LocalMisuse(
                f"frames of {length} bytes do not go through {self._name}, which takes "
                f"{ETHERNET_HEADER_BYTES} to {FRAME_BYTES_MAX}"
            )
        done = accepted = 0
        if not self._queue:
            done, accepted = self._send(frames)
        left = n - done
        if left:
            queued = min(left, (self._bytes_max - self.bytes) // length)
            if queued:
                self._queue.append(frames[done : done + queued].copy())
                self.bytes += queued * length
                self._work.unpark_all()
            if queued < left:
                self._counters.drop("output queue full", left - queued)
            accepted += queued
        return accepted

    async def run(self, file: socket.socket | int) -> None:
        """Send what waits, until closed; ``file`` becomes writable when the kernel takes more."""
        while not self._is_closed:
            if not self._queue:
                await self._work.park()
                continue
            self.flush()
            if not self._queue:
                continue
            if self._wait_writable:
                await trio.lowlevel.wait_writable(file)
            else:
                await trio.sleep(_FULL_PAUSE_S)

    def flush(self) -> None:
        """Send as much as the kernel takes now."""
        while self._queue:
            frames = self._queue.popleft()
            done, _ = self._send(frames)
            self.bytes -= done * frames.shape[1]
            if done < len(frames):
                self._queue.appendleft(frames[done:])
                return

    def close(self) -> None:
        self._is_closed = True
        self._queue.clear()
        self.bytes = 0
        self._work.unpark_all()

    def refused(self, error: OSError, frames: int) -> None:
        """Count frames that the kernel did not take, and will not."""
        self._counters.drop(_RULES.get(error.errno or 0, f"refused: {error.strerror}"), frames)

    def _send(self, frames: Frames) -> tuple[int, int]:
        """How many are dealt with, and how many of them have left; the rest is for later."""
        write, left = self._write, 0
        done = len(frames)
        for i, frame in enumerate(frames):
            try:
                write(frame.data)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.ENOBUFS):
                    self._wait_writable = error.errno == errno.EAGAIN
                    done = i
                    break
                self.refused(error, 1)
            else:
                left += 1
        self._counters.frames_out += left
        self._counters.bytes_out += left * frames.shape[1]
        return done, left
