"""Pauses where the switch's ports are: one that takes no blocks, and one that has failed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from inaproto.core.switch.accelerator import Accelerator, FramesArrived
from inaproto.daemon.switch.ports import PortBoard
from inaproto.ports import PortClosed
from inaproto.units import Frames, PortId
from inaproto.wire.path_probe import question
from inaproto_adapters.frames import StreamFramePort, open_frame_pair
from tests.unit.test_softnic_edge import pause

PORT = PortId(1)
ASKED = question(mac=bytes.fromhex("020000000001"), token=7, nbytes=64)


@asynccontextmanager
async def served() -> AsyncIterator[tuple[PortBoard, StreamFramePort, list[Frames]]]:
    """A board with one port, which takes no blocks, its far end, and what comes there."""
    board = PortBoard(Accelerator().step, print, wrap_port=None, ports_max=8)
    near, far = open_frame_pair()
    came: list[Frames] = []

    async def take() -> None:
        while True:
            came.extend(frames.copy() for frames in await far.receive())

    async with trio.open_nursery() as nursery:
        for task in (board.keep_pauses, far.run, take):
            nursery.start_soon(task)
        nursery.start_soon(board.serve, PORT, near, "port-1")
        await trio.testing.wait_all_tasks_blocked()
        yield board, far, came
        nursery.cancel_scope.cancel()
    await far.aclose()


async def test_a_pause_may_end_in_the_step_that_has_something_for_its_port(autojump_clock: object) -> None:
    async with served() as (board, _, came):
        board._do(FramesArrived(PORT, (pause(0xFFFF),)))
        board._do(FramesArrived(PORT, (ASKED, pause(0))))
        await trio.sleep(1)
        assert len(came) == 1
        board._do(FramesArrived(PORT, (ASKED,)))
        await trio.sleep(1)
        assert len(came) == 2
        (status,) = board.status()
        assert (status["pauses"], status["drops"]) == (2, {})


async def test_what_is_held_is_of_no_use_to_a_port_that_has_failed(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own task hears of that; others are not hurt by it."""

    def failed(self: StreamFramePort, frames: Frames) -> int:
        raise PortClosed("its peer reads no more")

    async with served() as (board, _, came):
        board._do(FramesArrived(PORT, (pause(0xFFFF),)))
        board._do(FramesArrived(PORT, (ASKED,)))
        monkeypatch.setattr(StreamFramePort, "send_nowait", failed)
        board._do(FramesArrived(PORT, (pause(0),)))
        await trio.sleep(1)
        assert came == []
        (status,) = board.status()
        assert status["pauses"] == 2
