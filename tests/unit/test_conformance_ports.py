"""The bench at the ports of a board: what its own counters say ends the waiting for what does not come."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from inaproto.units import MS
from inaproto_adapters.fpga.device import FpgaDevice
from inaproto_adapters.fpga.register_map import STATUS, Counter
from inaproto_adapters.fpga.rings import FpgaRings
from inaproto_adapters.fpga.simulated import InProcessBus
from inaproto_adapters.memory import Link, MemoryFramePort, open_memory_pair
from inaproto_hil.conformance.target import OverPorts
from tests.unit.test_fpga_device import Board

PATIENCE_S, QUIET_S = 5.0, 0.05
FRAME = bytes(range(64))
LATENCY_S = 0.5


class Mirror:
    """A board that sends each frame back by its other port, but for those that begin with ``lost``."""

    def __init__(self, *, counts: bool = True, lost: int = 0xFF) -> None:
        self.registers = Board()
        self.registers.live[Counter.TX] = 7  # it has sent to somebody before
        self._counts = counts
        self._lost = lost
        back = Link(latency_ns=round(LATENCY_S * 1000) * MS)
        pairs = [open_memory_pair(back=back) for _ in range(2)]
        self.near = [near for near, _ in pairs]
        self._far = [far for _, far in pairs]

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for port in range(2):
                nursery.start_soon(self._serve, port)

    async def _serve(self, port: int) -> None:
        other: MemoryFramePort = self._far[1 - port]
        while True:
            for block in await self._far[port].receive():
                for row in block:
                    if row[0] != self._lost:
                        other.send_nowait(row.reshape(1, -1))
                        self.registers.live[Counter.TX] += self._counts
                    self.registers.live[Counter.RX] += 1


@asynccontextmanager
async def target(mirror: Mirror) -> AsyncIterator[OverPorts]:
    device = await FpgaDevice.identify(InProcessBus(mirror.registers))
    rings = FpgaRings(device, retired_ns=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mirror.run)
        ports = OverPorts(
            "a mirror", rings, mirror.near, frame_bytes_min=60, patience_s=PATIENCE_S, quiet_s=QUIET_S
        )
        async with ports:
            yield ports
        nursery.cancel_scope.cancel()


async def took_s(ports: OverPorts, frame: bytes, frames: int) -> tuple[int, float]:
    """How many frames came of those that had to, and how long that took from when the board had it."""
    await ports.send(0, frame)
    began = trio.current_time()
    return len(await ports.take(frames)), trio.current_time() - began


async def quiet_s(ports: OverPorts) -> float:
    """How long it took until it was clear that nothing comes."""
    began = trio.current_time()
    assert await ports.rest() == []
    return trio.current_time() - began


async def test_what_the_board_never_sent_is_not_waited_for(autojump_clock: trio.abc.Clock) -> None:
    async with target(Mirror(lost=0xEE)) as ports:
        frames, within_s = await took_s(ports, FRAME, 1)
        assert frames == 1
        assert within_s == pytest.approx(LATENCY_S, abs=0.1), "it is under way, and counted"
        frames, within_s = await took_s(ports, b"\xee" + FRAME, 1)
        assert frames == 0
        assert within_s < 0.1
        assert await quiet_s(ports) < QUIET_S / 2


async def test_what_it_sent_is_waited_for(autojump_clock: trio.abc.Clock) -> None:
    """It comes long after the board has counted it, and longer than it would have to be quiet."""
    async with target(Mirror()) as ports:
        await took_s(ports, FRAME, 1)
        await ports.send(1, FRAME)
        assert await ports.rest() == [(0, FRAME)]


async def test_a_board_that_does_not_count_what_leaves_is_not_believed(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with target(Mirror(counts=False, lost=0xEE)) as ports:
        assert (await took_s(ports, FRAME, 1))[0] == 1
        frames, within_s = await took_s(ports, b"\xee" + FRAME, 1)
        assert frames == 0
        assert within_s == pytest.approx(PATIENCE_S, abs=0.1)


async def test_a_board_whose_frame_the_link_loses_is_believed_no_more(
    autojump_clock: trio.abc.Clock,
) -> None:
    """Each look would wait for that frame in vain, and for as long."""
    mirror = Mirror()
    async with target(mirror) as ports:
        await took_s(ports, FRAME, 1)
        mirror.registers.live[Counter.TX] += 1
        assert await quiet_s(ports) == pytest.approx(PATIENCE_S, abs=0.01)
        assert await quiet_s(ports) == pytest.approx(QUIET_S, abs=0.01)


async def test_while_it_is_busy_more_may_leave(autojump_clock: trio.abc.Clock) -> None:
    mirror = Mirror(lost=0xEE)
    async with target(mirror) as ports:
        await took_s(ports, FRAME, 1)
        mirror.registers.words[STATUS] = 1
        _, within_s = await took_s(ports, b"\xee" + FRAME, 1)
        assert within_s == pytest.approx(PATIENCE_S, abs=0.1)
        assert await quiet_s(ports) == pytest.approx(QUIET_S, abs=0.01), "it was waited for in vain"
