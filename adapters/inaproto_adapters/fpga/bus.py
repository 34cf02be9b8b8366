"""Ways to the registers of an accelerator: what each of them does, and what they have in common.

Invariants:

- A write has reached its register when ``write32`` or ``write_burst`` returns, or an error says that it may
  not have.
- Accesses of two tasks do not mix within a burst. Who needs several accesses without others in between holds
  ``lock`` meanwhile; single accesses do not take it.
- Every access ends: a register that does not answer is a ``FabricError``.
"""

from __future__ import annotations

import fcntl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol

import trio

from inaproto.errors import FabricError, LocalMisuse
from inaproto_adapters.fpga.register_map import WORD_BYTES

SPACE_BYTES: Final = 1 << 32
WORD_MAX: Final = 0xFFFF_FFFF


class RegisterBus(Protocol):
    """32-bit registers at byte addresses that are multiples of four; ``LocalMisuse`` for others.

    A burst is of consecutive registers, in rising order. Raises ``FabricError`` where the way is broken.
    """

    @property
    def peer(self) -> str:
        """Where it leads to, for people."""

    @property
    def lock(self) -> AbstractAsyncContextManager[object]:
        """Held during a sequence of accesses that others must not disturb."""

    async def read32(self, address: int) -> int: ...

    async def write32(self, address: int, value: int) -> None: ...

    async def read_burst(self, address: int, count: int) -> list[int]: ...

    async def write_burst(self, address: int, words: Sequence[int]) -> None: ...

    async def aclose(self) -> None:
        """Give the way back, after the access that is under way. A second call does nothing."""


def claim(descriptor: int) -> None:
    """Have the device of a descriptor alone, until that is closed. Raises ``OSError``."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError("another process drives it: it holds the lock of the device") from None


def cause_of(error: Exception) -> str:
    """What the system says, else what the error does: not each has a number of the system."""
    said: str | None = getattr(error, "strerror", None)
    return said or str(error)


class BurstBus(ABC):
    """A :class:`RegisterBus` of what moves up to ``burst_words`` registers at once, below ``space_bytes``.

    ``OSError`` of the three methods below becomes ``FabricError``, which is retryable for ``TimeoutError``.
    """

    def __init__(self, peer: str, *, burst_words: int, space_bytes: int = SPACE_BYTES) -> None:
        if burst_words < 1:
            raise LocalMisuse(f"bursts of {burst_words} registers")
        self._peer = peer
        self._burst_words = burst_words
        self._space_bytes = space_bytes
        self._lock = trio.Lock()
        self._turn = trio.Lock()
        self._is_closed = False

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def lock(self) -> trio.Lock:
        return self._lock

    async def read32(self, address: int) -> int:
        (word,) = await self.read_burst(address, 1)
        return word

    async def write32(self, address: int, value: int) -> None:
        await self.write_burst(address, [value])

    async def read_burst(self, address: int, count: int) -> list[int]:
        words: list[int] = []
        async with self._access("read", self._place(address, count)):
            while len(words) < count:
                size = min(self._burst_words, count - len(words))
                words += await self._read(address + WORD_BYTES * len(words), size)
        return words

    async def write_burst(self, address: int, words: Sequence[int]) -> None:
        place = self._place(address, len(words))
        wrong = [word for word in words if not 0 <= word <= WORD_MAX]
        if wrong:
            raise LocalMisuse(f"{wrong[0]} is no 32-bit word")
        async with self._access("write", place):
            for at in range(0, len(words), self._burst_words):
                await self._write(address + WORD_BYTES * at, words[at : at + self._burst_words])

    async def aclose(self) -> None:
        with trio.CancelScope(shield=True):  # accesses end by themselves, so this does
            async with self._turn:
                if not self._is_closed:
                    self._is_closed = True
                    await self._close()

    def _place(self, address: int, count: int) -> str:
        """Where registers are, for people. Raises ``LocalMisuse`` where none can be."""
        if address < 0 or address % WORD_BYTES:
            raise LocalMisuse(f"address {address:#x} is that of no 32-bit register")
        if count < 0 or address + WORD_BYTES * count > self._space_bytes:
            raise LocalMisuse(
                f"{count} registers from address {address:#x} on, in {self._space_bytes:#x} bytes"
            )
        return f"at {address:#05x}" if count == 1 else f"at {address:#05x}, {count} registers"

    @asynccontextmanager
    async def _access(self, what: str, where: str) -> AsyncIterator[None]:
        """Be the only one. What goes wrong is said with ``where``."""
        async with self._turn:
            if self._is_closed:
                raise FabricError(what, self._peer, where, "the bus is closed", retryable=False)
            try:
                yield
            except OSError as error:
                is_timeout = isinstance(error, TimeoutError)
                raise FabricError(what, self._peer, where, cause_of(error), retryable=is_timeout) from error

    @abstractmethod
    async def _read(self, address: int, count: int) -> list[int]:
        """Registers from ``address`` on, ``burst_words`` at most."""

    @abstractmethod
    async def _write(self, address: int, words: Sequence[int]) -> None:
        """Likewise; when it returns they have been written."""

    @abstractmethod
    async def _close(self) -> None:
        """Give back what is open."""
