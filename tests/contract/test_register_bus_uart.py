"""Registers by a serial line, as LiteX has it: the contract, what is on the line, and what may go wrong.

The peer is written from the description of the protocol, and shares no code with what is tested.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from inaproto.errors import FabricError, LocalMisuse
from inaproto_adapters.fpga.simulated import WordRegisters
from inaproto_adapters.fpga.uart import UartBus
from tests.contract.register_bus_contract import PATIENT_S, Cells, Opened, RegisterBusContract, line


def uart_answers(data: bytearray, cells: WordRegisters) -> Iterator[bytes]:
    """What LiteX' bridge answers to whole requests at the head of ``data``, which it takes."""
    while len(data) >= 6:
        command, count = data[0], data[1]
        first = int.from_bytes(data[2:6], "big")
        size = 6 + (4 * count if command == 1 else 0)
        if len(data) < size:
            return
        for at in range(count):
            address = 4 * (first + at)
            if command == 1:
                cells.write32(address, int.from_bytes(data[6 + 4 * at : 10 + 4 * at], "big"))
            else:
                assert command == 2
                yield cells.read32(address).to_bytes(4, "big")
        del data[:size]


@asynccontextmanager
async def uart(cells: WordRegisters, received: bytearray | None = None) -> AsyncIterator[UartBus]:
    async def respond(far: int) -> None:
        data = bytearray()
        while True:
            await trio.lowlevel.wait_readable(far)
            found = os.read(far, 4096)
            data += found
            if received is not None:
                received.extend(found)
            for answer in uart_answers(data, cells):
                os.write(far, answer)

    with line() as (far, path):
        bus = await UartBus.open(path, timeout=PATIENT_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(respond, far)
            yield bus
            await bus.aclose()
            nursery.cancel_scope.cancel()


class TestUart(RegisterBusContract):
    @asynccontextmanager
    async def opened(self, directory: Path) -> AsyncIterator[Opened]:
        cells = Cells()
        async with uart(cells) as bus:
            yield bus, cells


async def test_requests_byte_by_byte() -> None:
    received = bytearray()
    async with uart(Cells(), received) as bus:
        await bus.write_burst(0x60, [0x11223344, 0x0A0D0311])  # bytes that a terminal would take for its own
        assert await bus.read_burst(0x60, 2) == [0x11223344, 0x0A0D0311]
    assert received == bytes.fromhex("01 02 00000018 11223344 0a0d0311  02 01 00000019  02 02 00000018")


async def test_a_line_that_is_silent_or_gone() -> None:
    far, near = os.openpty()
    bus = await UartBus.open(Path(os.ttyname(near)), timeout=0.01)
    os.close(near)
    with pytest.raises(FabricError, match="no answer within") as caught:
        await bus.read32(0)
    assert caught.value.retryable
    os.close(far)
    with pytest.raises(FabricError) as caught:
        await bus.read32(0)
    assert not caught.value.retryable
    await bus.aclose()


async def test_an_answer_that_comes_too_late_is_not_that_of_the_next_request() -> None:
    """Answers have no numbers: nothing on that line is sure any more, up to the next opening."""
    with line() as (far, path):
        bus = await UartBus.open(path, timeout=0.2)
        with pytest.raises(FabricError, match="no answer within"):
            await bus.read32(0)
        assert os.read(far, 4096)
        late = Cells()
        late.words[4] = 0x1111_1111
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_answer_one, far, late)
            with pytest.raises(FabricError, match="has to be opened again"):
                await bus.read32(4)
            nursery.cancel_scope.cancel()
        await bus.aclose()


async def test_more_than_was_asked_for_is_no_answer() -> None:
    with line() as (far, path):
        bus = await UartBus.open(path, timeout=PATIENT_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_answer_twice, far)
            with pytest.raises(FabricError, match="8 bytes came for 4"):
                await bus.read32(4)
        await bus.aclose()


async def _answer_twice(far: int) -> None:
    await trio.lowlevel.wait_readable(far)
    os.read(far, 4096)
    os.write(far, bytes(8))


async def test_what_is_left_of_a_request_that_was_given_up_is_thrown_away() -> None:
    cells = Cells()
    cells.words[4] = 44
    async with uart(cells) as bus:
        assert await bus.read32(4) == 44
    with line() as (far, path):
        bus = await UartBus.open(path, timeout=PATIENT_S)
        os.write(far, b"\xee\xee")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_answer_one, far, cells)
            assert await bus.read32(4) == 44
        await bus.aclose()


async def _answer_one(far: int, cells: Cells) -> None:
    await trio.lowlevel.wait_readable(far)
    for answer in uart_answers(bytearray(os.read(far, 4096)), cells):
        os.write(far, answer)


async def test_a_line_that_cannot_be_opened(runtime_dir: Path) -> None:
    with pytest.raises(LocalMisuse, match="12345 baud"):
        await UartBus.open(runtime_dir / "tty", baud=12_345)
    with pytest.raises(FabricError, match="No such file"):
        await UartBus.open(runtime_dir / "tty")
    (runtime_dir / "file").touch()
    with pytest.raises(FabricError, match="opening it"):
        await UartBus.open(runtime_dir / "file")
