"""A wire that is cut for some time in the middle of a job, at all ports of the switch at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import trio

from inaproto.ports import FramePort, FramePortCapabilities, PortCounters
from inaproto.units import Frames


class Cut:
    """From the ``after``-th frame that the switch gets on, for ``seconds``: nothing passes, either way."""

    def __init__(self, *, after: int, seconds: float) -> None:
        self._left = after
        self._seconds = seconds
        self._until = math.inf
        self.frames_lost = 0

    @property
    def is_cut(self) -> bool:
        return self._left <= 0 and trio.current_time() < self._until

    def came(self, frames: int) -> None:
        if self._left > 0:
            self._left -= frames
            self._until = trio.current_time() + self._seconds

    def wrap(self, port: FramePort, name: str) -> FramePort:
        return _CutPort(port, self)


class _CutPort:
    def __init__(self, port: FramePort, cut: Cut) -> None:
        self._port = port
        self._cut = cut

    @property
    def capabilities(self) -> FramePortCapabilities:
        return self._port.capabilities

    @property
    def counters(self) -> PortCounters:
        return self._port.counters

    async def receive(self) -> Sequence[Frames]:
        while True:
            blocks = await self._port.receive()
            frames = sum(map(len, blocks))
            self._cut.came(frames)
            if not self._cut.is_cut:
                return blocks
            self._cut.frames_lost += frames

    def send_nowait(self, frames: Frames) -> int:
        if self._cut.is_cut:
            self._cut.frames_lost += len(frames)
            return len(frames)
        return self._port.send_nowait(frames)

    async def run(self) -> None:
        await self._port.run()

    async def aclose(self) -> None:
        await self._port.aclose()
