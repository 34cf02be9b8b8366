"""Drives an accelerator from synchronous code: registers that answer at once, and calls that never wait.

A switch steps its accelerator without waiting in between (:mod:`inaproto.daemon.switch.daemon`). Where
registers are in this process, what :class:`FpgaDevice` does with them ends without anything to wait for.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from inaproto.errors import InvariantBroken
from inaproto_adapters.fpga.register_map import WORD_BYTES
from inaproto_adapters.fpga.simulated import WordRegisters

T = TypeVar("T")


class _Nobody(AbstractAsyncContextManager[None]):
    """A lock that nobody else can want, as nothing happens in between."""

    async def __aexit__(self, *_: object) -> None:
        return None


class AtOnceBus:
    """A ``RegisterBus`` of registers in this process, for :func:`at_once` alone."""

    def __init__(self, registers: WordRegisters, peer: str = "the accelerator in this process") -> None:
        self._registers = registers
        self._peer = peer
        self._lock = _Nobody()

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def lock(self) -> AbstractAsyncContextManager[object]:
        return self._lock

    async def read32(self, address: int) -> int:
        return self._registers.read32(address)

    async def write32(self, address: int, value: int) -> None:
        self._registers.write32(address, value)

    async def read_burst(self, address: int, count: int) -> list[int]:
        return [self._registers.read32(address + WORD_BYTES * at) for at in range(count)]

    async def write_burst(self, address: int, words: Sequence[int]) -> None:
        for at, word in enumerate(words):
            self._registers.write32(address + WORD_BYTES * at, word)

    async def aclose(self) -> None:
        """There is nothing to give back."""


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """The result of a call that waits for nothing. Raises ``InvariantBroken`` for one that would."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    call.close()
    raise InvariantBroken("a call that had to end at once waits for something")
