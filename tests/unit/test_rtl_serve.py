"""The ports of ``inaproto rtl serve``, before a model that swaps two ports in place of the RTL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import numpy as np
import trio

from inaproto.ports import FramePort
from inaproto.units import MS, S
from inaproto.wire.pause import pause_frame
from inaproto_adapters.memory import MemoryFramePort, open_memory_pair
from inaproto_hil.rtl.parameters import Parameters
from inaproto_hil.rtl.serve import Machine
from inaproto_hil.rtl.verilated.model import Model

PAUSE = bytes.fromhex("0180c2000001")
MAC = bytes.fromhex("021a00000001")
SILENCE_NS = 3 * MS
SOON_S = 0.001


class Swap:
    """What comes in at one port leaves by the other one; pauses leave nowhere."""

    cycles = 0

    def __init__(self) -> None:
        self.came: list[bytes] = []
        self._left: list[tuple[int, bytes]] = []

    def write32(self, address: int, value: int) -> None:
        pass

    def send(self, port: int, frame: bytes) -> None:
        self.came.append(frame)
        if frame[:6] != PAUSE:
            self._left.append((1 - port, frame))

    def run(self) -> list[tuple[int, bytes]]:
        left, self._left = self._left, []
        return left


class Comes:
    """Ports that come in, one after the other."""

    def __init__(self, ports: list[MemoryFramePort]) -> None:
        self._ports = ports

    async def accept(self) -> FramePort:
        await trio.lowlevel.checkpoint()
        if self._ports:
            return self._ports.pop(0)
        await trio.sleep_forever()
        raise AssertionError

    async def aclose(self) -> None:
        pass


@asynccontextmanager
async def machine() -> AsyncIterator[tuple[Machine, Swap, list[MemoryFramePort]]]:
    model = Swap()
    served = Machine(cast("Model", cast("Any", model)), Parameters(ports=2, children=2), None)
    pairs = [open_memory_pair() for _ in range(2)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.accept, Comes([near for near, _ in pairs]), None)
        nursery.start_soon(served.simulate)
        nursery.start_soon(served.keep_pauses)
        await trio.sleep(SOON_S)
        yield served, model, [far for _, far in pairs]
        nursery.cancel_scope.cancel()


def frame(number: int, priority: int = 0) -> bytes:
    tag = b"\x81\0" + (priority << 13).to_bytes(2, "big") if priority else b""
    return (MAC + MAC + tag + b"\x88\xb5" + bytes([number])).ljust(64, b"\0")


def send(port: MemoryFramePort, *frames: bytes) -> None:
    for one in frames:
        port.send_nowait(np.frombuffer(one, np.uint8)[None])


async def took(port: MemoryFramePort, frames: int) -> tuple[list[bytes], float]:
    """The next frames, and how long they took."""
    began, got = trio.current_time(), list[bytes]()
    with trio.move_on_after(SILENCE_NS / S / 2 if not frames else 60):
        while not frames or len(got) < frames:
            got += [row.tobytes() for block in await port.receive() for row in block]
    return got, trio.current_time() - began


async def test_a_port_that_is_paused_is_silent_for_so_long(autojump_clock: trio.abc.Clock) -> None:
    async with machine() as (served, model, (zero, one)):
        one.send_nowait(pause_frame(MAC, SILENCE_NS))
        await trio.sleep(SOON_S)
        send(zero, frame(1), frame(2))
        send(one, frame(3))
        assert await took(one, 0) == ([], SILENCE_NS / S / 2)
        assert (await took(zero, 1))[0] == [frame(3)], "the other way goes on"
        got, _ = await took(one, 2)
        assert got == [frame(1), frame(2)]
        assert trio.current_time() >= (SILENCE_NS / S) + SOON_S
        assert model.came[0][:6] == PAUSE, "which the accelerator counts"
        assert served.report()["pauses"] == 1


async def test_a_priority_alone_is_silent(autojump_clock: trio.abc.Clock) -> None:
    async with machine() as (_, _, (zero, one)):
        one.send_nowait(pause_frame(MAC, SILENCE_NS, [3]))
        await trio.sleep(SOON_S)
        send(zero, frame(1, priority=3), frame(2), frame(4, priority=2))
        got, _ = await took(one, 2)
        assert got == [frame(2), frame(4, priority=2)]
        one.send_nowait(pause_frame(MAC, 0, [3]))
        got, after_s = await took(one, 1)
        assert got == [frame(1, priority=3)]
        assert after_s < SILENCE_NS / S / 2


async def test_who_comes_after_one_that_paused_is_not_paused(autojump_clock: trio.abc.Clock) -> None:
    async with machine() as (served, _, (zero, one)):
        one.send_nowait(pause_frame(MAC, SILENCE_NS))
        await trio.sleep(SOON_S)
        send(zero, frame(1))
        await trio.sleep(SOON_S / 4)
        one.close()
        await trio.sleep(SOON_S / 4)
        near, another = open_memory_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.accept, Comes([near]), 1)
            await trio.sleep(SOON_S / 4)
            send(zero, frame(2))
            got, after_s = await took(another, 1)
            assert got == [frame(2)]
            assert after_s < SILENCE_NS / S / 2
            nursery.cancel_scope.cancel()
