"""Way to the registers of a PCIe card, by the device that Xilinx' XDMA driver makes for its user BAR.

Registers lie at their addresses in the device, ``/dev/xdma0_user`` as a rule, perhaps behind others of the
design (``offset``). The device is mapped; each access is one load or store of 32 bits, as AXI4-Lite wants it.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import trio

from inaproto.errors import FabricError, LocalMisuse, Unsupported
from inaproto_adapters.fpga.bus import BurstBus, cause_of, claim
from inaproto_adapters.fpga.register_map import WORD_BYTES

SPACE_BYTES: Final = 0x1000
BURST_WORDS: Final = 256
"""Accesses for which one thread is borrowed."""


class XdmaBus(BurstBus):
    """See the module. A register that does not answer reads as ones: PCIe knows no error here."""

    def __init__(self, memory: mmap.mmap, descriptor: int, peer: str, *, offset: int = 0) -> None:
        """It owns the descriptor of the device, which has its lock."""
        super().__init__(peer, burst_words=BURST_WORDS, space_bytes=len(memory) - offset)
        self._memory = memory
        self._descriptor = descriptor
        # An item of a view of this format is moved as one; a slice would be moved as bytes are.
        self._words = memoryview(memory)[offset:].cast("I")

    @classmethod
    async def open(cls, path: Path, *, offset: int = 0, space_bytes: int = SPACE_BYTES) -> Self:
        """``offset`` is where the accelerator's registers begin, ``space_bytes`` are theirs.

        Raises ``FabricError`` where there is no such device, ``Unsupported`` on big-endian machines.
        """
        if sys.byteorder != "little":
            raise Unsupported("XDMA", "this machine is big-endian, registers are little-endian")
        require_place(offset, space_bytes)
        try:
            memory, descriptor = await trio.to_thread.run_sync(_map, path, offset + space_bytes)
        except (OSError, ValueError) as error:
            raise FabricError("map", f"{path}", "opening it", cause_of(error), retryable=False) from None
        return cls(memory, descriptor, f"the accelerator at {path}", offset=offset)

    async def _read(self, address: int, count: int) -> list[int]:
        return await trio.to_thread.run_sync(self._read_now, address // WORD_BYTES, count)

    async def _write(self, address: int, words: Sequence[int]) -> None:
        await trio.to_thread.run_sync(self._write_now, address // WORD_BYTES, words)

    async def _close(self) -> None:
        self._words.release()
        self._memory.close()
        os.close(self._descriptor)

    def _read_now(self, first: int, count: int) -> list[int]:
        return [self._words[at] for at in range(first, first + count)]

    def _write_now(self, first: int, words: Sequence[int]) -> None:
        for at, word in enumerate(words, first):
            self._words[at] = word
        # Writes are posted: one has arrived when a read behind it is answered.
        self._words[first + len(words) - 1]


def require_place(offset: int, space_bytes: int = SPACE_BYTES) -> None:
    """Raises ``LocalMisuse`` for a part of a device that no registers can be in."""
    is_whole = offset % WORD_BYTES == 0 and space_bytes % WORD_BYTES == 0
    if not is_whole or offset < 0 or space_bytes < WORD_BYTES or offset + space_bytes > sys.maxsize:
        raise LocalMisuse(f"registers at {offset:#x}, {space_bytes:#x} bytes of them")


def _map(path: Path, length: int) -> tuple[mmap.mmap, int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_SYNC)
    try:
        claim(descriptor)
        return mmap.mmap(descriptor, length), descriptor
    except BaseException:
        os.close(descriptor)
        raise
