"""What every way to an accelerator's registers does. One class per way inherits it."""

from __future__ import annotations

import os
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from inaproto.errors import FabricError, LocalMisuse
from inaproto_adapters.fpga.bus import RegisterBus
from inaproto_adapters.fpga.simulated import WordRegisters

PATIENT_S = 60.0
MANY = 300
"""Registers that no way moves at once."""


class Cells:
    """A register file that is a dictionary."""

    def __init__(self) -> None:
        self.words: dict[int, int] = {}
        self.log: list[int] = []
        """Addresses in the order in which they were written."""

    def read32(self, address: int) -> int:
        return self.words.get(address, 0)

    def write32(self, address: int, value: int) -> None:
        self.log.append(address)
        self.words[address] = value


Opened = tuple[RegisterBus, WordRegisters]


class RegisterBusContract(ABC):
    @abstractmethod
    def opened(self, directory: Path) -> AbstractAsyncContextManager[Opened]:
        """A bus, and the registers that it leads to; closed at the end."""

    async def test_what_is_written_is_there_when_the_call_returns(self, runtime_dir: Path) -> None:
        async with self.opened(runtime_dir) as (bus, registers):
            for address, value in ((0, 0), (4, 0xFFFF_FFFF), (0xFFC, 0x1234_5678), (4, 1)):
                await bus.write32(address, value)
                assert registers.read32(address) == value
            assert [await bus.read32(address) for address in (0, 4, 8, 0xFFC)] == [0, 1, 0, 0x1234_5678]

    async def test_bursts_of_any_length(self, runtime_dir: Path) -> None:
        rng = random.Random(1)
        async with self.opened(runtime_dir) as (bus, registers):
            for count in (0, 1, 2, 7, 8, 9, MANY):
                words = [rng.getrandbits(32) for _ in range(count)]
                await bus.write_burst(0x40, words)
                assert [registers.read32(0x40 + 4 * at) for at in range(count)] == words
                assert await bus.read_burst(0x40, count) == words
            assert registers.read32(0x3C) == registers.read32(0x40 + 4 * MANY) == 0

    async def test_what_no_register_can_be_is_refused_and_changes_nothing(self, runtime_dir: Path) -> None:
        async with self.opened(runtime_dir) as (bus, registers):
            await bus.write_burst(0, [1, 2, 3, 4])
            for address in (1, 2, 3, -4, 1 << 32):
                with pytest.raises(LocalMisuse):
                    await bus.read32(address)
                with pytest.raises(LocalMisuse):
                    await bus.write32(address, 0)
                with pytest.raises(LocalMisuse):
                    await bus.read_burst(address, 2)
                with pytest.raises(LocalMisuse):
                    await bus.write_burst(address, [0, 0])
            for value in (-1, 1 << 32):
                with pytest.raises(LocalMisuse):
                    await bus.write32(0, value)
                with pytest.raises(LocalMisuse):
                    await bus.write_burst(0, [0, 0, value])
            with pytest.raises(LocalMisuse):
                await bus.read_burst(0, -1)
            with pytest.raises(LocalMisuse):
                await bus.write_burst((1 << 32) - 4, [0, 0])
            assert [registers.read32(address) for address in (0, 4, 8, 12)] == [1, 2, 3, 4]

    async def test_bursts_of_two_tasks_do_not_mix(self, runtime_dir: Path) -> None:
        async with self.opened(runtime_dir) as (bus, _):
            found: list[list[int]] = []

            async def write(value: int) -> None:
                await bus.write_burst(0, [value] * MANY)

            async def read() -> None:
                found.append(await bus.read_burst(0, MANY))

            async with trio.open_nursery() as nursery:
                for value in range(3):
                    nursery.start_soon(write, value)
                    nursery.start_soon(read)
            assert all(len(set(words)) == 1 for words in found)

    async def test_the_lock_is_for_sequences_and_stops_no_single_access(self, runtime_dir: Path) -> None:
        async with self.opened(runtime_dir) as (bus, _):
            order: list[int] = []

            async def sequence(number: int) -> None:
                async with bus.lock:
                    for _ in range(3):
                        await bus.write32(0, number)
                        order.append(await bus.read32(0))

            async with trio.open_nursery() as nursery:
                for number in (1, 2):
                    nursery.start_soon(sequence, number)
            assert sorted((order[:3], order[3:])) == [[1] * 3, [2] * 3]

    async def test_a_cancelled_access_leaves_the_way_in_order(self, runtime_dir: Path) -> None:
        async with self.opened(runtime_dir) as (bus, _):
            await bus.write_burst(0, list(range(MANY)))
            for _ in range(3):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(bus.read_burst, 4, MANY - 1)
                    await trio.testing.wait_all_tasks_blocked()
                    nursery.cancel_scope.cancel()
                assert await bus.read_burst(0, MANY) == list(range(MANY))

    async def test_a_closed_way_says_so(self, runtime_dir: Path) -> None:
        async with self.opened(runtime_dir) as (bus, _):
            await bus.aclose()
            await bus.aclose()
            with pytest.raises(FabricError, match="closed") as caught:
                await bus.read32(0)
            assert not caught.value.retryable
            with pytest.raises(FabricError, match="closed"):
                await bus.write_burst(0, [1])

    async def test_its_peer_is_said(self, runtime_dir: Path) -> None:
        async with self.opened(runtime_dir) as (bus, _):
            assert bus.peer.startswith("the accelerator ")


@contextmanager
def line() -> Iterator[tuple[int, Path]]:
    """A pseudo-terminal: the far end, and the path of the near one."""
    far, near = os.openpty()
    try:
        yield far, Path(os.ttyname(near))
    finally:
        os.close(near)
        os.close(far)
