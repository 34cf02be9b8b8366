"""Way to the registers of a LiteX design by a serial line: the protocol of its UART bridge.

A request is a command (1 write, 2 read), the number of registers, the address of the first one in words, and
the words to write; the answer has the words that were read. All numbers are big-endian. The bridge does not
acknowledge writes, so a read of the last register follows each. If a byte is lost, the bridge waits for more
and forgets the request after 100 ms; nothing is answered, and that is an error here. Answers do not say
what they are to, so a late one would be taken for that of the next request: after an error a line has to be
opened again.
"""

from __future__ import annotations

import os
import select
import struct
import termios
import time
import tty
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import trio

from inaproto.errors import FabricError, LocalMisuse
from inaproto_adapters.fpga.bus import BurstBus, claim
from inaproto_adapters.fpga.register_map import WORD_BYTES

WRITE: Final = 1
READ: Final = 2
REQUEST: Final = struct.Struct(">BBI")
BURST_WORDS: Final = 8
"""Bridges over USB have small buffers; the length is a byte in any case."""
BAUD: Final = 115_200
TIMEOUT_S: Final = 1.0
_IO_INPUT: Final = 4
_IO_OUTPUT: Final = 5
_CHUNK: Final = 4096


class UartBus(BurstBus):
    """See the module. It owns the descriptor, of a serial line or a pseudo-terminal, and makes it raw."""

    def __init__(self, descriptor: int, peer: str, *, timeout: float = TIMEOUT_S) -> None:
        super().__init__(peer, burst_words=BURST_WORDS)
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._timeout = timeout
        self._is_broken = False

    @classmethod
    async def open(cls, path: Path, *, baud: int = BAUD, timeout: float = TIMEOUT_S) -> Self:
        """Raises ``FabricError`` where there is no such line, ``LocalMisuse`` for a rate that none has."""
        speed = speed_of(baud)
        try:
            descriptor = await trio.to_thread.run_sync(_open, path, speed)
        except (OSError, termios.error) as error:
            raise FabricError("open", f"{path}", "opening it", f"{error.args[-1]}", retryable=False) from None
        return cls(descriptor, f"the accelerator at {path}", timeout=timeout)

    async def _read(self, address: int, count: int) -> list[int]:
        request = REQUEST.pack(READ, count, address // WORD_BYTES)
        answer = await trio.to_thread.run_sync(self._ask, request, WORD_BYTES * count)
        return list(struct.unpack(f">{count}I", answer))

    async def _write(self, address: int, words: Sequence[int]) -> None:
        first = address // WORD_BYTES
        request = REQUEST.pack(WRITE, len(words), first) + struct.pack(f">{len(words)}I", *words)
        request += REQUEST.pack(READ, 1, first + len(words) - 1)
        await trio.to_thread.run_sync(self._ask, request, WORD_BYTES)

    async def _close(self) -> None:
        os.close(self._descriptor)

    def _ask(self, request: bytes, answer_bytes: int) -> bytes:
        """Raises ``OSError``; then a late answer may still come, and nothing is asked any more."""
        if self._is_broken:
            raise OSError("an earlier answer was not right: the line has to be opened again")
        self._is_broken = True
        answer = self._answer(request, answer_bytes, time.monotonic() + self._timeout)
        self._is_broken = False
        return answer

    def _answer(self, request: bytes, answer_bytes: int, deadline: float) -> bytes:
        while self._some() is not None:  # left over from who had the line before
            self._require_before(deadline, "the line is never silent, for")
        while request:
            self._wait(select.POLLOUT, deadline)
            try:
                request = request[os.write(self._descriptor, request) :]
            except BlockingIOError:
                continue
        answer = b""
        while len(answer) < answer_bytes:
            self._wait(select.POLLIN, deadline)
            answer += self._some() or b""
        if len(answer) > answer_bytes:
            raise OSError(f"{len(answer)} bytes came for {answer_bytes}")
        return answer

    def _some(self) -> bytes | None:
        """What has come; None: nothing."""
        try:
            found = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return None
        if not found:
            raise OSError("the line is gone")
        return found

    def _wait(self, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._descriptor, event)
        left = self._require_before(deadline, "no answer within")
        if not poll.poll(1000 * left):
            raise TimeoutError(f"no answer within {self._timeout:g} s")

    def _require_before(self, deadline: float, why: str) -> float:
        """Seconds that are left. Raises ``TimeoutError``."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{why} {self._timeout:g} s")
        return left


def speed_of(baud: int) -> int:
    """The kernel's number for a rate. Raises ``LocalMisuse`` for one that no line has."""
    speed: int | None = getattr(termios, f"B{baud}", None)
    if not speed:  # B0 hangs up
        raise LocalMisuse(f"a serial line of {baud} baud")
    return speed


def _open(path: Path, speed: int) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        claim(descriptor)
        tty.setraw(descriptor, termios.TCSANOW)
        attributes = termios.tcgetattr(descriptor)
        attributes[_IO_INPUT] = attributes[_IO_OUTPUT] = speed
        termios.tcsetattr(descriptor, termios.TCSANOW, attributes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
