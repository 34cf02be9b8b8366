"""Registers of a card, by its driver's character device: the contract, with a file in place of a card."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from inaproto.errors import FabricError, LocalMisuse
from inaproto_adapters.fpga.buses import bus_opener
from inaproto_adapters.fpga.xdma import XdmaBus
from tests.contract.register_bus_contract import Opened, RegisterBusContract, line

SPACE = 0x1000


class Device:
    """A file in place of a card."""

    def __init__(self, path: Path, offset: int) -> None:
        self.path, self.offset = path, offset

    def read32(self, address: int) -> int:
        data = self.path.read_bytes()[self.offset + address :][:4]
        return int.from_bytes(data, "little")

    def write32(self, address: int, value: int) -> None:
        raise AssertionError("only looked at")


class TestXdma(RegisterBusContract):
    @asynccontextmanager
    async def opened(self, directory: Path) -> AsyncIterator[Opened]:
        path = directory / "xdma0_user"
        path.write_bytes(bytes(0x100 + SPACE))
        bus = await XdmaBus.open(path, offset=0x100, space_bytes=SPACE)
        yield bus, Device(path, 0x100)
        await bus.aclose()
        assert path.read_bytes()[:0x100] == bytes(0x100)


async def test_a_card_that_is_not_there(runtime_dir: Path) -> None:
    with pytest.raises(FabricError, match="No such file"):
        await XdmaBus.open(runtime_dir / "xdma0_user")
    (runtime_dir / "short").write_bytes(bytes(100))
    with pytest.raises(FabricError, match="opening it"):
        await XdmaBus.open(runtime_dir / "short")
    for offset, space in ((2, 0x1000), (-4, 0x1000), (0, 0), (0, 6)):
        with pytest.raises(LocalMisuse):
            await XdmaBus.open(runtime_dir / "short", offset=offset, space_bytes=space)


async def test_nothing_is_written_of_a_burst_that_goes_past_the_end(runtime_dir: Path) -> None:
    path = runtime_dir / "card"
    path.write_bytes(bytes(0x1000))
    bus = await XdmaBus.open(path, space_bytes=0x1000)
    with pytest.raises(LocalMisuse):
        await bus.write_burst(0, [1] * 0x401)
    await bus.write_burst(0xFFC, [2])
    await bus.aclose()
    assert path.read_bytes() == bytes(0xFFC) + b"\x02\0\0\0"


@pytest.mark.parametrize("kind", ["xdma", "uart"])
async def test_what_leads_to_one_board_is_opened_once(kind: str, runtime_dir: Path) -> None:
    """Two that drive it would take out each other's rings."""
    card = runtime_dir / "xdma0_user"
    card.write_bytes(bytes(0x1000))
    with line() as (_, tty):
        opener = bus_opener(f"{kind}:{card if kind == 'xdma' else tty}")
        first = await opener()
        with pytest.raises(FabricError, match="another process drives it"):
            await opener()
        await first.aclose()
        await (await opener()).aclose()
