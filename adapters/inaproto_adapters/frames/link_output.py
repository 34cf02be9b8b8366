"""Output towards an interface, and a bounded queue for what the kernel cannot take.

With the compiled part of ports (``ports.c``) all blocks of a ``push`` go to the kernel in one call, which
makes a system call of up to 64 messages; the Python code here, its twin, makes one for each frame. AF_XDP has
an output of its own (``xdp``).

A kernel says that it has no room (ENOBUFS) while a queue is full, which passes, and also of each frame that
the far end of a veth does not take, as one with a smaller MTU: that does not. So a frame waits for room for a
bounded time. One that has waited in vain is lost; from then on, until one as long leaves, shorter ones go
before those that are as long. Where shorter ones leave again and again and these do not, these wait no more.

Invariants: frames leave in the order in which they came, but for the shorter ones then; each one leaves,
waits, or is counted under a rule; no frame keeps shorter ones waiting for longer than ``REFUSED_S``.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import numpy as np
import trio

from inaproto.errors import LocalMisuse
from inaproto.ports import PortCounters
from inaproto.units import FRAME_BYTES_MAX, Frames
from inaproto.wire.ethernet import ETHERNET_HEADER_BYTES
from inaproto_adapters.frames.compiled_ports import Sender

_FULL_PAUSE_S: Final = 0.001
"""The interface's queue tells nobody when it has room again."""
REFUSED_S: Final = 0.1
"""How long a frame waits while the kernel has no room for it."""
REFUSED: Final = "no room at the link for 0.1 s"
TOO_LONG: Final = "longer than the far end takes"
PROOFS: Final = 3
"""So often shorter frames must leave before longer ones that then still find no room: a full queue may have
had room for one in between."""
_BLOCKS_AT_ONCE: Final = 64
"""Of the queue, whose end may be far."""
LINK_DOWN: Final = "link down"
_RULES: Final = {
    errno.EMSGSIZE: "longer than the link's MTU",
    errno.ENETDOWN: LINK_DOWN,
    errno.ENXIO: LINK_DOWN,
    errno.ENODEV: LINK_DOWN,
    errno.EIO: LINK_DOWN,
    errno.EBADF: LINK_DOWN,
    errno.EBADFD: LINK_DOWN,
}


class LinkOutput:
    """``write`` hands a frame to the kernel, or raises ``OSError``; a ``sender`` does that for blocks."""

    def __init__(
        self,
        name: str,
        write: Callable[[memoryview], object],
        counters: PortCounters,
        *,
        queue_bytes_max: int,
        sender: Sender | None = None,
    ) -> None:
        """``name``: of the port, for errors."""
        self._name = name
        self._write = write
        self._counters = counters
        self._bytes_max = queue_bytes_max
        self._sender = sender
        self.full: socket.socket | None = None
        """What must become writable when the kernel takes no more, if it is not what ``run`` is told."""
        self._queue: deque[Frames] = deque()
        self.bytes = 0
        self._lost = 0
        """Frames that were neither sent nor queued."""
        self._is_closed = False
        self._wait_writable = False
        self._refused_since = -1.0
        """When the kernel had no room for the first frame that waits; below 0: it was not asked."""
        self._given_up = 0
        """Length of the shortest frame that has waited in vain since one as long has left; 0: none has."""
        self._too_long = 0
        """Frames as long do not wait; 0: all do."""
        self._proofs = 0
        self._shorter_left = False
        """Since a frame as long as ``_given_up`` was refused the last time."""
        self._mtu_refused = FRAME_BYTES_MAX + 1
        """Length of the shortest frame that was too long for the interface itself, since the last look."""
        self._work = trio.lowlevel.ParkingLot()

    def push(self, blocks: Sequence[Frames]) -> int:
        """Send or queue the frames of all blocks; returns how many were not accepted.

        See ``FramePort.send_nowait``. Raises ``LocalMisuse`` for frames that are too short or too long, and
        takes nothing.
        """
        if self._sender is None or self._queue:  # a sender looks for itself
            for frames in blocks:
                if not ETHERNET_HEADER_BYTES <= frames.shape[1] <= FRAME_BYTES_MAX:
                    raise self._misuse(frames)
        at, row, lost = 0, 0, self._lost
        if not self._queue:
            at, row = self._send_all(blocks)
            if self._given_up:
                self._have_left(blocks, at, row)
        for frames in blocks[at:]:
            self._hold(frames[row:])
            row = 0
        return self._lost - lost

    def _misuse(self, frames: Frames) -> LocalMisuse:
        return LocalMisuse(
            f"frames of {frames.shape[1]} bytes do not go through {self._name}, which takes "
            f"{ETHERNET_HEADER_BYTES} to {FRAME_BYTES_MAX}"
        )

    def _hold(self, frames: Frames) -> None:
        """Queue what fits."""
        left, length = len(frames), frames.shape[1]
        queued = min(left, (self._bytes_max - self.bytes) // length)
        if queued:
            self._queue.append(frames[:queued].copy())
            self.bytes += queued * length
            self._work.unpark_all()
        if queued < left:
            self._lost += left - queued
            self._counters.drop("output queue full", left - queued)

    def _has_work(self) -> bool:
        """Whether ``flush`` would find something."""
        return bool(self._queue)

    async def run(self, file: socket.socket | int) -> None:
        """Send what waits, until closed; ``file`` becomes writable when the kernel takes more."""
        while not self._is_closed:
            if not self._has_work():
                await self._work.park()
                continue
            self.flush()
            if not self._has_work():
                continue
            if self._wait_writable:
                await trio.lowlevel.wait_writable(self.full or file)
            else:
                await trio.sleep(_FULL_PAUSE_S)

    def flush(self) -> None:
        """Send as much as the kernel takes now."""
        queue = self._queue
        while queue:
            blocks = tuple(islice(queue, _BLOCKS_AT_ONCE))
            at, row = self._send_all(blocks)
            for _ in range(at):
                self.bytes -= queue.popleft().size
            self._have_left(blocks, at, row)
            if at < len(blocks):
                rest = blocks[at][row:]
                self.bytes -= blocks[at].size - rest.size
                queue[0] = rest
                if not self._is_refused(rest.shape[1]):
                    self._let_shorter_pass(rest.shape[1])
                    return
                self._drop_first()

    def _have_left(self, blocks: Sequence[Frames], at: int, row: int) -> None:
        """The frames before that one have, but for those that are too long for the interface itself."""
        mtu_refused, self._mtu_refused = self._mtu_refused, FRAME_BYTES_MAX + 1
        lengths = (frames.shape[1] for frames in blocks[: at + (row > 0)])
        longest = max((length for length in lengths if length < mtu_refused), default=0)
        if not longest:
            return
        self._refused_since = -1.0
        if longest >= self._given_up:
            self._given_up = self._too_long = self._proofs = 0
        else:
            self._shorter_left = True

    def _let_shorter_pass(self, length: int) -> None:
        """The first shorter frames, where one as long as the first one has waited in vain."""
        if self._wait_writable or not 0 < self._given_up <= length:
            return
        queue = self._queue
        place = next((at for at, frames in enumerate(queue) if frames.shape[1] < self._given_up), None)
        if place is None:
            return
        shorter = queue[place]
        at, row = self._send_all((shorter,))
        left = shorter if at else shorter[:row]
        if not len(left):
            return
        self._shorter_left = True
        self.bytes -= left.size
        if at:
            del queue[place]
        else:
            queue[place] = shorter[row:]

    def _is_refused(self, length: int) -> bool:
        """Whether the first frame, of this length, is to wait no more for room."""
        if self._wait_writable:
            return False
        if self._shorter_left and 0 < self._given_up <= length:  # it may not be that there is no room
            self._shorter_left = False
            self._proofs += 1
            if self._proofs >= PROOFS:
                self._too_long = self._given_up
        if 0 < self._too_long <= length:
            return True
        now = trio.current_time()
        if self._refused_since < 0:
            self._refused_since = now
        return now - self._refused_since >= REFUSED_S

    def _drop_first(self) -> None:
        queue = self._queue
        if 0 < self._too_long <= queue[0].shape[1]:
            dropped = 0
            while queue and queue[0].shape[1] >= self._too_long:
                self.bytes -= queue[0].size
                dropped += len(queue.popleft())
            self._counters.drop(TOO_LONG, dropped)
            return
        first = queue[0]
        length = first.shape[1]
        self._counters.drop(REFUSED, 1)
        self._given_up = min(self._given_up or length, length)
        self._refused_since = -1.0
        self.bytes -= length
        if len(first) > 1:
            queue[0] = first[1:]
        else:
            queue.popleft()

    def close(self) -> None:
        self._is_closed = True
        self._sender = None
        self._queue.clear()
        self.bytes = 0
        self._work.unpark_all()

    def refused(self, error: OSError, frames: int, length: int = FRAME_BYTES_MAX + 1) -> None:
        """Count frames of that length that the kernel did not take, and will not."""
        self._lost += frames
        if error.errno == errno.EMSGSIZE:
            self._mtu_refused = min(self._mtu_refused, length)
        self._counters.drop(_RULES.get(error.errno or 0, f"refused: {error.strerror}"), frames)

    def _send_all(self, blocks: Sequence[Frames]) -> tuple[int, int]:
        """Block and row of the first frame that is for later."""
        if self._sender is not None:
            return self._send_compiled(self._sender, blocks)
        for at, frames in enumerate(blocks):
            done = self._send(frames)
            if done < len(frames):
                return at, done
        return len(blocks), 0

    def _send_compiled(self, sender: Sender, blocks: Sequence[Frames]) -> tuple[int, int]:
        counters, rest = self._counters, blocks
        while True:
            outcome = sender.send(rest)
            if outcome is None:
                for each in rest:
                    if not ETHERNET_HEADER_BYTES <= each.shape[1] <= FRAME_BYTES_MAX:
                        raise self._misuse(each)
                rest = [np.ascontiguousarray(each) for each in rest]
                outcome = sender.send(rest)
                assert outcome is not None, "these are what a port takes"
            block, row, frames, nbytes, error, refused, _ = outcome
            counters.frames_out += frames
            counters.bytes_out += nbytes
            if not error:
                return len(blocks), 0
            at = len(blocks) - len(rest) + block
            if error in (errno.EAGAIN, errno.ENOBUFS):
                self._wait_writable = error == errno.EAGAIN
                return at, row + len(blocks[at]) - len(rest[block])
            self.refused(OSError(error, os.strerror(error)), refused, rest[block].shape[1])
            rest = (rest[block][row + refused :], *rest[block + 1 :])

    def _send(self, frames: Frames) -> int:
        """How many are dealt with; the rest is for later."""
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
                self.refused(error, 1, frames.shape[1])
            else:
                left += 1
        self._counters.frames_out += left
        self._counters.bytes_out += left * frames.shape[1]
        return done
